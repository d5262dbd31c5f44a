/* The weight table: shards of any layout tile the whole tensors once, parameters are counted as
 * published, and what a shard draws does not depend on the layout. */
#include "model/weights.h"

#include <string.h>

#include "base/mem.h"
#include "tests/check.h"

static const struct occ_gpt_shape tiny = {
	.layers = 5,
	.hidden = 16,
	.heads = 8,
	.seq_len = 6,
	.vocab = 37,
	.init_std = 0.02,
};

/* Number of ranks of one replica that hold each element of each tensor, against what its split
 * says. */
struct cover {
	struct occ_weights all; /* one rank, the same padded vocabulary */
	int *times;		/* [all.size] */
	int copies;		/* rows of the table that are the tied copy */
};

static void cover_shard(struct cover *c, const struct occ_weights *w)
{
	int64_t end = 0;
	for (int i = 0; i < w->n; i++) {
		const struct occ_weight *p = &w->at[i];
		const struct occ_weight *whole = occ_weights_find(&c->all, p->name);
		CHECK(whole, "%s: unknown", p->name);
		CHECK(occ_weights_find(w, p->name) == p, "%s: stands twice", p->name);
		CHECK(p->at == end, "%s: at %lld, not %lld", p->name, (long long)p->at,
		      (long long)end);
		end += p->lrows * p->lcols;
		int outside = 0;
		c->copies += p->copy;
		if (!whole || p->copy)
			continue;
		CHECK(p->rows == whole->rows && p->cols == whole->cols && p->id == whole->id &&
			      p->real_rows == whole->real_rows && p->ndim == whole->ndim &&
			      p->decay == whole->decay && p->transposed == whole->transposed,
		      "%s: not as in one rank", p->name);
		for (int64_t k = 0; k < end - p->at; k++) {
			int64_t row = occ_weight_row(w, p, k / p->lcols),
				col = occ_weight_col(w, p, k % p->lcols);
			int inside = row >= 0 && row < p->rows && col >= 0 && col < p->cols;
			outside += !inside;
			if (inside)
				c->times[whole->at + row * p->cols + col]++;
		}
		CHECK(!outside, "%s: %d elements outside", p->name, outside);
	}
	CHECK(w->size == end, "size %lld, not %lld", (long long)w->size, (long long)end);
}

static struct occ_gpt_shape shape_for(struct occ_gpt_shape s, int64_t multiple, int tp, int tied)
{
	s.vocab_padded = occ_vocab_padded(s.vocab, multiple, tp);
	s.tied = tied;
	return s;
}

static void check_cover(const struct cover *c, const struct occ_layout *l, int tied)
{
	for (int i = 0; i < c->all.n; i++) {
		const struct occ_weight *p = &c->all.at[i];
		int want = p->split == OCC_WHOLE ? l->tensor : 1, wrong = 0;
		for (int64_t k = 0; k < p->rows * p->cols; k++)
			wrong += c->times[p->at + k] != want;
		CHECK(!wrong, "tp %d pp %d: %s: %d elements not held %d times", l->tensor,
		      l->pipeline, p->name, wrong, want);
	}
	CHECK(c->copies == (tied && l->pipeline > 1 ? l->tensor : 0), "tp %d pp %d: %d copies",
	      l->tensor, l->pipeline, c->copies);
}

static void test_tiles(void)
{
	const struct occ_layout one = {1, 1, 1};
	for (int tp = 1; tp <= 8; tp *= 2)
		for (int pp = 1; pp <= 5; pp++)
			for (int tied = 0; tied <= 1; tied++) {
				struct occ_layout l = {tp, pp, 2};
				struct occ_gpt_shape s = shape_for(tiny, 4, tp, tied);
				struct cover c = {0};
				occ_weights_init(&c.all, &s, &one, (struct occ_place){0, 0, 0});
				c.times = occ_alloc((size_t)c.all.size, sizeof(int));
				for (int r = 0; r < tp * pp * 2; r++) {
					struct occ_place at = occ_place_of(&l, r);
					struct occ_weights w;
					if (at.dp)
						continue;
					occ_weights_init(&w, &s, &l, at);
					cover_shard(&c, &w);
					occ_weights_release(&w);
				}
				check_cover(&c, &l, tied);
				occ_free(c.times);
				occ_weights_release(&c.all);
			}
}

/* The q, k and v of a head are on one rank: its rows of each third are the same. */
static void test_heads_stay_whole(void)
{
	for (int tp = 1; tp <= 8; tp *= 2)
		for (int t = 0; t < tp; t++) {
			struct occ_layout l = {tp, 1, 1};
			struct occ_gpt_shape s = shape_for(tiny, 4, tp, 1);
			struct occ_weights w;
			occ_weights_init(&w, &s, &l, (struct occ_place){.tp = t});
			const struct occ_weight *qkv =
				occ_weights_find(&w, "h.2.attn.c_attn.weight");
			const struct occ_weight *bias =
				occ_weights_find(&w, "h.2.attn.c_attn.bias");
			int64_t part = tiny.hidden / tp;
			for (int64_t i = 0; i < 3 * part; i++) {
				int64_t want = i / part * tiny.hidden + t * part + i % part;
				CHECK(occ_weight_row(&w, qkv, i) == want &&
					      occ_weight_col(&w, bias, i) == want,
				      "tp %d of %d: local row %lld", t, tp, (long long)i);
			}
			occ_weights_release(&w);
		}
}

/* Published counts, and the closed form 12 L h^2 + 13 L h + (V + S) h + 2 h. */
static const struct {
	int64_t layers, hidden, heads, seq_len, vocab;
	int tied;
	int64_t parameters;
} models[] = {
	{12, 768, 12, 1024, 50257, 1, 124439808},   /* GPT-2 */
	{24, 1024, 16, 1024, 50257, 1, 354823168},  /* medium */
	{36, 1280, 20, 1024, 50257, 1, 774030080},  /* large */
	{48, 1600, 25, 1024, 50257, 1, 1557611200}, /* xl */
	{12, 768, 12, 1024, 50257, 0, 163037184},
	{40, 5120, 40, 2048, 51200, 1, 12858214400}, /* 13B class */
	{5, 16, 8, 6, 37, 1, 0},
	{1, 1, 1, 1, 1, 0, 0},
};

static void test_parameters(void)
{
	for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
		int64_t L = models[i].layers, h = models[i].hidden, V = models[i].vocab,
			S = models[i].seq_len;
		struct occ_gpt_shape s = {.layers = L,
					  .hidden = h,
					  .heads = models[i].heads,
					  .seq_len = S,
					  .vocab = V,
					  .vocab_padded = V + 1000,
					  .tied = models[i].tied};
		int64_t form = 12 * L * h * h + 13 * L * h + (V + S) * h + 2 * h + !s.tied * V * h;
		int64_t got = occ_gpt_parameters(&s);
		CHECK(got == form, "model %zu: %lld, not %lld", i, (long long)got, (long long)form);
		CHECK(!models[i].parameters || got == models[i].parameters,
		      "model %zu: %lld, not %lld", i, (long long)got,
		      (long long)models[i].parameters);
	}
}

/* Tables of models whose values would not fit here: what all ranks hold is the parameters, and the
 * whole vectors, padding and copy that are held more than once. */
static void test_large(void)
{
	const struct occ_layout l = {8, 4, 1};
	for (size_t i = 0; i < 6; i++) {
		struct occ_gpt_shape s = {.layers = models[i].layers,
					  .hidden = models[i].hidden,
					  .heads = 8,
					  .seq_len = models[i].seq_len,
					  .vocab = models[i].vocab};
		int64_t elements = 0, real = 0, held = occ_mem_live();
		s = shape_for(s, 128, 8, models[i].tied);
		for (int r = 0; r < 32; r++) {
			struct occ_place at = occ_place_of(&l, r);
			struct occ_weights w;
			occ_weights_init(&w, &s, &l, at);
			CHECK(occ_mem_live() - held < 1 << 20, "a table of %lld bytes",
			      (long long)(occ_mem_live() - held));
			elements += w.size;
			for (int k = 0; k < w.n; k++) {
				const struct occ_weight *p = &w.at[k];
				int64_t rows = 0;
				for (int64_t row = 0; row < p->lrows && !p->copy; row++)
					rows += occ_weight_row(&w, p, row) < p->real_rows;
				real += p->split == OCC_WHOLE && at.tp ? 0 : rows * p->lcols;
			}
			occ_weights_release(&w);
		}
		CHECK(real == occ_gpt_parameters(&s), "model %zu: %lld real elements", i,
		      (long long)real);
		CHECK(elements > real && elements < real + real / 2, "model %zu: %lld elements", i,
		      (long long)elements);
	}
}

static const struct {
	int64_t vocab, multiple;
	int tp;
	int64_t padded;
} vocabs[] = {
	{50257, 128, 1, 50304}, {50257, 128, 2, 50432}, {50257, 128, 8, 51200},
	{50257, 1, 8, 50264},	{50257, 1, 1, 50257},	{51200, 128, 8, 51200},
	{51201, 128, 8, 52224}, {1, 128, 8, 1024},	{256, 128, 2, 256},
	{257, 128, 2, 512},
};

static void test_vocab(void)
{
	for (size_t i = 0; i < sizeof(vocabs) / sizeof(vocabs[0]); i++) {
		int64_t got = occ_vocab_padded(vocabs[i].vocab, vocabs[i].multiple, vocabs[i].tp);
		CHECK(got == vocabs[i].padded, "%lld x %lld x %d: %lld", (long long)vocabs[i].vocab,
		      (long long)vocabs[i].multiple, vocabs[i].tp, (long long)got);
	}
}

/* GPT-2's vocabulary over 8 ranks: the last shard is padding at its end, some could be all padding.
 */
static void test_padded_shards(void)
{
	const struct occ_layout l = {8, 1, 1};
	int64_t real = 0;
	for (int t = 0; t < 8; t++) {
		struct occ_gpt_shape s = {.layers = 1,
					  .hidden = 8,
					  .heads = 8,
					  .seq_len = 4,
					  .vocab = 50257,
					  .init_std = 0.02};
		struct occ_weights w;
		s = shape_for(s, 128, 8, 1);
		occ_weights_init(&w, &s, &l, (struct occ_place){.tp = t});
		const struct occ_weight *wte = occ_weights_find(&w, "wte.weight");
		CHECK(wte->lrows == 6400 && wte->rows == 51200 && wte->real_rows == 50257,
		      "rank %d", t);
		float *flat = occ_alloc((size_t)w.size, sizeof(float));
		occ_weights_draw(&w, 3, flat);
		for (int64_t r = 0; r < wte->lrows; r++) {
			int is_real = t * 6400 + r < 50257, zeros = 0;
			for (int c = 0; c < 8; c++)
				zeros += flat[wte->at + r * 8 + c] == 0;
			CHECK(zeros == (is_real ? 0 : 8), "rank %d row %lld: %d zeros", t,
			      (long long)r, zeros);
			real += is_real;
		}
		occ_free(flat);
		occ_weights_release(&w);
	}
	CHECK(real == 50257, "%lld real rows", (long long)real);
}

/* Every element of a shard is that element of the tensor drawn whole; padding is 0. */
static void check_draw(const struct occ_weights *all, const float *whole,
		       const struct occ_weights *w)
{
	float *flat = occ_alloc((size_t)w->size, sizeof(float));
	memset(flat, 0xff, (size_t)w->size * sizeof(float));
	occ_weights_draw(w, 11, flat);
	for (int i = 0; i < w->n; i++) {
		const struct occ_weight *p = &w->at[i], *q = occ_weights_find(all, p->name);
		int wrong = 0;
		for (int64_t k = 0; k < p->lrows * p->lcols; k++) {
			int64_t row = occ_weight_row(w, p, k / p->lcols),
				col = occ_weight_col(w, p, k % p->lcols);
			float want = row < q->rows ? whole[q->at + row * q->cols + col] : 0;
			wrong += memcmp(&flat[p->at + k], &want, sizeof(want)) != 0;
		}
		CHECK(!wrong, "rank %d of %d: %s: %d values differ", w->tp, w->T, p->name, wrong);
	}
	occ_free(flat);
}

static void test_draw(int tied)
{
	const struct occ_layout one = {1, 1, 1};
	struct occ_gpt_shape s = shape_for(tiny, 1, 1, tied);
	struct occ_weights all;
	occ_weights_init(&all, &s, &one, (struct occ_place){0, 0, 0});
	float *whole = occ_alloc((size_t)all.size, sizeof(float));
	occ_weights_draw(&all, 11, whole);
	for (int tp = 1; tp <= 8; tp *= 2)
		for (int pp = 1; pp <= 5; pp++)
			for (int r = 0; r < tp * pp; r++) {
				struct occ_layout l = {tp, pp, 1};
				struct occ_weights w;
				s = shape_for(tiny, 4, tp, tied);
				occ_weights_init(&w, &s, &l, occ_place_of(&l, r));
				check_draw(&all, whole, &w);
				occ_weights_release(&w);
			}
	occ_free(whole);
	occ_weights_release(&all);
}

/* Mean and deviation of each tensor as designed; other seeds and other tensors draw other values.
 */
static void test_start(void)
{
	const struct occ_layout one = {1, 1, 1};
	struct occ_gpt_shape s = {.layers = 8,
				  .hidden = 64,
				  .heads = 4,
				  .seq_len = 64,
				  .vocab = 500,
				  .init_std = 0.05};
	struct occ_weights w;
	s = shape_for(s, 1, 1, 0);
	occ_weights_init(&w, &s, &one, (struct occ_place){0, 0, 0});
	float *x = occ_alloc((size_t)w.size, sizeof(float)),
	      *y = occ_alloc((size_t)w.size, sizeof(float));
	occ_weights_draw(&w, 1, x);
	occ_weights_draw(&w, 2, y);
	for (int i = 0; i < w.n; i++) {
		const struct occ_weight *p = &w.at[i];
		int64_t n = p->rows * p->cols, same = 0;
		double sum = 0, squares = 0;
		int residual = strstr(p->name, "c_proj.weight") != NULL;
		double std = p->ndim == 1 ? 0 : residual ? 0.05 / 4 : 0.05;
		double mean = strstr(p->name, "ln_") && strstr(p->name, "weight") ? 1 : 0;
		for (int64_t k = 0; k < n; k++) {
			sum += x[p->at + k];
			squares += (double)x[p->at + k] * (double)x[p->at + k];
			same += x[p->at + k] == y[p->at + k];
		}
		sum /= (double)n;
		CHECK_NEAR(sum, mean, 5 * std / sqrt((double)n), "%s: mean %g", p->name, sum);
		CHECK_NEAR(sqrt(fmax(0, squares / (double)n - sum * sum)), std, 0.05 * std,
			   "%s: deviation", p->name);
		CHECK(p->decay == (p->ndim == 2), "%s: decay %d", p->name, p->decay);
		CHECK(p->ndim == 1 ? same == n : same < n / 100,
		      "%s: %lld values of two seeds agree", p->name, (long long)same);
	}
	const struct occ_weight *a = occ_weights_find(&w, "h.0.mlp.c_fc.weight");
	const struct occ_weight *b = occ_weights_find(&w, "h.1.mlp.c_fc.weight");
	CHECK(memcmp(x + a->at, x + b->at, 64 * sizeof(float)), "two layers start alike");
	occ_free(x);
	occ_free(y);
	occ_weights_release(&w);
}

int main(void)
{
	test_tiles();
	test_heads_stay_whole();
	test_parameters();
	test_large();
	test_vocab();
	test_padded_shards();
	test_draw(0);
	test_draw(1);
	test_start();
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}
