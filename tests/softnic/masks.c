// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* Which attributes a change of a QP's state needs, and which it may have (IBTA 11.2.5.2). */
#include "softnic.h"

#define ACCESS IBV_QP_ACCESS_FLAGS
#define MIG IBV_QP_PATH_MIG_STATE
#define ALT IBV_QP_ALT_PATH
#define CUR IBV_QP_CUR_STATE
#define RNR IBV_QP_MIN_RNR_TIMER
#define PKEY IBV_QP_PKEY_INDEX

struct change {
	enum ibv_qp_state from, to;
	/* by type: RC, UC, UD, XRC_SEND, XRC_RECV */
	struct { int must, may; } mask[5];
};

static const struct change changes[] = {
	{ IBV_QPS_RESET, IBV_QPS_INIT, {
		{ PKEY | IBV_QP_PORT | ACCESS, 0 },
		{ PKEY | IBV_QP_PORT | ACCESS, 0 },
		{ PKEY | IBV_QP_PORT | IBV_QP_QKEY, 0 },
		{ PKEY | IBV_QP_PORT | ACCESS, 0 },
		{ PKEY | IBV_QP_PORT | ACCESS, 0 } } },
	{ IBV_QPS_INIT, IBV_QPS_INIT, {
		{ 0, PKEY | IBV_QP_PORT | ACCESS },
		{ 0, PKEY | IBV_QP_PORT | ACCESS },
		{ 0, PKEY | IBV_QP_PORT | IBV_QP_QKEY },
		{ 0, PKEY | IBV_QP_PORT | ACCESS },
		{ 0, PKEY | IBV_QP_PORT | ACCESS } } },
	{ IBV_QPS_INIT, IBV_QPS_RTR, {
		{ IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | RNR,
		  ALT | ACCESS | PKEY },
		{ IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN, ALT | ACCESS | PKEY },
		{ 0, PKEY | IBV_QP_QKEY },
		{ IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN, ALT | ACCESS | PKEY },
		{ IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | RNR,
		  ALT | ACCESS | PKEY } } },
	{ IBV_QPS_RTR, IBV_QPS_RTS, {
		{ IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
		  CUR | ALT | ACCESS | RNR | MIG },
		{ IBV_QP_SQ_PSN, CUR | ALT | ACCESS | MIG },
		{ IBV_QP_SQ_PSN, CUR | IBV_QP_QKEY },
		{ IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
		  CUR | ALT | ACCESS | MIG },
		{ IBV_QP_TIMEOUT | IBV_QP_SQ_PSN, CUR | ALT | ACCESS | RNR | MIG } } },
	{ IBV_QPS_RTS, IBV_QPS_RTS, {
		{ 0, CUR | ACCESS | ALT | MIG | RNR },
		{ 0, CUR | ACCESS | ALT | MIG },
		{ 0, CUR | IBV_QP_QKEY },
		{ 0, CUR | ACCESS | ALT | MIG },
		{ 0, CUR | ACCESS | ALT | MIG | RNR } } },
	{ IBV_QPS_RTS, IBV_QPS_SQD, {
		{ 0, IBV_QP_EN_SQD_ASYNC_NOTIFY },
		{ 0, IBV_QP_EN_SQD_ASYNC_NOTIFY },
		{ 0, IBV_QP_EN_SQD_ASYNC_NOTIFY },
		{ 0, IBV_QP_EN_SQD_ASYNC_NOTIFY },
		{ 0, IBV_QP_EN_SQD_ASYNC_NOTIFY } } },
	{ IBV_QPS_SQD, IBV_QPS_RTS, {
		{ 0, CUR | ALT | ACCESS | RNR | MIG },
		{ 0, CUR | ALT | ACCESS | MIG },
		{ 0, CUR | IBV_QP_QKEY },
		{ 0, CUR | ALT | ACCESS | MIG },
		{ 0, CUR | ALT | ACCESS | RNR | MIG } } },
	{ IBV_QPS_SQD, IBV_QPS_SQD, {
		{ 0, IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		     IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC | ALT | ACCESS | PKEY | RNR | MIG },
		{ 0, IBV_QP_AV | ALT | ACCESS | PKEY | MIG },
		{ 0, PKEY | IBV_QP_QKEY },
		{ 0, IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		     IBV_QP_MAX_QP_RD_ATOMIC | ALT | ACCESS | PKEY | MIG },
		{ 0, IBV_QP_PORT | IBV_QP_AV | IBV_QP_TIMEOUT | IBV_QP_MAX_DEST_RD_ATOMIC | ALT | ACCESS | PKEY | RNR |
		     MIG } } },
	{ IBV_QPS_SQE, IBV_QPS_RTS, {
		{ -1, 0 }, /* an RC QP has no such state */
		{ 0, CUR | ACCESS },
		{ 0, CUR | IBV_QP_QKEY },
		{ -1, 0 },
		{ -1, 0 } } },
};

static int index_of(enum ibv_qp_type type)
{
	switch (type) {
	case IBV_QPT_RC:
		return 0;
	case IBV_QPT_UC:
		return 1;
	case IBV_QPT_XRC_SEND:
		return 3;
	case IBV_QPT_XRC_RECV:
		return 4;
	default:
		return 2;
	}
}

int sn_modify_mask(enum ibv_qp_type type, int mask)
{
	switch (type) {
	case IBV_QPT_XRC_SEND:
		return mask & ~(IBV_QP_MAX_DEST_RD_ATOMIC | RNR);
	case IBV_QPT_XRC_RECV:
		return mask & ~(IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY);
	default:
		return mask;
	}
}

bool sn_modify_ok(enum ibv_qp_type type, enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
	int t = index_of(type);

	/* from any state, and with nothing else */
	if (to == IBV_QPS_RESET || to == IBV_QPS_ERR)
		return !(mask & ~(IBV_QP_STATE | CUR));
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		const struct change *c = &changes[i];

		if (c->from != from || c->to != to || c->mask[t].must < 0)
			continue;
		return (mask & c->mask[t].must) == c->mask[t].must &&
		       !(mask & ~(c->mask[t].must | c->mask[t].may | IBV_QP_STATE));
	}
	return false;
}
