/* What a slot works on, in bench/gpu_kernels.c: arrays that are made once and found again. */
#ifndef OCC_BENCH_GPU_RUN_H
#define OCC_BENCH_GPU_RUN_H

#include "bench/gpu.h"

enum { ARRAYS = 12 };
enum role { IN, OUT, INOUT };

/* A slot's call on a device: the first time it makes its arrays, then it finds them again. */
struct run {
	struct occ_device *d;
	int64_t N, C, V, P; /* rows, channels, vocabulary, parameters: a multiple of C */
	double bytes;       /* that one call must move, wires by their true length */
	double value;       /* what it gave to the host */
	int made, at;       /* arrays there are; the next one that is asked for */
	struct array {
		void *d_x;
		int64_t n;
		enum occ_type type;
		enum role role;
		int raw; /* bytes, or integers: to be equal */
	} array[ARRAYS];
};

static inline struct array *next(struct run *r, int64_t n, enum occ_type type, enum role role)
{
	struct array *a = &r->array[r->at++];
	occ_check(r->at <= ARRAYS, "%d arrays", r->at);
	if (r->at > r->made)
		*a = (struct array){.n = n, .type = type, .role = role};
	return a;
}

static inline void *numbers(struct run *r, int64_t n, enum occ_type type, enum role role,
			    float scale)
{
	struct array *a = next(r, n, type, role);
	if (r->at > r->made) {
		a->d_x = gpu_draw(r->d, n, type, (uint32_t)r->at, scale);
		r->made = r->at;
	}
	return a->d_x;
}

static inline void *in(struct run *r, int64_t n)
{
	return numbers(r, n, OCC_BF16, IN, 1);
}

static inline void *out(struct run *r, int64_t n)
{
	return numbers(r, n, OCC_BF16, OUT, NAN);
}

static inline float *in_f32(struct run *r, int64_t n)
{
	return numbers(r, n, OCC_F32, IN, 1);
}

static inline float *out_f32(struct run *r, int64_t n)
{
	return numbers(r, n, OCC_F32, OUT, NAN);
}

static inline float *inout_f32(struct run *r, int64_t n)
{
	return numbers(r, n, OCC_F32, INOUT, 1);
}

/* Ids: element i is (i * step + i / turn) % below. */
static inline int32_t *ids(struct run *r, int64_t n, int64_t step, int64_t turn, int64_t below)
{
	struct array *a = next(r, n, OCC_F32, IN);
	if (r->at > r->made) {
		int32_t *x = occ_alloc((size_t)n, sizeof(*x));
		for (int64_t i = 0; i < n; i++)
			x[i] = (int32_t)((i * step + i / turn) % below);
		a->d_x = r->d->ops->alloc(r->d, (size_t)n * 4);
		r->d->ops->put(r->d, a->d_x, x, (size_t)n * 4);
		r->d->ops->sync(r->d);
		occ_free(x);
		r->made = r->at;
	}
	return a->d_x;
}

/* Room for a wire, or for indices, zeroed; to be equal to ref's. */
static inline void *wire(struct run *r, int64_t bytes, enum role role)
{
	struct array *a = next(r, (bytes + 3) / 4, OCC_F32, role);
	if (r->at > r->made) {
		a->raw = 1;
		a->d_x = r->d->ops->alloc(r->d, (size_t)a->n * 4);
		r->d->ops->zero(r->d, a->d_x, (size_t)a->n * 4);
		r->made = r->at;
	}
	return a->d_x;
}

static inline int first_time(const struct run *r)
{
	return r->bytes == 0;
}

/* All parameters, cut as one tensor is. */
static inline struct occ_pieces pieces(struct run *r)
{
	struct array *a = next(r, 0, OCC_F32, IN);
	if (r->at > r->made) {
		size_t most = (size_t)(r->P / OCC_PIECE + 1);
		struct occ_piece *x = occ_alloc(most, sizeof(*x));
		a->n = occ_pieces_cut(0, r->P, 1, x);
		a->d_x = r->d->ops->alloc(r->d, most * sizeof(*x));
		r->d->ops->put(r->d, a->d_x, x, most * sizeof(*x));
		r->d->ops->sync(r->d);
		occ_free(x);
		r->made = r->at;
	}
	return (struct occ_pieces){(int)a->n, r->P, a->d_x};
}

#endif
