/* The tokenizer as others see it: raw bytes, or BPE. */
#include "trainer/tokenizer.h"

#include <string.h>

#include "base/mem.h"

struct occ_tokenizer {
	unsigned char byte[256]; /* 0, 1 .. 255: the strings of the ids of "bytes" */
};

struct occ_tokenizer *occ_tokenizer_open(const char *vocab, struct occ_err *e)
{
	if (strcmp(vocab, "bytes")) {
		occ_fail(e, OCC_E_DATA, "%s: BPE is not built yet", vocab);
		return NULL;
	}
	struct occ_tokenizer *t = occ_alloc(1, sizeof(*t));
	for (int i = 0; i < 256; i++)
		t->byte[i] = (unsigned char)i;
	return t;
}

void occ_tokenizer_close(struct occ_tokenizer *t)
{
	occ_free(t);
}

int64_t occ_tokenizer_size(const struct occ_tokenizer *t)
{
	(void)t;
	return 256;
}

int64_t occ_tokenizer_encode(struct occ_tokenizer *t, const char *text, size_t n, int32_t **ids)
{
	(void)t;
	*ids = occ_alloc(n, sizeof(**ids));
	for (size_t i = 0; i < n; i++)
		(*ids)[i] = (unsigned char)text[i];
	return (int64_t)n;
}

const char *occ_tokenizer_bytes(const struct occ_tokenizer *t, int32_t id, size_t *n)
{
	if (id < 0 || id >= 256)
		return NULL;
	*n = 1;
	return (const char *)&t->byte[id];
}
