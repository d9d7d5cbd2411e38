// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Extended reliable connections (IBTA annex A14): domains, and queue pairs that receive for all shared receive queues of one.
 * A domain may be opened again by its file, such a queue pair by its number, also in another context of the device; each
 * opening is an object of its own to the program, and what they stand for goes with the last. Other processes have others.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "engine.h"
#include "packet.h"

struct sn_domain {
	dev_t fs;		/* the file */
	ino_t file;
	bool named;		/* has one */
	uint32_t dev, epoch;	/* of a forked child none is its parent's */
	uint32_t opened;
	LIST_ENTRY(sn_domain) in_all;
};

struct sn_xrcd {
	struct ibv_xrcd xrcd;
	struct sn_domain *domain;
	uint32_t users;
	LIST_ENTRY(sn_xrcd) in_all;
};

static LIST_HEAD(, sn_domain) domains = LIST_HEAD_INITIALIZER(domains);
static LIST_HEAD(, sn_xrcd) opened = LIST_HEAD_INITIALIZER(opened);

/* ---- domains ---- */

static struct sn_domain *find(uint32_t dev, const struct stat *st)
{
	struct sn_domain *d;

	LIST_FOREACH(d, &domains, in_all)
		if (d->named && d->dev == dev && d->epoch == sn_engine_epoch() && d->fs == st->st_dev && d->file == st->st_ino)
			break;
	return d;
}

/* The domain that a file stands for, or a new one; NULL: errno. With the lock. */
static struct sn_domain *find_or_make(uint32_t dev, int fd, int oflags)
{
	struct sn_domain *d = NULL;
	struct stat st = { 0 };

	if (fd != -1) {
		if (fstat(fd, &st))
			return NULL;
		d = find(dev, &st);
		/* as the kernel's uverbs */
		if (!d && !(oflags & O_CREAT)) {
			errno = EAGAIN;
			return NULL;
		}
		if (d && (oflags & O_EXCL)) {
			errno = EINVAL;
			return NULL;
		}
	}
	if (!d) {
		d = calloc(1, sizeof(*d));
		if (!d)
			return NULL;
		d->fs = st.st_dev;
		d->file = st.st_ino;
		d->named = fd != -1;
		d->dev = dev;
		d->epoch = sn_engine_epoch();
		LIST_INSERT_HEAD(&domains, d, in_all);
	}
	d->opened++;
	return d;
}

struct ibv_xrcd *sn_open_xrcd(struct ibv_context *c, struct ibv_xrcd_init_attr *a)
{
	const uint32_t both = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
	struct sn_xrcd *x;

	if (a->comp_mask >= IBV_XRCD_INIT_ATTR_RESERVED || (a->comp_mask & both) != both) {
		errno = a->comp_mask >= IBV_XRCD_INIT_ATTR_RESERVED ? EOPNOTSUPP : EINVAL;
		return NULL;
	}
	x = calloc(1, sizeof(*x));
	if (!x)
		return NULL;
	x->xrcd.context = c;
	sn_lock();
	x->domain = find_or_make(sn_ctx(c)->dev, a->fd, a->oflags);
	if (x->domain)
		LIST_INSERT_HEAD(&opened, x, in_all);
	sn_unlock();
	if (x->domain)
		return &x->xrcd;
	free(x);
	return NULL;
}

static void leave(struct sn_xrcd *x)
{
	LIST_REMOVE(x, in_all);
	if (--x->domain->opened)
		return;
	LIST_REMOVE(x->domain, in_all);
	free(x->domain);
}

int sn_close_xrcd(struct ibv_xrcd *ibx)
{
	struct sn_xrcd *x = (struct sn_xrcd *)ibx;
	int ret = 0;

	sn_lock();
	if (x->users)
		ret = EBUSY;
	else
		leave(x);
	sn_unlock();
	if (!ret)
		free(x);
	return ret;
}

const struct sn_domain *sn_xrcd_use(struct ibv_xrcd *x)
{
	((struct sn_xrcd *)x)->users++;
	return ((struct sn_xrcd *)x)->domain;
}

void sn_xrcd_drop(struct ibv_xrcd *x)
{
	((struct sn_xrcd *)x)->users--;
}

/* ---- shared receive queues ---- */

struct ibv_srq *sn_create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *a)
{
	const uint32_t needs = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
	enum ibv_srq_type type = a->comp_mask & IBV_SRQ_INIT_ATTR_TYPE ? a->srq_type : IBV_SRQT_BASIC;
	bool xrc = type == IBV_SRQT_XRC;

	if (a->comp_mask >= IBV_SRQ_INIT_ATTR_RESERVED || (!xrc && type != IBV_SRQT_BASIC)) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if (!(a->comp_mask & IBV_SRQ_INIT_ATTR_PD) || a->pd->context != c ||
	    (xrc && ((a->comp_mask & needs) != needs || a->xrcd->context != c || a->cq->context != c))) {
		errno = EINVAL;
		return NULL;
	}
	return sn_srq_new(a->pd, a->srq_context, &a->attr, xrc ? a->xrcd : NULL, xrc ? a->cq : NULL);
}

struct sn_srq *sn_xrc_srq(const struct sn_qp *q, uint32_t srqn)
{
	struct sn_srq *s = sn_srq_find(q->dev, srqn);

	return s && s->domain == q->domain ? s : NULL;
}

/* ---- queue pairs that receive: the program has handles of them, the engine knows only what is behind those ---- */

static void free_handle(struct sn_qp *h)
{
	pthread_mutex_destroy(&sn_ibqp(h)->mutex);
	pthread_cond_destroy(&sn_ibqp(h)->cond);
	free(h);
}

static struct sn_qp *new_handle(struct ibv_context *c, void *qp_context, struct ibv_xrcd *x)
{
	struct sn_qp *h = calloc(1, sizeof(*h));

	if (!h)
		return NULL;
	sn_ibqp(h)->context = c;
	sn_ibqp(h)->qp_context = qp_context;
	sn_ibqp(h)->qp_type = IBV_QPT_XRC_RECV;
	pthread_mutex_init(&sn_ibqp(h)->mutex, NULL);
	pthread_cond_init(&sn_ibqp(h)->cond, NULL);
	h->dev = sn_ctx(c)->dev;
	h->xrcd = x;
	return h;
}

/* With the lock. */
static void enter(struct sn_qp *h, struct sn_qp *q)
{
	h->behind = q;
	sn_ibqp(h)->qp_num = sn_ibqp(h)->handle = sn_ibqp(q)->qp_num;
	sn_ibqp(h)->state = q->state;
	LIST_INSERT_HEAD(&q->handles, h, in_handles);
	q->domain = sn_xrcd_use(h->xrcd);
}

struct ibv_qp *sn_xrc_create_recv(struct ibv_context *c, struct ibv_qp_init_attr_ex *a)
{
	const uint32_t known = IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	struct sn_qp *q = NULL, *h = NULL;
	int ret = EINVAL;

	if ((a->comp_mask & ~known) || ((a->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS) && a->create_flags))
		ret = EOPNOTSUPP;
	else if ((a->comp_mask & IBV_QP_INIT_ATTR_XRCD) && a->xrcd->context == c)
		ret = 0;
	if (ret)
		goto err;
	ret = ENOMEM;
	h = new_handle(c, a->qp_context, a->xrcd);
	q = sn_qp_new(sn_ctx(c)->dev, IBV_QPT_XRC_RECV, &(struct ibv_qp_cap){ 0 });
	if (!h || !q)
		goto err;
	LIST_INIT(&q->handles);
	sn_lock();
	if (!sn_qp_begin(q, c)) {
		sn_unlock();
		goto err;
	}
	enter(h, q);
	sn_unlock();
	a->cap = q->cap;
	return sn_ibqp(h);
err:
	if (q)
		sn_qp_free(q);
	if (h)
		free_handle(h);
	errno = ret;
	return NULL;
}

struct ibv_qp *sn_open_qp(struct ibv_context *c, struct ibv_qp_open_attr *a)
{
	const uint32_t needs = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
	struct sn_qp *q = NULL, *h;

	if (a->comp_mask >= IBV_QP_OPEN_ATTR_RESERVED) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	if ((a->comp_mask & needs) != needs || a->qp_type != IBV_QPT_XRC_RECV || a->xrcd->context != c) {
		errno = EINVAL;
		return NULL;
	}
	h = new_handle(c, a->comp_mask & IBV_QP_OPEN_ATTR_CONTEXT ? a->qp_context : NULL, a->xrcd);
	if (!h)
		return NULL;
	sn_lock();
	if (sn_ctx(c)->epoch == sn_engine_epoch())
		q = sn_qp_find(h->dev, a->qp_num);
	if (q && (!sn_is_xrc_recv(q) || q->domain != ((struct sn_xrcd *)a->xrcd)->domain))
		q = NULL;
	if (q)
		enter(h, q);
	sn_unlock();
	if (q)
		return sn_ibqp(h);
	free_handle(h);
	errno = EINVAL;
	return NULL;
}

int sn_xrc_destroy_recv(struct ibv_qp *qp)
{
	struct sn_qp *h = sn_qp(qp), *q = h->behind;

	sn_lock();
	LIST_REMOVE(h, in_handles);
	if (LIST_EMPTY(&q->handles)) {
		sn_qp_end(q, qp->context);
		sn_recv_drop(q);
		sn_qp_free(q);
	}
	sn_async_settle(sn_ctx(qp->context), qp, &h->async_taken, &qp->events_completed, &qp->mutex);
	sn_xrcd_drop(h->xrcd);
	sn_unlock();
	free_handle(h);
	return 0;
}

/* ---- for the engine ---- */

void sn_qp_raise(struct sn_qp *q, enum ibv_event_type type)
{
	struct sn_qp *h;

	if (!sn_is_xrc_recv(q)) {
		sn_async_raise(sn_ctx(sn_ibqp(q)->context), type, sn_ibqp(q));
		return;
	}
	LIST_FOREACH(h, &q->handles, in_handles)
		sn_async_raise(sn_ctx(sn_ibqp(h)->context), type, sn_ibqp(h));
}

bool sn_xrc_forget(struct sn_qp *q, const struct ibv_context *c)
{
	struct sn_qp *h, *next;

	for (h = LIST_FIRST(&q->handles); h; h = next) {
		next = LIST_NEXT(h, in_handles);
		if (sn_ibqp(h)->context == c)
			LIST_REMOVE(h, in_handles);
	}
	return LIST_EMPTY(&q->handles);
}

void sn_xrcd_forget(const struct ibv_context *c)
{
	struct sn_xrcd *x, *next;

	for (x = LIST_FIRST(&opened); x; x = next) {
		next = LIST_NEXT(x, in_all);
		if (x->xrcd.context == c)
			leave(x);
	}
}
