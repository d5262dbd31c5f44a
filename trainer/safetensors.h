/* The safetensors format, reading (memory-mapped, checked in full before use) and writing. */
#ifndef OCC_TRAINER_SAFETENSORS_H
#define OCC_TRAINER_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct occ_file; /* trainer/files.h */

enum occ_st_dtype {
	OCC_ST_F32,
	OCC_ST_F16,
	OCC_ST_BF16,
	OCC_ST_F64,
	OCC_ST_I64,
	OCC_ST_I32,
	OCC_ST_I16,
	OCC_ST_I8,
	OCC_ST_U8,
	OCC_ST_BOOL,
	OCC_ST_NDTYPES
};

struct occ_st_tensor {
	char *name;
	enum occ_st_dtype dtype;
	int ndim;
	int64_t dim[8];
	const void *data; /* inside the map; may be unaligned */
	size_t bytes;
};

struct occ_st {
	char *path;
	int n;
	struct occ_st_tensor *at; /* in the file's order of data */
	void *map;
	size_t map_bytes;
};

/* Every rule of the format is enforced (formats.md 1.9.3); refusal with `code` (3 or 4) names file,
 * tensor and value. */
int occ_st_open(struct occ_st *s, const char *path, int code, struct occ_err *e);
void occ_st_close(struct occ_st *s);
const struct occ_st_tensor *occ_st_find(const struct occ_st *s, const char *name);
/* Element i of F32, F16 or BF16 data as fp32. */
float occ_st_float(const struct occ_st_tensor *t, int64_t i);

/* `occ-train inspect`: names, types, shapes and totals to stdout. 1 printed, 0 not a file of this
 * kind, -1 refused (3). */
int occ_st_inspect(const char *path, struct occ_err *e);
extern const char *const occ_st_dtype_name[OCC_ST_NDTYPES];
extern const int occ_st_dtype_size[OCC_ST_NDTYPES];
/* "[768, 2304]" of the shape, cut to `size` bytes; returns buf. */
char *occ_st_shape(const struct occ_st_tensor *t, char *buf, size_t size);

/* Writing in pieces, for tensors that are not in memory as the file wants them: sort, write the
 * header to a created file, then each tensor's data in that order. Only name, ndim, dim are read;
 * sets bytes. */
void occ_st_sort(struct occ_st_tensor *t, int n);
int occ_st_write_header(struct occ_file *f, struct occ_st_tensor *t, int n, struct occ_err *e);

/* Writes tensors (name, F32, shape, data) in the reference writer's order (by name here, all F32),
 * header padded to 8, __metadata__ {"format":"pt"}; written aside, fsynced, renamed. Equal tensors
 * give equal bytes. -1 with code 4 if it cannot be written; nothing partial is left. */
int occ_st_write(const char *path, const struct occ_st_tensor *t, int n, struct occ_err *e);

#endif
