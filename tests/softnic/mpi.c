// SPDX-License-Identifier: GPL-2.0-only OR Linux-OpenIB
/* A ring of messages from 8 bytes to 1 MiB, each byte checked, then puts and a sum. Built by others.sh, if there is an MPI. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned char *a, *b;
static int rank, ranks;

static unsigned char byte(int from, int round, int i)
{
	return (unsigned char)(from * 31 + round * 7 + i);
}

static void check(int from, int round, int n)
{
	for (int i = 0; i < n; i++)
		if (b[i] != byte(from, round, i)) {
			fprintf(stderr, "rank %d, round %d of %d bytes: byte %d is wrong\n", rank, round, n, i);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
}

int main(int argc, char **argv)
{
	const int max = 1 << 20;
	long bytes = 0, sum;
	MPI_Win win;
	int prev, next;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	prev = (rank + ranks - 1) % ranks;
	next = (rank + 1) % ranks;
	a = malloc((size_t)max);
	MPI_Win_allocate(max, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &b, &win);
	if (!a || ranks < 2)
		MPI_Abort(MPI_COMM_WORLD, 1);
	for (int n = 8; n <= max; n *= 8 - 4 * (n >= max / 4))
		for (int round = 0; round < 10; round++) {
			for (int i = 0; i < n; i++)
				a[i] = byte(rank, round, i);
			MPI_Sendrecv(a, n, MPI_BYTE, next, round, b, n, MPI_BYTE, prev, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			check(prev, round, n);
			for (int i = 0; i < n; i++)
				a[i] = byte(rank, round + 1, i);
			MPI_Win_fence(0, win);
			MPI_Put(a, n, MPI_BYTE, next, 0, n, MPI_BYTE, win);
			MPI_Win_fence(0, win);
			check(prev, round + 1, n);
			bytes += 2 * n;
		}
	MPI_Allreduce(&bytes, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	if (!rank)
		printf("sum %ld\n", sum);
	MPI_Win_free(&win);
	free(a);
	MPI_Finalize();
	return 0;
}
