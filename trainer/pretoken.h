/* GPT-2's pieces of text: where one ends is what its regular expression says, over Unicode classes. */
#ifndef OCC_TRAINER_PRETOKEN_H
#define OCC_TRAINER_PRETOKEN_H

#include <stddef.h>

/* Length in bytes (>= 1) of the piece that starts at text[0], n >= 1 bytes left. Bytes that are not UTF-8
 * count as one "other" character each. The expression, alternatives in order:
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
size_t occ_pretoken(const unsigned char *text, size_t n);

#endif
