/* Throughput of powersgd on links: the slices of the paper's models over ranks, each message
 * verified while it is timed (what came across and the residual are what was sent).
 *
 *     codecs DEVICE THREADS MESSAGES
 *
 * First a line "peak GFLOP/s GB/s": the best product of 1024 x 1024 x 1024 in fp32, and the bytes
 * read and written by y += x. Then for each slice and rank MESSAGES lines "msg N M RANK ENCODE_MS
 * DECODE_MS". */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/mem.h"
#include "compress/stream.h"

static const int64_t slices[][2] = {{1024, 1920}, {1024, 3072}, {2048, 12288}};

static float *numbers(struct occ_device *d, int64_t n, uint32_t id)
{
	float *d_x = d->ops->alloc(d, (size_t)n * sizeof(float));
	d->ops->draw(d, n, 7, id, d_x);
	return d_x;
}

static void peak(struct occ_device *d)
{
	enum { N = 1024 };
	struct occ_gemm g = {.m = N, .n = N, .k = N, .lda = N, .ldb = N, .ldc = N, .f32 = 1};
	int64_t n = 32 << 20;
	float *a = numbers(d, N * N, 1), *b = numbers(d, N * N, 2), *c = numbers(d, N * N, 3);
	float *x = d->ops->alloc(d, (size_t)n * 4), *y = d->ops->alloc(d, (size_t)n * 4);
	double product = 1e9, sum = 1e9;
	for (int i = 0; i < 20; i++) {
		double t = occ_clock_ms();
		d->ops->gemm(d, &g, a, b, NULL, c);
		d->ops->sync(d);
		double ms = occ_clock_ms() - t;
		product = ms < product ? ms : product;
		t = occ_clock_ms();
		d->ops->accumulate(d, n, OCC_F32, x, OCC_ADD, y);
		d->ops->sync(d);
		ms = occ_clock_ms() - t;
		sum = ms < sum ? ms : sum;
	}
	printf("peak %.1f %.1f\n", 2.0 * N * N * N / product / 1e6, 12.0 * (double)n / sum / 1e6);
	float *all[] = {a, b, c, x, y};
	for (int i = 0; i < 5; i++)
		d->ops->free(d, all[i]);
}

/* ||X + E_old - Y - E|| against ||X + E_old||. */
static void verify(struct occ_device *d, int64_t n, const float *d_sum, const float *d_y,
		   const float *d_e)
{
	float *d_left = d->ops->alloc(d, (size_t)n * sizeof(float));
	double all, left;
	d->ops->copy(d, d_left, d_sum, (size_t)n * sizeof(float));
	d->ops->accumulate(d, n, OCC_F32, d_y, OCC_SUB, d_left);
	d->ops->accumulate(d, n, OCC_F32, d_e, OCC_SUB, d_left);
	all = occ_sum_squares(d, n, d_sum);
	left = occ_sum_squares(d, n, d_left);
	occ_check(left <= 1e-10 * all, "lost %g of %g", left, all);
	d->ops->free(d, d_left);
}

static void time_slice(struct occ_device *d, int64_t n, int64_t m, int64_t rank, int messages)
{
	struct occ_stream_conf conf = {.feedback = 1, .key = 1, .id = 2};
	conf.knobs =
		(struct occ_knobs){.codec = &occ_codec_powersgd, .rank = rank, .iterations = 1};
	struct occ_stream s;
	occ_stream_init(&s, d, &conf, n, m, OCC_F32);
	float *x = numbers(d, n * m, 4), *y = numbers(d, n * m, 5), *sum = numbers(d, n * m, 6);
	void *wire = d->ops->alloc(d, s.codec.ops->bound(&s.codec));
	for (int i = -2; i < messages; i++) {
		d->ops->copy(d, sum, s.d_e, (size_t)(n * m) * sizeof(float));
		d->ops->accumulate(d, n * m, OCC_F32, x, OCC_ADD, sum);
		d->ops->sync(d);
		double t0 = occ_clock_ms();
		size_t bytes = occ_stream_encode(&s, x, wire);
		d->ops->sync(d);
		double t1 = occ_clock_ms();
		occ_stream_decode(&s, wire, bytes, y);
		d->ops->sync(d);
		double t2 = occ_clock_ms();
		verify(d, n * m, sum, y, s.d_e);
		if (i >= 0) /* the first ones prepare products */
			printf("msg %lld %lld %lld %.3f %.3f\n", (long long)n, (long long)m,
			       (long long)rank, t1 - t0, t2 - t1);
	}
	void *all[] = {x, y, sum, wire};
	for (int i = 0; i < 4; i++)
		d->ops->free(d, all[i]);
	occ_stream_release(&s);
}

int main(int argc, char **argv)
{
	struct occ_err e = {0};
	if (argc != 4) {
		fprintf(stderr, "usage: codecs DEVICE THREADS MESSAGES\n");
		return 2;
	}
	struct occ_device *d = occ_device_open(argv[1], OCC_F32, atoi(argv[2]), &e);
	if (!d) {
		occ_err_print(&e);
		return e.code;
	}
	peak(d);
	for (int i = 0; i < 3; i++)
		for (int64_t rank = 8; rank <= 40; rank += 8)
			time_slice(d, slices[i][0], slices[i][1], rank, atoi(argv[3]));
	occ_device_close(d);
	return 0;
}
