/* Byte-pair merges: the table of a vocab.bpe, and merging one piece of text. */
#ifndef OCC_TRAINER_BPE_H
#define OCC_TRAINER_BPE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct occ_bpe; /* heap; open / close */

/* Ids: 256 bytes in GPT-2's order, one per merge in file order, then end-of-text. Refusal 3 with file and
 * line for what is not two known symbols, or a pair or result that was there before. */
struct occ_bpe *occ_bpe_open(const char *path, struct occ_err *e);
void occ_bpe_close(struct occ_bpe *b);
int64_t occ_bpe_size(const struct occ_bpe *b);
const char *occ_bpe_bytes(const struct occ_bpe *b, int32_t id, size_t *n);
/* Ids of one piece of n bytes into out (room for n); returns their number. O(n log n). */
size_t occ_bpe_piece(struct occ_bpe *b, const unsigned char *text, size_t n, int32_t *out);

#endif
