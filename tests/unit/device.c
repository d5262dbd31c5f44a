/* Devices agree: every slot of cpu and strict against ref, on random shapes and both types, within
 * a stated error bound; cpu's results do not depend on its threads. CUDA: 1 TIME: 300 */
#include "base/device.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/lane.h"
#include "tests/check.h"
#include "tests/product_slots.h"
#include "tests/slot_run.h"

/* ---- The slots. ---- */

/* Rows and columns: half of the time columns that wide accesses can take; now and then long rows.
 */
static void shape(struct run *r, int64_t *R, int64_t *C)
{
	int is_long = r->big && pick(r, 0, 3) == 0;
	*R = pick(r, 1, is_long ? 4 : r->big ? 300 : 20);
	*C = pick(r, 1, is_long ? 9000 : r->big ? 400 : 40);
	if (pick(r, 0, 1))
		*C = (*C + 7) / 8 * 8;
}

static void run_cast(struct run *r)
{
	int64_t n = r->big ? pick(r, 20000, 40000) : pick(r, 1, 100);
	enum occ_type from = pick(r, 0, 1) ? OCC_BF16 : OCC_F32;
	enum occ_type to = pick(r, 0, 1) ? OCC_BF16 : OCC_F32;
	void *x = draw(r, n, from, 1, 0, 0);
	OPS->cast(r->d, n, from, x, to, out(r, n, to));
}

static void run_add(struct run *r)
{
	int64_t n = r->big ? pick(r, 20000, 40000) : pick(r, 1, 100);
	void *x = in(r, n);
	OPS->add(r->d, n, x, inout(r, n, T_));
}

static void run_gelu_forward(struct run *r)
{
	int64_t n = r->big ? pick(r, 20000, 40000) : pick(r, 1, 100);
	void *x = draw(r, n, T_, pick(r, 0, 1) ? 1 : 8, 0, 0);
	OPS->gelu_forward(r->d, n, x, out(r, n, T_));
}

static void run_gelu_backward(struct run *r)
{
	int64_t n = r->big ? pick(r, 20000, 40000) : pick(r, 1, 100);
	void *x = draw(r, n, T_, pick(r, 0, 1) ? 1 : 8, 0, 0);
	void *dy = inout(r, n, T_), *dx = out(r, n, T_);
	OPS->gelu_backward(r->d, n, x, dy, dx);
	OPS->gelu_backward(r->d, n, x, dy, dy);
}

static void run_bias_backward(struct run *r)
{
	int64_t R, C;
	shape(r, &R, &C);
	void *dy = in(r, R * C);
	OPS->bias_backward(r->d, R, C, dy, inout(r, C, OCC_F32));
}

static void run_residual_norm_forward(struct run *r)
{
	int64_t R, C;
	shape(r, &R, &C);
	int delta = (int)pick(r, 0, 3), norm = (int)pick(r, 0, 3), inplace = (int)pick(r, 0, 1);
	struct occ_drop drop = dropout(r);
	/* A mean far from 0; not of few columns, which may by chance be so close to each other that
	 * the mean's last bit shows. */
	double shift = pick(r, 0, 1) && C >= 16 ? 3 : 0;
	void *x = draw(r, R * C, T_, 1, shift, delta && inplace);
	void *d_delta = delta ? in(r, R * C) : NULL, *bias = delta > 1 ? in(r, C) : NULL;
	void *xo = !delta ? NULL : inplace ? x : out(r, R * C, T_);
	void *w = norm ? in(r, C) : NULL, *b = norm ? in(r, C) : NULL;
	void *y = norm ? out(r, R * C, T_) : NULL;
	float *mean = norm ? out(r, R, OCC_F32) : NULL, *rstd = norm ? out(r, R, OCC_F32) : NULL;
	OPS->residual_norm_forward(r->d, R, C, x, d_delta, bias, &drop, w, b, xo, y, mean, rstd);
}

static void run_residual_norm_backward(struct run *r)
{
	int64_t R, C;
	shape(r, &R, &C);
	C += C == 1; /* whose gradient is 0, and the measure nothing but rounding */
	int norm = (int)pick(r, 0, 3), res = (int)pick(r, 0, 2), delta = (int)pick(r, 0, 2);
	struct occ_drop drop = dropout(r);
	void *dy = norm ? in(r, R * C) : NULL, *x = norm ? in(r, R * C) : NULL;
	void *w = norm ? in(r, C) : NULL;
	float *mean = in_f32(r, R, 0.1, 0), *rstd = in_f32(r, R, 0.1, 1);
	void *dres = res == 2 ? inout(r, R * C, T_) : res ? in(r, R * C) : NULL;
	void *dx = res == 2 ? dres : out(r, R * C, T_);
	void *ddelta = delta == 2 && drop.p == 0 ? dx : delta ? out(r, R * C, T_) : NULL;
	float *dw = inout(r, C, OCC_F32), *db = inout(r, C, OCC_F32);
	float *dbias = ddelta && pick(r, 0, 1) ? inout(r, C, OCC_F32) : NULL;
	OPS->residual_norm_backward(r->d, R, C, dy, dres, x, w, mean, rstd, &drop, dx, ddelta, dw,
				    db, dbias);
}

static struct occ_attention attention(struct run *r)
{
	static const int64_t sizes[] = {1, 8, 16, 20, 32, 40, 64, 80};
	struct occ_attention a = {.B = pick(r, 1, 2), .T = pick(r, 1, r->big ? 200 : 20)};
	a.H = pick(r, 1, r->big ? 4 : 2);
	a.D = sizes[pick(r, 0, 7)];
	a.drop = dropout(r);
	return a;
}

static void run_attention_forward(struct run *r)
{
	struct occ_attention a = attention(r);
	int64_t n = a.B * a.T * a.H * a.D;
	void *qkv = in(r, 3 * n), *o = out(r, n, T_);
	OPS->attention_forward(r->d, &a, qkv, o, out(r, a.B * a.H * a.T, OCC_F32));
}

static void run_attention_backward(struct run *r)
{
	struct occ_attention a = attention(r);
	int64_t n = a.B * a.T * a.H * a.D;
	void *qkv = in(r, 3 * n), *o = in(r, n), *dout = in(r, n);
	/* like the lse of such scores, so that probabilities are of the order of 1/T */
	float *lse = in_f32(r, a.B * a.H * a.T, 0.1, log((double)a.T) + 1);
	OPS->attention_backward(r->d, &a, qkv, o, lse, dout, out(r, 3 * n, T_));
}

static void run_embed_forward(struct run *r)
{
	int64_t R, C;
	shape(r, &R, &C);
	int64_t V = pick(r, 1, 50), v0 = pick(r, 0, 50);
	int32_t *tokens = ids(r, R, v0 - 5, v0 + V + 5);
	void *wte = in(r, V * C);
	OPS->embed_forward(r->d, R, C, v0, V, tokens, wte, out(r, R * C, T_));
}

static void run_embed_backward(struct run *r)
{
	int64_t R, C;
	shape(r, &R, &C);
	if (r->big && pick(r, 0, 1)) { /* sorting takes several blocks and digits */
		R = pick(r, 2000, 6000);
		C = pick(r, 1, 16);
	}
	int64_t V = pick(r, 1, pick(r, 0, 1) ? 50 : 70000 / C), v0 = pick(r, 0, 50);
	int32_t *tokens = ids(r, R, v0 - 5, v0 + V + 5);
	void *dout = in(r, R * C);
	OPS->embed_backward(r->d, R, C, v0, V, tokens, dout, inout(r, V * C, OCC_F32));
}

static void run_position_forward(struct run *r)
{
	int64_t R, C;
	shape(r, &R, &C);
	int64_t T = pick(r, 1, R + 3);
	struct occ_drop drop = dropout(r);
	void *wpe = in(r, T * C);
	OPS->position_forward(r->d, R, C, T, wpe, &drop, inout(r, R * C, T_));
}

static void run_position_backward(struct run *r)
{
	int64_t R, C;
	shape(r, &R, &C);
	int64_t T = pick(r, 1, R + 3);
	struct occ_drop drop = dropout(r);
	void *dx = inout(r, R * C, T_);
	OPS->position_backward(r->d, R, C, T, &drop, dx, inout(r, T * C, OCC_F32));
}

/* A shard with padding behind `valid`, perhaps nothing but padding. */
static struct occ_xent xent(struct run *r)
{
	struct occ_xent x = {.rows = pick(r, 1, r->big ? 40 : 10), .v0 = pick(r, 0, 100)};
	x.V = pick(r, 1, r->big ? 3000 : 40);
	x.ld = x.V + pick(r, 0, 1) * pick(r, 0, 20);
	if (pick(r, 0, 1))
		x.ld = (x.ld + 7) / 8 * 8;
	x.valid = x.v0 + (pick(r, 0, 5) ? pick(r, 1, x.V + 40) : -pick(r, 0, x.v0));
	return x;
}

/* Targets in and around the shard, below `valid`; a quarter of the rows count nothing. */
static int32_t *targets(struct run *r, const struct occ_xent *x)
{
	int32_t *t = occ_alloc((size_t)x->rows, sizeof(*t));
	for (int64_t i = 0; i < x->rows; i++) {
		int64_t id = x->v0 + pick(r, -3, x->V + 3);
		id = id < x->valid ? id : x->valid - 1;
		t[i] = pick(r, 0, 3) && id >= 0 ? (int32_t)id : -1;
	}
	return put_ids(r, x->rows, t);
}

static void run_xent_stats(struct run *r)
{
	struct occ_xent x = xent(r);
	void *logits = draw(r, x.rows * x.ld, T_, 3, 0, 0);
	int32_t *t = targets(r, &x);
	float *max = out(r, x.rows, OCC_F32), *sum = out(r, x.rows, OCC_F32);
	OPS->xent_stats(r->d, &x, logits, t, max, sum, out(r, x.rows, OCC_F32));
}

static void run_xent_rescale(struct run *r)
{
	int64_t n = pick(r, 1, 1000);
	float *max = in_f32(r, n, 1, 0), *top = in_f32(r, n, 1, 8);
	OPS->xent_rescale(r->d, n, max, top, draw(r, n, OCC_F32, 0.1, 2, 1));
}

static void run_xent_finish(struct run *r)
{
	struct occ_xent x = xent(r);
	int in_place = (int)pick(r, 0, 1);
	void *logits = draw(r, x.rows * x.ld, T_, 3, 0, in_place);
	float *top = in_f32(r, x.rows, 1, 8);
	int32_t *t = targets(r, &x);
	float *sum = in_f32(r, x.rows, 0.1, 2), *hit = in_f32(r, x.rows, 1, 3);
	float *loss = out(r, x.rows, OCC_F32);
	void *dlogits = in_place ? logits : pick(r, 0, 3) ? inout(r, x.rows * x.ld, T_) : NULL;
	OPS->xent_finish(r->d, &x, logits, t, top, sum, hit, 0.37f, loss, dlogits);
}

static void run_adamw(struct run *r)
{
	struct occ_adamw a = {0.1f, 0.9f, 0.95f, 1e-8f, pick(r, 0, 1) ? 0.1f : 0,
			      0.5f, 0.1f, 0.05f};
	int64_t n;
	float *g;
	struct occ_pieces p = pieces(r, &n, &g);
	float *m = inout(r, n, OCC_F32), *v = draw(r, n, OCC_F32, 0.05, 1, 1);
	float *master = T_ == OCC_BF16 || pick(r, 0, 1) ? inout(r, n, OCC_F32) : NULL;
	OPS->adamw(r->d, &a, &p, g, m, v, master, inout(r, n, T_));
}

static void run_fold(struct run *r)
{
	int64_t n = r->big ? pick(r, 20000, 40000) : pick(r, 1, 100);
	int k = (int)pick(r, 1, 5), max = (int)pick(r, 0, 1);
	void *x = in(r, k * n);
	OPS->fold(r->d, k, n, T_, max, x, out(r, n, T_));
}

/* A sum as two outputs: the second part shows what fp32 cannot. */
static void put_sum(struct run *r, double sum)
{
	float part[2] = {(float)sum, (float)((sum - (double)(float)sum) * 1e7)};
	array(r, 2, OCC_F32, part, 1);
}

static void run_sum_squares(struct run *r)
{
	int64_t n = r->big ? pick(r, 20000, 40000) : pick(r, 1, 2000);
	float *x = in_f32(r, n, 1, 0);
	put_sum(r, occ_sum_squares(r->d, n, x));
}

static void run_piece_squares(struct run *r)
{
	int64_t n;
	float *x;
	struct occ_pieces p = pieces(r, &n, &x);
	size_t bytes = (size_t)p.n * sizeof(double);
	double sum[MOST_PIECES], *d_sum = OPS->alloc(r->d, bytes);
	OPS->piece_squares(r->d, &p, x, d_sum);
	OPS->get(r->d, sum, d_sum, bytes);
	OPS->free(r->d, d_sum);
	for (int k = 0; k < p.n; k++)
		put_sum(r, sum[k]);
}

/* Largest |x - ref| / (|ref| + rms of ref) over an output: of fp32 outputs, and of outputs in bf16
 * (whose last bit is up to 2^-7). 0: equal bits. `by_threads`: the library may sum in another
 * order. `gpu`: of outputs in bf16 where a GPU computes, if that is more: flash kernels, cuDNN's
 * and ours, hold probabilities, and on the way back their gradients, in bf16 before they are
 * multiplied, each rounding up to 2^-9 of values that cancel; 1.5e-2 was measured. */
static const struct slot {
	const char *name;
	void (*run)(struct run *r);
	double f32, bf16;
	int by_threads;
	double gpu;
} slots[] = {
	{"cast", run_cast, 0, 0, 0, 0},
	{"add", run_add, 0, 0, 0, 0},
	{"gelu_forward", run_gelu_forward, 3e-7, 0x1p-7, 0, 0},
	{"gelu_backward", run_gelu_backward, 5e-7, 0x1p-7, 0, 0},
	{"gemm", run_gemm, 2e-6, 0x1p-7, 1, 0},
	{"gemm_gelu", run_gemm_gelu, 3e-6, 0x1p-7, 1, 0},
	{"gemm_gelu_backward", run_gemm_gelu_backward, 3e-6, 0x1p-7, 1, 0},
	{"bias_backward", run_bias_backward, 1e-6, 0, 0, 0},
	{"residual_norm_forward", run_residual_norm_forward, 4e-6, 0x1p-7, 0, 0},
	{"residual_norm_backward", run_residual_norm_backward, 4e-6, 0x1p-7, 0, 0},
	{"attention_forward", run_attention_forward, 3e-6, 0x1p-7, 0, 0x1p-6},
	{"attention_backward", run_attention_backward, 5e-6, 0x1p-7, 0, 0x1p-6},
	{"embed_forward", run_embed_forward, 0, 0, 0, 0},
	{"embed_backward", run_embed_backward, 0, 0, 0, 0},
	{"position_forward", run_position_forward, 2e-7, 0x1p-7, 0, 0},
	{"position_backward", run_position_backward, 2e-7, 0x1p-7, 0, 0},
	{"xent_stats", run_xent_stats, 5e-7, 0, 0, 0},
	{"xent_rescale", run_xent_rescale, 5e-7, 0, 0, 0},
	{"xent_finish", run_xent_finish, 5e-7, 0x1p-7, 0, 0},
	{"adamw", run_adamw, 1e-6, 0x1p-7, 0, 0},
	{"fold", run_fold, 0, 0, 0, 0},
	{"sum_squares", run_sum_squares, 1e-6, 0, 0, 0},
	{"piece_squares", run_piece_squares, 1e-6, 0, 0, 0},
};

enum { NSLOTS = sizeof(slots) / sizeof(slots[0]) };

/* ---- Comparing. ---- */

#ifdef __SANITIZE_THREAD__
enum { MOST_THREADS = 1 }; /* it does not see how libgomp's threads meet */
#else
enum { MOST_THREADS = 3 };
#endif

struct result {
	int n;
	int64_t len[MAX_ARRAYS];
	enum occ_type type[MAX_ARRAYS];
	void *x[MAX_ARRAYS];
};

/* So that a new slot changes no other's inputs. */
static uint64_t number_of(const char *name)
{
	uint64_t n = 0;
	while (*name)
		n = 31 * n + (unsigned char)*name++;
	return n;
}

static struct result run_slot(const struct slot *s, const char *device, enum occ_type type,
			      int threads, int round)
{
	struct occ_err e = {0};
	struct run r = {.d = occ_device_open(device, type, threads, &e),
			.big = round % 4 == 3,
			.odd = round % 4 == 1};
	struct result res = {0};
	CHECK(r.d, "%s: %s", device, e.text);
	r.key = occ_rng_u64(number_of(s->name), (uint64_t)round);
	s->run(&r);
	for (int i = 0; i < r.n; i++) {
		struct array *a = &r.at[i];
		size_t bytes = (size_t)a->n * occ_type_size(a->type);
		void *x = occ_alloc(bytes, 1);
		r.d->ops->get(r.d, x, a->d_x, bytes);
		r.d->ops->free(r.d, a->d_base);
		if (a->is_out) {
			res.len[res.n] = a->n;
			res.type[res.n] = a->type;
			res.x[res.n++] = x;
			continue;
		}
		CHECK(!memcmp(x, a->before, bytes), "%s of %s writes input %d", s->name, device, i);
		occ_free(x);
		occ_free(a->before);
	}
	occ_device_close(r.d);
	return res;
}

static void result_free(struct result *res)
{
	for (int i = 0; i < res->n; i++)
		occ_free(res->x[i]);
}

static double value(const struct result *res, int k, int64_t i)
{
	if (res->type[k] == OCC_BF16)
		return (double)occ_bf16_to_f32(((const uint16_t *)res->x[k])[i]);
	return (double)((const float *)res->x[k])[i];
}

/* The measure of the table above, of output k; infinity where one is not finite and the other is.
 */
static double distance(const struct result *a, const struct result *ref, int k)
{
	double squares = 0, worst = 0;
	for (int64_t i = 0; i < ref->len[k]; i++)
		squares += value(ref, k, i) * value(ref, k, i);
	double rms = isfinite(squares) ? sqrt(squares / (double)ref->len[k]) : 0;
	for (int64_t i = 0; i < ref->len[k]; i++) {
		double x = value(a, k, i), y = value(ref, k, i);
		if (x == y)
			continue;
		double e = fabs(x - y) / (fabs(y) + rms);
		if (!(e <= worst))
			worst = isnan(e) ? INFINITY : e;
	}
	return worst;
}

static void compare(const struct slot *s, const struct result *a, const struct result *ref,
		    const char *device, enum occ_type type, int round)
{
	CHECK(a->n == ref->n, "%s: outputs", s->name);
	for (int k = 0; k < ref->n; k++) {
		double bf16 = s->gpu > 0 && !strcmp(device, "cuda") ? s->gpu : s->bf16;
		double bound = ref->type[k] == OCC_BF16 ? bf16 : s->f32;
		/* fp32 sums of what was rounded to bf16 on the way feel a few flipped last bits */
		if (type == OCC_BF16 && ref->type[k] == OCC_F32 && s->bf16 > 0)
			bound += 0x1p-11;
		double e = distance(a, ref, k);
		CHECK(e <= bound, "%s of %s, %s, round %d, output %d: %.3g > %.3g", s->name, device,
		      type == OCC_BF16 ? "bf16" : "fp32", round, k, e, bound);
	}
}

static int same_bits(const struct result *a, const struct result *b)
{
	for (int k = 0; k < a->n; k++)
		if (memcmp(a->x[k], b->x[k], (size_t)a->len[k] * occ_type_size(a->type[k])))
			return 0;
	return 1;
}

/* A device that is neither ref's kin nor made of threads. */
static void slot_round_of(const char *device, const struct slot *s, enum occ_type type, int round)
{
	struct result ref = run_slot(s, "ref", type, 1, round);
	struct result one = run_slot(s, device, type, 1, round);
	struct result again = run_slot(s, device, type, 1, round);
	compare(s, &one, &ref, device, type, round);
	CHECK(same_bits(&one, &again), "%s of %s: not the same twice, round %d", s->name, device,
	      round);
	result_free(&ref);
	result_free(&one);
	result_free(&again);
}

static void slot_round(const struct slot *s, enum occ_type type, int round)
{
	struct result ref = run_slot(s, "ref", type, 1, round);
	struct result strict = run_slot(s, "strict", type, 1, round);
	struct result one = run_slot(s, "cpu", type, 1, round);
	CHECK(same_bits(&strict, &ref), "%s: strict is not ref, round %d", s->name, round);
	compare(s, &one, &ref, "cpu", type, round);
	for (int threads = 2; threads <= MOST_THREADS && round % 2; threads++) {
		struct result many = run_slot(s, "cpu", type, threads, round);
		CHECK(s->by_threads || same_bits(&many, &one), "%s: %d threads, round %d", s->name,
		      threads, round);
		compare(s, &many, &ref, "cpu, many threads", type, round);
		result_free(&many);
	}
	result_free(&ref);
	result_free(&strict);
	result_free(&one);
}

/* ---- The rest of the contract. ---- */

static void openings(void)
{
	static const struct {
		const char *name;
		int code;
		const char *says;
	} rows[] = {
		{"cpu", 0, ""},
		{"ref", 0, ""},
		{"strict", 0, ""},
		{"auto", 0, ""},
		{"gpu", OCC_E_CONFIG, "strict"},
		{"", OCC_E_CONFIG, "strict"},
		{"cuda", OCC_E_CONFIG, "make CUDA=1"}, /* where the build has none */
	};
	size_t n = sizeof(rows) / sizeof(rows[0]) - (occ_lane_built() ? 1 : 0);
	for (size_t i = 0; i < n; i++) {
		struct occ_err e = {0};
		struct occ_device *d = occ_device_open(rows[i].name, OCC_F32, 2, &e);
		CHECK(e.code == rows[i].code && !d == !!e.code, "%s: %d", rows[i].name, e.code);
		CHECK(strstr(e.text, rows[i].says), "%s: %s", rows[i].name, e.text);
		occ_device_close(d);
	}
	struct occ_device_ops broken = occ_device_cpu;
	CHECK(!occ_device_missing(&broken), "cpu is complete");
	broken.adamw = NULL;
	CHECK(!strcmp(occ_device_missing(&broken), "adamw"), "the missing slot is named");
}

/* No block stays behind, and a slot allocates only on the first call of a shape. */
static void allocations(void)
{
	struct occ_err e = {0};
	int64_t before = occ_mem_live();
	struct occ_device *d = occ_device_open("cpu", OCC_BF16, MOST_THREADS < 2 ? 1 : 2, &e);
	struct occ_attention a = {.B = 2, .T = 70, .H = 2, .D = 40};
	struct occ_gemm g = {0, 1, 64, 32, 48, 48, 48, 32, OCC_BF16, 0, 0, 0};
	void *x = d->ops->alloc(d, 1 << 18), *y = d->ops->alloc(d, 1 << 18);
	float *f = d->ops->alloc(d, 1 << 18);
	int64_t calls = 0;
	for (int pass = 0; pass < 2; pass++) {
		calls = occ_mem_calls();
		d->ops->gemm(d, &g, x, y, NULL, f);
		d->ops->attention_forward(d, &a, x, y, f);
		d->ops->bias_backward(d, 64, 64, x, f);
	}
	CHECK(occ_mem_calls() == calls, "a second pass allocates");
	d->ops->free(d, x);
	d->ops->free(d, y);
	d->ops->free(d, f);
	occ_device_close(d);
	CHECK(occ_mem_live() == before, "%lld bytes left", (long long)(occ_mem_live() - before));
}

/* ---- What only GPUs have. ---- */

/* Arrays that a product with GELU on the way out cannot take are multiplied and then go through
 * GELU: the bits are those of a device that was not asked for it. */
static void misaligned(const char *device, enum occ_type type)
{
	const struct slot s = {"gelu_way", run_gelu_way, 3e-6, 0x1p-7, 0, 0};
	struct result ref = run_slot(&s, "ref", type, 1, 1), way[2];
	for (int i = 0; i < 2; i++) {
		gelu_way = i ? "fused" : "apart";
		way[i] = run_slot(&s, device, type, 1, 1);
		compare(&s, &way[i], &ref, device, type, 1);
	}
	CHECK(same_bits(&way[0], &way[1]), "fused where arrays do not begin at 16 bytes");
	result_free(&ref);
	result_free(&way[0]);
	result_free(&way[1]);
}

/* Every slot once, by a rank that is a thread of this process; arg: [NSLOTS] results. */
static void *rank(void *arg)
{
	struct result *all = arg;
	for (int i = 0; i < NSLOTS; i++)
		all[i] = run_slot(&slots[i], "cpu", i % 2 ? OCC_BF16 : OCC_F32, 1, 3);
	return NULL;
}

/* Handles of different threads do not disturb each other. */
static void ranks(void)
{
	enum { RANKS = 4 };
	static struct result all[RANKS][NSLOTS];
	pthread_t id[RANKS];
	for (int k = 0; k < RANKS; k++)
		pthread_create(&id[k], NULL, rank, all[k]);
	for (int k = 0; k < RANKS; k++)
		pthread_join(id[k], NULL);
	for (int i = 0; i < NSLOTS; i++)
		for (int k = 0; k < RANKS; k++) {
			CHECK(same_bits(&all[k][i], &all[0][i]), "%s: rank %d", slots[i].name, k);
			if (k)
				result_free(&all[k][i]);
		}
	for (int i = 0; i < NSLOTS; i++)
		result_free(&all[0][i]);
}

/* ROUNDS, and what names of slots to run contain */
int main(int argc, char **argv)
{
	const char *device = check_device(NULL), *only = argc > 2 ? argv[2] : "";
	int rounds = argc > 1 ? atoi(argv[1]) : device ? 4 : 16; /* one of large shapes in four */
	for (int i = 0; i < NSLOTS; i++)
		for (int round = 0; round < rounds && strstr(slots[i].name, only); round++) {
			if (device) {
				slot_round_of(device, &slots[i], OCC_F32, round);
				slot_round_of(device, &slots[i], OCC_BF16, round);
				continue;
			}
			slot_round(&slots[i], OCC_F32, round);
			slot_round(&slots[i], OCC_BF16, round);
		}
	if (device) {
		misaligned(device, OCC_F32);
		misaligned(device, OCC_BF16);
		return check_done();
	}
	ranks();
	openings();
	allocations();
	return check_done();
}
