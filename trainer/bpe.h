/* GPT-2's byte-level BPE from a list of merges (private to trainer/tokenizer*.c and bpe*.c). */
#ifndef OCC_TRAINER_BPE_H
#define OCC_TRAINER_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "trainer/tokenizer.h"

/* Ids: 0..255 single bytes in GPT-2's order, 256 + i what merge i makes, the last <|endoftext|>. */
struct occ_vocab {
	int32_t n;  /* number of ids */
	char *pool; /* the strings of all ids, in their order */
	size_t *at; /* [n + 1]: where each begins */
	int32_t byte_id[256];
	struct occ_pair {
		int32_t left, right;
	} * pairs;      /* [n - 257]: what id 256 + i is made of */
	int32_t *slots; /* hash of pairs to ids, 0 = free; slots_mask + 1 of them */
	uint64_t slots_mask;
};

int occ_vocab_open(struct occ_vocab *v, const char *path, struct occ_err *e);
void occ_vocab_release(struct occ_vocab *v);
/* The id that the two make, or -1. */
int32_t occ_vocab_merge(const struct occ_vocab *v, int32_t left, int32_t right);

struct occ_bpe; /* a vocabulary, a cache of words, scratch; one thread at a time */

struct occ_bpe *occ_bpe_open(const char *path, struct occ_err *e);
void occ_bpe_close(struct occ_bpe *b);
const struct occ_vocab *occ_bpe_vocab(const struct occ_bpe *b);
void occ_ids_append(struct occ_ids *out, const int32_t *ids, int64_t n);
/* Appends the ids of one word. */
void occ_bpe_word(struct occ_bpe *b, const char *word, size_t n, struct occ_ids *out);

#endif
