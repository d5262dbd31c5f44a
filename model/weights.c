/* The one place that knows which tensors a GPT has, how each is divided, and how it starts. */
#include "model/weights.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* Dimensions of a tensor, as multiples of what the shape says. */
enum dim { ONE, HIDDEN, HIDDEN3, HIDDEN4, VOCAB, POSITIONS };
enum start { ZERO, UNIT, NORMAL, NORMAL_RESIDUAL };

struct kind {
	const char *name; /* "%lld" is the layer */
	enum dim rows, cols;
	enum occ_split split;
	int groups, transposed;
	enum start start;
};

static const struct kind layer_kinds[OCC_NLAYER_KINDS] = {
	[OCC_LN1_W] = {"h.%lld.ln_1.weight", ONE, HIDDEN, OCC_WHOLE, 1, 0, UNIT},
	[OCC_LN1_B] = {"h.%lld.ln_1.bias", ONE, HIDDEN, OCC_WHOLE, 1, 0, ZERO},
	[OCC_QKV_W] = {"h.%lld.attn.c_attn.weight", HIDDEN3, HIDDEN, OCC_ROWS, 3, 1, NORMAL},
	[OCC_QKV_B] = {"h.%lld.attn.c_attn.bias", ONE, HIDDEN3, OCC_COLS, 3, 0, ZERO},
	[OCC_PROJ_W] = {"h.%lld.attn.c_proj.weight", HIDDEN, HIDDEN, OCC_COLS, 1, 1,
			NORMAL_RESIDUAL},
	[OCC_PROJ_B] = {"h.%lld.attn.c_proj.bias", ONE, HIDDEN, OCC_WHOLE, 1, 0, ZERO},
	[OCC_LN2_W] = {"h.%lld.ln_2.weight", ONE, HIDDEN, OCC_WHOLE, 1, 0, UNIT},
	[OCC_LN2_B] = {"h.%lld.ln_2.bias", ONE, HIDDEN, OCC_WHOLE, 1, 0, ZERO},
	[OCC_FC_W] = {"h.%lld.mlp.c_fc.weight", HIDDEN4, HIDDEN, OCC_ROWS, 1, 1, NORMAL},
	[OCC_FC_B] = {"h.%lld.mlp.c_fc.bias", ONE, HIDDEN4, OCC_COLS, 1, 0, ZERO},
	[OCC_FC2_W] = {"h.%lld.mlp.c_proj.weight", HIDDEN, HIDDEN4, OCC_COLS, 1, 1,
		       NORMAL_RESIDUAL},
	[OCC_FC2_B] = {"h.%lld.mlp.c_proj.bias", ONE, HIDDEN, OCC_WHOLE, 1, 0, ZERO},
};
enum { NKINDS = OCC_NLAYER_KINDS };

enum { PARALLEL = 1 << 16 }; /* elements from which drawing a tensor is worth several threads */

enum { WTE, WPE, LNF_W, LNF_B, HEAD, NOUTER };
static const struct kind outer_kinds[NOUTER] = {
	[WTE] = {"wte.weight", VOCAB, HIDDEN, OCC_ROWS, 1, 0, NORMAL},
	[WPE] = {"wpe.weight", POSITIONS, HIDDEN, OCC_WHOLE, 1, 0, NORMAL},
	[LNF_W] = {"ln_f.weight", ONE, HIDDEN, OCC_WHOLE, 1, 0, UNIT},
	[LNF_B] = {"ln_f.bias", ONE, HIDDEN, OCC_WHOLE, 1, 0, ZERO},
	[HEAD] = {"lm_head.weight", VOCAB, HIDDEN, OCC_ROWS, 1, 0, NORMAL},
};

static int64_t length(const struct occ_gpt_shape *s, enum dim d)
{
	switch (d) {
	case ONE:
		return 1;
	case HIDDEN:
		return s->hidden;
	case HIDDEN3:
		return 3 * s->hidden;
	case HIDDEN4:
		return 4 * s->hidden;
	case VOCAB:
		return s->vocab_padded;
	case POSITIONS:
		return s->seq_len;
	}
	return 0;
}

static void add(struct occ_weights *w, const struct occ_gpt_shape *s, const struct kind *k,
		int64_t layer, uint32_t id)
{
	struct occ_weight *p = &w->at[w->n++];
	memset(p, 0, sizeof(*p));
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	snprintf(p->name, sizeof(p->name), k->name, (long long)layer);
#pragma GCC diagnostic pop
	p->ndim = k->rows == ONE ? 1 : 2;
	p->rows = length(s, k->rows);
	p->cols = length(s, k->cols);
	p->real_rows = k->rows == VOCAB ? s->vocab : p->rows;
	p->split = k->split;
	p->groups = k->groups;
	p->lrows = k->split == OCC_ROWS ? p->rows / w->T : p->rows;
	p->lcols = k->split == OCC_COLS ? p->cols / w->T : p->cols;
	p->transposed = k->transposed;
	p->decay = p->ndim == 2;
	p->init_fill = k->start == UNIT ? 1.0f : 0.0f;
	if (k->start == NORMAL)
		p->init_std = (float)s->init_std;
	if (k->start == NORMAL_RESIDUAL)
		p->init_std = (float)(s->init_std / sqrt(2.0 * (double)s->layers));
	p->id = id;
	p->at = w->size;
	w->size += p->lrows * p->lcols;
}

void occ_weights_init(struct occ_weights *w, const struct occ_gpt_shape *s,
		      const struct occ_layout *l, struct occ_place place)
{
	int first, n = occ_stage_layers((int)s->layers, l->pipeline, place.pp, &first);
	int is_first = place.pp == 0, is_last = place.pp == l->pipeline - 1;
	memset(w, 0, sizeof(*w));
	w->tp = place.tp;
	w->T = l->tensor;
	w->at = occ_alloc((size_t)n * NKINDS + NOUTER, sizeof(*w->at));
	for (int k = WTE; is_first && k <= WPE; k++)
		add(w, s, &outer_kinds[k], 0, (uint32_t)k);
	for (int i = first; i < first + n; i++)
		for (int k = 0; k < NKINDS; k++)
			add(w, s, &layer_kinds[k], i, (uint32_t)(NOUTER + i * NKINDS + k));
	for (int k = LNF_W; is_last && k <= LNF_B; k++)
		add(w, s, &outer_kinds[k], 0, (uint32_t)k);
	if (is_last && !s->tied)
		add(w, s, &outer_kinds[HEAD], 0, HEAD);
	if (is_last && s->tied && !is_first) {
		add(w, s, &outer_kinds[WTE], 0, WTE);
		w->at[w->n - 1].copy = 1;
	}
}

void occ_weights_release(struct occ_weights *w)
{
	occ_free(w->at);
	memset(w, 0, sizeof(*w));
}

const struct occ_weight *occ_weights_find(const struct occ_weights *w, const char *name)
{
	for (int i = 0; i < w->n; i++)
		if (!strcmp(w->at[i].name, name))
			return &w->at[i];
	return NULL;
}

/* Local index i of n / T, divided in `groups` equal blocks of which each rank has its part of each.
 */
static int64_t global_index(const struct occ_weights *w, int64_t n, int groups, int64_t i)
{
	int64_t block = n / groups, part = block / w->T;
	return i / part * block + w->tp * part + i % part;
}

int64_t occ_weight_real_rows(const struct occ_weights *w, const struct occ_weight *p)
{
	if (p->real_rows == p->rows)
		return p->lrows;
	int64_t n =
		p->real_rows - occ_weight_row(w, p, 0); /* only vocabularies are padded: one run */
	return n < 0 ? 0 : n < p->lrows ? n : p->lrows;
}

int64_t occ_weight_row(const struct occ_weights *w, const struct occ_weight *p, int64_t r)
{
	return p->split == OCC_ROWS ? global_index(w, p->rows, p->groups, r) : r;
}

int64_t occ_weight_col(const struct occ_weights *w, const struct occ_weight *p, int64_t c)
{
	return p->split == OCC_COLS ? global_index(w, p->cols, p->groups, c) : c;
}

static void draw_row(const struct occ_weights *w, const struct occ_weight *p, uint64_t key,
		     int64_t r, float *out)
{
	int64_t row = occ_weight_row(w, p, r), col = 0;
	int64_t run = p->split == OCC_COLS ? p->lcols / p->groups : p->lcols;
	for (int64_t c = 0; c < p->lcols; c++, col++) {
		if (c % run == 0) /* within a group columns run on */
			col = occ_weight_col(w, p, c);
		out[c] = p->init_fill;
		if (p->init_std > 0)
			out[c] = p->init_std *
				 occ_rng_normal(key, p->id, (uint64_t)(row * p->cols + col));
	}
}

void occ_weights_draw(const struct occ_weights *w, uint64_t seed, float *flat)
{
	uint64_t key = occ_rng_key(seed, OCC_RNG_INIT);
	memset(flat, 0, (size_t)w->size * sizeof(float));
	for (int i = 0; i < w->n; i++) {
		const struct occ_weight *p = &w->at[i];
#pragma omp parallel for schedule(static) if (p->lrows * p->lcols >= PARALLEL)
		for (int64_t r = 0; r < p->lrows; r++)
			if (occ_weight_row(w, p, r) < p->real_rows)
				draw_row(w, p, key, r, flat + p->at + r * p->lcols);
	}
}

int64_t occ_gpt_parameters(const struct occ_gpt_shape *s)
{
	struct occ_gpt_shape bare = *s;
	int64_t outer = 0, layer = 0;
	bare.vocab_padded = s->vocab;
	for (int k = 0; k < (s->tied ? HEAD : NOUTER); k++)
		outer += length(&bare, outer_kinds[k].rows) * length(&bare, outer_kinds[k].cols);
	for (int k = 0; k < NKINDS; k++)
		layer += length(&bare, layer_kinds[k].rows) * length(&bare, layer_kinds[k].cols);
	return outer + s->layers * layer;
}

int64_t occ_vocab_padded(int64_t vocab, int64_t multiple, int tp)
{
	int64_t unit = multiple * tp;
	return (vocab + unit - 1) / unit * unit;
}
