// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Authentication with a shared secret, by libsodium. Each connection and direction has a key of its own, derived from
 * the secret and both greetings whole (nonces, instance ids, everything), so a message of another connection, of the
 * other direction, or after a changed greeting does not verify; the sequence number in each frame's header
 * is covered too, so neither does a replayed or reordered one. Contents are not hidden.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <sodium.h>
#include "internal.h"

#define SECRET_MIN 16
#define SECRET_MAX 4096

int dp_random(void *p, size_t len)
{
	uint8_t *at = p;

	while (len) {
		ssize_t n = getrandom(at, len, 0);

		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0) {
			at += n;
			len -= (size_t)n;
		}
	}
	return 0;
}

void dp_auth_wipe(void *p, size_t len)
{
	sodium_memzero(p, len);
}

int dp_auth_load(struct dp_auth *a, const char *path)
{
	uint8_t secret[SECRET_MAX + 1];
	const char *why = NULL;
	struct stat st;
	ssize_t len;
	int fd, err = -EACCES;

	a->on = false;
	if (!path[0])
		return 0;
	if (sodium_init() < 0) {
		dp_warn("peering is off: libsodium cannot be initialised");
		return -ENOSYS;
	}
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 || fstat(fd, &st)) {
		err = -errno;
		dp_warn("peering is off: secret file %s: %s", path, strerror(-err));
		goto out;
	}
	len = S_ISREG(st.st_mode) ? read(fd, secret, sizeof(secret)) : -1;
	while (len > 0 && (secret[len - 1] == '\n' || secret[len - 1] == '\r'))
		len--;
	if (len < 0)
		why = "cannot be read as a file";
	else if (st.st_uid != geteuid())
		why = "belongs to another user";
	else if (st.st_mode & 077)
		why = "is open to others than its owner (chmod 600)";
	else if (len < SECRET_MIN || len > SECRET_MAX)
		why = "must hold 16 to 4096 bytes";
	if (why) {
		dp_warn("peering is off: secret file %s %s", path, why);
		goto out;
	}
	crypto_generichash(a->key, sizeof(a->key), secret, (size_t)len, NULL, 0);
	a->on = true;
	err = 0;
out:
	sodium_memzero(secret, sizeof(secret));
	if (fd >= 0)
		close(fd);
	return err;
}

static void derive(const uint8_t *key, uint8_t out[32], const char *label, const uint8_t *i, const uint8_t *a)
{
	crypto_generichash_state st;

	crypto_generichash_init(&st, key, 32, 32);
	crypto_generichash_update(&st, (const uint8_t *)label, strlen(label));
	crypto_generichash_update(&st, i, DP_HELLO_LEN);
	crypto_generichash_update(&st, a, DP_HELLO_LEN);
	crypto_generichash_final(&st, out, 32);
	sodium_memzero(&st, sizeof(st));
}

void dp_auth_derive(const struct dp_auth *auth, struct dp_keys *k, const uint8_t *i, const uint8_t *a, bool initiator)
{
	derive(auth->key, initiator ? k->tx : k->rx, "dualport 1 initiator", i, a);
	derive(auth->key, initiator ? k->rx : k->tx, "dualport 1 acceptor", i, a);
}

void dp_auth_mac(const uint8_t key[32], const uint8_t *frame, size_t len, uint8_t mac[DP_MAC_LEN])
{
	crypto_generichash(mac, DP_MAC_LEN, frame, len, key, 32);
}

bool dp_auth_check(const uint8_t key[32], const uint8_t *frame, size_t len, const uint8_t mac[DP_MAC_LEN])
{
	uint8_t good[DP_MAC_LEN];

	dp_auth_mac(key, frame, len, good);
	return !sodium_memcmp(good, mac, DP_MAC_LEN);
}
