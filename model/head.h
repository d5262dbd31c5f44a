/* The output end: vocabulary-parallel logits and cross-entropy in chunks of rows, so that the
 * logits of a micro-batch are never held. Megatron-LM's vocabulary-parallel loss, with three small
 * reductions a chunk. */
#ifndef OCC_MODEL_HEAD_H
#define OCC_MODEL_HEAD_H

#include "model/layer.h"

struct occ_head {
	int64_t rows;  /* of a chunk at most */
	int64_t V;     /* this shard's vocabulary rows */
	int64_t valid; /* ids below it are real, the rest is padding */
	int w;         /* table index of the (V, C) output embedding */
	void *logits;  /* (rows, V) compute type, then their gradients; of the gpt's arena */
	float *stats;  /* (4, rows): the shard's max, all shards', sum, hit; of the arena */
};

/* Rows of a chunk: its logits are as large as the device likes (ops->wide). */
int64_t occ_head_rows(const struct occ_device *d, int64_t rows, int64_t V);

/* y (R, C) = ln_f output, targets (R), d_loss (R) = token losses: all on the device. If dy is not
 * NULL: dy (R, C) = gradient at y, summed over tp, of scale * loss, and the output
 * embedding's gradient is added to. Collective over tp. */
void occ_head_run(const struct occ_ctx *c, const struct occ_head *h, const void *y,
		  const int32_t *d_targets, float scale, void *dy, float *d_loss);
/* Logits (V), fp32, of row r of y into h->logits. */
void occ_head_row(const struct occ_ctx *c, const struct occ_head *h, const void *y, int64_t r);

#endif
