/* Hugging Face GPT-2 weights in and out. What a file must hold is the weight table of one rank that
 * has the whole model; everything here is a loop over that table or over the shard's own. Knows the
 * names only through the tables. */
#include "trainer/weights_io.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/files.h"
#include "trainer/safetensors.h"

static const char prefix[] = "transformer.";
enum { PREFIX = sizeof(prefix) - 1, TILE = 16 };

struct import {
	const struct occ_gpt_shape *shape;
	struct occ_st file;
	struct occ_weights whole; /* table of the whole model */
	int prefixed;
	struct occ_err *e;
};

/* The whole model on one rank. */
static void whole_table(struct occ_weights *w, const struct occ_gpt_shape *s)
{
	const struct occ_layout one = {1, 1, 1};
	occ_weights_init(w, s, &one, (struct occ_place){0, 0, 0});
}

/* Shape in the file's order: unpadded, and (in, out) where it is transposed there. */
static struct occ_st_tensor file_shape(const struct occ_weight *p)
{
	struct occ_st_tensor t = {.name = (char *)p->name, .ndim = p->ndim};
	t.dim[0] = p->ndim == 1 ? p->cols : p->transposed ? p->cols : p->real_rows;
	t.dim[1] = p->ndim == 1 ? 0 : p->transposed ? p->real_rows : p->cols;
	return t;
}

static int is_head(const char *name)
{
	return !strcmp(name, "lm_head.weight");
}

/* Name without the prefix that the file uses. */
static const char *bare(const struct import *m, const char *name)
{
	return m->prefixed && !is_head(name) ? name + PREFIX : name;
}

static const struct occ_st_tensor *find(const struct import *m, const char *name)
{
	char full[64];
	snprintf(full, sizeof(full), "%s%s", m->prefixed && !is_head(name) ? prefix : "", name);
	return occ_st_find(&m->file, full);
}

/* Either all names have the prefix or none, lm_head.weight aside. */
static int check_prefix(struct import *m)
{
	const struct occ_st *f = &m->file;
	const char *with = NULL, *without = NULL;
	for (int i = 0; i < f->n; i++) {
		if (!strncmp(f->at[i].name, prefix, PREFIX))
			with = f->at[i].name;
		else if (!is_head(f->at[i].name))
			without = f->at[i].name;
	}
	m->prefixed = with != NULL;
	if (with && without)
		return occ_fail(
			m->e, OCC_E_DATA,
			"%s: '%s' has the prefix 'transformer.', '%s' has not: expected all "
			"or none",
			f->path, with, without);
	return 0;
}

/* The mask that older files keep: h.N.attn.bias, h.N.attn.masked_bias. */
static int is_mask(const char *name)
{
	int used = 0;
	sscanf(name, "h.%*[0-9].attn.%n", &used);
	return used > 0 && (!strcmp(name + used, "bias") || !strcmp(name + used, "masked_bias"));
}

static int check_extra(const struct import *m, const struct occ_st_tensor *t)
{
	const char *name = bare(m, t->name);
	char shape[200];
	if (occ_weights_find(&m->whole, name) || is_mask(name) ||
	    (m->shape->tied && is_head(t->name)))
		return 0;
	return occ_fail(m->e, OCC_E_DATA,
			"%s: tensor '%s' %s is not part of this model (%lld layers, embeddings %s)",
			m->file.path, t->name, occ_st_shape(t, shape, sizeof(shape)),
			(long long)m->shape->layers, m->shape->tied ? "tied" : "not tied");
}

static int fits(const struct occ_st_tensor *want, const struct occ_st_tensor *t)
{
	int more = !strcmp(want->name, "wpe.weight"); /* positions beyond seq_len are allowed */
	if (t->ndim != want->ndim)
		return 0;
	for (int d = 0; d < t->ndim; d++)
		if (t->dim[d] != want->dim[d] && !(more && d == 0 && t->dim[d] > want->dim[d]))
			return 0;
	return 1;
}

/* That the tensor of a row is there, in a type and shape that can be used. */
static int check_tensor(const struct import *m, const struct occ_st_tensor *want)
{
	const struct occ_st_tensor *t = find(m, want->name);
	char shape[200], found[200];
	occ_st_shape(want, shape, sizeof(shape));
	if (!t)
		return occ_fail(m->e, OCC_E_DATA, "%s: tensor '%s%s' is missing (expected %s)",
				m->file.path, m->prefixed && !is_head(want->name) ? prefix : "",
				want->name, shape);
	if (t->dtype > OCC_ST_BF16)
		return occ_fail(m->e, OCC_E_DATA,
				"%s: tensor '%s' has dtype %s, expected F32, F16 or BF16",
				m->file.path, t->name, occ_st_dtype_name[t->dtype]);
	if (!fits(want, t))
		return occ_fail(m->e, OCC_E_DATA, "%s: tensor '%s' is %s, expected %s%s",
				m->file.path, t->name, occ_st_shape(t, found, sizeof(found)), shape,
				strcmp(want->name, "wpe.weight") ? "" : " (or more rows)");
	return 0;
}

/* A head beside tied embeddings must be the same tensor. */
static int check_head(const struct import *m)
{
	const struct occ_st_tensor *head = occ_st_find(&m->file, "lm_head.weight");
	const struct occ_st_tensor *wte = find(m, "wte.weight");
	if (!m->shape->tied || !head)
		return 0;
	struct occ_st_tensor want = *wte;
	want.name = head->name;
	if (check_tensor(m, &want))
		return -1;
	int64_t n = wte->dim[0] * wte->dim[1], i = 0;
	if (head->dtype == wte->dtype && !memcmp(head->data, wte->data, wte->bytes))
		return 0;
	while (i < n && occ_st_float(head, i) == occ_st_float(wte, i))
		i++;
	if (i < n)
		return occ_fail(
			m->e, OCC_E_DATA,
			"%s: lm_head.weight differs from wte.weight at element %lld, but the "
			"embeddings are tied: set model.tie_embeddings=false",
			m->file.path, (long long)i);
	return 0;
}

static int check_file(struct import *m)
{
	if (check_prefix(m))
		return -1;
	for (int i = 0; i < m->whole.n; i++) {
		struct occ_st_tensor want = file_shape(&m->whole.at[i]);
		if (check_tensor(m, &want))
			return -1;
	}
	for (int i = 0; i < m->file.n; i++)
		if (check_extra(m, &m->file.at[i]))
			return -1;
	return check_head(m);
}

/* One row of the shard's table. Columns go in tiles, so that a transposed tensor is read along its
 * rows. */
static void fill(const struct occ_weights *w, const struct occ_weight *p,
		 const struct occ_st_tensor *t, float *flat)
{
	int64_t down = p->transposed ? 1 : p->cols, right = p->transposed ? p->real_rows : 1;
	for (int64_t c0 = 0; c0 < p->lcols; c0 += TILE) {
		int64_t c1 = c0 + TILE < p->lcols ? c0 + TILE : p->lcols;
		for (int64_t r = 0; r < p->lrows; r++) {
			int64_t row = occ_weight_row(w, p, r);
			float *out = flat + p->at + r * p->lcols;
			for (int64_t c = c0; c < c1 && row < p->real_rows; c++)
				out[c] = occ_st_float(t,
						      row * down + occ_weight_col(w, p, c) * right);
		}
	}
}

int occ_weights_import(const char *path, const struct occ_weights *w, const struct occ_gpt_shape *s,
		       float *flat, struct occ_err *e)
{
	struct import m = {.shape = s, .e = e};
	if (occ_st_open(&m.file, path, OCC_E_DATA, e))
		return -1;
	whole_table(&m.whole, s);
	int bad = check_file(&m);
	if (!bad) {
		memset(flat, 0, (size_t)w->size * sizeof(*flat));
		for (int i = 0; i < w->n; i++)
			fill(w, &w->at[i], find(&m, w->at[i].name), flat);
	}
	occ_weights_release(&m.whole);
	occ_st_close(&m.file);
	return bad;
}

/* x (rows, cols) as (cols, rows), TILE columns at a time. */
static int write_transposed(struct occ_file *f, const struct occ_weight *p, const float *x,
			    struct occ_err *e)
{
	int64_t rows = p->rows, cols = p->cols;
	float *tile = occ_alloc((size_t)rows * TILE, sizeof(*tile));
	int bad = 0;
	for (int64_t c0 = 0; c0 < cols && !bad; c0 += TILE) {
		int64_t n = cols - c0 < TILE ? cols - c0 : TILE;
		for (int64_t r = 0; r < rows; r++)
			for (int64_t c = 0; c < n; c++)
				tile[c * rows + r] = x[r * cols + c0 + c];
		bad = occ_file_write(f, tile, (size_t)(n * rows) * sizeof(*tile), e);
	}
	occ_free(tile);
	return bad;
}

static int write_weight(struct occ_file *f, const struct occ_weight *p, const float *flat,
			struct occ_err *e)
{
	if (p->transposed)
		return write_transposed(f, p, flat + p->at, e);
	return occ_file_write(f, flat + p->at, (size_t)(p->real_rows * p->cols) * sizeof(*flat), e);
}

int occ_weights_export(const char *path, const struct occ_weights *w, const float *flat,
		       struct occ_err *e)
{
	struct occ_file f;
	struct occ_st_tensor *t = occ_alloc((size_t)w->n, sizeof(*t));
	for (int i = 0; i < w->n; i++) {
		occ_check(w->at[i].lrows == w->at[i].rows && w->at[i].lcols == w->at[i].cols,
			  "%s is a shard", w->at[i].name);
		t[i] = file_shape(&w->at[i]);
	}
	occ_st_sort(t, w->n);
	int bad = occ_file_create(&f, path, (struct occ_io){.code = OCC_E_CKPT}, e) ||
		  occ_st_write_header(&f, t, w->n, e);
	for (int i = 0; i < w->n && !bad; i++)
		bad = write_weight(&f, occ_weights_find(w, t[i].name), flat, e);
	bad = bad || occ_file_commit(&f, e);
	occ_free(t);
	return bad ? -1 : 0;
}
