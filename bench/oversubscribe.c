/* What waiting costs where ranks exceed cores. Two loops, each against the same work without
 * waiting:
 *
 *   balanced  all ranks compute, then sum 1 MiB     ideal: the same without the sum
 *   ring      one rank at a time computes           ideal: the work of all, one after the other
 *
 *   make benches
 *   build/.../bench/oversubscribe thread 8
 *   mpirun --oversubscribe -n 8 build/.../bench/oversubscribe mpi
 *   mpirun --host localhost:8 -n 8 build/.../bench/oversubscribe mpi
 *
 * Prints the best of several repeats, in ms; the sums are checked while they are timed. Aim: x 1.3.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "parallel/comm.h"

enum { ROUNDS = 20, LAPS = 2, REPEATS = 9, N = 1 << 18 };

struct bench {
	struct occ_comm *c;
	float *x;
	void *scratch;
	int work; /* steps of the loop below that take about 4 ms */
};

static double burn(int steps)
{
	double acc = 1;
	for (int i = 0; i < steps * 1000; i++)
		acc = acc * 1.0000001 + 1e-9;
	return acc;
}

static void spend(int steps)
{
	volatile double keep = burn(steps);
	(void)keep;
}

/* Agreed by all ranks, so that all do the same work. */
static int calibrate(struct occ_comm *c)
{
	double best = 1e9;
	int64_t work;
	for (int i = 0; i < 5; i++) {
		double begin = occ_clock_ms();
		spend(1000);
		best = occ_clock_ms() - begin < best ? occ_clock_ms() - begin : best;
	}
	work = -(int64_t)(1000 * 4 / best);
	occ_comm_max_int64(c, &work, 1); /* of the fastest measurement: noise only adds */
	return (int)-work;
}

static void check(const struct bench *b)
{
	float want = (float)(b->c->size * (b->c->size + 1) / 2);
	for (int i = 0; i < N; i++)
		occ_check(b->x[i] == want, "element %d is %g, not %g", i, (double)b->x[i],
			  (double)want);
}

static void sum(struct bench *b)
{
	for (int i = 0; i < N; i++)
		b->x[i] = (float)(b->c->rank + 1);
	occ_comm_sum(b->c, b->x, N, OCC_F32, b->scratch);
}

static double balanced(struct bench *b, int waits)
{
	occ_comm_barrier(b->c);
	double begin = occ_clock_ms();
	for (int i = 0; i < ROUNDS; i++) {
		spend(b->work);
		if (waits)
			sum(b);
	}
	occ_comm_barrier(b->c);
	double ms = occ_clock_ms() - begin;
	if (waits)
		check(b);
	return ms;
}

static void hold_token(struct bench *b, int first, int last)
{
	struct occ_comm *c = b->c;
	struct occ_req r = {0};
	char token = 0;
	if (!first) {
		occ_comm_post_recv(c, &token, 1, (c->rank + c->size - 1) % c->size, OCC_TAG_TEST,
				   &r);
		occ_comm_wait(c, &r);
	}
	spend(b->work);
	if (!last) {
		occ_comm_post_send(c, &token, 1, (c->rank + 1) % c->size, OCC_TAG_TEST, &r);
		occ_comm_wait(c, &r);
	}
}

/* A token goes round and its holder computes; or rank 0 does all that work. */
static double ring(struct bench *b, int waits)
{
	struct occ_comm *c = b->c;
	occ_comm_barrier(c);
	double begin = occ_clock_ms();
	for (int i = 0; i < LAPS && waits; i++)
		hold_token(b, i == 0 && c->rank == 0, i == LAPS - 1 && c->rank == c->size - 1);
	if (!waits && c->rank == 0)
		spend(b->work * c->size * LAPS);
	double ms = occ_clock_ms() - begin;
	occ_comm_barrier(c);
	return waits ? occ_clock_ms() - begin : ms;
}

/* In turn, so that both meet the same noise; the best of each. */
static void compare(struct bench *b, const char *name, double (*loop)(struct bench *b, int waits))
{
	double best[2] = {1e9, 1e9};
	for (int i = 0; i < 2 * REPEATS; i++) {
		double ms = loop(b, i & 1);
		best[i & 1] = ms < best[i & 1] ? ms : best[i & 1];
	}
	if (b->c->rank == 0)
		printf("%-8s %7.1f ms, ideal %7.1f, x %.2f\n", name, best[1], best[0],
		       best[1] / best[0]);
}

static int body(struct occ_comm *c, void *arg)
{
	(void)arg;
	struct bench b = {.c = c, .x = occ_alloc(N, sizeof(float))};
	b.scratch = occ_alloc(occ_comm_scratch(c, N, OCC_F32), 1);
	b.work = calibrate(c);
	compare(&b, "balanced", balanced);
	compare(&b, "ring", ring);
	occ_free(b.scratch);
	occ_free(b.x);
	return 0;
}

int main(int argc, char **argv)
{
	struct occ_err e = {0};
	if (argc < 2 || strcmp(argv[1], "mpi") != 0)
		return occ_comm_run_threads(argc > 2 ? atoi(argv[2]) : 8, 60, body, NULL);
	struct occ_comm *c = occ_comm_open_mpi(60, &e);
	if (!c) {
		occ_err_print(&e);
		return e.code;
	}
	body(c, NULL);
	occ_comm_close(c);
	return 0;
}
