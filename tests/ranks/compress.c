/* Compression in whole training steps of the tiny GPT over ranks: what stays exact, what a link
 * loses and gives back, replicas that stay equal, steps that do not count.
 *
 * TIME: 240
 * CUDA: 2 */
#include <stdlib.h>

#include "tests/check.h"
#include "tests/traced_gpt.h"

/* ---- Full rank: as if nothing were compressed. ---- */

static void check_full_rank(struct occ_layout l)
{
	struct plan p = plain;
	p.set.layout = l;
	p.set.global = 4 * l.data;
	p.steps = 50;
	p.lr = 0.01f; /* with more, a rounding error alone grows to 1e-4 in 50 steps */
	struct job dense = run(&p);
	p.set.name = "full rank";
	for (int kind = 0; kind < OCC_NSITES; kind++) {
		p.set.policy.site[kind] = sum_site(64);
		p.set.policy.site[kind].mark = OCC_MARK_ALL;
	}
	struct job full = run(&p);
	double worst = 0;
	for (int i = 0; i < p.steps; i++) {
		double d = fabs(loss_of(&full, i) / loss_of(&dense, i) - 1);
		worst = d <= worst ? worst : d;
	}
	CHECK(worst <= 1e-4, "%dx%dx%d: the loss at full rank is off by %.3g", l.tensor, l.pipeline,
	      l.data, worst);
	CHECK(loss_of(&dense, p.steps - 1) < 0.9 * loss_of(&dense, 0), "nothing was learned");
	job_release(&dense);
	job_release(&full);
}

/* ---- Tail marks: all that comes before the first compressed gradient is exact. ---- */

static int equal(const struct plan *p, const struct job *x, const struct job *y, int rank, int what,
		 int mb)
{
	return !memcmp(tape(p, &x->at[rank], 0, what, mb), tape(p, &y->at[rank], 0, what, mb),
		       (size_t)matrix(&p->set) * sizeof(float));
}

/* What one rank was given in step 0: marked gradients differ from the dense run's, no others. */
static void compare_transfers(const struct plan *p, const struct job *x, const struct job *y,
			      int rank)
{
	const struct occ_layout *l = &p->set.layout;
	struct occ_place at = occ_place_of(l, rank);
	int last = at.pp == l->pipeline - 1, M = nmicro(&p->set);
	at.pp++;
	for (int mb = 0; mb < M; mb++) {
		CHECK(equal(p, x, y, rank, GIVEN_X, mb), "rank %d: activation %d", rank, mb);
		if (last)
			continue;
		int marked = y->at[occ_rank_of(l, at)].sent[M + mb];
		CHECK(equal(p, x, y, rank, GIVEN_DX, mb) == !marked,
		      "P %d M %d, rank %d: gradient %d, %s", l->pipeline, M, rank, mb,
		      marked ? "marked, is exact" : "not marked, is not");
	}
	if (last)
		CHECK(x->at[rank].loss[0] == y->at[rank].loss[0] &&
			      !memcmp(x->at[rank].grad, y->at[rank].grad,
				      (size_t)x->at[rank].size * sizeof(float)),
		      "P %d M %d, rank %d: the last stage is not exact", l->pipeline, M, rank);
}

static void check_tail(int tp, int pp, int M)
{
	struct plan p = plain;
	p.set.layout = (struct occ_layout){tp, pp, 1};
	p.set.global = M;
	p.set.tied = 0;
	p.tape = 1;
	p.steps = 1;
	struct job dense = run(&p);
	p.set.policy.site[OCC_PP_BACKWARD] = link_site(POWERSGD, OCC_MARK_TAIL);
	p.set.policy.site[OCC_PP_BACKWARD].knobs.rank = 1;
	struct job tail = run(&p);
	for (int rank = 0; rank < tp * pp; rank++)
		compare_transfers(&p, &dense, &tail, rank);
	job_release(&dense);
	job_release(&tail);
}

/* ---- Lazy error propagation: what a link loses, it sends later. ---- */

/* A link of one tensor rank: its slice of the rows is n elements from `at` on. */
struct line {
	const struct trace *from, *to;
	int way;
	int64_t at, n;
};

static double off(const double *x, const double *y, int64_t n)
{
	double diff = 0, norm = 0;
	for (int64_t i = 0; i < n; i++) {
		diff += (x[i] - y[i]) * (x[i] - y[i]);
		norm += y[i] * y[i];
	}
	return sqrt(diff / norm);
}

static void add(double *to, const float *x, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		to[i] += (double)x[i];
}

/* Over steps first .. end-1: what was to go + old residual = what arrived + new residual. */
static void balance(const struct plan *p, const struct line *l, int first, int end)
{
	double in[2 * T * HIDDEN] = {0}, out[2 * T * HIDDEN] = {0}; /* micro is at most 2 */
	int M = nmicro(&p->set), way = l->way;
	char text[96];
	if (first > 0)
		add(in, residual(p, l->from, first - 1, way) + l->at, l->n);
	add(out, residual(p, l->from, end - 1, way) + l->at, l->n);
	for (int i = first * M; i < end * M; i++) {
		int step = i / M, mb = i % M;
		if (!l->from->sent[way * M + mb])
			continue;
		add(in, tape(p, l->from, step, way ? MADE_DX : MADE_X, mb) + l->at, l->n);
		add(out, tape(p, l->to, step, way ? GIVEN_DX : GIVEN_X, mb) + l->at, l->n);
	}
	describe(p, text, sizeof(text));
	CHECK(off(out, in, l->n) <= 1e-5, "%s: %s of stream in steps %d to %d: %.3g is lost", text,
	      way ? "gradients" : "activations", first, end, off(out, in, l->n));
}

static void check_line(const struct job *j, int rank, int way)
{
	const struct plan *p = j->plan;
	const struct occ_layout *l = &p->set.layout;
	struct occ_place to = occ_place_of(l, rank);
	int64_t rows = p->set.micro * T, at = occ_slice_row(rows, to.tp, l->tensor);
	to.pp += way == FORWARD ? 1 : -1;
	if (to.pp < 0 || to.pp == l->pipeline)
		return;
	struct line line = {&j->at[rank], &j->at[occ_rank_of(l, to)], way, at * HIDDEN, 0};
	line.n = occ_slice_row(rows, to.tp + 1, l->tensor) * HIDDEN - line.at;
	for (int step = 0; step < p->steps; step++)
		balance(p, &line, step, step + 1);
	balance(p, &line, 0, p->steps);
}

static void check_links(struct occ_layout l, int method, int M, int micro)
{
	struct plan p = plain;
	enum occ_mark mark = M % 3 ? OCC_MARK_TAIL : OCC_MARK_ALL;
	p.set.name = methods[method].name;
	p.set.layout = l;
	p.set.micro = micro;
	p.set.global = M * micro;
	p.tape = p.fresh = 1;
	p.lr = 0.01f; /* activations that come a micro-batch late make the model worse */
	p.set.policy.site[OCC_PP_FORWARD] = link_site(method, mark);
	p.set.policy.site[OCC_PP_BACKWARD] = link_site(method, mark);
	struct job j = run(&p);
	for (int rank = 0; rank < nranks(&p.set); rank++)
		for (int way = 0; way < NWAYS; way++)
			check_line(&j, rank, way);
	job_release(&j);
}

/* ---- dct: gradients follow the support of their activations. ---- */

static void check_support(const struct job *j, int rank, int step, int mb)
{
	const struct plan *p = j->plan;
	struct occ_place up = occ_place_of(&p->set.layout, rank);
	up.pp--;
	const struct trace *before = &j->at[occ_rank_of(&p->set.layout, up)];
	const float *x = tape(p, &j->at[rank], step, GIVEN_X, mb);
	const float *dx = tape(p, before, step, GIVEN_DX, mb);
	int k = (int)occ_codec_kept(methods[DCT].knobs.fraction, HIDDEN), wrong = 0, outside = 0;
	int marked = before->sent[mb];
	for (int64_t row = 0; row < p->set.micro * T; row++) {
		int kept = 0;
		for (int64_t i = row * HIDDEN; i < (row + 1) * HIDDEN; i++) {
			kept += x[i] != 0;
			outside += x[i] == 0 && dx[i] != 0;
		}
		wrong += kept != (marked ? k : HIDDEN);
	}
	CHECK(!wrong && !outside, "rank %d, step %d, %d: %d rows do not keep %d, %d values outside",
	      rank, step, mb, wrong, marked ? k : HIDDEN, outside);
}

static void check_dct(struct occ_layout l, enum occ_mark mark, int feedback)
{
	struct plan p = plain;
	int M = 5;
	p.set.name = "dct";
	p.set.layout = l;
	p.set.micro = 2;
	p.set.global = M * 2 * l.data;
	p.tape = p.fresh = 1;
	p.set.policy.site[OCC_PP_FORWARD] = link_site(DCT, mark);
	p.set.policy.site[OCC_PP_FORWARD].feedback = feedback;
	struct job j = run(&p);
	for (int rank = 0; rank < nranks(&p.set); rank++)
		for (int i = 0; i < p.steps * M && occ_place_of(&l, rank).pp; i++)
			check_support(&j, rank, i / M, i % M);
	job_release(&j);
}

/* ---- Replicas hold the same bits. ---- */

static struct plan all_compressed(int forward, int backward)
{
	struct plan p = plain;
	p.set.name = methods[backward].name;
	p.set.policy.site[OCC_PP_FORWARD] = link_site(forward, OCC_MARK_ALL);
	p.set.policy.site[OCC_PP_BACKWARD] = link_site(backward, OCC_MARK_TAIL);
	p.set.policy.site[OCC_DP] = sum_site(2);
	p.fresh = 1;
	return p;
}

static void check_replicas(struct occ_layout l, int ranks_per_node, int fused)
{
	struct plan p = all_compressed(QUANT, POWERSGD);
	p.set.layout = l;
	p.set.ranks_per_node = ranks_per_node;
	p.set.policy.scope = ranks_per_node ? OCC_SCOPE_INTER_NODE : OCC_SCOPE_ALL;
	p.set.policy.fused = fused;
	p.set.global = 2 * l.data;
	p.steps = 100;
	struct job j = run(&p);
	for (int rank = 0; rank < nranks(&p.set); rank++) {
		struct occ_place first = occ_place_of(&l, rank);
		first.dp = 0;
		const struct trace *x = &j.at[rank], *y = &j.at[occ_rank_of(&l, first)];
		CHECK(!memcmp(x->weights, y->weights, (size_t)x->size * sizeof(float)),
		      "%dx%dx%d: rank %d is unlike its first replica", l.tensor, l.pipeline, l.data,
		      rank);
	}
	double loss = loss_of(&j, p.steps - 1);
	CHECK(loss > 0 && loss < 1.5 * loss_of(&j, 0), "%dx%dx%d: the loss is %g", l.tensor,
	      l.pipeline, l.data, loss);
	job_release(&j);
}

/* ---- Steps that do not count, and evaluations, leave nothing behind. ---- */

static void check_undisturbed(struct occ_layout l, int undo, int forward, int backward)
{
	struct plan p = all_compressed(forward, backward);
	p.set.layout = l;
	p.set.global = 3 * l.data;
	p.set.policy.undo = undo;
	p.steps = 6;
	struct job quiet = run(&p);
	p.disturbed = 1;
	struct job disturbed = run(&p);
	for (int rank = 0; rank < nranks(&p.set); rank++) {
		const struct trace *x = &quiet.at[rank], *y = &disturbed.at[rank];
		for (int step = 0; step < p.steps; step++)
			CHECK(!memcmp(x->grad + step * x->size, y->grad + step * x->size,
				      (size_t)x->size * sizeof(float)),
			      "%s forward, %s backward, rank %d: step %d differs",
			      methods[forward].name, methods[backward].name, rank, step);
	}
	job_release(&quiet);
	job_release(&disturbed);
}

/* ---- What is sent late is as good as independent of what changes meanwhile. ---- */

enum { STAT_STEPS = 30 };

static double cosine(const float *e, const float *x, const float *y, int64_t n)
{
	double ed = 0, ee = 0, dd = 0;
	for (int64_t i = 0; i < n; i++) {
		double d = (double)y[i] - (double)x[i];
		ed += (double)e[i] * d;
		ee += (double)e[i] * (double)e[i];
		dd += d * d;
	}
	return ed / sqrt(ee * dd);
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* |cos| of the residual after a step with the change of the stage's input from the last
 * micro-batch to the next one whose gradient is compressed: their product is the error of the
 * weight gradients (Optimus-CC section 4). */
static double median_cosine(const struct job *j, int rank)
{
	const struct plan *p = j->plan;
	const struct trace *t = &j->at[rank];
	double all[STAT_STEPS - 1];
	int M = nmicro(&p->set), next = 0;
	while (!t->sent[M + next])
		next++;
	for (int step = 0; step + 1 < p->steps; step++)
		all[step] = fabs(cosine(residual(p, t, step, BACKWARD),
					tape(p, t, step, GIVEN_X, M - 1),
					tape(p, t, step + 1, GIVEN_X, next), matrix(&p->set)));
	qsort(all, STAT_STEPS - 1, sizeof(all[0]), by_size);
	return all[(STAT_STEPS - 1) / 2];
}

/* Directions that know nothing of each other, in N dimensions: cos is about normal with deviation
 * 1/sqrt(N), the median of |cos| 0.67/sqrt(N); that of 29 of them is within 0.15/sqrt(N).
 * Activations are correlated, which leaves fewer dimensions than elements, so a little more is
 * allowed. */
static void check_statistics(int method)
{
	struct plan p = plain;
	p.set.name = methods[method].name;
	p.set.layout = (struct occ_layout){1, 4, 1};
	p.set.micro = 2;
	p.set.global = 2 * 6;
	p.tape = p.fresh = 1;
	p.steps = STAT_STEPS;
	p.set.policy.site[BACKWARD] = link_site(method, OCC_MARK_TAIL);
	struct job j = run(&p);
	for (int rank = 1; rank < 4; rank++) {
		double c = median_cosine(&j, rank), most = 1.5 / sqrt((double)matrix(&p.set));
		CHECK(c <= most, "%s, stage %d: |cos| is %.3g", p.set.name, rank, c);
	}
	job_release(&j);
}

/* ---- Tables. ---- */

/* Deep pipelines take turns with the size of a micro-batch. */
static void run_links(void)
{
	static const struct occ_layout layouts[] = {{1, 2, 1}, {2, 2, 1}, {1, 4, 1}, {2, 4, 1}};
	for (int i = 0; i < 4; i++)
		for (int method = 0; method < NMETHODS; method++)
			for (int M = 1; M <= 6; M++)
				for (int micro = 1; micro <= 2; micro++)
					if (i < 2 || (M + method + micro) % 2)
						check_links(layouts[i], method, M, micro);
	for (int method = 0; method < NMETHODS; method++)
		check_links((struct occ_layout){4, 2, 1}, method, 3, 1); /* 5 rows a rank */
}

/* GPU code on the CPU is slow: of every table a part. */
static int other_device(void)
{
	check_tail(2, 2, 3);
	check_tail(1, 4, 4);
	for (int method = 0; method < NMETHODS; method++)
		check_links((struct occ_layout){1 + method % 2, 2, 1}, method, 3 + method % 2, 1);
	check_dct((struct occ_layout){2, 2, 2}, OCC_MARK_TAIL, 1);
	for (int forward = 0; forward < NMETHODS; forward += 2)
		check_undisturbed((struct occ_layout){1, 2, 2}, 1, forward,
				  forward == DCT ? POWERSGD : (forward + 1) % DCT);
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}

int main(void)
{
	if (check_device(NULL))
		return other_device();
	check_full_rank((struct occ_layout){1, 2, 2});
	check_full_rank((struct occ_layout){2, 2, 2});
	check_full_rank((struct occ_layout){1, 4, 1});
	for (int M = 1; M <= 6; M++)
		for (int pp = 2; pp <= 4; pp++)
			check_tail(1 + M % 2, pp, M);
	run_links();
	for (int i = 0; i < 8; i++) /* two layouts, marks, with feedback and without */
		check_dct(i & 1 ? (struct occ_layout){2, 2, 2} : (struct occ_layout){1, 4, 1},
			  i & 2 ? OCC_MARK_ALL : OCC_MARK_TAIL, i >> 2);
	check_replicas((struct occ_layout){1, 1, 4}, 2, 0);
	check_replicas((struct occ_layout){1, 2, 3}, 0, 0);
	check_replicas((struct occ_layout){2, 2, 2}, 2, 1);
	for (int forward = 0; forward < NMETHODS; forward++)
		check_undisturbed((struct occ_layout){1, 2, 2}, 1, forward,
				  forward == DCT ? POWERSGD : (forward + 1) % DCT);
	check_undisturbed((struct occ_layout){1, 2, 1}, 0, POWERSGD, QUANT);
	for (int method = 0; method < DCT; method++)
		check_statistics(method);
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}
