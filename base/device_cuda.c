/* The cuda device: the table, the GPU, memory. Products go to cuBLAS (cuda_gemm.c); the kernels
 * stand in cuda_*.cu. */
#include "base/cuda.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/cuda_cudnn.h"
#include "base/cuda_lt.h"
#include "base/log.h"
#include "base/mem.h"

enum { SPIN_MS = 1, NAP_NS = 20 * 1000 }; /* a wait yields at first, then naps */

void occ_cuda_must(cudaError_t e, const char *what)
{
	if (e != cudaSuccess && !occ_cuda_excused(what, cudaGetErrorString(e)))
		occ_die(OCC_E_DEVICE, "%s: %s", what, cudaGetErrorString(e));
}

void occ_cuda_blas(cublasStatus_t e, const char *what)
{
	if (e != CUBLAS_STATUS_SUCCESS && !occ_cuda_excused(what, cublasGetStatusString(e)))
		occ_die(OCC_E_DEVICE, "%s: %s", what, cublasGetStatusString(e));
}

void *occ_cuda_scratch(struct occ_device *d, size_t bytes)
{
	struct occ_cuda_queue *q = occ_cuda_of(d)->now;
	if (bytes > q->room && !occ_cuda_excused("scratch", "it would have to grow")) {
		d->ops->free(d, q->d_scratch);
		q->d_scratch = d->ops->alloc(d, bytes);
		q->room = bytes;
		q->grown++;
	}
	return q->d_scratch;
}

void occ_cuda_read(struct occ_device *d, void *dst, const void *d_src, size_t bytes)
{
	struct occ_cuda *c = occ_cuda_of(d);
	occ_check(bytes <= OCC_CUDA_PINNED, "%zu bytes of results", bytes);
	d->ops->get(d, c->pinned, d_src, bytes);
	memcpy(dst, c->pinned, bytes);
}

static int refuse(struct occ_err *e, const char *what, cudaError_t why)
{
	return occ_fail(e, OCC_E_DEVICE, "device \"cuda\": no GPU can be used: %s: %s", what,
			cudaGetErrorString(why));
}

static void close_queue(struct occ_cuda_queue *q)
{
	occ_cuda_pulse_close(&q->pulse);
	if (q->blas)
		cublasDestroy(q->blas);
	if (q->stream) {
		cudaStreamSynchronize(q->stream);
		cudaStreamDestroy(q->stream);
	}
	cudaFree(q->workspace);
	cudaFree(q->d_scratch);
}

static void cuda_close(struct occ_device *d)
{
	struct occ_cuda *c = occ_cuda_of(d);
	if (c->recorded)
		occ_log(OCC_LOG_INFO, "CUDA graphs: %lld recorded, launched %lld times",
			(long long)c->recorded, (long long)c->launched);
	occ_cudnn_close(c->cudnn);
	occ_cuda_lt_close(c->lt);
	for (int i = 0; i < OCC_NQUEUES; i++)
		close_queue(&c->queue[i]);
	if (c->memory)
		cudaStreamDestroy(c->memory);
	cudaFreeHost(c->pinned);
	occ_free(c);
	d->impl = NULL;
}

cudaError_t occ_cuda_stream_open(cudaStream_t *s, int urgent)
{
	int least = 0, most = 0;
	cudaError_t e = cudaDeviceGetStreamPriorityRange(&least, &most);
	return e ? e
		 : cudaStreamCreateWithPriority(s, cudaStreamNonBlocking, urgent ? most : least);
}

static int open_queue(struct occ_cuda_queue *q, int urgent, struct occ_err *e)
{
	cudaError_t why = occ_cuda_stream_open(&q->stream, urgent);
	if (why)
		return refuse(e, "a stream", why);
	if ((why = cudaMalloc(&q->workspace, OCC_CUDA_WORKSPACE)))
		return refuse(e, "its memory", why);
	if (cublasCreate(&q->blas) || cublasSetStream(q->blas, q->stream) ||
	    cublasSetMathMode(q->blas, CUBLAS_DEFAULT_MATH |
					       CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION) ||
	    cublasSetWorkspace(q->blas, q->workspace, OCC_CUDA_WORKSPACE))
		return occ_fail(e, OCC_E_DEVICE, "device \"cuda\": cuBLAS does not start");
	return 0;
}

/* As nvidia-smi writes it. */
static void name_unit(struct occ_device *d)
{
	struct cudaDeviceProp p;
	size_t n = 0;
	occ_cuda_must(cudaGetDeviceProperties(&p, occ_cuda_of(d)->gpu), "cudaGetDeviceProperties");
	n += (size_t)snprintf(d->unit, sizeof(d->unit), "GPU-");
	for (int i = 0; i < 16; i++)
		n += (size_t)snprintf(d->unit + n, sizeof(d->unit) - n, "%s%02x",
				      i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
				      (unsigned char)p.uuid.bytes[i]);
}

/* The pool keeps what is given back, and makes no queue wait for another. */
static cudaError_t open_pool(struct occ_cuda *c)
{
	cudaMemPool_t pool;
	uint64_t keep = UINT64_MAX;
	int no = 0;
	cudaError_t e = cudaDeviceGetDefaultMemPool(&pool, c->gpu);
	if (!e)
		e = cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);
	if (!e)
		e = cudaMemPoolSetAttribute(pool, cudaMemPoolReuseAllowInternalDependencies, &no);
	return e ? e : cudaStreamCreateWithFlags(&c->memory, cudaStreamNonBlocking);
}

static int open_gpu(struct occ_cuda *c, struct occ_err *e)
{
	int n = 0, failed = 0;
	cudaError_t why = cudaGetDeviceCount(&n);
	if (!why && n == 0)
		why = cudaErrorNoDevice;
	if (!why)
		why = cudaSetDevice(c->gpu %= n);
	if (why)
		return refuse(e, "CUDA", why);
	if ((why = cudaMallocHost(&c->pinned, OCC_CUDA_PINNED)))
		return refuse(e, "pinned host memory", why);
	if ((why = open_pool(c)))
		return refuse(e, "its memory pool", why);
	for (int i = 0; i < OCC_NQUEUES && !failed; i++)
		failed = open_queue(&c->queue[i], i != OCC_COMPUTE, e);
	return failed;
}

/* Streams that share one of the GPU's queues wait for each other: with the usual 8, let alone the 1
 * that is set for Megatron-LM, a receive that waits for its sender could hold up what the sender
 * waits for. Read when CUDA starts. */
static void ask_for_queues(void)
{
	const char *name = "CUDA_DEVICE_MAX_CONNECTIONS", *x = getenv(name);
	if (x && atoi(x) < 32)
		occ_log(OCC_LOG_INFO, "%s: 32 instead of %s", name, x);
	if (!x || atoi(x) < 32)
		setenv(name, "32", 1);
}

/* Ways that the environment chooses; the first is taken where it says nothing. */
static const struct {
	const char *name, *ways[2];
} switches[] = {
	{"OCC_ATTENTION", {"cudnn", "plain"}},
	{"OCC_BIAS", {"fused", "plain"}},
	{"OCC_GELU", {"apart", "fused"}},
	{"OCC_GRAPHS", {"off", "on"}},
};
enum { NSWITCHES = sizeof(switches) / sizeof(switches[0]) };

int occ_cuda_asked(const char *name, const char *way)
{
	const char *x = getenv(name);
	return x && !strcmp(x, way);
}

static int check_switches(struct occ_err *e)
{
	for (int i = 0; i < NSWITCHES; i++) {
		const char *name = switches[i].name, *const *ways = switches[i].ways;
		const char *x = getenv(name);
		if (x && *x && !occ_cuda_asked(name, ways[0]) && !occ_cuda_asked(name, ways[1]))
			return occ_fail(e, OCC_E_CONFIG, "%s=%s in the environment: %s or %s", name,
					x, ways[0], ways[1]);
	}
	return 0;
}

static int cuda_open(struct occ_device *d, struct occ_err *e)
{
	if (check_switches(e))
		return -1;
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, ask_for_queues);
	struct occ_cuda *c = occ_alloc(1, sizeof(*c));
	c->gpu = d->number;
	c->now = &c->queue[OCC_COMPUTE];
	d->impl = c;
	if (!open_gpu(c, e)) {
		name_unit(d);
		return 0;
	}
	cuda_close(d);
	return -1;
}

static void cuda_queue(struct occ_device *d, enum occ_queue q)
{
	occ_cuda_of(d)->now = &occ_cuda_of(d)->queue[q];
}

static void *cuda_mark_open(struct occ_device *d)
{
	cudaEvent_t m;
	(void)d;
	occ_cuda_must(cudaEventCreateWithFlags(&m, cudaEventDisableTiming),
		      "cudaEventCreateWithFlags");
	return m;
}

static void cuda_mark_close(struct occ_device *d, void *m)
{
	(void)d;
	if (m)
		occ_cuda_must(cudaEventDestroy(m), "cudaEventDestroy");
}

static void cuda_mark(struct occ_device *d, void *m)
{
	occ_cuda_must(cudaEventRecord(m, occ_cuda_stream(d)), "cudaEventRecord");
}

static void cuda_after(struct occ_device *d, void *m)
{
	if (m)
		occ_cuda_must(cudaStreamWaitEvent(occ_cuda_stream(d), m, 0), "cudaStreamWaitEvent");
}

static cudaError_t ask_pool(struct occ_cuda *c, size_t bytes, void **d_x)
{
	cudaError_t e = cudaMallocAsync(d_x, bytes ? bytes : 1, c->memory);
	return e ? e : cudaStreamSynchronize(c->memory);
}

/* The pool gives up what it keeps in pieces that do not fit. What the current queue has freed it
 * has only once that is through, which may need another rank where lanes are. */
static void trim_pool(struct occ_device *d)
{
	struct occ_cuda *c = occ_cuda_of(d);
	cudaMemPool_t pool;
	(void)cudaGetLastError();
	if (!d->watch)
		occ_cuda_must(cudaStreamSynchronize(occ_cuda_stream(d)), "cudaStreamSynchronize");
	occ_cuda_must(cudaDeviceGetDefaultMemPool(&pool, c->gpu), "cudaDeviceGetDefaultMemPool");
	occ_cuda_must(cudaMemPoolTrimTo(pool, 0), "cudaMemPoolTrimTo");
}

/* By the pool and in the order of queues: cudaMalloc and cudaFree may wait for the whole GPU, also
 * for a queue that waits for another rank, which may be waiting for this one. */
static void *cuda_alloc(struct occ_device *d, size_t bytes)
{
	struct occ_cuda *c = occ_cuda_of(d);
	void *d_x = NULL;
	size_t left = 0, all = 0;
	cudaError_t e = ask_pool(c, bytes, &d_x);
	if (e == cudaErrorMemoryAllocation) {
		trim_pool(d);
		e = ask_pool(c, bytes, &d_x);
	}
	if (e == cudaErrorMemoryAllocation) {
		cudaMemGetInfo(&left, &all);
		occ_die(OCC_E_DEVICE, "GPU memory: %zu bytes wanted, %zu of %zu left: %s", bytes,
			left, all, cudaGetErrorString(e));
	}
	occ_cuda_must(e, "cudaMallocAsync"); /* what was enqueued before may have failed */
	return d_x;
}

/* Once the current queue is done with it. */
static void cuda_free(struct occ_device *d, void *d_x)
{
	if (d_x)
		occ_cuda_must(cudaFreeAsync(d_x, occ_cuda_stream(d)), "cudaFreeAsync");
}

static void *cuda_alloc_host(struct occ_device *d, size_t bytes)
{
	void *x = NULL;
	(void)d;
	cudaError_t e = cudaMallocHost(&x, bytes ? bytes : 1);
	if (e != cudaSuccess)
		occ_die(OCC_E_DEVICE, "%zu bytes of pinned host memory: %s", bytes,
			cudaGetErrorString(e));
	return x;
}

static void cuda_free_host(struct occ_device *d, void *x)
{
	(void)d;
	occ_cuda_must(cudaFreeHost(x), "cudaFreeHost");
}

static void move(struct occ_device *d, void *dst, const void *src, size_t bytes,
		 enum cudaMemcpyKind kind)
{
	if (bytes)
		occ_cuda_must(cudaMemcpyAsync(dst, src, bytes, kind, occ_cuda_stream(d)),
			      "cudaMemcpyAsync");
}

static void watched_sync(struct occ_device *d)
{
	double last = occ_clock_ms(), waited = 0;
	cudaError_t e;
	while ((e = cudaStreamQuery(occ_cuda_stream(d))) == cudaErrorNotReady) {
		double now = occ_clock_ms();
		waited += now - last > 1e3 ? 0 : now - last; /* this process was stopped */
		last = now;
		waited = occ_cuda_moved(occ_cuda_of(d)) ? 0 : waited;
		for (struct occ_watch *w = d->watch; w; w = w->next)
			w->look(w->self, waited);
		if (waited > SPIN_MS)
			nanosleep(&(struct timespec){0, NAP_NS}, NULL);
		else
			sched_yield();
	}
	occ_cuda_must(e, "cudaStreamQuery");
	occ_cuda_rested(occ_cuda_of(d));
	(void)cudaGetLastError(); /* "not ready" is remembered as if it were an error */
}

static void cuda_sync(struct occ_device *d)
{
	if (d->watch)
		watched_sync(d);
	else
		occ_cuda_must(cudaStreamSynchronize(occ_cuda_stream(d)), "cudaStreamSynchronize");
}

static void cuda_put(struct occ_device *d, void *d_dst, const void *src, size_t bytes)
{
	move(d, d_dst, src, bytes, cudaMemcpyHostToDevice);
}

/* A copy to memory that is not pinned waits inside CUDA, where nobody looks after the lanes. */
static void cuda_get(struct occ_device *d, void *dst, const void *d_src, size_t bytes)
{
	if (d->watch)
		watched_sync(d);
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
		occ_cuda_must(cudaMemsetAsync(d_dst, 0, bytes, occ_cuda_stream(d)),
			      "cudaMemsetAsync");
}

const struct occ_device_ops occ_device_cuda = {
	.name = "cuda",
	.host_visible = 0,
	.wide = 1 << 30,
	.open = cuda_open,
	.close = cuda_close,
	.alloc = cuda_alloc,
	.free = cuda_free,
	.alloc_host = cuda_alloc_host,
	.free_host = cuda_free_host,
	.put = cuda_put,
	.get = cuda_get,
	.copy = cuda_copy,
	.zero = cuda_zero,
	.sync = cuda_sync,
	.queue = cuda_queue,
	.mark_open = cuda_mark_open,
	.mark_close = cuda_mark_close,
	.mark = cuda_mark,
	.after = cuda_after,
	.repeat_open = occ_cuda_repeat_open,
	.repeat_close = occ_cuda_repeat_close,
	.repeat = occ_cuda_repeat,
	.cast = occ_cuda_cast,
	.add = occ_cuda_add,
	.gelu_forward = occ_cuda_gelu_forward,
	.gelu_backward = occ_cuda_gelu_backward,
	.gemm = occ_cuda_gemm,
	.gemm_gelu = occ_cuda_gemm_gelu,
	.gemm_gelu_backward = occ_cuda_gemm_gelu_backward,
	.bias_backward = occ_cuda_bias_backward,
	.residual_norm_forward = occ_cuda_residual_norm_forward,
	.residual_norm_backward = occ_cuda_residual_norm_backward,
	.attention_forward = occ_cuda_attention_forward,
	.attention_backward = occ_cuda_attention_backward,
	.embed_forward = occ_cuda_embed_forward,
	.embed_backward = occ_cuda_embed_backward,
	.position_forward = occ_cuda_position_forward,
	.position_backward = occ_cuda_position_backward,
	.xent_stats = occ_cuda_xent_stats,
	.xent_rescale = occ_cuda_xent_rescale,
	.xent_finish = occ_cuda_xent_finish,
	.adamw = occ_cuda_adamw,
	.sum_squares = occ_cuda_sum_squares,
	.piece_squares = occ_cuda_piece_squares,
	.draw = occ_cuda_draw,
	.scale = occ_cuda_scale,
	.accumulate = occ_cuda_accumulate,
	.fold = occ_cuda_fold,
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
