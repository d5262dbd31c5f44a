/* Files that are complete or absent: written beside their name, fsynced, renamed; a running
 * checksum of what was written; flat directories; read-only maps. Knows no format. */
#ifndef OCC_TRAINER_FILES_H
#define OCC_TRAINER_FILES_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* How failures are told: the exit code, and the fault point (base/fault.h) asked before each step.
 */
struct occ_io {
	int code;
	const char *fault; /* NULL: none */
	int rank;
};

/* 64-bit checksum of a byte stream, whatever its pieces. Each 8-byte word enters by a bijection of
 * the state, so any damage inside one word is always seen; other damage with probability 1 - 2^-64.
 */
struct occ_sum {
	uint64_t state, word;
	uint64_t bytes;
};
void occ_sum_init(struct occ_sum *s);
void occ_sum_add(struct occ_sum *s, const void *x, size_t bytes);
uint64_t occ_sum_get(const struct occ_sum *s);

struct occ_file {
	struct occ_io io;
	char *path, *aside; /* owned */
	int fd;
	struct occ_sum sum; /* of all bytes written */
};

/* Opens PATH.tmp. After a failure of any of the three nothing is left behind and `f` is closed;
 * commit and discard close it. A PATH that exists and is no regular file is refused. */
int occ_file_create(struct occ_file *f, const char *path, struct occ_io io, struct occ_err *e);
int occ_file_write(struct occ_file *f, const void *x, size_t bytes, struct occ_err *e);
int occ_file_commit(struct occ_file *f,
		    struct occ_err *e); /* fsync, rename, fsync of the directory */
void occ_file_discard(struct occ_file *f);

int occ_dir_make(const char *path, struct occ_io io, struct occ_err *e); /* with its parents */
int occ_dir_sync(const char *path, struct occ_io io, struct occ_err *e);
int occ_dir_rename(const char *from, const char *to, struct occ_io io, struct occ_err *e);
/* Removes a directory of plain files; 0 also if it is not there, else -1 with errno. */
int occ_dir_remove(const char *path);

/* Read-only map of a regular file. An empty one gives NULL and 0. */
int occ_map_open(const char *path, int code, void **map, size_t *bytes, struct occ_err *e);
void occ_map_close(void *map, size_t bytes);

#endif
