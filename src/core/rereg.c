// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* ibv_rereg_mr of an MR with twins: these are made anew. */
#include "rkeys.h"

#include <errno.h>

static bool intact(int ret, int err)
{
	/* libibverbs gives ERR_CMD, whose meaning is "the MR is lost", for providers without rereg, too */
	if (ret == IBV_REREG_MR_ERR_CMD || ret == IBV_REREG_MR_ERR_CMD_AND_DO_FORK_NEW)
		return err == EOPNOTSUPP || err == ENOSYS;
	return ret == IBV_REREG_MR_ERR_INPUT || ret == IBV_REREG_MR_ERR_DONT_FORK_NEW;
}

static void changed(struct dp_mr_rec *r, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		r->how.kind = DP_MR_REG;
		r->how.addr = addr;
		r->how.length = length;
		r->how.iova = (uint64_t)(uintptr_t)addr;
	}
	if (flags & IBV_REREG_MR_CHANGE_ACCESS) {
		r->how.access = (unsigned int)access;
		r->m.access = access;
	}
	if (flags & IBV_REREG_MR_CHANGE_PD) {
		struct dp_pd *p = dp_pd_find(pd);

		if (p && p->c == r->m.pd->c) {
			dp_pd_settle(p, NULL);
			dp_pd_use(p);
			dp_pd_unuse(r->m.pd);
			r->m.pd = p;
		} else { /* a parent domain, say: no twins there */
			dp_fallback(DP_FB_MR_TWIN_FAILED);
			return;
		}
	}
	dp_mr_new_keys(r);
	if (r->how.kind == DP_MR_DMABUF) {
		/* the descriptor may have been closed by now, and the number be another file's */
		dp_fallback(DP_FB_MR_TWIN_FAILED);
		return;
	}
	/* no other key can be asked for here */
	dp_key_wait(r->dev, r->m.rkey, dp_now_ns() + dp_lease_bound());
	dp_mr_twins_make(r);
	dp_mr_publish(r);
}

int dp_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	const struct dp_verbs *real = dp_real_of(mr->context);
	struct dp_mr_rec *r = dp_mr_of(mr);
	struct dp_holder *h;
	uint64_t seq;
	int ret, err;

	if (!real || !real->rereg_mr) {
		errno = EOPNOTSUPP;
		return IBV_REREG_MR_ERR_INPUT;
	}
	if (!r)
		return real->rereg_mr(mr, flags, pd, addr, length, access);
	pthread_rwlock_rdlock(&dp_mr_life);
	/* The rkey may stay while the twins' keys change: nobody may hold them when it is done. */
	h = dp_mr_unpublish(r);
	if (h) {
		dp_holders_block(h, &seq);
		dp_holders_invalidate(h, 0);
		dp_holders_settled(seq, dp_now_ns() + dp_lease_bound());
	}
	ret = real->rereg_mr(mr, flags, pd, addr, length, access);
	err = errno;
	if (intact(ret, err)) {
		dp_mr_publish(r);
	} else {
		dp_mr_twins_drop(r);
		/* of an import: who registered it is not told of new keys */
		if (r->m.mr == mr && (ret == 0 || ret == IBV_REREG_MR_ERR_DO_FORK_OLD))
			changed(r, flags, pd, addr, length, access);
		else /* in case of an error only dereg_mr may follow */
			dp_fallback(DP_FB_MR_TWIN_FAILED);
	}
	errno = err;
	pthread_rwlock_unlock(&dp_mr_life);
	return ret;
}
