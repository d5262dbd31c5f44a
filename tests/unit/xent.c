/* Cross-entropy where logits are NaN, infinite or large: a device gives what ref gives, NaN and
 * infinities in the same places. CUDA: 1 */
#include "base/device.h"

#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tests/check.h"

enum { ROWS = 3, MOST_V = 2600, MOST = ROWS * (MOST_V + 8) };

/* Logits are normal numbers times scale plus shift; then `all` unless it is 0, and `one` and
 * `other` in two columns unless they are 0. */
static const struct kind {
	const char *name;
	float scale, shift, all, one, other;
} kinds[] = {
	{"as they are", 3, 0, 0, 0, 0},
	{"large", 3, 100, 0, 0, 0},
	{"large and negative", 3, -100, 0, 0, 0},
	{"far apart", 100, 0, 0, 0, 0},
	{"differences overflow", 3, 0, 0, 3e38f, -3e38f},
	{"NaN", 3, 0, 0, NAN, 0},
	{"inf", 3, 0, 0, INFINITY, 0},
	{"two inf", 3, 0, 0, INFINITY, INFINITY},
	{"-inf", 3, 0, 0, -INFINITY, 0},
	{"inf and -inf", 3, 0, 0, INFINITY, -INFINITY},
	{"NaN and inf", 3, 0, 0, NAN, INFINITY},
	{"inf and NaN", 3, 0, 0, INFINITY, NAN},
	{"NaN and -inf", 3, 0, 0, -INFINITY, NAN},
	{"all NaN", 3, 0, NAN, 0, 0},
	{"all inf", 3, 0, INFINITY, 0, 0},
	{"all -inf", 3, 0, -INFINITY, 0, 0},
	{"one that is not -inf", 3, 0, -INFINITY, 5, 0},
	{"NaN among -inf", 3, 0, -INFINITY, NAN, 0},
};

/* Whole packs or not, one a thread, two, and more. */
static const int64_t columns[] = {1, 2, 7, 8, 40, 44, 520, 1023, 2600};

struct result {
	float max[ROWS], sum[ROWS], hit[ROWS], loss[ROWS], dlogits[MOST];
};

static const float SCALE = 0.37f;
static uint64_t seed;

static void make(const struct kind *k, const struct occ_xent *x, float *logits)
{
	uint64_t at = occ_rng_u64(seed, 0);
	int64_t a = (int64_t)(at % (uint64_t)x->V), b = (int64_t)(at / 4096 % (uint64_t)x->V);
	for (int64_t r = 0; r < x->rows; r++)
		for (int64_t c = 0; c < x->ld; c++) {
			float *to = logits + r * x->ld + c;
			*to = k->scale * occ_rng_normal(seed, (uint32_t)r, (uint64_t)c) + k->shift;
			*to = k->all != 0 ? k->all : *to;
			*to = k->one != 0 && c == a ? k->one : *to;
			*to = k->other != 0 && c == b ? k->other : *to;
		}
}

static void *on_device(struct occ_device *d, int64_t n, enum occ_type type, const float *x)
{
	uint16_t low[MOST];
	size_t bytes = (size_t)n * occ_type_size(type);
	void *d_x = d->ops->alloc(d, bytes);
	for (int64_t i = 0; type == OCC_BF16 && i < n; i++)
		low[i] = occ_f32_to_bf16(x[i]);
	d->ops->put(d, d_x, type == OCC_BF16 ? (const void *)low : x, bytes);
	d->ops->sync(d); /* low is gone */
	return d_x;
}

static void fetch(struct occ_device *d, int64_t n, enum occ_type type, void *d_x, float *x)
{
	uint16_t low[MOST];
	d->ops->get(d, type == OCC_BF16 ? (void *)low : x, d_x, (size_t)n * occ_type_size(type));
	for (int64_t i = 0; type == OCC_BF16 && i < n; i++)
		x[i] = occ_bf16_to_f32(low[i]);
	d->ops->free(d, d_x);
}

/* Both passes, the gradients in the place of the logits. */
static void run(struct occ_device *d, const struct occ_xent *x, const int32_t *targets,
		const float *logits, struct result *out)
{
	enum occ_type type = d->type;
	float *d_f[4];
	for (int k = 0; k < 4; k++)
		d_f[k] = on_device(d, ROWS, OCC_F32, out->max);
	int32_t *d_targets = d->ops->alloc(d, ROWS * sizeof(*d_targets));
	d->ops->put(d, d_targets, targets, ROWS * sizeof(*d_targets));
	void *d_logits = on_device(d, ROWS * x->ld, type, logits);
	d->ops->xent_stats(d, x, d_logits, d_targets, d_f[0], d_f[1], d_f[2]);
	d->ops->xent_finish(d, x, d_logits, d_targets, d_f[0], d_f[1], d_f[2], SCALE, d_f[3],
			    d_logits);
	fetch(d, ROWS, OCC_F32, d_f[0], out->max);
	fetch(d, ROWS, OCC_F32, d_f[1], out->sum);
	fetch(d, ROWS, OCC_F32, d_f[2], out->hit);
	fetch(d, ROWS, OCC_F32, d_f[3], out->loss);
	fetch(d, ROWS * x->ld, type, d_logits, out->dlogits);
	d->ops->free(d, d_targets);
}

/* Largest distance in parts of |ref| + `unit`; infinity where one is NaN or infinite and the other
 * is not that. */
static double apart(const float *x, const float *ref, int64_t n, double unit)
{
	double worst = 0;
	for (int64_t i = 0; i < n; i++) {
		double a = (double)x[i], b = (double)ref[i];
		if (a == b || (isnan(a) && isnan(b)))
			continue;
		double e = fabs(a - b) / (fabs(b) + unit);
		worst = !isfinite(e) || !isfinite(b) ? INFINITY : e > worst ? e : worst;
	}
	return worst;
}

static double rms(const float *x, int64_t n)
{
	double squares = 0;
	for (int64_t i = 0; i < n; i++)
		squares += (double)x[i] * (double)x[i];
	return isfinite(squares) ? sqrt(squares / (double)n) : 0;
}

static void compare(struct occ_device *d, struct occ_device *d_ref, const struct kind *k,
		    const struct occ_xent *x)
{
	const char *device = d->ops->name;
	enum occ_type type = d->type;
	static struct result ours, ref;
	static float logits[MOST];
	int32_t targets[ROWS] = {(int32_t)(occ_rng_u64(seed, 0) % (uint64_t)x->V), -1,
				 (int32_t)(occ_rng_u64(seed, 1) % (uint64_t)x->V)};
	memset(&ours, 0, sizeof(ours));
	memset(&ref, 0, sizeof(ref));
	make(k, x, logits);
	run(d_ref, x, targets, logits, &ref);
	run(d, x, targets, logits, &ours);
#define SAME(field, n, unit, most)                                                                 \
	CHECK(apart(ours.field, ref.field, n, unit) <= (most), "%s of %s: %s, %lld columns, %s",   \
	      #field, device, k->name, (long long)x->V, type == OCC_BF16 ? "bf16" : "fp32")
	SAME(loss, ROWS, 1, 1e-6);
	if (!strcmp(device, "cpu") && !isfinite(ref.sum[0]))
		return; /* it keeps NaN in sums and losses, and promises no more */
	SAME(max, ROWS, 0, 0);
	SAME(hit, ROWS, 0, 0);
	SAME(sum, ROWS, rms(ref.sum, ROWS), 5e-7);
	double bound = type == OCC_BF16 ? 0x1p-7 : 5e-7; /* tests/unit/device has the same */
	for (int64_t r = 0; r < ROWS; r++) {
		int64_t at = r * x->ld, t = at + (targets[r] < 0 ? 0 : targets[r]);
		SAME(dlogits + t, 1, (double)SCALE, bound);
		/* p - 1 may be small: p is what the others are seen beside */
		ours.dlogits[t] = ref.dlogits[t] += targets[r] < 0 ? 0 : SCALE;
		SAME(dlogits + at, x->V, rms(ref.dlogits + at, x->V), bound);
	}
#undef SAME
}

static struct occ_device *open_device(const char *name, enum occ_type type)
{
	struct occ_err e = {0};
	struct occ_device *d = occ_device_open(name, type, 1, &e);
	if (!d)
		occ_die(e.code, "%s", e.text);
	return d;
}

int main(void)
{
	for (int type = 0; type < 2; type++) {
		struct occ_device *ref = open_device("ref", type ? OCC_BF16 : OCC_F32),
				  *d = open_device(check_device("cpu"), ref->type);
		for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
			for (size_t v = 0; v < sizeof(columns) / sizeof(columns[0]); v++)
				for (int pad = 0; pad < 2; pad++) {
					int64_t V = columns[v], valid = V - pad * (V / 9);
					struct occ_xent x = {ROWS, V, V + pad * (-V & 7), 0, valid};
					seed = 1000 * k + 2 * v + (uint64_t)pad;
					compare(d, ref, &kinds[k], &x);
				}
		occ_device_close(d);
		occ_device_close(ref);
	}
	return check_done();
}
