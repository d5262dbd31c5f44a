/* Matrix products of the cpu device: one interface, two libraries, chosen at build time
 * (BLAS=onednn or BLAS=openblas). */
#ifndef OCC_BASE_GEMM_H
#define OCC_BASE_GEMM_H

#include "base/device.h"

struct occ_gemm_lib;

/* For one thread's use. Products run on `threads` OpenMP threads of the calling thread. */
struct occ_gemm_lib *occ_gemm_open(enum occ_type type, int threads);
void occ_gemm_close(struct occ_gemm_lib *lib);
/* The product that the device slot gemm describes. The first call of a shape may allocate. */
void occ_gemm_run(struct occ_gemm_lib *lib, const struct occ_gemm *g, const void *a, const void *b,
		  const void *bias, void *c);
extern const char *const occ_gemm_name;

#endif
