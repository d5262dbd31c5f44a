/* Low rank (powersgd) on all devices: how near it comes to the best of its rank, its wire, and
 * what it does with matrices that have no full rank or no usual scale. CUDA: 2 */
#include "tests/codec_kit.h"

enum { SENDS = 20 };

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static struct occ_knobs knobs(int64_t rank, int64_t iterations)
{
	return (struct occ_knobs){
		.codec = &occ_codec_powersgd, .rank = rank, .iterations = iterations};
}

static void start(struct occ_codec *c, struct occ_device *d, const struct occ_knobs *k, int64_t n,
		  int64_t m)
{
	occ_codec_init(c, d, k, n, m, OCC_F32);
	occ_codec_start(c, 11, 12);
}

/* ---- Matrices with known singular values. ---- */

/* Orthonormal columns (n, r), made on the ref device. */
static float *orthonormal(int64_t n, int64_t r, uint64_t key)
{
	struct occ_device *ref = kit_open("ref", OCC_F32);
	float *x = kit_normals(n * r, key);
	void *d_x = kit_put(ref, x, (size_t)(n * r) * sizeof(*x));
	ref->ops->orthonormalise(ref, n, r, d_x);
	ref->ops->get(ref, x, d_x, (size_t)(n * r) * sizeof(*x));
	ref->ops->free(ref, d_x);
	occ_device_close(ref);
	return x;
}

/* U S V^T with singular values 0.75^i, i < rank. */
static float *known(int64_t n, int64_t m, int64_t rank)
{
	int64_t r = least(least(n, m), rank);
	float *u = orthonormal(n, r, 1), *v = orthonormal(m, r, 2), *g = kit_floats(n * m);
	for (int64_t i = 0; i < n; i++)
		for (int64_t j = 0; j < m; j++) {
			double sum = 0;
			for (int64_t k = 0; k < r; k++)
				sum += (double)u[i * r + k] * pow(0.75, (double)k) *
				       (double)v[j * r + k];
			g[i * m + j] = (float)sum;
		}
	occ_free(u);
	occ_free(v);
	return g;
}

/* The error of the best matrix of rank r. */
static double tail(int64_t n, int64_t m, int64_t r)
{
	double sum = 0;
	for (int64_t k = r; k < least(n, m); k++)
		sum += pow(0.75, 2.0 * (double)k);
	return sqrt(sum);
}

/* ||G - P Q^T|| after so many sends. */
static double error_after(struct occ_codec *c, const float *g, int sends)
{
	double error = 0;
	for (int i = 0; i < sends; i++) {
		float *y = kit_through(c, g);
		error = kit_distance(c->n * c->m, g, y);
		occ_free(y);
	}
	return error;
}

/* ---- Convergence. ---- */

static void check_converges(struct occ_device *d, int64_t n, int64_t m, int64_t r)
{
	struct occ_knobs warm = knobs(r, 1), many = knobs(r, SENDS);
	float *g = known(n, m, n + m);
	double best = tail(n, m, r), limit = 1.001 * best + 1e-6;
	struct occ_codec c;
	start(&c, d, &warm, n, m);
	double first = error_after(&c, g, 1), last = error_after(&c, g, SENDS - 1);
	CHECK(last <= limit && last <= first + 1e-6 && c.calls == SENDS,
	      "%s, %lld x %lld rank %lld: %g, then %g, best %g", d->ops->name, (long long)n,
	      (long long)m, (long long)r, first, last, best);
	occ_codec_release(&c);
	start(&c, d, &many, n, m);
	double once = error_after(&c, g, 1);
	CHECK(once <= limit, "%s, %lld x %lld rank %lld: %g in one send, best %g", d->ops->name,
	      (long long)n, (long long)m, (long long)r, once, best);
	occ_codec_release(&c);
	occ_free(g);
}

/* A matrix of rank r or less is sent exactly, the first time and every other. */
static void check_exact(struct occ_device *d, int64_t n, int64_t m, int64_t r, int64_t rank)
{
	struct occ_knobs k = knobs(r, 1);
	float *g = known(n, m, rank);
	struct occ_codec c;
	start(&c, d, &k, n, m);
	for (int i = 0; i < 4; i++) {
		double error = error_after(&c, g, 1) / kit_norm(n * m, g);
		CHECK(error <= 1e-5, "%s, %lld x %lld, %lld of rank %lld: %g", d->ops->name,
		      (long long)n, (long long)m, (long long)rank, (long long)r, error);
	}
	occ_codec_release(&c);
	occ_free(g);
}

/* ---- The wire. ---- */

static double worst_product(int64_t n, int64_t r, const float *p)
{
	double worst = 0;
	for (int64_t a = 0; a < r; a++)
		for (int64_t b = 0; b <= a; b++) {
			double sum = a == b ? -1 : 0;
			for (int64_t i = 0; i < n; i++)
				sum += (double)p[i * r + a] * (double)p[i * r + b];
			worst = fmax(worst, fabs(sum));
		}
	return worst;
}

static void check_wire(struct occ_device *d, int64_t n, int64_t m, int64_t rank)
{
	struct occ_knobs k = knobs(rank, 1);
	int64_t r = least(least(n, m), rank);
	float *g = kit_normals(n * m, 21);
	struct occ_codec c;
	start(&c, d, &k, n, m);
	for (int i = 0; i < 3; i++) {
		struct kit_wire w = kit_encode(&c, g, 0);
		CHECK(w.bytes == (size_t)(r * (n + m)) * sizeof(float), "%lld x %lld: %zu bytes",
		      (long long)n, (long long)m, w.bytes);
		CHECK(worst_product(n, r, (const float *)w.at) <= 1e-5, "%s, %lld x %lld: %g",
		      d->ops->name, (long long)n, (long long)m,
		      worst_product(n, r, (const float *)w.at));
		occ_free(w.at);
	}
	occ_codec_release(&c);
	occ_free(g);
}

/* All devices send the same matrix, within rounding. */
static void check_devices(int64_t n, int64_t m)
{
	struct occ_knobs k = knobs(3, 1);
	float *y[3], *g = known(n, m, n + m);
	for (int i = 0; i < 3; i++) {
		struct occ_device *d = kit_open(kit_device(i), OCC_F32);
		struct occ_codec c;
		start(&c, d, &k, n, m);
		error_after(&c, g, 3);
		y[i] = kit_through(&c, g);
		occ_codec_release(&c);
		occ_device_close(d);
	}
	CHECK(kit_distance(n * m, y[0], y[1]) <= 1e-5 * kit_norm(n * m, g), "%s, %lld x %lld",
	      kit_device(1), (long long)n, (long long)m);
	CHECK(!memcmp(y[0], y[2], (size_t)(n * m) * sizeof(**y)), "strict, %lld x %lld",
	      (long long)n, (long long)m);
	for (int i = 0; i < 3; i++)
		occ_free(y[i]);
	occ_free(g);
}

/* ---- Odd matrices. ---- */

enum odd { ZERO, SAME_COLUMNS, SAME_ROWS, ONE_VALUE, TINY, SMALL, LARGE, HUGE_ONES, ODDS };
static const char *const odd_names[ODDS] = {"zero",  "same columns", "same rows", "one value",
					    "1e-30", "1e-10",        "1e10",      "1e30"};

static float *odd_matrix(enum odd what, int64_t n, int64_t m)
{
	static const float scale[ODDS] = {0, 1, 1, 0, 1e-30f, 1e-10f, 1e10f, 1e30f};
	float *g = kit_normals(n * m, 31);
	for (int64_t i = n * m; i-- > 0;) {
		g[i] *= scale[what];
		if (what == SAME_COLUMNS)
			g[i] = g[i / m * m];
		if (what == SAME_ROWS)
			g[i] = g[i % m];
	}
	if (what == ONE_VALUE)
		g[n * m - 1] = 3;
	return g;
}

/* Finite whatever came before, P orthonormal, and never worse than sending nothing. */
static void check_odd(struct occ_device *d, int64_t n, int64_t m)
{
	struct occ_knobs k = knobs(4, 1);
	int64_t r = least(least(n, m), 4);
	struct occ_codec c;
	start(&c, d, &k, n, m);
	for (int i = 0; i < ODDS * ODDS; i++) {
		enum odd what = (enum odd)(i % 2 ? i % ODDS : i / ODDS);
		float *g = odd_matrix(what, n, m), *y = kit_floats(n * m);
		struct kit_wire w = kit_encode(&c, g, 0);
		kit_decode(&c, &w, OCC_SET, y);
		double norm = kit_norm(n * m, g), error = kit_distance(n * m, g, y);
		CHECK(kit_finite(n * m, y) && error <= (1 + 1e-6) * norm,
		      "%s, %lld x %lld, %s: %g of %g", d->ops->name, (long long)n, (long long)m,
		      odd_names[what], error, norm);
		CHECK(worst_product(n, r, (const float *)w.at) <= 1e-5, "%s, %lld x %lld, %s",
		      d->ops->name, (long long)n, (long long)m, odd_names[what]);
		CHECK((what != ONE_VALUE && what != SAME_COLUMNS && what != SAME_ROWS) ||
			      error <= 1e-5 * norm,
		      "%s, %lld x %lld, %s of rank 1: %g of %g", d->ops->name, (long long)n,
		      (long long)m, odd_names[what], error, norm);
		occ_free(w.at);
		occ_free(g);
		occ_free(y);
	}
	occ_codec_release(&c);
}

/* After something that leaves nothing to go on from, a matrix is followed as by a new codec. */
static void check_recovers(struct occ_device *d, int64_t n, int64_t m, float value)
{
	struct occ_knobs k = knobs(4, 1);
	float *bad = kit_floats(n * m), *g = known(n, m, n + m);
	struct occ_codec c;
	for (int64_t i = 0; i < n * m; i++)
		bad[i] = value;
	start(&c, d, &k, n, m);
	for (int i = 0; i < 3; i++)
		occ_free(kit_through(&c, bad));
	double error = error_after(&c, g, SENDS), limit = 1.001 * tail(n, m, 4) + 1e-6;
	CHECK(error <= limit, "%s, %lld x %lld after %g: %g, limit %g", d->ops->name, (long long)n,
	      (long long)m, (double)value, error, limit);
	occ_codec_release(&c);
	occ_free(bad);
	occ_free(g);
}

/* ---- Sizes that the paper's configurations give. ---- */

static double ratio(int64_t n, int64_t m, int64_t rank)
{
	struct occ_knobs k = knobs(rank, 1);
	size_t wire = occ_codec_bound(&k, n, m, OCC_F32);
	CHECK(wire == (size_t)(least(least(n, m), rank) * (n + m)) * 4, "%lld x %lld: %zu",
	      (long long)n, (long long)m, wire);
	CHECK(occ_codec_bound(&k, n, m, OCC_BF16) * 2 == wire, "%lld x %lld of bf16", (long long)n,
	      (long long)m);
	return (double)(n * m * 4) / (double)wire;
}

static void check_ratios(void)
{
	static const double links[][2] = {{1920, 41.7}, {3072, 48.0}, {1024, 32.0}};
	static const double layers[][2] = {{1024, 2.18}, {1920, 4.09}, {3072, 6.55}};
	for (int i = 0; i < 3; i++) {
		double got = ratio(1024, (int64_t)links[i][0], 16);
		CHECK_NEAR(got, links[i][1], 0.05, "a slice of %g: %g", links[i][0], got);
	}
	for (int i = 0; i < 3; i++) {
		int64_t h = (int64_t)layers[i][0];
		const int64_t at[][2] = {
			{3 * h / 8, h}, {h, h / 8}, {4 * h / 8, h}, {h, 4 * h / 8}};
		double raw = 0, wire = 0;
		for (int k = 0; k < 4; k++) {
			raw += (double)(at[k][0] * at[k][1]);
			wire += (double)(at[k][0] * at[k][1]) / ratio(at[k][0], at[k][1], 128);
		}
		CHECK_NEAR(raw / wire, layers[i][1], 0.005, "a layer of %lld: %g", (long long)h,
			   raw / wire);
	}
}

static void check_on(const char *name)
{
	static const int64_t at[][2] = {{24, 40}, {37, 21}, {1, 16}, {16, 1},
					{1, 1},   {9, 9},   {5, 64}};
	struct occ_device *d = kit_open(name, OCC_F32);
	for (int i = 0; i < 7; i++) {
		int64_t n = at[i][0], m = at[i][1];
		for (int64_t r = 1; r <= 5; r += 2)
			check_converges(d, n, m, r);
		check_exact(d, n, m, 4, 4);
		check_exact(d, n, m, 4, 2);
		check_exact(d, n, m, 100, 100);
		check_wire(d, n, m, 4);
		check_wire(d, n, m, 100);
		check_odd(d, n, m);
		check_recovers(d, n, m, 0);
		check_recovers(d, n, m, NAN);
		check_recovers(d, n, m, INFINITY);
	}
	occ_device_close(d);
}

int main(void)
{
	for (int i = 0; i < 3; i++)
		if (kit_takes(i))
			check_on(kit_device(i));
	check_devices(24, 40);
	check_devices(37, 21);
	check_devices(1, 16);
	check_ratios();
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}
