// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Shared receive queues, asynchronous events, and what waits until events are acknowledged. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test_end.h"

static bool has_event(int fd, int ms)
{
	struct pollfd p = { fd, POLLIN, 0 };

	return poll(&p, 1, ms) > 0;
}

static void want_event(struct end *e, enum ibv_event_type type, const void *element)
{
	struct ibv_async_event ev;

	ck_assert_msg(has_event(e->ctx->async_fd, 20000), "no event %s", ibv_event_type_str(type));
	ck_assert_int_eq(ibv_get_async_event(e->ctx, &ev), 0);
	ck_assert_str_eq(ibv_event_type_str(ev.event_type), ibv_event_type_str(type));
	ck_assert_ptr_eq(ev.element.qp, element);
	ibv_ack_async_event(&ev);
}

static void want_no_event(struct end *e)
{
	ck_assert(!has_event(e->ctx->async_fd, 50));
}

/* Another QP at the same CQ, PD and SRQ. */
static struct end second_qp(const struct end *e)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .send_cq = e->cq, .recv_cq = e->cq, .srq = e->srq,
					 .cap = { 8, 0, 1, 0, 0 }, .sq_sig_all = 1 };
	struct end second = *e;

	second.qp = ibv_create_qp(e->pd, &init);
	ck_assert_ptr_nonnull(second.qp);
	second.psn = 77;
	return second;
}

static enum ibv_qp_state state(struct end *e)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;

	ck_assert_int_eq(ibv_query_qp(e->qp, &a, IBV_QP_STATE, &i), 0);
	ck_assert_ptr_eq(i.srq, e->srq);
	return a.qp_state;
}

START_TEST(shared)
{
	struct end_opts o = { .srq = 4 };
	struct ibv_recv_wr rx = { .wr_id = 1 }, *bad;
	struct end a1, a2, b1, b2;
	struct ibv_wc wc;

	end_open(&a1, 0, NULL);
	end_open(&a2, 0, NULL);
	end_open(&b1, 1, &o);
	b2 = second_qp(&b1);
	join(&a1, &b1, NULL);
	join(&a2, &b2, NULL);
	/* none there: the sender waits */
	fill(a1.buf, 40000, 1);
	ck_assert_int_eq(post(&a1, &b1, 1, (struct wr){ IBV_WR_SEND, .len = 40000 }), 0);
	want_none(&a1, 30);
	for (uint64_t i = 0; i < 4; i++)
		ck_assert_int_eq(post_rx(&b1, 50 + i, 100000 * (uint32_t)i, 50000), 0);
	ck_assert_int_eq(post_rx(&b1, 60, 0, 8), ENOMEM);
	ck_assert_int_eq(ibv_post_recv(b1.qp, &rx, &bad), EINVAL);
	ck_assert_ptr_eq(bad, &rx);
	want(&a1, 1, IBV_WC_SUCCESS);
	ck_assert_uint_eq(want(&b1, 50, IBV_WC_SUCCESS).byte_len, 40000);
	check_filled(b1.buf, 40000, 1);
	/* whoever comes first takes the oldest */
	for (uint64_t i = 1; i < 4; i++) {
		struct end *from = i & 1 ? &a2 : &a1;

		from->buf[0] = (uint8_t)(10 + i);
		ck_assert_int_eq(post(from, &b1, i, (struct wr){ IBV_WR_SEND, .len = 1 }), 0);
		want(from, i, IBV_WC_SUCCESS);
		ck_assert_uint_eq(b1.buf[100000 * i], 10 + i);
	}
	/* taken, but only a polled completion frees the slot */
	ck_assert_int_eq(post_rx(&b1, 60, 0, 8), 0);
	ck_assert_int_eq(post_rx(&b1, 61, 0, 8), ENOMEM);
	for (uint64_t i = 1; i < 4; i++) {
		ck_assert(poll_one(&b1, &wc, 1000));
		ck_assert_int_eq(wc.status, IBV_WC_SUCCESS);
		ck_assert_uint_eq(wc.wr_id, 50 + i);
		ck_assert_uint_eq(wc.qp_num, i & 1 ? b2.qp->qp_num : b1.qp->qp_num);
		ck_assert_uint_eq(wc.src_qp, i & 1 ? a2.qp->qp_num : a1.qp->qp_num);
		ck_assert_int_eq(post_rx(&b1, 60 + i, 0, 8), 0);
	}
	ck_assert_int_eq(post_rx(&b1, 70, 0, 8), ENOMEM);
	/* completions that go with their QP leave their slots to the others */
	ck_assert_int_eq(post(&a2, &b1, 5, (struct wr){ IBV_WR_SEND, .len = 1 }), 0);
	want(&a2, 5, IBV_WC_SUCCESS);
	ck_assert_int_eq(ibv_destroy_srq(b1.srq), EBUSY);
	ck_assert_int_eq(ibv_destroy_qp(b2.qp), 0);
	ck_assert_int_eq(post_rx(&b1, 71, 0, 8), 0);
	ck_assert_int_eq(post_rx(&b1, 72, 0, 8), ENOMEM);
	end_close(&a1);
	end_close(&a2);
	end_close(&b1);
}
END_TEST

/* The SRQ's PD counts, not the QP's. */
START_TEST(protection)
{
	struct end_opts o = { .srq = 4 };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 8, 0, 1, 0, 0 }, .sq_sig_all = 1 };
	struct ibv_pd *pd;
	struct end a, b;

	end_open(&a, 0, NULL);
	end_open(&b, 1, &o);
	ck_assert_int_eq(ibv_destroy_qp(b.qp), 0);
	pd = ibv_alloc_pd(b.ctx);
	init.send_cq = init.recv_cq = b.cq;
	init.srq = b.srq;
	b.qp = ibv_create_qp(pd, &init);
	ck_assert_ptr_nonnull(b.qp);
	join(&a, &b, NULL);
	ck_assert_int_eq(post_rx(&b, 50, 0, 8), 0);
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_SEND, .len = 8 }), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	want(&b, 50, IBV_WC_SUCCESS);
	/* a WRITE goes by the QP's, and the region is not of that one */
	ck_assert_int_eq(post(&a, &b, 2, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	want(&a, 2, IBV_WC_REM_ACCESS_ERR);
	ck_assert_int_eq(ibv_destroy_qp(b.qp), 0);
	b.qp = NULL;
	ck_assert_int_eq(ibv_dealloc_pd(pd), 0);
	pair_close(&a, &b);
}
END_TEST

START_TEST(limit)
{
	struct end_opts o = { .srq = 8 };
	struct ibv_srq_attr attr = { .srq_limit = 3 };
	struct end a, b;

	pair_open(&a, &b, &o, NULL);
	for (uint64_t i = 0; i < 5; i++)
		ck_assert_int_eq(post_rx(&b, i, 0, 8), 0);
	ck_assert_int_eq(ibv_modify_srq(b.srq, &attr, IBV_SRQ_LIMIT), 0);
	ck_assert_int_eq(ibv_query_srq(b.srq, &attr), 0);
	ck_assert_uint_eq(attr.srq_limit, 3);
	ck_assert_uint_eq(attr.max_wr, 8);
	ck_assert_uint_eq(attr.max_sge, 4);
	for (uint64_t i = 0; i < 5; i++) {
		ck_assert_int_eq(post(&a, &b, i, (struct wr){ IBV_WR_SEND, .len = 8 }), 0);
		want(&a, i, IBV_WC_SUCCESS);
		/* below three are left from the third on, and that is said once */
		if (i == 2)
			want_event(&b, IBV_EVENT_SRQ_LIMIT_REACHED, b.srq);
		else
			want_no_event(&b);
	}
	ck_assert_int_eq(ibv_query_srq(b.srq, &attr), 0);
	ck_assert_uint_eq(attr.srq_limit, 0);
	/* what is so already is said at once */
	attr.srq_limit = 1;
	ck_assert_int_eq(ibv_modify_srq(b.srq, &attr, IBV_SRQ_LIMIT), 0);
	want_event(&b, IBV_EVENT_SRQ_LIMIT_REACHED, b.srq);
	attr.srq_limit = 9;
	ck_assert_int_eq(ibv_modify_srq(b.srq, &attr, IBV_SRQ_LIMIT), EINVAL);
	attr.max_wr = 100;
	ck_assert_int_eq(ibv_modify_srq(b.srq, &attr, IBV_SRQ_MAX_WR), EINVAL);
	pair_close(&a, &b);
}
END_TEST

/* A QP that fails leaves what lies in the SRQ, and says when it takes no more. */
START_TEST(last_wqe)
{
	struct end_opts o = { .srq = 8 };
	struct end a1, a2, b1, b2;

	end_open(&a1, 0, NULL);
	end_open(&a2, 0, NULL);
	end_open(&b1, 1, &o);
	b2 = second_qp(&b1);
	join(&a1, &b1, NULL);
	join(&a2, &b2, NULL);
	ck_assert_int_eq(post_rx(&b1, 50, 0, 8), 0);
	ck_assert_int_eq(to_state(b1.qp, IBV_QPS_ERR), 0);
	want_event(&b1, IBV_EVENT_QP_LAST_WQE_REACHED, b1.qp);
	want_no_event(&b1);
	want_none(&b1, 20);
	ck_assert_int_eq(post(&a2, &b1, 1, (struct wr){ IBV_WR_SEND, .len = 8 }), 0);
	want(&a2, 1, IBV_WC_SUCCESS);
	ck_assert_uint_eq(want(&b2, 50, IBV_WC_SUCCESS).byte_len, 8);
	ck_assert_int_eq(state(&b2), IBV_QPS_RTS);
	ck_assert_int_eq(ibv_destroy_qp(b2.qp), 0);
	end_close(&a1);
	end_close(&a2);
	end_close(&b1);
}
END_TEST

START_TEST(established)
{
	struct addr aa, ba;
	struct end a, b;

	end_open(&a, 0, NULL);
	end_open(&b, 1, NULL);
	aa = end_addr(&a);
	ba = end_addr(&b);
	connect_to(&a, &ba, NULL);
	ck_assert_int_eq(to_init(b.qp, NULL), 0);
	ck_assert_int_eq(to_rtr(b.qp, &aa, NULL), 0);
	want_no_event(&b);
	for (uint64_t i = 0; i < 3; i++) {
		ck_assert_int_eq(post(&a, &b, i, (struct wr){ IBV_WR_RDMA_WRITE, .len = 100000 }), 0);
		want(&a, i, IBV_WC_SUCCESS);
	}
	want_event(&b, IBV_EVENT_COMM_EST, b.qp);
	ck_assert_int_eq(to_rts(b.qp, b.psn, NULL), 0);
	ck_assert_int_eq(post(&a, &b, 9, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	want(&a, 9, IBV_WC_SUCCESS);
	want_no_event(&b);
	pair_close(&a, &b);
}
END_TEST

/* Completions that nobody polled: the CQ fails, and its QPs with it. */
START_TEST(cq_overrun)
{
	struct end_opts o = { .cqe = 10 };
	struct wr w = { IBV_WR_RDMA_WRITE, .len = 8 };
	struct ibv_wc wc;
	struct end a, b;

	pair_open(&a, &b, &o, NULL);
	for (uint64_t i = 0; i < 10; i++)
		ck_assert_int_eq(post(&a, &b, i, w), 0);
	/* with ten it is full, not more */
	want_no_event(&a);
	ck_assert_int_eq(state(&a), IBV_QPS_RTS);
	ck_assert_int_eq(post(&a, &b, 10, w), 0);
	want_event(&a, IBV_EVENT_CQ_ERR, a.cq);
	want_event(&a, IBV_EVENT_QP_FATAL, a.qp);
	ck_assert_int_eq(state(&a), IBV_QPS_ERR);
	ck_assert_int_lt(ibv_poll_cq(a.cq, 1, &wc), 0);
	want_no_event(&a);
	/* the peer hears nothing of it */
	ck_assert_int_eq(state(&b), IBV_QPS_RTS);
	pair_close(&a, &b);
}
END_TEST

START_TEST(overrun_ignored)
{
	struct end_opts o = { .cqe = 4, .cq_flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN };
	struct wr w = { IBV_WR_RDMA_WRITE, .len = 8 };
	struct end a, b;

	pair_open(&a, &b, &o, NULL);
	for (uint64_t i = 0; i < 6; i++)
		ck_assert_int_eq(post(&a, &b, i, w), 0);
	want_no_event(&a);
	for (uint64_t i = 0; i < 4; i++)
		want(&a, i, IBV_WC_SUCCESS);
	want_none(&a, 20);
	ck_assert_int_eq(post(&a, &b, 7, w), 0);
	want(&a, 7, IBV_WC_SUCCESS);
	pair_close(&a, &b);
}
END_TEST

/* ---- objects whose events are not acknowledged ---- */

static volatile int gone;

static void *destroy_qp(void *qp)
{
	ck_assert_int_eq(ibv_destroy_qp(qp), 0);
	gone = 1;
	return NULL;
}

static void *destroy_cq(void *cq)
{
	ck_assert_int_eq(ibv_destroy_cq(cq), 0);
	gone = 1;
	return NULL;
}

START_TEST(destroy_waits)
{
	struct end_opts o = { .srq = 4 };
	struct ibv_comp_channel *ch;
	struct ibv_async_event ev;
	struct ibv_cq *cq, *got;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 8, 8, 1, 1, 0 }, .sq_sig_all = 1 };
	struct ibv_recv_wr rx = { .wr_id = 1 }, *bad;
	struct ibv_qp *qp;
	pthread_t thread;
	struct end a, b;
	void *context;

	pair_open(&a, &b, &o, NULL);
	ck_assert_int_eq(to_state(b.qp, IBV_QPS_ERR), 0);
	ck_assert_int_eq(ibv_get_async_event(b.ctx, &ev), 0);
	ck_assert_int_eq(ev.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
	gone = 0;
	ck_assert_int_eq(pthread_create(&thread, NULL, destroy_qp, b.qp), 0);
	usleep(100000);
	ck_assert_int_eq(gone, 0);
	ibv_ack_async_event(&ev);
	pthread_join(thread, NULL);
	ck_assert_int_eq(gone, 1);
	b.qp = NULL;
	/* one that nobody took goes with its QP */
	qp = second_qp(&b).qp;
	ck_assert_int_eq(to_state(qp, IBV_QPS_ERR), 0);
	ck_assert(has_event(b.ctx->async_fd, 20000));
	ck_assert_int_eq(ibv_destroy_qp(qp), 0);
	fcntl(b.ctx->async_fd, F_SETFL, O_NONBLOCK);
	ck_assert_int_ne(ibv_get_async_event(b.ctx, &ev), 0);
	ck_assert_int_eq(errno, EAGAIN);

	ch = ibv_create_comp_channel(a.ctx);
	cq = ibv_create_cq(a.ctx, 16, &a, ch, 0);
	ck_assert_ptr_nonnull(cq);
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(a.pd, &init);
	ck_assert_ptr_nonnull(qp);
	for (int i = 0; i < 2; i++) {
		ck_assert_int_eq(ibv_req_notify_cq(cq, i), 0); /* an error counts as solicited */
		ck_assert_int_eq(to_state(qp, IBV_QPS_RESET), 0);
		ck_assert_int_eq(to_init(qp, NULL), 0);
		ck_assert_int_eq(to_state(qp, IBV_QPS_ERR), 0);
		ck_assert_int_eq(ibv_post_recv(qp, &rx, &bad), 0);
		ck_assert_int_eq(ibv_get_cq_event(ch, &got, &context), 0);
	}
	ck_assert_int_eq(ibv_destroy_qp(qp), 0);
	gone = 0;
	ck_assert_int_eq(pthread_create(&thread, NULL, destroy_cq, cq), 0);
	usleep(50000);
	ck_assert_int_eq(gone, 0);
	ibv_ack_cq_events(cq, 1);
	usleep(50000);
	ck_assert_int_eq(gone, 0);
	ibv_ack_cq_events(cq, 1);
	pthread_join(thread, NULL);
	fcntl(ch->fd, F_SETFL, O_NONBLOCK);
	ck_assert_int_ne(ibv_get_cq_event(ch, &got, &context), 0);
	ck_assert_int_eq(errno, EAGAIN);
	ck_assert_int_eq(ibv_destroy_comp_channel(ch), 0);
	pair_close(&a, &b);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("softnic: shared receive queues and events");
	TCase *t = tcase_create("srq");

	tcase_set_timeout(t, 120);
	tcase_add_test(t, shared);
	tcase_add_test(t, protection);
	tcase_add_test(t, limit);
	tcase_add_test(t, last_wqe);
	tcase_add_test(t, established);
	tcase_add_test(t, cq_overrun);
	tcase_add_test(t, overrun_ignored);
	tcase_add_test(t, destroy_waits);
	suite_add_tcase(s, t);
	return run_suite(s);
}
