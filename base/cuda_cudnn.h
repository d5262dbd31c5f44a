/* Fused causal attention by cuDNN 9, for bf16 without dropout. Shapes, layouts and meaning are
 * those of attention_forward and attention_backward in base/device.h:
 *   d_qkv, d_dqkv (B*T, 3*H*D) bf16; d_out, d_dout (B*T, H*D) bf16; d_lse (B,H,T) fp32, the natural
 *   log of the sum of exp(score). All of them 16-byte aligned.
 *
 * Nothing here dies: what cuDNN cannot do is answered by "no", and the caller takes another way.
 * The first call with a shape asks cuDNN for a plan (half a second); plans and refusals are kept,
 * the last few of them. One handle serves one thread.
 *
 *	int64_t room = occ_cudnn_room(c, a, OCC_CUDNN_FORWARD);
 *	if (room >= 0 && occ_cudnn_forward(c, a, d_qkv, d_out, d_lse, occ_cuda_scratch(d, room)))
 *		return;
 *	... another way
 */
#ifndef OCC_BASE_CUDA_CUDNN_H
#define OCC_BASE_CUDA_CUDNN_H

#include <cuda_runtime_api.h>

#include "base/device.h"

struct occ_cudnn;

enum occ_cudnn_way { OCC_CUDNN_FORWARD, OCC_CUDNN_BACKWARD };

/* For the current GPU; work goes to `s` (borrowed). `repeatable`: 1: the gradient of q is summed
 * in one order, so that a run repeats bit by bit, for 2*B*H*T*T bytes of room; 0: by atomics, for
 * 4*B*H*T*D. NULL where cuDNN does not start or is older than 9.10; the reason is logged (info). */
struct occ_cudnn *occ_cudnn_open(cudaStream_t s, int repeatable);

void occ_cudnn_close(struct occ_cudnn *c); /* NULL is allowed; waits for the stream */

/* Bytes of device memory that a call with this shape needs, or -1: no plan, with the reason in
 * occ_cudnn_words and, once per shape, in the log (info). */
int64_t occ_cudnn_room(struct occ_cudnn *c, const struct occ_attention *a, enum occ_cudnn_way way);

/* 1: enqueued. 0: nothing was done (no plan, or memory that is not aligned). d_room: what
 * occ_cudnn_room asked for, 256-byte aligned, of any content; free again once the stream has come
 * past this call. */
int occ_cudnn_forward(struct occ_cudnn *c, const struct occ_attention *a, const void *d_qkv,
		      void *d_out, float *d_lse, void *d_room);
int occ_cudnn_backward(struct occ_cudnn *c, const struct occ_attention *a, const void *d_qkv,
		       const void *d_out, const float *d_lse, const void *d_dout, void *d_dqkv,
		       void *d_room);

/* How many plans have made room for others so far: a CUDA graph that holds one's kernels is void.
 */
int64_t occ_cudnn_given_up(const struct occ_cudnn *c);

/* Why the last "no"; "" if there was none. Valid until the next call. */
const char *occ_cudnn_words(const struct occ_cudnn *c);

#endif
