/* Residual, dropout and layer norm, forward and back, each array read and written once.
 *
 * A row belongs to one warp, or to a block of up to 8 where it is long, and stays in its registers
 * as up to 4 packs a thread (P of them); rows beyond 16 KB take kernels of their own. */
#include "base/cuda_vec.cuh"

enum { MOST_PACKS = 4, Y = 4 /* warps of a block with rows of one warp */ };

template <class T> struct forward {
	int64_t R, C;
	const T *x, *delta, *bias, *w, *b;
	struct occ_drop drop;
	T *xo, *y;
	float *mean, *rstd;
};

/* x becomes xo = x + drop(delta + bias) in N columns, as it is stored. */
template <int N, class T>
__device__ static inline void residual(const struct forward<T> &a, int64_t r, int64_t c,
				       const occ_vec<T, N> &delta, occ_vec<T, N> &x)
{
	float f[N];
	occ_vec<T, N> bias;
	if (a.bias)
		bias = occ_get<N>(a.bias, c);
	occ_factors<N>(a.drop, r, c, f);
#pragma unroll
	for (int k = 0; k < N; k++) {
		float v = occ_load(delta.v, k);
		v += a.bias ? occ_load(bias.v, k) : 0;
		occ_store(x.v, k, occ_load(x.v, k) + v * f[k]);
	}
	occ_put(a.xo, r * a.C + c, x);
}

template <int N, class T>
__device__ static inline void normed(const struct forward<T> &a, int64_t r, int64_t c, float mean,
				     float rstd, occ_vec<T, N> x)
{
	occ_vec<T, N> w = occ_get<N>(a.w, c), b = occ_get<N>(a.b, c);
#pragma unroll
	for (int k = 0; k < N; k++) {
		float v = (occ_load(x.v, k) - mean) * rstd;
		occ_store(x.v, k, v * occ_load(w.v, k) + occ_load(b.v, k));
	}
	occ_put(a.y, r * a.C + c, x);
}

/* For loops: p counts the packs of this thread in a row, c is the first column of each. */
#define EACH_OF_ROW(p, c, C)                                                                       \
	int64_t p = 0, c = threadIdx.x * N;                                                        \
	p < P && (c) < C;                                                                          \
	p++, c += blockDim.x * N

template <int N, int P, class T> __global__ void k_norm_forward(struct forward<T> a)
{
	int64_t r = blockIdx.x * (int64_t)blockDim.y + threadIdx.y;
	occ_vec<T, N> x[P], delta[P];
	float sum[1] = {0}, squares[1] = {0};
	if (r >= a.R) /* a whole warp, which shares its block with none it waits for */
		return;
#pragma unroll
	for (EACH_OF_ROW(p, c, a.C)) {
		x[p] = occ_get<N>(a.x, r * a.C + c);
		if (a.delta)
			delta[p] = occ_get<N>(a.delta, r * a.C + c);
	}
#pragma unroll
	for (EACH_OF_ROW(p, c, a.C)) {
		if (a.delta)
			residual(a, r, c, delta[p], x[p]);
#pragma unroll
		for (int k = 0; k < N; k++)
			sum[0] += occ_load(x[p].v, k);
	}
	if (!a.w)
		return;
	occ_row_sum(sum);
	float mean = sum[0] / a.C;
#pragma unroll
	for (EACH_OF_ROW(p, c, a.C))
#pragma unroll
		for (int k = 0; k < N; k++) {
			float v = occ_load(x[p].v, k) - mean;
			squares[0] += v * v;
		}
	occ_row_sum(squares);
	float rstd = rsqrtf(squares[0] / a.C + 1e-5f);
#pragma unroll
	for (EACH_OF_ROW(p, c, a.C))
		normed(a, r, c, mean, rstd, x[p]);
	if (threadIdx.x == 0) {
		a.mean[r] = mean;
		a.rstd[r] = rstd;
	}
}

/* The same for rows of any length: what this thread needs of xo again it reads again. */
template <int N, class T> __global__ void k_norm_forward_long(struct forward<T> a)
{
	int64_t r = blockIdx.x, first = threadIdx.x * N, step = blockDim.x * N;
	float sum[1] = {0}, squares[1] = {0};
	for (int64_t c = first; c < a.C; c += step) {
		occ_vec<T, N> x = occ_get<N>(a.x, r * a.C + c);
		if (a.delta)
			residual(a, r, c, occ_get<N>(a.delta, r * a.C + c), x);
		for (int k = 0; k < N; k++)
			sum[0] += occ_load(x.v, k);
	}
	if (!a.w)
		return;
	occ_row_sum(sum);
	const T *from = (a.delta ? a.xo : a.x) + r * a.C;
	float mean = sum[0] / a.C;
	for (int64_t c = first; c < a.C; c += step) {
		occ_vec<T, N> x = occ_get<N>(from, c);
		for (int k = 0; k < N; k++) {
			float v = occ_load(x.v, k) - mean;
			squares[0] += v * v;
		}
	}
	occ_row_sum(squares);
	float rstd = rsqrtf(squares[0] / a.C + 1e-5f);
	for (int64_t c = first; c < a.C; c += step)
		normed(a, r, c, mean, rstd, occ_get<N>(from, c));
	if (threadIdx.x == 0) {
		a.mean[r] = mean;
		a.rstd[r] = rstd;
	}
}

/* Threads of a row of `packs`; more than 256: too long to be held in registers. */
static unsigned threads_of_row(int64_t packs)
{
	int64_t nt = (packs + 32 * MOST_PACKS - 1) / (32 * MOST_PACKS) * 32;
	return nt > 256 ? 512 : (unsigned)nt;
}

/* The statements with P as the packs of a thread. */
#define WITH_P(packs, nt, P, ...)                                                                  \
	do {                                                                                       \
		if ((packs) <= 2 * (nt)) {                                                         \
			constexpr int P = 2;                                                       \
			__VA_ARGS__;                                                               \
		} else if ((packs) <= 3 * (nt)) {                                                  \
			constexpr int P = 3;                                                       \
			__VA_ARGS__;                                                               \
		} else {                                                                           \
			constexpr int P = MOST_PACKS;                                              \
			__VA_ARGS__;                                                               \
		}                                                                                  \
	} while (0)

template <int N, class T> static void norm_forward(struct occ_device *d, const struct forward<T> &a)
{
	int64_t packs = a.C / N;
	unsigned nt = threads_of_row(packs), ny = nt == 32 ? Y : 1;
	if (nt > 256)
		OCC_LAUNCH(d, (k_norm_forward_long<N, T>), (unsigned)a.R, 256, 0, a);
	else
		WITH_P(packs, nt, P,
		       OCC_LAUNCH(d, (k_norm_forward<N, P, T>), (unsigned)((a.R + ny - 1) / ny),
				  dim3(nt, ny), 0, a));
}

void occ_cuda_residual_norm_forward(struct occ_device *d, int64_t R, int64_t C, const void *d_x,
				    const void *d_delta, const void *d_bias,
				    const struct occ_drop *drop, const void *d_w, const void *d_b,
				    void *d_xo, void *d_y, float *d_mean, float *d_rstd)
{
	struct occ_drop dr = occ_drop_or_none(drop);
	if (R <= 0 || C <= 0 || (!d_delta && !d_w))
		return;
	OCC_TYPED(d->type, T, {
		struct forward<T> a = {
			R, C, (const T *)d_x, (const T *)d_delta, (const T *)d_bias, (const T *)d_w,
				(const T *)d_b, dr, (T *)d_xo, (T *)d_y, d_mean, d_rstd
		};
		int wide = C % (16 / (int)sizeof(T)) == 0 && occ_drop_wide(dr) &&
			   occ_aligned(d_x, d_delta, d_bias, d_w, d_b, d_xo, d_y);
		OCC_WIDE(wide, N, T, (norm_forward<N, T>(d, a)));
	});
}

template <class T> struct backward {
	int64_t R, C;
	const T *dy, *dres, *x, *w;
	const float *mean, *rstd;
	struct occ_drop drop;
	T *dx, *ddelta;
	float *part;  /* (blocks, 3, C): shares of dw, db and dbias */
	float *means; /* (R, 2): of g = dy * w and of g * xhat; long rows only */
};

enum { DW, DB, DBIAS };

/* What a row adds to the two means in N columns. */
template <int N, class T>
__device__ static inline void add_means(const struct backward<T> &a, int64_t c,
					const occ_vec<T, N> &dy, const occ_vec<T, N> &x, float mean,
					float rstd, float (&sum)[2])
{
	occ_vec<T, N> w = occ_get<N>(a.w, c);
#pragma unroll
	for (int k = 0; k < N; k++) {
		float g = occ_load(dy.v, k) * occ_load(w.v, k);
		sum[0] += g;
		sum[1] += g * ((occ_load(x.v, k) - mean) * rstd);
	}
}

/* dx, ddelta and the columns' sums in N columns; dres becomes dx as it is stored, then ddelta. m:
 * the row's two means. */
template <int N, class T>
__device__ static inline void back(const struct backward<T> &a, int64_t r, int64_t c,
				   const occ_vec<T, N> &dy, const occ_vec<T, N> &x,
				   occ_vec<T, N> dres, float mean, float rstd, const float (&m)[2],
				   float (&sum)[3][N])
{
	occ_vec<T, N> w;
	if (a.w)
		w = occ_get<N>(a.w, c);
#pragma unroll
	for (int k = 0; k < N; k++) {
		float v = a.dres ? occ_load(dres.v, k) : 0;
		if (a.w) {
			float xhat = (occ_load(x.v, k) - mean) * rstd, g = occ_load(dy.v, k);
			v += (g * occ_load(w.v, k) - m[0] - xhat * m[1]) * rstd;
			sum[DW][k] += g * xhat;
			sum[DB][k] += g;
		}
		occ_store(dres.v, k, v);
	}
	occ_put(a.dx, r * a.C + c, dres);
	if (!a.ddelta)
		return;
	float f[N];
	occ_factors<N>(a.drop, r, c, f);
#pragma unroll
	for (int k = 0; k < N; k++) {
		occ_store(dres.v, k, occ_load(dres.v, k) * f[k]);
		sum[DBIAS][k] += occ_load(dres.v, k);
	}
	occ_put(a.ddelta, r * a.C + c, dres);
}

/* A block's share of the columns' sums; every thread calls it. */
template <int N, class T>
__device__ static inline void put_part(const struct backward<T> &a, int64_t block, int64_t c,
				       float (&sum)[3][N])
{
#pragma unroll
	for (int s = 0; s < 3; s++) {
		occ_sum_over_y(sum[s]);
		if (c < a.C && threadIdx.y == 0)
			occ_put(a.part, (block * 3 + s) * a.C + c, occ_floats(sum[s]));
	}
}

/* Warps (or a block) that go over rows, and keep the sums of their columns in registers. Only with
 * a norm. */
template <int N, int P, class T>
__global__ void __launch_bounds__(256, 1) k_norm_backward(struct backward<T> a)
{
	float sum[P][3][N] = {};
	for (int64_t r = blockIdx.x * (int64_t)blockDim.y + threadIdx.y; r < a.R;
	     r += gridDim.x * (int64_t)blockDim.y) {
		occ_vec<T, N> dy[P], x[P], dres[P];
		float mean = a.mean[r], rstd = a.rstd[r], m[2] = {0, 0};
#pragma unroll
		for (EACH_OF_ROW(p, c, a.C)) {
			dy[p] = occ_get<N>(a.dy, r * a.C + c);
			x[p] = occ_get<N>(a.x, r * a.C + c);
			if (a.dres)
				dres[p] = occ_get<N>(a.dres, r * a.C + c);
		}
#pragma unroll
		for (EACH_OF_ROW(p, c, a.C))
			add_means(a, c, dy[p], x[p], mean, rstd, m);
		occ_row_sum(m);
		m[0] /= a.C;
		m[1] /= a.C;
#pragma unroll
		for (EACH_OF_ROW(p, c, a.C))
			back(a, r, c, dy[p], x[p], dres[p], mean, rstd, m, sum[p]);
	}
#pragma unroll
	for (int p = 0; p < P; p++)
		put_part(a, blockIdx.x, (p * blockDim.x + threadIdx.x) * (int64_t)N, sum[p]);
}

/* Long rows: their means first (a block each), then columns, which is also the way without a norm:
 * a thread keeps N columns and goes down the rows. */
template <int N, class T> __global__ void k_norm_means(struct backward<T> a)
{
	int64_t r = blockIdx.x, at = r * a.C;
	float m[2] = {0, 0};
	for (int64_t c = threadIdx.x * N; c < a.C; c += blockDim.x * N)
		add_means(a, c, occ_get<N>(a.dy, at + c), occ_get<N>(a.x, at + c), a.mean[r],
			  a.rstd[r], m);
	occ_row_sum(m);
	if (threadIdx.x < 2)
		a.means[2 * r + threadIdx.x] = m[threadIdx.x] / a.C;
}

template <int N, class T> __global__ void k_norm_backward_columns(struct backward<T> a)
{
	int64_t c = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * N;
	float sum[3][N] = {};
	for (int64_t r = blockIdx.y * blockDim.y + threadIdx.y; c < a.C && r < a.R;
	     r += gridDim.y * blockDim.y) {
		occ_vec<T, N> dy, x, dres;
		float mean = 0, rstd = 0, m[2] = {0, 0};
		if (a.dres)
			dres = occ_get<N>(a.dres, r * a.C + c);
		if (a.w) {
			dy = occ_get<N>(a.dy, r * a.C + c);
			x = occ_get<N>(a.x, r * a.C + c);
			mean = a.mean[r];
			rstd = a.rstd[r];
			m[0] = a.means[2 * r];
			m[1] = a.means[2 * r + 1];
		}
		back(a, r, c, dy, x, dres, mean, rstd, m, sum);
	}
	put_part(a, blockIdx.y, c, sum);
}

/* How many blocks share the rows depends on shapes only: enough to fill a GPU of today, few enough
 * that their parts cost little. */
template <int N, class T>
static void norm_backward(struct occ_device *d, struct backward<T> a, struct occ_sums sums)
{
	enum { MOST_WARPS = 1056, COLUMN_BLOCKS = 1024 };
	int64_t packs = a.C / N, across = (packs + 31) / 32;
	unsigned nt = threads_of_row(packs), ny = nt == 32 ? Y : 1;
	int rows = a.w && nt <= 256;
	unsigned P = rows ? occ_blocks(a.R, 4 * ny, MOST_WARPS * 32 / (nt * ny))
			  : occ_blocks(a.R, 64, COLUMN_BLOCKS / across + 1);
	a.part = (float *)occ_cuda_scratch(d, (size_t)(3 * P * a.C + 2 * a.R) * sizeof(float));
	a.means = a.part + 3 * P * a.C;
	if (rows) {
		WITH_P(packs, nt, M,
		       OCC_LAUNCH(d, (k_norm_backward<N, M, T>), P, dim3(nt, ny), 0, a));
	} else {
		if (a.w)
			OCC_LAUNCH(d, (k_norm_means<N, T>), (unsigned)a.R, 256, 0, a);
		OCC_LAUNCH(d, (k_norm_backward_columns<N, T>), dim3((unsigned)across, P),
			   dim3(32, 8), 0, a);
	}
	if (sums.to[DW] || sums.to[DBIAS])
		occ_cuda_fold_parts(d, P, 3, a.C, a.part, sums);
}

void occ_cuda_residual_norm_backward(struct occ_device *d, int64_t R, int64_t C, const void *d_dy,
				     const void *d_dres, const void *d_x, const void *d_w,
				     const float *d_mean, const float *d_rstd,
				     const struct occ_drop *drop, void *d_dx, void *d_ddelta,
				     float *d_dw, float *d_db, float *d_dbias)
{
	struct occ_drop dr = occ_drop_or_none(drop);
	struct occ_sums sums = {{d_w ? d_dw : NULL, d_w ? d_db : NULL, d_ddelta ? d_dbias : NULL}};
	if (R <= 0 || C <= 0)
		return;
	OCC_TYPED(d->type, T, {
		struct backward<T> a = {
			R, C, (const T *)d_dy, (const T *)d_dres, (const T *)d_x,
				(const T *)d_w, d_mean, d_rstd, dr, (T *)d_dx,
				(T *)d_ddelta, NULL, NULL
		};
		int wide = C % (16 / (int)sizeof(T)) == 0 && occ_drop_wide(dr) &&
			   occ_aligned(d_dy, d_dres, d_x, d_w, d_dx, d_ddelta);
		OCC_WIDE(wide, N, T, (norm_backward<N, T>(d, a, sums)));
	});
}
