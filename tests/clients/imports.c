// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * A device, a domain and a region of this process once more, imported by the device's file and their numbers in it, beside a
 * pair on the originals that is bonded. As text, which must be the same natively and with the library.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "mini.h"

#define BIG (256u << 10)
#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)
static struct mend_want want = { .len = 4 * BIG, .depth = 64, .sge = 2, .recvs = 4 };
static struct mini m = { .name = "imports", .timeout_s = 100 };
static struct mend a, b;
/* another pair on the same devices and memory: its first end is on what was imported */
static struct mend ia, ib;
static uint64_t last;

static const char *text(int err)
{
	return err ? strerror(err) : "ok";
}

static bool made(const char *what, const void *p)
{
	printf("  %s: %s\n", what, p ? "made" : strerror(errno));
	return p;
}

static struct ibv_mr *reg(struct ibv_pd *pd, void *addr)
{
	struct ibv_mr *mr = vb.reg_mr(pd, addr, BIG, ACCESS);

	CHECK(mr, "reg_mr: %s", strerror(errno));
	return mr;
}

/* From the lower half to the upper one, of which rkey is; a completion is there, with this status, before it returns. */
static void bulk_status(struct mend *from, struct mend *to, uint32_t rkey, enum ibv_wc_status status)
{
	static uint8_t wanted[BIG];
	struct mwr w = { .op = IBV_WR_RDMA_WRITE, .len = BIG, .raddr = (uintptr_t)to->buf + 2 * BIG, .rkey = rkey,
			 .flags = IBV_SEND_SIGNALED, .id = ++last };
	struct ibv_wc wc = { 0 };

	pattern_fill(from->buf, last, 0, BIG);
	CHECK(!mend_post(from, &w), "post %llu", (unsigned long long)last);
	CHECK(rc_poll_one(from->cq, &wc, 10000) == 1, "no completion of %llu", (unsigned long long)last);
	CHECK(wc.wr_id == last && wc.status == status && wc.qp_num == from->qp->qp_num, "completion of %llu: %s",
	      (unsigned long long)last, vb.wc_status_str(wc.status));
	if (status)
		return;
	pattern_fill(wanted, last, 0, BIG);
	CHECK(!memcmp(to->buf + 2 * BIG, wanted, BIG), "data of %llu", (unsigned long long)last);
}

static void bulk(struct mend *from, struct mend *to, uint32_t rkey)
{
	bulk_status(from, to, rkey, IBV_WC_SUCCESS);
}

static void both_ways(unsigned int n, struct mend *x, struct mend *y)
{
	while (n--) {
		bulk(x, y, b.mr->rkey);
		bulk(y, x, a.mr->rkey);
	}
}

static void join(struct mend *x, struct mend *y)
{
	int err = mend_join(x, y, NULL);

	CHECK(!err, "join: %s", strerror(-err));
	mini_nap(m.settle_ms);
}

static bool import(void)
{
	int fd = dup(a.dev.ctx->cmd_fd);

	ia = a;
	ib = b;
	ia.qp = ib.qp = NULL;
	ia.cq = ib.cq = NULL;
	errno = 0;
	ia.dev.ctx = ibv_import_device(fd);
	if (!made("import_device", ia.dev.ctx)) {
		close(fd);
		return false;
	}
	printf("  the same device %d\n", ia.dev.ctx != a.dev.ctx && ia.dev.ctx->device == a.dev.ctx->device);
	errno = 0;
	if (!made("import_pd", ibv_import_pd(ia.dev.ctx, 0x7fffff)))
		errno = 0;
	ia.dev.pd = ibv_import_pd(ia.dev.ctx, a.dev.pd->handle);
	if (!made("import_pd", ia.dev.pd))
		goto close;
	errno = 0;
	made("import_mr", ibv_import_mr(ia.dev.pd, 0x7fffff));
	ia.mr = ibv_import_mr(ia.dev.pd, a.mr->handle);
	if (!made("import_mr", ia.mr))
		goto unimport;
	printf("  the same keys %d, length %d\n", ia.mr->lkey == a.mr->lkey && ia.mr->rkey == a.mr->rkey,
	       ia.mr->length == a.mr->length);
	return true;

unimport:
	ibv_unimport_pd(ia.dev.pd);
close:
	printf("  close: %s\n", text(vb.close_device(ia.dev.ctx)));
	return false;
}

static void other_pair(void)
{
	struct mend *e[2] = { &ia, &ib };

	for (int i = 0; i < 2; i++) {
		e[i]->psn += 77;
		e[i]->cq = vb.create_cq(e[i]->dev.ctx, 128, NULL, NULL, 0);
		CHECK(e[i]->cq && !mend_new_qp(e[i], &want), "create: %s", strerror(errno));
	}
	join(&ia, &ib);
}

static void no_other_pair(void)
{
	CHECK(!vb.destroy_qp(ia.qp) && !vb.destroy_qp(ib.qp) && !vb.destroy_cq(ia.cq) && !vb.destroy_cq(ib.cq), "destroy");
	ia.qp = ib.qp = NULL;
}

/* Whoever deregisters what it imported ends the region for all. */
static void ended_by_the_import(void)
{
	/* the struct is nobody's then */
	static struct ibv_mr *of;
	struct ibv_mr *mr;

	of = reg(a.dev.pd, a.buf + 2 * BIG);
	mr = ibv_import_mr(ia.dev.pd, of->handle);
	CHECK(mr, "import_mr: %s", strerror(errno));
	for (int i = 0; i < 4; i++) {
		bulk(&b, &a, of->rkey);
		mini_nap(2);
	}
	printf("  dereg of what was imported: %s\n", text(vb.dereg_mr(mr)));
	memset(a.buf + 2 * BIG, 0, BIG);
	bulk_status(&b, &a, of->rkey, IBV_WC_REM_ACCESS_ERR);
	for (size_t i = 0; i < BIG; i++) {
		if (a.buf[2 * BIG + i]) {
			printf("  written although it is gone\n");
			break;
		}
	}
	printf("  dereg of the original: %s\n", text(vb.dereg_mr(of)));
	CHECK(!mend_new_qp(&a, &want) && !mend_new_qp(&b, &want), "create_qp");
	join(&a, &b);
	both_ways(4, &a, &b);
}

static void imports(void)
{
	struct ibv_mr *mr;

	join(&a, &b);
	both_ways(4, &a, &b);
	if (!import())
		return;
	other_pair();
	for (int i = 0; i < 8; i++) {
		both_ways(1, &ia, &ib);
		both_ways(1, &a, &b);
		/* the one's peer writes by the key that the other registered */
		bulk(&ib, &ia, ia.mr->rkey);
	}
	mr = reg(ia.dev.pd, a.buf + 2 * BIG);
	for (int i = 0; i < 4; i++) {
		bulk(&ib, &ia, mr->rkey);
		/* of one domain */
		bulk(&b, &a, mr->rkey);
	}
	printf("  dereg: %s\n", text(vb.dereg_mr(mr)));
	ended_by_the_import();
	printf("  dealloc_pd: %s\n", text(vb.dealloc_pd(ia.dev.pd)));
	ibv_unimport_mr(ia.mr);
	ia.mr = a.mr;
	both_ways(4, &ia, &ib);
	/* a domain may go before what is in it */
	ibv_unimport_pd(ia.dev.pd);
	both_ways(4, &ia, &ib);
	both_ways(4, &a, &b);
	no_other_pair();
	printf("  close: %s\n", text(vb.close_device(ia.dev.ctx)));
	both_ways(4, &a, &b);
}

int main(int argc, char **argv)
{
	mini_start(&m, argc, argv, "objects that were imported");
	if (mend_open(&a, &m, m.dev, &want) || mend_open(&b, &m, m.peer_dev, &want))
		return 2;
	imports();
	mend_close(&a);
	mend_close(&b);
	fprintf(stderr, "failed %u\n", mini_failed);
	return mini_failed != 0;
}
