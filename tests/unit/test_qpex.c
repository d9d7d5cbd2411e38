// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * ibv_wr_* over a provider of this file's own: what it is asked, what the program is told, and whose the pointers
 * are.
 */
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "provider_fake.h"
#include "qpex_priv.h"
#include "run.h"

#define MANY 256
#define QPN 0x11

/* ---- the provider */

struct seen {
	uint64_t wr_id;
	unsigned int flags;
	enum ibv_wr_opcode op;
	size_t nsge;
	bool inlined;
	char bytes[64];
};

static struct verbs_context program;
static struct ibv_qp_ex ex, ex2;
static struct seen building[MANY], got[MANY];	 /* of the open session, of those that were completed */
static int nbuilding, ngot, sessions, aborts;
static int err_setter, err_complete;		 /* that the provider gives */
static int plain[MANY], nplain;			 /* wr_ids of post_send, of which it takes max_plain */
static int max_plain;
static unsigned int last_flags;			 /* of the last of them, and its first SGE */
static struct ibv_sge last_sge;
static pthread_mutex_t wr_lock = PTHREAD_MUTEX_INITIALIZER;

static struct seen *p_begin(const struct ibv_qp_ex *e, enum ibv_wr_opcode op)
{
	struct seen *s = &building[nbuilding++];

	*s = (struct seen){ .wr_id = e->wr_id, .flags = e->wr_flags, .op = op };
	return s;
}

static void p_write(struct ibv_qp_ex *e, uint32_t rkey, uint64_t addr)
{
	(void)rkey;
	(void)addr;
	p_begin(e, IBV_WR_RDMA_WRITE);
}

static void p_send(struct ibv_qp_ex *e)
{
	p_begin(e, IBV_WR_SEND);
}

static void p_set_sge_list(struct ibv_qp_ex *e, size_t n, const struct ibv_sge *list)
{
	(void)e;
	(void)list; /* never looked at when it is too long */
	building[nbuilding - 1].nsge = n;
	if (n > 2)
		err_setter = ENOMEM;
}

static void p_set_sge(struct ibv_qp_ex *e, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_sge s = { addr, length, lkey };

	p_set_sge_list(e, 1, &s);
}

static void p_set_inline(struct ibv_qp_ex *e, void *addr, size_t length)
{
	(void)e;
	ck_assert_uint_le(length, sizeof(building[0].bytes));
	building[nbuilding - 1].inlined = true;
	building[nbuilding - 1].nsge = length;
	memcpy(building[nbuilding - 1].bytes, addr, length);
}

static void p_set_inline_list(struct ibv_qp_ex *e, size_t n, const struct ibv_data_buf *list)
{
	(void)e;
	(void)n;
	(void)list;
	ck_abort_msg("it gets one piece");
}

static void p_start(struct ibv_qp_ex *e)
{
	(void)e;
	pthread_mutex_lock(&wr_lock);
	nbuilding = 0;
	err_setter = 0;
	sessions++;
}

static int p_complete(struct ibv_qp_ex *e)
{
	int err = err_setter ? err_setter : err_complete;

	(void)e;
	for (int i = 0; i < nbuilding && !err; i++)
		got[ngot++] = building[i];
	pthread_mutex_unlock(&wr_lock);
	return err;
}

/* What mlx5 sets in modify_qp while the QP cannot send. */
static int p_complete_refuse(struct ibv_qp_ex *e)
{
	(void)e;
	pthread_mutex_unlock(&wr_lock);
	return ENOTSUP;
}

static void p_abort(struct ibv_qp_ex *e)
{
	(void)e;
	aborts++;
	pthread_mutex_unlock(&wr_lock);
}

static int p_post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	(void)qp;
	for (; wr; wr = wr->next) {
		if (nplain == max_plain || wr->num_sge > 2) {
			*bad = wr;
			return ENOMEM;
		}
		plain[nplain++] = (int)wr->wr_id;
		last_flags = wr->send_flags;
		last_sge = wr->num_sge ? wr->sg_list[0] : (struct ibv_sge){ 0 };
	}
	return 0;
}

static int p_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	(void)cq;
	(void)n;
	(void)wc;
	return 0;
}

static struct ibv_qp_ex *f_to_ex(struct ibv_qp *qp)
{
	return qp == &ex.qp_base ? &ex : qp == &ex2.qp_base ? &ex2 : NULL;
}

static int err_destroy;

static int f_destroy(struct ibv_qp *qp)
{
	(void)qp;
	return err_destroy;
}

static const struct dp_verbs real = {
	.query_device = fake_query_device,
	.get_device_name = fake_device_name,
	.create_cq = fake_create_cq,
	.qp_to_qp_ex = f_to_ex,
	.destroy_qp = f_destroy,
};

/* ---- a QP that peering is pending for */

static struct dp_qp *q;

static struct dp_qp *track(struct ibv_qp_ex *e, uint32_t qpn, struct dp_cq *cq)
{
	struct dp_qp *new;

	*e = (struct ibv_qp_ex){
		.qp_base = { .context = &program.context, .qp_num = qpn },
		.wr_start = p_start,
		.wr_complete = p_complete,
		.wr_abort = p_abort,
		.wr_rdma_write = p_write,
		.wr_send = p_send,
		.wr_set_sge = p_set_sge,
		.wr_set_sge_list = p_set_sge_list,
		.wr_set_inline_data = p_set_inline,
		.wr_set_inline_data_list = p_set_inline_list,
	};
	new = fake_qp(&e->qp_base, cq, (struct ibv_qp_cap){ .max_send_wr = 20, .max_send_sge = 2, .max_inline_data = 64 });
	new->post_send = p_post;
	ck_assert_int_eq(dp_hmap_put(&dp_qps, (uintptr_t)new->qp, new), 0);
	ck_assert_int_eq(dp_qpex_new(new), 0);
	ck_assert_ptr_eq(e->wr_start, p_start);
	ck_assert_int_eq(dp_qp_track(new), 0);
	ck_assert_ptr_ne(e->wr_start, p_start);
	return new;
}

static void setup(void)
{
	struct dp_cq *cq;

	fake_begin(&real, &program);
	dp_cfg.spread_min = 8192;
	program.context.ops.poll_cq = p_poll;
	program.context.ops.post_send = p_post;
	max_plain = MANY;
	ck_assert_ptr_nonnull(dp_ctx_get(&program.context));
	cq = dp_cq_find(dp_create_cq(&program.context, 16, NULL, NULL, 0));
	ck_assert_ptr_nonnull(cq);
	q = track(&ex, QPN, cq);
	/* what the provider does not have stays away: programs look */
	ck_assert_ptr_null(ex.wr_rdma_read);
}

static void native(void)
{
	dp_take(&q->scq->lock);
	dp_take(&q->lock);
	dp_qp_native(q);
	dp_drop(&q->lock);
	dp_drop(&q->scq->lock);
}

static void write_one(uint64_t wr_id, unsigned int flags)
{
	ex.wr_id = wr_id;
	ex.wr_flags = flags;
	ibv_wr_rdma_write(&ex, 1, 0x1000);
	ibv_wr_set_sge(&ex, 2, 0x2000, 8);
}

/* ---- */

START_TEST(pending_is_the_providers_session)
{
	struct ibv_data_buf b[2] = { { (char[]){ "ab" }, 2 }, { (char[]){ "cde" }, 3 } };

	ibv_wr_start(&ex);
	write_one(1, IBV_SEND_SIGNALED);
	ex.wr_id = 2;
	ex.wr_flags = 0;
	ibv_wr_send(&ex);
	ibv_wr_set_inline_data_list(&ex, 2, b);
	memset(b[0].addr, 'x', 2);
	memset(b[1].addr, 'x', 3);
	ex.wr_id = 77;
	ex.wr_flags = IBV_SEND_FENCE;
	ck_assert_int_eq(sessions, 0);
	ck_assert_int_eq(ibv_wr_complete(&ex), 0);
	ck_assert_int_eq(sessions, 1);
	ck_assert_int_eq(ngot, 2);
	ck_assert(got[0].wr_id == 1 && got[0].flags == IBV_SEND_SIGNALED && got[0].op == IBV_WR_RDMA_WRITE);
	ck_assert(got[1].wr_id == 2 && got[1].flags == 0 && got[1].op == IBV_WR_SEND && got[1].inlined);
	ck_assert_mem_eq(got[1].bytes, "abcde", 5);
	/* they are the program's, and stay as it left them */
	ck_assert(ex.wr_id == 77 && ex.wr_flags == IBV_SEND_FENCE);
	ck_assert_uint_eq(q->order.next, 2);
	ck_assert_int_eq(nplain, 0);
}
END_TEST

START_TEST(abort_posts_nothing)
{
	ibv_wr_start(&ex);
	write_one(1, IBV_SEND_SIGNALED);
	ibv_wr_abort(&ex);
	ibv_wr_start(&ex);
	ck_assert_int_eq(ibv_wr_complete(&ex), 0);
	ck_assert_int_eq(ngot, 0);
	ck_assert_uint_eq(q->order.next, 0);
	fake_bond(q);
	ibv_wr_start(&ex);
	write_one(1, IBV_SEND_SIGNALED);
	ibv_wr_abort(&ex);
	ibv_wr_start(&ex);
	write_one(2, IBV_SEND_SIGNALED);
	ck_assert_int_eq(ibv_wr_complete(&ex), 0);
	ck_assert(nplain == 1 && plain[0] == 2);
}
END_TEST

START_TEST(the_providers_error_is_the_programs)
{
	err_complete = EIO;
	ibv_wr_start(&ex);
	write_one(1, IBV_SEND_SIGNALED);
	write_one(2, IBV_SEND_SIGNALED);
	ck_assert_int_eq(ibv_wr_complete(&ex), EIO);
	/* nothing was posted, and nothing is waited for */
	ck_assert_uint_eq(q->order.next, 0);
	err_complete = 0;
	ibv_wr_start(&ex);
	write_one(3, IBV_SEND_SIGNALED);
	ck_assert_int_eq(ibv_wr_complete(&ex), 0);
	ck_assert(ngot == 1 && got[0].wr_id == 3);
	ck_assert_uint_eq(q->order.next, 1);
}
END_TEST

START_TEST(modify_sets_wr_complete_anew)
{
	int (*ours)(struct ibv_qp_ex *) = ex.wr_complete;
	bool locked = dp_qpex_before_modify(q);

	ck_assert(locked);
	ex.wr_complete = p_complete_refuse;
	dp_qpex_after_modify(q, locked);
	ck_assert_ptr_eq(ex.wr_complete, ours);
	ibv_wr_start(&ex);
	write_one(1, 0);
	ck_assert_int_eq(ibv_wr_complete(&ex), ENOTSUP);
	ck_assert_uint_eq(q->order.next, 0);
	/* while a session is open, by its own thread */
	ibv_wr_start(&ex);
	write_one(2, 0);
	locked = dp_qpex_before_modify(q);
	ck_assert(!locked);
	ex.wr_complete = p_complete;
	dp_qpex_after_modify(q, locked);
	ck_assert_int_eq(ibv_wr_complete(&ex), 0);
	ck_assert(ngot == 1 && got[0].wr_id == 2);
	/* given back, it is the provider's latest */
	native();
	locked = dp_qpex_before_modify(q);
	ex.wr_complete = p_complete_refuse;
	dp_qpex_after_modify(q, locked);
	ibv_wr_start(&ex);
	ck_assert_ptr_eq(ex.wr_complete, p_complete_refuse);
	ck_assert_int_eq(ibv_wr_complete(&ex), ENOTSUP);
}
END_TEST

START_TEST(native_gives_the_pointers_back)
{
	/* a session that began before is still ours, and is played to the provider */
	ibv_wr_start(&ex);
	write_one(1, 0);
	native();
	write_one(2, 0);
	ck_assert_int_eq(ibv_wr_complete(&ex), 0);
	ck_assert(ngot == 2 && sessions == 1);
	ibv_wr_start(&ex);
	ck_assert_ptr_eq(ex.wr_start, p_start);
	ck_assert_ptr_eq(ex.wr_rdma_write, p_write);
	ck_assert_ptr_eq(ex.wr_set_inline_data_list, p_set_inline_list);
	/* and one that began with the provider's stays there, whatever is installed meanwhile */
	dp_qpex_install(q);
	write_one(3, 0);
	ck_assert_int_eq(nbuilding, 1);
	ck_assert_int_eq(ibv_wr_complete(&ex), 0);
	ck_assert(ngot == 3 && got[2].wr_id == 3);
}
END_TEST

START_TEST(too_many_sges_are_not_read)
{
	ibv_wr_start(&ex);
	ex.wr_id = 1;
	ibv_wr_rdma_write(&ex, 1, 0x1000);
	ibv_wr_set_sge_list(&ex, 3, (struct ibv_sge *)8);
	ck_assert_int_eq(ibv_wr_complete(&ex), ENOMEM);
	fake_bond(q);
	for (int alone = 0; alone < 2; alone++) {
		ibv_wr_start(&ex);
		ibv_wr_rdma_write(&ex, 1, 0x1000);
		ibv_wr_set_sge_list(&ex, 1000, (struct ibv_sge *)8);
		if (!alone)
			write_one(2, 0);
		ck_assert_int_ne(ibv_wr_complete(&ex), 0);
	}
	ck_assert_int_eq(nplain, 0);
}
END_TEST

START_TEST(all_or_nothing_when_bonded)
{
	char long_one[65] = { 0 };

	fake_bond(q);
	ibv_wr_start(&ex);
	write_one(1, IBV_SEND_SIGNALED);
	ibv_wr_rdma_write(&ex, 1, 0x1000);
	ibv_wr_set_inline_data(&ex, long_one, sizeof(long_one));
	ck_assert_int_eq(ibv_wr_complete(&ex), EINVAL);
	ck_assert_int_eq(nplain, 0);
	/* more than the send queue holds; that is also more than one batch */
	ibv_wr_start(&ex);
	for (int i = 0; i < 21; i++)
		write_one((uint64_t)i, IBV_SEND_SIGNALED);
	ck_assert_int_eq(ibv_wr_complete(&ex), ENOMEM);
	ck_assert_int_eq(nplain, 0);
	ck_assert_uint_eq(q->order.next, 0);
	ibv_wr_start(&ex);
	for (int i = 0; i < 20; i++)
		write_one((uint64_t)i, IBV_SEND_SIGNALED);
	ck_assert_int_eq(ibv_wr_complete(&ex), 0);
	ck_assert_int_eq(nplain, 20);
	for (int i = 0; i < 20; i++)
		ck_assert_int_eq(plain[i], i);
	ck_assert_int_eq(sessions, 0);
}
END_TEST

#define EACH 12
#define THREADS 4

static void *poster(void *arg)
{
	int me = (int)(intptr_t)arg;

	for (int i = 0; i < EACH; i++) {
		ibv_wr_start(&ex);
		for (int k = 0; k < 3; k++)
			write_one((uint64_t)(me * 1000 + i * 3 + k), 0);
		if (i % 4 == 3)
			ibv_wr_abort(&ex);
		else
			ck_assert_int_eq(ibv_wr_complete(&ex), 0);
	}
	return NULL;
}

START_TEST(threads_take_turns)
{
	pthread_t t[THREADS];
	int last[THREADS];

	for (int i = 0; i < THREADS; i++) {
		last[i] = -1;
		ck_assert_int_eq(pthread_create(&t[i], NULL, poster, (void *)(intptr_t)i), 0);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	ck_assert_int_eq(ngot, THREADS * EACH / 4 * 3 * 3);
	for (int i = 0; i < ngot; i += 3) {
		int me = (int)got[i].wr_id / 1000, n = (int)got[i].wr_id % 1000;

		ck_assert_int_eq(n % 3, 0);
		ck_assert_int_gt(n, last[me]);
		last[me] = n;
		ck_assert_uint_eq(got[i + 1].wr_id, got[i].wr_id + 1);
		ck_assert_uint_eq(got[i + 2].wr_id, got[i].wr_id + 2);
	}
}
END_TEST

static void untrack(struct dp_qp *old)
{
	dp_hmap_del(&dp_qps, (uintptr_t)old->qp);
	dp_hmap_del(&old->scq->qpns, old->qp_num);
	dp_qpex_free(old);
}

static void *untracker(void *arg)
{
	untrack(arg);
	return NULL;
}

/* Providers reuse memory: what a thread knows of a queue pair's address is another's then. */
START_TEST(another_at_its_address)
{
	static struct dp_qp *volatile olds[6]; /* they are looked at, so that none is freed; what is only written would not be there */

	for (int i = 0; i < 6; i++) {
		struct dp_qp *old = olds[i] = q;
		pthread_t t;

		/* its last session was ended, or left open */
		ibv_wr_start(&ex);
		write_one(1, 0);
		if (i & 1)
			ck_assert_int_eq(ibv_wr_complete(&ex), 0);
		/* it went in this thread, or in another, or its record is held, as a bond does until the control thread comes to it */
		if (i & 4) {
			atomic_store(&old->refs, 2);
			ck_assert_int_eq(dp_destroy_qp(old->qp), 0);
		} else if (i & 2) {
			ck_assert_int_eq(pthread_create(&t, NULL, untracker, old), 0);
			pthread_join(t, NULL);
		} else {
			untrack(old);
		}
		q = track(&ex, QPN, old->scq);
		ck_assert_ptr_ne(q, old);
		for (uint64_t n = 0; n < 3; n++) {
			ck_assert_uint_eq(q->order.next, n);
			ibv_wr_start(&ex);
			write_one(10 + n, 0);
			ck_assert_int_eq(ibv_wr_complete(&ex), 0);
			ck_assert_uint_eq(got[ngot - 1].wr_id, 10 + n);
		}
		if (!(i & 4))
			ck_assert_uint_eq(old->order.next, i & 1 ? 4 : i ? 3 : 0);
	}
}
END_TEST

/* What the provider does not destroy goes on as it was, an open session included. */
START_TEST(refused_destroy)
{
	for (int open = 0; open < 2; open++) {
		struct dp_qp *was = q;

		ngot = 0;
		if (open) {
			ibv_wr_start(&ex);
			write_one(1, 0);
		}
		err_destroy = EBUSY;
		ck_assert_int_eq(dp_destroy_qp(q->qp), EBUSY);
		err_destroy = 0;
		ck_assert_ptr_eq(dp_qp_find(&ex.qp_base), was);
		if (!open) {
			ibv_wr_start(&ex);
			write_one(1, 0);
		}
		ck_assert_int_eq(ngot, 0);
		ck_assert_int_eq(ibv_wr_complete(&ex), 0);
		ck_assert_int_eq(ngot, 1);
		ck_assert_uint_eq(q->order.next, (uint64_t)open + 1);
	}
}
END_TEST

static void *go_on(void *arg)
{
	int *ret = arg;

	ibv_wr_set_sge(&ex, 2, 0x2000, 8);
	write_one(2, 0);
	*ret = ibv_wr_complete(&ex);
	return NULL;
}

/* The program hands an open session to another thread. */
START_TEST(handed_over)
{
	pthread_t t;

	for (int i = 0; i < 4; i++) {
		int ret = -1;

		ngot = 0;
		if (i == 2)
			fake_bond(q);
		ibv_wr_start(&ex);
		ex.wr_id = 1;
		ex.wr_flags = 0;
		ibv_wr_rdma_write(&ex, 1, 0x1000);
		ck_assert_int_eq(pthread_create(&t, NULL, go_on, &ret), 0);
		pthread_join(t, NULL);
		ck_assert_int_eq(ret, 0);
		ck_assert_uint_eq(q->order.next, 2 * (uint64_t)i + 2);
		ck_assert_int_eq(i < 2 ? ngot : nplain, i < 2 ? 2 : 2 * (i - 1));
	}
}
END_TEST

/* Sessions of two queue pairs open at once, in one thread. */
START_TEST(two_at_once)
{
	static const uint64_t first_first[] = { 1, 2, 3, 11, 12 }, second_first[] = { 11, 12, 1, 2, 3 };
	struct dp_qp *q2 = track(&ex2, QPN + 1, q->scq);

	for (int i = 0; i < 4; i++) {
		ngot = 0;
		ibv_wr_start(&ex);
		write_one(1, 0);
		ibv_wr_start(&ex2);
		ex2.wr_id = 11;
		ibv_wr_rdma_write(&ex2, 1, 0x1000);
		ibv_wr_set_sge(&ex2, 2, 0x2000, 8);
		write_one(2, 0);
		ex2.wr_id = 12;
		ibv_wr_send(&ex2);
		if (i & 1)
			ck_assert_int_eq(ibv_wr_complete(&ex2), 0);
		write_one(3, 0);
		if (i & 2)
			ibv_wr_abort(&ex);
		else
			ck_assert_int_eq(ibv_wr_complete(&ex), 0);
		if (!(i & 1))
			ck_assert_int_eq(ibv_wr_complete(&ex2), 0);
		ck_assert_int_eq(ngot, i & 2 ? 2 : 5);
		for (int k = 0; k < ngot; k++)
			ck_assert_uint_eq(got[k].wr_id, i ? second_first[k] : first_first[k]);
	}
	ck_assert_uint_eq(q->order.next, 6);
	ck_assert_uint_eq(q2->order.next, 8);
}
END_TEST

/* What a request has been given before it in the same place must not be seen in it. */
static void one_of(int kind, uint64_t wr_id)
{
	struct ibv_sge two[2] = { { 0x2000, 8, 2 }, { 0x3000, 8, 2 } };

	ex.wr_id = wr_id;
	ibv_wr_rdma_write(&ex, 1, 0x1000);
	if (kind == 1)
		ibv_wr_set_sge(&ex, 2, 0x2000, 8);
	else if (kind == 2 || kind == 3)
		ibv_wr_set_sge_list(&ex, (size_t)kind - 1, two);
	else if (kind == 4)
		ibv_wr_set_inline_data(&ex, (char[]){ "abcd" }, 4);
	else if (kind == 5)
		ibv_wr_set_sge_list(&ex, 0, NULL);
}

static void check_one(const struct seen *g, int kind, uint64_t wr_id)
{
	static const size_t nsge[] = { 0, 1, 1, 2, 4, 0 };

	ck_assert_uint_eq(g->wr_id, wr_id);
	ck_assert_uint_eq(g->nsge, nsge[kind]);
	ck_assert_int_eq(g->inlined, kind == 4);
	if (kind == 4)
		ck_assert_mem_eq(g->bytes, "abcd", 4);
}

START_TEST(each_kind_after_each)
{
	/* alone */
	for (int a = 0; a < 6; a++)
		for (int b = 0; b < 6; b++) {
			ngot = 0;
			for (int i = 0; i < 2; i++) {
				ibv_wr_start(&ex);
				one_of(i ? b : a, (uint64_t)i);
				ck_assert_int_eq(ibv_wr_complete(&ex), 0);
				check_one(&got[i], i ? b : a, (uint64_t)i);
			}
		}
	/* the second setter is the last word, as with providers */
	ngot = 0;
	ibv_wr_start(&ex);
	one_of(3, 1);
	ibv_wr_set_sge(&ex, 2, 0x2000, 8);
	ck_assert_int_eq(ibv_wr_complete(&ex), 0);
	check_one(&got[0], 1, 1);
	/* so many that the place is another meanwhile */
	for (int n = 60; n < MANY; n += 3) {
		ngot = 0;
		ibv_wr_start(&ex);
		for (int i = 0; i < n; i++)
			one_of((i + n) % 6, (uint64_t)i);
		ck_assert_int_eq(ibv_wr_complete(&ex), 0);
		ck_assert_int_eq(ngot, n);
		for (int i = 0; i < n; i++)
			check_one(&got[i], (i + n) % 6, (uint64_t)i);
	}
}
END_TEST

/* Sessions that end in each way, or whose only request is given data twice, must leave nothing to the next. */
static void odd_session(int how)
{
	char long_one[70000] = { 0 };

	ibv_wr_start(&ex);
	switch (how) {
	case 0: /* given up, with data */
		for (int i = 0; i < 100; i++)
			one_of(i % 6, 50);
		ibv_wr_abort(&ex);
		return;
	case 1: /* refused here; what follows is not taken for the only one */
		one_of(1, 50);
		ibv_wr_set_inline_data(&ex, long_one, sizeof(long_one));
		ibv_wr_set_sge(&ex, 2, 0x2000, 8);
		if (ngot & 1)
			one_of(1, 51);
		ck_assert_int_eq(ibv_wr_complete(&ex), EINVAL);
		return;
	case 2:
		one_of(4, 50);
		ibv_wr_set_sge(&ex, 2, 0x2000, 8);
		break;
	case 3:
		one_of(3, 50);
		ibv_wr_set_sge(&ex, 2, 0x2000, 8);
		break;
	case 4:
		one_of(0, 50);
		ibv_wr_set_sge_list(&ex, 1000, (struct ibv_sge *)8);
		ibv_wr_set_sge(&ex, 2, 0x2000, 8);
		break;
	default:
		for (int i = 0; i < how; i++)
			one_of(i % 6, 50);
	}
	ck_assert_int_eq(ibv_wr_complete(&ex), 0);
	if (how < 5)
		check_one(&got[ngot - 1], 1, 50);
}

START_TEST(nothing_is_left)
{
	size_t cap = q->ex->cap_sges, bytes = q->ex->cap_bytes;

	for (int round = 0; round < 40; round++)
		for (int how = 0; how < 7; how++)
			for (int kind = 0; kind < 6; kind++) {
				ngot = kind & 1;
				odd_session(how);
				ngot = 0;
				ibv_wr_start(&ex);
				one_of(kind, 7);
				ck_assert_int_eq(ibv_wr_complete(&ex), 0);
				ck_assert_int_eq(ngot, 1);
				check_one(&got[0], kind, 7);
			}
	for (int i = 0; i < 1000; i++) {
		ngot = 0;
		odd_session(2 + i % 2);
	}
	/* 100 requests had no more */
	ck_assert_uint_le(q->ex->cap_sges, cap * 2);
	ck_assert_uint_le(q->ex->cap_bytes, bytes * 2);
}
END_TEST

/* the same of what bonded queue pairs post as it is */
START_TEST(nothing_is_left_bonded)
{
	fake_bond(q);
	for (int how = 0; how < 5; how++) {
		ngot = 0;
		ibv_wr_start(&ex);
		one_of(0, 1);
		if (how < 2)
			ibv_wr_set_sge_list(&ex, 1000, (struct ibv_sge *)8);
		else if (how == 2)
			ibv_wr_set_inline_data(&ex, (char[]){ "abcd" }, 4);
		if (how)
			ibv_wr_set_sge(&ex, 2, 0x2000, 8);
		if (how == 3)
			one_of(4, 2);
		if (how == 4)
			ibv_wr_abort(&ex);
		else
			ck_assert_int_eq(ibv_wr_complete(&ex) == 0, how != 0);
		nplain = 0;
		ibv_wr_start(&ex);
		one_of(1, 9);
		ck_assert_int_eq(ibv_wr_complete(&ex), 0);
		ck_assert(nplain == 1 && plain[0] == 9 && !last_flags);
		ck_assert(last_sge.addr == 0x2000 && last_sge.length == 8 && last_sge.lkey == 2);
	}
	ck_assert_int_eq(sessions, 0);
}
END_TEST

START_TEST(what_can_be_said)
{
	ck_assert(dp_qpex_can(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND_WITH_INV));
	ck_assert(!dp_qpex_can(IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_TSO));
	ck_assert(!dp_qpex_can(UINT64_C(1) << 11)); /* FLUSH */
	ck_assert(!dp_qpex_can(UINT64_C(1) << 40));
}
END_TEST

int main(void)
{
	Suite *s = suite_create("qpex");
	TCase *tc = tcase_create("qpex");

	/* every test in a child of its own, so setup() starts from nothing */
	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, pending_is_the_providers_session);
	tcase_add_test(tc, abort_posts_nothing);
	tcase_add_test(tc, the_providers_error_is_the_programs);
	tcase_add_test(tc, modify_sets_wr_complete_anew);
	tcase_add_test(tc, native_gives_the_pointers_back);
	tcase_add_test(tc, too_many_sges_are_not_read);
	tcase_add_test(tc, all_or_nothing_when_bonded);
	tcase_add_test(tc, threads_take_turns);
	tcase_add_test(tc, another_at_its_address);
	tcase_add_test(tc, refused_destroy);
	tcase_add_test(tc, two_at_once);
	tcase_add_test(tc, handed_over);
	tcase_add_test(tc, each_kind_after_each);
	tcase_add_test(tc, nothing_is_left);
	tcase_add_test(tc, nothing_is_left_bonded);
	tcase_add_test(tc, what_can_be_said);
	suite_add_tcase(s, tc);
	return run_suite(s);
}
