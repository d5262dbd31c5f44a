/* Text to token ids and back: raw bytes, or GPT-2's byte-level BPE from its merge list alone. */
#ifndef OCC_TRAINER_TOKENIZER_H
#define OCC_TRAINER_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct occ_tokenizer; /* heap; open / close */

/* vocab: "bytes" (256 ids) or the path of a vocab.bpe / merges.txt (256 + merges + end-of-text ids).
 * Missing or malformed: refusal 3, naming file and line. NULL on refusal. */
struct occ_tokenizer *occ_tokenizer_open(const char *vocab, struct occ_err *e);
void occ_tokenizer_close(struct occ_tokenizer *t);
int64_t occ_tokenizer_size(const struct occ_tokenizer *t); /* number of ids: 256, or 50257 for GPT-2's */

/* Encodes n bytes; no end-of-text is added, "<|endoftext|>" is ordinary text, no byte is changed
 * (decode(encode(x)) = x for any bytes, also invalid UTF-8). *ids is allocated; the caller frees. */
int64_t occ_tokenizer_encode(struct occ_tokenizer *t, const char *text, size_t n, int32_t **ids);
/* Bytes of one id (not NUL-terminated), valid until close; *n bytes. NULL for an id out of range. */
const char *occ_tokenizer_bytes(const struct occ_tokenizer *t, int32_t id, size_t *n);

/* `occ-train tokenize`: text files to one llm.c token file, written aside and renamed. 0 or -1. */
int occ_tokenize_files(const char *vocab, const char *out, char *const *texts, int n,
		       struct occ_err *e);

#endif
