/* Matrix products of the cpu device, by one of two libraries chosen at build time (make BLAS=onednn or
 * openblas). Prepared products are kept by shape, so that nothing is allocated after the first use. */
#ifndef OCC_BASE_GEMM_H
#define OCC_BASE_GEMM_H

#include "base/device.h"

struct occ_gemm_cache; /* heap; open / close; one thread uses it at a time */

struct occ_gemm_cache *occ_gemm_open(enum occ_type type);
void occ_gemm_close(struct occ_gemm_cache *c);
/* As the device's gemm slot; runs on the calling thread's OpenMP team. */
void occ_gemm_run(struct occ_gemm_cache *c, const struct occ_gemm *g, const void *a, const void *b,
		  const void *bias, void *out);

#endif
