/* Casts, sums, GELU, rows of a bias and its gradient. All are bound by memory: each thread moves 16
 * bytes of T at a time. */
#include "base/cuda_vec.cuh"

enum { MOST_BLOCKS = 1 << 16 };

/* i of each pack of N that is this thread's */
#define EACH_PACK(i, N, n)                                                                         \
	int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * N;                          \
	i < n;                                                                                     \
	i += (int64_t)gridDim.x * blockDim.x * N

#define LAUNCH_PACKS(d, kernel, N, n, ...)                                                         \
	OCC_LAUNCH(d, kernel, occ_blocks(n, 256 * N, MOST_BLOCKS), 256, 0, n, __VA_ARGS__)

template <int N, class X, class Y> __global__ void k_cast(int64_t n, const X *x, Y *y)
{
	for (EACH_PACK(i, N, n)) {
		occ_vec<X, N> a = occ_get_of<N>(x, i, n);
		occ_vec<Y, N> b;
#pragma unroll
		for (int k = 0; k < N; k++)
			occ_store(b.v, k, occ_load(a.v, k));
		occ_put_of(y, i, n, b);
	}
}

template <class X, class Y> static void cast(struct occ_device *d, int64_t n, const X *x, Y *y)
{
	OCC_WIDE(occ_aligned(x, y), N, float, LAUNCH_PACKS(d, (k_cast<N, X, Y>), N, n, x, y));
}

void occ_cuda_cast(struct occ_device *d, int64_t n, enum occ_type from, const void *d_x,
		   enum occ_type to, void *d_y)
{
	if (n <= 0)
		return;
	if (from == to)
		d->ops->copy(d, d_y, d_x, (size_t)n * occ_type_size(from));
	else if (from == OCC_F32)
		cast(d, n, (const float *)d_x, (__nv_bfloat16 *)d_y);
	else
		cast(d, n, (const __nv_bfloat16 *)d_x, (float *)d_y);
}

template <int N, class T> __global__ void k_add(int64_t n, const T *x, T *y)
{
	for (EACH_PACK(i, N, n)) {
		occ_vec<T, N> a = occ_get_of<N>(x, i, n), b = occ_get_of<N>(y, i, n);
#pragma unroll
		for (int k = 0; k < N; k++)
			occ_store(b.v, k, occ_load(b.v, k) + occ_load(a.v, k));
		occ_put_of(y, i, n, b);
	}
}

void occ_cuda_add(struct occ_device *d, int64_t n, const void *d_x, void *d_y)
{
	if (n > 0)
		OCC_TYPED(d->type, T,
			  OCC_WIDE(occ_aligned(d_x, d_y), N, T,
				   LAUNCH_PACKS(d, (k_add<N, T>), N, n, (const T *)d_x, (T *)d_y)));
}

/* gelu(x) = x s with s = (1 + tanh u) / 2 = 1 / (1 + e^-2u), u = a (x + b x^3): no cancellation in
 * s or 1 - s. With fp32 the exponent takes two floats, for one is off by too much where it is
 * large. bf16 takes the fast exp and reciprocal, which are right to 2^-20 where they count: exact
 * ones would take longer than the memory. */
static constexpr double gelu_a = 0.7978845608028654 /* sqrt(2/pi) */, gelu_b = 0.044715;

struct sigmoid {
	float s, slope; /* ds/d(2u) = s (1 - s) */
};

template <class T> __device__ static inline struct sigmoid gelu_sigmoid(float x)
{
	float e, q;
	if constexpr (sizeof(T) == 4) {
		double v = -2 * gelu_a * fabs((double)x) * (1 + gelu_b * x * x);
		float high = (float)v, low = (float)(v - high);
		e = high < -80 ? expf(high) : expf(high) * (1 + low);
		q = 1 / (1 + e);
	} else {
		e = __expf((float)(-2 * gelu_a) * fabsf(x) * (1 + (float)gelu_b * x * x));
		q = __fdividef(1, 1 + e);
	}
	return {x >= 0 ? q : e * q, e * q * q};
}

template <int N, class T> __global__ void k_gelu_forward(int64_t n, const T *x, T *y)
{
	for (EACH_PACK(i, N, n)) {
		occ_vec<T, N> a = occ_get_of<N>(x, i, n);
#pragma unroll
		for (int k = 0; k < N; k++) {
			float v = occ_load(a.v, k);
			occ_store(a.v, k, v * gelu_sigmoid<T>(v).s);
		}
		occ_put_of(y, i, n, a);
	}
}

void occ_cuda_gelu_forward(struct occ_device *d, int64_t n, const void *d_x, void *d_y)
{
	if (n > 0)
		OCC_TYPED(d->type, T,
			  OCC_WIDE(occ_aligned(d_x, d_y), N, T,
				   LAUNCH_PACKS(d, (k_gelu_forward<N, T>), N, n, (const T *)d_x,
						(T *)d_y)));
}

template <int N, class T> __global__ void k_gelu_backward(int64_t n, const T *x, const T *dy, T *dx)
{
	for (EACH_PACK(i, N, n)) {
		occ_vec<T, N> a = occ_get_of<N>(x, i, n), g = occ_get_of<N>(dy, i, n);
#pragma unroll
		for (int k = 0; k < N; k++) {
			float v = occ_load(a.v, k);
			struct sigmoid q = gelu_sigmoid<T>(v);
			v = fminf(fmaxf(v, -20.0f),
				  20.0f); /* beyond, the slope is 0: not 0 * inf */
			float du = (float)(2 * gelu_a) * (1 + (float)(3 * gelu_b) * v * v);
			occ_store(g.v, k, occ_load(g.v, k) * (q.s + v * q.slope * du));
		}
		occ_put_of(dx, i, n, g);
	}
}

void occ_cuda_gelu_backward(struct occ_device *d, int64_t n, const void *d_x, const void *d_dy,
			    void *d_dx)
{
	if (n > 0)
		OCC_TYPED(d->type, T,
			  OCC_WIDE(occ_aligned(d_x, d_dy, d_dx), N, T,
				   LAUNCH_PACKS(d, (k_gelu_backward<N, T>), N, n, (const T *)d_x,
						(const T *)d_dy, (T *)d_dx)));
}

/* A thread keeps its columns and goes down the rows. */
template <int N, class X, class Y>
__global__ void k_rows(int64_t R, int64_t C, const X *x, Y *y, int64_t ld)
{
	int64_t c = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * N;
	if (c >= C)
		return;
	occ_vec<X, N> a = occ_get<N>(x, c);
	occ_vec<Y, N> b;
#pragma unroll
	for (int k = 0; k < N; k++)
		occ_store(b.v, k, occ_load(a.v, k));
	for (int64_t r = blockIdx.y; r < R; r += gridDim.y)
		occ_put(y, r * ld + c, b);
}

template <class X, class Y>
static void rows(struct occ_device *d, int64_t R, int64_t C, const X *x, Y *y, int64_t ld)
{
	OCC_WIDE(C % 8 == 0 && ld % 8 == 0 && occ_aligned(x, y), N, Y, {
		unsigned nt = occ_threads(C / N);
		dim3 grid((unsigned)((C / N + nt - 1) / nt), occ_blocks(R, 16, 4096));
		OCC_LAUNCH(d, (k_rows<N, X, Y>), grid, nt, 0, R, C, x, y, ld);
	});
}

void occ_cuda_rows(struct occ_device *d, int64_t R, int64_t C, enum occ_type from, const void *d_x,
		   enum occ_type to, void *d_y, int64_t ld)
{
	if (R > 0 && C > 0)
		OCC_TYPED(from, X, OCC_TYPED(to, Y, rows(d, R, C, (const X *)d_x, (Y *)d_y, ld)));
}

/* Sums of columns: a block adds up a share of the rows, 8 at a time; k_fold adds up the blocks. */
template <int N, class T>
__global__ void k_column_sums(int64_t R, int64_t C, const T *x, float *part)
{
	int64_t c = (blockIdx.x * (int64_t)32 + threadIdx.x) * N;
	float sum[N] = {};
	if (c < C)
#pragma unroll 4
		for (int64_t r = blockIdx.y * 8 + threadIdx.y; r < R; r += gridDim.y * 8) {
			occ_vec<T, N> v = occ_get<N>(x, r * C + c);
#pragma unroll
			for (int k = 0; k < N; k++)
				sum[k] += occ_load(v.v, k);
		}
	occ_sum_over_y(sum);
	if (c < C && threadIdx.y == 0)
		occ_put(part, blockIdx.y * C + c, occ_floats(sum));
}

void occ_cuda_bias_backward(struct occ_device *d, int64_t R, int64_t C, const void *d_dy,
			    float *d_db)
{
	if (R <= 0 || C <= 0)
		return;
	OCC_TYPED(d->type, T, {
		int wide = C % (16 / (int)sizeof(T)) == 0 && occ_aligned(d_dy);
		OCC_WIDE(wide, N, T, {
			dim3 grid((unsigned)((C + 32 * N - 1) / (32 * N)), occ_blocks(R, 64, 256));
			float *part =
				(float *)occ_cuda_scratch(d, (size_t)grid.y * C * sizeof(float));
			OCC_LAUNCH(d, (k_column_sums<N, T>), grid, dim3(32, 8), 0, R, C,
				   (const T *)d_dy, part);
			occ_cuda_fold_parts(d, grid.y, 1, C, part, {{d_db}});
		});
	});
}

__global__ void k_fold(int64_t P, int64_t C, const float *part, struct occ_sums sums)
{
	__shared__ double all[8][32];
	int64_t c = blockIdx.x * (int64_t)32 + threadIdx.x;
	float *to = blockIdx.y == 0 ? sums.to[0] : blockIdx.y == 1 ? sums.to[1] : sums.to[2];
	double sum = 0;
	if (to && c < C)
#pragma unroll 8
		for (int64_t p = threadIdx.y; p < P; p += 8)
			sum += part[(p * gridDim.y + blockIdx.y) * C + c];
	all[threadIdx.y][threadIdx.x] = sum;
	__syncthreads();
	if (!to || c >= C || threadIdx.y != 0)
		return;
	for (int y = 1; y < 8; y++)
		sum += all[y][threadIdx.x];
	to[c] = (float)(to[c] + sum);
}

void occ_cuda_fold_parts(struct occ_device *d, int64_t P, int K, int64_t C, const float *d_part,
		   struct occ_sums sums)
{
	OCC_LAUNCH(d, k_fold, dim3((unsigned)((C + 31) / 32), K), dim3(32, 8), 0, P, C, d_part,
		   sums);
}
