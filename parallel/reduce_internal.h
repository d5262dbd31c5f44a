/* What reduce.c (which gradients travel how) and reduce_exchange.c (how compressed ones do) share.
 */
#ifndef OCC_PARALLEL_REDUCE_INTERNAL_H
#define OCC_PARALLEL_REDUCE_INTERNAL_H

#include "parallel/reduce.h"

/* Wires lie one behind the other at 4-byte aligned places. */
static inline size_t padded(size_t bytes)
{
	return (bytes + 3) / 4 * 4;
}

static inline size_t bound_of(const struct occ_reduce_item *it)
{
	return padded(it->stream.codec.ops->bound(&it->stream.codec));
}

/* Elements that all tensors offer in a round. */
static inline int64_t parts(const struct occ_reduce *r, int round)
{
	int64_t n = 0;
	for (int i = 0; i < r->nitems; i++)
		n += r->item[i].stream.codec.ops->part(&r->item[i].stream.codec, round);
	return n;
}

static inline float *gradient(const struct occ_reduce_item *it, float *d_grad)
{
	return d_grad + it->tensor.at;
}

/* Collective over the contributors: the items' gradients become the sums of what all got across.
 * Adds the time spent in codecs to t. */
void occ_reduce_exchange(struct occ_reduce *r, float *d_grad, struct occ_traffic *t);

#endif
