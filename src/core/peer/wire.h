/* SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB */
/*
 * Bounds-checked building and reading of message payloads, big-endian. A reader or writer that ran over its
 * buffer stays "bad": reads give zeroes, writes nothing; check once at the end.
 */
#ifndef DUALPORT_WIRE_H
#define DUALPORT_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct dp_wbuf {
	uint8_t *p;
	size_t len, cap;
	bool bad;
};
struct dp_rbuf {
	const uint8_t *p;
	size_t len;
	bool bad;
};

static inline void dp_put(struct dp_wbuf *b, const void *data, size_t len)
{
	if (b->bad || b->cap - b->len < len) {
		b->bad = true;
		return;
	}
	memcpy(b->p + b->len, data, len);
	b->len += len;
}

static inline void dp_put_be(struct dp_wbuf *b, uint64_t v, unsigned bytes)
{
	uint8_t t[8];

	for (unsigned i = 0; i < bytes; i++)
		t[i] = (uint8_t)(v >> (8 * (bytes - 1 - i)));
	dp_put(b, t, bytes);
}
static inline void dp_put8(struct dp_wbuf *b, uint8_t v) { dp_put_be(b, v, 1); }
static inline void dp_put16(struct dp_wbuf *b, uint16_t v) { dp_put_be(b, v, 2); }
static inline void dp_put32(struct dp_wbuf *b, uint32_t v) { dp_put_be(b, v, 4); }
static inline void dp_put64(struct dp_wbuf *b, uint64_t v) { dp_put_be(b, v, 8); }

static inline void dp_get(struct dp_rbuf *b, void *data, size_t len)
{
	if (b->bad || b->len < len) {
		b->bad = true;
		memset(data, 0, len);
		return;
	}
	memcpy(data, b->p, len);
	b->p += len;
	b->len -= len;
}

static inline uint64_t dp_get_be(struct dp_rbuf *b, unsigned bytes)
{
	uint8_t t[8];
	uint64_t v = 0;

	dp_get(b, t, bytes);
	for (unsigned i = 0; i < bytes; i++)
		v = v << 8 | t[i];
	return v;
}
static inline uint8_t dp_get8(struct dp_rbuf *b) { return (uint8_t)dp_get_be(b, 1); }
static inline uint16_t dp_get16(struct dp_rbuf *b) { return (uint16_t)dp_get_be(b, 2); }
static inline uint32_t dp_get32(struct dp_rbuf *b) { return (uint32_t)dp_get_be(b, 4); }
static inline uint64_t dp_get64(struct dp_rbuf *b) { return dp_get_be(b, 8); }
/* All read, nothing left over, nothing missing? */
static inline bool dp_rbuf_whole(const struct dp_rbuf *b) { return !b->bad && b->len == 0; }

#endif
