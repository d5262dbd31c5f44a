/* Hugging Face GPT-2 weights in and out, over safetensors. */
#ifndef OCC_TRAINER_WEIGHTS_IO_H
#define OCC_TRAINER_WEIGHTS_IO_H

#include "model/weights.h"

/* init.load: fills this shard's fp32 values (flat, w->size; padding rows and gaps 0) from a
 * safetensors file with GPT-2 names, all or none of them with the "transformer." prefix
 * (lm_head.weight never has it); F32, F16 or BF16. Ignored: h.N.attn.bias, h.N.attn.masked_bias.
 * wpe may have more rows than seq_len: the first ones are taken. lm_head.weight is needed when
 * untied; when tied it may be absent, or equal to wte. Missing or extra tensors and wrong shapes
 * are refused (3), naming tensor, found and expected. Every rank checks the whole file's header,
 * but reads only its own slice of the data. */
int occ_weights_import(const char *path, const struct occ_weights *w, const struct occ_gpt_shape *s,
		       float *flat, struct occ_err *e);
/* One whole model (tp = pp = 1 table): HF names without prefix, F32, unpadded vocabulary; nothing
 * but the weights is in it, so equal weights give equal bytes. -1 with code 4, nothing partial
 * left. */
int occ_weights_export(const char *path, const struct occ_weights *w, const float *flat,
		       struct occ_err *e);

#endif
