/* The model on one rank: its gradients are the derivative of the loss, its loss is the
 * cross-entropy, evaluation and the next token's logits agree with training's forward pass.
 * CUDA: 1 */
#include "model/gpt_internal.h"
#include "tests/check.h"
#include "tests/tiny_gpt.h"

static const struct setting plain = {
	.name = "plain",
	.layout = {1, 1, 1},
	.device = "ref",
	.global = 2,
	.micro = 1,
	.tied = 1,
	.dropout = 0.1,
};

static double loss_at(struct rank *r, const float *flat)
{
	occ_gpt_put(&r->gpt, flat);
	rank_step(r, 1, 1);
	return occ_gpt_loss(&r->gpt) / (double)r->gpt.loss_tokens;
}

static double sign(uint64_t key, int64_t k)
{
	return occ_rng_u64(key, (uint64_t)k) & 1 ? 1 : -1;
}

/* (loss(w + h d) - loss(w - h d)) / 2h, d = +-1 on the elements of tensor p. */
static double slope(struct rank *r, const struct occ_weight *p, uint64_t key, double h, float *x)
{
	double side[2];
	for (int s = 0; s < 2; s++) {
		memcpy(x, r->flat, (size_t)r->gpt.weights.size * sizeof(float));
		for (int64_t k = 0; k < p->rows * p->cols; k++)
			x[p->at + k] += (float)((s ? -h : h) * sign(key, k));
		side[s] = loss_at(r, x);
	}
	return (side[0] - side[1]) / (2 * h);
}

static double along(const float *g, const struct occ_weight *p, uint64_t key)
{
	double sum = 0;
	for (int64_t k = 0; k < p->rows * p->cols; k++)
		sum += sign(key, k) * (double)g[p->at + k];
	return sum;
}

static double norm(const float *g, const struct occ_weight *p)
{
	double sum = 0;
	for (int64_t k = 0; k < p->rows * p->cols; k++)
		sum += (double)g[p->at + k] * (double)g[p->at + k];
	return sqrt(sum);
}

/* Along random signs an error of the gradient shows with about its own length. Richardson's step
 * removes the curvature of the loss. */
static void check_derivative(struct setting s, int every)
{
	struct rank r;
	struct occ_comm *world = occ_comm_open_self(60);
	rank_open(&r, &s, world, 1);
	size_t bytes = (size_t)r.gpt.weights.size * sizeof(float);
	float *g = occ_alloc(bytes, 1), *x = occ_alloc(bytes, 1);
	loss_at(&r, r.flat);
	r.dev->ops->get(r.dev, g, r.gpt.d_grad, bytes);
	for (int i = 0; i < r.gpt.weights.n; i += every) {
		const struct occ_weight *p = &r.gpt.weights.at[i];
		double want = along(g, p, 17), h = 0.004;
		double got = (4 * slope(&r, p, 17, h, x) - slope(&r, p, 17, 2 * h, x)) / 3;
		CHECK_NEAR(got, want, 2e-3 * norm(g, p), "%s: %s: slope %g, by gradient %g", s.name,
			   p->name, got, want);
	}
	occ_free(x);
	occ_free(g);
	rank_close(&r);
	occ_comm_close(world);
}

/* Logits come in chunks of rows, the last one short; real chunks are of some MiB, these of 3 rows.
 */
static void check_chunks(const char *device, enum occ_type type)
{
	struct setting s = plain;
	struct rank r;
	struct occ_comm *world = occ_comm_open_self(60);
	double loss[2], diff = 0, sum = 0;
	s.device = device;
	s.type = type;
	rank_open(&r, &s, world, 1);
	int64_t n = r.gpt.weights.size;
	float *g[2];
	for (int i = 0; i < 2; i++) {
		struct occ_gpt_impl *m = r.gpt.impl;
		if (i)
			m->head.rows = 3;
		rank_step(&r, 1, 1);
		loss[i] = occ_gpt_loss(&r.gpt);
		g[i] = occ_alloc((size_t)n, sizeof(float));
		r.dev->ops->get(r.dev, g[i], r.gpt.d_grad, (size_t)n * sizeof(float));
	}
	for (int64_t k = 0; k < n; k++) {
		diff += pow((double)g[0][k] - (double)g[1][k], 2);
		sum += pow((double)g[0][k], 2);
	}
	CHECK_NEAR(loss[1] / loss[0], 1, 1e-6, "%s: loss %.9g in chunks, not %.9g", device, loss[1],
		   loss[0]);
	CHECK(sqrt(diff / sum) < (type == OCC_F32 ? 1e-6 : 1e-3), "%s: chunks: %g off", device,
	      sqrt(diff / sum));
	occ_free(g[0]);
	occ_free(g[1]);
	rank_close(&r);
	occ_comm_close(world);
}

/* Without weights all tokens are equally likely. */
static void check_uniform(const char *device, enum occ_type type)
{
	struct setting s = plain;
	struct rank r;
	struct occ_comm *world = occ_comm_open_self(60);
	s.device = device;
	s.type = type;
	rank_open(&r, &s, world, 1);
	memset(r.flat, 0, (size_t)r.gpt.weights.size * sizeof(float));
	double loss = loss_at(&r, r.flat);
	CHECK_NEAR(loss, log(VOCAB), 1e-6, "%s: loss %.9g of no weights", device, loss);
	rank_close(&r);
	occ_comm_close(world);
}

static double rounded(enum occ_type type, float x)
{
	return (double)(type == OCC_F32 ? x : occ_bf16_to_f32(occ_f32_to_bf16(x)));
}

/* Sum over the prefixes of a sample of -log p(next token) by occ_gpt_next, whose logits are fp32:
 * the loss takes them rounded to the device's type. */
static double loss_by_next(struct rank *r, const int32_t *tokens)
{
	enum occ_type type = r->gpt.dev->type;
	float logits[VOCAB];
	double sum = 0;
	for (int n = 1; n <= T; n++) {
		double z = 0;
		occ_gpt_next(&r->gpt, tokens, n, logits);
		for (int v = 0; v < VOCAB; v++)
			z += exp(rounded(type, logits[v]));
		sum += log(z) - rounded(type, logits[tokens[n]]);
	}
	return sum;
}

/* Opened for training or not, one forward pass gives one loss; without dropout training's too. */
static void check_evaluation(const char *device, enum occ_type type)
{
	struct setting s = plain;
	struct rank r;
	struct occ_comm *world = occ_comm_open_self(60);
	double loss[4], next = 0;
	s.device = device;
	s.type = type;
	rank_open(&r, &s, world, 1);
	rank_step(&r, 1, 1);
	loss[0] = occ_gpt_loss(&r.gpt);
	rank_step(&r, 2, 1);
	loss[1] = occ_gpt_loss(&r.gpt);
	rank_close(&r);
	s.dropout = 0;
	rank_open(&r, &s, world, 1);
	rank_step(&r, 1, 1);
	loss[2] = occ_gpt_loss(&r.gpt);
	rank_close(&r);
	s.dropout = 0.1;
	rank_open(&r, &s, world, 0);
	rank_step(&r, 1, 0);
	loss[3] = occ_gpt_loss(&r.gpt);
	for (int i = 0; i < s.global; i++)
		next += loss_by_next(&r, r.tokens + i * (T + 1));
	rank_step(&r, 1, 0);
	CHECK(occ_gpt_loss(&r.gpt) == loss[3], "%s: another loss after next", device);
	CHECK(fabs(loss[0] - loss[1]) > 1e-4 && fabs(loss[0] - loss[2]) > 1e-4,
	      "%s: dropout drops nothing: %g %g %g", device, loss[0], loss[1], loss[2]);
	CHECK(memcmp(&loss[2], &loss[3], sizeof(double)) == 0, "%s: %.9g trained, %.9g evaluated",
	      device, loss[2], loss[3]);
	CHECK_NEAR(next / loss[3], 1, 1e-6, "%s: %.9g by next, %.9g by loss", device, next,
		   loss[3]);
	rank_close(&r);
	occ_comm_close(world);
}

/* Steps of one shape allocate in the first only. */
static void check_allocation(const char *device)
{
	struct setting s = plain;
	struct rank r;
	struct occ_comm *world = occ_comm_open_self(60);
	s.device = device;
	rank_open(&r, &s, world, 1);
	rank_step(&r, 0, 1);
	int64_t calls = occ_mem_calls();
	rank_step(&r, 1, 1);
	CHECK(occ_mem_calls() == calls, "%s: %lld allocations in a step", device,
	      (long long)(occ_mem_calls() - calls));
	rank_close(&r);
	occ_comm_close(world);
}

/* The measure is what opening takes, but for host tables of some KiB. */
static void check_measure(struct setting s, int slots)
{
	struct occ_comm *world = occ_comm_open_self(60);
	struct occ_gpt_shape shape = shape_of(&s, 1);
	struct occ_gpt_memory m;
	struct occ_topo topo;
	struct occ_group tp;
	struct occ_gpt g;
	struct occ_err e = {0};
	occ_topo_init(&topo, world, &s.layout, 0, 0);
	struct occ_device *dev = occ_device_open(s.device, s.type, 1, &e);
	occ_group_init(&tp, topo.tp, dev, 1 << 12);
	occ_gpt_measure(&shape, &s.layout, topo.place, s.type, s.micro, slots, &m);
	int64_t before = occ_mem_live();
	occ_gpt_init(&g, &shape, &topo, dev, &tp, s.micro, slots);
	int64_t host = occ_mem_live() - before - (int64_t)(m.weights + m.gradients + m.activations);
	CHECK(host > 0 && host < 32 << 10, "%d slots: %lld bytes more than measured", slots,
	      (long long)host);
	CHECK((m.gradients > 0) == (slots > 0), "%d slots: %zu of gradients", slots, m.gradients);
	occ_gpt_release(&g);
	occ_group_release(&tp);
	occ_device_close(dev);
	occ_topo_release(&topo);
	occ_comm_close(world);
}

static size_t activations(const struct occ_gpt_shape *s, struct occ_place place, int slots)
{
	struct occ_gpt_memory m;
	occ_gpt_measure(s, &(struct occ_layout){2, 4, 1}, place, OCC_BF16, 2, slots, &m);
	return m.activations;
}

/* 13B parameters on tp 2, pp 4: what slots, recomputing and evaluation must save. */
static void check_large(void)
{
	struct occ_gpt_shape s = {.layers = 40,
				  .hidden = 5120,
				  .heads = 40,
				  .seq_len = 2048,
				  .vocab = 50257,
				  .vocab_padded = 50432,
				  .tied = 1};
	struct occ_place middle = {.pp = 1};
	size_t R = 2 * 2048, x = R * 5120 * 2; /* one (R, C) in bf16 */
	size_t evaluated = activations(&s, middle, 0), one = activations(&s, middle, 1);
	size_t slot = activations(&s, middle, 4) - activations(&s, middle, 3);
	/* a layer: x y1 xb y2, (3 + 1 + 4 + 4)/2 wide, lse of 20 heads, four statistics */
	size_t layer = 10 * x + R * (20 + 4) * 4;
	CHECK(slot == 10 * layer - x, "a slot of 10 layers: %zu, not %zu", slot, 10 * layer - x);
	CHECK(one > slot && one < slot + 10 * x, "one slot: %zu", one);
	s.recompute = 1;
	slot = activations(&s, middle, 4) - activations(&s, middle, 3);
	CHECK(slot == 9 * x, "a slot, recomputed: %zu, not %zu", slot, 9 * x);
	CHECK(evaluated < layer + 3 * x, "evaluation: %zu", evaluated);
	/* the last stage holds a chunk of logits, never all: 4096 x 25216 x 4 bytes */
	size_t head = activations(&s, (struct occ_place){.pp = 3}, 1) - activations(&s, middle, 1);
	CHECK(head < 4 * x + (100 << 20), "the head: %zu", head);
}

static void check_on(const char *device)
{
	check_allocation(device);
	for (int bf16 = 0; bf16 < 2; bf16++) {
		check_uniform(device, bf16 ? OCC_BF16 : OCC_F32);
		check_chunks(device, bf16 ? OCC_BF16 : OCC_F32);
		check_evaluation(device, bf16 ? OCC_BF16 : OCC_F32);
	}
}

/* GPU code on the CPU is slow: the derivatives of a few tensors. */
static int other_device(const char *device)
{
	struct setting s = plain;
	s.device = device;
	check_derivative(s, 12);
	check_on(device);
	CHECK(occ_mem_live() == 0, "%lld bytes are still held", (long long)occ_mem_live());
	return check_done();
}

int main(void)
{
	struct setting untied = plain;
	static const char *const devices[] = {"ref", "cpu", "strict"};
	if (check_device(NULL))
		return other_device(check_device(NULL));
	untied.name = "untied, recomputed";
	untied.tied = 0;
	untied.recompute = 1;
	check_derivative(plain, 1);
	check_derivative(untied, 4); /* 53 tensors: the last is the head */
	for (int i = 0; i < 3; i++)
		check_on(devices[i]);
	for (int slots = 0; slots < 3; slots++) {
		check_measure(plain, slots);
		check_measure(untied, slots);
	}
	check_large();
	CHECK(occ_mem_live() == 0, "%lld bytes are still held", (long long)occ_mem_live());
	return check_done();
}
