/* The weight table: one row per tensor of this rank's shard. Allocation, init, optimizer,
 * reduction, checkpoint, import and export are loops over it. Building it is pure. */
#ifndef OCC_MODEL_WEIGHTS_H
#define OCC_MODEL_WEIGHTS_H

#include "base/device.h"
#include "parallel/topo.h"

struct occ_gpt_shape {
	int64_t layers, hidden, heads, seq_len;
	int64_t vocab;        /* ids 0 .. vocab-1 occur */
	int64_t vocab_padded; /* rows of wte over all tp ranks; multiple of vocab_multiple * tp */
	int tied;
	double init_std;
	double dropout;
	int recompute; /* 1: keep only each layer's input, compute the rest again */
};

/* How a tensor is divided over tp. */
enum occ_split {
	OCC_WHOLE, /* on every tp rank, equal */
	OCC_ROWS, /* rows in tp blocks; `groups` > 1: each of that many equal groups (q, k, v) alike
		   */
	OCC_COLS  /* columns in tp blocks, groups alike; also the biases of row-split matrices */
};

struct occ_weight {
	char name[40];        /* Hugging Face's, without prefix: "h.3.attn.c_attn.bias" */
	int ndim;             /* 1: a vector of `cols` */
	int64_t rows, cols;   /* of the whole tensor, (out, in), padded vocabulary; rows 1 if 1-D */
	int64_t real_rows;    /* rows that are not padding: what files hold */
	int64_t lrows, lcols; /* of this shard */
	enum occ_split split;
	int groups;
	int transposed; /* Hugging Face stores it (in, out): exactly four a layer */
	int decay;      /* weight decay applies: 2-D */
	int copy; /* the second copy of the tied embedding (last stage): not counted, not saved */
	float init_std; /* N(0, std); 0: filled with init_fill */
	float init_fill;
	uint32_t id; /* of the tensor in the whole model, for the counter-based init */
	int64_t at;  /* first element in the flat arrays of this shard */
};

/* The tensors of a layer, in the order of the table: a layer's rows stand together. */
enum {
	OCC_LN1_W,
	OCC_LN1_B,
	OCC_QKV_W,
	OCC_QKV_B,
	OCC_PROJ_W,
	OCC_PROJ_B,
	OCC_LN2_W,
	OCC_LN2_B,
	OCC_FC_W,
	OCC_FC_B,
	OCC_FC2_W,
	OCC_FC2_B,
	OCC_NLAYER_KINDS
};

struct occ_weights {
	int n;
	struct occ_weight *at; /* owned */
	int64_t size; /* elements of the flat arrays: the tensors one after the other, no gaps */
	int tp, T;    /* shard index and count */
};

/* The table of rank `place`; first stage: wte, wpe; last: ln_f and wte's copy or lm_head. Pure. */
void occ_weights_init(struct occ_weights *w, const struct occ_gpt_shape *s,
		      const struct occ_layout *l, struct occ_place place);
void occ_weights_release(struct occ_weights *w);
const struct occ_weight *occ_weights_find(const struct occ_weights *w, const char *name);

/* Local rows that are not padding; they come first. Pure. */
int64_t occ_weight_real_rows(const struct occ_weights *w, const struct occ_weight *p);
/* Where local row r / column c of a shard lies in the whole tensor. Pure. */
int64_t occ_weight_row(const struct occ_weights *w, const struct occ_weight *p, int64_t r);
int64_t occ_weight_col(const struct occ_weights *w, const struct occ_weight *p, int64_t c);

/* Fills the shard's fp32 values (host, flat, `size` elements) from the seed: any layout gives the
 * same whole tensors; padding rows are 0. */
void occ_weights_draw(const struct occ_weights *w, uint64_t seed, float *flat);

/* Parameters of the whole model: tied once, vocabulary unpadded. */
int64_t occ_gpt_parameters(const struct occ_gpt_shape *s);
/* Padded vocabulary for a shape: the least multiple of multiple * tp that is >= vocab. */
int64_t occ_vocab_padded(int64_t vocab, int64_t multiple, int tp);

#endif
