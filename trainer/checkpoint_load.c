/* Loading for any layout. The writer's weight tables are built from the manifest; for each tensor
 * of this shard they say which file holds each whole row and column, and where. First everything is
 * planned and the files that the plan needs are verified, then the arrays are filled. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/checkpoint_internal.h"

static struct shard *shard_at(const struct load *l, int pp, int tp)
{
	return &l->shard[pp * l->m.layout.tensor + tp];
}

/* The stage that stores the tensor, or -1. */
static int stage_of(const struct load *l, const char *name)
{
	for (int pp = 0; pp < l->m.layout.pipeline; pp++) {
		const struct occ_weight *p = occ_weights_find(&shard_at(l, pp, 0)->w, name);
		if (p && !p->copy)
			return pp;
	}
	return -1;
}

/* Asks each of the writer's shards where its own rows (columns) lie in the whole: no formula of the
 * split is needed here. */
static struct spot *find_spots(const struct load *l, int pp, const char *name, enum occ_split axis)
{
	const struct occ_weight *p = occ_weights_find(&shard_at(l, pp, 0)->w, name);
	int64_t n = axis == OCC_ROWS ? p->rows : p->cols;
	int parts = p->split == axis ? l->m.layout.tensor : 1;
	struct spot *spots = occ_alloc((size_t)n, sizeof(*spots));
	for (int tp = 0; tp < parts; tp++) {
		const struct occ_weights *w = &shard_at(l, pp, tp)->w;
		p = occ_weights_find(w, name);
		n = axis == OCC_ROWS ? p->lrows : p->lcols;
		for (int64_t i = 0; i < n; i++) {
			int64_t whole = axis == OCC_ROWS ? occ_weight_row(w, p, i)
							 : occ_weight_col(w, p, i);
			spots[whole] = (struct spot){tp, i};
		}
	}
	return spots;
}

/* Marks the shards that real rows and columns of ours lie in. One dimension at most is split. */
static void mark_needed(const struct load *l, const struct occ_weight *p, const struct plan *plan)
{
	const struct occ_weights *w = l->s->weights;
	int tp = plan->col[occ_weight_col(w, p, 0)].tp;
	if (occ_weight_row(w, p, 0) >= p->real_rows)
		return; /* a shard of nothing but padding */
	for (int64_t r = 0; r < p->lrows; r++) {
		int64_t row = occ_weight_row(w, p, r);
		if (row < p->real_rows)
			shard_at(l, plan->pp, tp + plan->row[row].tp)->needed = 1;
	}
	tp = plan->row[occ_weight_row(w, p, 0)].tp;
	for (int64_t c = 0; c < p->lcols; c++)
		shard_at(l, plan->pp, tp + plan->col[occ_weight_col(w, p, c)].tp)->needed = 1;
}

static int make_plan(struct load *l)
{
	const struct occ_weights *w = l->s->weights;
	l->shard = occ_alloc((size_t)occ_manifest_shards(&l->m), sizeof(*l->shard));
	for (int i = 0; i < occ_manifest_shards(&l->m); i++)
		occ_manifest_table(&l->m, i, &l->shard[i].w);
	l->plan = occ_alloc((size_t)w->n, sizeof(*l->plan));
	for (int i = 0; i < w->n; i++) {
		struct plan *plan = &l->plan[i];
		plan->pp = stage_of(l, w->at[i].name);
		occ_check(plan->pp >= 0, "%s: no stage of the writer holds %s", l->path,
			  w->at[i].name);
		plan->row = find_spots(l, plan->pp, w->at[i].name, OCC_ROWS);
		plan->col = find_spots(l, plan->pp, w->at[i].name, OCC_COLS);
		mark_needed(l, &w->at[i], plan);
	}
	return 0;
}

static int open_shard(struct load *l, int i)
{
	struct shard *s = &l->shard[i];
	int T = l->m.layout.tensor;
	struct occ_shard_head want = occ_shard_head(&s->w, i / T, i % T);
	char *path = occ_shard_path(l->path, &l->m, i);
	int bad = occ_shard_verify(l->path, &l->m, i, l->e) ||
		  occ_map_open(path, OCC_E_CKPT, &s->map, &s->bytes, l->e);
	if (!bad &&
	    ((int64_t)s->bytes != l->m.file[i].bytes || memcmp(s->map, &want, sizeof(want))))
		bad = occ_fail(l->e, OCC_E_CKPT, "%s: its header is not that of this shard", path);
	occ_free(path);
	return bad;
}

static int open_shards(struct load *l)
{
	for (int i = 0; i < occ_manifest_shards(&l->m); i++)
		if (l->shard[i].needed && open_shard(l, i))
			return -1;
	return 0;
}

/* The stored values of a tensor in array a of a mapped shard. */
static const float *stored(const struct shard *s, const char *name, int a)
{
	const void *start = (const char *)s->map + sizeof(struct occ_shard_head);
	const float *x = start;
	int64_t at = 0, elements = 0;
	for (int i = 0; i < s->w.n; i++) {
		const struct occ_weight *p = &s->w.at[i];
		if (!occ_shard_stores(&s->w, p))
			continue;
		if (!strcmp(p->name, name))
			at = elements;
		elements += p->lrows * p->lcols;
	}
	return x + a * elements + at;
}

/* Columns c .. of a row that lie side by side in the writer's row too: their number. */
static int64_t run_length(const struct occ_weights *w, const struct occ_weight *p,
			  const struct plan *plan, int64_t c)
{
	int64_t first = occ_weight_col(w, p, c), n = 1;
	while (c + n < p->lcols && occ_weight_col(w, p, c + n) == first + n &&
	       plan->col[first + n].tp == plan->col[first].tp &&
	       plan->col[first + n].at == plan->col[first].at + n)
		n++;
	return n;
}

void occ_load_fill(const struct load *l, int i, const float *const *base, float *out)
{
	const struct occ_weights *w = l->s->weights;
	const struct occ_weight *p = &w->at[i];
	const struct plan *plan = &l->plan[i];
	const struct occ_weight *theirs = occ_weights_find(&shard_at(l, plan->pp, 0)->w, p->name);
	for (int64_t c = 0, n; c < p->lcols; c += n) {
		struct spot col = plan->col[occ_weight_col(w, p, c)];
		n = run_length(w, p, plan, c);
		for (int64_t r = 0; r < p->lrows; r++) {
			int64_t whole = occ_weight_row(w, p, r);
			if (whole >= p->real_rows)
				continue; /* padding, maybe more than the writer's */
			struct spot row = plan->row[whole];
			memcpy(out + r * p->lcols + c,
			       base[row.tp + col.tp] + row.at * theirs->lcols + col.at,
			       (size_t)n * sizeof(*out));
		}
	}
}

/* Array a of tensor i, from the mapped shards. */
static void fill(const struct load *l, int i, int a, float *flat)
{
	const struct occ_weight *p = &l->s->weights->at[i];
	int T = l->m.layout.tensor;
	const float **base = occ_alloc((size_t)T, sizeof(*base));
	for (int tp = 0; tp < T; tp++)
		if (shard_at(l, l->plan[i].pp, tp)->map)
			base[tp] = stored(shard_at(l, l->plan[i].pp, tp), p->name, a);
	occ_load_fill(l, i, base, flat + p->at);
	occ_free(base);
}

static void fill_all(const struct load *l)
{
	const struct occ_weights *w = l->s->weights;
	float *const arrays[OCC_SHARD_ARRAYS] = {l->s->master, l->s->m, l->s->v};
	for (int a = 0; a < OCC_SHARD_ARRAYS; a++) {
		if (!arrays[a])
			continue;
		memset(arrays[a], 0, (size_t)w->size * sizeof(float));
		for (int i = 0; i < w->n; i++)
			fill(l, i, a, arrays[a]);
	}
	l->s->step = l->m.step;
	l->s->skipped = l->m.skipped;
	l->s->skipped_in_row = l->m.skipped_in_row;
}

static void release(struct load *l)
{
	for (int i = 0; l->shard && i < occ_manifest_shards(&l->m); i++) {
		occ_map_close(l->shard[i].map, l->shard[i].bytes);
		occ_weights_release(&l->shard[i].w);
	}
	for (int i = 0; l->plan && i < l->s->weights->n; i++) {
		occ_free(l->plan[i].row);
		occ_free(l->plan[i].col);
	}
	occ_free(l->shard);
	occ_free(l->plan);
	occ_manifest_release(&l->m);
}

int occ_ckpt_load(const char *path, struct occ_ckpt_state *s, struct occ_err *e)
{
	struct load l = {.path = path, .s = s, .e = e};
	if (occ_manifest_read(path, &l.m, e))
		return -1;
	int bad = occ_manifest_match(&l.m, s->shape, path, e) || make_plan(&l) || open_shards(&l);
	if (!bad && s->streams)
		bad = occ_streams_load(&l);
	if (!bad)
		fill_all(&l);
	release(&l);
	return bad ? -1 : 0;
}

int occ_ckpt_shape(const char *path, struct occ_gpt_shape *shape, int64_t *step, struct occ_err *e)
{
	struct occ_manifest m;
	if (occ_manifest_read(path, &m, e))
		return -1;
	*shape = m.shape;
	*step = m.step;
	occ_manifest_release(&m);
	return 0;
}
