/* Opening a run: each part is opened by all ranks, then agreed, so that a refusal is spoken once.
 */
#include "trainer/run.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "parallel/lane.h"
#include "trainer/weights_io.h"

struct occ_gpt_shape occ_run_shape(const struct occ_config *c, int tp)
{
	const struct occ_config_model *m = &c->model;
	return (struct occ_gpt_shape){
		.layers = m->layers,
		.hidden = m->hidden,
		.heads = m->heads,
		.seq_len = m->seq_len,
		.vocab = m->vocab_size,
		.vocab_padded = occ_vocab_padded(m->vocab_size, m->vocab_multiple, tp),
		.tied = m->tie_embeddings,
		.init_std = m->init_std,
		.dropout = m->dropout,
		.recompute = !strcmp(m->recompute, "full"),
	};
}

/* Where a rank may run: its real node (not an emulated one) and its cores there. */
struct cores {
	int64_t node;
	cpu_set_t set;
};

/* Threads of this rank: the cores it may use, shared with the ranks that may use the very same ones
 * (mpirun binds small jobs to cores of their own, so ranks of a node need not share). Collective.
 */
static int threads_for(const struct occ_config *c, struct occ_comm *world)
{
	size_t n = (size_t)world->size;
	int sharing = 0, *node = occ_alloc(n, sizeof(int));
	struct cores *all = occ_alloc(n, sizeof(*all)), *mine = &all[world->rank];
	size_t *bytes = occ_alloc(n, sizeof(size_t));
	occ_comm_nodes(world, 0, node);
	mine->node = node[world->rank];
	sched_getaffinity(0, sizeof(mine->set), &mine->set);
	for (size_t i = 0; i < n; i++)
		bytes[i] = sizeof(*all);
	occ_comm_gather(world, all, bytes);
	for (size_t i = 0; i < n; i++)
		sharing += !memcmp(&all[i], mine, sizeof(*mine));
	int threads = CPU_COUNT(&mine->set) / (sharing > 0 ? sharing : 1);
	occ_free(bytes);
	occ_free(all);
	occ_free(node);
	if (c->train.threads > 0)
		return (int)c->train.threads;
	return threads > 0 ? threads : 1;
}

static void say_place(const struct occ_topo *t)
{
	char host[64] = "", text[128];
	gethostname(host, sizeof(host) - 1);
	occ_log_rank(t->world->rank);
	occ_log(OCC_LOG_DEBUG, "dp %d pp %d tp %d on node %d, host %s, transport %s", t->place.dp,
		t->place.pp, t->place.tp, t->node_of[t->world->rank], host, t->world->ops->name);
	if (t->world->size == 1)
		return;
	snprintf(text, sizeof(text), "rank %d (dp %d pp %d tp %d) host %s", t->world->rank,
		 t->place.dp, t->place.pp, t->place.tp, host);
	occ_err_place(text);
}

static int open_config(struct occ_run *r, struct occ_err *e)
{
	const struct occ_args *a = r->args;
	if (occ_config_load(&r->conf, a->config, a->sets, a->nsets, e))
		return -1;
	/* One rank that does not train reads weights whatever layout wrote them. */
	if (a->mode != OCC_TRAIN && r->world->size == 1)
		r->conf.parallel.tensor = r->conf.parallel.pipeline = r->conf.parallel.data = 1;
	return occ_config_check(&r->conf, r->world->size, e);
}

static int reads_tokens(const struct occ_topo *t)
{
	return t->place.pp == 0 || t->place.pp == t->layout.pipeline - 1;
}

static int open_one(struct occ_run *r, const struct occ_strings *files, struct occ_data **d,
		    struct occ_err *e)
{
	if (!r->tok)
		r->tok = occ_tokenizer_open(r->conf.data.tokenizer, e);
	if (!r->tok)
		return -1;
	*d = occ_data_open(files, r->tok, r->conf.model.seq_len, r->conf.model.vocab_size, e);
	return *d ? 0 : -1;
}

static int open_data(struct occ_run *r, int needs, struct occ_err *e)
{
	if ((needs & OCC_NEED_TRAIN) && r->conf.train.iters > 0 && !r->conf.data.train.n)
		return occ_fail(e, OCC_E_CONFIG, "data.train is empty: name at least one file");
	if (needs == OCC_NEED_VALID && !r->conf.data.valid.n)
		return occ_fail(e, OCC_E_CONFIG,
				"data.valid is empty: eval needs at least one file");
	if (!reads_tokens(&r->topo))
		return 0;
	if ((needs & OCC_NEED_TRAIN) && r->conf.data.train.n &&
	    open_one(r, &r->conf.data.train, &r->train, e))
		return -1;
	if (r->conf.data.valid.n && (needs & OCC_NEED_VALID))
		return open_one(r, &r->conf.data.valid, &r->valid, e);
	return 0;
}

/* Weights from a checkpoint, else from init.load, else from the seed. */
static int fill_weights(struct occ_run *r, int train, struct occ_err *e)
{
	const struct occ_config *c = &r->conf;
	size_t n = (size_t)r->gpt.weights.size;
	struct occ_ckpt_state s = {.weights = &r->gpt.weights, .shape = &r->shape};
	s.streams = train ? &r->streams : NULL;
	int bad = occ_ckpt_find(r->world, c->checkpoint.dir, c->checkpoint.resume, r->resumed, e);
	if (bad)
		return -1;
	occ_log(OCC_LOG_INFO, "weights from %.700s",
		r->resumed[0]     ? r->resumed
		: c->init_load[0] ? c->init_load
				  : "train.seed");
	s.master = occ_alloc(n, sizeof(float));
	if (r->resumed[0]) {
		s.m = train ? occ_alloc(n, sizeof(float)) : NULL;
		s.v = train ? occ_alloc(n, sizeof(float)) : NULL;
		bad = occ_ckpt_load(r->resumed, &s, e);
		r->step = s.step;
		r->optim.steps = s.step - s.skipped;
		r->skipped = s.skipped;
		r->skipped_in_row = s.skipped_in_row;
	} else if (c->init_load[0]) {
		bad = occ_weights_import(c->init_load, &r->gpt.weights, &r->shape, s.master, e);
	} else if (train) {
		occ_weights_draw(&r->gpt.weights, (uint64_t)c->train.seed, s.master);
	} else {
		bad = occ_fail(e, OCC_E_CONFIG,
			       "no weights: checkpoint.dir holds no complete checkpoint "
			       "and init.load is not set");
	}
	if (!bad && train)
		occ_optim_put(&r->optim, s.master, s.m, s.v);
	else if (!bad)
		occ_gpt_put(&r->gpt, s.master);
	occ_free(s.master);
	occ_free(s.m);
	occ_free(s.v);
	return bad;
}

static void open_model(struct occ_run *r, int train)
{
	const struct occ_config *c = &r->conf;
	const struct occ_layout *l = &r->topo.layout;
	int P = l->pipeline, stage = r->topo.place.pp;
	int64_t rows = c->batch.micro * c->model.seq_len;
	int64_t least = rows > l->tensor ? rows : l->tensor; /* a row of each rank at least */
	size_t piece = (size_t)least * (size_t)c->model.hidden * sizeof(float);
	if (train) {
		occ_schedule_1f1b(&r->sched, stage, P, (int)r->nmicro);
		occ_policy_mark(c, &r->policy, &r->sched);
	}
	occ_schedule_forward(&r->eval_sched, stage, P, (int)r->nmicro);
	occ_schedule_forward(&r->masked_sched, stage, P, (int)r->nmicro);
	occ_schedule_mark(&r->masked_sched, OCC_SEND_ACT, OCC_MARK_ALL);
	int slots = train ? r->sched.slots : 0;
	occ_group_init(&r->tp, r->topo.tp, r->dev, piece);
	occ_gpt_init(&r->gpt, &r->shape, &r->topo, r->dev, &r->tp, c->batch.micro, slots);
	occ_gpt_stage(&r->gpt, &r->stage);
	struct occ_exec_conf x = {rows, c->model.hidden, slots > 0 ? slots : 1, &r->policy,
				  &r->stage};
	occ_exec_init(&r->exec, &r->topo, r->dev, &r->tp, &x);
	occ_streams_collect(&r->streams, &r->exec);
	int64_t streams = r->streams.n;
	for (int i = 0; i < r->streams.n; i++)
		r->streams.at[i].stream->measure = 1;
	occ_comm_max_int64(r->world, &streams, 1);
	r->compresses = streams > 0;
	if (train)
		occ_optim_init(&r->optim, &r->gpt);
	r->tokens = occ_alloc((size_t)(r->nmicro * c->batch.micro * (c->model.seq_len + 1)),
			      sizeof(int32_t));
}

/* What became of the checkpoint's residuals, over all ranks. Collective. */
static void sum_streams(struct occ_run *r)
{
	const struct occ_streams *s = &r->streams;
	double v[5] = {s->exact, s->moved, s->fresh, s->total2, s->taken2};
	occ_comm_sum_double(r->world, v, 5);
	double lost2 = v[3] - v[4] > 1e-9 * v[3] ? v[3] - v[4] : 0;
	r->resumed_streams.exact = v[0];
	r->resumed_streams.moved = v[1];
	r->resumed_streams.fresh = v[2];
	r->resumed_streams.norm = sqrt(v[3]);
	r->resumed_streams.dropped = sqrt(lost2);
}

/* This rank's number among those that share its machine, whatever nodes are emulated. Collective.
 */
static int number_here(struct occ_comm *world)
{
	int *node = occ_alloc((size_t)world->size, sizeof(int)), n = 0;
	occ_comm_nodes(world, 0, node);
	for (int k = 0; k < world->rank; k++)
		n += node[k] == node[world->rank];
	occ_free(node);
	return n;
}

/* The rank's number says which GPU. */
static void open_device(struct occ_run *r, enum occ_type type, struct occ_err *e)
{
	char name[64];
	snprintf(name, sizeof(name), "%s:%d", r->conf.train.device, number_here(r->world));
	r->dev = occ_device_open(name, type, threads_for(&r->conf, r->world), e);
}

/* Where "auto" found a GPU for some ranks only, replicas would drift apart. Collective. */
static void check_devices(struct occ_run *r, struct occ_err *e)
{
	if (occ_differs(r->world, r->dev->unit[0] != '\0'))
		occ_fail(e, OCC_E_DEVICE,
			 "train.device \"%s\": some ranks can use a GPU and some cannot: "
			 "\"cuda\" says why, \"cpu\" trains without",
			 r->conf.train.device);
}

/* How what the device holds travels: by NCCL where every rank has a GPU of its own. Collective. */
static void choose_lanes(struct occ_run *r, struct occ_err *e)
{
	const char *wish = r->conf.parallel.transport;
	int must = !strcmp(wish, "nccl"), may = must || !strcmp(wish, "auto");
	struct occ_err why = {0};
	if (must && r->world->size == 1 && !r->dev->unit[0])
		occ_fail(e, OCC_E_LAUNCH, "parallel.transport nccl: there is no GPU");
	if (r->world->size == 1 || !may || !occ_lane_built())
		return;
	r->world->lanes = occ_lane_serves(r->world, r->dev, &why);
	if (must && why.code)
		occ_fail(e, why.code, "%s", why.text);
	else
		occ_log(OCC_LOG_INFO, "device memory travels %s%s",
			why.code ? "through host memory: " : "by NCCL", why.text);
}

int occ_run_open(struct occ_run *r, const struct occ_args *args, struct occ_comm *world, int needs)
{
	struct occ_err e = {0};
	int train = needs & OCC_NEED_TRAIN, code;
	const struct occ_config *c = &r->conf;
	memset(r, 0, sizeof(*r));
	r->args = args;
	r->world = world;
	open_config(r, &e);
	if ((code = occ_agree(world, &e)))
		return code;
	struct occ_layout l = {(int)c->parallel.tensor, (int)c->parallel.pipeline,
			       (int)c->parallel.data};
	occ_policy_of(c, &r->policy);
	occ_topo_init(&r->topo, world, &l, (int)c->parallel.ranks_per_node, r->policy.fused);
	say_place(&r->topo);
	enum occ_type type = strcmp(c->train.precision, "bf16") ? OCC_F32 : OCC_BF16;
	open_device(r, type, &e);
	if ((code = occ_agree(world, &e)))
		return code;
	check_devices(r, &e);
	if ((code = occ_agree(world, &e)))
		return code;
	choose_lanes(r, &e);
	if ((code = occ_agree(world, &e)))
		return code;
	open_data(r, needs, &e);
	if ((code = occ_agree(world, &e)))
		return code;
	r->shape = occ_run_shape(c, l.tensor);
	r->nmicro = c->batch.global / (c->batch.micro * c->parallel.data);
	open_model(r, train);
	occ_log(OCC_LOG_DEBUG, "layers %lld to %lld, %lld weights, device %s with %d threads",
		(long long)r->gpt.first_layer, (long long)(r->gpt.first_layer + r->gpt.nlayers - 1),
		(long long)r->gpt.weights.size, r->dev->ops->name, r->dev->threads);
	fill_weights(r, train, &e);
	if ((code = occ_agree(world, &e)))
		return code;
	sum_streams(r);
	return 0;
}

void occ_run_close(struct occ_run *r)
{
	occ_streams_release(&r->streams);
	if (r->gpt.dev) {
		occ_exec_release(&r->exec);
		occ_optim_release(&r->optim);
		occ_gpt_release(&r->gpt);
		occ_group_release(&r->tp);
	}
	occ_schedule_release(&r->sched);
	occ_schedule_release(&r->eval_sched);
	occ_schedule_release(&r->masked_sched);
	occ_data_close(r->train);
	occ_data_close(r->valid);
	occ_tokenizer_close(r->tok);
	occ_free(r->tokens);
	occ_device_close(r->dev);
	occ_topo_release(&r->topo);
	occ_config_release(&r->conf);
}

void occ_run_tokens(struct occ_run *r, const struct occ_data *d, int64_t batch, int shuffle,
		    int64_t limit)
{
	const struct occ_config *c = &r->conf;
	int64_t micro = c->batch.micro, width = c->model.seq_len + 1,
		n = d ? occ_data_samples(d) : 0;
	int64_t dp = r->topo.layout.data, rank = r->topo.place.dp;
	if (!d)
		return;
	for (int64_t k = 0; k < r->nmicro; k++)
		for (int64_t i = 0; i < micro; i++) {
			int64_t at = batch * c->batch.global + (k * dp + rank) * micro + i;
			int32_t *out = r->tokens + (k * micro + i) * width;
			if (limit >= 0 && at >= limit)
				memset(out, 0xff, (size_t)width * sizeof(*out));
			else
				occ_data_sample(d, occ_data_order(n, at, shuffle, c->train.seed),
						out);
		}
}
