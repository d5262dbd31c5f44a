/* Test-only: lets g++/clang++ compile the project's .cu files as C++ and run the kernels on the CPU.
 * Real CUDA host headers (vector types, dim3, bf16 with its host code) are used; only the device
 * built-ins are provided here.  One OS thread runs a block's threads as fibers. */
#pragma once
#include <cuda_runtime.h>   /* defines __global__/__device__ as nothing without __CUDACC__ */
#include <cuda_bf16.h>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <utility>

#include <tuple>
/* all static __shared__ variables of this shared object; the linker defines these two */
extern "C" { extern char __start_occ_shared[] __attribute__((weak, visibility("hidden")));
             extern char __stop_occ_shared[] __attribute__((weak, visibility("hidden"))); }
namespace occ_emu {
struct Thread { uint3 tid; };
struct Cfg { dim3 grid, block; };
extern Thread *cur;          /* the fiber that runs now */
extern Cfg cfg;
extern uint3 cur_block;
extern unsigned char *dyn_smem;

void syncthreads(const char *file, int line);
int  syncthreads_red(int pred, int kind, const char *file, int line);   /* 0 count, 1 and, 2 or */
enum WarpOp { W_IDX, W_XOR, W_UP, W_DOWN, W_ADD, W_MIN, W_MAX, W_AND, W_OR, W_BXOR, W_BALLOT,
              W_ANY, W_ALL, W_SYNC, W_MATCH };
uint64_t warp_op(WarpOp op, unsigned mask, uint64_t val, int arg, int width, bool is_signed,
                 const char *file, int line);
unsigned activemask();
void assert_fail(const char *e, const char *f, int l);
cudaError_t launch(std::function<void()> body, dim3 grid, dim3 block, size_t smem, cudaStream_t st,
                   const char *name, char *sh_lo, char *sh_hi);

template <class T> inline uint64_t to_bits(T v) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "shuffle type");
    uint64_t b = 0; memcpy(&b, &v, sizeof(T)); return b;
}
template <class T> inline T from_bits(uint64_t b) { T v; memcpy((void *)&v, &b, sizeof(T)); return v; }

/* typed launch: converts the arguments to the kernel's parameter types, copies them (a launch is
 * asynchronous), and registers a trampoline so cudaLaunchKernel(func, ..., void **args) works too */
template <class... P, class... A>
inline cudaError_t launch_typed(const char *name, void (*k)(P...), dim3 g, dim3 b, size_t smem,
                                cudaStream_t st, A &&...a) {
    static_assert(sizeof...(P) == sizeof...(A), "kernel argument count");
    std::tuple<typename std::decay<P>::type...> t(static_cast<typename std::decay<P>::type>(a)...);
    return launch([k, t]() { std::apply(k, t); }, g, b, smem, st, name, __start_occ_shared, __stop_occ_shared);
}
}  // namespace occ_emu

namespace occ_emu {
template <class... P, size_t... I> inline void call_argv_(void (*k)(P...), void **a, std::index_sequence<I...>) {
    k(*(typename std::remove_reference<P>::type *)a[I]...);
}
template <class... P> inline void call_argv(void (*k)(P...), void **a) { call_argv_(k, a, std::index_sequence_for<P...>()); }
template <class... P> constexpr size_t argc_of(void (*)(P...)) { return sizeof...(P); }
template <class... P> inline void sizes_of(void (*)(P...), size_t *s) { size_t t[] = {sizeof(P)..., 0}; memcpy(s, t, sizeof(size_t) * sizeof...(P)); }
/* one per kernel that is launched somewhere: lets cudaLaunchKernel(func, ..., void **argv) find it */
struct KInfo { const void *fn; size_t n; size_t size[32]; void (*call)(void **); const char *name; };
bool register_kernel_info(const KInfo &);
template <auto K> struct Reg {
    static void call(void **a) { call_argv(K, a); }
    static bool make() { KInfo k{}; k.fn = (const void *)K; k.n = argc_of(K); sizes_of(K, k.size); k.call = call; k.name = ""; return register_kernel_info(k); }
    static inline const bool r = make();
};
}
#define OCC_LAUNCH_ON(stream, kernel, grid, block, smem, ...) \
    ((void)::occ_emu::Reg<kernel>::r, \
     ::occ_emu::launch_typed(#kernel, kernel, dim3(grid), dim3(block), (smem), (stream), __VA_ARGS__))
#define OCC_DYN_SMEM(type, name) type *name = (type *)::occ_emu::dyn_smem

#undef __shared__
#define __shared__ static __attribute__((section("occ_shared")))
#define threadIdx (::occ_emu::cur->tid)
#define blockIdx  (::occ_emu::cur_block)
#define blockDim  (::occ_emu::cfg.block)
#define gridDim   (::occ_emu::cfg.grid)
static const int warpSize [[maybe_unused]] = 32;
#undef __launch_bounds__
#define __launch_bounds__(...)
#ifndef __restrict__
#define __restrict__ __restrict
#endif
#undef __grid_constant__
#define __grid_constant__

#define __syncthreads()        ::occ_emu::syncthreads(__FILE__, __LINE__)
#define __syncthreads_count(p) ::occ_emu::syncthreads_red((p) != 0, 0, __FILE__, __LINE__)
#define __syncthreads_and(p)   ::occ_emu::syncthreads_red((p) != 0, 1, __FILE__, __LINE__)
#define __syncthreads_or(p)    ::occ_emu::syncthreads_red((p) != 0, 2, __FILE__, __LINE__)
#define __syncwarp(...)        ::occ_emu::syncwarp_(__FILE__, __LINE__, ##__VA_ARGS__)
#define __threadfence()        ((void)0)
#define __threadfence_block()  ((void)0)
#define __activemask()         ::occ_emu::activemask()

namespace occ_emu {
inline void syncwarp_(const char *f, int l, unsigned m = 0xffffffffu) { warp_op(W_SYNC, m, 0, 0, 32, false, f, l); }
template <class T> inline T shfl(WarpOp op, const char *f, int l, unsigned m, T v, int a, int w = 32) {
    return from_bits<T>(warp_op(op, m, to_bits(v), a, w, false, f, l));
}
inline int redi(WarpOp op, const char *f, int l, unsigned m, int v) {
    return (int)warp_op(op, m, (uint64_t)(int64_t)v, 0, 32, true, f, l);
}
inline unsigned redi(WarpOp op, const char *f, int l, unsigned m, unsigned v) {
    return (unsigned)warp_op(op, m, v, 0, 32, false, f, l);
}
}
#define __shfl_sync(...)      ::occ_emu::shfl(::occ_emu::W_IDX,  __FILE__, __LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...)  ::occ_emu::shfl(::occ_emu::W_XOR,  __FILE__, __LINE__, __VA_ARGS__)
#define __shfl_up_sync(...)   ::occ_emu::shfl(::occ_emu::W_UP,   __FILE__, __LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) ::occ_emu::shfl(::occ_emu::W_DOWN, __FILE__, __LINE__, __VA_ARGS__)
#define __reduce_add_sync(...) ::occ_emu::redi(::occ_emu::W_ADD, __FILE__, __LINE__, __VA_ARGS__)
#define __reduce_min_sync(...) ::occ_emu::redi(::occ_emu::W_MIN, __FILE__, __LINE__, __VA_ARGS__)
#define __reduce_max_sync(...) ::occ_emu::redi(::occ_emu::W_MAX, __FILE__, __LINE__, __VA_ARGS__)
#define __reduce_and_sync(...) ::occ_emu::redi(::occ_emu::W_AND, __FILE__, __LINE__, __VA_ARGS__)
#define __reduce_or_sync(...)  ::occ_emu::redi(::occ_emu::W_OR,  __FILE__, __LINE__, __VA_ARGS__)
#define __ballot_sync(m, p) ((unsigned)::occ_emu::warp_op(::occ_emu::W_BALLOT, m, (p) != 0, 0, 32, false, __FILE__, __LINE__))
#define __any_sync(m, p)    ((int)::occ_emu::warp_op(::occ_emu::W_ANY, m, (p) != 0, 0, 32, false, __FILE__, __LINE__))
#define __all_sync(m, p)    ((int)::occ_emu::warp_op(::occ_emu::W_ALL, m, (p) != 0, 0, 32, false, __FILE__, __LINE__))
#define __match_any_sync(m, v) ((unsigned)::occ_emu::warp_op(::occ_emu::W_MATCH, m, ::occ_emu::to_bits(v), 0, 32, false, __FILE__, __LINE__))

/* atomics: one OS thread runs everything, so a plain read-modify-write is atomic */
template <class T, class U> static inline T atomicAdd(T *p, U v) { T o = *p; *p = (T)(o + (T)v); return o; }
template <class T, class U> static inline T atomicSub(T *p, U v) { T o = *p; *p = (T)(o - (T)v); return o; }
template <class T, class U> static inline T atomicMax(T *p, U v) { T o = *p; if ((T)v > o) *p = (T)v; return o; }
template <class T, class U> static inline T atomicMin(T *p, U v) { T o = *p; if ((T)v < o) *p = (T)v; return o; }
template <class T, class U> static inline T atomicExch(T *p, U v) { T o = *p; *p = (T)v; return o; }
template <class T, class U> static inline T atomicOr(T *p, U v) { T o = *p; *p = o | (T)v; return o; }
template <class T, class U> static inline T atomicAnd(T *p, U v) { T o = *p; *p = o & (T)v; return o; }
template <class T, class U, class V> static inline T atomicCAS(T *p, U c, V v) { T o = *p; if (o == (T)c) *p = (T)v; return o; }
static inline unsigned atomicInc(unsigned *p, unsigned lim) { unsigned o = *p; *p = o >= lim ? 0 : o + 1; return o; }

/* memory-hint loads and stores */
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T v) { *p = v; }
template <class T> static inline void __stcg(T *p, T v) { *p = v; }
template <class T> static inline void __stwt(T *p, T v) { *p = v; }

/* math */
/* glibc's headers declare __expf/__logf themselves, hence macros */
#define __expf(x) expf(x)
#define __logf(x) logf(x)
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __frsqrt_rn(float a) { return (float)(1.0 / sqrt((double)a)); }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __saturatef(float a) { return a < 0 ? 0 : a > 1 ? 1 : a; }
static inline float occ_rsqrtf(float a) { return 1.0f / sqrtf(a); }
#define rsqrtf occ_rsqrtf
static inline int __float_as_int(float f) { int i; memcpy(&i, &f, 4); return i; }
static inline unsigned __float_as_uint(float f) { unsigned i; memcpy(&i, &f, 4); return i; }
static inline float __int_as_float(int i) { float f; memcpy(&f, &i, 4); return f; }
static inline float __uint_as_float(unsigned i) { float f; memcpy(&f, &i, 4); return f; }
static inline int __float2int_rn(float f) { return (int)nearbyintf(f); }
static inline unsigned __float2uint_rn(float f) { return (unsigned)nearbyintf(f); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a * b) >> 32); }
template <class T> static inline T occ_min_(T a, T b) { return a < b ? a : b; }
#ifndef OCC_EMU_NO_MINMAX
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
static inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
static inline size_t min(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t max(size_t a, size_t b) { return a > b ? a : b; }
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
#endif
