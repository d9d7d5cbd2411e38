// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "ex.h"
#include "rc_pair.h"
#include "rng.h"

static int pick_gid(struct rc_dev *d)
{
	static const uint8_t v4[12] = { [10] = 0xff, [11] = 0xff };
	union ibv_gid g;
	int i;

	for (i = 0; i < d->port.gid_tbl_len && i < 16; i++)
		if (!vb.query_gid(d->ctx, d->port_num, i, &g) && !memcmp(g.raw, v4, sizeof(v4)))
			return i;
	return 0;
}

int rc_open(struct rc_dev *d, const char *name, int port, int gid_index)
{
	struct ibv_device **list;
	int n = 0, i, err = -ENODEV;

	memset(d, 0, sizeof(*d));
	d->port_num = port > 0 ? port : 1;
	list = vb.get_device_list(&n);
	if (!list) {
		fprintf(stderr, "rc_open: get_device_list: %s\n", strerror(errno));
		return -ENODEV;
	}
	for (i = 0; i < n; i++)
		if (!name || !strcmp(vb.get_device_name(list[i]), name))
			break;
	if (i == n) {
		fprintf(stderr, "rc_open: no device %s among %d\n", name ? name : "(any)", n);
		goto out;
	}
	snprintf(d->name, sizeof(d->name), "%s", vb.get_device_name(list[i]));
	d->ctx = vb.open_device(list[i]);
	if (!d->ctx) {
		err = errno ? -errno : -EIO;
		fprintf(stderr, "rc_open: open_device %s: %s\n", d->name, strerror(-err));
		goto out;
	}
	err = -verbs_query_port(d->ctx, d->port_num, &d->port);
	if (err) {
		fprintf(stderr, "rc_open: query_port %s:%u: %s\n", d->name, d->port_num, strerror(-err));
		goto close;
	}
	d->gid_index = gid_index >= 0 ? gid_index : pick_gid(d);
	if (vb.query_gid(d->ctx, d->port_num, d->gid_index, &d->gid)) {
		err = -EIO;
		fprintf(stderr, "rc_open: query_gid %s:%u index %d failed\n", d->name, d->port_num, d->gid_index);
		goto close;
	}
	d->pd = vb.alloc_pd(d->ctx);
	if (!d->pd) {
		err = errno ? -errno : -EIO;
		fprintf(stderr, "rc_open: alloc_pd %s: %s\n", d->name, strerror(-err));
		goto close;
	}
	err = 0;
	goto out;
close:
	vb.close_device(d->ctx);
	d->ctx = NULL;
out:
	vb.free_device_list(list);
	return err;
}

int rc_close(struct rc_dev *d)
{
	int err = 0, e;

	if (d->pd) {
		err = vb.dealloc_pd(d->pd);
		if (err)
			fprintf(stderr, "rc_close: dealloc_pd: %s\n", strerror(err));
	}
	if (d->ctx) {
		e = vb.close_device(d->ctx);
		if (e)
			fprintf(stderr, "rc_close: close_device: %s\n", strerror(e));
		err = err ? err : e;
	}
	memset(d, 0, sizeof(*d));
	return -err;
}

void rc_addr_of(const struct rc_dev *d, const struct ibv_qp *qp, uint32_t psn, struct rc_addr *a)
{
	memset(a, 0, sizeof(*a));
	a->qpn = qp->qp_num;
	a->psn = psn & 0xffffff;
	a->lid = d->port.lid;
	a->mtu = d->port.active_mtu;
	a->gid = d->gid;
}

static int pick(int v, int def)
{
	return v ? v : def;
}

int rc_to_init(const struct rc_dev *d, struct ibv_qp *qp, const struct rc_opts *o)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT,
		.port_num = d->port_num,
		.qp_access_flags = pick(o ? o->access : 0, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
					IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC),
	};

	return -vb.modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int rc_to_rtr(const struct rc_dev *d, struct ibv_qp *qp, const struct rc_addr *peer, const struct rc_opts *o)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = pick(o ? o->mtu : 0, IBV_MTU_4096),
		.dest_qp_num = peer->qpn,
		.rq_psn = peer->psn,
		.max_dest_rd_atomic = pick(o ? o->rd_atomic : 0, 8),
		.min_rnr_timer = 1,
		.ah_attr = { .dlid = peer->lid, .port_num = d->port_num },
	};

	if (a.path_mtu > d->port.active_mtu)
		a.path_mtu = d->port.active_mtu;
	if (a.path_mtu > peer->mtu)
		a.path_mtu = peer->mtu;
	if (d->port.link_layer == IBV_LINK_LAYER_ETHERNET || !peer->lid) {
		a.ah_attr.is_global = 1;
		a.ah_attr.grh.dgid = peer->gid;
		a.ah_attr.grh.sgid_index = d->gid_index;
		a.ah_attr.grh.hop_limit = 64;
	}
	return -vb.modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int rc_to_rts(struct ibv_qp *qp, uint32_t psn, const struct rc_opts *o)
{
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = psn & 0xffffff,
		.timeout = pick(o ? o->timeout : 0, 18),
		.retry_cnt = pick(o ? o->retry_cnt : 0, 7),
		.rnr_retry = pick(o ? o->rnr_retry : 0, 7),
		.max_rd_atomic = pick(o ? o->rd_atomic : 0, 8),
	};

	return -vb.modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int rc_to_state(struct ibv_qp *qp, enum ibv_qp_state st)
{
	struct ibv_qp_attr a = { .qp_state = st };

	return -vb.modify_qp(qp, &a, IBV_QP_STATE);
}

int rc_connect(const struct rc_dev *d, struct ibv_qp *qp, uint32_t psn, const struct rc_addr *peer,
	       const struct rc_opts *o)
{
	int err = rc_to_init(d, qp, o);

	if (!err)
		err = rc_to_rtr(d, qp, peer, o);
	if (!err)
		err = rc_to_rts(qp, psn, o);
	if (err)
		fprintf(stderr, "rc_connect: qp 0x%x: %s\n", qp->qp_num, strerror(-err));
	return err;
}

int rc_poll_one(struct ibv_cq *cq, struct ibv_wc *wc, int ms)
{
	struct timespec nap = { .tv_nsec = 100 * 1000 };
	uint64_t start = now_ns(), end = start + (uint64_t)ms * 1000000, now;
	int n;

	for (;;) {
		n = any_poll(cq, 1, wc);
		if (n)
			return n < 0 ? -EIO : 1;
		now = now_ns();
		if (now >= end)
			return 0;
		/* a sleep may last a whole tick, which is much longer than most completions take */
		if (now - start < 2000000)
			sched_yield();
		else
			nanosleep(&nap, NULL);
	}
}
