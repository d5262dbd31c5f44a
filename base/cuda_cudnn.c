/* Attention by cuDNN: the handle, the plans kept, and one call bound to its memory. */
#include "base/cuda_cudnn.h"

#include <math.h>
#include <stdio.h>

#include "base/cuda.h"
#include "base/cuda_sdpa.h"
#include "base/log.h"
#include "base/mem.h"

enum {
	OLDEST = 91000, /* since then -inf is what masked scores have to be */
	ENTRIES = 8,
	PIECE = 256, /* alignment of the pieces of a room */
	TILE = 128   /* no kernel's block of queries is larger */
};

struct entry {
	int held, refused;
	int64_t B, T, H, D;
	enum sdpa_way way;
	float scale, neg, one; /* cuDNN reads them during a call */
	struct sdpa_plan plan;
};

struct occ_cudnn {
	cudnnHandle_t h;
	cudaStream_t stream;
	int repeatable;
	int next; /* entry to be given up for the next new shape */
	int64_t given_up;
	struct entry entry[ENTRIES];
	char words[SDPA_WORDS];
};

/* CUDA remembers what a call of cuDNN failed of, and the next launch of ours would be blamed for
 * it. What has broken the GPU stays, and is seen again. */
static void clear_error(void)
{
	(void)cudaGetLastError();
}

static int refuse(struct occ_cudnn *c, const char *words)
{
	snprintf(c->words, sizeof(c->words), "%s", words);
	return 0;
}

struct occ_cudnn *occ_cudnn_open(cudaStream_t s, int repeatable)
{
	size_t version = cudnnGetVersion();
	if (version < OLDEST || version / 10000 != CUDNN_MAJOR) {
		occ_log(OCC_LOG_INFO,
			"cuDNN %zu: attention without it, 9.10 or a later 9 is wanted", version);
		return NULL;
	}
	struct occ_cudnn *c = occ_alloc(1, sizeof(*c));
	c->stream = s;
	c->repeatable = repeatable;
	cudnnStatus_t e = cudnnCreate(&c->h);
	if (!e)
		e = cudnnSetStream(c->h, s);
	if (!e)
		return c;
	clear_error();
	occ_log(OCC_LOG_INFO, "cuDNN: attention without it: %s", cudnnGetErrorString(e));
	occ_cudnn_close(c);
	return NULL;
}

void occ_cudnn_close(struct occ_cudnn *c)
{
	if (!c)
		return;
	cudaStreamSynchronize(c->stream);
	for (int i = 0; i < ENTRIES; i++)
		occ_sdpa_close(&c->entry[i].plan);
	if (c->h)
		cudnnDestroy(c->h);
	occ_free(c);
}

int64_t occ_cudnn_given_up(const struct occ_cudnn *c)
{
	return c->given_up;
}

const char *occ_cudnn_words(const struct occ_cudnn *c)
{
	return c->words;
}

static enum sdpa_way way_of(const struct occ_cudnn *c, enum occ_cudnn_way way)
{
	if (way == OCC_CUDNN_FORWARD)
		return SDPA_FORWARD;
	return c->repeatable ? SDPA_BACKWARD_REPEATABLE : SDPA_BACKWARD;
}

static void give_up(struct occ_cudnn *c, struct entry *e, const char *words)
{
	e->refused = 1;
	clear_error();
	refuse(c, words);
	occ_log(OCC_LOG_INFO, "cuDNN: no %s of attention for B %lld T %lld H %lld D %lld: %s",
		e->way == SDPA_FORWARD ? "forward pass" : "backward pass", (long long)e->B,
		(long long)e->T, (long long)e->H, (long long)e->D, words);
}

static struct entry *ask(struct occ_cudnn *c, const struct occ_attention *a, enum sdpa_way way)
{
	struct entry *e = &c->entry[c->next];
	struct sdpa_graph g;
	c->next = (c->next + 1) % ENTRIES;
	if (e->plan.n) { /* its kernels may still run */
		cudaStreamSynchronize(c->stream);
		c->given_up++;
	}
	occ_sdpa_close(&e->plan);
	*e = (struct entry){.held = 1, .B = a->B, .T = a->T, .H = a->H, .D = a->D, .way = way};
	e->scale = (float)(1 / sqrt((double)a->D));
	e->neg = -INFINITY;
	e->one = 1;
	occ_sdpa_graph(way, &g);
	if (occ_sdpa_plan(&e->plan, &g, a, c->h, NULL)) {
		give_up(c, e, e->plan.words);
		occ_sdpa_close(&e->plan);
	}
	return e;
}

/* The entry of a shape, with a plan; NULL if there is none. */
static struct entry *find(struct occ_cudnn *c, const struct occ_attention *a,
			  enum occ_cudnn_way way)
{
	enum sdpa_way w = way_of(c, way);
	struct entry *e = NULL;
	if (a->drop.p > 0) {
		refuse(c, "dropout");
		return NULL;
	}
	for (int i = 0; i < ENTRIES && !e; i++) {
		struct entry *k = &c->entry[i];
		if (k->held && k->way == w && k->B == a->B && k->T == a->T && k->H == a->H &&
		    k->D == a->D)
			e = k;
	}
	if (!e)
		e = ask(c, a, w);
	if (!e->refused)
		return e;
	refuse(c, e->plan.words);
	return NULL;
}

static int64_t round_up(int64_t n, int64_t to)
{
	return (n + to - 1) / to * to;
}

static int64_t rowsum_bytes(const struct occ_attention *a)
{
	return round_up(4 * a->B * a->H * round_up(a->T, TILE), PIECE);
}

/* dQ's sums lie as the kernel likes: whole blocks of queries, to be safe. */
static int64_t acc_bytes(const struct occ_attention *a)
{
	return round_up(4 * a->B * a->H * round_up(a->T, TILE) * a->D, PIECE);
}

int64_t occ_cudnn_room(struct occ_cudnn *c, const struct occ_attention *a, enum occ_cudnn_way way)
{
	struct entry *e = find(c, a, way);
	if (!e)
		return -1;
	int64_t bytes = round_up(e->plan.workspace, PIECE);
	if (e->way != SDPA_FORWARD)
		bytes += rowsum_bytes(a);
	if (e->way == SDPA_BACKWARD)
		bytes += acc_bytes(a);
	return bytes;
}

/* Runs e's plan on at[], to which the by-value tensors are added. */
static int run(struct occ_cudnn *c, struct entry *e, void *at[SDPA_BOUND], void *d_workspace)
{
	at[SDPA_SCALE] = &e->scale;
	at[SDPA_NEG] = &e->neg;
	at[SDPA_ONE] = &e->one;
	for (int i = 0; i < e->plan.nbound; i++)
		if ((uintptr_t)at[e->plan.bound[i]] % 16 && e->plan.bound[i] < SDPA_SCALE)
			return refuse(c, "memory is not 16-byte aligned");
	cudnnBackendDescriptor_t pack = occ_sdpa_bind(&e->plan, at, d_workspace);
	cudnnStatus_t s =
		pack ? cudnnBackendExecute(c->h, e->plan.plan, pack) : CUDNN_STATUS_BAD_PARAM;
	if (pack)
		cudnnBackendDestroyDescriptor(pack);
	if (s == CUDNN_STATUS_SUCCESS || occ_cuda_excused("cuDNN", cudnnGetErrorString(s)))
		return 1;
	if (!e->plan.words[0])
		snprintf(e->plan.words, sizeof(e->plan.words), "%s", cudnnGetErrorString(s));
	give_up(c, e, e->plan.words);
	return 0;
}

static void *plus(const void *d_x, int64_t bytes)
{
	return (char *)(uintptr_t)d_x + bytes;
}

int occ_cudnn_forward(struct occ_cudnn *c, const struct occ_attention *a, const void *d_qkv,
		      void *d_out, float *d_lse, void *d_room)
{
	struct entry *e = find(c, a, OCC_CUDNN_FORWARD);
	int64_t part = 2 * a->H * a->D; /* bytes of q in one row */
	if (!e)
		return 0;
	void *at[SDPA_BOUND] = {
		[SDPA_Q] = plus(d_qkv, 0),
		[SDPA_KT] = plus(d_qkv, part),
		[SDPA_V] = plus(d_qkv, 2 * part),
		[SDPA_O] = d_out,
		[SDPA_STATS] = d_lse,
	};
	return run(c, e, at, d_room);
}

int occ_cudnn_backward(struct occ_cudnn *c, const struct occ_attention *a, const void *d_qkv,
		       const void *d_out, const float *d_lse, const void *d_dout, void *d_dqkv,
		       void *d_room)
{
	struct entry *e = find(c, a, OCC_CUDNN_BACKWARD);
	int64_t part = 2 * a->H * a->D;
	if (!e)
		return 0;
	void *d_rowsum = plus(d_room, round_up(e->plan.workspace, PIECE));
	void *d_acc = plus(d_rowsum, rowsum_bytes(a));
	void *at[SDPA_BOUND] = {
		[SDPA_Q] = plus(d_qkv, 0),
		[SDPA_KT] = plus(d_qkv, part),
		[SDPA_VT] = plus(d_qkv, 2 * part),
		[SDPA_O] = plus(d_out, 0),
		[SDPA_STATS] = plus(d_lse, 0),
		[SDPA_DO] = plus(d_dout, 0),
		[SDPA_DQ] = d_dqkv,
		[SDPA_DK] = plus(d_dqkv, part),
		[SDPA_DV] = plus(d_dqkv, 2 * part),
		[SDPA_ROWSUM] = d_rowsum,
		[SDPA_ACC] = d_acc,
	};
	if (e->way == SDPA_BACKWARD &&
	    cudaMemsetAsync(d_acc, 0, (size_t)acc_bytes(a), c->stream) != cudaSuccess)
		return refuse(c, "the sums of dQ could not be cleared");
	return run(c, e, at, d_room);
}
