/* Opening a backend by name, and the check that a table is complete.
 * Knows which backends this build holds; nothing of what they do. */
#include "base/device.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/mem.h"

#ifdef OCC_CUDA
extern const struct occ_device_ops occ_device_cuda;
#define CUDA_OPS &occ_device_cuda
#else
#define CUDA_OPS NULL
#endif

/* ops NULL: not in this build, `how` says how to get it. */
static const struct backend {
	const char *name;
	const struct occ_device_ops *ops;
	const char *how;
} backends[] = {
	{"cpu", &occ_device_cpu, NULL},
	{"cuda", CUDA_OPS, "this program was built without CUDA: `make CUDA=1` builds one with it"},
	{"ref", &occ_device_ref, NULL},
	{"strict", &occ_device_strict, NULL},
	{"dry", &occ_device_dry, NULL}, /* of plan: no configuration offers it */
};

enum { NBACKENDS = sizeof(backends) / sizeof(backends[0]) };

#define SLOT(f)                                                                                    \
	{                                                                                          \
#f, offsetof(struct occ_device_ops, f)                                             \
	}
static const struct slot {
	const char *name;
	size_t at;
} slots[] = {
	SLOT(open),
	SLOT(close),
	SLOT(alloc),
	SLOT(free),
	SLOT(alloc_host),
	SLOT(free_host),
	SLOT(put),
	SLOT(get),
	SLOT(copy),
	SLOT(zero),
	SLOT(sync),
	SLOT(queue),
	SLOT(mark_open),
	SLOT(mark_close),
	SLOT(mark),
	SLOT(after),
	SLOT(repeat_open),
	SLOT(repeat_close),
	SLOT(repeat),
	SLOT(cast),
	SLOT(add),
	SLOT(gelu_forward),
	SLOT(gelu_backward),
	SLOT(gemm),
	SLOT(gemm_gelu),
	SLOT(gemm_gelu_backward),
	SLOT(bias_backward),
	SLOT(residual_norm_forward),
	SLOT(residual_norm_backward),
	SLOT(attention_forward),
	SLOT(attention_backward),
	SLOT(embed_forward),
	SLOT(embed_backward),
	SLOT(position_forward),
	SLOT(position_backward),
	SLOT(xent_stats),
	SLOT(xent_rescale),
	SLOT(xent_finish),
	SLOT(adamw),
	SLOT(sum_squares),
	SLOT(piece_squares),
	SLOT(draw),
	SLOT(scale),
	SLOT(accumulate),
	SLOT(fold),
	SLOT(orthonormalise),
	SLOT(select),
	SLOT(above),
	SLOT(pick),
	SLOT(place),
	SLOT(quantise),
	SLOT(dequantise),
	SLOT(half_pack),
	SLOT(half_unpack),
	SLOT(bound_pack),
	SLOT(bound_unpack),
};

enum { NSLOTS = sizeof(slots) / sizeof(slots[0]) };

/* A slot added to the struct but not to the list above stops the build. */
_Static_assert(sizeof(struct occ_device_ops) ==
		       offsetof(struct occ_device_ops, open) + NSLOTS * sizeof(void (*)(void)),
	       "every slot stands in the list");

const char *occ_device_missing(const struct occ_device_ops *ops)
{
	static void (*const none)(void) = NULL;
	for (int i = 0; i < NSLOTS; i++)
		if (!memcmp((const char *)ops + slots[i].at, &none, sizeof(none)))
			return slots[i].name;
	return NULL;
}

void occ_gemm_gelu(struct occ_device *d, const struct occ_gemm *g, const void *d_a, const void *d_b,
		   const void *d_bias, void *d_h, void *d_y)
{
	d->ops->gemm(d, g, d_a, d_b, d_bias, d_h);
	d->ops->gelu_forward(d, g->m * g->n, d_h, d_y);
}

void occ_gemm_gelu_backward(struct occ_device *d, const struct occ_gemm *g, const void *d_a,
			    const void *d_b, const void *d_h, void *d_dx)
{
	d->ops->gemm(d, g, d_a, d_b, NULL, d_dx);
	d->ops->gelu_backward(d, g->m * g->n, d_h, d_dx, d_dx);
}

void *occ_host_alloc(struct occ_device *d, size_t bytes)
{
	(void)d;
	return occ_alloc(bytes, 1);
}

void occ_host_free(struct occ_device *d, void *x)
{
	(void)d;
	occ_free(x);
}

void occ_queue_none(struct occ_device *d, enum occ_queue q)
{
	(void)d, (void)q;
}

void *occ_mark_open_none(struct occ_device *d)
{
	(void)d;
	return NULL;
}

void occ_mark_none(struct occ_device *d, void *m)
{
	(void)d, (void)m;
}

void occ_repeat_none(struct occ_device *d, void *r, void (*work)(void *arg), void *arg)
{
	(void)d, (void)r;
	work(arg);
}

/* The length of the backend's name in "name:number". */
static size_t name_length(const char *name)
{
	size_t n = strcspn(name, ":");
	return name[n] && strspn(name + n + 1, "0123456789") == strlen(name + n + 1) ? n
										     : strlen(name);
}

static const struct backend *find(const char *name, struct occ_err *e)
{
	size_t n = name_length(name);
	for (int i = 0; i < NBACKENDS; i++) {
		const struct backend *b = &backends[i];
		if (strlen(b->name) != n || memcmp(b->name, name, n))
			continue;
		if (!b->ops)
			occ_fail(e, OCC_E_CONFIG, "device \"%s\": %s", b->name, b->how);
		return b->ops ? b : NULL;
	}
	occ_fail(e, OCC_E_CONFIG, "device \"%s\" is not known: one of auto, cpu, cuda, ref, strict",
		 name);
	return NULL;
}

static struct occ_device *open_backend(const struct backend *b, const char *name,
				       enum occ_type type, int threads, struct occ_err *e)
{
	const char *missing = occ_device_missing(b->ops), *number = strchr(name, ':');
	occ_check(!missing, "device %s has no %s", b->name, missing);
	struct occ_device *d = occ_alloc(1, sizeof(*d));
	d->ops = b->ops;
	d->type = type;
	d->threads = threads < 1 ? 1 : threads;
	d->number = number ? atoi(number + 1) : 0;
	if (b->ops->open(d, e)) {
		occ_free(d);
		return NULL;
	}
	return d;
}

struct occ_device *occ_device_open(const char *name, enum occ_type type, int threads,
				   struct occ_err *e)
{
	size_t n = name_length(name);
	if (n == 4 && !memcmp(name, "auto", n)) {
		struct occ_err unusable = {0};
		const struct backend *gpu = find("cuda", &unusable);
		struct occ_device *d =
			gpu ? open_backend(gpu, name, type, threads, &unusable) : NULL;
		if (d)
			return d;
		if (gpu && unusable.code == OCC_E_CONFIG) {
			*e = unusable;
			return NULL;
		}
		if (gpu) /* built for GPUs: whoever started it may have meant one */
			occ_log(OCC_LOG_INFO, "%s; \"auto\" takes the cpu", unusable.text);
		return open_backend(find("cpu", e), name, type, threads, e);
	}
	const struct backend *b = find(name, e);
	return b ? open_backend(b, name, type, threads, e) : NULL;
}

void occ_device_close(struct occ_device *d)
{
	if (!d)
		return;
	if (d->d_word)
		d->ops->free(d, d->d_word);
	d->ops->close(d);
	occ_free(d);
}

double occ_sum_squares(struct occ_device *d, int64_t n, const float *d_x)
{
	double sum = 0;
	if (!d->d_word)
		d->d_word = d->ops->alloc(d, sizeof(sum));
	d->ops->sum_squares(d, n, d_x, d->d_word);
	d->ops->get(d, &sum, d->d_word, sizeof(sum));
	return sum;
}

int occ_pieces_cut(int64_t at, int64_t n, float decay, struct occ_piece *to)
{
	int k = 0;
	for (int64_t left = n; left > 0; left -= OCC_PIECE) {
		int32_t most = left < OCC_PIECE ? (int32_t)left : OCC_PIECE;
		to[k++] = (struct occ_piece){at + n - left, most, decay};
	}
	return k;
}
