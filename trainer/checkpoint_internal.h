/* What loading weights (checkpoint_load.c) and loading the state of compression
 * (checkpoint_streams.c) share. */
#ifndef OCC_TRAINER_CHECKPOINT_INTERNAL_H
#define OCC_TRAINER_CHECKPOINT_INTERNAL_H

#include "trainer/checkpoint.h"
#include "trainer/manifest.h"

/* Where a whole row or column lies: of the dimension that is not split, tp is 0. */
struct spot {
	int tp;
	int64_t at;
};

struct shard {
	struct occ_weights w; /* the writer's table */
	int needed;
	void *map;
	size_t bytes;
};

struct plan {                   /* of one tensor of ours */
	int pp;                 /* the writer's stage; -1 none */
	struct spot *row, *col; /* of the whole tensor */
};

struct load {
	const char *path;
	struct occ_ckpt_state *s;
	struct occ_manifest m;
	struct shard *shard; /* [pp * T + tp] */
	struct plan *plan;   /* [weights->n] */
	struct occ_err *e;
};

/* One array of tensor i of ours into out (lrows, lcols): base[tp] is that array in the writer's
 * shards; padding rows of out are left alone. */
void occ_load_fill(const struct load *l, int i, const float *const *base, float *out);

/* Saving: this rank's streams as one file. */
int occ_streams_write(const struct occ_streams *s, const char *path, struct occ_io io,
		      struct occ_shard_file *mine, struct occ_err *e);
/* After the weights are planned: fills the streams, by the rules in checkpoint.h. */
int occ_streams_load(struct load *l);

#endif
