/* Hugging Face GPT-2 weights in and out, over safetensors. */
#ifndef OCC_TRAINER_WEIGHTS_IO_H
#define OCC_TRAINER_WEIGHTS_IO_H

#include "model/weights.h"

/* init.load: fills this shard's flat fp32 values from a safetensors file with GPT-2 names, with or
 * without the "transformer." prefix; h.*.attn.bias and masked_bias are ignored, lm_head.weight may be
 * absent when tied. Missing or extra tensors and wrong shapes are refused (3), naming them. */
int occ_weights_import(const char *path, const struct occ_weights *w, const struct occ_gpt_shape *s,
		       float *flat, struct occ_err *e);
/* One whole model (tp = pp = 1 table): HF names without prefix, F32, unpadded vocabulary. */
int occ_weights_export(const char *path, const struct occ_weights *w, const float *flat,
		       struct occ_err *e);

#endif
