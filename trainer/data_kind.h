/* Inside of data.c: one file of tokens, whatever its format. */
#ifndef OCC_TRAINER_DATA_KIND_H
#define OCC_TRAINER_DATA_KIND_H

#include "trainer/data.h"

struct occ_tokens {
	char *path;          /* owned */
	const char *kind;    /* for people: "llm.c tokens", ... */
	void *map;           /* owned; NULL where `own` holds the ids */
	size_t map_bytes;
	int32_t *own;        /* owned; ids of text tokenised at open */
	const char *at;      /* first token, little-endian, perhaps unaligned */
	int width;           /* bytes a token: 1, 2, 4, 8 */
	int is_signed;
	int64_t n;           /* tokens */
	int64_t documents;   /* Megatron: from the index; else 0 */
};

/* Opens one file as its format, everything checked but the ids themselves. Refusals 3. */
int occ_tokens_open_text(struct occ_tokens *t, struct occ_tokenizer *tok, struct occ_err *e);
int occ_tokens_open_llmc(struct occ_tokens *t, struct occ_err *e);
int occ_tokens_open_megatron(struct occ_tokens *t, const char *index, struct occ_err *e);
void occ_tokens_close(struct occ_tokens *t);

int64_t occ_tokens_get(const struct occ_tokens *t, int64_t i);
/* Largest id, or -1 and *bad = position of the first id < 0 or >= limit. */
int64_t occ_tokens_scan(const struct occ_tokens *t, int64_t limit, int64_t *bad);

#endif
