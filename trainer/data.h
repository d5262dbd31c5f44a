/* Data sets: which tokens sample g is, for any g. Files are memory-mapped and never trusted.
 * Kinds: PREFIX.bin with PREFIX.idx beside it (Megatron), .bin alone (llm.c tokens), else text. */
#ifndef OCC_TRAINER_DATA_H
#define OCC_TRAINER_DATA_H

#include "base/opts.h"
#include "trainer/tokenizer.h"

struct occ_data; /* heap; open / close */

/* Sample g of a file is its tokens g*S .. g*S+S (S+1 ids, overlapping by one), floor((n-1)/S)
 * samples a file, files in order. Refusals (3): missing, empty, directory, unreadable, bad header
 * or sizes, too short for one sample, an id >= vocab_size (every token is checked once): file,
 * position and value are named. NULL on refusal. `tok` serves text files; borrowed. */
struct occ_data *occ_data_open(const struct occ_strings *files, struct occ_tokenizer *tok,
			       int64_t seq_len, int64_t vocab_size, struct occ_err *e);
void occ_data_close(struct occ_data *d);
int64_t occ_data_samples(const struct occ_data *d);
int64_t occ_data_tokens(const struct occ_data *d);
/* out[S+1] = the ids of sample g, 0 <= g < samples. */
void occ_data_sample(const struct occ_data *d, int64_t g, int32_t *out);

/* Which sample stands at position i (= step * global_batch + j) of the run: i mod n unshuffled;
 * else a permutation of each epoch drawn from (seed, epoch). Pure: never depends on layout or
 * length of run. */
int64_t occ_data_order(int64_t n, int64_t i, int shuffle, int64_t seed);

/* `occ-train inspect` for token files and indexed data sets: a few "key: value" lines to stdout. 1
 * if the file is of a kind known here and was printed, 0 if not of these kinds, -1 refused. */
int occ_data_inspect(const char *path, struct occ_err *e);

#endif
