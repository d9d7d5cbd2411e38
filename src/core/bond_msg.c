// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
#include "bond_msg.h"
#include "group.h"
#include "peer/wire.h"

#include <errno.h>

static void put_twin(struct dp_wbuf *b, const struct dp_twin_info *t)
{
	dp_put(b, &t->gid, sizeof(t->gid));
	dp_put16(b, t->lid);
	dp_put8(b, t->link_layer);
	dp_put8(b, t->mtu);
	dp_put32(b, t->qpn);
	dp_put32(b, t->psn);
	dp_put8(b, t->rd_atomic);
	dp_put8(b, t->access);
	dp_put8(b, t->sib_idx);
	dp_put64(b, t->upstream);
	dp_put(b, t->text, sizeof(t->text));
}

/* Names that a peer gives go into lines, tables and files. */
static void get_text(struct dp_rbuf *b, char *text, size_t len)
{
	dp_get(b, text, len);
	text[len - 1] = '\0';
	dp_printable(text);
}

static void get_twin(struct dp_rbuf *b, struct dp_twin_info *t)
{
	dp_get(b, &t->gid, sizeof(t->gid));
	t->lid = dp_get16(b);
	t->link_layer = dp_get8(b);
	t->mtu = dp_get8(b);
	t->qpn = dp_get32(b);
	t->psn = dp_get32(b);
	t->rd_atomic = dp_get8(b);
	t->access = dp_get8(b);
	t->sib_idx = dp_get8(b);
	t->upstream = dp_get64(b);
	get_text(b, t->text, sizeof(t->text));
}

int dp_bond_send(struct dp_peer *peer, enum dp_bond_type type, const struct dp_bond_msg *m)
{
	uint8_t buf[8192];
	struct dp_wbuf b = { .p = buf, .cap = sizeof(buf) };

	dp_put(&b, &m->src_gid, sizeof(m->src_gid));
	dp_put(&b, &m->dst_gid, sizeof(m->dst_gid));
	dp_put32(&b, m->src_qpn);
	dp_put32(&b, m->dst_qpn);
	dp_put32(&b, m->src_incarnation);
	dp_put32(&b, m->dst_incarnation);
	switch (type) {
	case DP_BOND_ASK:
		dp_put8(&b, m->reply);
		break;
	case DP_BOND_OFFER:
	case DP_BOND_ACCEPT:
		dp_put32(&b, m->pd_id);
		dp_put64(&b, m->upstream);
		dp_put(&b, m->port, sizeof(m->port));
		dp_put32(&b, m->nrails);
		dp_put8(&b, m->flush);
		for (uint32_t i = 0; i < m->nrails; i++)
			put_twin(&b, &m->rail[i]);
		put_twin(&b, &m->spare);
		break;
	case DP_BOND_CONNECTED:
		put_twin(&b, &m->spare);
		break;
	case DP_BOND_SPARE:
		dp_put32(&b, m->round);
		dp_put8(&b, m->ready);
		put_twin(&b, &m->spare);
		break;
	case DP_BOND_NO:
		dp_put(&b, m->text, sizeof(m->text));
		break;
	default:
		break;
	}
	return b.bad ? -EMSGSIZE : dp_peer_send(peer, (uint16_t)type, buf, b.len);
}

static bool twin_sane(const struct dp_twin_info *t)
{
	return t->qpn <= 0xffffff && t->psn <= 0xffffff && t->mtu <= IBV_MTU_4096 && (!t->qpn || t->rd_atomic);
}

bool dp_bond_parse(enum dp_bond_type type, const uint8_t *data, size_t len, struct dp_bond_msg *m)
{
	struct dp_rbuf b = { .p = data, .len = len };

	memset(m, 0, sizeof(*m));
	dp_get(&b, &m->src_gid, sizeof(m->src_gid));
	dp_get(&b, &m->dst_gid, sizeof(m->dst_gid));
	m->src_qpn = dp_get32(&b);
	m->dst_qpn = dp_get32(&b);
	m->src_incarnation = dp_get32(&b);
	m->dst_incarnation = dp_get32(&b);
	switch (type) {
	case DP_BOND_ASK:
		m->reply = dp_get8(&b);
		break;
	case DP_BOND_OFFER:
	case DP_BOND_ACCEPT:
		m->pd_id = dp_get32(&b);
		m->upstream = dp_get64(&b);
		get_text(&b, m->port, sizeof(m->port));
		m->nrails = dp_get32(&b);
		if (m->nrails >= DP_MAX_RAILS)
			return false;
		m->flush = dp_get8(&b);
		if (m->flush > DP_FLUSH_READ)
			return false;
		for (uint32_t i = 0; i < m->nrails; i++) {
			get_twin(&b, &m->rail[i]);
			if (!twin_sane(&m->rail[i]))
				return false;
		}
		get_twin(&b, &m->spare);
		if (!twin_sane(&m->spare))
			return false;
		break;
	case DP_BOND_SPARE:
		m->round = dp_get32(&b);
		m->ready = dp_get8(&b);
		get_twin(&b, &m->spare);
		if (!twin_sane(&m->spare))
			return false;
		break;
	case DP_BOND_CONNECTED:
		get_twin(&b, &m->spare);
		if (!twin_sane(&m->spare))
			return false;
		break;
	case DP_BOND_NO:
		get_text(&b, m->text, sizeof(m->text));
		break;
	default:
		break;
	}
	return dp_rbuf_whole(&b);
}
