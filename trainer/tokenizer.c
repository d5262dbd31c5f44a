/* The tokenizer as others see it: raw bytes where there is no BPE. */
#include "trainer/tokenizer.h"

#include <string.h>

#include "base/mem.h"
#include "trainer/bpe.h"
#include "trainer/words.h"

struct occ_tokenizer {
	struct occ_bpe *bpe; /* NULL: bytes */
	char byte[256];      /* the strings of the ids of "bytes" */
};

struct occ_tokenizer *occ_tokenizer_open(const char *vocab, struct occ_err *e)
{
	struct occ_tokenizer *t = occ_alloc(1, sizeof(*t));
	for (int i = 0; i < 256; i++)
		t->byte[i] = (char)i;
	if (!strcmp(vocab, "bytes"))
		return t;
	t->bpe = occ_bpe_open(vocab, e);
	if (t->bpe)
		return t;
	occ_free(t);
	return NULL;
}

void occ_tokenizer_close(struct occ_tokenizer *t)
{
	if (t)
		occ_bpe_close(t->bpe);
	occ_free(t);
}

int64_t occ_tokenizer_size(const struct occ_tokenizer *t)
{
	return t->bpe ? occ_bpe_vocab(t->bpe)->n : 256;
}

static void append_bytes(const char *text, size_t n, struct occ_ids *out)
{
	int32_t ids[1024];
	for (size_t at = 0; at < n; at += 1024) {
		size_t m = n - at < 1024 ? n - at : 1024;
		for (size_t i = 0; i < m; i++)
			ids[i] = (unsigned char)text[at + i];
		occ_ids_append(out, ids, (int64_t)m);
	}
}

size_t occ_tokenizer_feed(struct occ_tokenizer *t, const char *text, size_t n, size_t at,
			  int64_t enough, struct occ_ids *out)
{
	if (!t->bpe && out->n < enough) {
		size_t want = (size_t)(enough - out->n), m = n - at < want ? n - at : want;
		append_bytes(text + at, m, out);
		return at + m;
	}
	while (at < n && out->n < enough) {
		size_t end = occ_word_end(text, n, at);
		occ_bpe_word(t->bpe, text + at, end - at, out);
		at = end;
	}
	return at;
}

int64_t occ_tokenizer_encode(struct occ_tokenizer *t, const char *text, size_t n, int32_t **ids)
{
	struct occ_ids out = {0};
	occ_tokenizer_feed(t, text, n, 0, INT64_MAX, &out);
	*ids = out.at ? out.at : occ_alloc(0, sizeof(**ids));
	return out.n;
}

const char *occ_tokenizer_bytes(const struct occ_tokenizer *t, int32_t id, size_t *n)
{
	if (id < 0 || id >= occ_tokenizer_size(t))
		return NULL;
	if (!t->bpe) {
		*n = 1;
		return &t->byte[id];
	}
	const struct occ_vocab *v = occ_bpe_vocab(t->bpe);
	*n = v->at[id + 1] - v->at[id];
	return v->pool + v->at[id];
}
