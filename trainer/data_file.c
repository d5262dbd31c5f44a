/* The formats that files of tokens have (docs/design.md names the sources). */
#include <errno.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/data_kind.h"
#include "trainer/files.h"

#define LL(x) ((long long)(x))

static int map_file(struct occ_tokens *t, struct occ_err *e)
{
	if (occ_map_open(t->path, OCC_E_DATA, &t->map, &t->map_bytes, e))
		return -1;
	if (!t->map_bytes)
		return occ_fail(e, OCC_E_DATA, "%s: the file is empty", t->path);
	return 0;
}

static uint64_t word(const void *p, int bytes)
{
	uint64_t v = 0;
	memcpy(&v, p, (size_t)bytes);
	return v;
}

int occ_tokens_open_text(struct occ_tokens *t, struct occ_tokenizer *tok, struct occ_err *e)
{
	if (map_file(t, e))
		return -1;
	t->kind = "text";
	if (occ_tokenizer_size(tok) == 256) { /* bytes: the file is its own ids */
		t->at = t->map;
		t->width = 1;
		t->n = (int64_t)t->map_bytes;
		return 0;
	}
	t->n = occ_tokenizer_encode(tok, t->map, t->map_bytes, &t->own);
	t->at = (const char *)t->own;
	t->width = 4;
	return 0;
}

/* Headers of other files that are easily taken for tokens. */
static const struct { int32_t magic; const char *what; } strangers[] = {
	{20240522, "an llm.c multiple-choice file"}, {20240326, "an llm.c model"},
	{20240803, "an llm.c Llama-3 model"},        {20240527, "an llm.c training state"},
	{20240327, "an llm.c debug state"},          {20240328, "an llm.c tokenizer"},
};

static const struct { int32_t magic, version; int width; } llmc[] = {
	{20240520, 1, 2}, {20240801, 7, 4},
};
enum { LLMC_HEADER = 1024, NLLMC = sizeof(llmc) / sizeof(llmc[0]) };

static int wrong_magic(const struct occ_tokens *t, int32_t magic, struct occ_err *e)
{
	for (size_t i = 0; i < sizeof(strangers) / sizeof(strangers[0]); i++)
		if (strangers[i].magic == magic)
			return occ_fail(e, OCC_E_DATA, "%s: this is %s, not a token file", t->path,
					strangers[i].what);
	return occ_fail(e, OCC_E_DATA,
			"%s: byte 0: magic number %d; a token file starts with 20240520 (uint16) or 20240801 "
			"(uint32), a Megatron data set has an .idx beside it; raw uint16 tokens without a "
			"header, as nanoGPT writes, are not read",
			t->path, magic);
}

int occ_tokens_open_llmc(struct occ_tokens *t, struct occ_err *e)
{
	int32_t head[3];
	int k = 0;
	if (map_file(t, e))
		return -1;
	t->kind = "llm.c tokens";
	if (t->map_bytes < LLMC_HEADER)
		return occ_fail(e, OCC_E_DATA, "%s: %zu bytes: shorter than the 1024-byte header of a token file",
				t->path, t->map_bytes);
	memcpy(head, t->map, sizeof(head));
	while (k < NLLMC && llmc[k].magic != head[0])
		k++;
	if (k == NLLMC)
		return wrong_magic(t, head[0], e);
	if (head[1] != llmc[k].version)
		return occ_fail(e, OCC_E_DATA, "%s: byte 4: version %d, not %d", t->path, head[1],
				llmc[k].version);
	if (head[2] < 0)
		return occ_fail(e, OCC_E_DATA, "%s: byte 8: %d tokens", t->path, head[2]);
	t->n = head[2];
	t->width = llmc[k].width;
	t->at = (const char *)t->map + LLMC_HEADER;
	if (t->map_bytes - LLMC_HEADER != (size_t)t->n * (size_t)t->width)
		return occ_fail(e, OCC_E_DATA, "%s: %zu bytes, but a header and %lld tokens of %d bytes are %lld",
				t->path, t->map_bytes, LL(t->n), t->width, LL(LLMC_HEADER + t->n * t->width));
	return 0;
}

/* Types of Megatron's index by code; width 0: not of tokens. */
static const struct { const char *name; int width, is_signed; } dtypes[] = {
	{"none", 0, 0},  {"uint8", 1, 0},   {"int8", 1, 1},    {"int16", 2, 1},  {"int32", 4, 1},
	{"int64", 8, 1}, {"float64", 0, 0}, {"float32", 0, 0}, {"uint16", 2, 0},
};
enum { NDTYPES = sizeof(dtypes) / sizeof(dtypes[0]), IDX_HEADER = 34 };

struct idx {
	const char *path;
	const unsigned char *map;
	uint64_t bytes, sequences, documents;
	int dtype;
};

static int check_header(struct idx *x, struct occ_err *e)
{
	if (x->bytes < IDX_HEADER || memcmp(x->map, "MMIDIDX\0\0", 9))
		return occ_fail(e, OCC_E_DATA, "%s: byte 0: not a Megatron index (MMIDIDX)", x->path);
	uint64_t version = word(x->map + 9, 8);
	x->dtype = x->map[17];
	x->sequences = word(x->map + 18, 8);
	x->documents = word(x->map + 26, 8);
	if (version != 1)
		return occ_fail(e, OCC_E_DATA, "%s: byte 9: version %llu, not 1", x->path,
				(unsigned long long)version);
	if (x->dtype >= NDTYPES || !dtypes[x->dtype].width)
		return occ_fail(e, OCC_E_DATA, "%s: byte 17: element type %d%s%s; whole numbers are needed",
				x->path, x->dtype, x->dtype < NDTYPES ? " is " : "",
				x->dtype < NDTYPES ? dtypes[x->dtype].name : "");
	if (x->sequences > x->bytes || x->documents > x->bytes)
		return occ_fail(e, OCC_E_DATA, "%s: byte 18: %llu sequences and %llu documents in %llu bytes",
				x->path, (unsigned long long)x->sequences, (unsigned long long)x->documents,
				(unsigned long long)x->bytes);
	uint64_t size = IDX_HEADER + 12 * x->sequences + 8 * x->documents;
	if (x->bytes != size && x->bytes != size + x->sequences) /* with or without modes */
		return occ_fail(e, OCC_E_DATA, "%s: %llu bytes, but its header describes %llu", x->path,
				(unsigned long long)x->bytes, (unsigned long long)size);
	return 0;
}

/* Lengths and offsets must describe the tokens one after the other; *tokens = their number. */
static int check_sequences(const struct idx *x, int64_t *tokens, struct occ_err *e)
{
	const unsigned char *lengths = x->map + IDX_HEADER, *offsets = lengths + 4 * x->sequences;
	int64_t sum = 0, width = dtypes[x->dtype].width;
	for (uint64_t i = 0; i < x->sequences; i++) {
		int32_t n;
		int64_t at = (int64_t)word(offsets + 8 * i, 8);
		memcpy(&n, lengths + 4 * i, sizeof(n));
		if (n < 0)
			return occ_fail(e, OCC_E_DATA, "%s: sequence %llu has length %d", x->path,
					(unsigned long long)i, n);
		if (at != sum * width)
			return occ_fail(e, OCC_E_DATA, "%s: sequence %llu starts at byte %lld, not %lld", x->path,
					(unsigned long long)i, LL(at), LL(sum * width));
		sum += n; /* < 2^63: at most 2^31 for each byte of the index */
	}
	*tokens = sum;
	return 0;
}

static int check_documents(const struct idx *x, struct occ_err *e)
{
	const unsigned char *at = x->map + IDX_HEADER + 12 * x->sequences;
	uint64_t before = 0;
	for (uint64_t i = 0; i < x->documents; i++) {
		uint64_t v = word(at + 8 * i, 8);
		if ((i == 0 && v != 0) || v < before || v > x->sequences)
			return occ_fail(e, OCC_E_DATA, "%s: document %llu starts at sequence %llu of %llu",
					x->path, (unsigned long long)i, (unsigned long long)v,
					(unsigned long long)x->sequences);
		before = v;
	}
	if (x->documents > 0 && before != x->sequences)
		return occ_fail(e, OCC_E_DATA, "%s: the documents end at sequence %llu of %llu", x->path,
				(unsigned long long)before, (unsigned long long)x->sequences);
	return 0;
}

static int read_index(struct occ_tokens *t, struct idx *x, struct occ_err *e)
{
	if (check_header(x, e) || check_sequences(x, &t->n, e) || check_documents(x, e))
		return -1;
	t->width = dtypes[x->dtype].width;
	t->is_signed = dtypes[x->dtype].is_signed;
	t->documents = x->documents > 0 ? (int64_t)x->documents - 1 : 0;
	return 0;
}

int occ_tokens_open_megatron(struct occ_tokens *t, const char *index, struct occ_err *e)
{
	void *map;
	size_t bytes;
	if (occ_map_open(index, OCC_E_DATA, &map, &bytes, e))
		return -1;
	struct idx x = {.path = index, .map = map, .bytes = bytes};
	int bad = read_index(t, &x, e);
	occ_map_close(map, bytes);
	if (bad || map_file(t, e))
		return -1;
	t->kind = "Megatron indexed data set";
	t->at = t->map;
	if (t->map_bytes != (size_t)t->n * (size_t)t->width)
		return occ_fail(e, OCC_E_DATA, "%s: %zu bytes, but its index describes %lld tokens of %d bytes",
				t->path, t->map_bytes, LL(t->n), t->width);
	return 0;
}

void occ_tokens_close(struct occ_tokens *t)
{
	occ_map_close(t->map, t->map_bytes);
	occ_free(t->own);
	occ_free(t->path);
	memset(t, 0, sizeof(*t));
}

int64_t occ_tokens_get(const struct occ_tokens *t, int64_t i)
{
	uint64_t v = word(t->at + i * t->width, t->width);
	int shift = 64 - 8 * t->width;
	return t->is_signed ? (int64_t)(v << shift) >> shift : (int64_t)v;
}

int64_t occ_tokens_scan(const struct occ_tokens *t, int64_t limit, int64_t *bad)
{
	int64_t max = -1;
	*bad = -1;
	for (int64_t i = 0; i < t->n; i++) {
		int64_t id = occ_tokens_get(t, i);
		if (id < 0 || id >= limit) {
			*bad = i;
			return -1;
		}
		max = id > max ? id : max;
	}
	return max;
}
