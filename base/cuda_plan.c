/* A graph of attention in cuDNN's terms: descriptors, the engines it proposes, the first of them
 * that becomes a plan. Every descriptor is noted in the plan and destroyed with it. */
#include "base/cuda_sdpa.h"

#include <stdbool.h>
#include <stdio.h>

#include "base/mem.h"

typedef cudnnBackendDescriptor_t desc;

enum { CONFIGS = 8, ALIGNMENT = 16 };

enum kind { MATMUL, POINTWISE, REDUCTION, RESHAPE };

#define POINT(mode)                                                                                \
	POINTWISE, CUDNN_DATA_FLOAT, 0,                                                            \
	{                                                                                          \
		CUDNN_POINTWISE_##mode                                                             \
	}

/* How cuDNN names an operation; prec: the type in which it computes; axis: of an index, else 0. */
static const struct {
	enum kind kind;
	cudnnDataType_t prec;
	int64_t axis;
	union {
		cudnnPointwiseMode_t pointwise;
		cudnnReduceTensorOp_t reduce;
	};
} ops[SDPA_OPS] = {
	[SDPA_MATMUL] = {MATMUL, CUDNN_DATA_FLOAT, 0, {0}},
	[SDPA_RESHAPE] = {RESHAPE, CUDNN_DATA_FLOAT, 0, {0}},
	[SDPA_MAXIMUM] = {REDUCTION, CUDNN_DATA_FLOAT, 0, {.reduce = CUDNN_REDUCE_TENSOR_MAX}},
	[SDPA_TOTAL] = {REDUCTION, CUDNN_DATA_FLOAT, 0, {.reduce = CUDNN_REDUCE_TENSOR_ADD}},
	[SDPA_ADD] = {POINT(ADD)},
	[SDPA_SUB] = {POINT(SUB)},
	[SDPA_MUL] = {POINT(MUL)},
	[SDPA_DIV] = {POINT(DIV)},
	[SDPA_EXPONENTIAL] = {POINT(EXP)},
	[SDPA_LOGARITHM] = {POINT(LOG)},
	[SDPA_COPY] = {POINT(IDENTITY)},
	[SDPA_QUERY] = {POINTWISE, CUDNN_DATA_FLOAT, 2, {CUDNN_POINTWISE_GEN_INDEX}},
	[SDPA_KEY] = {POINTWISE, CUDNN_DATA_FLOAT, 3, {CUDNN_POINTWISE_GEN_INDEX}},
	[SDPA_GE] = {POINTWISE, CUDNN_DATA_BOOLEAN, 0, {CUDNN_POINTWISE_CMP_GE}},
	[SDPA_SELECT] = {POINT(BINARY_SELECT)},
};

/* One refusal ends the building: every call below is skipped once p->words is set. */
static void must(struct sdpa_plan *p, cudnnStatus_t s, const char *what)
{
	char why[SDPA_WORDS] = "";
	if (s == CUDNN_STATUS_SUCCESS || p->words[0])
		return;
	cudnnGetLastErrorString(why, sizeof(why));
	for (char *c = why; *c; c++)
		if (*c == '\n')
			*c = ' ';
	snprintf(p->words, sizeof(p->words), "%s: %.60s: %.150s", what, cudnnGetErrorString(s),
		 why);
}

static desc make(struct sdpa_plan *p, cudnnBackendDescriptorType_t type)
{
	desc d = NULL;
	occ_check(p->n < SDPA_DESCRIPTORS, "%d descriptors", p->n);
	if (p->words[0])
		return NULL;
	must(p, cudnnBackendCreateDescriptor(type, &d), "descriptor");
	if (d)
		p->all[p->n++] = d;
	return d;
}

static void set(struct sdpa_plan *p, desc d, cudnnBackendAttributeName_t name,
		cudnnBackendAttributeType_t type, int64_t n, const void *value)
{
	if (!p->words[0])
		must(p, cudnnBackendSetAttribute(d, name, type, n, value), "attribute");
}

static void set_desc(struct sdpa_plan *p, desc d, cudnnBackendAttributeName_t name, desc value)
{
	if (value)
		set(p, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void finish(struct sdpa_plan *p, desc d, const char *what)
{
	if (!p->words[0])
		must(p, cudnnBackendFinalize(d), what);
}

static desc tensor(struct sdpa_plan *p, const struct occ_attention *a, enum sdpa_tensor t)
{
	desc d = make(p, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
	int64_t dim[4], stride[4], uid = t + 1, align = ALIGNMENT;
	cudnnDataType_t type = occ_sdpa_type(t);
	cudnnBackendTensorReordering_t order = CUDNN_TENSOR_REORDERING_F16x16;
	bool virt = t >= SDPA_BOUND, value = t == SDPA_SCALE || t == SDPA_NEG || t == SDPA_ONE;
	occ_sdpa_shape(a, t, dim, stride);
	set(p, d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
	set(p, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dim);
	set(p, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
	set(p, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
	set(p, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &align);
	set(p, d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &virt);
	set(p, d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &value);
	if (t == SDPA_ACC)
		set(p, d, CUDNN_ATTR_TENSOR_REORDERING_MODE, CUDNN_TYPE_TENSOR_REORDERING_MODE, 1,
		    &order);
	finish(p, d, "tensor");
	return d;
}

static desc matmul(struct sdpa_plan *p, const struct sdpa_node *n, const desc *t)
{
	desc how = make(p, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
	set(p, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &ops[n->op].prec);
	finish(p, how, "product");
	desc d = make(p, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
	set_desc(p, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, t[n->x]);
	set_desc(p, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, t[n->b]);
	set_desc(p, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, t[n->y]);
	set_desc(p, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
	return d;
}

static desc pointwise(struct sdpa_plan *p, const struct sdpa_node *n, const desc *t)
{
	desc how = make(p, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
	set(p, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &ops[n->op].pointwise);
	set(p, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &ops[n->op].prec);
	if (ops[n->op].axis)
		set(p, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &ops[n->op].axis);
	finish(p, how, "pointwise mode");
	desc d = make(p, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
	set_desc(p, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
	set_desc(p, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, t[n->x]);
	set_desc(p, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, t[n->b]);
	set_desc(p, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t[n->t]);
	set_desc(p, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, t[n->y]);
	return d;
}

static desc reduction(struct sdpa_plan *p, const struct sdpa_node *n, const desc *t)
{
	desc how = make(p, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
	set(p, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
	    &ops[n->op].reduce);
	set(p, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &ops[n->op].prec);
	finish(p, how, "reduction");
	desc d = make(p, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
	set_desc(p, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, t[n->x]);
	set_desc(p, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, t[n->y]);
	set_desc(p, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
	return d;
}

static desc reshape(struct sdpa_plan *p, const struct sdpa_node *n, const desc *t)
{
	desc d = make(p, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
	set_desc(p, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, t[n->x]);
	set_desc(p, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, t[n->y]);
	return d;
}

static desc operation_graph(struct sdpa_plan *p, const struct sdpa_graph *g,
			    const struct occ_attention *a, cudnnHandle_t h)
{
	static desc (*const build[])(struct sdpa_plan *, const struct sdpa_node *, const desc *) = {
		[MATMUL] = matmul,
		[POINTWISE] = pointwise,
		[REDUCTION] = reduction,
		[RESHAPE] = reshape,
	};
	desc t[SDPA_TENSORS + 1] = {0}, op[SDPA_NODES];
	for (int i = 0; i < SDPA_TENSORS; i++)
		if (occ_sdpa_used(g, (enum sdpa_tensor)i)) {
			t[i] = tensor(p, a, (enum sdpa_tensor)i);
			if (i < SDPA_BOUND)
				p->bound[p->nbound++] = (enum sdpa_tensor)i;
		}
	for (int i = 0; i < g->n; i++) {
		op[i] = build[ops[g->node[i].op].kind](p, &g->node[i], t);
		finish(p, op[i], "operation");
	}
	desc d = make(p, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
	if (h)
		set(p, d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &h);
	set(p, d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->n, op);
	finish(p, d, "graph");
	return d;
}

/* The engines that cuDNN proposes, the best first; how many. */
static int64_t configs(struct sdpa_plan *p, desc graph, desc gpu, desc cfg[CONFIGS])
{
	cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
	int64_t n = 0;
	desc d = make(p, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
	set_desc(p, d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
	set(p, d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
	set_desc(p, d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, gpu);
	finish(p, d, "search");
	for (int i = 0; i < CONFIGS; i++)
		cfg[i] = make(p, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
	if (!p->words[0])
		must(p,
		     cudnnBackendGetAttribute(d, CUDNN_ATTR_ENGINEHEUR_RESULTS,
					      CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS, &n, cfg),
		     "engines");
	return n < CONFIGS ? n : CONFIGS;
}

/* A refusal of one engine is no refusal of the next: `first` keeps the words of the first one. */
static void try(struct sdpa_plan *p, desc cfg, cudnnHandle_t h, char first[SDPA_WORDS])
{
	int64_t n = 0;
	desc d = make(p, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
	if (h)
		set(p, d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &h);
	set_desc(p, d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, cfg);
	finish(p, d, "plan");
	if (!p->words[0])
		must(p,
		     cudnnBackendGetAttribute(d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
					      CUDNN_TYPE_INT64, 1, &n, &p->workspace),
		     "workspace");
	if (!p->words[0])
		p->plan = d;
	else if (!first[0])
		memcpy(first, p->words, SDPA_WORDS);
	p->words[0] = 0;
}

int occ_sdpa_plan(struct sdpa_plan *p, const struct sdpa_graph *g, const struct occ_attention *a,
		  cudnnHandle_t h, cudnnBackendDescriptor_t gpu)
{
	char first[SDPA_WORDS] = "";
	desc cfg[CONFIGS];
	memset(p, 0, sizeof(*p));
	if (a->B <= 0 || a->T <= 0 || a->H <= 0 || a->D <= 0) { /* cuDNN divides by some of them */
		snprintf(p->words, sizeof(p->words), "an empty shape");
		return -1;
	}
	int64_t n = configs(p, operation_graph(p, g, a, h), gpu, cfg);
	if (p->words[0])
		return -1;
	for (int64_t i = 0; i < n && !p->plan; i++)
		try(p, cfg[i], h, first);
	if (p->plan)
		return 0;
	snprintf(p->words, sizeof(p->words), "%s",
		 first[0] ? first : "cuDNN has no engine for this graph");
	return -1;
}

void occ_sdpa_name(const struct sdpa_plan *p, char text[SDPA_NAME])
{
	static const char key[] = "\"kernelName\":\"";
	int64_t n = 0;
	snprintf(text, SDPA_NAME, "?");
	if (!p->plan ||
	    cudnnBackendGetAttribute(p->plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
				     CUDNN_TYPE_CHAR, 0, &n, NULL))
		return;
	char *json = occ_alloc((size_t)n + 1, 1);
	if (!cudnnBackendGetAttribute(p->plan, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION,
				      CUDNN_TYPE_CHAR, n, &n, json)) {
		const char *at = strstr(json, key);
		const char *name = at ? at + sizeof(key) - 1 : "?";
		snprintf(text, SDPA_NAME, "%.*s", (int)strcspn(name, "\""), name);
	}
	occ_free(json);
}

cudnnBackendDescriptor_t occ_sdpa_gpu(const char *json)
{
	desc d = NULL;
	if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &d))
		return NULL;
	if (!cudnnBackendSetAttribute(d, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
				      (int64_t)strlen(json), json) &&
	    !cudnnBackendFinalize(d))
		return d;
	cudnnBackendDestroyDescriptor(d);
	return NULL;
}

void occ_sdpa_gpu_close(cudnnBackendDescriptor_t gpu)
{
	if (gpu)
		cudnnBackendDestroyDescriptor(gpu);
}

cudnnBackendDescriptor_t occ_sdpa_bind(struct sdpa_plan *p, void *at[SDPA_BOUND], void *d_workspace)
{
	int64_t uid[SDPA_BOUND], n = p->nbound;
	void *pointer[SDPA_BOUND];
	desc d = NULL;
	for (int64_t i = 0; i < n; i++) {
		uid[i] = p->bound[i] + 1;
		pointer[i] = at[p->bound[i]];
	}
	must(p, cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &d), "pack");
	set(p, d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uid);
	set(p, d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, pointer);
	set(p, d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &d_workspace);
	finish(p, d, "pack");
	if (!p->words[0])
		return d;
	if (d)
		cudnnBackendDestroyDescriptor(d);
	return NULL;
}

void occ_sdpa_close(struct sdpa_plan *p)
{
	while (p->n > 0)
		cudnnBackendDestroyDescriptor(p->all[--p->n]);
	p->plan = NULL;
}
