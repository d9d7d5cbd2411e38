// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* One twin QP on a sibling port: making, connecting, probing, destroying it. */
#include "qp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* A provider may free a slot of its send queue a little after giving the completion. */
#define SQ_SLACK 16

#define REMOTE_ACCESS (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static int query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr)
{
	struct verbs_context *v = verbs_get_ctx_op(ctx, query_port);

	memset(attr, 0, sizeof(*attr));
	if (!v)
		return -ENOSYS;
	return v->query_port(ctx, port, attr, sizeof(*attr)) ? -EIO : 0;
}

uint32_t dp_port_rate(struct ibv_context *ctx, uint8_t port)
{
	/* the attributes are one-hot codes (IBTA PortInfo): LinkWidthActive, LinkSpeedActive and its extensions */
	static const uint8_t lanes[] = { 1, 4, 8, 12, 2 };
	static const uint16_t speed[] = { 25, 50, 100, 100, 140, 250, 500, 1000, 2000 };
	struct ibv_port_attr attr;
	unsigned w, s;

	if (query_port(ctx, port, &attr) || !attr.active_width || !attr.active_speed)
		return 0;
	w = (unsigned)__builtin_ctz(attr.active_width);
	s = (unsigned)__builtin_ctz(attr.active_speed);
	if (w >= sizeof(lanes) || s >= sizeof(speed) / sizeof(speed[0]))
		return 0;
	return (uint32_t)lanes[w] * speed[s];
}

/* The spare is on the program's own port. */
static uint8_t port_of(const struct dp_qp *q, const struct dp_rail *rail)
{
	return rail->idx ? (uint8_t)rail->sib->port.port : q->init.port_num;
}

/* First line of a file under the port's sysfs directory; "" if unreadable. */
static void port_file(struct ibv_context *ctx, uint8_t port, const char *what, int index, char *buf, size_t n)
{
	char path[IBV_SYSFS_PATH_MAX + 64];
	FILE *f;

	buf[0] = '\0';
	snprintf(path, sizeof(path), "%s/ports/%u/gid_attrs/%s/%d", ctx->device->ibdev_path, port, what, index);
	f = fopen(path, "re");
	if (!f)
		return;
	if (!fgets(buf, (int)n, f))
		buf[0] = '\0';
	buf[strcspn(buf, "\n")] = '\0';
	fclose(f);
}

int dp_gid_of(const struct dp_verbs *real, struct ibv_context *ctx, uint8_t port, int index, union ibv_gid *gid,
	      uint32_t *type, char *netdev)
{
	struct ibv_gid_entry e;
	char text[32];

	if (netdev)
		port_file(ctx, port, "ndevs", index, netdev, IFNAMSIZ);
	if (real->_query_gid_ex && !real->_query_gid_ex(ctx, port, (uint32_t)index, &e, 0, sizeof(e))) {
		*gid = e.gid;
		*type = e.gid_type;
		if (netdev && !netdev[0] && e.ndev_ifindex && !if_indextoname(e.ndev_ifindex, netdev))
			netdev[0] = '\0';
		return 0;
	}
	if (real->query_gid(ctx, port, index, gid))
		return -ENOENT;
	port_file(ctx, port, "types", index, text, sizeof(text));
	*type = !strcmp(text, "RoCE v2") ? IBV_GID_TYPE_ROCE_V2 :
		!strcmp(text, "IB/RoCE v1") ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_IB;
	return 0;
}

enum family { FAMILY_NONE, FAMILY_V4, FAMILY_LINK_LOCAL, FAMILY_V6 };

static enum family family(const union ibv_gid *g)
{
	static const uint8_t v4[12] = { [10] = 0xff, [11] = 0xff };

	if (!memcmp(g->raw, v4, sizeof(v4)))
		return FAMILY_V4;
	if (g->raw[0] == 0xfe && (g->raw[1] & 0xc0) == 0x80)
		return FAMILY_LINK_LOCAL;
	for (int i = 0; i < 16; i++)
		if (g->raw[i])
			return FAMILY_V6;
	return FAMILY_NONE;
}

/* The sibling's GID of the same type and family as the one that the program uses. */
static int sibling_gid(struct dp_qp *q, struct dp_sib *sib, int gids, struct dp_twin_info *mine)
{
	uint32_t want_type, type;
	union ibv_gid want, gid;
	int i, end;

	if (dp_gid_of(q->c->real, q->c->ctx, q->init.port_num, q->rtr.ah_attr.grh.sgid_index, &want, &want_type,
		      NULL))
		return -ENOENT;
	if (sib->shared && sib->port.gid_index < 0) {
		mine->gid = want;
		mine->sgid_index = q->rtr.ah_attr.grh.sgid_index;
		return 0;
	}
	i = sib->port.gid_index >= 0 ? sib->port.gid_index : 0;
	end = sib->port.gid_index >= 0 ? i + 1 : gids;
	for (; i < end; i++) {
		if (dp_gid_of(q->c->real, sib->ctx, (uint8_t)sib->port.port, i, &gid, &type, NULL))
			continue;
		if (sib->port.gid_index >= 0 || (type == want_type && family(&gid) == family(&want))) {
			mine->gid = gid;
			mine->sgid_index = (uint8_t)i;
			return 0;
		}
	}
	dp_warn("qp 0x%x: %s has no gid of the type and family that the program uses", q->qp_num, sib->text);
	return -ENOENT;
}

static int own_gid(struct dp_qp *q, struct dp_twin_info *mine)
{
	uint32_t type;

	mine->sgid_index = q->rtr.ah_attr.grh.sgid_index;
	return dp_gid_of(q->c->real, q->c->ctx, q->init.port_num, mine->sgid_index, &mine->gid, &type, NULL);
}

/* P_Keys are compared by value: their places in the tables differ. */
static uint16_t sibling_pkey(struct dp_qp *q, struct dp_sib *sib)
{
	__be16 want, have;

	if (q->c->real->query_pkey(q->c->ctx, q->init.port_num, q->init.pkey_index, &want))
		return 0;
	for (int i = 0; i < sib->attr.max_pkeys; i++)
		if (!q->c->real->query_pkey(sib->ctx, (uint8_t)sib->port.port, i, &have) && have == want)
			return (uint16_t)i;
	return 0;
}

static uint8_t at_least_1(uint8_t n, int limit)
{
	if (limit > 0 && n > limit)
		n = (uint8_t)limit;
	return n ? n : 1;
}

/* The twin, and memory for its flushes; without that there are none, which is said when one is needed. */
static int create(struct dp_qp *q, struct dp_rail *rail, struct ibv_qp_init_attr *init)
{
	struct dp_pd *pd = q->pd;
	struct ibv_pd *in;
	int ret = -ENODEV;

	dp_take(&pd->settling);
	in = rail->idx ? pd->twin[rail->sib_idx] : pd->pd;
	if (!in || !pd->pd) /* the program has left it to another process */
		goto out;
	rail->twin = q->c->real->create_qp(in, init);
	ret = rail->twin ? 0 : -errno;
	if (ret)
		goto out;
	pd->guests += rail->sib->shared;
	if (rail->idx && !dp_scratch_make(pd, rail->sib_idx))
		rail->scratch_lkey = pd->scratch[rail->sib_idx]->lkey;
out:
	dp_drop(&pd->settling);
	return ret;
}

static int destroy(struct dp_qp *q, struct dp_rail *rail)
{
	int ret = q->c->real->destroy_qp(rail->twin);

	dp_take(&q->pd->settling);
	q->pd->guests -= rail->sib->shared;
	dp_drop(&q->pd->settling);
	return ret;
}

int dp_twin_make(struct dp_qp *q, struct dp_rail *rail, struct dp_twin_info *mine)
{
	const struct dp_verbs *real = q->c->real;
	struct dp_sib *sib = rail->sib;
	struct ibv_port_attr port;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .qp_context = &dp_made_by_us };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
	uint32_t slack = SQ_SLACK + (dp_cfg.flush == DP_FLUSH_ACK ? 0 : DP_FLUSH_SLOTS);
	uint32_t depth = (rail->idx ? q->cap.max_send_wr : 0) + slack;
	int ret;

	memset(mine, 0, sizeof(*mine));
	ret = query_port(sib->ctx, port_of(q, rail), &port);
	if (ret)
		return ret;
	if (port.state != IBV_PORT_ACTIVE && port.state != IBV_PORT_ACTIVE_DEFER) {
		dp_warn("qp 0x%x: %s is not active", q->qp_num, sib->text);
		return -ENETDOWN;
	}
	mine->sib_idx = (uint8_t)rail->sib_idx;
	mine->upstream = dp_upstream(sib->ctx);
	mine->access = (uint8_t)(q->init.qp_access_flags & REMOTE_ACCESS);
	mine->lid = port.lid;
	mine->link_layer = port.link_layer;
	mine->mtu = (uint8_t)port.active_mtu;
	mine->rd_atomic = at_least_1(q->rtr.max_dest_rd_atomic, sib->attr.max_qp_rd_atom);
	snprintf(mine->text, sizeof(mine->text), "%s", sib->text);
	ret = rail->idx ? sibling_gid(q, sib, port.gid_tbl_len, mine) : own_gid(q, mine);
	if (ret)
		return ret;
	if (sib->attr.max_qp_wr > 0 && depth > (uint32_t)sib->attr.max_qp_wr)
		depth = (uint32_t)sib->attr.max_qp_wr;
	rail->icq = dp_icq_get(q->scq, sib, depth);
	if (!rail->icq)
		return -ENOMEM;
	init.send_cq = init.recv_cq = rail->icq->cq;
	init.cap.max_send_wr = depth;
	init.cap.max_send_sge = rail->idx ? q->cap.max_send_sge : 1;
	if (sib->attr.max_sge > 0 && init.cap.max_send_sge > (uint32_t)sib->attr.max_sge)
		init.cap.max_send_sge = (uint32_t)sib->attr.max_sge;
	init.cap.max_recv_wr = init.cap.max_recv_sge = 1;
	rail->icq_used = depth;
	rail->sq_size = depth > slack ? depth - slack : 1;
	ret = create(q, rail, &init);
	if (ret)
		goto put_icq;
	rail->max_sge = init.cap.max_send_sge;
	attr.pkey_index = rail->idx ? sibling_pkey(q, sib) : q->init.pkey_index;
	attr.port_num = port_of(q, rail);
	attr.qp_access_flags = q->init.qp_access_flags;
	ret = real->modify_qp(rail->twin, &attr,
			      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	if (ret) {
		ret = -ret;
		goto destroy;
	}
	mine->qpn = rail->twin->qp_num;
	if (getrandom(&mine->psn, sizeof(mine->psn), GRND_NONBLOCK) != sizeof(mine->psn))
		mine->psn = (uint32_t)dp_now_ns();
	mine->psn &= 0xffffff;
	/* with the lock, so that leftovers of a former QP of this number are gone before (dp_twin_destroy) */
	dp_take(&q->scq->lock);
	ret = dp_hmap_put(&sib->twins, mine->qpn, rail);
	dp_drop(&q->scq->lock);
	if (!ret)
		return 0;
destroy:
	destroy(q, rail);
	rail->twin = NULL;
put_icq:
	dp_icq_put(q->scq, rail->icq, rail->icq_used);
	rail->icq = NULL;
	return ret;
}

static enum ibv_mtu least_mtu(enum ibv_mtu a, uint8_t b, uint8_t c)
{
	if (b && b < a)
		a = (enum ibv_mtu)b;
	if (c && c < a)
		a = (enum ibv_mtu)c;
	return a;
}

int dp_twin_rtr(struct dp_qp *q, struct dp_rail *rail, const struct dp_twin_info *mine,
		const struct dp_twin_info *peer)
{
	struct ibv_qp_attr attr = q->rtr;
	struct ibv_ah_attr *ah = &attr.ah_attr;

	attr.qp_access_flags = q->init.qp_access_flags;
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = least_mtu(q->rtr.path_mtu, mine->mtu, peer->mtu);
	attr.dest_qp_num = peer->qpn;
	attr.rq_psn = peer->psn;
	attr.max_dest_rd_atomic = mine->rd_atomic;
	ah->dlid = peer->lid;
	ah->port_num = port_of(q, rail);
	if (ah->is_global || mine->link_layer == IBV_LINK_LAYER_ETHERNET) {
		ah->is_global = 1;
		ah->grh.dgid = peer->gid;
		ah->grh.sgid_index = mine->sgid_index;
		/* the sibling's path may be routed where the program's is not */
		if (ah->grh.hop_limit < 64)
			ah->grh.hop_limit = 64;
	}
	return -q->c->real->modify_qp(rail->twin, &attr,
				      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER |
					      IBV_QP_ACCESS_FLAGS);
}

int dp_twin_rts(struct dp_qp *q, struct dp_rail *rail, const struct dp_twin_info *mine,
		const struct dp_twin_info *peer)
{
	struct ibv_qp_attr attr = q->rts;
	int ret;

	if (rail->rts)
		return 0;
	/* the program may have changed them after the twin's INIT */
	attr.qp_access_flags = q->init.qp_access_flags;
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = mine->psn;
	attr.max_rd_atomic = at_least_1(q->rts.max_rd_atomic, rail->sib->attr.max_qp_init_rd_atom);
	if (attr.max_rd_atomic > peer->rd_atomic)
		attr.max_rd_atomic = peer->rd_atomic;
	ret = q->c->real->modify_qp(rail->twin, &attr,
				    IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					    IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_ACCESS_FLAGS);
	rail->rts = !ret;
	rail->rd_atomic = attr.max_rd_atomic;
	return -ret;
}

int dp_twin_access(struct dp_qp *q, struct dp_rail *rail)
{
	struct ibv_qp_attr attr = { .qp_access_flags = q->init.qp_access_flags };

	return -q->c->real->modify_qp(rail->twin, &attr, IBV_QP_ACCESS_FLAGS);
}

int dp_twin_probe(struct dp_qp *q, struct dp_rail *rail, const struct dp_twin_info *peer)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };

	/* without the right the responder would break the connection, even for no bytes */
	if (!(peer->access & IBV_ACCESS_REMOTE_WRITE)) {
		if (!(peer->access & IBV_ACCESS_REMOTE_READ))
			return -EACCES;
		wr.opcode = IBV_WR_RDMA_READ;
	}
	return dp_twin_post_probe(q, rail, &wr);
}

int dp_twin_post_probe(struct dp_qp *q, struct dp_rail *rail, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	int ret;

	dp_take(&q->lock);
	rail->probe = DP_PROBE_SENT;
	rail->probe_ns = dp_now_ns();
	rail->signaled++;
	atomic_fetch_add_explicit(&rail->icq->pending, 1, memory_order_relaxed);
	ret = rail->twin->context->ops.post_send(rail->twin, wr, &bad);
	if (ret) {
		rail->probe = DP_PROBE_FAILED;
		rail->signaled--;
		atomic_fetch_sub_explicit(&rail->icq->pending, 1, memory_order_relaxed);
	}
	dp_drop(&q->lock);
	return -ret;
}

void dp_twin_destroy(struct dp_qp *q, struct dp_rail *rail)
{
	int ret;

	/* with the lock: whoever found it there has let go of it after this */
	dp_take(&q->scq->lock);
	dp_hmap_del(&rail->sib->twins, rail->twin->qp_num);
	dp_drop(&q->scq->lock);
	ret = destroy(q, rail);
	if (ret)
		dp_info("qp 0x%x: destroy of twin 0x%x: %s", q->qp_num, rail->twin->qp_num, strerror(ret));
	rail->twin = NULL;
	/*
	 * Some providers leave completions of a destroyed QP in the CQ. No new ones come, and a new QP of this
	 * number is entered only with this lock: what is found now without an entry is thrown away.
	 */
	dp_take(&q->scq->lock);
	atomic_fetch_add_explicit(&rail->icq->pending, 1, memory_order_relaxed);
	dp_cq_progress(q->scq, false);
	atomic_fetch_sub_explicit(&rail->icq->pending, 1 + rail->signaled, memory_order_relaxed);
	rail->icq->used -= rail->icq_used;
	dp_drop(&q->scq->lock);
	rail->signaled = 0;
	rail->icq = NULL;
}
