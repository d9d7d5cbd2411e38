// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/*
 * Bonds of ports: what libmlx5 offers for them, refused as there. A queue pair is on one of the ports from INIT on, which
 * one the device chooses; at RTS, and only then, it can be told. libmlx5 says of no port but the first two where they are.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine.h"

int mlx5dv_query_qp_lag_port(struct ibv_qp *qp, uint8_t *port, uint8_t *active);
int mlx5dv_modify_qp_lag_port(struct ibv_qp *qp, uint8_t port);

__attribute__((visibility("default"))) int mlx5dv_query_qp_lag_port(struct ibv_qp *qp, uint8_t *port, uint8_t *active)
{
	struct sn_qp *q = sn_qp_behind(qp);
	int ret = 0;

	sn_lock();
	if (sn_shared->devs[q->dev].lag < 2 || !q->lag || q->lag > 2)
		ret = EOPNOTSUPP;
	else
		*port = *active = q->lag;
	sn_unlock();
	return ret;
}

__attribute__((visibility("default"))) int mlx5dv_modify_qp_lag_port(struct ibv_qp *qp, uint8_t port)
{
	struct sn_qp *q = sn_qp_behind(qp);
	uint8_t now, active;
	int ret = mlx5dv_query_qp_lag_port(qp, &now, &active);

	if (ret)
		return ret;
	sn_lock();
	if (q->state != IBV_QPS_RTS)
		ret = EOPNOTSUPP;
	else if (!port || port > sn_shared->devs[q->dev].lag)
		ret = EINVAL;
	else
		q->lag = port;
	sn_unlock();
	return ret;
}

/* Each process that ends leaves what all have sent so far. */
__attribute__((destructor)) static void count(void)
{
	const char *path = getenv("SOFTNIC_COUNTERS");
	char new[4096 + 32];
	char sep = '{';
	FILE *f;

	if (!path || !*path || !sn_shared ||
	    snprintf(new, sizeof(new), "%s.%d", path, (int)getpid()) >= (int)sizeof(new))
		return;
	f = fopen(new, "we");
	if (!f)
		return;
	for (uint32_t i = 0; i < sn_shared->ndevs; i++) {
		const struct sn_dev *d = &sn_shared->devs[i];

		for (uint32_t k = 0; k < (d->lag ? d->lag : 1); k++) {
			fprintf(f, "%c\"%s:1", sep, d->name);
			if (d->lag)
				fprintf(f, "::%u", k + 1);
			fprintf(f, "\":%llu", (unsigned long long)atomic_load(&d->port.tx_bytes[k]));
			sep = ',';
		}
	}
	fprintf(f, "}\n");
	if (fclose(f) || rename(new, path))
		unlink(new);
}
