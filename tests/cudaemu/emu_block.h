/* The block of threads that runs: shared by its scheduler and the warp operations. */
#ifndef OCC_TESTS_EMU_BLOCK_H
#define OCC_TESTS_EMU_BLOCK_H

#include <vector>

#include "tests/cudaemu/cuda_emu.h"
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim
#include "tests/cudaemu/emu_fiber.h"

namespace occ_emu
{
enum State : uint8_t { UNSTARTED, RUNNING, READY, AT_BARRIER, AT_WARP, DONE };

struct Lane : Thread {
	int number; /* in the block */
	State state;
	Fiber *fiber;
	const Site *site; /* where it waits */
	Warp_call call;
	uint64_t result;
};

struct Warp {
	unsigned arrived, done; /* masks of lanes */
};

struct Block {
	std::vector<Lane> lanes;
	std::vector<Warp> warps;
	const char *kernel;
};
extern Block &block;

void shared_memory_of_block(const Kernel &kernel, size_t dynamic_bytes);
void shared_memory_after(const Kernel &kernel);
void make_ready(int lane);
void wait_for_others(Lane *self); /* in state AT_BARRIER or AT_WARP */
[[noreturn]] void stop_in_kernel(const char *format, ...) __attribute__((format(printf, 1, 2)));
} // namespace occ_emu

#endif
