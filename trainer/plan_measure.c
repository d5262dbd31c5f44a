/* `plan --measure` under mpirun: what the network gives two ranks. */
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "trainer/plan.h"

enum { PINGS = 200, PING_BYTES = 8, BULK_BYTES = 1 << 20, BULK_MESSAGES = 4, MOST_BULKS = 6 };

/* Half of a round trip, in microseconds: the least of many. */
static double ping_us(struct occ_comm *c, int peer, int first, char *buffer)
{
	double least = 1e12;
	for (int i = 0; i < PINGS; i++) {
		struct occ_req s = {0}, r = {0};
		double begin = occ_clock_ms();
		occ_comm_post_recv(c, buffer, PING_BYTES, peer, OCC_TAG_TEST, &r);
		if (!first)
			occ_comm_wait(c, &r);
		occ_comm_post_send(c, buffer + PING_BYTES, PING_BYTES, peer, OCC_TAG_TEST, &s);
		occ_comm_wait(c, &s);
		occ_comm_wait(c, &r);
		double t = 0.5e3 * (occ_clock_ms() - begin);
		least = t < least ? t : least;
	}
	return least;
}

/* GB/s each way while both send, the rate of the last and longest exchange. */
static double bulk_gbytes(struct occ_comm *c, int peer, char *buffer)
{
	double rate = 0;
	for (int n = 1, i = 0; i < MOST_BULKS; i++, n *= 2) {
		struct occ_req s[BULK_MESSAGES] = {0}, r[BULK_MESSAGES] = {0};
		size_t bytes = (size_t)BULK_BYTES / 32 * (size_t)n;
		double begin = occ_clock_ms();
		for (int k = 0; k < BULK_MESSAGES; k++)
			occ_comm_post_recv(c, buffer + (size_t)k * BULK_BYTES, bytes, peer,
					   OCC_TAG_TEST, &r[k]);
		for (int k = 0; k < BULK_MESSAGES; k++)
			occ_comm_post_send(c, buffer + (size_t)(BULK_MESSAGES + k) * BULK_BYTES,
					   bytes, peer, OCC_TAG_TEST, &s[k]);
		for (int k = 0; k < BULK_MESSAGES; k++) {
			occ_comm_wait(c, &r[k]);
			occ_comm_wait(c, &s[k]);
		}
		rate = 1e-6 * (double)bytes * BULK_MESSAGES / (occ_clock_ms() - begin);
	}
	return rate;
}

/* Rank 0 with `peer`, the others idle. rates: GB/s, us; rank 0's are everybody's. */
static void measure_pair(struct occ_comm *world, int peer, double *gbytes, double *us)
{
	char *buffer = occ_alloc(2 * BULK_MESSAGES, BULK_BYTES);
	double v[2] = {0, 0};
	int other = world->rank == 0 ? peer : 0;
	occ_comm_barrier(world);
	if (world->rank == 0 || world->rank == peer) {
		v[0] = ping_us(world, other, world->rank == 0, buffer);
		v[1] = bulk_gbytes(world, other, buffer);
	}
	occ_comm_bcast(world, v, sizeof(v), 0);
	*us = v[0];
	*gbytes = v[1];
	occ_free(buffer);
}

/* The first rank that is, or is not, on rank 0's node; -1 if there is none. */
static int find_peer(const int *node_of, int n, int same)
{
	for (int r = 1; r < n; r++)
		if ((node_of[r] == node_of[0]) == same)
			return r;
	return -1;
}

void occ_plan_measure_net(struct occ_plan *p, struct occ_comm *world)
{
	int *node_of = occ_alloc((size_t)world->size, sizeof(*node_of));
	occ_comm_nodes(world, 0, node_of);
	int near = find_peer(node_of, world->size, 1), far = find_peer(node_of, world->size, 0);
	if (near > 0)
		measure_pair(world, near, &p->hw.inside.gbytes_per_s, &p->hw.inside.latency_us);
	if (far > 0)
		measure_pair(world, far, &p->hw.node.gbytes_per_s, &p->hw.node.latency_us);
	int here = 0;
	for (int r = 0; r < world->size; r++)
		here += node_of[r] == node_of[0];
	if (p->hw.node.ranks == 0 && here < world->size)
		p->hw.node.ranks = here;
	p->measured = world->size > 1 ? 2 : 1;
	occ_free(node_of);
}

/* Ranks that wait in MPI would take the cores of the one that measures. */
void occ_plan_measured(struct occ_comm *world)
{
	struct occ_req r = {0};
	char word = 0;
	for (int k = 1; k < world->size && world->rank == 0; k++) {
		occ_comm_post_send(world, &word, 1, k, OCC_TAG_TEST, &r);
		occ_comm_wait(world, &r);
	}
	if (world->rank == 0)
		return;
	occ_comm_post_recv(world, &word, 1, 0, OCC_TAG_TEST, &r);
	while (!occ_comm_test(world, &r))
		usleep(20000);
}
