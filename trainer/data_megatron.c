/* Megatron's indexed data sets: PREFIX.bin holds the tokens of all sequences one after another,
 * PREFIX.idx their lengths, offsets and documents. Everything the index says is checked against the
 * two files, so that afterwards the .bin is one plain array. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "trainer/data_kind.h"

enum { HEAD = 34, MAGIC = 9 };
static const char magic[MAGIC + 1] = "MMIDIDX\0\0";

struct index {
	const char *path;
	const struct occ_view *v;
	uint64_t sequences, documents; /* documents: entries, one more than there are documents */
	const unsigned char *lengths, *offsets, *starts;
};

static const struct dtype {
	const char *name;
	const struct occ_token_type *type; /* NULL: no ids */
} dtypes[] = {
	{NULL, NULL},
	{"u8", &occ_token_u8},
	{"i8", &occ_token_i8},
	{"i16", &occ_token_i16},
	{"i32", &occ_token_i32},
	{"i64", &occ_token_i64},
	{"f64", NULL},
	{"f32", NULL},
	{"u16", &occ_token_u16},
};

/* The arrays start at byte 34: nothing in them is aligned. */
static uint64_t u64_at(const unsigned char *p, uint64_t i)
{
	uint64_t x;
	memcpy(&x, p + 8 * i, sizeof(x)); /* NOLINT: p was placed */
	return x;
}

static int32_t i32_at(const unsigned char *p, uint64_t i)
{
	int32_t x;
	memcpy(&x, p + 4 * i, sizeof(x)); /* NOLINT: the same */
	return x;
}

int occ_megatron_index(const struct occ_view *v)
{
	return v->bytes >= MAGIC && !memcmp(v->at, magic, MAGIC);
}

/* PREFIX.idx of PREFIX.bin; the caller frees. */
static char *index_path(const char *path)
{
	char *idx = occ_strdup(path);
	memcpy(idx + strlen(idx) - 3, "idx", 3);
	return idx;
}

static int probe(const char *path)
{
	if (!occ_path_ends(path, ".bin"))
		return 0;
	char *idx = index_path(path);
	int there = access(idx, F_OK) == 0;
	occ_free(idx);
	return there;
}

static int read_head(struct index *x, const struct occ_token_type **type, struct occ_err *e)
{
	const struct occ_view *v = x->v;
	if (!occ_megatron_index(v))
		return occ_fail(
			e, OCC_E_DATA,
			"%s: does not start with MMIDIDX: not the index of a Megatron data set",
			x->path);
	if (v->bytes < HEAD)
		return occ_fail(e, OCC_E_DATA, "%s: truncated: %zu bytes, the header has %d",
				x->path, v->bytes, HEAD);
	unsigned long long version = u64_at(v->at + MAGIC, 0);
	if (version != 1)
		return occ_fail(e, OCC_E_DATA, "%s: version %llu, known is 1", x->path, version);
	unsigned code = v->at[17];
	if (code < 1 || code > 8)
		return occ_fail(e, OCC_E_DATA, "%s: unknown type code %u, known are 1 to 8",
				x->path, code);
	*type = dtypes[code].type;
	if (!*type)
		return occ_fail(e, OCC_E_DATA, "%s: type %s (code %u) holds no token ids", x->path,
				dtypes[code].name, code);
	x->sequences = u64_at(v->at + 18, 0);
	x->documents = u64_at(v->at + 26, 0);
	return 0;
}

/* Multimodal sets carry one more byte a sequence at the end, which training does not need. */
static int place_arrays(struct index *x, struct occ_err *e)
{
	uint64_t rest = x->v->bytes - HEAD, S = x->sequences, D = x->documents;
	int fits = S <= rest / 12 && D <= (rest - 12 * S) / 8;
	uint64_t want = fits ? 12 * S + 8 * D : 0;
	if (!fits || (rest != want && rest != want + S))
		return occ_fail(
			e, OCC_E_DATA,
			"%s: %s: %zu bytes do not hold %llu sequences and %llu document entries",
			x->path, fits ? "too long" : "truncated", x->v->bytes,
			(unsigned long long)S, (unsigned long long)D);
	x->lengths = x->v->at + HEAD;
	x->offsets = x->lengths + 4 * S;
	x->starts = x->offsets + 8 * S;
	return 0;
}

static int check_sequences(const struct index *x, struct occ_shard *s, const char *bin,
			   struct occ_err *e)
{
	uint64_t at = 0, size = (uint64_t)s->type->size;
	for (uint64_t i = 0; i < x->sequences; i++) {
		int32_t n = i32_at(x->lengths, i);
		uint64_t offset = u64_at(x->offsets, i);
		if (n < 0)
			return occ_fail(e, OCC_E_DATA, "%s: sequence %llu has length %d", x->path,
					(unsigned long long)i, n);
		if (offset != at)
			return occ_fail(
				e, OCC_E_DATA,
				"%s: sequence %llu starts at byte %lld, the lengths before it make "
				"%llu",
				x->path, (unsigned long long)i, (long long)offset,
				(unsigned long long)at);
		if ((uint64_t)n > (s->map.bytes - at) / size)
			return occ_fail(e, OCC_E_DATA,
					"%s: truncated: %zu bytes, sequence %llu of its index has "
					"%d tokens "
					"from byte %llu",
					bin, s->map.bytes, (unsigned long long)i, n,
					(unsigned long long)at);
		at += (uint64_t)n * size;
		s->longest = n > s->longest ? n : s->longest;
	}
	if (at != s->map.bytes)
		return occ_fail(e, OCC_E_DATA, "%s: too long: %zu bytes, its index describes %llu",
				bin, s->map.bytes, (unsigned long long)at);
	s->n = (int64_t)(at / size);
	return 0;
}

static int check_documents(const struct index *x, struct occ_err *e)
{
	uint64_t last = 0;
	for (uint64_t i = 0; i < x->documents; i++) {
		uint64_t start = u64_at(x->starts, i);
		if (start < last || start > x->sequences || (i == 0 && start))
			return occ_fail(
				e, OCC_E_DATA,
				"%s: document %llu starts at sequence %lld (of %llu), expected %s "
				"%llu",
				x->path, (unsigned long long)i, (long long)start,
				(unsigned long long)x->sequences, i ? "at least" : "",
				(unsigned long long)last);
		last = start;
	}
	if (!x->documents || last != x->sequences)
		return occ_fail(e, OCC_E_DATA,
				"%s: the document index ends at sequence %llu, there are %llu",
				x->path, (unsigned long long)last,
				(unsigned long long)x->sequences);
	return 0;
}

static int open_index(struct occ_shard *s, const char *bin, const char *idx, struct occ_err *e)
{
	struct index x = {.path = idx, .v = &s->idx};
	if (occ_view_open(&s->idx, idx, e) || read_head(&x, &s->type, e) || place_arrays(&x, e))
		return -1;
	if (occ_view_open(&s->map, bin, e) || check_sequences(&x, s, bin, e) ||
	    check_documents(&x, e))
		return -1;
	s->kind = "Megatron indexed data set";
	s->tokens = s->map.at;
	s->sequences = (int64_t)x.sequences;
	s->documents = (int64_t)x.documents - 1;
	return 0;
}

static int open_megatron(struct occ_shard *s, const char *path, struct occ_tokenizer *tok,
			 struct occ_err *e)
{
	char *idx = index_path(path);
	(void)tok;
	int bad = open_index(s, path, idx, e);
	occ_free(idx);
	return bad;
}

const struct occ_data_kind occ_data_megatron = {probe, open_megatron};
