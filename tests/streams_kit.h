/* Worlds of tiny GPTs whose streams hold known values, saved and loaded: for tests of what
 * checkpoints do with the state of compression. */
#ifndef OCC_TESTS_STREAMS_KIT_H
#define OCC_TESTS_STREAMS_KIT_H

#include "tests/check.h"
#include "tests/files.h"
#include "tests/tiny_gpt.h"
#include "tests/whole.h"
#include "trainer/checkpoint.h"

enum { GLOBAL = 8, MOST = 40, AUTO_RANK = 2 };

enum method { OFF, TOPK, SGD, SGD1, DCT, QUANT, AUTO };

static const struct occ_knobs knobs[] = {
	[OFF] = {0},
	[TOPK] = {.codec = &occ_codec_topk, .fraction = 0.1},
	[SGD] = {.codec = &occ_codec_powersgd, .rank = 2, .iterations = 1},
	[SGD1] = {.codec = &occ_codec_powersgd, .rank = 1, .iterations = 1},
	[DCT] = {.codec = &occ_codec_dct, .fraction = 0.1, .period = 5},
	[QUANT] = {.codec = &occ_codec_quant, .bits = 4, .group = 32},
	[AUTO] = {.codec = &occ_codec_powersgd, .rank = 4, .iterations = 1, .adaptive = 1},
};

/* A configuration: `node` ranks a node, and only what crosses nodes is compressed; 0: all is. */
struct conf {
	struct occ_layout l;
	int node, micro;
	enum method sum, link;
	int forgets; /* no feedback */
	int stages;  /* data parallel; 0: all */
};

/* What a stream holds. */
struct held {
	enum occ_kind kind;
	char name[40];
	struct occ_place p;
	struct occ_weight w; /* of weights */
	int64_t n, m, nstate, calls, rank;
	int feedback;
	float *e, *state, *start; /* owned; start: the state before loading */
};

/* All streams of a world, and the sums over ranks of what loading counted. */
struct world {
	struct setting set;
	const struct conf *conf;
	int n;
	struct held at[MAX_RANKS][MOST];
	int held[MAX_RANKS];
	double v[5]; /* exact, moved, fresh, total2, taken2 */
	struct occ_err e;
};

static struct world from, to;
static const char *path; /* of the checkpoint */

static inline struct setting setting_of(const struct conf *c)
{
	struct setting s = {.layout = c->l,
			    .device = check_device("ref"),
			    .global = GLOBAL,
			    .micro = c->micro ? c->micro : 1,
			    .tied = 1,
			    .ranks_per_node = c->node};
	s.policy.scope = c->node ? OCC_SCOPE_INTER_NODE : OCC_SCOPE_ALL;
	s.policy.key = 123;
	for (int k = 0; k < OCC_NSITES; k++)
		s.policy.site[k] = (struct occ_site){.knobs = knobs[k == OCC_DP ? c->sum : c->link],
						     .mark = OCC_MARK_ALL,
						     .feedback = !c->forgets,
						     .stages = c->stages ? c->stages : 99};
	return s;
}

/* ---- Known values. ---- */

static inline float value(uint64_t key, int64_t i)
{
	return 0.5f + (float)(whole_mix(key ^ (uint64_t)(i + 1)) >> 40) * 0x1p-24f;
}

static inline uint64_t key_of(const struct held *h)
{
	uint64_t key = whole_mix(7 + (uint64_t)h->kind);
	int64_t more[4] = {h->p.dp, h->w.copy};
	if (h->kind != OCC_DP) {
		more[2] = h->p.pp;
		more[3] = h->p.tp;
	}
	for (const char *c = h->name; *c; c++)
		key = whole_mix(key ^ (uint64_t)*c);
	for (int i = 0; i < 4; i++)
		key = whole_mix(key ^ (uint64_t)more[i]);
	return key;
}

/* Where element k of a weight's shard lies in the whole tensor; -1: padding. */
static inline int64_t whole_at(const struct occ_weights *w, const struct occ_weight *p, int64_t k)
{
	int64_t row = occ_weight_row(w, p, k / p->lcols);
	return row < p->real_rows ? row * p->cols + occ_weight_col(w, p, k % p->lcols) : -1;
}

static inline void fill_residual(const struct held *h, const struct occ_weights *w)
{
	uint64_t key = key_of(h);
	for (int64_t k = 0; k < h->n * h->m; k++) {
		int64_t i = h->kind == OCC_DP ? whole_at(w, &h->w, k) : k;
		h->e[k] = i < 0 ? 0 : value(key, i);
	}
}

static inline size_t bytes_of(const struct held *h)
{
	return (size_t)(h->n * h->m) * sizeof(float);
}

static inline void put_known(struct occ_stream *s, struct held *h, const struct occ_weights *w)
{
	const struct occ_device_ops *o = s->codec.dev->ops;
	uint64_t key = whole_mix(key_of(h));
	for (int64_t k = 0; k < h->nstate; k++)
		h->state[k] = value(key, k);
	s->codec.calls = h->calls = (int64_t)(key % 1000);
	if (h->nstate)
		o->put(s->codec.dev, s->codec.d_state, h->state, (size_t)h->nstate * 4);
	if (h->feedback) {
		fill_residual(h, w);
		o->put(s->codec.dev, s->d_e, h->e, bytes_of(h));
	}
	o->sync(s->codec.dev);
}

/* ---- Worlds. ---- */

static inline void get(const struct occ_stream *s, float *to_x, const float *d_x, int64_t n)
{
	if (n)
		s->codec.dev->ops->get(s->codec.dev, to_x, d_x, (size_t)n * sizeof(float));
}

static inline struct held *see(struct world *w, const struct rank *r,
			       const struct occ_stream_ref *ref)
{
	int me = r->topo.world->rank;
	struct held *h = &w->at[me][w->held[me]++];
	const struct occ_stream *s = ref->stream;
	occ_check(w->held[me] < MOST, "too many streams");
	*h = (struct held){.kind = ref->kind, .p = r->topo.place, .feedback = s->feedback};
	snprintf(h->name, sizeof(h->name), "%s", ref->name);
	if (h->kind == OCC_DP)
		h->w = *occ_weights_find(&r->gpt.weights, h->name);
	h->n = s->codec.n;
	h->m = s->codec.m;
	h->nstate = occ_codec_state(&s->codec);
	h->e = occ_alloc((size_t)(h->n * h->m), sizeof(float));
	h->state = occ_alloc((size_t)h->nstate, sizeof(float));
	h->start = occ_alloc((size_t)h->nstate, sizeof(float));
	get(s, h->start, s->codec.d_state, h->nstate);
	return h;
}

static inline void see_again(struct held *h, const struct occ_stream *s)
{
	h->calls = s->codec.calls;
	h->rank = s->codec.knobs.rank;
	if (occ_codec_state(&s->codec) != h->nstate) { /* at another rank now */
		occ_free(h->state);
		h->nstate = occ_codec_state(&s->codec);
		h->state = occ_alloc((size_t)h->nstate, sizeof(float));
	}
	get(s, h->state, s->codec.d_state, h->nstate);
	get(s, h->e, s->d_e, h->feedback ? h->n * h->m : 0);
}

static inline void forget(struct world *w)
{
	for (int r = 0; r < w->n; r++)
		for (int i = 0; i < w->held[r]; i++) {
			occ_free(w->at[r][i].e);
			occ_free(w->at[r][i].state);
			occ_free(w->at[r][i].start);
		}
	memset(w, 0, sizeof(*w));
}

static inline struct occ_ckpt_state state_of(struct rank *r, const struct occ_gpt_shape *shape,
					     struct occ_streams *s)
{
	return (struct occ_ckpt_state){.weights = &r->gpt.weights,
				       .shape = shape,
				       .master = r->flat,
				       .m = r->flat,
				       .v = r->flat,
				       .step = 1,
				       .streams = s};
}

static inline int save_body(struct occ_comm *world, void *arg)
{
	struct world *w = arg;
	struct rank r;
	struct occ_streams s;
	struct occ_err e = {0};
	rank_open(&r, &w->set, world, 1);
	if (w->conf->sum == AUTO)
		occ_reduce_set_rank(&r.exec.reduce, AUTO_RANK);
	occ_streams_collect(&s, &r.exec);
	struct occ_gpt_shape shape = shape_of(&w->set, w->set.layout.tensor);
	for (int i = 0; i < s.n; i++)
		put_known(s.at[i].stream, see(w, &r, &s.at[i]), &r.gpt.weights);
	struct occ_ckpt_state c = state_of(&r, &shape, &s);
	CHECK(occ_ckpt_save(files_dir, 0, &r.topo, &c, &e) == 0, "%s", e.text);
	occ_streams_release(&s);
	rank_close(&r);
	return e.code;
}

static inline int load_body(struct occ_comm *world, void *arg)
{
	struct world *w = arg;
	struct rank r;
	struct occ_streams s;
	struct occ_err e = {0};
	rank_open(&r, &w->set, world, 1);
	occ_streams_collect(&s, &r.exec);
	struct occ_gpt_shape shape = shape_of(&w->set, w->set.layout.tensor);
	for (int i = 0; i < s.n; i++)
		see(w, &r, &s.at[i]);
	struct occ_ckpt_state c = state_of(&r, &shape, &s);
	int bad = occ_ckpt_load(path, &c, &e);
	CHECK((bad != 0) == (e.code != 0), "returned %d with code %d", bad, e.code);
	for (int i = 0; i < s.n; i++)
		see_again(&w->at[world->rank][i], s.at[i].stream);
	CHECK(bad || w->conf->sum != AUTO || r.exec.reduce.rank == AUTO_RANK,
	      "codec auto goes on with rank %d", (int)r.exec.reduce.rank);
	double v[5] = {s.exact, s.moved, s.fresh, s.total2, s.taken2};
	occ_comm_sum_double(world, v, 5);
	int64_t first = e.code ? world->rank : -1;
	occ_comm_max_int64(world, &first, 1);
	if (world->rank == (first < 0 ? 0 : first)) {
		memcpy(w->v, v, sizeof(v));
		w->e = e;
	}
	occ_streams_release(&s);
	rank_close(&r);
	return e.code;
}

static inline int run(struct world *w, const struct conf *c, int (*body)(struct occ_comm *, void *))
{
	forget(w);
	w->set = setting_of(c);
	w->conf = c;
	w->n = c->l.tensor * c->l.pipeline * c->l.data;
	return occ_comm_run_threads(w->n, 60, body, w);
}

static inline const char *text_of(const struct conf *c)
{
	static char text[2][128];
	static int next;
	char *s = text[next++ % 2];
	snprintf(s, sizeof(text[0]), "%dx%dx%d (%d a node, micro %d, codecs %d %d%s)", c->l.tensor,
		 c->l.pipeline, c->l.data, c->node, c->micro, c->sum, c->link,
		 c->forgets ? ", no feedback" : "");
	return s;
}

/* Files are written to a directory of their own. */
static inline void worlds_begin(void)
{
	files_begin();
	path = strdup(files_path("step-00000001"));
}

static inline int worlds_end(void)
{
	forget(&from);
	forget(&to);
	files_end();
	free((void *)(uintptr_t)path);
	CHECK(occ_mem_live() == 0, "%lld bytes leaked", (long long)occ_mem_live());
	return check_done();
}

#endif
