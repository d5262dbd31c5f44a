/* The state of compression in a checkpoint: one file for each rank that has any, with a record for
 * each stream. Where the layout is the writer's a rank reads its own file and goes on bit for bit;
 * else residuals are moved as checkpoint.h says. Nothing in a file is trusted: records are walked
 * with their sizes checked against the file's. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/checkpoint_internal.h"

enum { VERSION = 1 };
static const char magic[8] = "occstrm";

struct head {
	char magic[8];
	uint32_t version, rank, records;
	char zero[44];
};

/* Followed by `state` floats, then n * m floats if there is a residual, then one more where they
 * are odd: records lie at multiples of 8. */
struct record {
	char name[40], codec[16];
	uint32_t kind, residual, peers, zero;
	int64_t n, m, state, calls, rank;
	uint64_t holders;
	char more[8];
};

/* ---- The streams of a rank. ---- */

static void count(void *arg, enum occ_kind kind, const char *name, struct occ_stream *stream)
{
	(void)kind;
	(void)name;
	(void)stream;
	((struct occ_streams *)arg)->n++;
}

static int node_at(const struct occ_topo *t, int stage, int replica)
{
	struct occ_place p = {.tp = t->place.tp, .pp = stage, .dp = replica};
	return t->node_of[occ_rank_of(&t->layout, p)];
}

/* Replica d has such a stream too: as contributor, or because its link leaves a node. */
static int holds(const struct occ_exec *x, enum occ_kind kind, int d)
{
	const struct occ_topo *t = x->topo;
	int pp = t->place.pp, node = node_at(t, pp, d), first = 0;
	if (x->reduce.policy->scope == OCC_SCOPE_ALL)
		return 1;
	if (kind != OCC_DP)
		return node_at(t, kind == OCC_PP_FORWARD ? pp + 1 : pp - 1, d) != node;
	while (node_at(t, pp, first) != node)
		first++;
	return first == d;
}

static void append(void *arg, enum occ_kind kind, const char *name, struct occ_stream *stream)
{
	struct occ_streams *s = arg;
	struct occ_stream_ref *ref = &s->at[s->n++];
	*ref = (struct occ_stream_ref){.kind = kind, .name = name, .stream = stream};
	for (int d = 0; d < s->exec->topo->layout.data; d++) {
		if (!holds(s->exec, kind, d))
			continue;
		ref->peers++;
		ref->holders = (ref->holders ^ (uint64_t)(d + 1)) * 0x100000001b3u;
	}
}

void occ_streams_collect(struct occ_streams *s, struct occ_exec *x)
{
	*s = (struct occ_streams){.exec = x};
	occ_exec_streams(x, count, s);
	s->at = occ_alloc((size_t)s->n, sizeof(*s->at));
	s->n = 0;
	occ_exec_streams(x, append, s);
}

void occ_streams_release(struct occ_streams *s)
{
	occ_free(s->at);
	memset(s, 0, sizeof(*s));
}

/* ---- Writing. ---- */

static struct record record_of(const struct occ_stream_ref *ref)
{
	const struct occ_stream *s = ref->stream;
	struct record r = {
		.kind = (uint32_t)ref->kind,
		.residual = (uint32_t)s->feedback,
		.peers = (uint32_t)ref->peers,
		.n = s->codec.n,
		.m = s->codec.m,
		.state = occ_codec_state(&s->codec),
		.calls = s->codec.calls,
		.rank = s->codec.knobs.rank,
		.holders = ref->holders,
	};
	snprintf(r.name, sizeof(r.name), "%s", ref->name);
	snprintf(r.codec, sizeof(r.codec), "%s", s->codec.ops->name);
	return r;
}

static int write_floats(struct occ_file *f, struct occ_device *d, const float *d_x, int64_t n,
			struct occ_err *e)
{
	if (n == 0)
		return 0;
	float *x = occ_alloc((size_t)n, sizeof(*x));
	d->ops->get(d, x, d_x, (size_t)n * sizeof(*x));
	int bad = occ_file_write(f, x, (size_t)n * sizeof(*x), e);
	occ_free(x);
	return bad;
}

static int write_record(struct occ_file *f, const struct occ_stream_ref *ref, struct occ_err *e)
{
	struct record r = record_of(ref);
	struct occ_stream *s = ref->stream;
	struct occ_device *d = s->codec.dev;
	const float none = 0;
	int64_t n = r.residual ? r.n * r.m : 0;
	return occ_file_write(f, &r, sizeof(r), e) ||
	       write_floats(f, d, s->codec.d_state, r.state, e) ||
	       write_floats(f, d, s->d_e, n, e) ||
	       ((r.state + n) % 2 && occ_file_write(f, &none, sizeof(none), e));
}

int occ_streams_write(const struct occ_streams *s, const char *path, struct occ_io io,
		      struct occ_shard_file *mine, struct occ_err *e)
{
	struct head h = {.version = VERSION, .rank = (uint32_t)io.rank, .records = (uint32_t)s->n};
	struct occ_file f;
	memcpy(h.magic, magic, sizeof(magic));
	int bad = occ_file_create(&f, path, io, e) || occ_file_write(&f, &h, sizeof(h), e);
	for (int i = 0; !bad && i < s->n; i++)
		bad = write_record(&f, &s->at[i], e);
	if (bad)
		return -1;
	mine->bytes = (int64_t)f.sum.bytes;
	mine->sum = occ_sum_get(&f.sum);
	return occ_file_commit(&f, e);
}

/* ---- Reading. ---- */

/* A stream file of the writer's; mapped when it is first asked for. */
struct source {
	void *map;
	size_t bytes;
	int opened;
};

struct from {
	struct load *l;
	struct occ_layout layout; /* the writer's, with its replicas */
	struct source *file;      /* [nstreams] */
	int bad;
};

static size_t floats_of(const struct record *r)
{
	size_t n = (size_t)r->state + (r->residual ? (size_t)(r->n * r->m) : 0);
	return n + n % 2;
}

/* The record after r (the first after NULL), or NULL at the end; *bad if the file does not hold
 * what it says. */
static const struct record *next(const struct source *s, const struct record *r, int *bad)
{
	const char *at = s->map;
	size_t left = s->bytes;
	size_t skip = r ? (size_t)((const char *)r - at) + sizeof(*r) + floats_of(r) * sizeof(float)
			: sizeof(struct head);
	if (skip == left)
		return NULL;
	*bad = skip > left || left - skip < sizeof(*r);
	if (*bad)
		return NULL;
	r = (const struct record *)(const void *)(at + skip);
	left -= skip + sizeof(*r);
	int64_t most = INT32_MAX;
	*bad = r->n < 1 || r->m < 1 || r->n > most || r->m > most || r->state < 0 ||
	       (size_t)r->state > left / sizeof(float) || r->peers < 1 || r->calls < 0 ||
	       r->calls > INT64_MAX / 2 || (double)r->n * (double)r->m > 0x1p50 ||
	       floats_of(r) > left / sizeof(float) || memchr(r->name, 0, sizeof(r->name)) == NULL ||
	       memchr(r->codec, 0, sizeof(r->codec)) == NULL;
	return *bad ? NULL : r;
}

static int check(const struct source *s, int rank, const char *path, struct occ_err *e)
{
	const struct head *h = s->map;
	const struct record *r = NULL;
	uint32_t records = 0;
	int bad = s->bytes < sizeof(*h) || memcmp(h->magic, magic, sizeof(magic)) ||
		  h->version != VERSION || h->rank != (uint32_t)rank;
	while (!bad && (r = next(s, r, &bad)))
		records++;
	return bad || records != h->records
		       ? occ_fail(e, OCC_E_CKPT, "%s: not the state of streams that its name says",
				  path)
		       : 0;
}

/* File i of the streams, or NULL after a refusal. */
static const struct source *open_file(struct from *f, int i)
{
	struct source *s = &f->file[i];
	const struct occ_manifest *m = &f->l->m;
	int file = occ_manifest_shards(m) + i;
	if (s->opened)
		return s;
	char *path = occ_shard_path(f->l->path, m, file);
	if (occ_shard_verify(f->l->path, m, file, f->l->e) ||
	    occ_map_open(path, OCC_E_CKPT, &s->map, &s->bytes, f->l->e) ||
	    check(s, m->file[file].rank, path, f->l->e))
		f->bad = 1;
	s->opened = 1;
	occ_free(path);
	return f->bad ? NULL : s;
}

/* The record of (kind, name) of the writer's rank, or NULL. */
static const struct record *find(struct from *f, int rank, const struct occ_stream_ref *ref)
{
	const struct occ_manifest *m = &f->l->m;
	int i = 0, bad = 0;
	while (i < m->nstreams && m->file[occ_manifest_shards(m) + i].rank != rank)
		i++;
	const struct source *s = i < m->nstreams ? open_file(f, i) : NULL;
	const struct record *r = NULL;
	while (s && (r = next(s, r, &bad)))
		if (r->kind == (uint32_t)ref->kind && !strcmp(r->name, ref->name))
			return r;
	return NULL;
}

static const float *state_of(const struct record *r)
{
	return (const float *)(const void *)(r + 1);
}

static const float *residual_of(const struct record *r)
{
	return state_of(r) + r->state;
}

static double squares(const float *x, int64_t n)
{
	double sum = 0;
	for (int64_t i = 0; i < n; i++)
		sum += (double)x[i] * (double)x[i];
	return sum;
}

/* What the codec keeps, where it fits. */
static void take_state(const struct occ_stream_ref *ref, const struct record *r)
{
	struct occ_codec *c = &ref->stream->codec;
	if (strcmp(r->codec, c->ops->name) || r->n != c->n || r->m != c->m ||
	    r->state != occ_codec_state(c))
		return;
	if (r->state)
		c->dev->ops->put(c->dev, c->d_state, state_of(r), (size_t)r->state * sizeof(float));
	c->dev->ops->sync(c->dev);
	c->calls = r->calls;
}

/* Codec "auto": all ranks and tensors go on at the rank in use, whatever each of them finds. */
static void adopt_rank(struct from *f)
{
	struct occ_reduce *reduce = &f->l->s->streams->exec->reduce;
	const struct occ_knobs *k = &reduce->policy->site[OCC_DP].knobs;
	const struct record *r = NULL;
	for (int i = 0, bad = 0; k->adaptive && !r && !f->bad && i < f->l->m.nstreams; i++) {
		const struct source *s = open_file(f, i);
		while (s && (r = next(s, r, &bad)) && r->kind != OCC_DP)
			;
	}
	if (r && !strcmp(r->codec, k->codec->name) && r->rank >= 1 && r->rank <= k->rank)
		occ_reduce_set_rank(reduce, r->rank);
}

/* What is whole on all tensor ranks counts once in norms. */
static int counts(const struct load *l, uint32_t kind, const char *name, int pp, int tp)
{
	const struct occ_weight *w = occ_weights_find(&l->shard[pp * l->m.layout.tensor].w, name);
	return tp == 0 || kind != OCC_DP || !w || w->split != OCC_WHOLE;
}

static int weight_of(const struct load *l, const char *name)
{
	for (int i = 0; i < l->s->weights->n; i++)
		if (!strcmp(l->s->weights->at[i].name, name))
			return i;
	return -1;
}

/* The writer's stage whose stream of that name ours goes on from. */
static int stage_of(const struct load *l, const struct occ_stream_ref *ref)
{
	int i = ref->kind == OCC_DP ? weight_of(l, ref->name) : -1;
	if (i < 0)
		return l->s->streams->exec->topo->place.pp;
	return l->s->weights->at[i].copy ? l->m.layout.pipeline - 1 : l->plan[i].pp;
}

/* A residual that goes on, of squared norm x. */
static void took(struct from *f, const struct occ_stream_ref *ref, double x)
{
	struct occ_streams *all = f->l->s->streams;
	int pp = stage_of(f->l, ref), tp = all->exec->topo->place.tp;
	if (counts(f->l, ref->kind, ref->name, pp, tp))
		all->taken2 += x;
}

static void put_residual(const struct occ_stream_ref *ref, const float *e)
{
	struct occ_stream *s = ref->stream;
	size_t bytes = (size_t)(s->codec.n * s->codec.m) * sizeof(*e);
	s->codec.dev->ops->put(s->codec.dev, s->d_e, e, bytes);
	s->codec.dev->ops->sync(s->codec.dev);
}

/* The same layout: goes on as it was. Returns 0 if that is not so. */
static int load_exact(struct from *f, const struct occ_stream_ref *ref)
{
	struct occ_streams *all = f->l->s->streams;
	const struct occ_topo *t = all->exec->topo;
	if (memcmp(&f->layout, &t->layout, sizeof(f->layout)))
		return 0;
	const struct record *r = find(f, t->world->rank, ref);
	struct record want = record_of(ref);
	if (!r || strcmp(r->codec, want.codec) || r->n != want.n || r->m != want.m ||
	    r->peers != want.peers || r->holders != want.holders || r->residual != want.residual)
		return 0;
	take_state(ref, r);
	if (r->residual) {
		put_residual(ref, residual_of(r));
		took(f, ref, squares(residual_of(r), r->n * r->m));
		all->exact++;
	}
	return 1;
}

/* One contributor's residual of weight i, as the writer's stage pp had it, brought to our shard;
 * its squared norm, or -1 if it had none. */
static double gather_stage(struct from *f, const struct occ_stream_ref *ref, int i,
			   struct occ_place p, float *out)
{
	const struct load *l = f->l;
	int T = f->layout.tensor, had = 0;
	const struct occ_weight *theirs =
		occ_weights_find(&l->shard[p.pp * T].w, l->s->weights->at[i].name);
	size_t n = (size_t)(theirs->lrows * theirs->lcols);
	float *none = occ_alloc(n, sizeof(*none));
	const float **base = occ_alloc((size_t)T, sizeof(*base));
	for (p.tp = 0; p.tp < T; p.tp++) {
		const struct record *r = find(f, occ_rank_of(&f->layout, p), ref);
		int fits = r && r->residual && r->n * r->m == (int64_t)n;
		base[p.tp] = fits ? residual_of(r) : none;
		had |= fits;
	}
	if (had)
		occ_load_fill(l, i, base, out);
	occ_free(base);
	occ_free(none);
	return had ? squares(out, l->s->weights->at[i].lrows * l->s->weights->at[i].lcols) : -1;
}

/* Each copy of the tied embedding has a residual of its own: the last stage's goes to the last
 * stage, or to the only one. Of replica d; squared norm or -1. */
static double gather_weight(struct from *f, const struct occ_stream_ref *ref, int d, float *out)
{
	const struct load *l = f->l;
	int i = weight_of(l, ref->name), last = f->layout.pipeline - 1;
	const struct occ_weight *w = &l->s->weights->at[i];
	int tied = l->s->shape->tied && !strcmp(w->name, "wte.weight") && last > 0;
	int alone = tied && f->l->s->streams->exec->topo->layout.pipeline == 1;
	struct occ_place p = {.dp = d, .pp = w->copy ? last : l->plan[i].pp};
	double norm2 = w->copy && !tied ? -1 : gather_stage(f, ref, i, p, out);
	if (!alone)
		return norm2;
	int64_t n = w->lrows * w->lcols;
	float *copy = occ_alloc((size_t)n, sizeof(*copy));
	p.pp = last;
	double copy2 = gather_stage(f, ref, i, p, copy);
	for (int64_t k = 0; k < n; k++)
		out[k] += copy[k];
	occ_free(copy);
	return norm2 < 0 ? copy2 : copy2 < 0 ? norm2 : norm2 + copy2;
}

/* One replica's residual of a link; only while stages, tensor ranks and slices are the same. */
static double gather_link(struct from *f, const struct occ_stream_ref *ref, int d, float *out)
{
	const struct occ_topo *t = f->l->s->streams->exec->topo;
	struct occ_place p = t->place;
	p.dp = d;
	if (f->layout.tensor != t->layout.tensor || f->layout.pipeline != t->layout.pipeline)
		return -1;
	const struct record *r = find(f, occ_rank_of(&f->layout, p), ref);
	const struct occ_codec *c = &ref->stream->codec;
	if (!r || !r->residual || r->n != c->n || r->m != c->m)
		return -1;
	memcpy(out, residual_of(r), (size_t)(r->n * r->m) * sizeof(*out));
	return squares(out, r->n * r->m);
}

/* Another layout: the sum over the writer's contributors, shared out over ours. */
static void load_moved(struct from *f, const struct occ_stream_ref *ref)
{
	struct occ_streams *all = f->l->s->streams;
	const struct occ_codec *c = &ref->stream->codec;
	int64_t n = c->n * c->m;
	float *sum = occ_alloc((size_t)n, sizeof(*sum)), *one = occ_alloc((size_t)n, sizeof(*one));
	int had = 0;
	struct occ_place p = all->exec->topo->place;
	for (int d = 0; d < f->layout.data && ref->stream->feedback; d++) {
		memset(one, 0, (size_t)n * sizeof(*one));
		double norm2 = (ref->kind == OCC_DP ? gather_weight : gather_link)(f, ref, d, one);
		if (norm2 < 0)
			continue;
		had = 1;
		took(f, ref, norm2 / ref->peers);
		for (int64_t i = 0; i < n; i++)
			sum[i] += one[i] / (float)ref->peers;
	}
	if (had)
		put_residual(ref, sum);
	all->moved += had;
	all->fresh += !had && ref->stream->feedback;
	p.pp = stage_of(f->l, ref);
	for (p.dp = 0; p.dp < f->layout.data; p.dp++) {
		int same = f->layout.tensor == all->exec->topo->layout.tensor &&
			   p.pp < f->layout.pipeline;
		const struct record *r = same ? find(f, occ_rank_of(&f->layout, p), ref) : NULL;
		if (r) {
			take_state(ref, r);
			break;
		}
	}
	occ_free(one);
	occ_free(sum);
}

/* The residuals in the checkpoint: each rank counts its share of the files. */
static void count_all(struct from *f)
{
	struct occ_streams *all = f->l->s->streams;
	const struct occ_comm *world = all->exec->topo->world;
	for (int i = world->rank; i < f->l->m.nstreams && !f->bad; i += world->size) {
		int rank = f->l->m.file[occ_manifest_shards(&f->l->m) + i].rank, bad = 0;
		struct occ_place p = occ_place_of(&f->layout, rank);
		const struct source *s = open_file(f, i);
		const struct record *r = NULL;
		while (s && (r = next(s, r, &bad)))
			if (r->residual && counts(f->l, r->kind, r->name, p.pp, p.tp))
				all->total2 += squares(residual_of(r), r->n * r->m);
	}
}

int occ_streams_load(struct load *l)
{
	struct occ_streams *all = l->s->streams;
	struct from f = {.l = l, .layout = l->m.layout};
	f.layout.data = l->m.data;
	f.file = occ_alloc((size_t)l->m.nstreams, sizeof(*f.file));
	count_all(&f);
	adopt_rank(&f);
	for (int i = 0; i < all->n && !f.bad; i++)
		if (!load_exact(&f, &all->at[i]) && !f.bad)
			load_moved(&f, &all->at[i]);
	for (int i = 0; i < l->m.nstreams; i++)
		occ_map_close(f.file[i].map, f.file[i].bytes);
	occ_free(f.file);
	return f.bad ? -1 : 0;
}
