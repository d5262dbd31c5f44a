/* Test-only: what CUDA C++ gives to kernels, as C++ for the CPU. Included by cuda_emu.h. */
#ifndef OCC_TESTS_EMU_BUILTINS_H
#define OCC_TESTS_EMU_BUILTINS_H

#undef __shared__
#undef __launch_bounds__
#undef __grid_constant__
#define __shared__ static __attribute__((section("occ_shared")))
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx (::occ_emu::current->index)
#define blockIdx (::occ_emu::block_index)
#define blockDim (::occ_emu::block_dim)
#define gridDim (::occ_emu::grid_dim)
static const int warpSize [[maybe_unused]] = 32;

/* A lambda's static variable: another one each time that the macro is written, also on one line. */
#define OCC_EMU_SITE                                                                               \
	([]() -> const ::occ_emu::Site * {                                                         \
		static const ::occ_emu::Site site = {__FILE__, __LINE__};                          \
		return &site;                                                                      \
	}())

#define __syncthreads() ((void)::occ_emu::barrier(OCC_EMU_SITE, ::occ_emu::VOTE_NONE, false))
#define __syncthreads_count(p) ::occ_emu::barrier(OCC_EMU_SITE, ::occ_emu::VOTE_COUNT, (p) != 0)
#define __syncthreads_and(p) ::occ_emu::barrier(OCC_EMU_SITE, ::occ_emu::VOTE_AND, (p) != 0)
#define __syncthreads_or(p) ::occ_emu::barrier(OCC_EMU_SITE, ::occ_emu::VOTE_OR, (p) != 0)
#define __syncwarp(...) ::occ_emu::warp_sync(OCC_EMU_SITE, ##__VA_ARGS__)
#define __threadfence() ((void)0)
#define __threadfence_block() ((void)0)
#define __activemask() ::occ_emu::active_mask()

#define __shfl_sync(...) ::occ_emu::shuffle(OCC_EMU_SITE, ::occ_emu::WARP_INDEX, __VA_ARGS__)
#define __shfl_xor_sync(...) ::occ_emu::shuffle(OCC_EMU_SITE, ::occ_emu::WARP_XOR, __VA_ARGS__)
#define __shfl_up_sync(...) ::occ_emu::shuffle(OCC_EMU_SITE, ::occ_emu::WARP_UP, __VA_ARGS__)
#define __shfl_down_sync(...) ::occ_emu::shuffle(OCC_EMU_SITE, ::occ_emu::WARP_DOWN, __VA_ARGS__)
#define __reduce_add_sync(m, v) ::occ_emu::reduce(OCC_EMU_SITE, ::occ_emu::WARP_ADD, m, v)
#define __reduce_min_sync(m, v) ::occ_emu::reduce(OCC_EMU_SITE, ::occ_emu::WARP_MIN, m, v)
#define __reduce_max_sync(m, v) ::occ_emu::reduce(OCC_EMU_SITE, ::occ_emu::WARP_MAX, m, v)
#define __reduce_and_sync(m, v) ::occ_emu::reduce(OCC_EMU_SITE, ::occ_emu::WARP_BIT_AND, m, v)
#define __reduce_or_sync(m, v) ::occ_emu::reduce(OCC_EMU_SITE, ::occ_emu::WARP_BIT_OR, m, v)
#define __reduce_xor_sync(m, v) ::occ_emu::reduce(OCC_EMU_SITE, ::occ_emu::WARP_BIT_XOR, m, v)
#define __ballot_sync(m, p) ::occ_emu::vote(OCC_EMU_SITE, ::occ_emu::WARP_BALLOT, m, (p) != 0)
#define __any_sync(m, p) ((int)::occ_emu::vote(OCC_EMU_SITE, ::occ_emu::WARP_BIT_OR, m, (p) != 0))
#define __all_sync(m, p) ((int)::occ_emu::vote(OCC_EMU_SITE, ::occ_emu::WARP_BIT_AND, m, (p) != 0))
#define __match_any_sync(m, v)                                                                     \
	::occ_emu::vote(OCC_EMU_SITE, ::occ_emu::WARP_MATCH, m, ::occ_emu::to_bits(v))

namespace occ_emu
{
template <class T> inline uint64_t to_bits(T v)
{
	static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "shuffle type");
	uint64_t bits = 0;
	memcpy(&bits, &v, sizeof(T));
	return bits;
}

inline void warp_sync(const Site *site, unsigned mask = 0xffffffffu)
{
	warp_operation({site, WARP_SYNC, mask, 0, 0, 32, false});
}

template <class T>
inline T shuffle(const Site *site, Warp_op op, unsigned mask, T v, int argument, int width = 32)
{
	T out;
	uint64_t bits = warp_operation({site, op, mask, to_bits(v), argument, width, false});
	memcpy((void *)&out, &bits, sizeof(T));
	return out;
}

inline int reduce(const Site *site, Warp_op op, unsigned mask, int v)
{
	return (int)warp_operation({site, op, mask, (uint64_t)(int64_t)v, 0, 32, true});
}

inline unsigned reduce(const Site *site, Warp_op op, unsigned mask, unsigned v)
{
	return (unsigned)warp_operation({site, op, mask, v, 0, 32, false});
}

inline unsigned vote(const Site *site, Warp_op op, unsigned mask, uint64_t v)
{
	return (unsigned)warp_operation({site, op, mask, v, 0, 32, false});
}
} // namespace occ_emu

/* One OS thread at a time runs kernels, so a plain read-modify-write is atomic. */
#define OCC_EMU_ATOMIC(name, expression)                                                           \
	template <class T, class U> static inline T name(T *p, U u)                                \
	{                                                                                          \
		T old = *p, v = (T)u;                                                              \
		*p = (T)(expression);                                                              \
		return old;                                                                        \
	}
OCC_EMU_ATOMIC(atomicAdd, old + v)
OCC_EMU_ATOMIC(atomicSub, old - v)
OCC_EMU_ATOMIC(atomicMax, old < v ? v : old)
OCC_EMU_ATOMIC(atomicMin, v < old ? v : old)
OCC_EMU_ATOMIC(atomicExch, v)
OCC_EMU_ATOMIC(atomicOr, old | v)
OCC_EMU_ATOMIC(atomicAnd, (old) & (v))
OCC_EMU_ATOMIC(atomicXor, old ^ v)
#undef OCC_EMU_ATOMIC

template <class T, class U, class V> static inline T atomicCAS(T *p, U expected, V v)
{
	T old = *p;
	if (old == (T)expected)
		*p = (T)v;
	return old;
}

static inline unsigned atomicInc(unsigned *p, unsigned most)
{
	unsigned old = *p;
	*p = old >= most ? 0 : old + 1;
	return old;
}

/* Loads and stores with hints for caches. */
template <class T> static inline T __ldg(const T *p)
{
	return *p;
}
template <class T> static inline void __stcs(T *p, T v)
{
	*p = v;
}
#define __ldcs __ldg
#define __ldcg __ldg
#define __ldca __ldg
#define __ldcv __ldg
#define __stcg __stcs
#define __stwt __stcs
#define __stwb __stcs

/* Mathematics. glibc's headers declare some of these names themselves, so they are macros. */
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf(x, y)
#define __fdividef(a, b) ((float)(a) / (float)(b))
#define __fdiv_rn(a, b) ((float)(a) / (float)(b))
#define __frcp_rn(a) (1.0f / (float)(a))
#define __fsqrt_rn(a) sqrtf(a)
#define __frsqrt_rn(a) ((float)(1.0 / sqrt((double)(a))))
#define __fmaf_rn(a, b, c) fmaf(a, b, c)
#define __fma_rn(a, b, c) fma(a, b, c)
#define __fmul_rn(a, b) ::occ_emu::apart((float)(a) * (float)(b))
#define __fadd_rn(a, b) ::occ_emu::apart((float)(a) + (float)(b))
#define __fsub_rn(a, b) ::occ_emu::apart((float)(a) - (float)(b))
#define __dmul_rn(a, b) ::occ_emu::apart((double)(a) * (double)(b))
#define __dadd_rn(a, b) ::occ_emu::apart((double)(a) + (double)(b))
#define __saturatef(a) fminf(fmaxf(a, 0.0f), 1.0f)
#define rsqrtf(a) (1.0f / sqrtf(a))
#define rsqrt(a) (1.0 / sqrt(a))

namespace occ_emu
{
/* A rounded result that the compiler cannot merge into a fused multiply-add. */
template <class T> static inline T apart(T v)
{
#if defined(__x86_64__)
	__asm__("" : "+x"(v));
#else
	__asm__("" : "+w"(v));
#endif
	return v;
}

template <class To, class From> static inline To bits_as(From v)
{
	To out;
	static_assert(sizeof(To) == sizeof(From), "same size");
	memcpy(&out, &v, sizeof(out));
	return out;
}

static inline long long saturated(double v, double least, double most)
{
	return v != v ? 0 : (long long)(v < least ? least : v > most ? most : v);
}
} // namespace occ_emu

#define __float_as_int(v) ::occ_emu::bits_as<int>((float)(v))
#define __float_as_uint(v) ::occ_emu::bits_as<unsigned>((float)(v))
#define __int_as_float(v) ::occ_emu::bits_as<float>((int)(v))
#define __uint_as_float(v) ::occ_emu::bits_as<float>((unsigned)(v))
#define __double_as_longlong(v) ::occ_emu::bits_as<long long>((double)(v))
#define __longlong_as_double(v) ::occ_emu::bits_as<double>((long long)(v))

/* Conversions saturate, and NaN becomes 0, as on a GPU. */
static inline int __float2int_rn(float v)
{
	return (int)::occ_emu::saturated(nearbyint((double)v), -2147483648.0, 2147483647.0);
}
static inline int __float2int_rz(float v)
{
	return (int)::occ_emu::saturated((double)v, -2147483648.0, 2147483647.0);
}
static inline int __float2int_rd(float v)
{
	return (int)::occ_emu::saturated(floor((double)v), -2147483648.0, 2147483647.0);
}
static inline unsigned __float2uint_rn(float v)
{
	return (unsigned)::occ_emu::saturated(nearbyint((double)v), 0.0, 4294967295.0);
}
static inline unsigned __float2uint_rz(float v)
{
	return (unsigned)::occ_emu::saturated((double)v, 0.0, 4294967295.0);
}
#define __int2float_rn(v) ((float)(int)(v))
#define __uint2float_rn(v) ((float)(unsigned)(v))
#define __double2float_rn(v) ((float)(double)(v))

static inline int __popc(unsigned x)
{
	return __builtin_popcount(x);
}
static inline int __popcll(unsigned long long x)
{
	return __builtin_popcountll(x);
}
static inline int __ffs(int x)
{
	return __builtin_ffs(x);
}
static inline int __ffsll(long long x)
{
	return __builtin_ffsll(x);
}
static inline int __clz(int x)
{
	return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __clzll(long long x)
{
	return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline unsigned __umulhi(unsigned a, unsigned b)
{
	return (unsigned)(((uint64_t)a * b) >> 32);
}
static inline unsigned __brev(unsigned x)
{
	unsigned out = 0;
	for (int i = 0; i < 32; i++)
		out |= (x >> i & 1) << (31 - i);
	return out;
}
static inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned shift)
{
	return (unsigned)((((uint64_t)hi << 32 | lo) << (shift & 31)) >> 32);
}
static inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned shift)
{
	return (unsigned)(((uint64_t)hi << 32 | lo) >> (shift & 31));
}
static inline void __nanosleep(unsigned)
{
}

/* min and max as CUDA has them, without those of std:: that templates would prefer. */
#define OCC_EMU_MIN_MAX(T)                                                                         \
	static inline T min(T a, T b)                                                              \
	{                                                                                          \
		return b < a ? b : a;                                                              \
	}                                                                                          \
	static inline T max(T a, T b)                                                              \
	{                                                                                          \
		return a < b ? b : a;                                                              \
	}
OCC_EMU_MIN_MAX(int)
OCC_EMU_MIN_MAX(unsigned)
OCC_EMU_MIN_MAX(long)
OCC_EMU_MIN_MAX(unsigned long)
OCC_EMU_MIN_MAX(long long)
OCC_EMU_MIN_MAX(unsigned long long)
#undef OCC_EMU_MIN_MAX
static inline float min(float a, float b)
{
	return fminf(a, b);
}
static inline float max(float a, float b)
{
	return fmaxf(a, b);
}
static inline double min(double a, double b)
{
	return fmin(a, b);
}
static inline double max(double a, double b)
{
	return fmax(a, b);
}

#endif
