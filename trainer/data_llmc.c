/* llm.c's files: 256 32-bit words of header (magic, version, number of tokens), then the tokens.
 * The other formats of that project are known by name, so that a refusal can say what a file is. */
#include <string.h>

#include "trainer/data_kind.h"

enum { WORD = 4 };

static const struct format {
	int32_t magic, version;
	const char *name;
	const struct occ_token_type *type; /* NULL: holds no tokens to train on */
} formats[] = {
	{OCC_LLMC_U16, 1, "llm.c tokens", &occ_token_u16},
	{OCC_LLMC_U32, 7, "llm.c tokens (Llama 3)", &occ_token_u32},
	{20240522, 1, "llm.c multiple-choice questions", NULL},
	{20240326, 0, "llm.c GPT-2 weights", NULL},
	{20240803, 0, "llm.c Llama 3 weights", NULL},
	{20240527, 0, "llm.c optimizer state", NULL},
	{20240327, 0, "llm.c debug state", NULL},
	{20240328, 0, "llm.c tokenizer", NULL},
};

static int32_t word(const struct occ_view *v, int i)
{
	int32_t w;
	memcpy(&w, v->at + i * WORD, WORD);
	return w;
}

static const struct format *find(const struct occ_view *v)
{
	for (size_t i = 0; v->bytes >= WORD && i < sizeof(formats) / sizeof(formats[0]); i++)
		if (formats[i].magic == word(v, 0))
			return &formats[i];
	return NULL;
}

const char *occ_llmc_name(const struct occ_view *v, int *tokens)
{
	const struct format *f = find(v);
	*tokens = f && f->type;
	return f ? f->name : NULL;
}

static int probe(const char *path)
{
	return occ_path_ends(path, ".bin");
}

static int refuse_magic(const struct occ_view *v, const char *path, struct occ_err *e)
{
	const struct format *f = find(v);
	int32_t w = v->bytes >= WORD ? word(v, 0) : 0;
	if (f)
		return occ_fail(e, OCC_E_DATA, "%s: holds %s (magic %d), not tokens", path, f->name,
				w);
	return occ_fail(
		e, OCC_E_DATA,
		"%s: starts with %d (0x%08x), not with llm.c's magic %d or %d; tokens without a "
		"header (nanoGPT) need that header, Megatron's need their .idx beside them",
		path, w, (unsigned)w, OCC_LLMC_U16, OCC_LLMC_U32);
}

static int check(const struct format *f, const struct occ_view *v, const char *path,
		 struct occ_err *e)
{
	if (v->bytes < OCC_LLMC_HEAD)
		return occ_fail(e, OCC_E_DATA, "%s: %zu bytes, shorter than the header of %d", path,
				v->bytes, OCC_LLMC_HEAD);
	int32_t version = word(v, 1), n = word(v, 2);
	if (version != f->version)
		return occ_fail(e, OCC_E_DATA, "%s: version %d of %s, known is %d", path, version,
				f->name, f->version);
	if (n < 0)
		return occ_fail(e, OCC_E_DATA, "%s: the header counts %d tokens", path, n);
	uint64_t want = OCC_LLMC_HEAD + (uint64_t)n * (uint64_t)f->type->size;
	if (v->bytes != want)
		return occ_fail(e, OCC_E_DATA,
				"%s: %s: %zu bytes, but %d tokens by its header make %llu", path,
				v->bytes < want ? "truncated" : "too long", v->bytes, n,
				(unsigned long long)want);
	return 0;
}

static int open_llmc(struct occ_shard *s, const char *path, struct occ_tokenizer *tok,
		     struct occ_err *e)
{
	(void)tok;
	if (occ_view_open(&s->map, path, e))
		return -1;
	const struct format *f = find(&s->map);
	if (!f || !f->type)
		return refuse_magic(&s->map, path, e);
	if (check(f, &s->map, path, e))
		return -1;
	s->kind = f->name;
	s->type = f->type;
	s->tokens = s->map.at + OCC_LLMC_HEAD;
	s->n = word(&s->map, 2);
	return 0;
}

const struct occ_data_kind occ_data_llmc = {probe, open_llmc};
