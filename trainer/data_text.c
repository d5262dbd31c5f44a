/* Text files: bytes are read where they lie, BPE encodes the whole file into memory when it is
 * opened. Binary formats under a wrong name are refused, for their bytes would train as if they
 * were text. */
#include "trainer/data_kind.h"

static int probe(const char *path)
{
	(void)path;
	return 1;
}

static int refuse_binary(const struct occ_view *v, const char *path, struct occ_err *e)
{
	int tokens;
	const char *name = occ_llmc_name(v, &tokens);
	if (occ_megatron_index(v))
		return occ_fail(
			e, OCC_E_DATA,
			"%s: the index of a Megatron data set, not text; name the .bin beside it",
			path);
	if (name)
		return occ_fail(e, OCC_E_DATA, "%s: holds %s, not text%s", path, name,
				tokens ? "; token files must be named *.bin" : "");
	return 0;
}

static int open_text(struct occ_shard *s, const char *path, struct occ_tokenizer *tok,
		     struct occ_err *e)
{
	if (occ_view_open(&s->map, path, e) || refuse_binary(&s->map, path, e))
		return -1;
	s->kind = "text";
	if (occ_tokenizer_size(tok) == 256) { /* bytes: BPE has at least one id more */
		s->type = &occ_token_u8;
		s->tokens = s->map.at;
		s->n = (int64_t)s->map.bytes;
		return 0;
	}
	s->n = occ_tokenizer_encode(tok, (const char *)s->map.at, s->map.bytes, &s->ids);
	s->type = &occ_token_i32;
	s->tokens = s->ids;
	return 0;
}

const struct occ_data_kind occ_data_text = {probe, open_text};
