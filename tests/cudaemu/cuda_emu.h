/* Test-only: g++ compiles the project's .cu files with this header in front (-include), and their
 * kernels run on the CPU. CUDA's own host headers give vector types, dim3 and bf16; what only a GPU
 * has stands here and in emu_builtins.h. The threads of a block are fibers of one OS thread. */
#ifndef OCC_TESTS_CUDA_EMU_H
#define OCC_TESTS_CUDA_EMU_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <cuda_runtime.h> /* without __CUDACC__ __global__ and __device__ are nothing */
#include <cuda_bf16.h>

/* All static __shared__ variables of a shared library lie in one section; the linker knows where.
 */
extern "C" {
extern char __start_occ_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_occ_shared[] __attribute__((weak, visibility("hidden")));
}

namespace occ_emu
{
/* Where a barrier or warp operation stands: one object for each time that its macro is written. */
struct Site {
	const char *file;
	int line;
};

struct Thread {
	uint3 index;
};

extern Thread *current; /* the fiber that runs now */
extern dim3 grid_dim, block_dim;
extern uint3 block_index;
extern unsigned char *dynamic_shared;

enum Vote { VOTE_NONE, VOTE_COUNT, VOTE_AND, VOTE_OR };
int barrier(const Site *site, Vote vote, bool predicate);

/* Up to WARP_DOWN lanes read from one lane; the rest reduce over the mask. */
enum Warp_op {
	WARP_INDEX,
	WARP_XOR,
	WARP_UP,
	WARP_DOWN,
	WARP_ADD,
	WARP_MIN,
	WARP_MAX,
	WARP_BIT_AND,
	WARP_BIT_OR,
	WARP_BIT_XOR,
	WARP_BALLOT,
	WARP_MATCH,
	WARP_SYNC
};
struct Warp_call {
	const Site *site;
	Warp_op op;
	unsigned mask;
	uint64_t value;
	int argument, width;
	bool is_signed;
};
uint64_t warp_operation(const Warp_call &call);
unsigned active_mask();

/* A kernel that some launch names. An executable of nvcc finds it by `function`'s symbol. */
struct Kernel {
	const void *function;
	const char *name; /* how the compiler writes it, in a longer text */
	void (*call)(void **arguments);
	size_t count;
	const size_t *sizes;
	const bool *pointers; /* which arguments are */
	char *shared, *shared_end;
};
const Kernel *register_kernel(const Kernel &kernel);
cudaError_t launch(const Kernel *kernel, dim3 grid, dim3 block, size_t shared_bytes,
		   cudaStream_t stream, void **arguments);

template <auto F> struct Registered;

template <class... P, void (*F)(P...)> struct Registered<F> {
	template <size_t... I> static void call_(void **a, std::index_sequence<I...>)
	{
		(void)a;
		F(*(P *)a[I]...);
	}

	static void call(void **a)
	{
		call_(a, std::index_sequence_for<P...>());
	}

	static const Kernel *make()
	{
		static const size_t sizes[] = {sizeof(P)..., 0};
		static const bool pointers[] = {std::is_pointer<P>::value..., false};
		return register_kernel({(const void *)F, __PRETTY_FUNCTION__, call, sizeof...(P),
					sizes, pointers, __start_occ_shared, __stop_occ_shared});
	}
	static inline const Kernel *const kernel = make();

	static cudaError_t launch(dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
				  P... p)
	{
		void *arguments[] = {(void *)&p..., nullptr};
		return occ_emu::launch(kernel, grid, block, shared_bytes, stream, arguments);
	}
};
} // namespace occ_emu

#define OCC_LAUNCH_ON(stream, kernel, grid, block, smem, ...)                                      \
	::occ_emu::Registered<kernel>::launch(dim3(grid), dim3(block), (smem), (stream),           \
					      __VA_ARGS__)
#define OCC_DYN_SMEM(type, name) type *name = (type *)::occ_emu::dynamic_shared

#include "tests/cudaemu/emu_builtins.h"

#endif
