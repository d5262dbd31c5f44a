/* Checkpoints: complete or absent, independent of the layout that wrote them.
 *
 * DIR/step-00000100/ holds manifest.json (format, step, model shape, layout, each file's size and
 * checksum) and one shard-P-T.bin per (stage, tp rank), written by data rank 0: master weights,
 * Adam m and v of that shard, fp32 in the order of its weight table (trainer/manifest.h). Written
 * as step-N.tmp, fsynced, checksummed, renamed. A reader builds the writer's tables from the
 * manifest (they are pure) and copies what its own shard needs, so a run may resume with any
 * layout; only model.* must match.
 *
 * stream-R.bin holds the state of compression of rank R: residuals, what codecs keep, counters. In
 * the same layout it goes on bit for bit. In another one a weight's residuals follow its split over
 * tp, and their sum over contributors stays what it was, shared out evenly; so do those of links
 * while only the number of replicas changes; other residuals of links are dropped. What a codec
 * keeps goes on while tp and the shape are the same, else it starts anew. */
#ifndef OCC_TRAINER_CHECKPOINT_H
#define OCC_TRAINER_CHECKPOINT_H

#include "model/weights.h"
#include "parallel/exec.h"

/* The streams of this rank that keep something, and where it came from. */
struct occ_stream_ref {
	enum occ_kind kind;
	const char *name;
	struct occ_stream *stream; /* borrowed */
	int peers;                 /* replicas that hold a stream of this name and (pp, tp) */
	uint64_t holders;          /* which they are */
};
struct occ_streams {
	int n;
	struct occ_stream_ref *at; /* owned */
	struct occ_exec *exec;     /* borrowed */
	/* Filled by loading, for this rank: streams with a residual that go on bit for bit, that
	 * were moved to another layout, that start anew; squared norms of the residuals in the
	 * checkpoint (each file counted by one rank) and of those that went on; what is whole on
	 * all tensor ranks counts once. */
	double exact, moved, fresh, total2, taken2;
};
void occ_streams_collect(struct occ_streams *s, struct occ_exec *x);
void occ_streams_release(struct occ_streams *s);

struct occ_ckpt_state { /* flat host fp32 arrays of this shard, weights.size each; borrowed */
	const struct occ_weights *weights;
	const struct occ_gpt_shape *shape;
	float *master, *m, *v;  /* m, v NULL: only weights are wanted (eval, generate, export) */
	int64_t step;           /* steps completed */
	int64_t skipped_in_row; /* consecutive non-finite steps so far */
	int64_t skipped;        /* in all */
	struct occ_streams *streams; /* NULL: none wanted */
};

/* Collective over topo->world; dir is made if it is not there. First removes what an interrupted
 * save left (step-N.tmp), at the end keeps this one and the newest keep - 1 before it (keep 0:
 * all). A complete one of the same step is replaced; later steps are left alone. If any rank cannot
 * write, all return -1 with the same failure (4) in `e`; step-N is then what it was, or complete.
 * Memory: the arrays are written from where they are. */
int occ_ckpt_save(const char *dir, int64_t keep, const struct occ_topo *topo,
		  const struct occ_ckpt_state *s, struct occ_err *e);

/* Collective over world (NULL: this process alone); all ranks get the same. Resolves
 * checkpoint.resume: "auto" (newest good one in dir), "never", or a path (a checkpoint, or a
 * directory of them). path[] = "" for a fresh start. An explicit path that holds none: refusal 4.
 * In a directory the checksums are verified, shared out over the ranks, and what is incomplete or
 * damaged is passed over with a line on stderr from rank 0. */
int occ_ckpt_find(struct occ_comm *world, const char *dir, const char *resume, char path[4096],
		  struct occ_err *e);

/* Fills the arrays of `s` (gaps and padding rows 0) and its counters from checkpoint `path`,
 * written by any layout with any padding. Not collective: each rank reads what it needs. Checked
 * first, then filled: sizes, the checksums of the files that are read, and model.layers, hidden,
 * heads, seq_len, vocab_size, tie_embeddings. Refusal 4 names file and what differs. */
int occ_ckpt_load(const char *path, struct occ_ckpt_state *s, struct occ_err *e);

/* Reads only the manifest: the shape and step. For export, generate and inspect. */
int occ_ckpt_shape(const char *path, struct occ_gpt_shape *shape, int64_t *step, struct occ_err *e);
/* `occ-train inspect`: a checkpoint or the newest in a directory of them, checksums verified.
 * 1 printed, 0 not a checkpoint, -1 refused. */
int occ_ckpt_inspect(const char *path, struct occ_err *e);

#endif
