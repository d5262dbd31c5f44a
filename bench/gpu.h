/* What the programs of scripts/gpu-check share: arguments, numbers, timing, comparison with ref,
 * and the lines that the script reads: fields between tabs,
 *
 *     row WHAT FIGURE UNIT BOUND VERDICT KEY=VALUE...
 *
 * where VERDICT is ok, slow, WRONG, or "right": the result is, and its time says nothing (small
 * sizes, as on the emulation). "-" stands for a figure or bound that is not there. */
#ifndef OCC_BENCH_GPU_H
#define OCC_BENCH_GPU_H

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/device.h"
#include "base/mem.h"

enum { GPU_PERIOD = 65521 }; /* numbers are repeated: drawing is slow */
#define GPU_SLOW 0.6         /* below this share of what was measured to be possible: slow */

static struct occ_device *dev, *ref;
static int tiny, wrong;

/* DEVICE SIZE ...: opens both devices; size tiny or full. 0, or the exit code. */
static inline int gpu_begin(int argc, char **argv, const char *usage)
{
	struct occ_err e = {0};
	if (argc < 3 || (strcmp(argv[2], "tiny") != 0 && strcmp(argv[2], "full") != 0)) {
		fprintf(stderr, "usage: %s\n", usage);
		return 2;
	}
	tiny = !strcmp(argv[2], "tiny");
	dev = occ_device_open(argv[1], OCC_BF16, 1, &e);
	ref = dev ? occ_device_open("ref", OCC_BF16, 1, &e) : NULL;
	if (!ref)
		occ_err_print(&e);
	return ref ? 0 : e.code;
}

static inline int gpu_end(void)
{
	occ_device_close(ref);
	occ_device_close(dev);
	return wrong;
}

/* Ends a row; `share` of what is possible, 0: not known. */
static inline const char *gpu_verdict(int right, double share)
{
	wrong |= !right;
	return !right ? "WRONG" : tiny ? "right" : share > 0 && share < GPU_SLOW ? "slow" : "ok";
}

/* Normal number i of an array `id`. */
static inline float gpu_normal(uint32_t id, int64_t i)
{
	static float table[GPU_PERIOD];
	if (table[0] == 0)
		for (int k = 0; k < GPU_PERIOD; k++)
			table[k] = occ_rng_normal(7, 0, (uint64_t)k);
	return table[(uint64_t)(i + 977 * (int64_t)id) % GPU_PERIOD];
}

/* An array of such numbers times scale on `d`. */
static inline void *gpu_draw(struct occ_device *d, int64_t n, enum occ_type type, uint32_t id,
			     float scale)
{
	size_t bytes = (size_t)n * occ_type_size(type);
	int64_t once = n < GPU_PERIOD ? n : GPU_PERIOD, unit = (int64_t)occ_type_size(type);
	char *x = occ_alloc(bytes + 1, 1);
	for (int64_t i = 0; i < once; i++) {
		float v = gpu_normal(id, i) * scale;
		if (type == OCC_BF16)
			((uint16_t *)x)[i] = occ_f32_to_bf16(v);
		else
			((float *)x)[i] = v;
	}
	for (int64_t i = once; i < n; i += once)
		memcpy(x + i * unit, x, (size_t)((n - i < once ? n - i : once) * unit));
	void *d_x = d->ops->alloc(d, bytes);
	d->ops->put(d, d_x, x, bytes);
	d->ops->sync(d);
	occ_free(x);
	return d_x;
}

static inline void *gpu_fetch(struct occ_device *d, const void *d_x, size_t bytes)
{
	void *x = occ_alloc(bytes + 1, 1);
	d->ops->get(d, x, d_x, bytes);
	return x;
}

static inline double gpu_value(enum occ_type type, const void *x, int64_t i)
{
	return type == OCC_F32 ? (double)((const float *)x)[i]
			       : (double)occ_bf16_to_f32(((const uint16_t *)x)[i]);
}

/* Root of the mean square of the difference, over that of `want`; NaN never counts as equal. */
static inline double gpu_distance(enum occ_type type, const void *got, const void *want, int64_t n)
{
	double sum = 0, all = 0;
	for (int64_t i = 0; i < n; i++) {
		double g = gpu_value(type, got, i), w = gpu_value(type, want, i);
		sum += g == w ? 0 : (g - w) * (g - w);
		all += isfinite(w) ? w * w : 0;
	}
	return sum == 0 ? 0 : all > 0 ? sqrt(sum / all) : HUGE_VAL;
}

/* Milliseconds of one of many calls between two waits; the best of three batches of 0.15 s. */
static inline double gpu_time(void (*f)(void *), void *arg)
{
	double best = 0;
	int calls = 1;
	f(arg);
	dev->ops->sync(dev);
	for (int batch = 0; batch < (tiny ? 1 : 4); batch++) {
		double t = occ_clock_ms();
		for (int i = 0; i < calls; i++)
			f(arg);
		dev->ops->sync(dev);
		t = (occ_clock_ms() - t) / calls;
		best = batch < 2 || t < best ? t : best; /* the first one only says how many */
		if (batch == 0)
			calls = t < 0.15 ? 1000 : t > 30 ? 5 : (int)(150 / t);
	}
	return best;
}

static inline void gpu_row(const char *what, double figure, const char *unit, const char *bound,
			   const char *verdict, const char *more, ...)
	__attribute__((format(printf, 6, 7)));
static inline void gpu_row(const char *what, double figure, const char *unit, const char *bound,
			   const char *verdict, const char *more, ...)
{
	va_list ap;
	printf("row\t%s\t%.4g\t%s\t%s\t%s\t", what, figure, unit, bound, verdict);
	va_start(ap, more);
	vprintf(more, ap);
	va_end(ap);
	printf("\n");
	fflush(stdout);
}

#endif
