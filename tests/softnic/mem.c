// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Keys. Each device counts its own from the same number on, so that devices hand out the same keys; a key that was
 * dropped last is handed out first. The low byte tells lkeys from rkeys.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "place.h"

#define KEY_FIRST 16u
#define KEYS_MAX 0xffffffu
#define LKEY_TAG 0x1au
#define RKEY_TAG 0x5eu

struct keys {
	struct sn_mr **mrs;
	uint32_t *unused;	/* stack */
	uint32_t nunused, used, size;
};

static struct keys keys[SN_DEVS];

static int grow(struct keys *k)
{
	uint32_t size = k->size ? 2 * k->size : 64;
	struct sn_mr **mrs;
	uint32_t *unused;

	if (size > KEYS_MAX - KEY_FIRST)
		return -ENOMEM;
	mrs = realloc(k->mrs, size * sizeof(*mrs));
	if (!mrs)
		return -ENOMEM;
	k->mrs = mrs;
	unused = realloc(k->unused, size * sizeof(*unused));
	if (!unused)
		return -ENOMEM;
	k->unused = unused;
	k->size = size;
	return 0;
}

int sn_key_add(uint32_t dev, struct sn_mr *mr)
{
	struct keys *k = &keys[dev];
	uint32_t i;
	int ret;

	if (k->nunused) {
		i = k->unused[--k->nunused];
	} else {
		ret = k->used == k->size ? grow(k) : 0;
		if (ret)
			return ret;
		i = k->used++;
	}
	k->mrs[i] = mr;
	mr->mr.lkey = (KEY_FIRST + i) << 8 | LKEY_TAG;
	mr->mr.rkey = (KEY_FIRST + i) << 8 | RKEY_TAG;
	mr->rtag = RKEY_TAG;
	mr->mr.handle = i;
	return 0;
}

void sn_key_drop(uint32_t dev, struct sn_mr *mr)
{
	struct keys *k = &keys[dev];

	sn_place_all();
	k->mrs[mr->mr.handle] = NULL;
	k->unused[k->nunused++] = mr->mr.handle;
}

void sn_keys_after_fork(void)
{
	memset(keys, 0, sizeof(keys));
}

struct sn_mr *sn_find_handle(uint32_t dev, uint32_t handle)
{
	struct keys *k = &keys[dev];

	return handle < k->used ? k->mrs[handle] : NULL;
}

struct sn_mr *sn_find_key(uint32_t dev, uint32_t key)
{
	return sn_find_handle(dev, (key >> 8) - KEY_FIRST);
}

struct sn_mr *sn_find_rkey(uint32_t dev, uint32_t rkey)
{
	struct sn_mr *mr = sn_find_key(dev, rkey);

	return mr && (rkey & 0xff) == mr->rtag ? mr : NULL;
}

static bool inside(const struct sn_mr *mr, uint64_t addr, uint32_t len, struct sn_span *span)
{
	if (addr < mr->iova || addr - mr->iova > mr->mr.length || len > mr->mr.length - (addr - mr->iova))
		return false;
	span->ops = mr->ops;
	span->mr = mr;
	span->addr = mr->at + (addr - mr->iova);
	/* the fault that nobody can serve */
	return !(mr->access & IBV_ACCESS_ON_DEMAND) || sn_is_mapped((void *)(uintptr_t)span->addr, len);
}

enum ibv_wc_status sn_local(uint32_t dev, const struct sn_pd *pd, uint32_t lkey, uint64_t addr, uint32_t len,
			    bool write, struct sn_span *span)
{
	struct sn_mr *mr = sn_find_key(dev, lkey);

	if (!mr || mr->window || (lkey & 0xff) != LKEY_TAG || mr->pd != pd ||
	    (write && !(mr->access & IBV_ACCESS_LOCAL_WRITE)) || !inside(mr, addr, len, span))
		return IBV_WC_LOC_PROT_ERR;
	return IBV_WC_SUCCESS;
}

bool sn_remote(struct sn_qp *q, uint32_t rkey, uint64_t addr, uint32_t len, unsigned int access, struct sn_span *span)
{
	struct sn_mr *mr = sn_find_rkey(q->dev, rkey);

	return mr && mr->pd == q->pd && (!mr->only || mr->only == q->serial) && (mr->access & access) &&
	       inside(mr, addr, len, span);
}

static enum ibv_wc_status walk(struct sn_qp *q, const struct sn_pd *pd, const struct ibv_sge *sge, int nsge,
			       uint32_t off, uint8_t *buf, uint32_t len, bool write)
{
	for (int i = 0; i < nsge && len; i++) {
		struct sn_span span;
		uint32_t n = sge[i].length;
		enum ibv_wc_status st;

		if (off >= n) {
			off -= n;
			continue;
		}
		n = n - off < len ? n - off : len;
		st = sn_local(q->dev, pd, sge[i].lkey, sge[i].addr + off, n, write, &span);
		if (st)
			return st;
		if (write) {
			sn_place_push(q->dev);
			span.ops->write(span.addr, buf, n);
		} else {
			sn_place_push_region(q->dev, &span);
			span.ops->read(buf, span.addr, n);
		}
		buf += n;
		len -= n;
		off = 0;
	}
	return len ? IBV_WC_LOC_LEN_ERR : IBV_WC_SUCCESS;
}

enum ibv_wc_status sn_scatter(struct sn_qp *q, const struct sn_pd *pd, const struct ibv_sge *sge, int nsge,
			      uint32_t off, const void *from, uint32_t len)
{
	return walk(q, pd, sge, nsge, off, (uint8_t *)from, len, true);
}

enum ibv_wc_status sn_gather(struct sn_qp *q, const struct ibv_sge *sge, int nsge, uint32_t off, void *to, uint32_t len)
{
	return walk(q, q->pd, sge, nsge, off, to, len, false);
}

/*
 * A device's accesses are no program's: ThreadSanitizer must not see them, or a program that looks at its memory while
 * a device writes there would be at fault.
 */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TSAN 1
#endif
#elif defined(__SANITIZE_THREAD__)
#define TSAN 1
#endif
#ifdef TSAN
#define DEVICE __attribute__((no_sanitize("thread"), noinline))

/* memcpy() would be seen */
DEVICE static void copy(void *to, const void *from, size_t n)
{
	const volatile uint8_t *f = from;
	volatile uint8_t *t = to;

	for (size_t i = 0; i < n; i++)
		t[i] = f[i];
}
#else
#define DEVICE
#define copy memcpy
#endif

DEVICE static void host_read(void *to, uint64_t from, size_t n)
{
	copy(to, (const void *)(uintptr_t)from, n);
}

/*
 * A word that the program polls must not be seen torn, and not before what was written ahead of it: release orders it
 * behind the copies of the packets before.
 */
DEVICE static void host_write(uint64_t to, const void *from, size_t n)
{
	void *p = (void *)(uintptr_t)to;
	uint64_t v8;
	uint32_t v4;

	if (n == 8 && !(to & 7)) {
		copy(&v8, from, 8);
		__atomic_store_n((uint64_t *)p, v8, __ATOMIC_RELEASE);
	} else if (n == 4 && !(to & 3)) {
		copy(&v4, from, 4);
		__atomic_store_n((uint32_t *)p, v4, __ATOMIC_RELEASE);
	} else {
		copy(p, from, n);
	}
}

DEVICE static uint64_t host_compare_swap(uint64_t at, uint64_t compare, uint64_t swap)
{
	uint64_t *word = (uint64_t *)(uintptr_t)at;

	__atomic_compare_exchange_n(word, &compare, swap, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	return compare;
}

DEVICE static uint64_t host_fetch_add(uint64_t at, uint64_t add)
{
	return __atomic_fetch_add((uint64_t *)(uintptr_t)at, add, __ATOMIC_ACQ_REL);
}

const struct sn_mem_ops sn_host_memory = { host_read, host_write, host_compare_swap, host_fetch_add };
