/* Text to token ids and back: raw bytes, or GPT-2's byte-level BPE from its merge list alone. */
#ifndef OCC_TRAINER_TOKENIZER_H
#define OCC_TRAINER_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct occ_tokenizer; /* heap; open / close; one thread at a time */

/* vocab: "bytes" (256 ids) or the path of a vocab.bpe / merges.txt (256 + merges + end-of-text
 * ids). Missing or malformed: refusal 3, naming file and line. NULL on refusal. */
struct occ_tokenizer *occ_tokenizer_open(const char *vocab, struct occ_err *e);
void occ_tokenizer_close(struct occ_tokenizer *t);
/* Number of ids: 256, or 50257 for GPT-2's. */
int64_t occ_tokenizer_size(const struct occ_tokenizer *t);

/* Encodes n bytes; no end-of-text is added, "<|endoftext|>" is ordinary text, no byte is changed
 * (decode(encode(x)) = x for any bytes, also invalid UTF-8). *ids is allocated; caller frees. */
int64_t occ_tokenizer_encode(struct occ_tokenizer *t, const char *text, size_t n, int32_t **ids);
/* The same in pieces, for texts that do not fit in memory twice: appends the ids of whole words
 * from byte `at` on until `out` holds `enough` or the text ends; returns where it stopped. */
struct occ_ids {
	int32_t *at; /* occ_alloc'd, or NULL with room 0; the caller frees */
	int64_t n, room;
};
size_t occ_tokenizer_feed(struct occ_tokenizer *t, const char *text, size_t n, size_t at,
			  int64_t enough, struct occ_ids *out);
/* Bytes of one id (not NUL-terminated), valid until close; *n bytes. NULL if no id. */
const char *occ_tokenizer_bytes(const struct occ_tokenizer *t, int32_t id, size_t *n);

/* `occ-train tokenize`: text files to one llm.c token file, written aside and renamed. 0 or -1. */
int occ_tokenize_files(const char *vocab, const char *out, char *const *texts, int n,
		       struct occ_err *e);

#endif
