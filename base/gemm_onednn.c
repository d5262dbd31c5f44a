/* Products through oneDNN's matmul primitive. */
#include "base/gemm.h"

const char *const occ_gemm_name = "oneDNN";
