// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "pair_fake.h"

struct verbs_context program;
struct dp_cq *cq;
struct ibv_qp qp[2];
struct dp_qp *q[2];
struct ibv_send_wr got[2];
struct ibv_sge got_sge[2];
unsigned ngot[2];
unsigned nbinds, to_err;
bool refuse;
int refusal = ENOMEM;
uint64_t sent_hash[2][2], nsent[2][2];
struct ibv_context sib_ctx;
struct ibv_qp twin[2];
struct dp_icq icq;
struct dp_sib sib[2];
struct dp_peer owner;
struct dp_rpd rpd;
struct ibv_wc cqe;
bool have_cqe;
void (*while_destroyed)(void);
int destroy_ret;

static int f_post(struct ibv_qp *p, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	unsigned i = p == &qp[1];

	ck_assert_ptr_null(wr->next);
	if (refuse) {
		*bad = wr;
		return refusal;
	}
	got[i] = *wr;
	got_sge[i] = wr->num_sge ? wr->sg_list[0] : (struct ibv_sge){ 0 };
	got[i].sg_list = NULL;
	ngot[i]++;
	return 0;
}

static int f_bind(struct ibv_qp *p, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	(void)p, (void)mw, (void)bind;
	nbinds++;
	return 0;
}

static int f_poll(struct ibv_cq *c, int n, struct ibv_wc *wc)
{
	(void)c;
	if (!have_cqe || n < 1)
		return 0;
	*wc = cqe;
	have_cqe = false;
	return 1;
}

static void mix(uint64_t *h, uint64_t v)
{
	*h = (*h ^ v) * UINT64_C(0x100000001b3);
}

/* Rail 0 and the twins, in the test of bulk. */
static int f_posts(struct ibv_qp *p, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	unsigned r = p == &twin[0] || p == &twin[1], i = p == &twin[1] || p == &qp[1];

	for (; wr; wr = wr->next) {
		uint64_t *h = &sent_hash[i][r];

		if (refuse && !r) {
			*bad = wr;
			return refusal;
		}
		mix(h, wr->wr_id);
		mix(h, (uint64_t)wr->opcode << 32 | wr->send_flags);
		mix(h, wr->wr.rdma.remote_addr);
		mix(h, wr->wr.rdma.rkey);
		for (int k = 0; k < wr->num_sge; k++) {
			if (!wr->sg_list[k].length)
				continue; /* makes a request go the long way */
			mix(h, wr->sg_list[k].addr);
			mix(h, (uint64_t)wr->sg_list[k].length << 32 | wr->sg_list[k].lkey);
		}
		nsent[i][r]++;
	}
	return 0;
}

static int f_destroy(struct ibv_qp *p)
{
	(void)p;
	if (while_destroyed)
		while_destroyed();
	return destroy_ret;
}

static int f_modify(struct ibv_qp *p, struct ibv_qp_attr *attr, int mask)
{
	(void)p;
	to_err += mask == IBV_QP_STATE && attr->qp_state == IBV_QPS_ERR;
	return 0;
}

static const struct dp_verbs real = {
	.query_device = fake_query_device,
	.get_device_name = fake_device_name,
	.create_cq = fake_create_cq,
	.modify_qp = f_modify,
	.destroy_qp = f_destroy,
};

static struct dp_qp *bonded(unsigned i)
{
	struct dp_qp *p;

	qp[i] = (struct ibv_qp){ .context = &program.context, .qp_num = 0x11 + i };
	p = fake_qp(&qp[i], cq, (struct ibv_qp_cap){ .max_send_wr = DEPTH, .max_send_sge = 2, .max_inline_data = 64 });
	atomic_store(&p->refs, 1);
	ck_assert_int_eq(dp_hmap_put(&dp_qps, (uintptr_t)&qp[i], p), 0);
	p->post_send = f_post;
	ck_assert_int_eq(dp_qp_track(p), 0);
	fake_bond(p);
	p->flow0 = p->rail[0].flow;
	p->spread_min = dp_cfg.spread_min;
	return p;
}

void pair_setup(void)
{
	struct dp_ctx *c;

	fake_begin(&real, &program);
	dp_cfg.spread_min = dp_cfg.split_min = 8192;
	ngot[0] = ngot[1] = 0;
	refuse = have_cqe = false;
	while_destroyed = NULL;
	destroy_ret = EBUSY;
	program.context.ops.post_send = f_post;
	program.context.ops.poll_cq = f_poll;
	program.context.ops.bind_mw = f_bind;
	c = dp_ctx_get(&program.context);
	ck_assert_ptr_nonnull(c);
	cq = dp_cq_find(dp_create_cq(&program.context, 2 * DEPTH, NULL, NULL, 0));
	ck_assert_ptr_nonnull(cq);
	cq->progress_listed = true; /* so the progress thread never comes to look */
	for (unsigned i = 0; i < 2; i++)
		q[i] = bonded(i);
}

static void bulk_begin(unsigned i, enum dp_ordering mode)
{
	struct dp_qp *p = q[i];

	twin[i] = (struct ibv_qp){ .context = &sib_ctx, .qp_num = 0x21 + i };
	p->post_send = f_posts;
	p->order.mode = mode;
	p->policy = (struct dp_plan_policy){ .nrails = 2, .split_min = 8192, .align = 4096, .weight = { 1, 1 } };
	dp_qp_set_rpd(p, &rpd);
	p->rail[1].twin = &twin[i];
	p->rail[1].icq = &icq;
	p->rail[1].sib = &sib[i];
	p->init.port_num = (uint8_t)i;
	p->rail[1].max_sge = 2;
	p->rail[1].sq_size = 6;
	p->rail[1].flushes = true;
	p->rtt_ns = 1000;
}

const enum dp_ordering modes[] = { DP_ORDER_RC, DP_ORDER_STRICT, DP_ORDER_SIGNAL, DP_ORDER_RELAXED };

void pair_bulk(enum dp_ordering mode)
{
	static uint32_t lkeys[1] = { 77 };
	static struct dp_mr mr = { .lkey = 7, .lkeys = lkeys, .usable = true };
	struct dp_rkeys *keys = calloc(1, sizeof(*keys) + sizeof(keys->key[0]));
	struct entry *e;

	*keys = (struct dp_rkeys){ .n = 1, .flags = DP_RKEY_READ };
	keys->key[0] = 99;
	rpd = (struct dp_rpd){ .peer = &owner };
	dp_hmap_init(&rpd.entries);
	dp_lock_init(&rpd.lock);
	e = dp_entry_new(&rpd, 9, 10);
	ck_assert_ptr_nonnull(e);
	atomic_store(&e->keys, keys);
	ck_assert_int_eq(dp_hmap_put(&q[0]->c->lkeys, 7, &mr), 0);
	sib_ctx.ops.post_send = f_posts;
	dp_cfg.patience = DP_PATIENCE_ALWAYS; /* no clock has a say */
	memset(sent_hash, 0, sizeof(sent_hash));
	memset(nsent, 0, sizeof(nsent));
	for (unsigned i = 0; i < 2; i++)
		bulk_begin(i, mode);
}
