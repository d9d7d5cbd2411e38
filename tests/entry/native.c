// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * native TWINS: verbs that few devices have, on the fake provider (fakeprov.c). Each reaches the provider once, with the
 * program's own arguments, and what it gives reaches the program; nothing is made of it on the sibling. TWINS: how many a
 * plain region has there: 1 with the library, or this would show nothing, 0 without it.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "fakeverbs.h"
#include "verbs.h"

#define ACCESS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char mem[4096];
static unsigned int twins;

/* Since the last look verb was called once on of, so and with that result, and on the sibling as often as told. */
static void reached(struct ibv_context *of, unsigned int elsewhere, const char *verb, uint64_t ret, const uint64_t arg[6])
{
	struct fake_call calls[FAKE_CALLS], *c = NULL;
	unsigned int n = 0, others = 0;

	for (int i = 0, all = fake_calls(calls); i < all; i++) {
		if (strcmp(calls[i].verb, verb)) {
			others += calls[i].ctx != of;
		} else if (calls[i].ctx != of) {
			elsewhere--;
		} else {
			c = &calls[i];
			n++;
		}
	}
	fake_forget();
	CHECK(n == 1, "%s: %u calls", verb, n);
	CHECK(!elsewhere && !others, "%s: %u fewer on the sibling, %u of others", verb, elsewhere, others);
	if (!c)
		return;
	CHECK(c->ret == ret, "%s: 0x%llx, not 0x%llx", verb, (unsigned long long)ret, (unsigned long long)c->ret);
	for (int i = 0; i < 6; i++)
		CHECK(c->arg[i] == arg[i], "%s: argument %d is 0x%llx, not 0x%llx", verb, i + 1, (unsigned long long)c->arg[i],
		      (unsigned long long)arg[i]);
}

#define REACHED(verb, ret, ...) reached(ctx, 0, verb, ret, (const uint64_t[6]){__VA_ARGS__})
#define P FAKE_P

static void to_rts(struct ibv_qp *qp)
{
	static const enum ibv_qp_state states[] = {IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS};
	struct ibv_qp_attr attr = {.dest_qp_num = 17, .ah_attr = {.is_global = 1, .port_num = 1}};
	const int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_DEST_QPN;

	attr.ah_attr.grh.dgid.raw[10] = attr.ah_attr.grh.dgid.raw[11] = 0xff;
	attr.ah_attr.grh.dgid.raw[12] = 127;
	attr.ah_attr.grh.dgid.raw[15] = 1;
	for (int i = 0; i < 3; i++) {
		attr.qp_state = states[i];
		CHECK(!ibv_modify_qp(qp, &attr, mask), "state %d", (int)states[i]);
		REACHED("modify_qp", 0, P(qp), P(&attr), (uint64_t)mask);
	}
}

static void sends(struct ibv_qp *qp)
{
	struct ibv_sge sge = {.addr = P(mem), .length = sizeof(mem)};
	struct ibv_send_wr wr[2] = {{.opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1, .wr_id = 1}}, *bad = NULL;
	int ret;

	wr[1] = wr[0];
	wr[0].qp_type.xrc.remote_srqn = 4711;
	ret = ibv_post_send(qp, wr, &bad);
	CHECK(!ret && !bad, "%d", ret);
	REACHED("post_send", 0, P(qp), P(wr), 4711);
	wr[0].next = &wr[1];
	ret = ibv_post_send(qp, wr, &bad);
	CHECK(ret == ENOMEM && bad == &wr[1], "%d", ret);
	REACHED("post_send", ENOMEM, P(qp), P(wr), 4711);
}

static void xrc(void)
{
	struct ibv_xrcd_init_attr of_xrcd = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1};
	struct ibv_srq_init_attr_ex of_srq = {.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
							   IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
					      .srq_type = IBV_SRQT_XRC};
	struct ibv_qp_init_attr_ex recv = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
	struct ibv_qp_init_attr_ex send = {.qp_type = IBV_QPT_XRC_SEND, .send_cq = cq,
					   .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS};
	struct ibv_qp_open_attr open = {.qp_type = IBV_QPT_XRC_RECV};
	struct ibv_xrcd *x = ibv_open_xrcd(ctx, &of_xrcd);
	struct ibv_qp *qp, *opened;
	struct ibv_srq *srq;
	uint32_t num = 0;
	int ret;

	REACHED("open_xrcd", P(x), P(ctx), P(&of_xrcd), of_xrcd.comp_mask);
	of_srq.xrcd = x;
	of_srq.pd = pd;
	of_srq.cq = cq;
	srq = ibv_create_srq_ex(ctx, &of_srq);
	REACHED("create_srq_ex", P(srq), P(ctx), P(&of_srq), P(x), P(cq));
	ret = ibv_get_srq_num(srq, &num);
	CHECK(!ret && num == 4711, "%u", num);
	REACHED("get_srq_num", 0, P(srq), P(&num));

	recv.xrcd = x;
	qp = ibv_create_qp_ex(ctx, &recv);
	REACHED("create_qp_ex", P(qp), P(ctx), P(&recv), IBV_QP_INIT_ATTR_XRCD, P(x));
	to_rts(qp);
	open.qp_num = qp->qp_num;
	opened = ibv_open_qp(ctx, &open);
	REACHED("open_qp", P(opened), P(ctx), P(&open), qp->qp_num);
	to_rts(opened);
	CHECK(!ibv_destroy_qp(opened) && !ibv_destroy_qp(qp), "XRC_RECV");

	send.pd = pd;
	qp = ibv_create_qp_ex(ctx, &send);
	REACHED("create_qp_ex", P(qp), P(ctx), P(&send), send.comp_mask);
	to_rts(qp);
	sends(qp);
	CHECK(!ibv_destroy_qp(qp), "XRC_SEND");
	ret = ibv_close_xrcd(x);
	CHECK(ret == EBUSY, "%d", ret);
	REACHED("close_xrcd", EBUSY, P(x));
	free(srq);
	free(x);
}

static void device_memory(void)
{
	struct ibv_alloc_dm_attr attr = {.length = 4096, .log_align_req = 6};
	struct ibv_dm *dm = ibv_alloc_dm(ctx, &attr);
	struct ibv_mr *mr;
	int ret;

	REACHED("alloc_dm", P(dm), P(ctx), P(&attr), 4096, 6);
	mr = ibv_reg_dm_mr(pd, dm, 64, 128, ACCESS | IBV_ACCESS_ZERO_BASED);
	REACHED("reg_dm_mr", P(mr), P(pd), P(dm), 64, 128, ACCESS | IBV_ACCESS_ZERO_BASED);
	CHECK(!ibv_dereg_mr(mr), "dereg_mr");
	errno = 0;
	mr = ibv_reg_dm_mr(pd, dm, 0, 13, ACCESS);
	CHECK(!mr && errno == ERANGE, "errno %d", errno);
	REACHED("reg_dm_mr", 0, P(pd), P(dm), 0, 13, ACCESS);
	ret = ibv_memcpy_to_dm(dm, 8, mem, 16);
	CHECK(ret == EFAULT, "%d", ret);
	REACHED("memcpy_to_dm", EFAULT, P(dm), 8, P(mem), 16);
	CHECK(!ibv_free_dm(dm), "free_dm");
	REACHED("free_dm", 0, P(dm));
}

/* All of the address space, of which the sibling has a twin as of any region. */
static void implicit(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, NULL, SIZE_MAX, ACCESS | IBV_ACCESS_ON_DEMAND);

	reached(ctx, twins, "reg_mr_iova2", P(mr), (const uint64_t[6]){P(pd), 0, SIZE_MAX, 0, ACCESS | IBV_ACCESS_ON_DEMAND});
	CHECK(mr && !mr->addr && mr->length == SIZE_MAX && mr->pd == pd, "what was given");
	CHECK(!ibv_dereg_mr(mr), "dereg_mr");
}

/* Native: what an imported domain or device has is not known, and another process may give it up at any time. */
static void imported(void)
{
	struct ibv_context *own = ctx;
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq};
	struct ibv_pd *imported_pd;
	struct ibv_mr *mr;
	struct ibv_dm *dm;
	struct ibv_qp *qp;

	for (int device = 0; device < 2; device++) {
		if (device) {
			ctx = ibv_import_device(123);
			REACHED("import_device", P(ctx), 123);
		}
		imported_pd = ibv_import_pd(ctx, 5);
		REACHED("import_pd", P(imported_pd), P(ctx), 5);
		mr = ibv_reg_mr(imported_pd, mem, sizeof(mem), ACCESS);
		REACHED("reg_mr_iova2", P(mr), P(imported_pd), P(mem), sizeof(mem), P(mem), ACCESS);
		CHECK(!ibv_dereg_mr(mr), "dereg_mr");
		if (device)
			init.send_cq = init.recv_cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
		qp = ibv_create_qp(imported_pd, &init);
		REACHED("create_qp", P(qp), P(imported_pd), P(&init), IBV_QPT_RC);
		to_rts(qp);
		sends(qp);
		CHECK(!ibv_destroy_qp(qp), "destroy_qp");
		mr = ibv_import_mr(imported_pd, 6);
		REACHED("import_mr", P(mr), P(imported_pd), 6);
		ibv_unimport_mr(mr);
		REACHED("unimport_mr", 0, P(mr));
		mr = ibv_import_mr(imported_pd, 7);
		REACHED("import_mr", P(mr), P(imported_pd), 7);
		CHECK(!ibv_dereg_mr(mr), "dereg_mr");
		dm = ibv_import_dm(ctx, 8);
		REACHED("import_dm", P(dm), P(ctx), 8);
		ibv_unimport_dm(dm);
		REACHED("unimport_dm", 0, P(dm));
		ibv_unimport_pd(imported_pd);
		REACHED("unimport_pd", 0, P(imported_pd));
	}
	CHECK(!ibv_destroy_cq(init.send_cq) && !ibv_close_device(ctx), "the imported device");
	ctx = own;
}

/* What another process imported may be left to it: our struct goes, the object stays, its twins go. */
static void left_to_another(void)
{
	struct ibv_pd *own = ibv_alloc_pd(ctx);
	struct ibv_mr *mr = ibv_reg_mr(own, mem, sizeof(mem), ACCESS);
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq};
	struct ibv_qp *qp = ibv_create_qp(own, &init);
	unsigned int mrs = (unsigned int)fake_count("dereg_mr"), pds = (unsigned int)fake_count("dealloc_pd");

	fake_forget();
	ibv_unimport_mr(mr);
	REACHED("unimport_mr", 0, P(mr));
	CHECK((unsigned int)fake_count("dereg_mr") == mrs + twins, "%d", fake_count("dereg_mr"));
	ibv_unimport_pd(own);
	REACHED("unimport_pd", 0, P(own));
	/* unlike dealloc_pd, that does not fail for what is in it, whose twins need the twin as long */
	CHECK((unsigned int)fake_count("dealloc_pd") == pds, "%d", fake_count("dealloc_pd"));
	to_rts(qp);
	sends(qp);
	CHECK(!ibv_destroy_qp(qp), "destroy_qp");
	for (int ms = 0; (unsigned int)fake_count("dealloc_pd") != pds + twins && ms < 10000; ms++)
		usleep(1000); /* the control thread may be looking for its peer */
	CHECK((unsigned int)fake_count("dealloc_pd") == pds + twins, "%d", fake_count("dealloc_pd"));
}

static void ece_and_rate(void)
{
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq};
	struct ibv_qp_rate_limit_attr rate = {.rate_limit = 99};
	struct ibv_ece ece = {0}, wanted = {.vendor_id = 7, .options = 8};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	int ret;

	REACHED("create_qp", P(qp), P(pd), P(&init), IBV_QPT_RC);
	ret = ibv_query_ece(qp, &ece);
	CHECK(!ret && ece.vendor_id == 1 && ece.options == 2 && ece.comp_mask == 3, "%d", ret);
	REACHED("query_ece", 0, P(qp), P(&ece));
	ret = ibv_set_ece(qp, &wanted);
	CHECK(ret == EINVAL, "%d", ret);
	REACHED("set_ece", EINVAL, P(qp), P(&wanted), 7, 8);
	ret = ibv_modify_qp_rate_limit(qp, &rate);
	CHECK(ret == ERANGE, "%d", ret);
	REACHED("modify_qp_rate_limit", ERANGE, P(qp), P(&rate), 99);
	CHECK(!ibv_destroy_qp(qp), "destroy_qp");
}

/* Told apart by what the library says of queue pairs that it may stripe. */
static bool promises_order(struct ibv_qp *qp)
{
	return ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0);
}

/* The device's own count of completions knows nothing of siblings: such a queue pair stays native. */
static void counted(void)
{
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .send_cq = cq, .recv_cq = cq};
	struct ibv_qp_attach_comp_cntr_attr *attr = (void *)&mem[8];
	struct ibv_comp_cntr *cntr = (void *)mem;
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	int ret;

	fake_forget();
	CHECK(promises_order(qp) == !twins, "before");
	ret = ibv_qp_attach_comp_cntr(qp, NULL, attr);
	CHECK(ret == EINVAL && promises_order(qp) == !twins, "%d", ret);
	REACHED("qp_attach_comp_cntr", EINVAL, P(qp), 0, P(attr));
	ret = ibv_qp_attach_comp_cntr(qp, cntr, attr);
	CHECK(!ret && promises_order(qp), "%d", ret);
	REACHED("qp_attach_comp_cntr", 0, P(qp), P(cntr), P(attr));
	CHECK(!ibv_destroy_qp(qp), "destroy_qp");
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_mr *mr;

	twins = argc > 1 ? (unsigned int)atoi(argv[1]) : 0;
	ctx = ibv_open_device(list[0]);
	pd = ibv_alloc_pd(ctx);
	cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	fake_forget();
	mr = ibv_reg_mr(pd, mem, sizeof(mem), ACCESS);
	reached(ctx, twins, "reg_mr_iova2", P(mr), (const uint64_t[6]){P(pd), P(mem), sizeof(mem), P(mem), ACCESS});
	CHECK(!ibv_dereg_mr(mr), "dereg_mr");
	xrc();
	device_memory();
	implicit();
	imported();
	left_to_another();
	ece_and_rate();
	counted();
	CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx), "the end");
	ibv_free_device_list(list);
	return failures ? 1 : 0;
}
