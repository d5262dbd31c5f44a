/* Routes: the rules as a table, the marks that feed them, and what they leave compressed on the
 * links of whole schedules. */
#include "parallel/route.h"
#include "parallel/simulate.h"

#include <string.h>

#include "base/mem.h"
#include "tests/check.h"

enum { MAX_P = 8, MAX_M = 32 };

static int least(int a, int b)
{
	return a < b ? a : b;
}

/* ---- The rules. Each row differs from a policy and a transfer that are compressed. ---- */

/* Compressed on every site: powersgd of rank 16 behind a start of 10 steps, 3 stages. */
static struct occ_policy usual_policy(void)
{
	struct occ_policy p = {.scope = OCC_SCOPE_ALL};
	for (int i = 0; i < OCC_NSITES; i++) {
		struct occ_site *s = &p.site[i];
		s->knobs = (struct occ_knobs){.codec = &occ_codec_powersgd, .rank = 16};
		s->knobs.iterations = 1;
		s->mark = OCC_MARK_TAIL;
		s->start_iter = 10;
		s->min_ratio = 1;
		s->stages = 3;
	}
	return p;
}

static struct occ_transfer usual_transfer(enum occ_kind kind)
{
	return (struct occ_transfer){.kind = kind,
				     .stage = 1,
				     .peers = 2,
				     .inter_node = 1,
				     .critical = 1,
				     .step = 10,
				     .n = 256,
				     .m = 512,
				     .type = OCC_F32};
}

enum change {
	NOTHING,
	CODEC_NULL,
	SCOPE_NONE,
	SCOPE_INTER,
	SCOPE_INTER_INSIDE,
	SCOPE_ALL_INSIDE,
	ALONE,
	EIGHT_PEERS,
	STEP_9,
	STEP_0,
	STEP_1000,
	START_0_STEP_0,
	NOT_CRITICAL,
	STAGE_2,
	STAGE_3,
	STAGES_0,
	VECTOR,
	COLUMN,
	SMALL,
	SMALL_MIN_0,
	RATIO_EQUAL,
	RATIO_BELOW,
	NO_CODEC_AND_ALL_ELSE
};

static void change(enum change c, struct occ_policy *p, struct occ_transfer *t)
{
	struct occ_site *s = &p->site[t->kind];
	switch (c) {
	case NOTHING:
		break;
	case CODEC_NULL:
		s->knobs.codec = NULL;
		break;
	case SCOPE_NONE:
		p->scope = OCC_SCOPE_NONE;
		break;
	case SCOPE_INTER_INSIDE:
		t->inter_node = 0; /* fall through */
	case SCOPE_INTER:
		p->scope = OCC_SCOPE_INTER_NODE;
		break;
	case SCOPE_ALL_INSIDE:
		t->inter_node = 0;
		break;
	case ALONE:
		t->peers = 1;
		break;
	case EIGHT_PEERS:
		t->peers = 8;
		break;
	case STEP_9:
		t->step = 9;
		break;
	case START_0_STEP_0:
		s->start_iter = 0; /* fall through */
	case STEP_0:
		t->step = 0;
		break;
	case STEP_1000:
		t->step = 1000;
		break;
	case NOT_CRITICAL:
		t->critical = 0;
		break;
	case STAGE_2:
		t->stage = 2;
		break;
	case STAGE_3:
		t->stage = 3;
		break;
	case STAGES_0:
		s->stages = 0;
		t->stage = 0;
		break;
	case VECTOR:
		t->n = 1;
		break;
	case COLUMN:
		t->m = 1;
		break;
	case SMALL_MIN_0:
		s->min_ratio = 0; /* fall through */
	case SMALL:
		t->n = t->m = 31; /* 31 * 31 < 16 * 62 */
		break;
	case RATIO_EQUAL:
		t->n = t->m = 32;
		break;
	case RATIO_BELOW:
		s->min_ratio = 10.7; /* 256 * 512 / (16 * 768) = 10.67 */
		break;
	case NO_CODEC_AND_ALL_ELSE:
		s->knobs.codec = NULL;
		p->scope = OCC_SCOPE_NONE;
		*t = (struct occ_transfer){.kind = t->kind, .peers = 1, .n = 1, .m = 1};
		break;
	}
}

#define LINK "on the critical path"
#define SUM "an early stage"

/* What is expected on a link and in a sum: compressed, and a part of why. */
static const struct row {
	const char *what;
	enum change change;
	int link;
	const char *link_why;
	int sum;
	const char *sum_why;
} rows[] = {
	{"as it is", NOTHING, 1, LINK, 1, SUM},
	{"no codec", CODEC_NULL, 0, "no codec", 0, "no codec"},
	{"scope none", SCOPE_NONE, 0, "scope", 0, "scope"},
	{"between nodes, leaves one", SCOPE_INTER, 1, LINK, 1, SUM},
	{"between nodes, stays", SCOPE_INTER_INSIDE, 0, "inside a node", 0, "inside a node"},
	{"scope all, stays", SCOPE_ALL_INSIDE, 1, LINK, 1, SUM},
	{"alone", ALONE, 0, "nothing travels", 0, "nothing travels"},
	{"eight peers", EIGHT_PEERS, 1, LINK, 1, SUM},
	{"one step early", STEP_9, 0, "start_iter", 0, "start_iter"},
	{"the first step", STEP_0, 0, "start_iter", 0, "start_iter"},
	{"long after the start", STEP_1000, 1, LINK, 1, SUM},
	{"from the first step", START_0_STEP_0, 1, LINK, 1, SUM},
	{"hidden", NOT_CRITICAL, 0, "critical path", 1, SUM},
	{"the last early stage", STAGE_2, 1, LINK, 1, SUM},
	{"the first late stage", STAGE_3, 1, LINK, 0, "later stage"},
	{"no stages", STAGES_0, 1, LINK, 0, "later stage"},
	{"a vector", VECTOR, 1, LINK, 0, "vector"},
	{"a column", COLUMN, 1, LINK, 0, "min_ratio"},
	{"a small matrix", SMALL, 1, LINK, 0, "min_ratio"},
	{"a small matrix, always", SMALL_MIN_0, 1, LINK, 1, SUM},
	{"saves nothing", RATIO_EQUAL, 1, LINK, 0, "min_ratio"},
	{"saves too little", RATIO_BELOW, 1, LINK, 0, "min_ratio"},
	{"the first reason is told", NO_CODEC_AND_ALL_ELSE, 0, "no codec", 0, "no codec"},
};

static void check_rules(void)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		for (int kind = OCC_PP_FORWARD; kind <= OCC_DP; kind++) {
			const struct row *r = &rows[i];
			struct occ_policy p = usual_policy();
			struct occ_transfer t = usual_transfer((enum occ_kind)kind);
			change(r->change, &p, &t);
			struct occ_route got = occ_route(&p, &t);
			int want = kind == OCC_DP ? r->sum : r->link;
			const char *why = kind == OCC_DP ? r->sum_why : r->link_why;
			CHECK((got.codec != NULL) == want && strstr(got.why, why),
			      "%s, kind %d: %s, %s", r->what, kind,
			      got.codec ? got.codec->name : "dense", got.why);
			CHECK(!want || got.codec == &occ_codec_powersgd, "%s", r->what);
		}
}

/* Only the site that a transfer is of counts. */
static void check_sites(void)
{
	for (int off = 0; off < OCC_NSITES; off++)
		for (int kind = 0; kind < OCC_NSITES; kind++) {
			struct occ_policy p = usual_policy();
			struct occ_transfer t = usual_transfer((enum occ_kind)kind);
			p.site[off].knobs.codec = NULL;
			CHECK((occ_route(&p, &t).codec != NULL) == (kind != off),
			      "site %d off, transfer of %d", off, kind);
		}
}

/* dct forward: gradients take the forward's site whatever their own says. */
static void check_follow_site(void)
{
	struct occ_policy p = usual_policy();
	struct occ_transfer t = usual_transfer(OCC_PP_BACKWARD);
	CHECK(!occ_route_follows(&p), "powersgd is followed");
	CHECK(occ_route_site(&p, OCC_PP_BACKWARD) == &p.site[OCC_PP_BACKWARD], "own site");
	p.site[OCC_PP_FORWARD].knobs = (struct occ_knobs){.codec = &occ_codec_dct_rows};
	p.site[OCC_PP_FORWARD].knobs.fraction = 0.1;
	p.site[OCC_PP_BACKWARD].knobs.codec = NULL;
	p.site[OCC_PP_BACKWARD].start_iter = 1000;
	CHECK(occ_route_follows(&p), "dct is not followed");
	CHECK(occ_route_site(&p, OCC_PP_BACKWARD) == &p.site[OCC_PP_FORWARD], "forward's site");
	CHECK(occ_route(&p, &t).codec == &occ_codec_dct_rows, "%s", occ_route(&p, &t).why);
	CHECK(occ_route_site(&p, OCC_DP) == &p.site[OCC_DP], "sums have their own");
}

/* ---- Ratios. ---- */

static const struct ratio {
	const struct occ_codec_ops *codec;
	int peers;
	int64_t n, m;
	double want; /* 0: not known before */
} ratios[] = {
	{&occ_codec_powersgd, 2, 1024, 1920, 41.7391},
	{&occ_codec_powersgd, 8, 1024, 1920, 41.7391}, /* a ring either way */
	{&occ_codec_powersgd, 4, 8, 8, 0.5},           /* rank 8 */
	{&occ_codec_cast, 2, 64, 64, 2},
	{&occ_codec_cast, 4, 64, 64, 1},
	{&occ_codec_cast, 8, 64, 64, 0.5},
	{&occ_codec_quant, 2, 64, 64, 7.5294},  /* 4 bits, a scale for 128 values */
	{&occ_codec_topk, 2, 100, 100, 66.667}, /* 2 + 4 bytes of each hundredth */
	{&occ_codec_topk, 2, 1000, 100, 50},    /* wide indices */
	{&occ_codec_dct, 2, 100, 100, 50},
	{&occ_codec_dct, 4, 100, 100, 25},
	{&occ_codec_errbound, 2, 64, 64, 0},
	{&occ_codec_none, 2, 64, 64, 1},
};

static void check_ratios(void)
{
	for (size_t i = 0; i < sizeof(ratios) / sizeof(ratios[0]); i++) {
		const struct ratio *r = &ratios[i];
		struct occ_site s = {.min_ratio = 1};
		struct occ_transfer t = usual_transfer(OCC_DP);
		s.knobs = (struct occ_knobs){
			.codec = r->codec, .rank = 16, .iterations = 1, .bits = 4, .group = 128};
		s.knobs.fraction = 0.01;
		s.knobs.period = 4;
		s.knobs.epsilon = 1e-3;
		t.n = r->n;
		t.m = r->m;
		t.peers = r->peers;
		double got = occ_route_ratio(&s, &t);
		CHECK_NEAR(got, r->want, 2e-5 * r->want, "%s, %d peers: %g", r->codec->name,
			   r->peers, got);
	}
}

/* The matrices of a layer under tensor parallelism 8, rank 128: which are worth it. */
static void check_layer(void)
{
	static const int64_t h = 1024;
	static const struct {
		const char *name;
		int64_t n, m;
		double ratio;
	} at[] = {{"qkv", 3 * h / 8, h, 2.18},
		  {"out", h, h / 8, 0.89},
		  {"fc1", 4 * h / 8, h, 2.67},
		  {"fc2", h, 4 * h / 8, 2.67}};
	struct occ_policy p = usual_policy();
	p.site[OCC_DP].knobs.rank = 128;
	for (int i = 0; i < 4; i++) {
		struct occ_transfer t = usual_transfer(OCC_DP);
		t.n = at[i].n;
		t.m = at[i].m;
		p.site[OCC_DP].min_ratio = 1;
		double ratio = occ_route_ratio(&p.site[OCC_DP], &t);
		CHECK_NEAR(ratio, at[i].ratio, 0.005, "%s: %g", at[i].name, ratio);
		CHECK((occ_route(&p, &t).codec != NULL) == (ratio > 1), "%s", at[i].name);
		p.site[OCC_DP].min_ratio = 0;
		CHECK(occ_route(&p, &t).codec != NULL, "%s with min_ratio 0", at[i].name);
	}
}

/* ---- Marks and routes on all links of a step. ---- */

static const struct occ_cost slow = {1, 2, 0.5, 0.75, 0};
static const struct occ_cost none;

static void mark(struct occ_schedule *s, enum occ_op send, enum occ_mark rule,
		 const struct occ_cost *cost)
{
	if (rule == OCC_MARK_SLACK)
		occ_schedule_mark_slack(s, send, s->nstages, s->nmicro, cost);
	else
		occ_schedule_mark(s, send, rule);
}

/* The route of an instruction's transfer as the stage that holds it sees it. */
static int compressed(const struct occ_policy *p, const struct occ_schedule *s,
		      const struct occ_instr *in)
{
	int grad = in->op == OCC_SEND_GRAD || in->op == OCC_RECV_GRAD;
	int sends = in->op == OCC_SEND_GRAD || in->op == OCC_SEND_ACT;
	struct occ_transfer t = usual_transfer(grad ? OCC_PP_BACKWARD : OCC_PP_FORWARD);
	t.stage = sends ? s->stage : in->peer;
	t.critical = in->flags & OCC_CRITICAL ? 1 : 0;
	return occ_route(p, &t).codec != NULL;
}

/* got[mb]: what is compressed of one list's ends `op` of the link to `peer`; their number. */
static int collect(const struct occ_schedule *s, enum occ_op op, int peer, int got[MAX_M])
{
	struct occ_policy p = usual_policy();
	int n = 0;
	memset(got, 0, MAX_M * sizeof(*got));
	for (int i = 0; i < s->n; i++)
		if (s->at[i].op == op && s->at[i].peer == peer)
			n += got[s->at[i].mb] = compressed(&p, s, &s->at[i]);
	return n;
}

static void build(struct occ_schedule *all, int P, int M)
{
	for (int s = 0; s < P; s++)
		occ_schedule_1f1b(&all[s], s, P, M);
}

static void release(struct occ_schedule *all, int P)
{
	for (int s = 0; s < P; s++)
		occ_schedule_release(&all[s]);
}

/* Both ends of every link agree on every micro-batch, in both directions; returns how many of the
 * gradients are compressed, and each link's number in count[sender]. */
static int check_ends(const struct occ_schedule *all, int P, enum occ_op send, const char *what,
		      int count[MAX_P])
{
	enum occ_op recv = send == OCC_SEND_GRAD ? OCC_RECV_GRAD : OCC_RECV_ACT;
	int step = send == OCC_SEND_GRAD ? -1 : 1, total = 0, a[MAX_M], b[MAX_M];
	for (int s = 0; s < P; s++) {
		int to = s + step;
		count[s] = 0;
		if (to < 0 || to >= P)
			continue;
		count[s] = collect(&all[s], send, to, a);
		collect(&all[to], recv, s, b);
		total += count[s];
		CHECK(!memcmp(a, b, sizeof(a)), "P %d M %d %s: link %d to %d", P, all[0].nmicro,
		      what, s, to);
	}
	return total;
}

static void check_marks(int P, int M)
{
	static const char *const names[] = {"none", "tail", "slack", "all"};
	struct occ_schedule all[MAX_P];
	int count[MAX_P];
	build(all, P, M);
	for (int rule = OCC_MARK_NONE; rule <= OCC_MARK_ALL; rule++)
		for (int back = 0; back < 2; back++) {
			enum occ_op send = back ? OCC_SEND_GRAD : OCC_SEND_ACT;
			for (int s = 0; s < P; s++)
				mark(&all[s], send, (enum occ_mark)rule, &slow);
			int total = check_ends(all, P, send, names[rule], count);
			CHECK(rule != OCC_MARK_NONE || total == 0, "P %d M %d: %d", P, M, total);
			CHECK(rule != OCC_MARK_ALL || total == (P - 1) * M, "P %d M %d: %d", P, M,
			      total);
		}
	release(all, P);
}

/* Gradients: the last min(P - s, M) of link s -> s-1; activations: the first min(P-1-s, M). */
static void check_tail(int P, int M)
{
	struct occ_schedule all[MAX_P];
	int count[MAX_P], got[MAX_M], total;
	build(all, P, M);
	for (int s = 0; s < P; s++) {
		mark(&all[s], OCC_SEND_GRAD, OCC_MARK_TAIL, NULL);
		mark(&all[s], OCC_SEND_ACT, OCC_MARK_TAIL, NULL);
	}
	total = check_ends(all, P, OCC_SEND_GRAD, "tail", count);
	for (int s = 1; s < P; s++)
		CHECK(count[s] == least(P - s, M), "P %d M %d link %d: %d", P, M, s, count[s]);
	if (M >= P && P > 1)
		CHECK_NEAR((double)total / ((P - 1) * M), P / (2.0 * M), 1e-12, "P %d M %d: %d", P,
			   M, total);
	check_ends(all, P, OCC_SEND_ACT, "forward tail", count);
	for (int s = 0; s + 1 < P; s++) {
		int first = least(P - 1 - s, M);
		collect(&all[s], OCC_SEND_ACT, s + 1, got);
		CHECK(count[s] == first, "P %d M %d link %d: %d", P, M, s, count[s]);
		for (int mb = 0; mb < M; mb++)
			CHECK(got[mb] == (mb < first), "P %d M %d link %d: %d", P, M, s, mb);
	}
	release(all, P);
}

/* The numbers of the paper's figure: 3, 2 and 1 of 16. */
static void check_four_stages(void)
{
	struct occ_schedule all[4];
	int count[MAX_P];
	build(all, 4, 16);
	for (int s = 0; s < 4; s++)
		mark(&all[s], OCC_SEND_GRAD, OCC_MARK_TAIL, NULL);
	int total = check_ends(all, 4, OCC_SEND_GRAD, "tail", count);
	CHECK(count[1] == 3 && count[2] == 2 && count[3] == 1 && total == 6, "%d, %d, %d of 16",
	      count[1], count[2], count[3]);
	release(all, 4);
}

/* No wait, no mark; a mark of one direction leaves the other's. */
static void check_slack(int P, int M)
{
	struct occ_schedule all[MAX_P];
	int count[MAX_P];
	build(all, P, M);
	for (int s = 0; s < P; s++) {
		mark(&all[s], OCC_SEND_GRAD, OCC_MARK_ALL, NULL);
		mark(&all[s], OCC_SEND_ACT, OCC_MARK_ALL, NULL);
		mark(&all[s], OCC_SEND_GRAD, OCC_MARK_SLACK, &none);
	}
	CHECK(check_ends(all, P, OCC_SEND_GRAD, "no cost", count) == 0, "P %d M %d", P, M);
	CHECK(check_ends(all, P, OCC_SEND_ACT, "untouched", count) == (P - 1) * M, "P %d M %d", P,
	      M);
	for (int s = 0; s < P; s++)
		mark(&all[s], OCC_SEND_ACT, OCC_MARK_SLACK, &none);
	CHECK(check_ends(all, P, OCC_SEND_ACT, "no cost", count) == 0, "P %d M %d", P, M);
	/* The first activation is waited for by every stage, the last gradient by stage 0. */
	for (int s = 0; s < P; s++) {
		mark(&all[s], OCC_SEND_GRAD, OCC_MARK_SLACK, &slow);
		mark(&all[s], OCC_SEND_ACT, OCC_MARK_SLACK, &slow);
	}
	int got[MAX_M];
	for (int s = 0; s + 1 < P; s++) {
		collect(&all[s], OCC_SEND_ACT, s + 1, got);
		CHECK(got[0], "P %d M %d: first activation of %d", P, M, s);
		collect(&all[s + 1], OCC_SEND_GRAD, s, got);
		CHECK(got[M - 1], "P %d M %d: last gradient of %d", P, M, s + 1);
	}
	release(all, P);
}

/* A gradient is critical if and only if the activation of its micro-batch and link is. */
static void check_follow(int P, int M)
{
	struct occ_schedule all[MAX_P];
	int count[MAX_P], act[MAX_M], grad[MAX_M];
	for (int rule = OCC_MARK_NONE; rule <= OCC_MARK_ALL; rule++) {
		build(all, P, M);
		for (int s = 0; s < P; s++) {
			/* what must not remain */
			mark(&all[s], OCC_SEND_GRAD, rule ? OCC_MARK_NONE : OCC_MARK_ALL, NULL);
			mark(&all[s], OCC_SEND_ACT, (enum occ_mark)rule, &slow);
			occ_schedule_follow(&all[s]);
		}
		check_ends(all, P, OCC_SEND_GRAD, "follow", count);
		for (int s = 0; s + 1 < P; s++) {
			collect(&all[s], OCC_SEND_ACT, s + 1, act);
			collect(&all[s + 1], OCC_SEND_GRAD, s, grad);
			CHECK(!memcmp(act, grad, sizeof(act)), "P %d M %d rule %d link %d", P, M,
			      rule, s);
		}
		release(all, P);
	}
}

int main(void)
{
	check_rules();
	check_sites();
	check_follow_site();
	check_ratios();
	check_layer();
	check_four_stages();
	for (int P = 1; P <= MAX_P; P++)
		for (int M = 1; M <= MAX_M; M++) {
			check_marks(P, M);
			check_tail(P, M);
			check_slack(P, M);
			check_follow(P, M);
		}
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}
