/* The emulation of kernels: right ones give what plain loops give, in every order of threads, and
 * bugs planted in kernels are caught. Compiled as .cu files are.
 * TIME: 300 */
#include "tests/cuda/child.h"

#include <algorithm>

namespace
{
enum { N = 64 };
const unsigned all = 0xffffffffu;

/* Runs a kernel on numbers 0..N-1 in N threads, and brings back what it made of them. */
template <auto K> std::vector<float> run(int threads = N)
{
	std::vector<float> x(N);
	float *d_x = nullptr;
	for (int i = 0; i < N; i++)
		x[(size_t)i] = (float)i;
	REQUIRE(!cudaMalloc((void **)&d_x, N * sizeof(float)));
	REQUIRE(!cudaMemcpy(d_x, x.data(), N * sizeof(float), cudaMemcpyHostToDevice));
	REQUIRE(!OCC_LAUNCH_ON((cudaStream_t) nullptr, K, 1, threads, N * sizeof(float), d_x));
	REQUIRE(!cudaMemcpy(x.data(), d_x, N * sizeof(float), cudaMemcpyDeviceToHost));
	REQUIRE(!cudaFree(d_x));
	return x;
}

template <auto K> void reverses()
{
	std::vector<float> x = run<K>();
	for (int i = 0; i < N; i++)
		REQUIRE(x[(size_t)i] == (float)(N - 1 - i));
}

template <auto K> void just_runs()
{
	run<K>();
}

/* ---- Right kernels. ---- */

__global__ void k_reverse(float *x)
{
	__shared__ float s[N];
	int t = threadIdx.x;
	s[t] = x[t];
	__syncthreads();
	x[t] = s[N - 1 - t];
}

__global__ void k_reverse_dynamic(float *x)
{
	OCC_DYN_SMEM(float, s);
	int t = threadIdx.x;
	s[t] = x[t];
	__syncthreads();
	x[t] = s[N - 1 - t];
}

/* Lanes of both halves of a warp may go their own ways. */
__global__ void k_halves(float *x)
{
	int t = threadIdx.x, lane = t & 31;
	unsigned mask = lane < 16 ? 0xffffu : 0xffff0000u;
	float v = lane < 16 ? __shfl_sync(mask, x[t], 15 - lane) : x[t];
	if (lane >= 16)
		v = __shfl_sync(mask, v, 47 - lane);
	x[t] = v;
}

void halves()
{
	std::vector<float> x = run<k_halves>();
	for (int i = 0; i < N; i++)
		REQUIRE(x[(size_t)i] == (float)(i / 16 * 16 + 15 - i % 16));
}

__global__ void k_warp(float *x)
{
	int t = threadIdx.x, lane = t & 31;
	float v = x[t], sum = v;
	for (int o = 16; o > 0; o >>= 1)
		sum += __shfl_xor_sync(all, sum, o);
	float up = __shfl_up_sync(all, v, 1), down = __shfl_down_sync(all, v, 2, 8);
	unsigned odd = __ballot_sync(all, lane & 1), same = __match_any_sync(all, lane / 4);
	int most = __reduce_max_sync(all, -lane), least = __reduce_min_sync(all, -lane);
	unsigned bits = __reduce_or_sync(all, 1u << lane) & __reduce_xor_sync(all, 1u << lane);
	bool right = up == (lane ? v - 1 : v) && down == (lane % 8 < 6 ? v + 2 : v) &&
		     odd == 0xaaaaaaaau && same == 0xfu << lane / 4 * 4 && most == 0 &&
		     least == -31 && bits == all && __any_sync(all, lane == 7) &&
		     !__all_sync(all, lane == 7) && __activemask() == all &&
		     __reduce_add_sync(all, 1u) == 32;
	x[t] = right ? sum : -1.0f;
}

void warp()
{
	std::vector<float> x = run<k_warp>();
	for (int i = 0; i < N; i++)
		REQUIRE(x[(size_t)i] == (i < 32 ? 496.0f : 1520.0f));
}

__global__ void k_votes(float *x)
{
	int t = threadIdx.x;
	int count = __syncthreads_count(t % 3 == 0), both = __syncthreads_and(t < N);
	int some = __syncthreads_or(t == 5), none = __syncthreads_or(t > N);
	x[t] = (float)(count * 8 + both * 4 + some * 2 + none);
}

void votes()
{
	for (float v : run<k_votes>())
		REQUIRE(v == 22 * 8 + 6);
}

/* The last warp is partial: its full mask names lanes that are not. */
__global__ void k_partial(float *x)
{
	float v = x[threadIdx.x];
	for (int o = 16; o > 0; o >>= 1)
		v = fmaxf(v, __shfl_xor_sync(all, v, o));
	x[threadIdx.x] = (float)__reduce_add_sync(all, 1u);
}

void partial()
{
	std::vector<float> x = run<k_partial>(40);
	REQUIRE(x[0] == 32 && x[31] == 32 && x[32] == 8 && x[39] == 8 && x[40] == 40);
}

struct Large {
	double at[20];
};

template <class T>
__global__ void k_grid(Large large, char small, const T *from, unsigned long long *total, T *to)
{
	size_t block = blockIdx.x + (size_t)gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
	size_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
	size_t i = block * (blockDim.x * blockDim.y * blockDim.z) + thread;
	to[i] = (T)(from[i] * (T)large.at[19] + (T)small);
	atomicAdd(total, 1ull);
}

void grid()
{
	enum { COUNT = 3 * 4 * 5 * 2 * 3 * 4 };
	std::vector<double> x(COUNT);
	unsigned long long total = 0, *d_total;
	double *d_x;
	Large large = {};
	large.at[19] = 2;
	for (size_t i = 0; i < COUNT; i++)
		x[i] = (double)i;
	REQUIRE(!cudaMalloc((void **)&d_x, COUNT * sizeof(double)));
	REQUIRE(!cudaMalloc((void **)&d_total, sizeof(total)));
	REQUIRE(!cudaMemset(d_total, 0, sizeof(total)));
	REQUIRE(!cudaMemcpy(d_x, x.data(), COUNT * sizeof(double), cudaMemcpyHostToDevice));
	REQUIRE(!OCC_LAUNCH_ON((cudaStream_t) nullptr, (k_grid<double>), dim3(3, 4, 5),
			       dim3(2, 3, 4), 0, large, 7, d_x, d_total, d_x));
	REQUIRE(!cudaMemcpy(x.data(), d_x, COUNT * sizeof(double), cudaMemcpyDeviceToHost));
	REQUIRE(!cudaMemcpy(&total, d_total, sizeof(total), cudaMemcpyDeviceToHost));
	for (size_t i = 0; i < COUNT; i++)
		REQUIRE(x[i] == 2.0 * (double)i + 7);
	REQUIRE(total == COUNT);
	REQUIRE(!cudaFree(d_x) && !cudaFree(d_total));
}

/* ---- Planted bugs. ---- */

__global__ void k_no_barrier(float *x)
{
	__shared__ float s[N];
	int t = threadIdx.x;
	s[t] = x[t];
	x[t] = s[N - 1 - t];
}

/* s is written again before all have read it. */
__global__ void k_no_second_barrier(float *x)
{
	__shared__ float s[N];
	int t = threadIdx.x;
	s[t] = x[t];
	__syncthreads();
	float v = s[N - 1 - t];
	s[t] = -1;
	x[t] = v;
}

__global__ void k_unset_shared(float *x)
{
	__shared__ float s[N];
	int t = threadIdx.x;
	if (t != 5)
		s[N - 1 - t] = x[t];
	__syncthreads();
	x[t] = s[t];
}

__global__ void k_unset_dynamic(float *x)
{
	OCC_DYN_SMEM(float, s);
	x[threadIdx.x] = s[threadIdx.x];
}

__global__ void k_exited(float *x)
{
	int t = threadIdx.x;
	if ((t & 31) == 31)
		return;
	x[t] = __shfl_xor_sync(all, x[t], 1);
}

__global__ void k_half_mask(float *x)
{
	int t = threadIdx.x;
	x[t] = __shfl_xor_sync(0xffffu, x[t], 1);
}

__global__ void k_masks(float *x)
{
	int t = threadIdx.x;
	x[t] = __shfl_sync(t & 1 ? all : 0x55555555u, x[t], 1);
}

__global__ void k_warp_operations(float *x)
{
	int t = threadIdx.x;
	x[t] = t & 1 ? __shfl_xor_sync(all, x[t], 1) : __shfl_xor_sync(all, x[t], 1);
}

__global__ void k_barriers(float *x)
{
	x[threadIdx.x] = 0;
	// clang-format off
	if (threadIdx.x & 1) __syncthreads(); else __syncthreads(); // on one line, on purpose
	// clang-format on
}

__global__ void k_barrier_and_warp(float *x)
{
	int t = threadIdx.x;
	if (t == 3)
		__syncthreads();
	x[t] = __shfl_xor_sync(all, x[t], 1);
}

__global__ void k_barrier_in_loop(float *x)
{
	int t = threadIdx.x;
	for (int i = 0; i < (t < 32 ? 2 : 1); i++)
		__syncthreads();
	x[t] = (float)__ballot_sync(all, 1);
	if (t >= 32)
		__syncwarp(all);
	__syncthreads();
	x[t] = (float)(N - 1 - t);
}

__global__ void k_outside_mask(float *x)
{
	int t = threadIdx.x;
	if ((t & 31) < 16)
		x[t] = __shfl_sync(0xffffu, x[t], 20);
}

#ifdef __SANITIZE_ADDRESS__
__global__ void k_past_end(float *x)
{
	x[threadIdx.x + 1] = 0;
}

__global__ void k_past_dynamic(float *x)
{
	OCC_DYN_SMEM(float, s);
	s[threadIdx.x + 1] = x[threadIdx.x];
}

__global__ void k_past_static(float *x)
{
	__shared__ float s[N];
	float *past = s + 1;
	past[threadIdx.x] = x[threadIdx.x];
	x[threadIdx.x] = s[1];
}

/* Several: a register may still hold the last one. */
void forgets()
{
	for (int i = 0; i < 8; i++) {
		void *d_x;
		REQUIRE(!cudaMalloc(&d_x, N));
	}
}
#endif

#ifdef OCC_UNDEFINED_IS_CHECKED
__global__ void k_misaligned(float *x)
{
	float4 v = *(const float4 *)(x + 1);
	x[0] = v.x;
}
#endif

void unset_memory()
{
	float v = 0, *d_x;
	REQUIRE(!cudaMalloc((void **)&d_x, sizeof(v)));
	REQUIRE(!cudaMemcpy(&v, d_x, sizeof(v), cudaMemcpyDeviceToHost));
	REQUIRE(v == v);
}

void unset_dynamic()
{
	for (float v : run<k_unset_dynamic>())
		REQUIRE(v == v);
}

void outside_mask()
{
	REQUIRE(run<k_outside_mask>()[3] >= 0);
}

std::vector<Case> cases = {
	{"reverse", reverses<k_reverse>, "", ""},
	{"reverse-dynamic", reverses<k_reverse_dynamic>, "", ""},
	{"halves", halves, "", ""},
	{"warp", warp, "", ""},
	{"votes", votes, "", ""},
	{"partial-warp", partial, "", ""},
	{"grid", grid, "", ""},
	{"no-barrier", reverses<k_no_barrier>, "", "wrong"},
	{"unset-shared", reverses<k_unset_shared>, "", "wrong"},
	{"unset-dynamic", unset_dynamic, "", "wrong"},
	{"unset-memory", unset_memory, "", "wrong"},
	{"outside-mask", outside_mask, "", "wrong"},
	{"exited-lane", just_runs<k_exited>, "", "has exited"},
	{"half-mask", just_runs<k_half_mask>, "", "not in its own mask"},
	{"masks", just_runs<k_masks>, "", "mask"},
	{"warp-operations", just_runs<k_warp_operations>, "", "different warp operations"},
	{"barriers", just_runs<k_barriers>, "", "different barriers"},
	{"barrier-and-warp", just_runs<k_barrier_and_warp>, "", "emulation_kernels.cpp"},
	{"barrier-in-loop", just_runs<k_barrier_in_loop>, "", "different barriers"},
#ifdef __SANITIZE_ADDRESS__
	{"past-end", just_runs<k_past_end>, "", "heap-buffer-overflow"},
	{"past-dynamic", just_runs<k_past_dynamic>, "", "heap-buffer-overflow"},
	{"past-static", just_runs<k_past_static>, "", "emulation_kernels.cpp"},
	{"forgets", forgets, "", "LeakSanitizer"},
#endif
#ifdef OCC_UNDEFINED_IS_CHECKED
	{"misaligned", just_runs<k_misaligned>, "", "misaligned"},
#endif
};

/* A race of which one order shows nothing. */
Case second_barrier = {"no-second-barrier", reverses<k_no_second_barrier>, "", "wrong"};
} // namespace

int main(int argc, char **argv)
{
	const char *const orders[] = {"forward", "reverse", "random:1", "random:2"};
	std::vector<Case> known = cases;
	known.push_back(second_barrier);
	run_if_child(argc, argv, known);
	for (const Case &c : cases)
		for (const char *order : orders)
			check_case(c, std::string("OCC_EMU_ORDER=") + order);
	int caught = 0;
	for (const char *order : orders)
		caught += !run_child(second_barrier, std::string("OCC_EMU_ORDER=") + order)
				   .ended_well;
	CHECK(caught > 0, "no order of threads shows the race");
	return check_done();
}
