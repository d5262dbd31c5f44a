/* What the kinds of data files share (private to trainer/data*.c): the types of token arrays, and a
 * shard, which is one file seen as an array of ids of one type. A new kind of file is a row of
 * occ_data_kinds. */
#ifndef OCC_TRAINER_DATA_KIND_H
#define OCC_TRAINER_DATA_KIND_H

#include <stdint.h>

#include "trainer/tokenizer.h"

struct occ_token_type {
	const char *name;
	int size;
	int64_t top; /* below a limit above it there is nothing to check: no negative id, none
			larger */
	int64_t (*at)(const void *x, int64_t i);
	void (*range)(const void *x, int64_t n, int64_t *lo, int64_t *hi); /* n >= 1 */
	void (*copy)(const void *x, int64_t at, int64_t n, int32_t *out);  /* ids known to fit */
};

extern const struct occ_token_type occ_token_u8, occ_token_i8, occ_token_u16, occ_token_i16,
	occ_token_i32, occ_token_u32, occ_token_i64;

/* A read-only map; `bytes` 0 and `at` NULL when nothing is mapped. */
struct occ_view {
	const unsigned char *at;
	size_t bytes;
};

struct occ_shard {
	const char *path; /* as given; borrowed */
	struct occ_view map, idx;
	int32_t *ids; /* owned, where text was encoded into memory */
	const struct occ_token_type *type;
	const void *tokens;
	int64_t n;
	/* For inspect only. */
	const char *kind;
	int64_t sequences, documents, longest; /* -1: the kind has none */
};

struct occ_data_kind {
	int (*probe)(const char *path);
	/* Fills *s, of which everything is 0 but path and the counts for inspect. */
	int (*open)(struct occ_shard *s, const char *path, struct occ_tokenizer *tok,
		    struct occ_err *e);
};

extern const struct occ_data_kind occ_data_llmc, occ_data_megatron, occ_data_text;

/* Opens with the first kind whose probe says yes; release also after a refusal. `tok` is for text.
 */
int occ_shard_open(struct occ_shard *s, const char *path, struct occ_tokenizer *tok,
		   struct occ_err *e);
void occ_shard_release(struct occ_shard *s);
/* Position of the first id outside [0, limit), or -1; *max = the largest id if there is none. */
int64_t occ_shard_scan(const struct occ_shard *s, int64_t limit, int64_t *max);

/* Maps `path`; an empty file is refused. */
int occ_view_open(struct occ_view *v, const char *path, struct occ_err *e);
int occ_path_ends(const char *path, const char *end);
/* The name of the llm.c format whose magic the file starts with, or NULL; *tokens: 1 if a token
 * file. */
const char *occ_llmc_name(const struct occ_view *v, int *tokens);
int occ_megatron_index(const struct occ_view *v); /* 1: starts as an .idx does */

/* llm.c token files, for reader and writer. */
enum { OCC_LLMC_HEAD = 1024, OCC_LLMC_U16 = 20240520, OCC_LLMC_U32 = 20240801 };

#endif
