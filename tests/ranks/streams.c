/* The state of compression over layouts: what is saved under one and loaded under another. The same
 * layout goes on bit for bit; in another one each weight's sum of residuals over contributors is
 * what it was. CUDA: 2 */
#include "tests/streams_kit.h"

/* ---- What is expected. ---- */

static int same_name(const struct held *a, const struct held *b)
{
	return a->kind == b->kind && !strcmp(a->name, b->name);
}

/* The residual of `a` goes on in streams such as `b`. */
static int goes_to(const struct held *a, const struct held *b)
{
	if (!same_name(a, b) || !a->feedback || !b->feedback)
		return 0;
	if (a->kind != OCC_DP)
		return from.conf->l.tensor == to.conf->l.tensor &&
		       from.conf->l.pipeline == to.conf->l.pipeline &&
		       from.set.micro == to.set.micro && a->p.pp == b->p.pp && a->p.tp == b->p.tp;
	return a->w.copy == b->w.copy || to.conf->l.pipeline == 1;
}

typedef int match(const struct held *a, const struct held *b);

/* The first stream of w that matches x, in the order of ranks. */
static struct held *find(struct world *w, match *ok, const struct held *x)
{
	for (int r = 0; r < w->n; r++)
		for (int i = 0; i < w->held[r]; i++)
			if (w == &from ? ok(&w->at[r][i], x) : ok(x, &w->at[r][i]))
				return &w->at[r][i];
	return NULL;
}

/* Counted once, though whole on all tensor ranks. */
static double squares(const struct held *h)
{
	double sum = 0;
	if (h->kind == OCC_DP && h->w.split == OCC_WHOLE && h->p.tp > 0)
		return 0;
	for (int64_t k = 0; k < h->n * h->m; k++)
		sum += (double)h->e[k] * (double)h->e[k];
	return sum;
}

static int holds(const struct world *w, int r, const struct held *b)
{
	for (int i = 0; i < w->held[r]; i++) {
		const struct held *h = &w->at[r][i];
		if (same_name(h, b) && h->p.pp == b->p.pp && h->p.tp == b->p.tp)
			return 1;
	}
	return 0;
}

/* The same ranks hold it before and after, in the same way. */
static int is_exact(const struct held *b)
{
	enum method x = b->kind == OCC_DP ? from.conf->sum : from.conf->link;
	enum method y = b->kind == OCC_DP ? to.conf->sum : to.conf->link;
	int same = !memcmp(&from.conf->l, &to.conf->l, sizeof(to.conf->l)) &&
		   from.conf->forgets == to.conf->forgets;
	for (int r = 0; same && r < to.n; r++)
		same = holds(&from, r, b) == holds(&to, r, b);
	return same && knobs[x].codec == knobs[y].codec;
}

static void check_counters(void)
{
	double want[5] = {0};
	for (int r = 0; r < to.n; r++)
		for (int i = 0; i < to.held[r]; i++) {
			const struct held *b = &to.at[r][i];
			const struct held *a = find(&from, goes_to, b);
			want[!a ? 2 : is_exact(b) ? 0 : 1] += b->feedback;
		}
	for (int r = 0; r < from.n; r++)
		for (int i = 0; i < from.held[r]; i++) {
			const struct held *a = &from.at[r][i];
			double x = a->feedback ? squares(a) : 0;
			want[3] += x;
			want[4] += find(&to, goes_to, a) ? x : 0;
		}
	for (int k = 0; k < 5; k++)
		CHECK(fabs(to.v[k] - want[k]) <= 1e-6 * want[k],
		      "counter %d is %g, not %g: %s to %s", k, to.v[k], want[k], text_of(from.conf),
		      text_of(to.conf));
}

/* Of weights: elementwise sums over contributors in the whole tensors, [copy of wte]. */
struct total {
	struct occ_weights t; /* whole tensors */
	double *sum[2];
};

static void total_open(struct total *x, struct world *w)
{
	const struct occ_layout one = {1, 1, 1};
	struct occ_gpt_shape shape = shape_of(&w->set, 1);
	occ_weights_init(&x->t, &shape, &one, (struct occ_place){0, 0, 0});
	for (int c = 0; c < 2; c++)
		x->sum[c] = occ_alloc((size_t)x->t.size, sizeof(double));
	shape = shape_of(&w->set, w->set.layout.tensor);
	for (int r = 0; r < w->n; r++) {
		struct occ_weights mine;
		occ_weights_init(&mine, &shape, &w->set.layout, occ_place_of(&w->set.layout, r));
		for (int i = 0; i < w->held[r]; i++) {
			const struct held *h = &w->at[r][i];
			if (h->kind != OCC_DP || !h->feedback ||
			    (h->w.split == OCC_WHOLE && h->p.tp > 0))
				continue;
			double *to_x = x->sum[h->w.copy] + occ_weights_find(&x->t, h->name)->at;
			for (int64_t k = 0; k < h->n * h->m; k++)
				if (whole_at(&mine, &h->w, k) >= 0)
					to_x[whole_at(&mine, &h->w, k)] += (double)h->e[k];
		}
		occ_weights_release(&mine);
	}
}

static void total_close(struct total *x)
{
	occ_free(x->sum[0]);
	occ_free(x->sum[1]);
	occ_weights_release(&x->t);
}

/* The largest difference, relative to what is expected. */
static double worst(const double *got, const double *want, int64_t n)
{
	double most = 0;
	for (int64_t k = 0; k < n; k++) {
		double d = fabs(got[k] - want[k]) / (want[k] > 0 ? want[k] : 1);
		most = d <= most ? most : d;
	}
	return most;
}

static void check_weights(void)
{
	struct total a, b;
	total_open(&a, &from);
	total_open(&b, &to);
	for (int64_t k = 0; k < a.t.size && to.conf->l.pipeline == 1; k++)
		a.sum[0][k] += a.sum[1][k];
	for (int r = 0; r < to.n; r++)
		for (int i = 0; i < to.held[r]; i++) {
			const struct held *h = &to.at[r][i];
			if (h->kind != OCC_DP || !h->feedback)
				continue;
			const struct occ_weight *p = occ_weights_find(&a.t, h->name);
			double d = worst(b.sum[h->w.copy] + p->at, a.sum[h->w.copy] + p->at,
					 p->rows * p->cols);
			CHECK(d <= 1e-6, "%s, copy %d: its sum is off by %.3g: %s to %s", h->name,
			      h->w.copy, d, text_of(from.conf), text_of(to.conf));
		}
	total_close(&a);
	total_close(&b);
}

static int same_link(const struct held *a, const struct held *b)
{
	return same_name(a, b) && a->kind != OCC_DP && a->p.pp == b->p.pp && a->p.tp == b->p.tp;
}

/* The sum over the replicas of a world, of a link such as h. */
static void sum_link(const struct world *w, match *ok, const struct held *h, double *sum)
{
	for (int r = 0; r < w->n; r++)
		for (int i = 0; i < w->held[r]; i++)
			if (ok(&w->at[r][i], h))
				for (int64_t k = 0; k < h->n * h->m; k++)
					sum[k] += (double)w->at[r][i].e[k];
}

static void check_links(void)
{
	for (int r = 0; r < to.n; r++)
		for (int i = 0; i < to.held[r]; i++) {
			const struct held *h = &to.at[r][i];
			double want[GLOBAL * T * HIDDEN] = {0}, got[GLOBAL * T * HIDDEN] = {0};
			if (h->kind == OCC_DP || !h->feedback)
				continue;
			sum_link(&from, goes_to, h, want);
			sum_link(&to, same_link, h, got);
			double d = worst(got, want, h->n * h->m);
			CHECK(d <= 1e-6, "%s of rank %d: its sum is off by %.3g: %s to %s", h->name,
			      r, d, text_of(from.conf), text_of(to.conf));
		}
}

/* Tensors that are whole on all tensor ranks stay equal on them. */
static int whole_twin(const struct held *a, const struct held *b)
{
	return same_name(a, b) && b->kind == OCC_DP && b->w.split == OCC_WHOLE && a->p.tp == 0 &&
	       a->p.pp == b->p.pp && a->p.dp == b->p.dp;
}

static void check_whole(void)
{
	for (int r = 0; r < to.n; r++)
		for (int i = 0; i < to.held[r]; i++) {
			const struct held *h = &to.at[r][i], *twin = NULL;
			for (int k = 0; k < to.n * MOST && !twin; k++)
				if (whole_twin(&to.at[k / MOST][k % MOST], h))
					twin = &to.at[k / MOST][k % MOST];
			CHECK(!twin || (!memcmp(twin->e, h->e, bytes_of(h)) &&
					!memcmp(twin->state, h->state, (size_t)h->nstate * 4)),
			      "%s differs on tensor ranks: %s to %s", h->name, text_of(from.conf),
			      text_of(to.conf));
		}
}

/* What the codec keeps goes on from `a`. */
static int keeps(const struct held *a, const struct held *b)
{
	enum method x = b->kind == OCC_DP ? from.conf->sum : from.conf->link;
	enum method y = b->kind == OCC_DP ? to.conf->sum : to.conf->link;
	if (!same_name(a, b) || x != y || from.conf->l.tensor != to.conf->l.tensor ||
	    a->p.tp != b->p.tp)
		return 0;
	if (is_exact(b))
		return a->p.pp == b->p.pp && a->p.dp == b->p.dp && a->n == b->n && a->m == b->m;
	return a->kind == OCC_DP && (a->w.copy == b->w.copy || from.conf->l.pipeline == 1);
}

static void check_state(void)
{
	for (int r = 0; r < to.n; r++)
		for (int i = 0; i < to.held[r]; i++) {
			const struct held *b = &to.at[r][i], *a = find(&from, keeps, b);
			size_t bytes = (size_t)b->nstate * sizeof(float);
			if (b->kind == OCC_DP && to.conf->sum == AUTO)
				CHECK(b->rank == AUTO_RANK, "%s: rank %d", b->name, (int)b->rank);
			if (!a && b->kind == OCC_DP && to.conf->sum != AUTO)
				CHECK(b->calls == 0 && !memcmp(b->state, b->start, bytes),
				      "%s does not start anew: %s to %s", b->name,
				      text_of(from.conf), text_of(to.conf));
			CHECK(!a || (a->calls == b->calls && a->nstate == b->nstate &&
				     !memcmp(a->state, b->state, bytes)),
			      "%s: its codec does not go on: %s to %s", b->name, text_of(from.conf),
			      text_of(to.conf));
			if (a && is_exact(b) && b->feedback)
				CHECK(!memcmp(a->e, b->e, bytes_of(b)),
				      "%s of rank %d is not what it was: %s", b->name, r,
				      text_of(to.conf));
		}
}

static void check_way(const struct conf *a, const struct conf *b)
{
	CHECK(run(&from, a, save_body) == 0, "saving %s", text_of(a));
	CHECK(run(&to, b, load_body) == 0, "%s to %s: %s", text_of(a), text_of(b), to.e.text);
	check_counters();
	check_weights();
	check_links();
	check_whole();
	check_state();
}

/* ---- Ways. ---- */

static const struct way {
	struct occ_layout a, b;
	int anode, bnode;
} ways[] = {
	{{1, 1, 2}, {1, 1, 2}, 0, 0}, /* the same */
	{{2, 2, 2}, {2, 2, 2}, 0, 0},
	{{1, 2, 4}, {1, 2, 4}, 2, 2},
	{{1, 2, 4}, {1, 2, 2}, 0, 0}, /* replicas */
	{{1, 2, 2}, {1, 2, 4}, 0, 0},
	{{2, 1, 2}, {2, 1, 4}, 0, 0},
	{{1, 1, 3}, {1, 1, 8}, 0, 0},
	{{1, 1, 2}, {2, 1, 2}, 0, 0}, /* tensor ranks */
	{{2, 1, 2}, {4, 1, 2}, 0, 0},
	{{4, 1, 2}, {2, 1, 2}, 0, 0},
	{{4, 1, 2}, {1, 1, 2}, 0, 0},
	{{1, 2, 2}, {1, 1, 2}, 0, 0}, /* stages */
	{{1, 1, 2}, {1, 2, 2}, 0, 0},
	{{1, 2, 2}, {1, 4, 2}, 0, 0},
	{{1, 4, 2}, {1, 2, 2}, 0, 0},
	{{1, 3, 2}, {1, 4, 2}, 0, 0},
	{{2, 2, 2}, {1, 4, 2}, 0, 0}, /* more than one */
	{{1, 4, 2}, {2, 2, 2}, 0, 0},
	{{2, 2, 2}, {4, 1, 2}, 0, 0},
	{{2, 1, 4}, {1, 2, 2}, 0, 0},
	{{1, 2, 4}, {2, 1, 2}, 0, 0},
	{{1, 2, 2}, {2, 2, 2}, 0, 0},
	{{1, 2, 4}, {1, 2, 2}, 2, 2}, /* between nodes only */
	{{2, 1, 4}, {1, 1, 4}, 2, 2},
	{{1, 2, 4}, {1, 4, 2}, 2, 1},
	{{2, 2, 2}, {1, 2, 4}, 2, 2},
	{{1, 1, 4}, {1, 1, 4}, 1, 2}, /* the same ranks on other nodes */
	{{1, 1, 4}, {1, 1, 4}, 2, 3},
	{{1, 1, 4}, {1, 1, 4}, 3, 2},
	{{1, 2, 4}, {1, 2, 4}, 0, 2},
	{{1, 2, 4}, {1, 2, 4}, 2, 0},
	{{1, 2, 3}, {1, 2, 3}, 4, 4}, /* some links stay inside nodes */
	{{1, 2, 3}, {1, 2, 3}, 4, 5},
	{{1, 2, 4}, {1, 2, 3}, 0, 4},
	{{2, 1, 4}, {2, 1, 4}, 3, 3}, /* tensor ranks see other nodes */
	{{2, 1, 4}, {1, 1, 4}, 3, 1},
};

static void check_ways(enum method sum, enum method link)
{
	size_t each = check_device(NULL) ? 9 : 1; /* GPU code on the CPU is slow */
	for (size_t i = (size_t)sum % each; i < sizeof(ways) / sizeof(*ways); i += each) {
		struct conf a = {.l = ways[i].a, .node = ways[i].anode, .sum = sum, .link = link};
		struct conf b = {.l = ways[i].b, .node = ways[i].bnode, .sum = sum, .link = link};
		check_way(&a, &b);
	}
}

/* Other settings than the layout. */
static const struct change {
	struct conf a, b;
} changes[] = {
	{{{1, 2, 2}, 0, 1, SGD, SGD, 0, 0}, {{1, 2, 2}, 0, 1, SGD1, SGD1, 0, 0}},
	{{{1, 2, 2}, 0, 1, SGD, SGD, 0, 0}, {{1, 2, 2}, 0, 1, TOPK, QUANT, 0, 0}},
	{{{1, 2, 2}, 0, 1, TOPK, QUANT, 0, 0}, {{1, 2, 4}, 0, 1, SGD, SGD, 0, 0}},
	{{{1, 2, 2}, 0, 1, DCT, QUANT, 0, 0}, {{1, 2, 2}, 0, 1, TOPK, SGD, 0, 0}},
	{{{1, 2, 2}, 0, 1, SGD, SGD, 0, 0}, {{1, 2, 2}, 0, 2, SGD, SGD, 0, 0}},
	{{{2, 2, 2}, 0, 1, SGD, QUANT, 0, 0}, {{2, 2, 1}, 0, 2, SGD, QUANT, 0, 0}},
	{{{1, 2, 2}, 0, 1, SGD, SGD, 0, 0}, {{1, 2, 2}, 0, 1, SGD, SGD, 1, 0}},
	{{{1, 2, 2}, 0, 1, SGD, SGD, 1, 0}, {{1, 2, 2}, 0, 1, SGD, SGD, 0, 0}},
	{{{1, 2, 2}, 0, 1, SGD, SGD, 0, 0}, {{1, 2, 4}, 0, 1, SGD, SGD, 1, 0}},
	{{{1, 2, 2}, 0, 1, SGD, OFF, 0, 0}, {{1, 2, 2}, 0, 1, OFF, SGD, 0, 0}},
	{{{1, 2, 2}, 0, 1, SGD, SGD, 0, 0}, {{1, 2, 2}, 0, 1, OFF, OFF, 0, 0}},
	{{{1, 2, 2}, 0, 1, OFF, OFF, 0, 0}, {{1, 2, 2}, 0, 1, SGD, SGD, 0, 0}},
	{{{1, 2, 2}, 0, 1, SGD, OFF, 0, 1}, {{1, 2, 2}, 0, 1, SGD, OFF, 0, 0}},
	{{{1, 4, 2}, 0, 1, SGD, OFF, 0, 1}, {{1, 2, 2}, 0, 1, SGD, OFF, 0, 0}},
	{{{1, 2, 2}, 0, 1, SGD, OFF, 0, 0}, {{1, 2, 2}, 0, 1, SGD, OFF, 0, 1}},
	{{{1, 2, 2}, 0, 1, AUTO, OFF, 0, 1}, {{1, 2, 4}, 0, 1, AUTO, OFF, 0, 2}},
};

static void check_changes(void)
{
	for (size_t i = 0; i < sizeof(changes) / sizeof(*changes); i += check_device(NULL) ? 4 : 1)
		check_way(&changes[i].a, &changes[i].b);
}

int main(void)
{
	worlds_begin();
	check_ways(TOPK, QUANT);
	check_ways(SGD, SGD);
	check_ways(DCT, QUANT);
	check_ways(AUTO, OFF);
	check_changes();
	return worlds_end();
}
