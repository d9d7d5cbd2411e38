// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "df.h"
#include "ex.h"
#include "oob.h"

#define ACCESS_ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | \
		    IBV_ACCESS_REMOTE_ATOMIC)

static void *buffer(uint64_t len)
{
	void *p = aligned_alloc(4096, (len + 4095) & ~4095ull);

	if (p)
		memset(p, 0, (len + 4095) & ~4095ull);
	return p;
}

static int reg_local(struct df_ep *ep, uint8_t **buf, struct ibv_mr **mr, uint64_t len)
{
	*buf = buffer(len);
	if (!*buf)
		return -ENOMEM;
	*mr = vb.reg_mr(ep->side->dev.pd, *buf, len, IBV_ACCESS_LOCAL_WRITE);
	return *mr ? 0 : -errno;
}

/* base: what the peer has to use as the remote address of the buffer's first byte. */
static int reg_remote(struct df_ep *ep, uint8_t **buf, struct ibv_mr **mr, uint64_t len, uint64_t *base)
{
	const struct df_cfg *c = ep->side->cfg;
	struct ibv_pd *pd = ep->side->dev.pd;
	int access = ACCESS_ALL;

	*buf = buffer(len);
	if (!*buf)
		return -ENOMEM;
	*base = (uintptr_t)*buf;
	if (c->relaxed)
		access |= IBV_ACCESS_RELAXED_ORDERING;
	if (c->reg == REG_IOVA) {
		*base = 0x100000000ull * (ep->idx + 1);
		*mr = vb.reg_mr_iova ? vb.reg_mr_iova(pd, *buf, len, *base, access) : (errno = ENOSYS, NULL);
	} else if (c->reg == REG_EX) {
		*mr = verbs_reg_mr_ex(pd, *buf, len, access);
	} else if (c->reg == REG_IOVA2 || c->relaxed) {
		*mr = vb.reg_mr_iova2 ? vb.reg_mr_iova2(pd, *buf, len, *base, (unsigned int)access) :
					(errno = ENOSYS, NULL);
	} else {
		*mr = vb.reg_mr(pd, *buf, len, access);
	}
	return *mr ? 0 : -errno;
}

static int make_mrs(struct df_ep *ep, struct df_ep_addr *a)
{
	struct df_side *s = ep->side;
	const struct df_cfg *c = s->cfg;
	int err;

	err = reg_remote(ep, &ep->slots, &ep->slots_mr, s->receives ? c->window * s->slot_stride : 4096, &a->slots);
	if (!err)
		err = reg_remote(ep, &ep->flags, &ep->flags_mr, s->flags_len, &a->flags);
	if (!err)
		err = reg_remote(ep, &ep->rsrc, &ep->rsrc_mr, s->rsrc_len, &a->rsrc);
	if (!err)
		err = reg_local(ep, &ep->src, &ep->src_mr, s->sends ? c->window * ep->src_stride : 4096);
	if (!err)
		err = reg_local(ep, &ep->small, &ep->small_mr, (uint64_t)c->depth * 64 + 64);
	if (!err)
		err = reg_local(ep, &ep->rb, &ep->rb_mr, DF_RB_RING * DF_RB_MAX);
	if (!err)
		err = reg_local(ep, &ep->rdst, &ep->rdst_mr, df_src_stride(c));
	if (!err)
		err = reg_local(ep, &ep->rbuf, &ep->rbuf_mr, (uint64_t)ep->rq_depth * DF_MSG);
	if (err) {
		fprintf(stderr, "dataflag: memory of qp %u: %s\n", ep->idx, strerror(-err));
		return err;
	}
	a->slots_rkey = ep->slots_mr->rkey;
	a->flags_rkey = ep->flags_mr->rkey;
	a->rsrc_rkey = ep->rsrc_mr->rkey;
	pattern_fill(ep->rsrc, df_rsrc_key(c, s->dir, ep->idx), 0, s->rsrc_len);
	return 0;
}

static int make_cqs(struct df_side *s)
{
	const struct df_cfg *c = s->cfg;
	unsigned int per = c->cq_split ? 2 : 1, i;
	int size = (int)((c->cq_all ? c->qps : 1) * (c->depth + 2 * c->window + 8)), err;

	if (c->wait != WAIT_POLL) {
		s->chan = vb.create_comp_channel(s->dev.ctx);
		if (!s->chan) {
			perror("dataflag: create_comp_channel");
			return -EIO;
		}
	}
	s->ncqs = per * (c->cq_all ? 1 : c->qps);
	s->cqs = calloc(s->ncqs, sizeof(*s->cqs));
	if (!s->cqs)
		return -ENOMEM;
	for (i = 0; i < s->ncqs; i++) {
		pthread_mutex_init(&s->cqs[i].lock, NULL);
		s->cqs[i].cq = c->cq_ex ? ex_create_cq(s->dev.ctx, size, &s->cqs[i], s->chan, 0, c->stamps) :
					  vb.create_cq(s->dev.ctx, size, &s->cqs[i], s->chan, 0);
		if (!s->cqs[i].cq) {
			err = errno ? -errno : -EIO;
			fprintf(stderr, "dataflag: create_cq of %d: %s\n", size, strerror(-err));
			return err;
		}
	}
	return 0;
}

static int make_ep(struct df_side *s, unsigned int i, struct df_ep_addr *a)
{
	const struct df_cfg *c = s->cfg;
	struct df_ep *ep = &s->ep[i];
	struct ibv_qp_init_attr qa = {
		.qp_type = IBV_QPT_RC,
		.cap = {
			.max_send_wr = c->depth,
			.max_send_sge = c->max_sge,
			.max_recv_sge = 1,
			.max_inline_data = c->inline_max > DF_MSG ? c->inline_max : DF_MSG,
		},
	};
	unsigned int base = c->cq_all ? 0 : i * (c->cq_split ? 2 : 1), k;
	int err;

	ep->side = s;
	ep->idx = i;
	ep->src_stride = df_src_stride(c);
	ep->rq_depth = 2 * c->window + 8;
	ep->rng.s = mix64(c->seed ^ (0x6570ull + ((uint64_t)s->dir << 40) + i));
	pthread_mutex_init(&ep->lock, NULL);
	ep->expect = calloc(c->depth, sizeof(*ep->expect));
	ep->checks = calloc(c->depth + 1, sizeof(*ep->checks));
	ep->msgs = calloc(ep->rq_depth, sizeof(*ep->msgs));
	ep->hold_since = calloc(c->window, sizeof(*ep->hold_since));
	ep->plan = calloc(c->window, sizeof(*ep->plan));
	ep->image = s->receives ? buffer(c->window * s->slot_stride) : buffer(4096);
	if (!ep->expect || !ep->checks || !ep->msgs || !ep->hold_since || !ep->plan || !ep->image)
		return -ENOMEM;
	err = make_mrs(ep, a);
	if (err)
		return err;
	ep->scq = &s->cqs[base];
	ep->rcq = &s->cqs[base + (c->cq_split ? 1 : 0)];
	qa.send_cq = ep->scq->cq;
	qa.recv_cq = ep->rcq->cq;
	qa.cap.max_recv_wr = ep->rq_depth;
	ep->qp = c->wr ? ex_create_qp(s->dev.pd, &qa) : vb.create_qp(s->dev.pd, &qa);
	if (!ep->qp) {
		err = errno ? -errno : -EIO;
		fprintf(stderr, "dataflag: create_qp %u: %s\n", i, strerror(-err));
		return err;
	}
	rc_addr_of(&s->dev, ep->qp, (uint32_t)rng_u64(&ep->rng), &a->rc);
	err = rc_to_init(&s->dev, ep->qp, NULL);
	for (k = 0; !err && k < ep->rq_depth; k++)
		err = df_post_recv(ep);
	if (err)
		fprintf(stderr, "dataflag: qp 0x%x to INIT: %s\n", ep->qp->qp_num, strerror(-err));
	return err;
}

static int connect_all(struct df_side *s, const struct df_ep_addr *mine)
{
	const struct df_cfg *c = s->cfg;
	struct rc_opts o = { .mtu = (int)c->mtu, .timeout = (int)c->qp_timeout };
	struct df_ep_addr *peer = calloc(c->qps, sizeof(*peer));
	unsigned int i;
	int err;

	if (!peer)
		return -ENOMEM;
	err = oob_xchg(s->oob, mine, peer, c->qps * sizeof(*peer));
	for (i = 0; !err && i < c->qps; i++) {
		s->ep[i].peer = peer[i];
		err = rc_to_rtr(&s->dev, s->ep[i].qp, &peer[i].rc, &o);
	}
	if (!err)
		err = oob_sync(s->oob);
	for (i = 0; !err && i < c->qps; i++)
		err = rc_to_rts(s->ep[i].qp, mine[i].rc.psn, &o);
	if (!err)
		err = oob_sync(s->oob);
	if (err)
		fprintf(stderr, "dataflag: connecting: %s\n", strerror(-err));
	free(peer);
	return err;
}

int df_side_init(struct df_side *s)
{
	const struct df_cfg *c = s->cfg;
	struct df_ep_addr *mine;
	unsigned int i, w;
	int err;

	err = rc_open(&s->dev, s->dir && c->peer_dev ? c->peer_dev : c->dev, c->ib_port, c->gid);
	if (err)
		return err;
	s->slot_stride = (2 * DF_GUARD + df_area(c) + 4095) & ~4095ull;
	s->flags_len = ((uint64_t)c->window + 1) * DF_FLAG_STRIDE;
	s->rsrc_len = 2 * c->max + 64;
	err = make_cqs(s);
	if (err)
		return err;
	s->ep = calloc(c->qps, sizeof(*s->ep));
	mine = calloc(c->qps, sizeof(*mine));
	if (!s->ep || !mine) {
		free(mine);
		return -ENOMEM;
	}
	for (i = 0; !err && i < c->qps; i++)
		err = make_ep(s, i, &mine[i]);
	for (i = 0; !err && s->receives && i < c->qps; i++) {
		for (w = 0; w < c->window && w < c->rounds; w++) {
			df_plan(c, !s->dir, i, w, &s->ep[i].plan[w]);
			df_image(&s->ep[i].plan[w], s->ep[i].image + w * s->slot_stride, s->slot_stride);
		}
	}
	if (!err)
		err = connect_all(s, mine);
	free(mine);
	return err;
}

static void destroyed(struct df_side *s, const char *what, int err)
{
	if (err)
		df_error(s, "%s: %s", what, strerror(err));
}

static void free_mr(struct df_side *s, struct ibv_mr *mr, void *buf)
{
	if (mr)
		destroyed(s, "dereg_mr", vb.dereg_mr(mr));
	free(buf);
}

void df_side_fini(struct df_side *s)
{
	const struct df_cfg *c = s->cfg;
	unsigned int i;

	for (i = 0; s->ep && i < c->qps; i++) {
		struct df_ep *ep = &s->ep[i];

		if (ep->qp)
			destroyed(s, "destroy_qp", vb.destroy_qp(ep->qp));
		free_mr(s, ep->slots_mr, ep->slots);
		free_mr(s, ep->flags_mr, ep->flags);
		free_mr(s, ep->rsrc_mr, ep->rsrc);
		free_mr(s, ep->src_mr, ep->src);
		free_mr(s, ep->small_mr, ep->small);
		free_mr(s, ep->rb_mr, ep->rb);
		free_mr(s, ep->rdst_mr, ep->rdst);
		free_mr(s, ep->rbuf_mr, ep->rbuf);
		free(ep->expect);
		free(ep->checks);
		free(ep->msgs);
		free(ep->hold_since);
		free(ep->plan);
		free(ep->image);
	}
	for (i = 0; s->cqs && i < s->ncqs; i++) {
		if (s->cqs[i].events)
			vb.ack_cq_events(s->cqs[i].cq, s->cqs[i].events);
		if (s->cqs[i].cq)
			destroyed(s, "destroy_cq", vb.destroy_cq(s->cqs[i].cq));
	}
	if (s->chan)
		destroyed(s, "destroy_comp_channel", vb.destroy_comp_channel(s->chan));
	if (rc_close(&s->dev))
		atomic_fetch_add(&s->errors, 1);
	free(s->ep);
	free(s->cqs);
	s->ep = NULL;
	s->cqs = NULL;
}
