/* What a checkpoint directory says about itself, and how its shard files are laid out: shared by
 * saving, finding and loading.
 *
 * manifest.json begins with the checksum of all bytes after its first line. A shard file is a
 * header of 64 bytes and then master, m and v, each the shard's stored tensors densely, in the
 * table's order, fp32 little-endian. Stored: not the copy of the tied embedding, and tensors whole
 * on all tp ranks only by tp 0. Every reader takes any damage for a refusal (4) that names the
 * file. */
#ifndef OCC_TRAINER_MANIFEST_H
#define OCC_TRAINER_MANIFEST_H

#include "model/weights.h"
#include "trainer/files.h"

enum { OCC_SHARD_ARRAYS = 3 };

struct occ_shard_head {
	char magic[8]; /* "occshard" */
	uint32_t version, arrays, pp, tp;
	uint64_t elements; /* of one array */
	char zero[32];
};

struct occ_shard_file {
	int64_t bytes;
	uint64_t sum;
	int rank; /* of a stream file's writer */
};

struct occ_manifest {
	int64_t step, skipped, skipped_in_row;
	struct occ_gpt_shape shape;
	struct occ_layout layout;    /* of the writer; data is 1 */
	int data, nstreams;          /* the writer's replicas; files of streams */
	struct occ_shard_file *file; /* [pp * tensor + tp], then the streams; owned */
};

int occ_manifest_write(const char *ckpt, const struct occ_manifest *m, struct occ_io io,
		       struct occ_err *e);
/* Also that every shard file is there and has the right size; its content is not read. */
int occ_manifest_read(const char *ckpt, struct occ_manifest *m, struct occ_err *e);
void occ_manifest_release(struct occ_manifest *m);
int occ_manifest_shards(const struct occ_manifest *m); /* tensor * pipeline */
int occ_manifest_files(const struct occ_manifest *m);  /* and the streams */
/* Refusal that names the first model.* key that decides a tensor's shape or use and differs. */
int occ_manifest_match(const struct occ_manifest *m, const struct occ_gpt_shape *s,
		       const char *ckpt, struct occ_err *e);
void occ_manifest_table(const struct occ_manifest *m, int file, struct occ_weights *w);

struct occ_shard_head occ_shard_head(const struct occ_weights *w, int pp, int tp);
int occ_shard_stores(const struct occ_weights *w, const struct occ_weight *p);
/* Of file i: a shard or a stream file; caller frees. */
char *occ_shard_path(const char *ckpt, const struct occ_manifest *m, int i);
char *occ_stream_path(const char *ckpt, int rank); /* caller frees */
/* Reads file i and compares its checksum and header. */
int occ_shard_verify(const char *ckpt, const struct occ_manifest *m, int i, struct occ_err *e);

/* Names in a checkpoint directory: step-00000100, with .tmp while it is written, with .old for the
 * moment in which it is replaced (only on file systems that cannot exchange two names). */
enum occ_ckpt_kind { OCC_CKPT_NONE, OCC_CKPT_DONE, OCC_CKPT_OLD, OCC_CKPT_TMP };
struct occ_ckpt_name {
	int64_t step;
	enum occ_ckpt_kind kind;
};
char *occ_ckpt_path(const char *dir, struct occ_ckpt_name name); /* caller frees */
/* Names of our pattern in dir, newest first, DONE before OLD; *n of them, caller frees. A directory
 * that is not there has none. NULL with a refusal (4) where it cannot be read. */
struct occ_ckpt_name *occ_ckpt_list(const char *dir, int *n, struct occ_err *e);

/* Collective (NULL: alone). After a failure on any rank every rank has that of the lowest: -1. */
int occ_ckpt_agree(struct occ_comm *world, struct occ_err *e);

#endif
