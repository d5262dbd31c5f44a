/* All codecs on all devices: their wires to the bit, what decoding gives back, and the bounds that
 * each promises. Low rank stands in codecs_lowrank.c. CUDA: 1 */
#include "tests/codec_kit.h"

/* ---- Every codec, every shape. ---- */

static void check_how(struct occ_codec *c, const struct kit_wire *w, const float *y, double tol,
		      const char *what)
{
	int64_t n = c->n * c->m;
	float *z = kit_normals(n, 77), *to = kit_floats(n);
	for (int how = OCC_ADD; how <= OCC_SUB; how++) {
		memcpy(to, z, (size_t)n * sizeof(*to));
		kit_decode(c, w, (enum occ_how)how, to);
		for (int64_t i = 0; i < n; i++) {
			double want =
				(double)z[i] + (how == OCC_ADD ? (double)y[i] : -(double)y[i]);
			CHECK_NEAR(to[i], want, tol * (fabs((double)z[i]) + fabs((double)y[i]) + 1),
				   "%s: how %d, %g at %lld", what, how, (double)to[i],
				   (long long)i);
		}
	}
	occ_free(z);
	occ_free(to);
}

/* Fresh codecs, full or empty memory before: the same wire; decoding needs no state. */
static void check_codec(struct occ_device *d, const struct kit_row *r, int64_t n, int64_t m)
{
	float *x = kit_normals(n * m, 5), *y = kit_floats(n * m), *other = kit_floats(n * m);
	struct occ_codec c[3];
	struct kit_wire w[2];
	for (int i = 0; i < 3; i++)
		occ_codec_init(&c[i], d, &r->knobs, n, m, r->type);
	for (int i = 0; i < 2; i++) {
		occ_codec_start(&c[i], 3, 4);
		w[i] = kit_encode(&c[i], x, i ? 0xff : 0);
	}
	CHECK(w[0].bytes == w[1].bytes && !memcmp(w[0].at, w[1].at, w[0].bytes),
	      "%s, %s, %lld x %lld: bytes of the wire that are not written", d->ops->name, r->what,
	      (long long)n, (long long)m);
	for (int64_t i = 0; i < n * m; i++)
		y[i] = other[i] = NAN;
	kit_decode(&c[0], &w[0], OCC_SET, y);
	kit_decode(&c[2], &w[0], OCC_SET, other);
	CHECK(kit_finite(n * m, y), "%s, %s", d->ops->name, r->what);
	CHECK(!memcmp(y, other, (size_t)(n * m) * sizeof(*y)), "%s, %s: a codec without state",
	      d->ops->name, r->what);
	check_how(&c[2], &w[0], y, kit_is_powersgd(&r->knobs) ? 1e-5 : 3e-7, r->what);
	for (int i = 0; i < 3; i++)
		occ_codec_release(&c[i]);
	occ_free(w[0].at);
	occ_free(w[1].at);
	occ_free(x);
	occ_free(y);
	occ_free(other);
}

/* What is not finite does not come out finite, wherever it stands. */
static void check_not_finite(struct occ_device *d, const struct kit_row *r, int64_t n, int64_t m)
{
	const float bad[] = {NAN, INFINITY, -INFINITY};
	struct occ_codec c;
	for (int i = 0; i < 9; i++) {
		float *x = kit_normals(n * m, 6);
		x[i / 3 * (n * m - 1) / 2] = bad[i % 3];
		occ_codec_init(&c, d, &r->knobs, n, m, r->type);
		occ_codec_start(&c, 3, 4);
		float *y = kit_through(&c, x);
		CHECK(!kit_finite(n * m, y), "%s, %s, %lld x %lld: %g is lost", d->ops->name,
		      r->what, (long long)n, (long long)m, (double)bad[i % 3]);
		occ_codec_release(&c);
		occ_free(x);
		occ_free(y);
	}
}

/* ---- A checksum per (codec, shape, knob): of three messages, the same on all devices. ---- */

static const struct {
	const char *what;
	int64_t n, m;
	uint64_t sum;
} sums[] = {
	{"none", 12, 20, 0x3369a0b0031f6e9d},
	{"none of bf16", 7, 9, 0xb382bbce5f473dc0},
	{"cast to bf16", 12, 20, 0x0927bff187bac326},
	{"cast to fp16", 12, 20, 0x9750754ea5e38adb},
	{"quant 2", 7, 9, 0xdd732fcf41ee3b28},
	{"quant 4", 12, 20, 0xb68f837d5f332e08},
	{"quant 8", 12, 20, 0xc47107135b475d68},
	{"topk", 12, 20, 0x2f4476b61e1f6fea},
	{"topk of bf16", 7, 9, 0xbf759907f2a73a6c},
	{"dct", 12, 20, 0x626d28c714a7b1be},
	{"dct of rows", 7, 9, 0x9358a4ea4eaf0058},
	{"dct of bf16 rows", 12, 20, 0xec9f06328ba9197b},
	{"errbound", 12, 20, 0x6b96b9fcc40564e4},
};

static const struct kit_row *row_of(const char *what)
{
	for (int i = 0; i < KIT_ROWS; i++)
		if (!strcmp(kit_rows[i].what, what))
			return &kit_rows[i];
	return NULL;
}

static uint64_t checksum(struct occ_device *d, const struct kit_row *r, int64_t n, int64_t m)
{
	struct occ_codec c;
	uint64_t sum = 0;
	occ_codec_init(&c, d, &r->knobs, n, m, r->type);
	occ_codec_start(&c, 3, 4);
	for (uint64_t i = 0; i < 3; i++) {
		float *x = kit_exact(n * m, i);
		struct kit_wire w = kit_encode(&c, x, 0);
		sum = sum * 31 + kit_fnv(w.at, w.bytes);
		occ_free(w.at);
		occ_free(x);
	}
	occ_codec_release(&c);
	return sum;
}

static void check_sums(const char *device)
{
	for (size_t i = 0; i < sizeof(sums) / sizeof(sums[0]); i++) {
		const struct kit_row *r = row_of(sums[i].what);
		struct occ_device *d = kit_open(device, r->type);
		uint64_t got = checksum(d, r, sums[i].n, sums[i].m);
		CHECK(got == sums[i].sum, "%s, %s: 0x%016llx", device, r->what,
		      (unsigned long long)got);
		occ_device_close(d);
	}
}

/* ---- Sparse. ---- */

static int compare(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x > y) - (x < y);
}

/* The k-th largest magnitude of n. */
static float kth(int64_t n, const float *x, int64_t k)
{
	float *a = kit_floats(n);
	for (int64_t i = 0; i < n; i++)
		a[i] = fabsf(x[i]);
	qsort(a, (size_t)n, sizeof(*a), compare);
	float v = a[n - k];
	occ_free(a);
	return v;
}

/* y holds the k largest of n values of x, bit for bit, and else 0. */
static int keeps(int64_t n, const float *x, const float *y, int64_t k)
{
	float least = kth(n, x, k);
	for (int64_t i = 0; i < n; i++) {
		float want = fabsf(x[i]) >= least ? x[i] : 0;
		if (memcmp(&want, &y[i], sizeof(want)) != 0)
			return 0;
	}
	return 1;
}

static void check_topk(struct occ_device *d, int64_t n, int64_t m, double fraction)
{
	struct occ_knobs k = {.codec = &occ_codec_topk, .fraction = fraction};
	float *x = kit_normals(n * m, 8);
	for (int rows = 0; rows < 2; rows++) {
		struct occ_codec c;
		k.codec = rows ? &occ_codec_dct_rows : &occ_codec_topk;
		occ_codec_init(&c, d, &k, n, m, OCC_F32);
		occ_codec_start(&c, 1, 1);
		float *y = kit_through(&c, x);
		int64_t R = rows ? n : 1, C = n * m / R;
		for (int64_t i = 0; i < R; i++)
			CHECK(keeps(C, x + i * C, y + i * C, occ_codec_kept(fraction, C)),
			      "%s: rows %d, %lld x %lld, %g, row %lld", d->ops->name, rows,
			      (long long)n, (long long)m, fraction, (long long)i);
		occ_codec_release(&c);
		occ_free(y);
	}
	occ_free(x);
}

/* More than 65536 columns: wide indices, the last values among the kept. */
static void check_wide(struct occ_device *d)
{
	struct occ_knobs k = {.codec = &occ_codec_topk, .fraction = 1e-4};
	for (int64_t n = 65535; n <= 65538; n++) {
		struct occ_codec c;
		float *x = kit_normals(n, 9);
		x[n - 1] = 100;
		x[0] = -100;
		occ_codec_init(&c, d, &k, 1, n, OCC_F32);
		occ_codec_start(&c, 1, 1);
		float *y = kit_through(&c, x);
		CHECK(keeps(n, x, y, 7), "%s: %lld columns", d->ops->name, (long long)n);
		occ_codec_release(&c);
		occ_free(x);
		occ_free(y);
	}
}

/* One send through a stream with feedback, all on the host. */
struct sent {
	float *seen, *e, *y; /* X + E before, E after, what arrives */
	size_t bytes;
};

static struct sent send(struct occ_stream *s, const float *x)
{
	struct occ_device *d = s->codec.dev;
	int64_t n = s->codec.n * s->codec.m;
	size_t bytes = (size_t)n * sizeof(*x), bound = s->codec.ops->bound(&s->codec);
	struct sent t = {.seen = kit_get(d, s->d_e, bytes), .y = kit_floats(n)};
	for (int64_t i = 0; i < n; i++)
		t.seen[i] += x[i];
	void *d_x = kit_put(d, x, bytes), *d_wire = d->ops->alloc(d, bound);
	t.bytes = occ_stream_encode(s, d_x, d_wire);
	struct kit_wire w = {kit_get(d, d_wire, t.bytes), t.bytes};
	kit_decode(&s->codec, &w, OCC_SET, t.y);
	t.e = kit_get(d, s->d_e, bytes);
	occ_free(w.at);
	d->ops->free(d, d_x);
	d->ops->free(d, d_wire);
	return t;
}

static void forget(struct sent *t)
{
	occ_free(t->seen);
	occ_free(t->e);
	occ_free(t->y);
}

/* Every element is sent or kept back, bit for bit. */
static int parted(int64_t n, const struct sent *t)
{
	for (int64_t i = 0; i < n; i++)
		if ((t->y[i] != 0 && t->e[i] != 0) || t->y[i] + t->e[i] != t->seen[i])
			return 0;
	return 1;
}

static struct occ_stream open_stream(struct occ_device *d, const struct occ_knobs *k, int64_t n,
				     int64_t m)
{
	struct occ_stream_conf conf = {.knobs = *k, .feedback = 1, .key = 1, .id = 1};
	struct occ_stream s;
	occ_stream_init(&s, d, &conf, n, m, OCC_F32);
	return s;
}

static float threshold(const struct occ_stream *s)
{
	float v;
	s->codec.dev->ops->get(s->codec.dev, &v, s->codec.d_state, sizeof(v));
	return v;
}

static int64_t count_above(int64_t n, const float *x, float least)
{
	int64_t count = 0;
	for (int64_t i = 0; i < n; i++)
		count += fabsf(x[i]) >= least;
	return count;
}

/* The threshold's life, with feedback: what is sent, how much, and when it is found anew. */
static void check_threshold(struct occ_device *d)
{
	enum { N = 40, M = 50, K = 100, PERIOD = 5 };
	struct occ_knobs k = {.codec = &occ_codec_dct, .fraction = 0.05, .period = PERIOD};
	struct occ_stream s = open_stream(d, &k, N, M);
	int floated = 0;
	for (int i = 0; i < 20; i++) {
		float *x = kit_normals(N * M, (uint64_t)i + 20), before = threshold(&s);
		struct sent t = send(&s, x);
		int64_t count = (int64_t)(t.bytes / 8), above = count_above(N * M, t.seen, before);
		int anew = i % PERIOD == 0 || 2 * above < K || above > 2 * K;
		CHECK(parted((int64_t)N * M, &t), "%s, message %d", d->ops->name, i);
		CHECK(count == (anew ? K : above), "%s, message %d: %lld", d->ops->name, i,
		      (long long)count);
		CHECK(threshold(&s) == (anew ? kth((int64_t)N * M, t.seen, K) : before),
		      "%s, message %d: threshold %g", d->ops->name, i, (double)threshold(&s));
		floated += !anew && count != K;
		forget(&t);
		occ_free(x);
	}
	CHECK(floated >= 4, "%s: the number floated %d times", d->ops->name, floated);
	occ_stream_release(&s);
}

/* Jumps in scale between two refreshes; then values that are all 0, all equal, all NaN. */
static void check_guards(struct occ_device *d)
{
	enum { N = 40, M = 50, K = 100 };
	static const float scale[] = {1, 100, 1, 0.01f, 1e-30f, 1e30f, 0, 0, 1};
	struct occ_knobs k = {.codec = &occ_codec_dct, .fraction = 0.05, .period = 1000};
	struct occ_codec c;
	occ_codec_init(&c, d, &k, N, M, OCC_F32);
	occ_codec_start(&c, 1, 1);
	for (size_t i = 0; i < sizeof(scale) / sizeof(scale[0]); i++) {
		float *x = kit_normals(N * M, i + 50);
		for (int j = 0; j < N * M; j++)
			x[j] *= scale[i];
		struct kit_wire w = kit_encode(&c, x, 0);
		int64_t count = (int64_t)(w.bytes / 8);
		CHECK(2 * count >= K && count <= 2 * K, "%s: scale %g: %lld", d->ops->name,
		      (double)scale[i], (long long)count);
		for (int j = 0; j < N * M; j++)
			x[j] = i % 2 ? NAN : 1;
		occ_free(w.at);
		w = kit_encode(&c, x, 0);
		count = (int64_t)(w.bytes / 8);
		CHECK(2 * count >= K && count <= 2 * K, "%s: all equal: %lld", d->ops->name,
		      (long long)count);
		occ_free(w.at);
		occ_free(x);
	}
	occ_codec_release(&c);
}

/* A period of 1 is topk; and topk's residual is what was not sent. */
static void check_period_one(struct occ_device *d)
{
	enum { N = 9, M = 31 };
	struct occ_knobs k = {.codec = &occ_codec_dct, .fraction = 0.1, .period = 1};
	struct occ_knobs top = {.codec = &occ_codec_topk, .fraction = 0.1};
	struct occ_stream a = open_stream(d, &k, N, M), b = open_stream(d, &top, N, M);
	for (uint64_t i = 0; i < 8; i++) {
		float *x = kit_normals(N * M, i + 30);
		struct sent s = send(&a, x), t = send(&b, x);
		CHECK(!memcmp(s.y, t.y, N * M * sizeof(*x)) &&
			      !memcmp(s.e, t.e, N * M * sizeof(*x)),
		      "%s: message %d", d->ops->name, (int)i);
		CHECK(keeps((int64_t)N * M, t.seen, t.y, 28) && parted((int64_t)N * M, &t),
		      "%s: message %d", d->ops->name, (int)i);
		forget(&s);
		forget(&t);
		occ_free(x);
	}
	occ_stream_release(&a);
	occ_stream_release(&b);
}

/* ---- Rows and the gradient that follows them. ---- */

/* y = w on the support of the wire. */
static void follow(struct occ_codec *c, const struct kit_wire *wire, const float *w, float *y)
{
	struct occ_device *d = c->dev;
	size_t bytes = (size_t)(c->n * c->m) * sizeof(*w);
	void *d_at = kit_put(d, wire->at, c->ops->support(c)), *d_w = kit_put(d, w, bytes);
	void *d_wire = d->ops->alloc(d, c->ops->follow_bound(c)), *d_y = kit_put(d, y, bytes);
	c->ops->follow_encode(c, d_at, d_w, d_wire);
	c->ops->follow_decode(c, d_at, d_wire, OCC_SET, d_y);
	d->ops->get(d, y, d_y, bytes);
	void *all[] = {d_at, d_w, d_wire, d_y};
	for (int i = 0; i < 4; i++)
		d->ops->free(d, all[i]);
}

/* f(A) = <w, mask(A) * A> through the codec. */
static double masked(struct occ_codec *c, const float *a, const float *w)
{
	float *y = kit_through(c, a);
	double sum = 0;
	for (int64_t i = 0; i < c->n * c->m; i++)
		sum += (double)w[i] * (double)y[i];
	occ_free(y);
	return sum;
}

/* The derivative of the masked forward pass, against differences. */
static void check_follow(struct occ_device *d)
{
	enum { N = 5, M = 11, K = 3 };
	const float h = 0x1p-6f;
	struct occ_knobs k = {.codec = &occ_codec_dct_rows, .fraction = 0.25};
	float *a = kit_floats(N * M), *w = kit_normals(N * M, 12), *g = kit_floats(N * M);
	struct occ_codec c;
	for (int i = 0; i < N * M; i++) /* magnitudes of a row are 1/8 apart */
		a[i] = (i % 2 ? -0.125f : 0.125f) *
		       (float)(1 + occ_rng_permute((uint64_t)(i / M), M, (uint64_t)(i % M)));
	occ_codec_init(&c, d, &k, N, M, OCC_F32);
	occ_codec_start(&c, 1, 1);
	struct kit_wire wire = kit_encode(&c, a, 0);
	float *y = kit_floats(N * M);
	kit_decode(&c, &wire, OCC_SET, y);
	follow(&c, &wire, w, g);
	for (int i = 0; i < N * M; i++) {
		float old = a[i];
		a[i] = old + h;
		double up = masked(&c, a, w);
		a[i] = old - h;
		double slope = (up - masked(&c, a, w)) / (2 * (double)h);
		a[i] = old;
		CHECK((y[i] != 0) == (g[i] != 0), "%s: support at %d", d->ops->name, i);
		CHECK_NEAR(g[i], slope, 1e-5, "%s: %d: slope %g", d->ops->name, i, slope);
	}
	for (int r = 0; r < N; r++)
		CHECK(M - count_above(M, g + r * M, 1e-30f) == M - K, "%s: row %d", d->ops->name,
		      r);
	occ_codec_release(&c);
	occ_free(wire.at);
	occ_free(a);
	occ_free(w);
	occ_free(g);
	occ_free(y);
}

/* ---- Bounds of the codecs that send every value. ---- */

static void check_quant(struct occ_device *d, int bits, int64_t group, float size)
{
	enum { N = 13, M = 17 };
	struct occ_knobs k = {.codec = &occ_codec_quant, .bits = bits, .group = group};
	double L = (1 << (bits - 1)) - 1;
	struct occ_codec c;
	float *x = kit_normals(N * M, (uint64_t)bits);
	for (int i = 0; i < N * M; i++)
		x[i] *= i % 5 ? size : 0;
	occ_codec_init(&c, d, &k, N, M, OCC_F32);
	occ_codec_start(&c, 1, 1);
	float *y = kit_through(&c, x);
	for (int64_t i = 0; i < N * M; i++) {
		int64_t from = i / group * group, to = from + group < N * M ? from + group : N * M;
		float scale = kth(to - from, x + from, 1);
		double ulp = (double)(nextafterf(scale, INFINITY) - scale);
		CHECK_NEAR(y[i], x[i], (double)scale / (2 * L) + ulp, "%s, %d bits by %lld: %g",
			   d->ops->name, bits, (long long)group, (double)x[i]);
		if (x[i] == 0 || fabsf(x[i]) == scale)
			CHECK(y[i] == x[i], "%s, %d bits by %lld: %g", d->ops->name, bits,
			      (long long)group, (double)x[i]);
	}
	occ_codec_release(&c);
	occ_free(x);
	occ_free(y);
}

static void check_cast(struct occ_device *d, int fp16, float size)
{
	enum { N = 13, M = 17 };
	struct occ_knobs k = {.codec = &occ_codec_cast, .fp16 = fp16};
	double bound = fp16 ? 0x1p-11 : 0x1p-8;
	struct occ_codec c;
	float *x = kit_exact(N * M, 40);
	for (int i = 0; i < N * M; i++)
		x[i] *= size;
	x[0] = size;
	x[1] = -size;
	occ_codec_init(&c, d, &k, N, M, OCC_F32);
	occ_codec_start(&c, 1, 1);
	float *y = kit_through(&c, x);
	for (int i = 0; i < N * M; i++)
		CHECK_NEAR(y[i], x[i], bound * fabs((double)x[i]), "%s, fp16 %d, size %g: %g",
			   d->ops->name, fp16, (double)size, (double)x[i]);
	occ_codec_release(&c);
	occ_free(x);
	occ_free(y);
}

static void check_errbound(struct occ_device *d, double eps, float size)
{
	enum { N = 17, M = 29 }; /* 7 blocks and 45 values */
	static const float odd[] = {3e38f, -3e38f, 1e-40f, -1e-45f, INFINITY, -INFINITY, NAN, 0};
	struct occ_knobs k = {.codec = &occ_codec_errbound, .epsilon = eps};
	struct occ_codec c;
	float *x = kit_normals(N * M, 60);
	for (int i = 0; i < N * M; i++)
		x[i] *= i / 64 == 2 ? 1e-41f : size;
	for (int i = 0; i < 8; i++)
		x[i * 40 + 130] = odd[i];
	occ_codec_init(&c, d, &k, N, M, OCC_F32);
	occ_codec_start(&c, 1, 1);
	float *y = kit_through(&c, x);
	for (int i = 0; i < N * M; i++) {
		int same = !memcmp(&x[i], &y[i], sizeof(*x));
		CHECK(same || (isfinite(x[i]) && fabs((double)x[i] - (double)y[i]) <= eps),
		      "%s: eps %g: %g becomes %g", d->ops->name, eps, (double)x[i], (double)y[i]);
	}
	occ_codec_release(&c);
	occ_free(x);
	occ_free(y);
}

static void check_bounds(struct occ_device *d)
{
	static const float sizes[] = {1, 1e-30f, 1e-3f, 1e5f, 3e38f / 5};
	static const double eps[] = {1e-12, 1e-3, 0.3, 1e10};
	static const int64_t groups[] = {1, 7, 64, 1000};
	for (int i = 0; i < 5; i++) {
		for (int bits = 2; bits <= 8; bits *= 2)
			for (int g = 0; g < 4; g++)
				check_quant(d, bits, groups[g], sizes[i]);
		for (int e = 0; e < 4; e++)
			check_errbound(d, eps[e], sizes[i]);
		for (int fp16 = 0; fp16 < 2; fp16++)
			check_cast(d, fp16, sizes[i]);
	}
	check_cast(d, 1, 3e38f);
	check_cast(d, 0, 3e38f);
}

static void check_on(const char *name)
{
	struct occ_device *d = kit_open(name, OCC_F32), *half = kit_open(name, OCC_BF16);
	for (int i = 0; i < KIT_ROWS; i++)
		for (int s = 0; s < KIT_SHAPES; s++) {
			struct occ_device *of = kit_rows[i].type == OCC_F32 ? d : half;
			check_codec(of, &kit_rows[i], kit_shapes[s].n, kit_shapes[s].m);
			check_not_finite(of, &kit_rows[i], kit_shapes[s].n, kit_shapes[s].m);
		}
	for (int s = 0; s < KIT_SHAPES; s++)
		for (int f = 0; f <= 4; f++)
			check_topk(d, kit_shapes[s].n, kit_shapes[s].m, f * 0.25);
	check_wide(d);
	check_threshold(d);
	check_guards(d);
	check_period_one(d);
	check_follow(d);
	check_bounds(d);
	occ_device_close(d);
	occ_device_close(half);
	check_sums(name);
}

int main(void)
{
	for (int i = 0; i < 3; i++)
		if (kit_takes(i))
			check_on(kit_device(i));
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}
