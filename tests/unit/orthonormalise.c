/* The slot orthonormalise of cpu, or of the device of the environment, by its properties: columns
 * are orthonormal and span what they spanned, for any scale, for columns that depend on others, and
 * where numbers are not finite; and no bit depends on the threads. CUDA: 1 */
#include "base/device.h"

#include <string.h>

#include "base/mem.h"
#include "tests/check.h"

#ifdef __SANITIZE_THREAD__
enum { MOST_THREADS = 1 }; /* it does not see how libgomp's threads meet */
#else
enum { MOST_THREADS = 3 };
#endif

enum columns { GOOD, NEAR, SOME_ZERO, TWINS, SUMS, WILD, SCALED, ALL_ZERO };

static const struct orth_case {
	const char *name;
	int64_t n, r;
	enum columns what;
	double scale;
	int like_ref; /* the same columns as ref's to 1e-4 */
} orth_cases[] = {
	{"one", 1, 1, GOOD, 1, 1},
	{"one zero", 1, 1, ALL_ZERO, 1, 1},
	{"vector", 7, 1, GOOD, 1e30, 1},
	{"small", 33, 5, GOOD, 1e-30, 1},
	{"denormal", 300, 9, GOOD, 1e-38, 0},
	{"huge", 300, 9, GOOD, 6e37, 1},
	{"square", 40, 40, GOOD, 1, 0},
	{"square, large", 200, 200, GOOD, 1e10, 0},
	{"square, odd", 61, 61, SOME_ZERO, 1, 0},
	{"square of zeros", 50, 50, ALL_ZERO, 1, 0},
	{"square of twins", 48, 48, TWINS, 1, 0},
	{"square, not finite", 20, 20, WILD, 1, 0},
	{"pieces", 1024, 16, GOOD, 1, 1},
	{"pieces, odd", 1543, 41, GOOD, 1e-20, 1},
	{"panels", 2048, 100, GOOD, 1, 1},
	{"many", 3000, 250, GOOD, 1, 1},
	{"near", 700, 20, NEAR, 1, 0},
	{"near, small", 3000, 70, NEAR, 1e-25, 0},
	{"zeros", 900, 37, SOME_ZERO, 1, 1},
	{"twins", 900, 37, TWINS, 1e20, 1},
	{"sums", 900, 64, SUMS, 1, 1},
	{"nothing but zeros", 515, 24, ALL_ZERO, 1, 1},
	{"not finite", 800, 33, WILD, 1, 1},
	{"scales", 800, 48, SCALED, 1, 1},
	{"long", 9216, 64, NEAR, 1, 0},
};

static float orth_number(const struct orth_case *c, const float *a, int64_t i, int64_t j)
{
	const float *row = a + i * c->r;
	float v = (float)c->scale * occ_rng_normal(7, (uint32_t)j, (uint64_t)i), sum = 0;
	switch (c->what) {
	case NEAR:
		return j ? row[0] + 1e-4f * v : v;
	case SOME_ZERO:
		return j % 5 == 2 || j == c->r - 1 ? 0 : v;
	case TWINS:
		return j % 3 == 2 ? row[j - 2] * -2 : j > 20 && j % 7 == 0 ? row[j - 20] : v;
	case SUMS: /* the second half depends on the first */
		if (j < c->r / 2)
			return v;
		for (int64_t k = 0; k < c->r / 2; k++)
			sum += row[k] * occ_rng_normal(8, (uint32_t)j, (uint64_t)k);
		return sum;
	case WILD:
		return j % 4 == 1 && i == 3 ? NAN : j % 4 == 2 && i > 7 ? -INFINITY : v;
	case SCALED:
		return v * powf(10, (float)(j % 7 * 10 - 30));
	case ALL_ZERO:
		return 0;
	default:
		return v;
	}
}

static float *orth_matrix(const struct orth_case *c)
{
	float *a = occ_alloc((size_t)(c->n * c->r), sizeof(*a));
	for (int64_t i = 0; i < c->n; i++)
		for (int64_t j = 0; j < c->r; j++)
			a[i * c->r + j] = orth_number(c, a, i, j);
	return a;
}

static float *orthonormal(const char *device, int threads, const struct orth_case *c,
			  const float *a)
{
	struct occ_err e = {0};
	struct occ_device *d = occ_device_open(device, OCC_BF16, threads, &e);
	size_t bytes = (size_t)(c->n * c->r) * sizeof(*a);
	float *p = occ_alloc(bytes, 1), *d_a = d->ops->alloc(d, bytes);
	d->ops->put(d, d_a, a, bytes);
	d->ops->orthonormalise(d, c->n, c->r, d_a);
	d->ops->get(d, p, d_a, bytes);
	d->ops->free(d, d_a);
	occ_device_close(d);
	return p;
}

/* c (r,r) = a^T b */
static double *products(const struct orth_case *k, const float *a, const float *b)
{
	double *c = occ_alloc((size_t)(k->r * k->r), sizeof(*c));
	for (int64_t t = 0; t < k->n; t++)
		for (int64_t i = 0; i < k->r; i++)
			for (int64_t j = 0; j < k->r; j++)
				c[i * k->r + j] +=
					(double)a[t * k->r + i] * (double)b[t * k->r + j];
	return c;
}

static double off_identity(const struct orth_case *c, const float *p)
{
	double *g = products(c, p, p), worst = 0;
	for (int64_t i = 0; i < c->r * c->r; i++) {
		double e = fabs(g[i] - (i / c->r == i % c->r));
		worst = e <= worst ? worst : isnan(e) ? INFINITY : e;
	}
	occ_free(g);
	return worst;
}

/* The largest part of a column that lies outside columns 0 .. j of p, of the column's length. */
static double outside(const struct orth_case *c, const float *p, const float *a)
{
	double *along = products(c, p, a), worst = 0;
	for (int64_t j = 0; j < c->r; j++) {
		double squares = 0, left = 0;
		for (int64_t t = 0; t < c->n; t++) {
			double v = (double)a[t * c->r + j];
			squares += v * v;
			for (int64_t k = 0; k <= j; k++)
				v -= along[k * c->r + j] * (double)p[t * c->r + k];
			left += v * v;
		}
		if (squares > 0 && isfinite(squares) && sqrt(left / squares) > worst)
			worst = sqrt(left / squares);
	}
	occ_free(along);
	return worst;
}

static void orth_like_ref(const struct orth_case *c, const float *a, const float *p)
{
	float *q = orthonormal("ref", 1, c, a);
	double worst = 0;
	for (int64_t i = 0; i < c->n * c->r; i++)
		worst = fmax(worst, fabs((double)p[i] - (double)q[i]));
	CHECK(worst <= 1e-4, "%s: %g from ref", c->name, worst);
	occ_free(q);
}

static void orth(const struct orth_case *c)
{
	const char *device = check_device("cpu");
	float *a = orth_matrix(c), *p = orthonormal(device, 1, c, a);
	double off = off_identity(c, p), left = outside(c, p, a);
	CHECK(off <= 1e-5, "%s: P^T P is off by %g", c->name, off);
	CHECK(left <= 1e-5, "%s: %g of a column lies outside", c->name, left);
	for (int threads = 2; threads <= (check_device(NULL) ? 2 : MOST_THREADS); threads++) {
		float *q = orthonormal(device, threads, c, a);
		CHECK(!memcmp(p, q, (size_t)(c->n * c->r) * sizeof(*p)), "%s: %d threads", c->name,
		      threads);
		occ_free(q);
	}
	if (c->like_ref)
		orth_like_ref(c, a, p);
	occ_free(a);
	occ_free(p);
}

int main(void)
{
	for (size_t i = 0; i < sizeof(orth_cases) / sizeof(orth_cases[0]); i++)
		orth(&orth_cases[i]);
	return check_done();
}
