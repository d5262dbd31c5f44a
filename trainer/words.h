/* Where GPT-2 cuts a text before it merges: its pattern, over UTF-8.
 *
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * A byte that is not part of valid UTF-8 counts as a character of class "other" of its own. Runs
 * are cut at 2^30 bytes, which GPT-2 does not do. */
#ifndef OCC_TRAINER_WORDS_H
#define OCC_TRAINER_WORDS_H

#include <stddef.h>

/* End of the word that starts at `at` < n; at < end <= n. */
size_t occ_word_end(const char *text, size_t n, size_t at);

#endif
