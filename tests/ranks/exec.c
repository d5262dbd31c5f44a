/* The executor with a stage that knows what it must be given: values, slots, sums, counters, for
 * all P <= 4, tp <= 2, dp <= 2, M <= 6. Stages write NaN outside the slice that their rank sends.
 */
#include "parallel/exec.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tests/check.h"
#include "tests/fake_device.h"

enum { GRADS = 11, EMBED = 4, STEPS = 3 };

struct setting {
	struct occ_layout layout;
	int M, visible, ranks_per_node, tied;
	int64_t rows, C;
	enum occ_type type;
};

/* One rank's stage; `step` makes every step's values its own. */
struct fake {
	const struct setting *set;
	struct occ_topo *topo;
	struct occ_device *dev;
	int step, forwards, backwards, evaluating;
	int held[8]; /* [slot] micro-batch, or -1 */
	struct occ_stage stage;
};

/* Small whole numbers: exact in bf16. Kind 0: what stage s sends on, 1: what it sends back. */
static float content(const struct fake *f, int kind, int s, int mb, int64_t i)
{
	return (float)((kind * 50 + s * 29 + mb * 13 + f->topo->place.dp * 7 + f->step * 5 + i) %
		       127);
}

static float load(const struct fake *f, const void *d_x, int64_t i)
{
	const void *x = fake_host(f->dev, d_x);
	return f->set->type == OCC_F32 ? ((const float *)x)[i]
				       : occ_bf16_to_f32(((const uint16_t *)x)[i]);
}

static void store(const struct fake *f, void *d_x, int64_t i, float v)
{
	void *x = fake_host(f->dev, d_x);
	if (f->set->type == OCC_F32)
		((float *)x)[i] = v;
	else
		((uint16_t *)x)[i] = occ_f32_to_bf16(v);
}

static void check_content(const struct fake *f, const void *d_x, int kind, int s, int mb)
{
	int wrong = 0;
	for (int64_t i = 0; i < f->set->rows * f->set->C; i++)
		wrong += load(f, d_x, i) != content(f, kind, s, mb, i);
	CHECK(wrong == 0, "P %d M %d: kind %d of stage %d, micro-batch %d: %d wrong",
	      f->set->layout.pipeline, f->set->M, kind, s, mb, wrong);
}

static void write_slice(const struct fake *f, void *d_x, int kind, int mb)
{
	int t = f->topo->place.tp, T = f->set->layout.tensor;
	int64_t C = f->set->C, at = occ_slice_row(f->set->rows, t, T) * C;
	int64_t end = occ_slice_row(f->set->rows, t + 1, T) * C;
	for (int64_t i = 0; i < f->set->rows * C; i++)
		store(f, d_x, i,
		      i >= at && i < end ? content(f, kind, f->topo->place.pp, mb, i) : NAN);
}

/* Ranks are early and late in turn, the same in every run. */
static void dawdle(const struct fake *f, int mb)
{
	if (occ_rng_u64((uint64_t)f->topo->world->rank, (uint64_t)mb) % 4 == 0)
		usleep(100);
}

static void forward(void *self, int mb, int slot, const void *d_in, void *d_out)
{
	struct fake *f = self;
	int s = f->topo->place.pp;
	CHECK((d_in == NULL) == (s == 0) && (d_out == NULL) == (s == f->set->layout.pipeline - 1),
	      "stage %d: ends", s);
	CHECK(mb == f->forwards++ && f->held[slot] < 0, "stage %d: %d in slot %d", s, mb, slot);
	f->held[slot] = f->evaluating ? -1 : mb;
	dawdle(f, mb);
	if (d_in)
		check_content(f, d_in, 0, s - 1, mb);
	if (d_out)
		write_slice(f, d_out, 0, mb);
}

static void backward(void *self, int mb, int slot, const void *d_in, const void *d_dout,
		     void *d_din)
{
	struct fake *f = self;
	int s = f->topo->place.pp;
	CHECK((d_din == NULL) == (s == 0) && (d_dout == NULL) == (s == f->set->layout.pipeline - 1),
	      "stage %d: ends", s);
	CHECK(mb == f->backwards++ && f->held[slot] == mb, "stage %d: %d in slot %d", s, mb, slot);
	f->held[slot] = -1;
	dawdle(f, mb + 100);
	if (d_in)
		check_content(f, d_in, 0, s - 1, mb);
	if (d_dout)
		check_content(f, d_dout, 1, s + 1, mb);
	if (d_din)
		write_slice(f, d_din, 1, mb);
	float *grad = fake_host(f->dev, f->stage.d_grad);
	for (int j = 0; j < GRADS; j++)
		grad[j] += (float)(1 + s * 100 + mb * 3 + f->topo->place.dp * 5 + j);
}

/* What one replica's stage s adds to gradient j in a step. */
static float grad_of(const struct setting *set, int s, int dp, int j)
{
	int M = set->M;
	return (float)(M * (1 + s * 100 + dp * 5 + j) + 3 * (M * (M - 1) / 2));
}

static float grad_sum(const struct setting *set, int s, int j)
{
	float sum = 0;
	for (int dp = 0; dp < set->layout.data; dp++)
		sum += grad_of(set, s, dp, j);
	return sum;
}

/* The tied range starts at 2 on the first stage and at 5 on the last. */
static int embed_at(int s)
{
	return s == 0 ? 2 : 5;
}

static void check_grads(const struct fake *f)
{
	const struct setting *set = f->set;
	int s = f->topo->place.pp, last = set->layout.pipeline - 1;
	const float *grad = fake_host(f->dev, f->stage.d_grad);
	for (int j = 0; j < GRADS; j++) {
		float want = grad_sum(set, s, j);
		int k = j - embed_at(s); /* in the tied range */
		if (set->tied && last > 0 && (s == 0 || s == last) && k >= 0 && k < EMBED)
			want = grad_sum(set, 0, k + embed_at(0)) +
			       grad_sum(set, last, k + embed_at(last));
		CHECK(grad[j] == want, "P %d M %d stage %d: gradient %d is %g, not %g", last + 1,
		      set->M, s, j, grad[j], want);
	}
}

static void begin_step(struct fake *f, int step)
{
	f->step = step;
	f->forwards = f->backwards = 0;
	memset(f->held, -1, sizeof(f->held));
	memset(fake_host(f->dev, f->stage.d_grad), 0, GRADS * sizeof(float));
}

/* The closed forms of `steps` training steps, all ranks together. */
static void expect_traffic(const struct setting *set, int steps, struct occ_traffic *want)
{
	int T = set->layout.tensor, P = set->layout.pipeline, D = set->layout.data;
	int64_t matrix = set->rows * set->C * (int64_t)occ_type_size(set->type);
	int64_t links = (int64_t)(P - 1) * set->M * D * steps; /* transfers of whole matrices */
	int64_t slices = set->rows < T ? set->rows : T;
	for (int k = OCC_PP_FORWARD; k <= OCC_PP_BACKWARD; k++) {
		want[k].messages = links * slices;
		want[k].wire_bytes = links * matrix;
	}
	want[OCC_TP].messages = 2 * links * T * (T - 1);
	want[OCC_TP].wire_bytes = 2 * links * (T - 1) * matrix;
	want[OCC_DP].messages = (int64_t)steps * P * T * D * 2 * (D - 1);
	want[OCC_DP].wire_bytes = (int64_t)steps * P * T * 2 * (D - 1) * GRADS * 4;
	if (P > 1 && set->tied) {
		want[OCC_EMBEDDING].messages = (int64_t)steps * D * T * 2 * 2;
		want[OCC_EMBEDDING].wire_bytes = (int64_t)steps * D * T * 2 * EMBED * 4;
	}
}

/* Of a world's transfers between stages, the bytes that leave a node. */
static int64_t expect_crossing(const struct setting *set, int steps)
{
	const struct occ_layout *l = &set->layout;
	int64_t bytes = 0, row = set->C * (int64_t)occ_type_size(set->type);
	for (int r = 0; r < l->tensor * l->pipeline * l->data; r++) {
		struct occ_place p = occ_place_of(l, r);
		if (++p.pp == l->pipeline)
			continue;
		int64_t n = occ_slice_row(set->rows, p.tp + 1, l->tensor) -
			    occ_slice_row(set->rows, p.tp, l->tensor);
		if (occ_rank_of(l, p) / set->ranks_per_node != r / set->ranks_per_node)
			bytes += n * row;
	}
	return bytes * set->M * steps;
}

static void check_traffic(const struct fake *f, int steps)
{
	struct occ_traffic want[OCC_NKINDS] = {0};
	expect_traffic(f->set, steps, want);
	for (int k = 0; k < OCC_NKINDS; k++) {
		const struct occ_traffic *t = &f->topo->traffic[k];
		double got[4] = {(double)t->messages, (double)t->raw_bytes, (double)t->wire_bytes,
				 (double)t->inter_node_wire_bytes};
		occ_comm_sum_double(f->topo->world, got, 4);
		CHECK(got[0] == (double)want[k].messages && got[1] == (double)want[k].wire_bytes &&
			      got[2] == got[1],
		      "%s: %g messages (%lld), %g bytes (%lld)", occ_kind_name[k], got[0],
		      (long long)want[k].messages, got[2], (long long)want[k].wire_bytes);
		if (k <= OCC_PP_BACKWARD && f->set->ranks_per_node)
			CHECK(got[3] == (double)expect_crossing(f->set, steps),
			      "%s: %g bytes cross", occ_kind_name[k], got[3]);
		CHECK(t->exposed_ms >= 0, "%s: exposed %g ms", occ_kind_name[k], t->exposed_ms);
	}
}

static void train(struct fake *f, struct occ_exec *x, const struct occ_schedule *list, int step)
{
	begin_step(f, step);
	occ_exec_step(x, list, step);
	CHECK(f->forwards == f->set->M && f->backwards == f->set->M, "step %d", step);
	check_grads(f);
}

/* Training, then an evaluation, which has another list and one slot, then training again. */
static void run_steps(struct fake *f, struct occ_exec *x)
{
	struct occ_schedule list, eval;
	int P = f->set->layout.pipeline, s = f->topo->place.pp;
	occ_schedule_1f1b(&list, s, P, f->set->M);
	occ_schedule_mark(&list, OCC_SEND_GRAD, OCC_MARK_TAIL);
	occ_schedule_forward(&eval, s, P, 5);
	for (int step = 0; step < STEPS; step++)
		train(f, x, &list, step);
	check_traffic(f, STEPS);
	begin_step(f, STEPS);
	f->evaluating = 1;
	occ_exec_step(x, &eval, STEPS);
	f->evaluating = 0;
	CHECK(f->forwards == 5 && f->backwards == 0, "evaluation of 5");
	int64_t calls = occ_mem_calls();
	train(f, x, &list, STEPS + 1);
	CHECK(f->set->layout.data * f->set->layout.tensor * P > 1 || occ_mem_calls() == calls,
	      "a step allocates");
	occ_schedule_release(&eval);
	occ_schedule_release(&list);
}

/* Ranks of a group are in the order of their coordinate: sums have the same bits in every layout.
 */
static void check_topo(const struct occ_topo *t)
{
	const struct occ_layout *l = &t->layout;
	struct occ_place p = t->place;
	int end = p.pp == 0 || p.pp == l->pipeline - 1;
	CHECK(t->tp->size == l->tensor && t->tp->rank == p.tp, "tp rank %d", t->tp->rank);
	CHECK(t->dp->size == l->data && t->dp->rank == p.dp, "dp rank %d", t->dp->rank);
	CHECK(t->model->size == l->tensor * l->pipeline &&
		      t->model->rank == p.pp * l->tensor + p.tp,
	      "model rank %d", t->model->rank);
	CHECK((t->embed != NULL) == (l->pipeline > 1 && end), "embed on stage %d", p.pp);
	if (t->embed)
		CHECK(t->embed->size == 2 && t->embed->rank == (p.pp > 0), "embed rank %d",
		      t->embed->rank);
}

static int body(struct occ_comm *world, void *arg)
{
	const struct setting *set = arg;
	struct occ_topo topo;
	struct occ_exec x;
	struct occ_group tp;
	struct occ_device dev = {.ops = &fake_ops[set->visible], .type = set->type, .threads = 1};
	occ_topo_init(&topo, world, &set->layout, set->ranks_per_node, 0);
	check_topo(&topo);
	struct fake f = {.set = set, .topo = &topo, .dev = &dev};
	int s = topo.place.pp, P = set->layout.pipeline, slots = P - s < set->M ? P - s : set->M;
	f.stage = (struct occ_stage){.self = &f, .forward = forward, .backward = backward};
	f.stage.d_grad = dev.ops->alloc(&dev, GRADS * sizeof(float));
	f.stage.n_grad = GRADS;
	int at = embed_at(s);
	const struct occ_tensor tensors[] = {
		{.name = "a", .n = 1, .m = at},
		{.name = "e", .at = at, .n = 1, .m = EMBED, .embedding = set->tied && P > 1},
		{.name = "b", .at = at + EMBED, .n = 1, .m = GRADS - EMBED - at},
	};
	f.stage.tensor = tensors;
	f.stage.ntensors = 3;
	struct occ_policy dense = {0};
	struct occ_exec_conf conf = {set->rows, set->C, slots, &dense, &f.stage};
	occ_group_init(&tp, topo.tp, &dev, 1 << 15);
	occ_exec_init(&x, &topo, &dev, &tp, &conf);
	run_steps(&f, &x);
	occ_exec_release(&x);
	occ_group_release(&tp);
	dev.ops->free(&dev, f.stage.d_grad);
	occ_topo_release(&topo);
	return 0;
}

/* A shape; the other choices go round so that each meets each. Rows of 1200 are beyond what MPI
 * sends before the receiver is ready. */
static struct setting shape(int T, int P, int D, int M)
{
	int k = T + 2 * P + 3 * D + 5 * M;
	return (struct setting){
		.layout = {.tensor = T, .pipeline = P, .data = D},
		.M = M,
		.visible = k & 1,
		.ranks_per_node = k % 3,
		.tied = k / 2 & 1,
		.rows = k % 5 ? 7 : 1,
		.C = M & 1 ? 3 : 1200,
		.type = k / 4 & 1 ? OCC_BF16 : OCC_F32,
	};
}

/* All shapes: as threads, or on a world of that size. */
static void run_shapes(struct occ_comm *world)
{
	for (int T = 1; T <= 2; T++)
		for (int P = 1; P <= 4; P++)
			for (int D = 1; D <= 2; D++)
				for (int M = 1; M <= 6; M++) {
					struct setting set = shape(T, P, D, M);
					if (!world)
						occ_comm_run_threads(T * P * D, 30, body, &set);
					else if (T * P * D == world->size)
						body(world, &set);
				}
}

static int run_mpi(void)
{
	struct occ_err e = {0};
	struct occ_comm *world = occ_comm_open_mpi(30, &e);
	if (!world) {
		occ_err_print(&e);
		return e.code;
	}
	int speaks = world->rank == 0;
	run_shapes(world);
	double failed = check_failed;
	occ_comm_sum_double(world, &failed, 1);
	check_failed = (int)failed;
	occ_comm_close(world);
	return speaks ? check_done() : failed > 0;
}

int main(void)
{
	if (getenv("OMPI_COMM_WORLD_SIZE"))
		return run_mpi();
	run_shapes(NULL);
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}
