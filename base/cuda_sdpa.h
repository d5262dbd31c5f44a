/* Causal attention as cuDNN sees it: a graph of small operations on (B,H,T,D) tensors, which cuDNN
 * matches to one of its fused kernels. The graph is data (cuda_sdpa.c), and tests compute it by
 * hand; a plan (cuda_plan.c) is what cuDNN makes of it.
 *
 * The operations, types and strides are what cuDNN 9 recognises: another graph of the same meaning
 * may have no kernel. */
#ifndef OCC_BASE_CUDA_SDPA_H
#define OCC_BASE_CUDA_SDPA_H

#include <cudnn.h>

#include "base/device.h"

/* Tensors of both graphs. Those above SDPA_BOUND have memory or, the last three of them, a value;
 * cuDNN knows a tensor by its number plus 1. */
enum sdpa_tensor {
	SDPA_Q,     /* in d_qkv */
	SDPA_KT,    /* K, its last two dimensions exchanged */
	SDPA_V,     /* forward */
	SDPA_VT,    /* backward */
	SDPA_O,     /* the output */
	SDPA_STATS, /* log of the sum of exp(score) */
	SDPA_DO,
	SDPA_DQ, /* in d_dqkv */
	SDPA_DK,
	SDPA_DV,
	SDPA_ROWSUM, /* sum over D of dO * O, in scratch */
	SDPA_ACC, /* dQ in fp32, in scratch, 0 before; the order of its elements is the kernel's */
	SDPA_SCALE, /* 1/sqrt(D) */
	SDPA_NEG,   /* -inf, the score of a later key */
	SDPA_ONE,
	SDPA_BOUND,

	SDPA_SCORE = SDPA_BOUND, /* between operations only, from here on */
	SDPA_SCALED,
	SDPA_ROW,
	SDPA_COL,
	SDPA_SEEN,
	SDPA_MASKED,
	SDPA_TOP,
	SDPA_BELOW,
	SDPA_EXP,
	SDPA_SUM,
	SDPA_LOGSUM,
	SDPA_P,
	SDPA_PT,
	SDPA_DOO,
	SDPA_DOO_SUM,
	SDPA_LESS,
	SDPA_DP,
	SDPA_DP_LESS,
	SDPA_DS_RAW,
	SDPA_DS,
	SDPA_DST,
	SDPA_K,
	SDPA_TENSORS,
	SDPA_NONE = SDPA_TENSORS
};

enum sdpa_op {
	SDPA_MATMUL,  /* y = x b */
	SDPA_RESHAPE, /* y is the memory of x under other dimensions */
	SDPA_MAXIMUM, /* over a dimension that is 1 in y */
	SDPA_TOTAL,
	SDPA_ADD, /* x + b; a dimension of 1 in b is repeated, also below */
	SDPA_SUB,
	SDPA_MUL,
	SDPA_DIV,
	SDPA_EXPONENTIAL,
	SDPA_LOGARITHM,
	SDPA_COPY,
	SDPA_QUERY, /* y = the index in dimension 2 */
	SDPA_KEY,   /* the one in dimension 3 */
	SDPA_GE,
	SDPA_SELECT, /* t ? x : b */
	SDPA_OPS
};

struct sdpa_node {
	enum sdpa_op op;
	enum sdpa_tensor x, b, t, y; /* SDPA_NONE where the operation takes fewer */
};

enum { SDPA_NODES = 24 };

struct sdpa_graph {
	int n;
	struct sdpa_node node[SDPA_NODES];
};

enum sdpa_way { SDPA_FORWARD, SDPA_BACKWARD, SDPA_BACKWARD_REPEATABLE };

/* Backward: dQ is summed by atomics in SDPA_ACC. Backward, repeatable: dQ comes from one product
 * in one order, and cuDNN keeps dS (2*B*H*T*T bytes) for it. cuDNN's notes on its engines do not
 * tell the two apart: the graph does. */
void occ_sdpa_graph(enum sdpa_way way, struct sdpa_graph *g);

/* Dimensions and strides (elements) of one tensor for these B, T, H, D. */
void occ_sdpa_shape(const struct occ_attention *a, enum sdpa_tensor t, int64_t dim[4],
		    int64_t stride[4]);

cudnnDataType_t occ_sdpa_type(enum sdpa_tensor t);

int occ_sdpa_used(const struct sdpa_graph *g, enum sdpa_tensor t); /* 1: some node names it */

enum { SDPA_DESCRIPTORS = 128, SDPA_NAME = 160, SDPA_WORDS = 256 };

/* What cuDNN runs for one graph and one shape. */
struct sdpa_plan {
	cudnnBackendDescriptor_t all[SDPA_DESCRIPTORS], plan; /* all of them; the plan among them */
	int n;
	int64_t workspace; /* bytes cuDNN wants */
	int nbound;
	enum sdpa_tensor bound[SDPA_BOUND]; /* what needs a pointer, in the graph's tensor order */
	char words[SDPA_WORDS];             /* of the first refusal; "" if there was none */
};

/* Asks cuDNN for a plan: for the GPU of `h`, or without any GPU for one that is described by
 * `gpu` (a device-properties descriptor, h NULL; tests). Returns 0, or -1 with p->words set. Close
 * p either way. Takes about half a second. */
int occ_sdpa_plan(struct sdpa_plan *p, const struct sdpa_graph *g, const struct occ_attention *a,
		  cudnnHandle_t h, cudnnBackendDescriptor_t gpu);

/* The name of the plan's first kernel, "?" where cuDNN does not tell. */
void occ_sdpa_name(const struct sdpa_plan *p, char text[SDPA_NAME]);

/* A device-properties descriptor from cuDNN's JSON form; NULL where cuDNN refuses it. The caller
 * destroys it by occ_sdpa_gpu_close. */
cudnnBackendDescriptor_t occ_sdpa_gpu(const char *json);
void occ_sdpa_gpu_close(cudnnBackendDescriptor_t gpu);

/* Binds memory: at[t] for every t in p->bound (host memory, a float, for SCALE, NEG and ONE) and
 * d_workspace of p->workspace bytes. NULL and p->words set on refusal; the caller destroys it. */
cudnnBackendDescriptor_t occ_sdpa_bind(struct sdpa_plan *p, void *at[SDPA_BOUND],
				       void *d_workspace);

void occ_sdpa_close(struct sdpa_plan *p);

#endif
