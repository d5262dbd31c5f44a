/* GPT-2 weights through safetensors: a real file, round trips, every shard, every refusal. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "tests/check.h"
#include "tests/whole.h"
#include "trainer/safetensors.h"
#include "trainer/weights_io.h"

#define TINY "tests/data/tiny_gpt2/model.safetensors"

static char dir[] = "/tmp/occ-wio-XXXXXX";
static char path[64], path2[64];

static const struct occ_gpt_shape tiny = {.layers = 1,
					  .hidden = 2,
					  .heads = 1,
					  .seq_len = 1024,
					  .vocab = 21,
					  .vocab_padded = 128,
					  .tied = 1};
static const struct occ_gpt_shape small = {.layers = 3,
					   .hidden = 8,
					   .heads = 4,
					   .seq_len = 5,
					   .vocab = 13,
					   .vocab_padded = 16,
					   .tied = 1};

static void table(struct occ_weights *w, const struct occ_gpt_shape *s, int T, int P, int tp,
		  int pp)
{
	const struct occ_layout l = {T, P, 1};
	occ_weights_init(w, s, &l, (struct occ_place){.tp = tp, .pp = pp});
}

/* A buffer full of what must be overwritten. */
static float *dirty(const struct occ_weights *w)
{
	float *x = occ_alloc((size_t)w->size, sizeof(*x));
	memset(x, 0xee, (size_t)w->size * sizeof(*x));
	return x;
}

static void check_import(const char *file, const struct occ_gpt_shape *s, const char *why)
{
	struct occ_weights w;
	struct occ_err e = {0};
	table(&w, s, 1, 1, 0, 0);
	float *x = dirty(&w);
	int got = occ_weights_import(file, &w, s, x, &e);
	if (why) {
		CHECK(got == -1 && e.code == OCC_E_DATA && strstr(e.text, why) &&
			      strstr(e.text, file),
		      "wanted '%s', got %d '%s'", why, got, e.text);
		uint32_t first;
		memcpy(&first, x, 4);
		CHECK(first == 0xeeeeeeeeu, "%s: output touched", why);
	} else {
		CHECK(got == 0, "%s: %s", file, e.text);
	}
	occ_free(x);
	occ_weights_release(&w);
}

static size_t slurp(const char *file, char *buf, size_t size)
{
	FILE *f = fopen(file, "rb");
	size_t n = f ? fread(buf, 1, size, f) : 0;
	if (f)
		fclose(f);
	return n;
}

/* The file's own bytes come back: it has no mask buffers, and its header's padding is spaces too.
 */
static void check_tiny(void)
{
	static char a[16384], b[16384];
	struct occ_weights w;
	struct occ_err e = {0};
	table(&w, &tiny, 1, 1, 0, 0);
	float *x = dirty(&w);
	CHECK(occ_weights_import(TINY, &w, &tiny, x, &e) == 0, "%s", e.text);
	CHECK(occ_weights_export(path, &w, x, &e) == 0, "%s", e.text);
	struct occ_st s, t;
	CHECK(occ_st_open(&s, TINY, 3, &e) == 0 && occ_st_open(&t, path, 3, &e) == 0, "%s", e.text);
	CHECK(s.n == 16 && t.n == 16, "%d and %d tensors", s.n, t.n);
	for (int i = 0; i < s.n; i++) {
		const struct occ_st_tensor *u = occ_st_find(&t, s.at[i].name);
		CHECK(u && u->bytes == s.at[i].bytes && !memcmp(u->data, s.at[i].data, u->bytes) &&
			      !memcmp(u->dim, s.at[i].dim, sizeof(u->dim)),
		      "%s", s.at[i].name);
	}
	/* (in, out) in the file, (out, in) here */
	const struct occ_weight *p = occ_weights_find(&w, "h.0.attn.c_attn.weight");
	const struct occ_st_tensor *u = occ_st_find(&s, p->name);
	for (int64_t o = 0; o < 6; o++)
		for (int64_t i = 0; i < 2; i++)
			CHECK(x[p->at + o * 2 + i] == occ_st_float(u, i * 6 + o), "%d,%d", (int)o,
			      (int)i);
	size_t n = slurp(TINY, a, sizeof(a)), m = slurp(path, b, sizeof(b));
	CHECK(n > 9000 && n == m && !memcmp(a, b, n), "%zu and %zu bytes", n, m);
	occ_st_close(&s);
	occ_st_close(&t);
	occ_free(x);
	occ_weights_release(&w);
}

/* export(x), import into every shard of every layout: bit-equal to drawing that shard. */
static void check_shards(const struct occ_gpt_shape *s)
{
	static const int layouts[][2] = {{1, 1}, {2, 1}, {1, 2}, {4, 3}, {2, 2}};
	struct occ_err e = {0};
	struct occ_weights w;
	table(&w, s, 1, 1, 0, 0);
	float *x = occ_alloc((size_t)w.size, sizeof(*x));
	whole_fill(&w, 7, x);
	CHECK(occ_weights_export(path, &w, x, &e) == 0, "%s", e.text);
	occ_free(x);
	occ_weights_release(&w);
	for (size_t i = 0; i < sizeof(layouts) / sizeof(*layouts); i++) {
		int T = layouts[i][0], P = layouts[i][1];
		for (int r = 0; r < T * P; r++) {
			table(&w, s, T, P, r % T, r / T);
			float *want = occ_alloc((size_t)w.size, sizeof(*want)), *got = dirty(&w);
			whole_fill(&w, 7, want);
			CHECK(occ_weights_import(path, &w, s, got, &e) == 0, "%s", e.text);
			CHECK(!memcmp(want, got, (size_t)w.size * sizeof(*want)),
			      "tp %d of %d, pp %d of %d", r % T, T, r / T, P);
			occ_free(want);
			occ_free(got);
			occ_weights_release(&w);
		}
	}
}

/* What is done to the tensors of a good file before it is written again. */
struct edit {
	const char *what;
	const char *drop, *add, *rename, *to; /* add: a copy of wte under this name */
	const char *prefix;                   /* of all names but lm_head.weight */
	int untied;
	const char *why; /* NULL: accepted */
};

static const struct edit edits[] = {
	{.what = "as it is"},
	{.what = "prefix", .prefix = "transformer."},
	{.what = "masks", .add = "h.0.attn.bias"},
	{.what = "masks", .add = "h.11.attn.masked_bias"},
	{.what = "equal head", .add = "lm_head.weight"},
	{.what = "equal head", .add = "lm_head.weight", .prefix = "transformer."},
	{.what = "head", .add = "lm_head.weight", .untied = 1},
	{.what = "head", .add = "lm_head.weight", .untied = 1, .prefix = "transformer."},
	{.what = "no head", .untied = 1, .why = "'lm_head.weight' is missing (expected [13, 8])"},
	{.what = "missing",
	 .drop = "h.1.ln_2.bias",
	 .why = "'h.1.ln_2.bias' is missing (expected [8])"},
	{.what = "missing",
	 .drop = "h.1.ln_2.bias",
	 .prefix = "transformer.",
	 .why = "'transformer.h.1.ln_2.bias' is missing"},
	{.what = "extra", .add = "h.3.ln_1.weight", .why = "'h.3.ln_1.weight' [13, 8] is not part"},
	{.what = "extra", .add = "h.x.attn.bias", .why = "'h.x.attn.bias'"},
	{.what = "extra", .add = "h.0.attn.bias2", .why = "'h.0.attn.bias2'"},
	{.what = "renamed", .rename = "wpe.weight", .to = "wpe", .why = "'wpe.weight' is missing"},
	{.what = "mixed",
	 .rename = "wpe.weight",
	 .to = "transformer.wpe.weight",
	 .why = "expected all or none"},
	{.what = "prefixed head", .add = "transformer.lm_head.weight", .why = "all or none"},
	{.what = "prefixed head",
	 .rename = "wte.weight",
	 .to = "lm_head.weight",
	 .why = "'wte.weight' is missing"},
	{.what = "wrong shape",
	 .rename = "wte.weight",
	 .to = "ln_f.weight",
	 .drop = "ln_f.weight",
	 .why = "'wte.weight' is missing"},
	{.what = "wrong shape",
	 .add = "ln_f.weight",
	 .drop = "ln_f.weight",
	 .why = "'ln_f.weight' is [13, 8], expected [8]"},
};

static char *join(const char *a, const char *b)
{
	char *s = occ_alloc(strlen(a) + strlen(b) + 1, 1);
	strcpy(s, a);
	return strcat(s, b);
}

static void apply(const struct edit *d, const struct occ_st *from)
{
	struct occ_st_tensor t[64];
	struct occ_err e = {0};
	int n = 0;
	for (int i = 0; i < from->n; i++) {
		const char *name = from->at[i].name;
		if (d->drop && !strcmp(name, d->drop))
			continue;
		t[n] = from->at[i];
		if (d->rename && !strcmp(name, d->rename))
			name = d->to;
		t[n++].name = join(d->prefix ? d->prefix : "", name);
	}
	if (d->add) {
		t[n] = *occ_st_find(from, "wte.weight");
		t[n++].name = join("", d->add);
	}
	CHECK(occ_st_write(path2, t, n, &e) == 0, "%s", e.text);
	for (int i = 0; i < n; i++)
		occ_free(t[i].name);
}

static void check_edits(void)
{
	struct occ_st s;
	struct occ_err e = {0};
	CHECK(occ_st_open(&s, path, 3, &e) == 0, "%s", e.text);
	for (size_t i = 0; i < sizeof(edits) / sizeof(*edits); i++) {
		struct occ_gpt_shape shape = small;
		shape.tied = !edits[i].untied;
		apply(&edits[i], &s);
		check_import(path2, &shape, edits[i].why);
	}
	/* a head that differs in one bit */
	struct occ_st_tensor t[64];
	float other[13 * 8];
	int n = s.n;
	memcpy(t, s.at, (size_t)n * sizeof(*t));
	t[n] = *occ_st_find(&s, "wte.weight");
	memcpy(other, t[n].data, sizeof(other));
	other[50] = nextafterf(other[50], 9);
	t[n].data = other;
	t[n].name = "lm_head.weight";
	CHECK(occ_st_write(path2, t, n + 1, &e) == 0, "%s", e.text);
	check_import(path2, &small, "differs from wte.weight at element 50");
	occ_st_close(&s);
}

/* Each size of the model changed by one: the tensor that shows it is named. */
static void check_sizes(void)
{
	struct {
		struct occ_gpt_shape s;
		const char *why;
	} v[6];
	for (int i = 0; i < 6; i++)
		v[i].s = small;
	v[0].s.layers = 2, v[0].why = "'h.2.";
	v[1].s.layers = 4, v[1].why = "'h.3.ln_1.weight' is missing";
	v[2].s.hidden = 12, v[2].why = "'wte.weight' is [13, 8], expected [13, 12]";
	v[3].s.vocab = 14, v[3].why = "'wte.weight' is [13, 8], expected [14, 8]";
	v[4].s.seq_len = 6, v[4].why = "'wpe.weight' is [5, 8], expected [6, 8] (or more rows)";
	v[5].s.seq_len = 4, v[5].why = NULL; /* fewer positions than the file has */
	for (int i = 0; i < 6; i++)
		check_import(path, &v[i].s, v[i].why);
	check_import("/nonexistent/w.safetensors", &small, "cannot open");
}

/* Halves convert: every element of a bf16 and an f16 copy is the rounded one. */
static void check_halves(void)
{
	char head[4096];
	size_t n = 0, at = 0;
	struct occ_weights w;
	struct occ_err e = {0};
	for (int f16 = 0; f16 < 2; f16++) {
		table(&w, &tiny, 1, 1, 0, 0);
		n = at = 0;
		n += (size_t)sprintf(head, "{");
		for (int i = 0; i < w.n; i++) {
			const struct occ_weight *p = &w.at[i];
			int64_t a = p->transposed ? p->cols : p->real_rows,
				b = p->transposed ? p->rows : p->cols;
			n += (size_t)sprintf(
				head + n,
				p->ndim == 1 ? "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%.0d%lld]"
					     : "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%d,%lld]",
				i ? "," : "", p->name, f16 ? "F16" : "BF16",
				p->ndim == 1 ? 0 : (int)a, (long long)b);
			n += (size_t)sprintf(head + n, ",\"data_offsets\":[%zu,%zu]}", at,
					     at + (size_t)(a * b) * 2);
			at += (size_t)(a * b) * 2;
		}
		n += (size_t)sprintf(head + n, "}");
		FILE *f = fopen(path2, "wb");
		uint64_t len = n;
		fwrite(&len, 8, 1, f);
		fwrite(head, 1, n, f);
		for (size_t i = 0; i < at / 2; i++) { /* 1.5 in either format */
			uint16_t h = f16 ? 0x3e00 : 0x3fc0;
			fwrite(&h, 2, 1, f);
		}
		fclose(f);
		float *x = dirty(&w);
		CHECK(occ_weights_import(path2, &w, &tiny, x, &e) == 0, "%s", e.text);
		for (int i = 0; i < w.n; i++)
			for (int64_t k = 0; k < w.at[i].rows * w.at[i].cols; k++)
				CHECK(x[w.at[i].at + k] ==
					      (k < w.at[i].real_rows * w.at[i].cols ? 1.5f : 0),
				      "%s %d", w.at[i].name, (int)k);
		occ_free(x);
		occ_weights_release(&w);
	}
}

int main(void)
{
	struct occ_gpt_shape untied = small;
	untied.tied = 0;
	if (!mkdtemp(dir))
		return 1;
	snprintf(path, sizeof(path), "%s/a", dir);
	snprintf(path2, sizeof(path2), "%s/b", dir);
	check_tiny();
	check_shards(&untied);
	check_shards(&small);
	check_edits();
	check_sizes();
	check_halves();
	unlink(path);
	unlink(path2);
	CHECK(rmdir(dir) == 0, "files are left in %s", dir);
	CHECK(occ_mem_live() == 0, "%lld bytes leaked", (long long)occ_mem_live());
	return check_done();
}
