// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * A twin that met an access error as responder. On one port the program's own queue pair would have: it would be in ERR, and an
 * asynchronous event would say so. So it is moved there. The event has to come from the device, or a program that waits for
 * the context's descriptor would not wake up: one more queue pair of ours, in the program's context and connected to itself,
 * provokes one, which is told in place of what it is (dp_tell_take()).
 */
#include "qp.h"
#include "bond.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct dp_tell {
	struct dp_tell *next;
	struct dp_rail rail;
	struct ibv_qp *self;
	struct ibv_qp *program; /* NULL: told, or gone */
	enum ibv_event_type type;
};

static dp_lock lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf; of the list, and of program */
static struct dp_tell *tells;

static void free_tell(struct dp_qp *q, struct dp_tell *t)
{
	struct ibv_mr *scratch = t->rail.scratch;

	if (t->rail.twin)
		dp_twin_destroy(q, &t->rail);
	if (scratch && q->c->real->dereg_mr(scratch))
		dp_warn("qp 0x%x: scratch memory could not be freed: %s", q->qp_num, strerror(errno));
	free(t);
}

/* To memory that allows no remote access. With ctl held. */
static int provoke(struct dp_qp *q, struct dp_tell *t)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .num_sge = 1 };
	struct dp_rail *rail = &t->rail;
	struct dp_twin_info mine;
	struct ibv_sge sge;
	int ret;

	rail->q = q;
	rail->sib = &q->c->own;
	rail->scratch = dp_scratch_own(q->pd);
	if (!rail->scratch)
		return -errno;
	rail->scratch_lkey = rail->scratch->lkey;
	ret = dp_twin_make(q, rail, &mine);
	if (!ret)
		ret = dp_twin_rtr(q, rail, &mine, &mine);
	if (!ret)
		ret = dp_twin_rts(q, rail, &mine, &mine);
	if (ret)
		return ret;
	t->self = rail->twin;
	dp_take(&lock);
	t->next = tells;
	tells = t;
	dp_drop(&lock);
	/* a right that the queue pair has, or it would be another error */
	if (!(q->init.qp_access_flags & IBV_ACCESS_REMOTE_WRITE))
		wr.opcode = IBV_WR_RDMA_READ;
	wr.sg_list = &sge;
	dp_scratch_sge(rail, &wr, 1);
	wr.wr.rdma.remote_addr = sge.addr;
	wr.wr.rdma.rkey = rail->scratch->rkey;
	return dp_twin_post_probe(q, rail, &wr);
}

static void tell(struct dp_qp *q, enum ibv_event_type type)
{
	struct dp_tell *t;
	int ret = -ENOMEM;

	if (q->tell || !q->c->own.ctx)
		return;
	t = calloc(1, sizeof(*t));
	if (t) {
		t->program = q->qp;
		t->type = type;
		q->tell = t;
		ret = provoke(q, t);
	}
	if (ret)
		dp_info("qp 0x%x: no event can be given of its access error: %s", q->qp_num, strerror(-ret));
}

void dp_tell_twin(struct dp_qp *q, struct ibv_qp *twin, enum ibv_event_type type)
{
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	/* whoever had that address before is gone */
	if (q->c->real->query_qp(twin, &attr, IBV_QP_STATE, &init) || attr.qp_state != IBV_QPS_ERR)
		return;
	dp_info("qp 0x%x: its peer's request met an access error on a sibling; the qp goes to error", q->qp_num);
	dp_bond_end(q);
	dp_take(&q->scq->lock);
	dp_take(&q->lock);
	dp_fail_by_peer(q);
	dp_drop(&q->lock);
	dp_drop(&q->scq->lock);
	tell(q, type);
}

bool dp_tell_take(const struct dp_verbs *real, struct ibv_async_event *event)
{
	struct ibv_async_event inner = *event;
	struct ibv_qp *qp = NULL;
	struct dp_tell *t;

	if (event->event_type != IBV_EVENT_QP_ACCESS_ERR && event->event_type != IBV_EVENT_QP_REQ_ERR)
		return false;
	dp_take(&lock);
	for (t = tells; t && t->self != event->element.qp; t = t->next)
		;
	if (t && t->program) {
		qp = t->program;
		t->program = NULL;
		event->element.qp = qp;
		event->event_type = t->type;
		/*
		 * The program's acknowledgement will be counted there, and destroy_qp compares the sum with what the
		 * device has reported of that queue pair, which this event is not among.
		 */
		pthread_mutex_lock(&qp->mutex);
		qp->events_completed--;
		pthread_mutex_unlock(&qp->mutex);
	}
	dp_drop(&lock);
	if (!qp)
		return false;
	real->ack_async_event(&inner);
	return true;
}

void dp_tell_forget(struct dp_qp *q)
{
	dp_take(&lock);
	if (q->tell)
		q->tell->program = NULL;
	dp_drop(&lock);
}

void dp_tell_destroy(struct dp_qp *q)
{
	struct dp_tell *t = q->tell, **p;

	if (!t)
		return;
	dp_take(&lock);
	for (p = &tells; *p && *p != t; p = &(*p)->next)
		;
	if (*p)
		*p = t->next;
	dp_drop(&lock);
	q->tell = NULL;
	free_tell(q, t);
}

void dp_tell_after_fork(void)
{
	dp_lock_init(&lock);
}
