/* The device slots that codecs need: cpu and strict write ref's bytes on random shapes, whatever
 * the threads; and what the contract says of each wire holds for every device. CUDA: 1 */
#include "base/device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mem.h"
#include "tests/check.h"
#include "tests/codec_slot_run.h"

#ifdef __SANITIZE_THREAD__
enum { MOST_THREADS = 1 }; /* it does not see how libgomp's threads meet */
#else
enum { MOST_THREADS = 3 };
#endif

/* ---- The slots. ---- */

#define OPS r->d->ops

static void run_accumulate(struct run *r)
{
	int64_t n = size(r);
	enum occ_type type = any(r, 0, 1) ? OCC_BF16 : OCC_F32;
	void *x = floats(r, n, any(r, 0, 1) ? NORMAL : TIES, 1); /* as bf16 any bits will do */
	enum occ_how h = how(r);
	float *y = inout(r, n);
	OPS->accumulate(r->d, n, type, x, h, y);
	OPS->scale(r->d, n, any(r, 0, 3) ? 0.3f : 0, y);
}

static void run_orthonormalise(struct run *r)
{
	int64_t most = any(r, 1, r->big ? 70 : 20);
	int64_t n = 2 * most + any(r, 0, r->big ? 3000 : 50);
	OPS->orthonormalise(r->d, n, most, inout(r, n * most));
}

struct sparse {
	int64_t R, C, k;
	int width;
};

static struct sparse sparse(struct run *r)
{
	int64_t R = any(r, 1, r->big ? 60 : 5), C = any(r, 1, r->big ? 1500 : 90);
	if (r->culprit >= 0)
		return (struct sparse){3, 9, 4, 4};
	if (r->big && any(r, 0, 1)) {
		R = any(r, 1, 2);
		C = any(r, 0, 1) ? any(r, 65536, 69000) : any(r, 65000, 140000);
	}
	int64_t k = any(r, 0, 3) ? any(r, 0, C) : any(r, 0, 1) ? C : 1;
	return (struct sparse){R, C, k, C <= 65536 && any(r, 0, 1) ? 2 : 4};
}

static void select_of(struct run *r, struct sparse s, const float *d_x)
{
	void *at = out(r, s.R * s.k * s.width), *value = out(r, s.R * s.k * 4);
	float *least = any(r, 0, 1) ? out(r, s.R * 4) : NULL;
	OPS->select(r->d, s.R, s.C, s.k, d_x, s.width, at, value, least);
}

static void run_select(struct run *r)
{
	struct sparse s = sparse(r);
	select_of(r, s, in(r, s.R * s.C));
}

/* A row whose every 16th element is large, and nothing else. */
static void run_select_misled(struct run *r)
{
	struct sparse s = {1, r->big ? any(r, 65536, 69000) : 99, 0, 4};
	s.k = any(r, s.C / 15, s.C / 2);
	select_of(r, s, floats(r, s.C, SPIKES, 1));
}

/* Rows that are too long for a GPU's own memory, and too short to be cut. */
static void run_select_blocks(struct run *r)
{
	struct sparse s = {any(r, 1, 3), any(r, 8193, 16383), 0, any(r, 1, 2) * 2};
	s.k = any(r, 1, s.C);
	select_of(r, s, in(r, s.R * s.C));
}

static void run_above(struct run *r)
{
	int64_t n = size(r), cap = any(r, 0, 2) ? any(r, 1, n) : n, count = -1;
	float limit = (float)any(r, 0, 3) * 0.9f;
	float *x = in(r, n), *least = array(r, sizeof(limit), &limit, 1, 0);
	void *at = out(r, cap * 4), *value = out(r, cap * 4);
	OPS->above(r->d, n, x, least, cap, at, value, &count);
	count_out(r, count);
}

/* k of C indices for each row, none twice. */
static void *indices(struct run *r, struct sparse s)
{
	size_t bytes = (size_t)(s.R * s.k * s.width);
	char *x = occ_alloc(bytes + 1, 1);
	for (int64_t i = 0; i < s.R * s.k; i++) {
		uint64_t at = occ_rng_permute(r->key + (uint64_t)(i / s.k), (uint64_t)s.C,
					      (uint64_t)(i % s.k));
		uint16_t narrow = (uint16_t)at;
		int32_t wide = (int32_t)at;
		memcpy(x + i * s.width, s.width == 2 ? (void *)&narrow : (void *)&wide,
		       (size_t)s.width);
	}
	void *d_x = array(r, bytes, x, 1, 0);
	occ_free(x);
	return d_x;
}

static void run_pick(struct run *r)
{
	struct sparse s = sparse(r);
	void *at = indices(r, s), *x = in(r, s.R * s.C);
	OPS->pick(r->d, s.R, s.C, s.k, s.width, at, x, out(r, s.R * s.k * 4));
}

static void run_place(struct run *r)
{
	struct sparse s = sparse(r);
	void *at = indices(r, s), *value = in(r, s.R * s.k);
	enum occ_how h = how(r);
	OPS->place(r->d, s.R, s.C, s.k, s.width, at, value, h, inout(r, s.R * s.C));
}

static int64_t group_of(struct run *r, int64_t n)
{
	int64_t c = any(r, 0, 4);
	return c == 0 ? any(r, 1, 9) : c == 1 ? n + any(r, 0, 9) : c == 2 ? 300000 : any(r, 1, n);
}

static void run_quantise(struct run *r)
{
	int64_t n = size(r), group = group_of(r, n);
	int bits = 1 << any(r, 1, 3);
	float *x = in(r, n), *y;
	void *wire = out(r, (n + group - 1) / group * 4 + (n * bits + 7) / 8);
	enum occ_how h = how(r);
	OPS->quantise(r->d, n, bits, group, x, wire);
	y = inout(r, n);
	OPS->dequantise(r->d, n, bits, group, wire, h, y);
}

static void run_half(struct run *r)
{
	int64_t n = size(r);
	float *x = in(r, n);
	void *wire = out(r, 4 + 2 * n);
	enum occ_how h = how(r);
	OPS->half_pack(r->d, n, x, wire);
	OPS->half_unpack(r->d, n, wire, h, inout(r, n));
}

static void run_bound(struct run *r)
{
	static const double eps[] = {1e-30, 1e-8, 1e-5, 1e-3, 0.1, 1, 10, 1e30};
	int64_t n = size(r), blocks = (n + OCC_BOUND_BLOCK - 1) / OCC_BOUND_BLOCK, bytes = -1;
	double e = eps[any(r, 0, 7)];
	float *x = in(r, n);
	void *wire = out(r, (blocks + 3) / 4 * 4 + blocks * OCC_BOUND_BLOCK * 4);
	enum occ_how h = how(r);
	OPS->bound_pack(r->d, n, e, x, wire, &bytes);
	count_out(r, bytes);
	OPS->bound_unpack(r->d, n, e, wire, h, inout(r, n));
}

/* tolerance: 0 is equal bytes. */
static const struct slot {
	const char *name;
	void (*run)(struct run *r);
	double tolerance;
} slots[] = {
	{"accumulate and scale", run_accumulate, 0},
	{"orthonormalise", run_orthonormalise, 2e-5},
	{"select", run_select, 0},
	{"select, misled", run_select_misled, 0},
	{"above", run_above, 0},
	{"pick", run_pick, 0},
	{"place", run_place, 0},
	{"quantise and dequantise", run_quantise, 0},
	{"half_pack and half_unpack", run_half, 0},
	{"bound_pack and bound_unpack", run_bound, 0},
	{"select, blocks", run_select_blocks, 0},
};

enum { NALL = sizeof(slots) / sizeof(slots[0]), NSLOTS = NALL - 1 }; /* the last: not of cpu */

/* ---- Comparing. ---- */

static struct run run_slot(const struct slot *s, const char *device, int threads, int round)
{
	struct occ_err e = {0};
	struct run r = {.d = occ_device_open(device, round % 2 ? OCC_BF16 : OCC_F32, threads, &e),
			.big = round % 4 == 3,
			.culprit = -1};
	CHECK(r.d, "%s: %s", device, e.text);
	r.key = occ_rng_u64((uint64_t)(s - slots), (uint64_t)round);
	s->run(&r);
	for (int i = 0; i < r.n; i++) {
		struct array *a = &r.at[i];
		void *x = occ_alloc(a->bytes + 1, 1);
		r.d->ops->get(r.d, x, a->d_x, a->bytes);
		r.d->ops->free(r.d, a->d_x);
		a->d_x = x;
		CHECK(!a->before || !memcmp(x, a->before, a->bytes), "%s of %s writes input %d",
		      s->name, device, i);
		occ_free(a->before);
	}
	occ_device_close(r.d);
	return r;
}

static void run_free(struct run *r)
{
	for (int i = 0; i < r->n; i++)
		occ_free(r->at[i].d_x);
}

/* Largest difference of two arrays; infinity where one is NaN and the other is not. */
static double distance(const struct array *a, const struct array *b)
{
	const float *x = a->d_x, *y = b->d_x;
	double worst = 0;
	for (size_t i = 0; i < a->bytes / sizeof(*x); i++) {
		double e = x[i] == y[i] || (isnan(x[i]) && isnan(y[i]))
				   ? 0
				   : fabs((double)x[i] - (double)y[i]);
		worst = e <= worst ? worst : isnan(e) ? INFINITY : e;
	}
	return worst;
}

static void compare(const struct slot *s, const struct run *a, const struct run *b,
		    double tolerance, const char *what, int round)
{
	CHECK(a->n == b->n, "%s: arrays", s->name);
	for (int i = 0; i < a->n && i < b->n; i++) {
		const struct array *x = &a->at[i], *y = &b->at[i];
		CHECK(x->bytes == y->bytes, "%s of %s: size of array %d", s->name, what, i);
		if (x->bytes != y->bytes || !memcmp(x->d_x, y->d_x, x->bytes))
			continue;
		double e = x->floats ? distance(x, y) : INFINITY;
		CHECK(e <= tolerance, "%s of %s, round %d, array %d: %g", s->name, what, round, i,
		      e);
	}
}

/* The environment's device instead of cpu and strict. */
static void other_round(const struct slot *s, const char *device, int round)
{
	struct run ref = run_slot(s, "ref", 1, round), one = run_slot(s, device, 1, round);
	struct run again = run_slot(s, device, 1, round);
	compare(s, &one, &ref, s->tolerance, device, round);
	compare(s, &again, &one, 0, "the same again", round);
	run_free(&ref);
	run_free(&one);
	run_free(&again);
}

static void slot_round(const struct slot *s, int round)
{
	struct run ref = run_slot(s, "ref", 1, round), strict = run_slot(s, "strict", 1, round);
	struct run one = run_slot(s, "cpu", 1, round);
	compare(s, &strict, &ref, 0, "strict", round);
	compare(s, &one, &ref, s->tolerance, "cpu", round);
	for (int threads = 2; threads <= MOST_THREADS && round % 2; threads++) {
		struct run many = run_slot(s, "cpu", threads, round);
		compare(s, &many, &one, 0, "cpu, many threads", round);
		run_free(&many);
	}
	run_free(&ref);
	run_free(&strict);
	run_free(&one);
}

/* ---- The strict device: each array of each slot in turn stays in the host's memory. ---- */

static void crime(const struct slot *s, int culprit)
{
	struct occ_err e = {0};
	struct run r = {.d = occ_device_open("strict", OCC_F32, 1, &e), .culprit = culprit};
	close(STDERR_FILENO);
	r.key = occ_rng_u64((uint64_t)(s - slots), 0);
	s->run(&r);
	int done = culprit >= r.n || !r.at[culprit].bytes || !r.at[culprit].before;
	_exit(done ? 0 : 1);
}

static void host_pointers(const struct slot *s)
{
	for (int culprit = 0; culprit < MAX_ARRAYS; culprit++) {
		pid_t child = fork();
		if (!child)
			crime(s, culprit);
		int status = 0;
		waitpid(child, &status, 0);
		int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
		CHECK(code == OCC_E_BUG || (culprit > 0 && code == 0),
		      "%s: array %d of the host ends with %d", s->name, culprit, code);
	}
}

/* ---- What goes through a wire, in host memory: x (n) becomes y. ---- */

struct wire {
	enum { HALF, QUANT, BOUND } kind;
	int bits;
	int64_t group;
	double eps;
};

static void use(struct occ_device *d, const struct wire *w, int64_t n, const float *d_x,
		void *d_wire, float *d_y)
{
	int64_t bytes;
	if (w->kind == HALF) {
		d->ops->half_pack(d, n, d_x, d_wire);
		d->ops->half_unpack(d, n, d_wire, OCC_SET, d_y);
	} else if (w->kind == QUANT) {
		d->ops->quantise(d, n, w->bits, w->group, d_x, d_wire);
		d->ops->dequantise(d, n, w->bits, w->group, d_wire, OCC_SET, d_y);
	} else {
		d->ops->bound_pack(d, n, w->eps, d_x, d_wire, &bytes);
		d->ops->bound_unpack(d, n, w->eps, d_wire, OCC_SET, d_y);
	}
}

static void through(const char *device, const struct wire *w, int64_t n, const float *x, float *y)
{
	struct occ_err e = {0};
	struct occ_device *d = occ_device_open(device, OCC_F32, MOST_THREADS < 2 ? 1 : 2, &e);
	size_t bytes = (size_t)n * sizeof(*x);
	float *d_x = d->ops->alloc(d, 4 * bytes + 512), *d_y = d_x + n, *d_wire = d_y + n;
	d->ops->put(d, d_x, x, bytes);
	use(d, w, n, d_x, d_wire, d_y);
	d->ops->get(d, y, d_y, bytes);
	d->ops->free(d, d_x);
	occ_device_close(d);
}

static const char *const devices[] = {"ref", "strict", "cpu"};
enum { NDEVICES = 3 };

static void all_halves(void)
{
	for (uint32_t h = 0; h < 0x10000; h++) {
		uint16_t back = occ_f32_to_f16(occ_f16_to_f32((uint16_t)h));
		int nan = (h & 0x7fff) > 0x7c00;
		CHECK(nan ? (back & 0x7fff) > 0x7c00 : back == h, "%04x becomes %04x", h, back);
	}
}

/* fp16's 11 bits of each number, or half of its smallest. */
static void half_errors(const char *device)
{
	enum { N = 20011, SCALES = 6 };
	static const float scales[SCALES] = {1, 3e38f / 4.5f, 1e-30f, 1e-38f, 1e-44f, 0};
	float *x = occ_alloc(N, sizeof(*x)), *y = occ_alloc(N, sizeof(*y));
	const struct wire w = {.kind = HALF};
	for (int k = 0; k < SCALES; k++) {
		double least = (double)scales[k] * 0x1p-38 + 0x1p-151, worst = 0;
		for (int i = 0; i < N; i++)
			x[i] = scales[k] * fminf(4.5f, fmaxf(-4.5f, occ_rng_normal(5, 1, i)));
		x[77] = scales[k] * 4.5f;
		through(device, &w, N, x, y);
		for (int i = 0; i < N; i++) {
			double e = fabs((double)x[i] - (double)y[i]);
			worst = e <= fabs((double)x[i]) * 0x1p-11 + least ? worst : 1;
		}
		CHECK(worst == 0, "%s: an fp16 of scale %g is off", device, (double)scales[k]);
	}
	occ_free(x);
	occ_free(y);
}

static void quant_errors(const char *device, int bits, int64_t group)
{
	enum { N = 20011 };
	float *x = numbers(4, NORMAL, 1, N), *y = occ_alloc(N, sizeof(*y));
	const struct wire w = {.kind = QUANT, .bits = bits, .group = group};
	double L = (1 << (bits - 1)) - 1;
	int bad = 0;
	for (int i = 0; i < N; i += 3)
		x[i] = 0;
	through(device, &w, N, x, y);
	for (int i = 0; i < N; i++) {
		double most = 0, v = (double)x[i];
		for (int64_t k = i / group * group; k < (i / group + 1) * group && k < N; k++)
			most = fmax(most, fabs((double)x[k]));
		bad += fabs(v - (double)y[i]) > most * (0.5 / L + 1e-6);
		bad += (v == 0 || fabs(v) == most) && x[i] != y[i];
		i += group > 1000 && i % 50 == 7 ? 49 : 0; /* a sample */
	}
	CHECK(!bad, "%s: %d numbers of %d bits are off", device, bad, bits);
	occ_free(x);
	occ_free(y);
}

static void bound_errors(const char *device, double eps)
{
	enum { N = 30011 };
	float *x = numbers(6, ODD, 1, N), *y = occ_alloc(N, sizeof(*y));
	const struct wire w = {.kind = BOUND, .eps = eps};
	int bad = 0;
	for (int i = 0; i < N; i++) {
		int64_t block = i / OCC_BOUND_BLOCK;
		double v = (double)occ_rng_normal(9, 1, (uint64_t)i);
		v = v * eps * pow(10, (double)(block % 13 - 1)); /* few bits, many, and too many */
		if (block % 3 && v < 3e38 && v > -3e38)
			x[i] = (float)v;
	}
	through(device, &w, N, x, y);
	for (int i = 0; i < N; i++)
		bad += isfinite(x[i]) ? !(fabs((double)x[i] - (double)y[i]) <= eps)
				      : !!memcmp(&x[i], &y[i], sizeof(*x));
	CHECK(!bad, "%s: %d numbers miss %g", device, bad, eps);
	occ_free(x);
	occ_free(y);
}

static void wires(const char *device)
{
	static const double eps[] = {1e-30, 1e-12, 1e-6, 1e-3, 1, 1e4, 1e12, 1e30};
	half_errors(device);
	for (int bits = 2; bits <= 8; bits *= 2) {
		quant_errors(device, bits, 33);
		quant_errors(device, bits, 100000);
	}
	for (size_t i = 0; i < sizeof(eps) / sizeof(eps[0]); i++)
		bound_errors(device, eps[i]);
}

/* ---- The rest. ---- */

/* An fp32 product of a device: c (20,30) = a (20,40) * b (40,30) + c. */
static void product(const char *device, enum occ_type type, float c[600])
{
	struct occ_err e = {0};
	struct occ_device *d = occ_device_open(device, type, 1, &e);
	const struct occ_gemm g = {.m = 20,
				   .n = 30,
				   .k = 40,
				   .lda = 40,
				   .ldb = 30,
				   .ldc = 30,
				   .c_type = OCC_F32,
				   .beta = 1,
				   .f32 = 1};
	float *x = numbers(11, NORMAL, 1, 2600), *d_x = d->ops->alloc(d, 2600 * sizeof(*x));
	d->ops->put(d, d_x, x, 2600 * sizeof(*x));
	d->ops->gemm(d, &g, d_x, d_x + 800, NULL, d_x + 2000);
	d->ops->get(d, c, d_x + 2000, 600 * sizeof(*c));
	d->ops->free(d, d_x);
	occ_free(x);
	occ_device_close(d);
}

static void products_in_fp32(const char *device)
{
	float of_bf16[600], of_fp32[600];
	product(device, OCC_BF16, of_bf16);
	product(device, OCC_F32, of_fp32);
	CHECK(!memcmp(of_bf16, of_fp32, sizeof(of_bf16)), "%s: fp32 product of a bf16 device",
	      device);
}

/* Nothing is allocated after the first calls of a shape. */
static void allocations(void)
{
	enum { N = 1 << 17 };
	struct occ_err e = {0};
	struct occ_device *d = occ_device_open("cpu", OCC_BF16, MOST_THREADS < 2 ? 1 : 2, &e);
	float *a = d->ops->alloc(d, N * 16), *b = a + N, *wire = b + N;
	int64_t calls = 0, bytes;
	for (int pass = 0; pass < 2; pass++) {
		calls = occ_mem_calls();
		d->ops->orthonormalise(d, N / 16, 16, a);
		d->ops->select(d, 1, N, 100, a, 4, wire, b, NULL);
		d->ops->select(d, 128, N / 128, 3, a, 2, wire, b, NULL);
		d->ops->above(d, N, a, b, 100, (int32_t *)(void *)wire, b, &bytes);
		for (int kind = HALF; kind <= BOUND; kind++)
			use(d, &(struct wire){kind, 4, 64, 1e-3}, N, a, wire, b);
	}
	CHECK(occ_mem_calls() == calls, "a second pass allocates");
	d->ops->free(d, a);
	occ_device_close(d);
}

/* GPU code on the CPU is slow: fewer rounds. */
static int other_device(const char *device, int rounds)
{
	for (int i = 0; i < NALL; i++)
		for (int round = 0; round < rounds; round++)
			other_round(&slots[i], device, round);
	wires(device);
	products_in_fp32(device);
	return check_done();
}

int main(int argc, char **argv)
{
	const char *other = check_device(NULL);
	int rounds = argc > 1 ? atoi(argv[1]) : other ? 8 : 40;
	if (other)
		return other_device(other, rounds);
	for (int i = 0; i < NSLOTS; i++)
		host_pointers(&slots[i]);
	for (int i = 0; i < NSLOTS; i++)
		for (int round = 0; round < rounds; round++)
			slot_round(&slots[i], round);
	all_halves();
	for (int i = 0; i < NDEVICES; i++) {
		wires(devices[i]);
		products_in_fp32(devices[i]);
	}
	allocations();
	return check_done();
}
