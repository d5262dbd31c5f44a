/* What gpt.c (the passes) and gpt_memory.c (where everything lies) share, and nobody else. */
#ifndef OCC_MODEL_GPT_INTERNAL_H
#define OCC_MODEL_GPT_INTERNAL_H

#include "model/gpt.h"
#include "model/head.h"

/* What a pass through the layers works on, beside its slot; compared as bytes. */
struct occ_gpt_pass {
	const void *d_in, *d_dout; /* dout: backward */
	void *d_out;               /* backward: the gradient at d_in */
	int64_t B, T;
};

/* The device's record of such a pass. */
struct occ_gpt_record {
	struct occ_gpt_pass pass;
	void *r; /* of the device's repeat slots */
};

/* What one micro-batch keeps from its forward to its backward pass. */
struct occ_gpt_slot {
	int32_t *tokens; /* (R) first stage, for the embedding's backward */
	void **x;        /* [nlayers + 1] inputs; x[0] of later stages: the executor's */
	struct occ_layer_acts *acts; /* [nlayers]; with recompute all are one set */
	void *dyf;                   /* (R, C) last stage: gradient at ln_f's output */
	float *meanf, *rstdf;        /* (R) */
	/* [mb & 1], as the executor's buffers; [0 forward, 1 backward] */
	struct occ_gpt_record record[2][2];
};

/* Pointers into the arena are device memory. */
enum { OCC_GPT_LOSSES = 64 };

struct occ_gpt_impl {
	struct occ_ctx ctx;
	struct occ_layer_scratch scratch;
	struct occ_head head;
	struct occ_gpt_batch batch;
	int trains, recompute, nslots;
	struct occ_gpt_slot *slots;
	void **ready;       /* [layers] marks: a layer's gradients of this step are complete */
	int first_row;      /* table index of the first layer's first tensor */
	int wte, wpe, lnf;  /* table indices, -1 where this stage has none */
	void *yf;           /* (R, C) last stage: ln_f's output */
	int32_t *d_targets; /* (R) */
	/* Token losses of micro-batches, [OCC_GPT_LOSSES][R], device and host, and how many wait
	 * there: to fetch each at once would make the host wait for every pass. */
	float *d_loss, *loss;
	int nlosses;
	/* [nids][2R] host: inputs, then targets, of each micro-batch. All of a step have a place of
	 * their own: a copy may read it long after it was enqueued. */
	int32_t *ids;
	int nids;
	char *arena; /* NULL while it is measured */
	size_t used; /* bytes of it */
};

/* Makes room in ids for n micro-batches, none of which is in use any more: nothing is copied from
 * there when this returns. Waits. */
void occ_gpt_room(struct occ_gpt *g, int n);

static inline int occ_gpt_is_first(const struct occ_gpt *g)
{
	return g->stage == 0;
}

static inline int occ_gpt_is_last(const struct occ_gpt *g)
{
	return g->stage == g->nstages - 1;
}

#endif
