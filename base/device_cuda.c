/* The cuda device: the table, the GPU, memory. Products go to cuBLAS (cuda_gemm.c); the kernels
 * stand in cuda_*.cu. */
#include "base/cuda.h"

#include <string.h>

#include "base/mem.h"

enum { WORKSPACE = 32 << 20 };

void occ_cuda_must(cudaError_t e, const char *what)
{
	if (e != cudaSuccess)
		occ_die(OCC_E_DEVICE, "%s: %s", what, cudaGetErrorString(e));
}

void occ_cuda_blas(cublasStatus_t e, const char *what)
{
	if (e != CUBLAS_STATUS_SUCCESS)
		occ_die(OCC_E_DEVICE, "%s: %s", what, cublasGetStatusString(e));
}

void *occ_cuda_scratch(struct occ_device *d, size_t bytes)
{
	struct occ_cuda *c = occ_cuda_of(d);
	if (bytes > c->room) {
		d->ops->free(d, c->d_scratch);
		c->d_scratch = d->ops->alloc(d, bytes);
		c->room = bytes;
	}
	return c->d_scratch;
}

void occ_cuda_read(struct occ_device *d, void *dst, const void *d_src, size_t bytes)
{
	struct occ_cuda *c = occ_cuda_of(d);
	occ_check(bytes <= OCC_CUDA_PINNED, "%zu bytes of results", bytes);
	d->ops->get(d, c->pinned, d_src, bytes);
	memcpy(dst, c->pinned, bytes);
}

static int refuse(struct occ_err *e, cudaError_t why)
{
	return occ_fail(e, OCC_E_DEVICE, "device \"cuda\": no GPU can be used: %s",
			cudaGetErrorString(why));
}

static int open_blas(struct occ_cuda *c)
{
	return cublasCreate(&c->blas) || cublasSetStream(c->blas, c->stream) ||
	       cublasSetWorkspace(c->blas, c->workspace, WORKSPACE);
}

static void cuda_close(struct occ_device *d)
{
	struct occ_cuda *c = occ_cuda_of(d);
	if (c->blas)
		cublasDestroy(c->blas);
	cudaFree(c->workspace);
	cudaFree(c->d_scratch);
	cudaFreeHost(c->pinned);
	if (c->stream)
		cudaStreamDestroy(c->stream);
	occ_free(c);
	d->impl = NULL;
}

static int cuda_open(struct occ_device *d, struct occ_err *e)
{
	struct occ_cuda *c = occ_alloc(1, sizeof(*c));
	int n = 0;
	d->impl = c;
	cudaError_t why = cudaGetDeviceCount(&n);
	if (!why && n == 0)
		why = cudaErrorNoDevice;
	if (!why)
		why = cudaSetDevice(c->gpu);
	if (!why)
		why = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking);
	if (!why)
		why = cudaMalloc(&c->workspace, WORKSPACE);
	if (!why)
		why = cudaMallocHost(&c->pinned, OCC_CUDA_PINNED);
	if (why)
		refuse(e, why);
	else if (open_blas(c))
		occ_fail(e, OCC_E_DEVICE, "device \"cuda\": cuBLAS does not start on GPU %d",
			 c->gpu);
	else
		return 0;
	cuda_close(d);
	return -1;
}

static void *cuda_alloc(struct occ_device *d, size_t bytes)
{
	void *d_x = NULL;
	size_t left = 0, all = 0;
	(void)d;
	cudaError_t e = cudaMalloc(&d_x, bytes ? bytes : 1);
	if (e != cudaSuccess) {
		cudaMemGetInfo(&left, &all);
		occ_die(OCC_E_DEVICE, "GPU memory: %zu bytes wanted, %zu of %zu left: %s", bytes,
			left, all, cudaGetErrorString(e));
	}
	return d_x;
}

static void cuda_free(struct occ_device *d, void *d_x)
{
	(void)d;
	occ_cuda_must(cudaFree(d_x), "cudaFree");
}

static void move(struct occ_device *d, void *dst, const void *src, size_t bytes,
		 enum cudaMemcpyKind kind)
{
	if (bytes)
		occ_cuda_must(cudaMemcpyAsync(dst, src, bytes, kind, occ_cuda_of(d)->stream),
			      "cudaMemcpyAsync");
}

static void cuda_sync(struct occ_device *d)
{
	occ_cuda_must(cudaStreamSynchronize(occ_cuda_of(d)->stream), "cudaStreamSynchronize");
}

static void cuda_put(struct occ_device *d, void *d_dst, const void *src, size_t bytes)
{
	move(d, d_dst, src, bytes, cudaMemcpyHostToDevice);
}

static void cuda_get(struct occ_device *d, void *dst, const void *d_src, size_t bytes)
{
	move(d, dst, d_src, bytes, cudaMemcpyDeviceToHost);
	cuda_sync(d);
}

static void cuda_copy(struct occ_device *d, void *d_dst, const void *d_src, size_t bytes)
{
	move(d, d_dst, d_src, bytes, cudaMemcpyDeviceToDevice);
}

static void cuda_zero(struct occ_device *d, void *d_dst, size_t bytes)
{
	if (bytes)
		occ_cuda_must(cudaMemsetAsync(d_dst, 0, bytes, occ_cuda_of(d)->stream),
			      "cudaMemsetAsync");
}

const struct occ_device_ops occ_device_cuda = {
	.name = "cuda",
	.host_visible = 0,
	.open = cuda_open,
	.close = cuda_close,
	.alloc = cuda_alloc,
	.free = cuda_free,
	.put = cuda_put,
	.get = cuda_get,
	.copy = cuda_copy,
	.zero = cuda_zero,
	.sync = cuda_sync,
	.cast = occ_cuda_cast,
	.add = occ_cuda_add,
	.gelu_forward = occ_cuda_gelu_forward,
	.gelu_backward = occ_cuda_gelu_backward,
	.gemm = occ_cuda_gemm,
	.bias_backward = occ_cuda_bias_backward,
	.residual_norm_forward = occ_cuda_residual_norm_forward,
	.residual_norm_backward = occ_cuda_residual_norm_backward,
	.attention_forward = occ_cuda_attention_forward,
	.attention_backward = occ_cuda_attention_backward,
	.embed_forward = occ_cuda_embed_forward,
	.embed_backward = occ_cuda_embed_backward,
	.position_forward = occ_cuda_position_forward,
	.position_backward = occ_cuda_position_backward,
	.xent_max = occ_cuda_xent_max,
	.xent_sum = occ_cuda_xent_sum,
	.xent_finish = occ_cuda_xent_finish,
	.adamw = occ_cuda_adamw,
	.sum_squares = occ_cuda_sum_squares,
	.draw = occ_cuda_draw,
	.scale = occ_cuda_scale,
	.accumulate = occ_cuda_accumulate,
	.orthonormalise = occ_cuda_orthonormalise,
	.select = occ_cuda_select,
	.above = occ_cuda_above,
	.pick = occ_cuda_pick,
	.place = occ_cuda_place,
	.quantise = occ_cuda_quantise,
	.dequantise = occ_cuda_dequantise,
	.half_pack = occ_cuda_half_pack,
	.half_unpack = occ_cuda_half_unpack,
	.bound_pack = occ_cuda_bound_pack,
	.bound_unpack = occ_cuda_bound_unpack,
};
