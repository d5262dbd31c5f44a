/* The graphs of causal attention, as tables. */
#include "base/cuda_sdpa.h"

enum shape { PACKED, PACKED_T, HEADS, DENSE, SCORES, SCORES_T, ROWS, SCALAR };

#define BF CUDNN_DATA_BFLOAT16
#define FL CUDNN_DATA_FLOAT
#define IN CUDNN_DATA_INT32
#define BO CUDNN_DATA_BOOLEAN

static const struct {
	enum shape shape;
	cudnnDataType_t type;
} tensors[SDPA_TENSORS] = {
	[SDPA_Q] = {PACKED, BF},      [SDPA_KT] = {PACKED_T, BF},   [SDPA_V] = {PACKED, BF},
	[SDPA_VT] = {PACKED_T, BF},   [SDPA_O] = {HEADS, BF},       [SDPA_STATS] = {ROWS, FL},
	[SDPA_DO] = {HEADS, BF},      [SDPA_DQ] = {PACKED, BF},     [SDPA_DK] = {PACKED, BF},
	[SDPA_DV] = {PACKED, BF},     [SDPA_ROWSUM] = {ROWS, FL},   [SDPA_ACC] = {DENSE, FL},
	[SDPA_SCALE] = {SCALAR, FL},  [SDPA_NEG] = {SCALAR, FL},    [SDPA_ONE] = {SCALAR, FL},
	[SDPA_SCORE] = {SCORES, FL},  [SDPA_SCALED] = {SCORES, FL}, [SDPA_ROW] = {SCORES, IN},
	[SDPA_COL] = {SCORES, IN},    [SDPA_SEEN] = {SCORES, BO},   [SDPA_MASKED] = {SCORES, FL},
	[SDPA_TOP] = {ROWS, FL},      [SDPA_BELOW] = {SCORES, FL},  [SDPA_EXP] = {SCORES, FL},
	[SDPA_SUM] = {ROWS, FL},      [SDPA_LOGSUM] = {ROWS, FL},   [SDPA_P] = {SCORES, BF},
	[SDPA_PT] = {SCORES_T, BF},   [SDPA_DOO] = {HEADS, FL},     [SDPA_DOO_SUM] = {ROWS, FL},
	[SDPA_LESS] = {SCORES, FL},   [SDPA_DP] = {SCORES, FL},     [SDPA_DP_LESS] = {SCORES, FL},
	[SDPA_DS_RAW] = {SCORES, FL}, [SDPA_DS] = {SCORES, FL},     [SDPA_DST] = {SCORES_T, BF},
	[SDPA_K] = {PACKED, BF},
};

#define T(name) SDPA_##name
#define N1(op, x, y)                                                                               \
	{                                                                                          \
		SDPA_##op, T(x), T(NONE), T(NONE), T(y)                                            \
	}
#define N2(op, x, b, y)                                                                            \
	{                                                                                          \
		SDPA_##op, T(x), T(b), T(NONE), T(y)                                               \
	}
#define N3(op, x, b, t, y)                                                                         \
	{                                                                                          \
		SDPA_##op, T(x), T(b), T(t), T(y)                                                  \
	}
/* masked = x where the key is not later than the query, else -inf */
#define CAUSAL(x)                                                                                  \
	N1(QUERY, x, ROW), N1(KEY, x, COL), N2(GE, ROW, COL, SEEN), N3(SELECT, x, NEG, SEEN, MASKED)

static const struct sdpa_node forward[] = {
	N2(MATMUL, Q, KT, SCORE), N2(MUL, SCORE, SCALE, SCALED), CAUSAL(SCALED),
	N1(MAXIMUM, MASKED, TOP), N2(SUB, MASKED, TOP, BELOW),   N1(EXPONENTIAL, BELOW, EXP),
	N1(TOTAL, EXP, SUM),      N1(LOGARITHM, SUM, LOGSUM),    N2(ADD, TOP, LOGSUM, STATS),
	N2(DIV, EXP, SUM, P),     N2(MATMUL, P, V, O),
};

static const struct sdpa_node backward[] = {
	N2(MUL, DO, O, DOO),
	N1(TOTAL, DOO, DOO_SUM),
	N2(MUL, DOO_SUM, ONE, ROWSUM),
	N2(MATMUL, Q, KT, SCORE),
	N2(MUL, SCORE, SCALE, SCALED),
	N2(SUB, SCALED, STATS, LESS),
	CAUSAL(LESS),
	N1(EXPONENTIAL, MASKED, EXP),
	N1(RESHAPE, EXP, PT),
	N2(MATMUL, PT, DO, DV),
	N2(MATMUL, DO, VT, DP),
	N2(SUB, DP, ROWSUM, DP_LESS),
	N2(MUL, DP_LESS, EXP, DS_RAW),
	N2(MUL, DS_RAW, SCALE, DS),
	N1(RESHAPE, DS, DST),
	N2(MATMUL, DST, Q, DK),
	N1(RESHAPE, KT, K),
};

static const struct sdpa_node by_sums[] = {N2(MATMUL, DS, K, ACC), N1(COPY, ACC, DQ)};
static const struct sdpa_node at_once[] = {N2(MATMUL, DS, K, DQ)};

#define COUNT(a) (int)(sizeof(a) / sizeof(*(a)))

static void append(struct sdpa_graph *g, int n, const struct sdpa_node *node)
{
	occ_check(g->n + n <= SDPA_NODES, "%d + %d nodes", g->n, n);
	memcpy(g->node + g->n, node, (size_t)n * sizeof(*node));
	g->n += n;
}

void occ_sdpa_graph(enum sdpa_way way, struct sdpa_graph *g)
{
	g->n = 0;
	if (way == SDPA_FORWARD) {
		append(g, COUNT(forward), forward);
		return;
	}
	append(g, COUNT(backward), backward);
	if (way == SDPA_BACKWARD)
		append(g, COUNT(by_sums), by_sums);
	else
		append(g, COUNT(at_once), at_once);
}

void occ_sdpa_shape(const struct occ_attention *a, enum sdpa_tensor t, int64_t dim[4],
		    int64_t stride[4])
{
	int64_t B = a->B, L = a->T, H = a->H, D = a->D, row = 3 * H * D;
	const int64_t shape[][2][4] = {
		[PACKED] = {{B, H, L, D}, {row * L, D, row, 1}},
		[PACKED_T] = {{B, H, D, L}, {row * L, D, 1, row}},
		[HEADS] = {{B, H, L, D}, {H * D * L, D, H * D, 1}},
		[DENSE] = {{B, H, L, D}, {H * L * D, L * D, D, 1}},
		[SCORES] = {{B, H, L, L}, {H * L * L, L * L, L, 1}},
		[SCORES_T] = {{B, H, L, L}, {H * L * L, L * L, 1, L}},
		[ROWS] = {{B, H, L, 1}, {H * L, L, 1, 1}},
		[SCALAR] = {{1, 1, 1, 1}, {1, 1, 1, 1}},
	};
	memcpy(dim, shape[tensors[t].shape][0], 4 * sizeof(*dim));
	memcpy(stride, shape[tensors[t].shape][1], 4 * sizeof(*stride));
}

cudnnDataType_t occ_sdpa_type(enum sdpa_tensor t)
{
	return tensors[t].type;
}

int occ_sdpa_used(const struct sdpa_graph *g, enum sdpa_tensor t)
{
	for (int i = 0; i < g->n; i++) {
		const struct sdpa_node *n = &g->node[i];
		if (n->x == t || n->b == t || n->t == t || n->y == t)
			return 1;
	}
	return 0;
}
