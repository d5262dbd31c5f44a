/* Which gradients travel how, and the order of the sums. What a codec does stays behind its
 * stream. */
#include "parallel/reduce_internal.h"

#include <string.h>

#include "base/mem.h"

enum {
	PIECE_BYTES = 32 << 20,  /* staged at once by dense sums */
	BUCKET_BYTES = 25 << 20, /* summed at once, dense */
	BATCH_BYTES = 4 << 20,   /* wires gathered at once; a longer one goes alone */
	WINDOW = 10              /* steps from one choice of the rank to the next */
};

static const struct occ_site *site(const struct occ_reduce *r)
{
	return &r->policy->site[OCC_DP];
}

/* Contributors of a compressed sum. */
static int contributors(const struct occ_reduce *r)
{
	return r->policy->scope == OCC_SCOPE_ALL ? r->topo->layout.data : r->topo->dp_nodes;
}

struct occ_route occ_reduce_route(const struct occ_reduce *r, const struct occ_tensor *t,
				  int64_t step)
{
	struct occ_transfer x = {
		.kind = OCC_DP,
		.stage = r->topo->place.pp,
		.peers = contributors(r),
		.inter_node = r->topo->dp_nodes > 1,
		.step = step,
		.n = t->n,
		.m = t->m,
		.type = OCC_F32,
	};
	if (t->embedding && r->policy->fused)
		return (struct occ_route){NULL, "fused embedding synchronisation"};
	if (t->replicated && r->topo->tp_differ && r->policy->scope != OCC_SCOPE_ALL)
		return (struct occ_route){NULL, "tensor ranks that share it see other nodes"};
	return occ_route(r->policy, &x);
}

static void open_item(struct occ_reduce *r, const struct occ_tensor *t)
{
	struct occ_reduce_item *it = &r->item[r->nitems++];
	struct occ_stream_conf conf = {
		.knobs = site(r)->knobs,
		.feedback = site(r)->feedback,
		.undo = r->policy->undo,
		.key = r->policy->key,
		.id = t->id,
	};
	it->tensor = *t;
	if (r->contributes)
		occ_stream_init(&it->stream, r->dev, &conf, t->n, t->m, OCC_F32);
	it->stream.measure = conf.knobs.adaptive;
}

static void open_buffers(struct occ_reduce *r)
{
	const struct occ_codec_ops *c = site(r)->knobs.codec;
	if (!r->contributes || !r->nitems)
		return;
	if (c->rounds) {
		int64_t p = parts(r, 0), q = parts(r, 1);
		r->d_part =
			r->dev->ops->alloc(r->dev, (size_t)(p > q ? p : q) * sizeof(*r->d_part));
		return;
	}
	r->wire_bytes = BATCH_BYTES;
	for (int i = 0; i < r->nitems; i++)
		if (bound_of(&r->item[i]) > r->wire_bytes)
			r->wire_bytes = bound_of(&r->item[i]);
	r->d_wire = r->dev->ops->alloc(r->dev, r->wire_bytes);
	size_t K = (size_t)contributors(r);
	if (r->leaders.lane)
		r->wire = r->dev->ops->alloc(r->dev, occ_size_mul(K, r->wire_bytes));
	else
		r->wire = r->dev->ops->alloc_host(
			r->dev, occ_size_mul(K, r->dev->ops->dry ? 0 : r->wire_bytes));
	r->length = occ_alloc(K * (size_t)r->nitems, sizeof(*r->length));
	r->bytes = occ_alloc(K, sizeof(*r->bytes));
	r->at = occ_alloc(K, sizeof(*r->at));
}

void occ_reduce_init(struct occ_reduce *r, struct occ_topo *topo, struct occ_device *dev,
		     const struct occ_policy *policy, const struct occ_tensor *tensor, int ntensors)
{
	int flat = policy->scope == OCC_SCOPE_ALL;
	struct occ_comm *leaders = flat ? topo->dp : topo->dp_leaders;
	*r = (struct occ_reduce){.topo = topo, .dev = dev, .policy = policy, .tensor = tensor};
	r->ntensors = ntensors;
	r->contributes = leaders != NULL;
	occ_group_init(&r->dp, topo->dp, dev, PIECE_BYTES);
	if (topo->embed)
		occ_group_init(&r->embed, topo->embed, dev, PIECE_BYTES);
	r->item = occ_alloc((size_t)ntensors, sizeof(*r->item));
	for (int i = 0; i < ntensors; i++)
		if (occ_reduce_route(r, &tensor[i], INT64_MAX).codec)
			open_item(r, &tensor[i]);
	if (r->nitems && !flat) /* a lane of many ranks takes much of a GPU's memory */
		occ_group_init(&r->node, topo->dp_node, dev, PIECE_BYTES);
	if (r->nitems && leaders)
		occ_group_init(&r->leaders, leaders, dev, PIECE_BYTES);
	open_buffers(r);
	r->rank = site(r)->knobs.rank;
}

void occ_reduce_release(struct occ_reduce *r)
{
	if (!r->dev)
		return;
	for (int i = 0; i < r->nitems; i++)
		occ_stream_release(&r->item[i].stream);
	if (r->d_part)
		r->dev->ops->free(r->dev, r->d_part);
	if (r->d_wire)
		r->dev->ops->free(r->dev, r->d_wire);
	occ_free(r->at);
	occ_free(r->bytes);
	occ_free(r->length);
	if (r->wire && r->leaders.lane)
		r->dev->ops->free(r->dev, r->wire);
	else if (r->wire)
		r->dev->ops->free_host(r->dev, r->wire);
	occ_free(r->item);
	occ_group_release(&r->leaders);
	occ_group_release(&r->node);
	occ_group_release(&r->embed);
	occ_group_release(&r->dp);
	memset(r, 0, sizeof(*r));
}

static int64_t bucket_bytes(const struct occ_reduce *r)
{
	return r->policy->bucket_bytes > 0 ? r->policy->bucket_bytes : BUCKET_BYTES;
}

static void sum_run(struct occ_reduce *r, float *d_grad, int64_t at, int64_t n)
{
	if (n > 0)
		occ_group_sum(&r->dp, d_grad + at, n, OCC_F32);
}

/* Runs of tensors that lie side by side and travel dense are one sum, of a bucket's bytes or a bit
 * more. The last tensors go first: their gradients are there first. */
static void sum_dense(struct occ_reduce *r, float *d_grad, int64_t step, void *passed)
{
	int64_t at = 0, n = 0;
	for (int i = r->ntensors - 1; i >= 0; i--) {
		const struct occ_tensor *t = &r->tensor[i];
		int64_t own = t->n * t->m;
		if ((t->embedding && r->policy->fused) || occ_reduce_route(r, t, step).codec)
			continue;
		if (t->at + own != at || n * (int64_t)sizeof(*d_grad) >= bucket_bytes(r)) {
			sum_run(r, d_grad, at, n);
			n = 0;
		}
		r->dev->ops->after(r->dev, t->ready ? t->ready : passed);
		at = t->at;
		n += own;
	}
	sum_run(r, d_grad, at, n);
}

/* ---- A step. ---- */

/* What the tensors would have counted dense goes to the raw fields, what was sent to the others. */
static void count(struct occ_reduce *r, const struct occ_traffic *sent)
{
	struct occ_traffic *all = r->topo->dp->traffic, dense = {0};
	r->topo->dp->traffic = &dense;
	for (int i = 0; i < r->nitems; i++)
		occ_comm_count_sum(r->topo->dp, r->item[i].tensor.n * r->item[i].tensor.m, OCC_F32);
	r->topo->dp->traffic = all;
	all->messages += sent->messages;
	all->raw_bytes += dense.raw_bytes;
	all->wire_bytes += sent->wire_bytes;
	all->inter_node_raw_bytes += dense.inter_node_raw_bytes;
	all->inter_node_wire_bytes += sent->inter_node_wire_bytes;
	all->encode_ms += sent->encode_ms;
	all->decode_ms += sent->decode_ms;
	all->exposed_ms += sent->exposed_ms;
}

static void sum_compressed(struct occ_reduce *r, float *d_grad)
{
	struct occ_traffic sent = {0}, *all = r->topo->dp->traffic;
	struct occ_group *groups[2] = {&r->node, &r->leaders};
	for (int i = 0; i < 2; i++)
		if (groups[i]->comm)
			groups[i]->comm->traffic = &sent;
	for (int i = 0; i < r->nitems && r->node.comm; i++)
		occ_group_sum(&r->node, gradient(&r->item[i], d_grad),
			      r->item[i].tensor.n * r->item[i].tensor.m, OCC_F32);
	if (r->contributes)
		occ_reduce_exchange(r, d_grad, &sent);
	for (int i = 0; i < r->nitems && r->node.comm; i++)
		occ_group_bcast(&r->node, gradient(&r->item[i], d_grad),
				r->item[i].tensor.n * r->item[i].tensor.m);
	for (int i = 0; i < 2; i++)
		if (groups[i]->comm)
			groups[i]->comm->traffic = all;
	count(r, &sent);
}

void occ_reduce_grads(struct occ_reduce *r, float *d_grad, int64_t step, void *passed)
{
	r->adapts = site(r)->knobs.adaptive && (step + 1) % WINDOW == 0;
	for (int i = 0; i < r->nitems && r->contributes && r->adapts; i++) {
		occ_stream_settle(&r->item[i].stream);
		r->item[i].stream.x_last2 = 0;
	}
	sum_dense(r, d_grad, step, passed);
	r->dev->ops->after(r->dev, passed);
	if (r->nitems && occ_reduce_route(r, &r->item[0].tensor, step).codec)
		sum_compressed(r, d_grad);
}

void occ_reduce_embedding(struct occ_reduce *r, float *d_grad)
{
	for (int i = 0; i < r->ntensors && r->topo->embed; i++) {
		const struct occ_tensor *t = &r->tensor[i];
		if (t->embedding)
			occ_group_sum(&r->embed, d_grad + t->at, t->n * t->m, OCC_F32);
	}
}

void occ_reduce_set_rank(struct occ_reduce *r, int64_t rank)
{
	r->rank = rank;
	for (int i = 0; i < r->nitems && r->contributes; i++) {
		struct occ_codec *c = &r->item[i].stream.codec;
		c->ops->resize(c, rank);
	}
}

/* The part of the squared norm that got across in this step, over all tensors and contributors; < 0
 * if nothing was sent. Collective over the world. */
static double gain(struct occ_reduce *r)
{
	double sum[2] = {0, 0};
	for (int i = 0; i < r->nitems && r->contributes; i++) {
		sum[0] += occ_stream_residual2(&r->item[i].stream);
		occ_stream_settle(&r->item[i].stream);
		sum[1] += r->item[i].stream.x_last2;
	}
	occ_comm_sum_double(r->topo->world, sum, 2);
	return sum[1] > 0 ? 1 - sum[0] / sum[1] : -1;
}

static void adapt(struct occ_reduce *r)
{
	double g = gain(r);
	int64_t most = site(r)->knobs.rank;
	if (g > 0.5 && r->rank > 1)
		occ_reduce_set_rank(r, r->rank / 2);
	else if (g >= 0 && g < 0.25 && r->rank < most)
		occ_reduce_set_rank(r, 2 * r->rank < most ? 2 * r->rank : most);
}

void occ_reduce_end(struct occ_reduce *r, int keep)
{
	for (int i = 0; i < r->nitems && r->contributes; i++)
		occ_stream_end(&r->item[i].stream, keep);
	if (keep && r->adapts)
		adapt(r);
	r->adapts = 0;
}
