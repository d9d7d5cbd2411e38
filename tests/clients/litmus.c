// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * usage: litmus [--list] [--only NAME,...] [--must] [options of the small clients]
 *
 * Runs each pattern --count times and says how often what it looks for was seen. Exit status 1: seen in a mode
 * ($DUALPORT_ORDERING) that forbids it; with --must (the control): not seen.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "litmus.h"

static const char *const mode_names[M_MODES] = { "rc", "strict", "signal", "relaxed" };

static void fill(uint8_t *p, uint64_t value)
{
	for (unsigned int i = 0; i < WORDS; i++)
		memcpy(p + 8 * i, &value, 8);
}

uint64_t at_b(const struct litmus *l, size_t off)
{
	return __atomic_load_n((const uint64_t *)(const void *)(l->b.buf + off), __ATOMIC_ACQUIRE);
}

unsigned int count_words(const uint8_t *p, uint64_t value)
{
	unsigned int n = 0;

	for (unsigned int i = 0; i < WORDS; i++)
		n += __atomic_load_n((const uint64_t *)(const void *)(p + 8 * i), __ATOMIC_ACQUIRE) == value;
	return n;
}

static void fail(const struct litmus *l, const char *what, int err)
{
	fprintf(stderr, "litmus: round %llu: %s: %s\n", (unsigned long long)l->round, what, strerror(err));
	exit(2);
}

void post(struct litmus *l, struct mend *e, const struct mwr *w, unsigned int n)
{
	uint32_t rkey = e == &l->c ? l->shared->rkey : l->b.mr->rkey;
	struct ibv_send_wr wr[16] = { 0 }, *bad;
	struct ibv_sge sge[16];
	int ret;

	for (unsigned int i = 0; i < n; i++) {
		sge[i] = (struct ibv_sge){ (uintptr_t)e->buf + w[i].off, (uint32_t)w[i].len, e->mr->lkey };
		wr[i] = (struct ibv_send_wr){ .wr_id = l->posted, .sg_list = &sge[i], .num_sge = w[i].len > 0,
					      .opcode = w[i].op, .send_flags = (unsigned int)w[i].flags };
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
		if (w[i].op == IBV_WR_ATOMIC_FETCH_AND_ADD || w[i].op == IBV_WR_ATOMIC_CMP_AND_SWP) {
			wr[i].wr.atomic.remote_addr = (uintptr_t)l->b.buf + w[i].raddr;
			wr[i].wr.atomic.rkey = rkey;
			wr[i].wr.atomic.compare_add = w[i].op == IBV_WR_ATOMIC_CMP_AND_SWP ? w[i].compare : w[i].arg;
			wr[i].wr.atomic.swap = w[i].arg;
		} else {
			wr[i].wr.rdma.remote_addr = (uintptr_t)l->b.buf + w[i].raddr;
			wr[i].wr.rdma.rkey = rkey;
		}
		if (e == &l->a && (w[i].flags & IBV_SEND_SIGNALED))
			l->posted++;
	}
	ret = ibv_post_send(e->qp, wr, &bad);
	if (ret)
		fail(l, "post_send", ret);
}

void look(struct litmus *l)
{
	struct ibv_wc wc;
	int n = ibv_poll_cq(l->a.cq, 1, &wc);

	if (n < 0)
		fail(l, "poll_cq", EIO);
	if (!n)
		return;
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == l->done && wc.qp_num == l->a.qp->qp_num,
	      "completion %u: status %d, wr_id %llu", l->done, wc.status, (unsigned long long)wc.wr_id);
	if (mini_failed)
		exit(1);
	l->done++;
}

void finish(struct litmus *l)
{
	while (l->done < l->posted)
		look(l);
}

void third_party(struct litmus *l, struct mwr w)
{
	struct ibv_wc wc;
	int n;

	w.flags |= IBV_SEND_SIGNALED;
	post(l, &l->c, &w, 1);
	while (!(n = ibv_poll_cq(l->c.cq, 1, &wc)))
		;
	CHECK(n == 1 && wc.status == IBV_WC_SUCCESS, "third party: %d, status %d", n, n == 1 ? (int)wc.status : 0);
}

struct mwr data(const struct litmus *l, size_t at, int flags)
{
	fill(l->a.buf + at, l->round);
	return (struct mwr){ .op = IBV_WR_RDMA_WRITE, .off = at, .len = BULK, .raddr = at, .flags = flags };
}

/* A WRITE sets it to the round, what counts raises it by one. Rounds of all patterns count on. */
struct mwr flag(const struct litmus *l, unsigned int i, enum ibv_wr_opcode op, int flags)
{
	struct mwr w = { .op = op, .off = FLAG(i), .len = 8, .raddr = FLAG(i), .flags = flags, .arg = 1 };

	if (op == IBV_WR_RDMA_WRITE) {
		memcpy(l->a.buf + FLAG(i), &l->round, 8);
		return w;
	}
	w.off = AT_RESULT + 8 * i;
	w.compare = l->base[i];
	if (op == IBV_WR_ATOMIC_CMP_AND_SWP)
		w.arg = l->round;
	return w;
}

bool flag_is_up(const struct litmus *l, unsigned int i)
{
	return at_b(l, FLAG(i)) != l->base[i];
}

void wait_flag(struct litmus *l, unsigned int i)
{
	while (!flag_is_up(l, i))
		look(l);
}

static int open_ends(struct litmus *l)
{
	struct mend_want want = { .len = MEMORY, .depth = 128, .sge = 2, .inl = 64, .recvs = 16 };
	struct mend_want little = { .len = MEMORY, .depth = 16, .sge = 2, .inl = 64 };
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			   IBV_ACCESS_REMOTE_ATOMIC;

	if (mend_open(&l->a, &l->m, l->m.dev, &want) || mend_open(&l->b, &l->m, l->m.peer_dev, &want) ||
	    mend_open(&l->c, &l->m, l->m.dev, &little) || mend_open(&l->b2, &l->m, l->m.peer_dev, &little))
		return -1;
	l->shared = vb.reg_mr(l->b2.dev.pd, l->b.buf, MEMORY, access);
	if (!l->shared || mend_join(&l->a, &l->b, NULL) || mend_join(&l->c, &l->b2, NULL))
		return -1;
	mini_nap(l->m.settle_ms);
	/* the first requests with each key go over one port */
	for (l->round = 1; l->round <= 4; l->round++) {
		struct mwr w = data(l, l->round % 2 ? AT_DATA : AT_MORE, IBV_SEND_SIGNALED);

		post(l, &l->a, &w, 1);
		finish(l);
		third_party(l, w);
		mini_nap(20);
	}
	return 0;
}

static void close_ends(struct litmus *l)
{
	/* the QPs before what the others' memory is registered for */
	vb.dereg_mr(l->shared);
	mend_close(&l->c);
	mend_close(&l->b2);
	mend_close(&l->a);
	mend_close(&l->b);
}

static bool listed(const char *only, const char *name)
{
	size_t n = strlen(name);

	for (const char *p = only; p && *p; p += strcspn(p, ","), p += *p == ',')
		if (strcspn(p, ",") == n && !strncmp(p, name, n))
			return true;
	return !only;
}

/* As doc/ordering.md has it. */
static void print_table(void)
{
	printf("| pattern | what must not be seen | rc | strict | signal | relaxed |\n|---|---|---|---|---|---|\n");
	for (unsigned int i = 0; i < npatterns; i++) {
		printf("| `%s` | %s |", patterns[i].name, patterns[i].what);
		for (int m = 0; m < M_MODES; m++)
			printf(" %s |", patterns[i].never & IN(m) ? "never" : "may be");
		printf("\n");
	}
}

static void run(struct litmus *l, const struct pattern *p, enum mode mode, bool must)
{
	bool never = p->never & IN(mode);
	unsigned int seen = 0, n;

	/* luck decides when what may be seen is: once is enough */
	for (n = 0; n < l->m.count && !(must && seen) && !mini_failed; n++, l->round++) {
		for (unsigned int i = 0; i < 8; i++)
			l->base[i] = at_b(l, FLAG(i));
		seen += p->round(l);
		finish(l);
	}
	printf("%-20s %-8s seen in %u of %u rounds; %s\n", p->name, mode_names[mode], seen, n,
	       never ? "forbidden" : "allowed");
	if (must)
		CHECK(seen, "%s: not seen, so this would not see it where it is forbidden", p->name);
	else
		CHECK(!never || !seen, "%s: forbidden in mode %s", p->name, mode_names[mode]);
}

int main(int argc, char **argv)
{
	struct litmus l = { .m = { .name = "litmus", .count = 50, .timeout_s = 120 } };
	const char *only = NULL, *name = getenv("DUALPORT_ORDERING");
	enum mode mode = M_STRICT;
	unsigned int ran = 0;
	bool must = false;
	int n = 1;

	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--list"))
			return print_table(), 0;
		if (!strcmp(argv[i], "--must"))
			must = true;
		else if (!strcmp(argv[i], "--only") && i + 1 < argc)
			only = argv[++i];
		else
			argv[n++] = argv[i];
	}
	mini_start(&l.m, n, argv, "also: --list, --only NAME,..., --must");
	for (int m = 0; m < M_MODES; m++)
		if (name && !strcmp(name, mode_names[m]))
			mode = (enum mode)m;
	if (open_ends(&l))
		return 2;
	for (unsigned int i = 0; i < npatterns && !mini_failed; i++)
		if (listed(only, patterns[i].name)) {
			run(&l, &patterns[i], mode, must);
			ran++;
		}
	CHECK(ran, "no such pattern");
	close_ends(&l);
	return mini_end(&l.m, NULL);
}
