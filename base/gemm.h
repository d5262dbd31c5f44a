/* Matrix products of the cpu device: one interface, two libraries, chosen at build time
 * (BLAS=onednn or BLAS=openblas). */
#ifndef OCC_BASE_GEMM_H
#define OCC_BASE_GEMM_H

#include "base/device.h"

struct occ_gemm_lib;

extern const char *const occ_gemm_name;

/* For one thread's use. Products run on `threads` threads. */
struct occ_gemm_lib *occ_gemm_open(enum occ_type type, int threads);
void occ_gemm_close(struct occ_gemm_lib *lib);
/* The product that the device slot gemm describes. The first call of a shape may allocate. */
void occ_gemm_run(struct occ_gemm_lib *lib, const struct occ_gemm *g, const void *a, const void *b,
		  const void *bias, void *c);

/* A product in fp32 on dense fp32 copies of operands of type `type`, for where the library cannot
 * do it as it stands. `product` gets the copies, with the leading dimensions that they have. */
struct occ_widen {
	float *at; /* grown only; the caller zeroes it first and frees it last */
	size_t cap;
};
typedef void occ_gemm_f32(void *lib, const struct occ_gemm *g, const float *a, const float *b,
			  const float *bias, float *c);
void occ_gemm_widened(struct occ_widen *s, const struct occ_gemm *g, enum occ_type type,
		      const void *const abbias[3], void *c, occ_gemm_f32 *product, void *lib);

#endif
