/* Checkpoints: complete or absent, independent of the layout that wrote them.
 *
 * DIR/step-00000100/ holds manifest.json (format, step, model shape, layout, each file's size and
 * checksum) and one shard-P-T.bin per (stage, tp rank), written by data rank 0: master weights, Adam m
 * and v of that shard, flat fp32 in the order of its weight table. Written as step-N.tmp, fsynced,
 * checksummed, renamed. A reader builds the writer's tables from the manifest (they are pure) and copies
 * what its own shard needs, so a run may resume with any layout; only model.* must match. */
#ifndef OCC_TRAINER_CHECKPOINT_H
#define OCC_TRAINER_CHECKPOINT_H

#include "model/weights.h"

struct occ_ckpt_state {     /* flat host fp32 arrays of this shard, weights.size each; borrowed */
	const struct occ_weights *weights;
	const struct occ_gpt_shape *shape;
	float *master, *m, *v; /* m, v NULL: only weights are wanted (eval, generate, export) */
	int64_t step;           /* steps completed */
	int64_t skipped_in_row; /* consecutive non-finite steps so far */
	int64_t skipped;        /* in all */
};

/* Collective over topo->world. Fails on all ranks (4) if any cannot write; the old ones stay. Then keeps
 * the newest `keep` (0: all). */
int occ_ckpt_save(const char *dir, int64_t keep, const struct occ_topo *topo,
		  const struct occ_ckpt_state *s, struct occ_err *e);

/* Resolves checkpoint.resume: "auto" (newest complete in dir), "never", or a path (a checkpoint, or a
 * directory of them). path[] = "" for a fresh start. An explicit path that holds none: refusal 4.
 * An incomplete or damaged newest one is passed over under "auto" with a line on stderr (rank 0). */
int occ_ckpt_find(const char *dir, const char *resume, char path[4096], struct occ_err *e);

/* Fills the arrays of `s` from checkpoint `path`, any layout. Not collective: each rank reads. Sizes,
 * checksums and model shape are checked first: refusal 4 names file and what differs. */
int occ_ckpt_load(const char *path, struct occ_ckpt_state *s, struct occ_err *e);

/* Reads only the manifest: the shape and step. For export, generate and inspect. */
int occ_ckpt_shape(const char *path, struct occ_gpt_shape *shape, int64_t *step, struct occ_err *e);
int occ_ckpt_inspect(const char *path, struct occ_err *e); /* 1 printed, 0 not a checkpoint, -1 refused */

#endif
