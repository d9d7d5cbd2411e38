// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Extended completion queues. */
#include <errno.h>
#include <stdlib.h>

#include "engine.h"

#define OFFERED (IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | \
		 IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)

static struct sn_cq *cq_of(struct ibv_cq_ex *ex)
{
	return sn_of(ex, struct sn_cq, ex);
}

/* 0, ENOENT, or another positive errno */
static int take(struct sn_cq *c)
{
	int ret;

	if (!c->count)
		sn_engine_poll();
	sn_lock();
	ret = c->overrun ? EIO : sn_cq_take(c, &c->now) ? 0 : ENOENT;
	if (!ret)
		c->held++;
	sn_unlock();
	if (ret)
		return ret;
	sn_polled(0);
	c->ex.status = c->now.wc.status;
	c->ex.wr_id = c->now.wc.wr_id;
	return 0;
}

static int start_poll(struct ibv_cq_ex *ex, struct ibv_poll_cq_attr *attr)
{
	struct sn_cq *c = cq_of(ex);
	int ret;

	if (attr->comp_mask)
		return EINVAL;
	if (!c->single_threaded)
		pthread_mutex_lock(&c->polling);
	ret = take(c);
	if (ret && !c->single_threaded)
		pthread_mutex_unlock(&c->polling);
	return ret;
}

static int next_poll(struct ibv_cq_ex *ex)
{
	return sn_shared->adverse ? ENOENT : take(cq_of(ex));
}

static void end_poll(struct ibv_cq_ex *ex)
{
	struct sn_cq *c = cq_of(ex);

	/* only now is there room for other completions */
	sn_lock();
	c->held = 0;
	sn_unlock();
	if (!c->single_threaded)
		pthread_mutex_unlock(&c->polling);
}

#define READ(name, type, value)				\
	static type read_##name(struct ibv_cq_ex *ex)	\
	{						\
		const struct sn_cqe *e = &cq_of(ex)->now; \
							\
		return value;				\
	}

READ(opcode, enum ibv_wc_opcode, e->wc.opcode)
READ(vendor_err, uint32_t, e->wc.vendor_err)
READ(wc_flags, unsigned int, e->wc.wc_flags)
READ(byte_len, uint32_t, e->wc.byte_len)
READ(imm_data, __be32, e->wc.imm_data)
READ(qp_num, uint32_t, e->wc.qp_num)
READ(src_qp, uint32_t, e->wc.src_qp)
READ(slid, uint32_t, e->wc.slid)
READ(sl, uint8_t, e->wc.sl)
READ(dlid_path_bits, uint8_t, e->wc.dlid_path_bits)
READ(completion_ts, uint64_t, e->stamp)
READ(completion_wallclock_ns, uint64_t, e->wall)

struct ibv_cq_ex *sn_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *a)
{
	const uint32_t flags = a->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS ? a->flags : 0;
	struct ibv_cq_ex *ex;
	struct sn_cq *c;

	if ((a->wc_flags & ~(uint64_t)OFFERED) ||
	    (a->comp_mask & ~(uint32_t)(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD)) ||
	    (flags & ~(uint32_t)(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN))) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	c = sn_cq_new(context, a->cqe > SN_MAX_CQE ? -1 : (int)a->cqe, a->cq_context, a->channel, a->comp_vector);
	if (!c)
		return NULL;
	c->single_threaded = flags & IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
	c->ignore_overrun = flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
	c->stamps = a->wc_flags & (IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK);
	ex = &c->ex;
	ex->start_poll = start_poll;
	ex->next_poll = next_poll;
	ex->end_poll = end_poll;
	ex->read_opcode = read_opcode;
	ex->read_vendor_err = read_vendor_err;
	ex->read_wc_flags = read_wc_flags;
	/* as with other providers, only what was asked for is there */
#define OFFER(flag, name) (ex->read_##name = a->wc_flags & (flag) ? read_##name : NULL)
	OFFER(IBV_WC_EX_WITH_BYTE_LEN, byte_len);
	OFFER(IBV_WC_EX_WITH_IMM, imm_data);
	OFFER(IBV_WC_EX_WITH_QP_NUM, qp_num);
	OFFER(IBV_WC_EX_WITH_SRC_QP, src_qp);
	OFFER(IBV_WC_EX_WITH_SLID, slid);
	OFFER(IBV_WC_EX_WITH_SL, sl);
	OFFER(IBV_WC_EX_WITH_DLID_PATH_BITS, dlid_path_bits);
	OFFER(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, completion_ts);
	OFFER(IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, completion_wallclock_ns);
#undef OFFER
	return ex;
}

/* Events are never held back to make them fewer, which a program must be able to live with. */
int sn_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *a)
{
	(void)cq;
	return a->attr_mask & ~(uint32_t)IBV_CQ_ATTR_MODERATE ? EINVAL : 0;
}
