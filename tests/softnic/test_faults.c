// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* --faults: each test is under a file of its own, which timing.sh writes; its name is the argument. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "test_peer.h"

/* ---- events ---- */

/* The next event of a device; -1: none came in time. */
static int event(struct ibv_context *ctx, int ms, struct ibv_async_event *ev)
{
	struct pollfd p = { .fd = ctx->async_fd, .events = POLLIN };

	if (poll(&p, 1, ms) != 1)
		return -1;
	ck_assert_int_eq(ibv_get_async_event(ctx, ev), 0);
	ibv_ack_async_event(ev);
	return (int)ev->event_type;
}

static void want_event(struct ibv_context *ctx, enum ibv_event_type type)
{
	struct ibv_async_event ev;

	ck_assert_int_eq(event(ctx, 20000, &ev), type);
	if (type == IBV_EVENT_QP_FATAL)
		return;
	ck_assert_int_eq(ev.element.port_num, 1);
}

static void want_no_event(struct ibv_context *ctx, int ms)
{
	struct ibv_async_event ev;

	ck_assert_int_eq(event(ctx, ms, &ev), -1);
}

static enum ibv_port_state state(struct ibv_context *ctx)
{
	struct ibv_port_attr a;

	ck_assert_int_eq(ibv_query_port(ctx, 1, &a), 0);
	return a.state;
}

/* The first line of a file below the device's directory; "" if there is none. */
static void line(struct ibv_context *ctx, const char *name, char text[64])
{
	char path[512];
	FILE *f;

	snprintf(path, sizeof(path), "%s/ports/1/%s", ctx->device->ibdev_path, name);
	f = fopen(path, "r");
	if (!f || !fgets(text, 64, f))
		text[0] = '\0';
	if (f)
		fclose(f);
	text[strcspn(text, "\n")] = '\0';
}

/* Sends over a connection of its own, from a device to the other, until the first fault happens: after 50 packets. */
static void kick(int dev)
{
	const struct sn_fault *f = shared_host()->faults;
	struct ibv_wc wc;
	struct end x, y;

	end_open(&x, dev, NULL);
	end_open(&y, 1 - dev, NULL);
	join(&x, &y, NULL);
	while (!atomic_load(&f->done)) {
		ck_assert_int_eq(post(&x, &y, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
		while (!atomic_load(&f->done) && !poll_one(&x, &wc, 1))
			;
	}
	end_close(&x);
	end_close(&y);
}

/* ---- the tests ---- */

static void watcher(int sock, void *arg)
{
	struct ibv_context *ctx = open_dev(1);

	(void)arg;
	meet(sock);
	want_event(ctx, IBV_EVENT_PORT_ERR);
	want_event(ctx, IBV_EVENT_PORT_ACTIVE);
	meet(sock);
	ck_assert_int_eq(ibv_close_device(ctx), 0);
}

/* 50p mlx5_1 down, +600ms mlx5_1 up; both processes hear of it. What was sent meanwhile arrives after all. */
START_TEST(down_up)
{
	struct conn_opts o = { .timeout = 16, .retry = 7 }; /* 268 ms, eight times */
	const struct sn_fault *f;
	struct ibv_wc wc;
	struct end a, b;
	bool down, got;
	char text[64];
	pid_t pid;
	int sock;

	sock = peer_start(&pid, watcher, NULL);
	meet(sock);
	pair_open(&a, &b, NULL, &o);
	ck_assert_int_eq(state(b.ctx), IBV_PORT_ACTIVE);
	f = shared_host()->faults;
	kick(1);
	want_event(b.ctx, IBV_EVENT_PORT_ERR);
	ck_assert_int_eq(state(a.ctx), IBV_PORT_ACTIVE);
	down = state(b.ctx) == IBV_PORT_DOWN;
	line(b.ctx, "state", text);
	down = down && !strcmp(text, "1: DOWN");
	/* whoever was away for so long has missed it */
	ck_assert(down || atomic_load(&f[1].done));
	fill(a.buf, LEN, 5);
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = LEN }), 0);
	ck_assert_int_eq(post(&b, &a, 2, (struct wr){ IBV_WR_RDMA_READ, .at = 8, .to = 8, .len = 8 }), 0);
	for (got = false; !got && !atomic_load(&f[1].done);)
		got = poll_one(&a, &wc, 0) || poll_one(&b, &wc, 0);
	ck_assert(!got || atomic_load(&f[1].done));
	ck_assert(!got || wc.status == IBV_WC_SUCCESS);
	want_event(b.ctx, IBV_EVENT_PORT_ACTIVE);
	ck_assert_int_eq(state(b.ctx), IBV_PORT_ACTIVE);
	line(b.ctx, "state", text);
	ck_assert_str_eq(text, "4: ACTIVE");
	if (!got || wc.wr_id == 2)
		want(&a, 1, IBV_WC_SUCCESS);
	if (!got || wc.wr_id == 1)
		want(&b, 2, IBV_WC_SUCCESS);
	check_filled(b.buf, LEN, 5);
	want_no_event(a.ctx, 0);
	want_no_event(b.ctx, 0);
	meet(sock);
	peer_end(pid);
	pair_close(&a, &b);
}
END_TEST

/* 50p mlx5_1 silence, +3s mlx5_1 up: retries run out, and there is no event but the QPs' own. */
START_TEST(silence)
{
	struct conn_opts o = { .timeout = 14, .retry = 2 }; /* 67 ms, three times */
	struct end a, b, c, d;
	double t;

	pair_open(&a, &b, NULL, &o);
	end_open(&c, 0, NULL);
	end_open(&d, 1, NULL);
	join(&c, &d, &(struct conn_opts){ .timeout = 18, .retry = 7 });
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	kick(1);
	ck_assert_int_eq(state(b.ctx), IBV_PORT_ACTIVE);
	t = seconds();
	ck_assert_int_eq(post(&c, &d, 3, (struct wr){ IBV_WR_RDMA_WRITE, .len = 100000 }), 0);
	ck_assert_int_eq(post(&a, &b, 2, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	want(&a, 2, IBV_WC_RETRY_EXC_ERR);
	ck_assert_double_ge(seconds() - t, 0.19);
	/* the other one has patience */
	want(&c, 3, IBV_WC_SUCCESS);
	ck_assert(atomic_load(&shared_host()->faults[1].done));
	want_no_event(a.ctx, 0);
	want_no_event(b.ctx, 0);
	pair_close(&a, &b);
	pair_close(&c, &d);
}
END_TEST

/* 100p mlx5_0 down: 100 WRITEs of one packet have left, no more. */
START_TEST(after_packets)
{
	struct conn_opts o = { .timeout = 14, .retry = 1 };
	struct ibv_wc wc = { 0 };
	struct end a, b;
	uint64_t n = 0;

	pair_open(&a, &b, &(struct end_opts){ .sq = 256 }, &o);
	memset(b.buf, 0xee, LEN);
	for (uint64_t i = 0; i < 200; i++)
		ck_assert_int_eq(post(&a, &b, i, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8, .to = (uint32_t)i * 8 }), 0);
	want_event(a.ctx, IBV_EVENT_PORT_ERR);
	while (poll_one(&a, &wc, 20000) && !wc.status)
		n++;
	ck_assert_int_eq(wc.status, IBV_WC_RETRY_EXC_ERR);
	ck_assert_uint_le(n, 100);
	for (uint64_t i = 0; i < 200; i++)
		ck_assert_msg((b.buf[i * 8] == 0) == (i < 100), "%llu", (unsigned long long)i);
	pair_close(&a, &b);
}
END_TEST

/* 50p mlx5_1 qp-error 0x40, +1s mlx5_1 qp-error all: with work on its way. */
START_TEST(qp_error)
{
	struct end a, b, c, d;
	struct ibv_wc wc = { 0 };

	pair_open(&a, &b, NULL, NULL);
	ck_assert_uint_eq(b.qp->qp_num, 0x40);
	end_open(&c, 0, NULL);
	end_open(&d, 1, NULL);
	join(&c, &d, NULL);
	ck_assert_int_eq(post_rx(&b, 7, 0, 64), 0);
	ck_assert_int_eq(post_rx(&d, 8, 0, 64), 0);
	kick(1);
	want(&b, 7, IBV_WC_WR_FLUSH_ERR);
	want_event(b.ctx, IBV_EVENT_QP_FATAL);
	ck_assert_int_eq(post(&d, &c, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	ck_assert(poll_one(&d, &wc, 20000));
	if (wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS)
		want(&d, 8, IBV_WC_WR_FLUSH_ERR);
	else /* this process was away until the second fault */
		ck_assert(wc.status == IBV_WC_WR_FLUSH_ERR && atomic_load(&shared_host()->faults[1].done));
	want_event(d.ctx, IBV_EVENT_QP_FATAL);
	want_no_event(b.ctx, 0);
	want_no_event(a.ctx, 0);
	pair_close(&a, &b);
	pair_close(&c, &d);
}
END_TEST

/* 2s mlx5_0 event PORT_ACTIVE twice, and event GID_CHANGE: nothing has changed. */
START_TEST(spurious)
{
	struct end a, b;

	pair_open(&a, &b, NULL, NULL);
	want_event(a.ctx, IBV_EVENT_PORT_ACTIVE);
	want_event(a.ctx, IBV_EVENT_PORT_ACTIVE);
	want_event(a.ctx, IBV_EVENT_GID_CHANGE);
	want_no_event(a.ctx, 50);
	want_no_event(b.ctx, 0);
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	pair_close(&a, &b);
}
END_TEST

/* 50p mlx5_1 gid-move 1 3: connections go on, new ones need the new index. */
START_TEST(gid_move)
{
	struct end a, b, c, d;
	union ibv_gid gid, none = { 0 };
	struct addr to;
	char text[64];

	pair_open(&a, &b, NULL, NULL);
	end_open(&c, 0, NULL);
	end_open(&d, 1, NULL);
	kick(1);
	want_event(b.ctx, IBV_EVENT_GID_CHANGE);
	ck_assert_int_eq(ibv_query_gid(b.ctx, 1, 3, &gid), 0);
	ck_assert_mem_eq(&gid, &b.gid, sizeof(gid));
	ck_assert_int_eq(ibv_query_gid(b.ctx, 1, 1, &gid), 0);
	ck_assert_mem_eq(&gid, &none, sizeof(gid));
	line(b.ctx, "gid_attrs/types/3", text);
	ck_assert_str_eq(text, "RoCE v2");
	line(b.ctx, "gid_attrs/types/1", text);
	ck_assert_str_eq(text, "");
	line(b.ctx, "gids/1", text);
	ck_assert_str_eq(text, "0000:0000:0000:0000:0000:0000:0000:0000");
	ck_assert_int_eq(post(&a, &b, 1, (struct wr){ IBV_WR_RDMA_WRITE, .len = 8 }), 0);
	want(&a, 1, IBV_WC_SUCCESS);
	/* test_end's connections name index 1 of their own device */
	to = end_addr(&d);
	connect_to(&c, &to, NULL);
	to = end_addr(&c);
	ck_assert_int_eq(to_init(d.qp, NULL), 0);
	ck_assert_int_eq(to_rtr(d.qp, &to, NULL), EINVAL);
	pair_close(&a, &b);
	pair_close(&c, &d);
}
END_TEST

int main(int argc, char **argv)
{
	Suite *s = suite_create("softnic: faults");
	TCase *t = tcase_create("faults");
	const char *name = argc > 1 ? argv[1] : "";

	tcase_set_timeout(t, 60);
	if (!strcmp(name, "down-up"))
		tcase_add_test(t, down_up);
	else if (!strcmp(name, "silence"))
		tcase_add_test(t, silence);
	else if (!strcmp(name, "after-packets"))
		tcase_add_test(t, after_packets);
	else if (!strcmp(name, "qp-error"))
		tcase_add_test(t, qp_error);
	else if (!strcmp(name, "spurious"))
		tcase_add_test(t, spurious);
	else if (!strcmp(name, "gid-move"))
		tcase_add_test(t, gid_move);
	else
		return EXIT_FAILURE;
	suite_add_tcase(s, t);
	return run_suite(s);
}
