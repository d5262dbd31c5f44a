/* The weight table: shards tile the whole tensors, the closed count of parameters, the start from a
 * seed. Large models are only counted: nothing of their size is allocated. */
#include "model/weights.h"

#include <string.h>

#include "base/mem.h"
#include "tests/check.h"

static const struct occ_layout layouts[] = {{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {2, 2, 1}, {4, 1, 1},
					    {1, 3, 1}, {4, 2, 1}, {1, 5, 1}, {2, 4, 1}};
enum { NLAYOUTS = sizeof(layouts) / sizeof(layouts[0]) };
static const struct occ_layout one = {1, 1, 1};

struct model {
	const char *name;
	int64_t layers, hidden, heads, seq_len, vocab;
	int tied;
	int64_t parameters; /* as published, or by hand; 0: by formula only */
};

static const struct model models[] = {
	{"GPT-2", 12, 768, 12, 1024, 50257, 1, 124439808},
	{"GPT-2 medium", 24, 1024, 16, 1024, 50257, 1, 354823168},
	{"GPT-2 large", 36, 1280, 20, 1024, 50257, 1, 774030080},
	{"GPT-2 XL", 48, 1600, 25, 1024, 50257, 1, 1557611200},
	{"13B", 40, 5120, 40, 2048, 50257, 1, 0},
	{"13B untied", 40, 5120, 40, 2048, 50257, 0, 0},
	{"one of all", 1, 1, 1, 1, 1, 1, 29},
	{"one of all, untied", 1, 1, 1, 1, 1, 0, 30},
	{"tiny", 5, 16, 4, 8, 61, 1, 17536},
	{"tiny untied", 5, 16, 4, 8, 61, 0, 18512},
};
enum { NMODELS = sizeof(models) / sizeof(models[0]), TINY = 8 };

static struct occ_gpt_shape shape_of(const struct model *m, int tp, int64_t multiple)
{
	return (struct occ_gpt_shape){
		.layers = m->layers,
		.hidden = m->hidden,
		.heads = m->heads,
		.seq_len = m->seq_len,
		.vocab = m->vocab,
		.vocab_padded = occ_vocab_padded(m->vocab, multiple, tp),
		.tied = m->tied,
		.init_std = 0.02,
	};
}

static void check_padding(void)
{
	static const struct {
		int64_t vocab, multiple;
		int tp;
		int64_t padded;
	} rows[] = {
		{50257, 128, 1, 50304}, {50257, 128, 2, 50432}, {50257, 128, 8, 51200},
		{50257, 1, 1, 50257},   {50257, 1, 8, 50264},   {61, 1, 4, 64},
		{256, 128, 2, 256},     {1, 1, 1, 1},           {1, 128, 4, 512},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		int64_t got = occ_vocab_padded(rows[i].vocab, rows[i].multiple, rows[i].tp);
		CHECK(got == rows[i].padded, "%lld to multiples of %lld x %d: %lld",
		      (long long)rows[i].vocab, (long long)rows[i].multiple, rows[i].tp,
		      (long long)got);
	}
}

/* Real elements of a rank's shard that no other rank counts. */
static int64_t own_elements(const struct occ_weights *w)
{
	int64_t sum = 0;
	for (int i = 0; i < w->n; i++) {
		const struct occ_weight *p = &w->at[i];
		int64_t rows = p->lrows;
		if (p->copy || (p->split == OCC_WHOLE && w->tp > 0))
			continue;
		while (rows > 0 && occ_weight_row(w, p, rows - 1) >= p->real_rows)
			rows--;
		sum += rows * p->lcols;
	}
	return sum;
}

static void check_count(const struct model *m)
{
	struct occ_gpt_shape s = shape_of(m, 1, 128);
	int64_t C = m->hidden, L = m->layers;
	int64_t closed =
		(m->vocab * (m->tied ? 1 : 2) + m->seq_len) * C + L * (12 * C * C + 13 * C) + 2 * C;
	CHECK(occ_gpt_parameters(&s) == closed, "%s: %lld parameters", m->name,
	      (long long)occ_gpt_parameters(&s));
	CHECK(!m->parameters || closed == m->parameters, "%s: %lld by formula", m->name,
	      (long long)closed);
	for (int i = 0; i < NLAYOUTS; i++) {
		const struct occ_layout *l = &layouts[i];
		int64_t sum = 0;
		if (m->heads % l->tensor || l->pipeline > L)
			continue;
		s = shape_of(m, l->tensor, 128);
		for (int rank = 0; rank < l->tensor * l->pipeline; rank++) {
			struct occ_weights w;
			occ_weights_init(&w, &s, l, occ_place_of(l, rank));
			sum += own_elements(&w);
			occ_weights_release(&w);
		}
		CHECK(sum == closed, "%s, tp %d pp %d: the shards hold %lld of %lld", m->name,
		      l->tensor, l->pipeline, (long long)sum, (long long)closed);
	}
}

static void check_same_tensor(const struct occ_weight *p, const struct occ_weight *q)
{
	CHECK(p->ndim == q->ndim && p->rows == q->rows && p->cols == q->cols &&
		      p->real_rows == q->real_rows && p->split == q->split &&
		      p->groups == q->groups && p->transposed == q->transposed &&
		      p->decay == q->decay && p->id == q->id &&
		      memcmp(&p->init_std, &q->init_std, sizeof(float)) == 0,
	      "%s is not the same tensor in every layout", p->name);
}

/* Adds 1 to seen[] for every element of the whole tensors that this shard holds. */
static void mark(const struct occ_weights *whole, const struct occ_weights *w, uint8_t *seen)
{
	int64_t end = 0;
	for (int i = 0; i < w->n; i++) {
		const struct occ_weight *p = &w->at[i], *q = occ_weights_find(whole, p->name);
		CHECK(q != NULL, "%s is not in the whole model", p->name);
		CHECK(p->at >= end, "%s overlaps the one before", p->name);
		end = p->at + p->lrows * p->lcols;
		check_same_tensor(p, q);
		if (p->copy)
			continue;
		for (int64_t k = 0; k < p->lrows * p->lcols; k++) {
			int64_t row = occ_weight_row(w, p, k / p->lcols);
			int64_t col = occ_weight_col(w, p, k % p->lcols);
			if (row >= 0 && row < q->rows && col >= 0 && col < q->cols)
				seen[q->at + row * q->cols + col]++;
			else
				CHECK(0, "%s: (%lld, %lld) is outside", p->name, (long long)row,
				      (long long)col);
		}
	}
	CHECK(end <= w->size, "%lld elements end at %lld", (long long)w->size, (long long)end);
}

static void check_tiles(const struct model *m, const struct occ_layout *l)
{
	struct occ_gpt_shape s = shape_of(m, l->tensor, 4);
	struct occ_weights whole;
	occ_weights_init(&whole, &s, &one, (struct occ_place){0});
	uint8_t *seen = occ_alloc((size_t)whole.size, 1);
	for (int rank = 0; rank < l->tensor * l->pipeline; rank++) {
		struct occ_weights w;
		occ_weights_init(&w, &s, l, occ_place_of(l, rank));
		mark(&whole, &w, seen);
		occ_weights_release(&w);
	}
	for (int i = 0; i < whole.n; i++) {
		const struct occ_weight *q = &whole.at[i];
		int want = q->split == OCC_WHOLE ? l->tensor : 1, wrong = 0;
		for (int64_t k = 0; k < q->rows * q->cols; k++)
			wrong += seen[q->at + k] != want;
		CHECK(!wrong, "tp %d pp %d: %d elements of %s are held other than %d times",
		      l->tensor, l->pipeline, wrong, q->name, want);
	}
	occ_free(seen);
	occ_weights_release(&whole);
}

/* q, k and v of tensor rank t are those of its heads. */
static void check_heads(void)
{
	struct occ_gpt_shape s = shape_of(&models[TINY], 2, 1);
	struct occ_weights w;
	occ_weights_init(&w, &s, &(struct occ_layout){2, 1, 1}, (struct occ_place){.tp = 1});
	const struct occ_weight *p = occ_weights_find(&w, "h.2.attn.c_attn.weight");
	const struct occ_weight *b = occ_weights_find(&w, "h.2.attn.c_attn.bias");
	for (int64_t r = 0; r < 24; r++) {
		int64_t want = r / 8 * 16 + 8 + r % 8;
		CHECK(occ_weight_row(&w, p, r) == want && occ_weight_col(&w, b, r) == want,
		      "row %lld of q, k, v", (long long)r);
	}
	occ_weights_release(&w);
}

static void check_table(void)
{
	struct occ_gpt_shape s = shape_of(&models[TINY + 1], 1, 1);
	struct occ_weights w;
	int transposed = 0, decayed = 0;
	occ_weights_init(&w, &s, &one, (struct occ_place){0});
	CHECK(w.n == 12 * 5 + 5, "%d tensors", w.n);
	for (int i = 0; i < w.n; i++) {
		transposed += w.at[i].transposed;
		decayed += w.at[i].decay;
		CHECK(w.at[i].decay == (w.at[i].ndim == 2), "%s decays", w.at[i].name);
		for (int k = 0; k < i; k++)
			CHECK(w.at[i].id != w.at[k].id, "%s and %s have one id", w.at[i].name,
			      w.at[k].name);
	}
	CHECK(transposed == 4 * 5 && decayed == 4 * 5 + 3, "%d transposed, %d decay", transposed,
	      decayed);
	CHECK(!occ_weights_find(&w, "h.5.ln_1.weight"), "a layer too many");
	occ_weights_release(&w);
}

static int equal_bits(const float *x, const float *y)
{
	return memcmp(x, y, sizeof(*x)) == 0;
}

/* Every element of a shard's start equals the whole model's; gaps and padding rows are 0. */
static void check_draw_shard(const struct occ_weights *whole, const float *all,
			     const struct occ_weights *w)
{
	float *flat = occ_alloc((size_t)w->size, sizeof(float)), zero = 0;
	memset(flat, 0xff, (size_t)w->size * sizeof(float));
	occ_weights_draw(w, 7, flat);
	for (int i = 0; i < w->n; i++) {
		const struct occ_weight *p = &w->at[i], *q = occ_weights_find(whole, p->name);
		int wrong = 0;
		for (int64_t k = 0; k < p->lrows * p->lcols; k++) {
			int64_t row = occ_weight_row(w, p, k / p->lcols);
			int64_t col = occ_weight_col(w, p, k % p->lcols);
			const float *want =
				row < p->real_rows ? &all[q->at + row * q->cols + col] : &zero;
			wrong += !equal_bits(&flat[p->at + k], want);
			flat[p->at + k] = 0;
		}
		CHECK(!wrong, "tp %d of %d: %d values of %s%s differ", w->tp, w->T, wrong, p->name,
		      p->copy ? " (copy)" : "");
	}
	for (int64_t k = 0; k < w->size; k++)
		if (!equal_bits(&flat[k], &zero))
			CHECK(0, "gap at %lld is not 0", (long long)k);
	occ_free(flat);
}

static void check_draw(const struct model *m, const struct occ_layout *l)
{
	/* The unpadded whole model gives the truth: padding must not shift anything. */
	struct occ_gpt_shape bare = shape_of(m, 1, 1), s = shape_of(m, l->tensor, 4);
	struct occ_weights whole;
	occ_weights_init(&whole, &bare, &one, (struct occ_place){0});
	float *all = occ_alloc((size_t)whole.size, sizeof(float));
	occ_weights_draw(&whole, 7, all);
	for (int rank = 0; rank < l->tensor * l->pipeline; rank++) {
		struct occ_weights w;
		occ_weights_init(&w, &s, l, occ_place_of(l, rank));
		check_draw_shard(&whole, all, &w);
		occ_weights_release(&w);
	}
	occ_free(all);
	occ_weights_release(&whole);
}

static void check_moments(void)
{
	static const struct {
		const char *name;
		double mean, std; /* std < 0: constant */
	} rows[] = {
		{"wte.weight", 0, 0.02},
		{"wpe.weight", 0, 0.02},
		{"h.0.ln_1.weight", 1, -1},
		{"h.0.ln_1.bias", 0, -1},
		{"h.1.attn.c_attn.weight", 0, 0.02},
		{"h.1.attn.c_attn.bias", 0, -1},
		{"h.1.attn.c_proj.weight", 0, 0.01}, /* 0.02 / sqrt(2 * 2 layers) */
		{"h.1.mlp.c_fc.weight", 0, 0.02},
		{"h.1.mlp.c_proj.weight", 0, 0.01},
		{"ln_f.weight", 1, -1},
		{"ln_f.bias", 0, -1},
	};
	const struct model m = {"two layers", 2, 64, 4, 64, 128, 1, 0};
	struct occ_gpt_shape s = shape_of(&m, 1, 1);
	struct occ_weights w;
	occ_weights_init(&w, &s, &one, (struct occ_place){0});
	float *flat = occ_alloc((size_t)w.size, sizeof(float));
	occ_weights_draw(&w, 1337, flat);
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		const struct occ_weight *p = occ_weights_find(&w, rows[i].name);
		double n = (double)(p->rows * p->cols), sum = 0, sum2 = 0;
		for (int64_t k = 0; k < p->rows * p->cols; k++)
			sum += (double)flat[p->at + k];
		for (int64_t k = 0; k < p->rows * p->cols; k++)
			sum2 += pow((double)flat[p->at + k] - sum / n, 2);
		double std = rows[i].std < 0 ? 0 : rows[i].std, got = sqrt(sum2 / n);
		CHECK_NEAR(sum / n, rows[i].mean, 4 * std / sqrt(n), "%s: mean %g", p->name,
			   sum / n);
		CHECK_NEAR(got, std, 4 * std / sqrt(2 * n), "%s: deviation %g", p->name, got);
	}
	occ_free(flat);
	occ_weights_release(&w);
}

int main(void)
{
	check_padding();
	check_heads();
	check_table();
	check_moments();
	for (int i = 0; i < NMODELS; i++)
		check_count(&models[i]);
	for (int i = TINY; i < NMODELS; i++)
		for (int k = 0; k < NLAYOUTS; k++) {
			check_tiles(&models[i], &layouts[k]);
			check_draw(&models[i], &layouts[k]);
		}
	return check_done();
}
