/* Which gradients travel how, and the order of the sums. What a codec does stays behind its
 * stream. */
#include "parallel/reduce.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

enum {
	PIECE_BYTES = 32 << 20, /* staged at once by dense sums */
	BATCH_BYTES = 4 << 20,  /* wires gathered at once; a longer one goes alone */
	WINDOW = 10             /* steps from one choice of the rank to the next */
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

static size_t padded(size_t bytes)
{
	return (bytes + 3) / 4 * 4;
}

static size_t bound_of(const struct occ_reduce_item *it)
{
	return padded(it->stream.codec.ops->bound(&it->stream.codec));
}

/* Elements that all tensors offer in a round. */
static int64_t parts(const struct occ_reduce *r, int round)
{
	int64_t n = 0;
	for (int i = 0; i < r->nitems; i++)
		n += r->item[i].stream.codec.ops->part(&r->item[i].stream.codec, round);
	return n;
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
	r->wire = occ_alloc(K, r->wire_bytes);
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
	if (!flat)
		occ_group_init(&r->node, topo->dp_node, dev, PIECE_BYTES);
	if (leaders)
		occ_group_init(&r->leaders, leaders, dev, PIECE_BYTES);
	r->item = occ_alloc((size_t)ntensors, sizeof(*r->item));
	for (int i = 0; i < ntensors; i++)
		if (occ_reduce_route(r, &tensor[i], INT64_MAX).codec)
			open_item(r, &tensor[i]);
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
	occ_free(r->wire);
	occ_free(r->item);
	occ_group_release(&r->leaders);
	occ_group_release(&r->node);
	occ_group_release(&r->embed);
	occ_group_release(&r->dp);
	memset(r, 0, sizeof(*r));
}

static void sum_run(struct occ_reduce *r, float *d_grad, int64_t at, int64_t n)
{
	if (n > 0)
		occ_group_sum(&r->dp, d_grad + at, n, OCC_F32);
}

/* Runs of tensors that lie side by side and travel dense are one sum. */
static void sum_dense(struct occ_reduce *r, float *d_grad, int64_t step)
{
	int64_t at = 0, n = 0;
	for (int i = 0; i < r->ntensors; i++) {
		const struct occ_tensor *t = &r->tensor[i];
		if ((t->embedding && r->policy->fused) || occ_reduce_route(r, t, step).codec)
			continue;
		if (at + n != t->at) {
			sum_run(r, d_grad, at, n);
			at = t->at;
			n = 0;
		}
		n += t->n * t->m;
	}
	sum_run(r, d_grad, at, n);
}

static float *gradient(const struct occ_reduce_item *it, float *d_grad)
{
	return d_grad + it->tensor.at;
}

/* ---- Codecs that add up. ---- */

static void offer_all(struct occ_reduce *r, int round)
{
	float *d_part = r->d_part;
	for (int i = 0; i < r->nitems; i++) {
		struct occ_codec *c = &r->item[i].stream.codec;
		c->ops->offer(c, round, r->item[i].d_x, d_part);
		d_part += c->ops->part(c, round);
	}
}

static void take_all(struct occ_reduce *r, int round)
{
	const float *d_part = r->d_part;
	for (int i = 0; i < r->nitems; i++) {
		struct occ_codec *c = &r->item[i].stream.codec;
		c->ops->take(c, round, d_part);
		d_part += c->ops->part(c, round);
	}
}

static void exchange_sums(struct occ_reduce *r, float *d_grad, struct occ_traffic *t)
{
	double begin = occ_clock_ms();
	const struct occ_codec *first = &r->item[0].stream.codec;
	int rounds = first->ops->rounds(first);
	for (int i = 0; i < r->nitems; i++)
		r->item[i].d_x =
			occ_stream_sum_begin(&r->item[i].stream, gradient(&r->item[i], d_grad));
	for (int k = 0; k < rounds; k++) {
		offer_all(r, k);
		for (int i = 0; i < r->nitems && k == rounds - 1; i++)
			occ_stream_sum_own(&r->item[i].stream);
		r->dev->ops->sync(r->dev);
		t->encode_ms += occ_clock_ms() - begin;
		occ_group_sum(&r->leaders, r->d_part, parts(r, k), OCC_F32);
		begin = occ_clock_ms();
		take_all(r, k);
	}
	for (int i = 0; i < r->nitems; i++)
		occ_stream_sum_finish(&r->item[i].stream, gradient(&r->item[i], d_grad));
	r->dev->ops->sync(r->dev);
	t->decode_ms += occ_clock_ms() - begin;
}

/* ---- Codecs whose wires are gathered. ---- */

/* Items from..to-1 travel together: their wires, one behind the other, fit the buffer. */
static int batch_end(const struct occ_reduce *r, int from)
{
	size_t bytes = 0;
	int to = from;
	while (to < r->nitems && (to == from || bytes + bound_of(&r->item[to]) <= r->wire_bytes))
		bytes += bound_of(&r->item[to++]);
	return to;
}

/* Own wires to r->wire + at; their lengths. */
static void encode_batch(struct occ_reduce *r, int from, int to, float *d_grad, size_t *length)
{
	size_t at = 0;
	for (int i = from; i < to; i++) {
		struct occ_stream *s = &r->item[i].stream;
		length[i - from] =
			occ_stream_encode(s, gradient(&r->item[i], d_grad), (char *)r->d_wire + at);
		at += padded(length[i - from]);
	}
}

/* All contributors' wires of item i are added up in rank order; r->at[k], where the next wire of
 * contributor k lies, moves on. `length` and `stride`: of item i, and from one contributor to the
 * next. */
static void decode_item(struct occ_reduce *r, int i, const size_t *length, int stride, float *d_y)
{
	struct occ_codec *c = &r->item[i].stream.codec;
	for (int k = 0; k < r->leaders.comm->size; k++) {
		size_t bytes = length[k * stride];
		r->dev->ops->put(r->dev, r->d_wire, r->at[k], bytes);
		c->ops->decode(c, r->d_wire, bytes, k ? OCC_ADD : OCC_SET, d_y);
		r->dev->ops->sync(r->dev);
		r->at[k] += padded(bytes);
	}
}

/* Everybody's lengths are gathered, then the wires: r->bytes and r->at say where they lie. */
static void gather_wires(struct occ_reduce *r, int n)
{
	struct occ_comm *c = r->leaders.comm;
	char *at = r->wire;
	for (int k = 0; k < c->size; k++)
		r->bytes[k] = (size_t)n * sizeof(*r->length);
	occ_comm_gather(c, r->length, r->bytes);
	for (int k = 0; k < c->size; k++) {
		r->bytes[k] = 0;
		for (int i = 0; i < n; i++)
			r->bytes[k] += padded(r->length[k * n + i]);
		r->at[k] = at;
		if (k == c->rank)
			r->dev->ops->get(r->dev, at, r->d_wire, r->bytes[k]);
		at += r->bytes[k];
	}
	occ_comm_gather(c, r->wire, r->bytes);
}

static void exchange_batch(struct occ_reduce *r, int from, int to, float *d_grad,
			   struct occ_traffic *t)
{
	int n = to - from;
	occ_check(r->leaders.comm != NULL, "an exchange of wires by a rank that speaks for none");
	encode_batch(r, from, to, d_grad, r->length + r->leaders.comm->rank * n);
	gather_wires(r, n);
	double begin = occ_clock_ms();
	for (int i = from; i < to; i++)
		decode_item(r, i, r->length + (i - from), n, gradient(&r->item[i], d_grad));
	t->decode_ms += occ_clock_ms() - begin;
}

static void exchange_wires(struct occ_reduce *r, float *d_grad, struct occ_traffic *t)
{
	for (int from = 0, to; from < r->nitems; from = to) {
		to = batch_end(r, from);
		exchange_batch(r, from, to, d_grad, t);
	}
	for (int i = 0; i < r->nitems; i++) {
		t->encode_ms += r->item[i].stream.encode_ms;
		r->item[i].stream.encode_ms = 0;
	}
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
	if (r->contributes && site(r)->knobs.codec->rounds)
		exchange_sums(r, d_grad, &sent);
	else if (r->contributes)
		exchange_wires(r, d_grad, &sent);
	for (int i = 0; i < r->nitems && r->node.comm; i++)
		occ_group_bcast(&r->node, gradient(&r->item[i], d_grad),
				r->item[i].tensor.n * r->item[i].tensor.m);
	for (int i = 0; i < 2; i++)
		if (groups[i]->comm)
			groups[i]->comm->traffic = all;
	count(r, &sent);
}

void occ_reduce_grads(struct occ_reduce *r, float *d_grad, int64_t step)
{
	r->adapts = site(r)->knobs.adaptive && (step + 1) % WINDOW == 0;
	for (int i = 0; i < r->nitems && r->adapts; i++)
		r->item[i].stream.x_last2 = 0;
	sum_dense(r, d_grad, step);
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
