// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * What programs rely on. Each round has data of its own, so that what is old can be told from what is new. Where a flag is
 * looked at first and the data afterwards, old data are a violation whenever they are seen.
 */
#include <string.h>

#include "litmus.h"

#define SIG IBV_SEND_SIGNALED
#define INL IBV_SEND_INLINE
#define FAA IBV_WR_ATOMIC_FETCH_AND_ADD
#define CAS IBV_WR_ATOMIC_CMP_AND_SWP
#define WRITE IBV_WR_RDMA_WRITE
#define READ IBV_WR_RDMA_READ

static bool old_data(const struct litmus *l, size_t at)
{
	return count_words(l->b.buf + at, l->round) != WORDS;
}

static bool any_data(const struct litmus *l, size_t at)
{
	return count_words(l->b.buf + at, l->round) != 0;
}

/* ---- data, then a flag ---- */

static bool data_then(struct litmus *l, struct mwr f)
{
	struct mwr w[] = { data(l, AT_DATA, 0), f };

	post(l, &l->a, &w[0], 1);
	post(l, &l->a, &w[1], 1);
	wait_flag(l, 0);
	return old_data(l, AT_DATA);
}

static bool data_faa(struct litmus *l)
{
	return data_then(l, flag(l, 0, FAA, SIG));
}

static bool data_cas(struct litmus *l)
{
	return data_then(l, flag(l, 0, CAS, SIG));
}

static bool data_inline(struct litmus *l)
{
	return data_then(l, flag(l, 0, WRITE, SIG | INL));
}

/* An array of flags, the last of which is looked at. */
static bool data_flags(struct litmus *l)
{
	struct mwr f = flag(l, 0, WRITE, SIG);

	f.len = 128;
	f.off -= 120;
	f.raddr -= 120;
	return data_then(l, f);
}

static bool wait_recv(struct litmus *l)
{
	struct ibv_wc wc;
	int n;

	while (!(n = ibv_poll_cq(l->b.cq, 1, &wc)))
		look(l);
	CHECK(n == 1 && wc.status == IBV_WC_SUCCESS, "receive: %d, status %d", n, n == 1 ? (int)wc.status : 0);
	return old_data(l, AT_DATA);
}

static bool data_send(struct litmus *l)
{
	struct mwr w[] = { data(l, AT_DATA, 0), { .op = IBV_WR_SEND, .off = FLAG(1), .len = 8, .flags = SIG } };

	CHECK(!mend_recv(&l->b, AT_RESULT, 64, 0), "post_recv");
	post(l, &l->a, w, 2);
	return wait_recv(l);
}

static bool data_imm(struct litmus *l)
{
	struct mwr w[] = { data(l, AT_DATA, 0), { .op = IBV_WR_RDMA_WRITE_WITH_IMM, .raddr = FLAG(1), .flags = SIG } };

	CHECK(!mend_recv(&l->b, AT_RESULT, 64, 0), "post_recv");
	post(l, &l->a, w, 2);
	return wait_recv(l);
}

/* Nobody is told of either; an empty request at the end is. */
static bool unsignalled_flag(struct litmus *l)
{
	struct mwr w[] = { data(l, AT_DATA, 0), flag(l, 0, WRITE, INL), { .op = WRITE, .flags = SIG } };

	post(l, &l->a, w, 3);
	wait_flag(l, 0);
	return old_data(l, AT_DATA);
}

/* A fenced flag: FENCE says nothing of WRITEs, but order does. */
static bool fenced_flag(struct litmus *l)
{
	return data_then(l, flag(l, 0, WRITE, SIG | INL | IBV_SEND_FENCE));
}

static bool middle(struct litmus *l, bool second)
{
	struct mwr w[] = { data(l, AT_DATA, 0), flag(l, 0, WRITE, INL), data(l, AT_MORE, 0), flag(l, 1, WRITE, SIG | INL) };
	bool bad;

	post(l, &l->a, w, 4);
	wait_flag(l, second ? 1 : 0);
	bad = old_data(l, AT_DATA);
	if (second)
		bad |= old_data(l, AT_MORE) || !flag_is_up(l, 0);
	return bad;
}

static bool flag_in_the_middle(struct litmus *l)
{
	return middle(l, false);
}

static bool flag_at_the_end(struct litmus *l)
{
	return middle(l, true);
}

static bool flag_flag(struct litmus *l)
{
	struct mwr w[] = { data(l, AT_DATA, 0), flag(l, 0, WRITE, INL), flag(l, 1, FAA, SIG) };

	post(l, &l->a, w, 3);
	wait_flag(l, 1);
	return !flag_is_up(l, 0);
}

/* ---- a flag, then data ---- */

static bool then_data(struct litmus *l, struct mwr f)
{
	struct mwr w[] = { data(l, AT_MORE, 0), f, data(l, AT_DATA, SIG) };

	/* the flag has something to wait for */
	post(l, &l->a, w, 3);
	while (!any_data(l, AT_DATA))
		look(l);
	return !flag_is_up(l, 0);
}

static bool inline_data(struct litmus *l)
{
	return then_data(l, flag(l, 0, WRITE, SIG | INL));
}

static bool faa_data(struct litmus *l)
{
	return then_data(l, flag(l, 0, FAA, SIG));
}

/* ---- data and data ---- */

static bool data_data(struct litmus *l)
{
	struct mwr w[] = { data(l, AT_DATA, 0), data(l, AT_MORE, SIG) };

	post(l, &l->a, w, 2);
	while (!any_data(l, AT_MORE))
		look(l);
	return old_data(l, AT_DATA);
}

/* The same bytes twice, cut at the same places or not: what is new stays. */
static bool overwrite(struct litmus *l, size_t first, size_t second)
{
	struct mwr w[] = { data(l, AT_MORE, 0), data(l, AT_DATA, SIG) };

	memset(l->a.buf + AT_MORE, 0xee, BULK);
	w[0].raddr = first;
	w[1].raddr = second;
	post(l, &l->a, w, 2);
	finish(l);
	third_party(l, (struct mwr){ .op = FAA, .off = AT_RESULT, .len = 8, .raddr = FLAG(7), .arg = 1 });
	return old_data(l, second);
}

static bool overwrite_same(struct litmus *l)
{
	return overwrite(l, AT_DATA, AT_DATA);
}

/* Either way, so that each port has to wait for the other. */
static bool overwrite_shifted(struct litmus *l)
{
	size_t shift = 20480;

	return l->round & 1 ? overwrite(l, AT_DATA + shift, AT_DATA) : overwrite(l, AT_DATA, AT_DATA + shift);
}

/* ---- READs ---- */

static bool read_after_write(struct litmus *l)
{
	struct mwr w[] = { data(l, AT_DATA, 0), { .op = READ, .off = AT_RESULT, .len = BULK, .raddr = AT_DATA, .flags = SIG } };

	post(l, &l->a, w, 2);
	finish(l);
	return count_words(l->a.buf + AT_RESULT, l->round) != WORDS;
}

/* Over the cut of what was written. */
static bool read_shifted(struct litmus *l)
{
	struct mwr w[] = { data(l, AT_DATA, 0),
			   { .op = READ, .off = AT_RESULT, .len = BULK / 2, .raddr = AT_DATA + 12288, .flags = SIG } };

	memset(l->a.buf + AT_RESULT, 0, BULK);
	post(l, &l->a, w, 2);
	finish(l);
	return count_words(l->a.buf + AT_RESULT, l->round) != WORDS / 2;
}

/* Short ones, of the first and the last bytes: one of these is on another rail than the READs are. */
static bool read_ends(struct litmus *l)
{
	struct mwr w[] = { data(l, AT_DATA, 0),
			   { .op = READ, .off = AT_RESULT, .len = 8, .raddr = AT_DATA },
			   { .op = READ, .off = AT_RESULT + 8, .len = 8, .raddr = AT_DATA + BULK - 8, .flags = SIG } };

	post(l, &l->a, w, 3);
	finish(l);
	return count_words(l->a.buf + AT_RESULT, l->round) < 2;
}

/* With FENCE a READ is over before what follows begins. */
static bool write_after_read(struct litmus *l)
{
	struct mwr w[] = { { .op = READ, .off = AT_RESULT, .len = BULK, .raddr = AT_DATA },
			   data(l, AT_DATA, SIG | IBV_SEND_FENCE) };

	post(l, &l->a, w, 2);
	finish(l);
	return count_words(l->a.buf + AT_RESULT, l->round) != 0;
}

/* ---- what a completion says ---- */

/* Somebody is told by way of the completion, and sets a flag through a queue pair of his own. */
static bool told(struct litmus *l, const struct mwr *w, unsigned int n)
{
	post(l, &l->a, w, n);
	finish(l);
	third_party(l, (struct mwr){ .op = FAA, .off = AT_RESULT, .len = 8, .raddr = FLAG(0), .arg = 1 });
	return old_data(l, AT_DATA);
}

static bool cqe_third(struct litmus *l)
{
	struct mwr w = data(l, AT_DATA, SIG);

	return told(l, &w, 1);
}

/* UCX: an empty WRITE, whose completion tells of all before it. */
static bool empty_write(struct litmus *l)
{
	struct mwr w[] = { data(l, AT_DATA, 0), { .op = WRITE, .raddr = AT_DATA, .flags = SIG } };

	return told(l, w, 2);
}

/* ---- locks ---- */

/*
 * a takes the lock, changes the data and gives it back; then so does the third party. Who holds the lock must find what
 * the one before has left.
 */
static bool lock(struct litmus *l, struct mwr unlock)
{
	struct mwr take = { .op = CAS, .off = AT_RESULT, .len = 8, .raddr = FLAG(2), .compare = 0, .arg = 1, .flags = SIG };
	struct mwr w[] = { data(l, AT_DATA, 0), unlock };
	uint64_t was;

	post(l, &l->a, &take, 1);
	finish(l);
	post(l, &l->a, w, 2);
	do {
		third_party(l, take);
		memcpy(&was, l->c.buf + AT_RESULT, 8);
	} while (was);
	third_party(l, (struct mwr){ .op = READ, .off = AT_DATA, .len = BULK, .raddr = AT_DATA });
	third_party(l, (struct mwr){ .op = FAA, .off = AT_RESULT, .len = 8, .raddr = FLAG(2), .arg = (uint64_t)-1 });
	return count_words(l->c.buf + AT_DATA, l->round) != WORDS;
}

static bool lock_faa(struct litmus *l)
{
	return lock(l, (struct mwr){ .op = FAA, .off = AT_RESULT + 8, .len = 8, .raddr = FLAG(2), .arg = (uint64_t)-1, .flags = SIG });
}

static bool lock_write(struct litmus *l)
{
	memset(l->a.buf + FLAG(2), 0, 8);
	return lock(l, (struct mwr){ .op = WRITE, .off = FLAG(2), .len = 8, .raddr = FLAG(2), .flags = SIG | INL });
}

/*
 * A seqlock: odd while the data change. a writes; b's program reads them from its memory. If the number was even and is the
 * same afterwards, the data are of one round.
 */
static bool seqlock(struct litmus *l)
{
	struct mwr w[] = { flag(l, 3, FAA, 0), data(l, AT_DATA, 0), flag(l, 3, FAA, SIG) };
	uint64_t before, after, first;
	unsigned int same;

	post(l, &l->a, w, 3);
	do {
		look(l);
		before = at_b(l, FLAG(3));
		first = at_b(l, AT_DATA);
		same = count_words(l->b.buf + AT_DATA, first);
		after = at_b(l, FLAG(3));
		if (!(before & 1) && before == after && same != WORDS)
			return true;
	} while (l->done < l->posted);
	return false;
}

static bool faa_chain(struct litmus *l)
{
	struct mwr w[9];
	uint64_t was;

	w[0] = data(l, AT_DATA, 0);
	for (unsigned int i = 1; i < 9; i++) {
		w[i] = flag(l, 4, FAA, i == 8 ? SIG : 0);
		w[i].off = AT_RESULT + 8 * i;
	}
	post(l, &l->a, w, 9);
	finish(l);
	for (unsigned int i = 1; i < 9; i++) {
		memcpy(&was, l->a.buf + AT_RESULT + 8 * i, 8);
		if (was != l->base[4] + i - 1)
			return true;
	}
	return false;
}

/* ---- the exception ---- */

static bool tail(struct litmus *l)
{
	struct mwr w = data(l, AT_DATA, SIG);

	post(l, &l->a, &w, 1);
	while (at_b(l, AT_DATA + BULK - 8) != l->round)
		look(l);
	return old_data(l, AT_DATA);
}

const struct pattern patterns[] = {
	{ "data-faa", "FETCH_ADD before the data", ALL_MODES, data_faa },
	{ "data-cas", "CMP_SWAP before the data", ALL_MODES, data_cas },
	{ "data-inline", "an inline flag before the data", NOT_RELAXED, data_inline },
	{ "data-flags", "a flag in a WRITE of 128 bytes before the data", NOT_RELAXED, data_flags },
	{ "data-send", "a SEND before the data", ALL_MODES, data_send },
	{ "data-imm", "immediate data before the data", ALL_MODES, data_imm },
	{ "unsignalled-flag", "an inline flag before the data, neither of them signalled", NOT_RELAXED, unsignalled_flag },
	{ "fenced-flag", "an inline flag with FENCE before the data", ALL_MODES, fenced_flag },
	{ "flag-in-the-middle", "data, flag, data, flag in one list: the first flag before the first data", NOT_RELAXED,
	  flag_in_the_middle },
	{ "flag-at-the-end", "the same list: the second flag before anything", NOT_RELAXED, flag_at_the_end },
	{ "flag-flag", "data, inline flag, FETCH_ADD: the last before the flag", ALL_MODES, flag_flag },
	{ "inline-data", "data before an earlier inline flag", IN(M_RC) | IN(M_STRICT), inline_data },
	{ "faa-data", "data before an earlier FETCH_ADD", IN(M_RC) | IN(M_STRICT), faa_data },
	{ "data-data", "data before earlier disjoint data", IN(M_RC), data_data },
	{ "overwrite", "old bytes after new ones, same range", NOT_RELAXED, overwrite_same },
	{ "overwrite-shifted", "old bytes after new ones, ranges that overlap", NOT_RELAXED, overwrite_shifted },
	{ "read-after-write", "READ of the range just written: old bytes", NOT_RELAXED, read_after_write },
	{ "read-shifted", "READ over the cut of what was written: old bytes", NOT_RELAXED, read_shifted },
	{ "read-ends", "short READs of the first and the last bytes written: old bytes", NOT_RELAXED, read_ends },
	{ "write-after-read", "READ, then WRITE with FENCE: new bytes in the READ", ALL_MODES, write_after_read },
	{ "cqe-third", "completion, then a third party's flag: old data", ALL_MODES, cqe_third },
	{ "empty-write", "completion of an empty WRITE behind the data, then a third party's flag: old data", ALL_MODES,
	  empty_write },
	{ "lock-faa", "a lock given back by FETCH_ADD: old data under it", ALL_MODES, lock_faa },
	{ "lock-write", "a lock given back by an inline WRITE: old data under it", NOT_RELAXED, lock_write },
	{ "seqlock", "FETCH_ADD, data, FETCH_ADD: torn data under an even number", IN(M_RC) | IN(M_STRICT), seqlock },
	{ "faa-chain", "FETCH_ADDs of one word: results out of order", ALL_MODES, faa_chain },
	{ "tail", "the last bytes of a WRITE before its first", 0, tail },
};
const unsigned int npatterns = sizeof(patterns) / sizeof(patterns[0]);
