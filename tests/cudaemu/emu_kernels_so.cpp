#include "tests/cudaemu/cuda_emu.h"
extern "C" { char *occ_emu_shared_lo = __start_occ_shared, *occ_emu_shared_hi = __stop_occ_shared; }
