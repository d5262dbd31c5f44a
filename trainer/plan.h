/* The parts of `occ-train plan`: one rank alone (plan_rank.c), what all send and hold
 * (plan_count.c), what each stage does (plan_work.c), how long it takes (plan_time.c), what the
 * network gives (plan_measure.c), what is shown (plan_text.c, plan_json.c). */
#ifndef OCC_TRAINER_PLAN_H
#define OCC_TRAINER_PLAN_H

#include "parallel/simulate.h"
#include "trainer/hardware.h"
#include "trainer/run.h"

struct occ_plan_memory {
	double weights, optimizer, activations, compression;
};

/* Why tensors or transfers of a kind travel as they do: codec and reason, counted. */
struct occ_plan_reason {
	const char *codec, *why;
	int64_t messages;
	double raw, wire;
};

/* A matrix of the first layer of the second stage, or of the only one. */
struct occ_plan_tensor {
	char name[64];
	int64_t n, m;
	const char *codec;
	double ratio; /* raw over wire */
};

enum {
	OCC_PLAN_REASONS = 32,
	OCC_PLAN_RUNGS = 5,
	OCC_PLAN_MARKS = 4,
	OCC_PLAN_TENSORS = 4,
	OCC_PLAN_RATES = 4
};
extern const double occ_plan_slower[OCC_PLAN_RATES]; /* the ladder's rates: the profile's by these
						      */

/* Bytes that the first rank of a stage sends in a step's sums. */
struct occ_plan_sent {
	double data, embedding;
};

/* A policy, and what its stages do: the configuration's techniques are added one by one. */
struct occ_plan_rung {
	const char *name;
	struct occ_policy policy;
	struct occ_sim_stage *stage; /* [pipeline]; owned */
	struct occ_plan_sent *sent;  /* [pipeline]; owned */
	double optimizer_s;          /* the slowest stage's */
};

/* Seconds of a step. total is the sum of the others. */
struct occ_plan_time {
	double compute;   /* of the stage that computes longest */
	double bubble;    /* the rest of a pipeline whose transfers take no time */
	double pipeline;  /* what transfers between stages add, their codecs included */
	double data;      /* what sums over replicas add, their codecs included */
	double embedding; /* what the tied embedding's sum adds */
	double optimizer;
	double total;
};

struct occ_plan {
	const struct occ_args *args; /* borrowed */
	struct occ_config conf;
	struct occ_hardware hw;
	int ranks, per_node, nodes;
	struct occ_layout layout;
	struct occ_gpt_shape shape;
	struct occ_policy policy;
	int64_t nmicro, rows; /* rows: of a micro-batch */
	enum occ_type type;
	int compresses;                         /* some transfer does */
	struct occ_traffic traffic[OCC_NKINDS]; /* of one step, all ranks */
	struct occ_plan_memory *stage;          /* [pipeline], the largest rank's; owned */
	struct occ_plan_reason reason[OCC_NSITES][OCC_PLAN_REASONS + 1]; /* the last stays empty */
	struct occ_plan_tensor tensor[OCC_PLAN_TENSORS];
	int ntensors;
	struct occ_plan_rung rung[OCC_PLAN_RUNGS]; /* dense first, the configuration last */
	int nrungs;
	int measured; /* computing was timed; the network too if measured is 2 */
};

extern const char *const occ_plan_mark_name[OCC_PLAN_MARKS]; /* [enum occ_mark] */

/* Traffic, memory and reasons of all ranks. */
void occ_plan_count(struct occ_plan *p);
/* What the ranks of each stage do under a policy that compresses every transfer between stages it
 * may: seconds, bytes. With p->measured the seconds of a device's work are timed on the real one.
 * The arrays of `out` are released by occ_plan_rungs_release. */
void occ_plan_work(const struct occ_plan *p, const struct occ_policy *policy,
		   struct occ_plan_rung *out);
/* Collective: node.* and inside.* as they are between the ranks of `world`; ranks other than 0 then
 * wait, asleep, until rank 0 calls occ_plan_measured. */
void occ_plan_measure_net(struct occ_plan *p, struct occ_comm *world);
void occ_plan_measured(struct occ_comm *world);

/* Ranks of a stage on the node of its first rank: they share what leaves it. */
int occ_plan_neighbours(const struct occ_plan *p, int stage);

void occ_plan_rungs(struct occ_plan *p); /* fills rung */
void occ_plan_rungs_release(struct occ_plan *p);
/* A step with pipeline gradients marked by `mark`, at `node` bytes/s out of each node. */
void occ_plan_time(const struct occ_plan *p, const struct occ_plan_rung *r, enum occ_mark mark,
		   double node, struct occ_plan_time *out);
enum occ_mark occ_plan_mark(const struct occ_plan *p); /* the configuration's */
/* The first mark whose step nothing beats by more than 1 %: what compresses less is preferred. */
enum occ_mark occ_plan_recommend(const double ms[OCC_PLAN_MARKS]);
extern const char *const occ_plan_because;
/* Bytes/s of a node below which the configuration's compression shortens the step; 0: never,
 * INFINITY: always. */
double occ_plan_break_even(const struct occ_plan *p);
/* seconds[k], k = 0 .. pipeline: a step with compressed sums on the first k stages. Returns the k
 * that is worth it: more are taken only for 1 % of the step; -1 without a codec. */
int occ_plan_stages(const struct occ_plan *p, double *seconds);
/* The predicted step as a trace, one track a stage. */
void occ_plan_trace(const struct occ_plan *p, const char *path);

extern const char *const occ_plan_measured_what[]; /* [measured] */
double occ_plan_memory_total(const struct occ_plan_memory *m);
/* A stage's passes in order and what is critical, as text for people; freed with free(). */
char *occ_plan_schedule(const struct occ_plan *p, int stage);
void occ_plan_text(const struct occ_plan *p);
void occ_plan_json(const struct occ_plan *p);

/* What a tensor rank sends over a link, and what sums over replicas send; for both outputs. */
struct occ_plan_link {
	int from, to;
	enum occ_kind kind;
	int crosses, transfers, compressed; /* of one rank in a step */
	double dense_bytes, wire_bytes;     /* a transfer; wire: a compressed one */
	double dense_ms, wire_ms;           /* with the node's rate shared by the stage's ranks */
};
/* link: room for 2 * (pipeline - 1); returns their number. */
int occ_plan_links(const struct occ_plan *p, struct occ_plan_link *link);
/* Milliseconds that a rank of a stage needs to send `bytes` to its replicas, with its share of the
 * node's rate. */
double occ_plan_sum_ms(const struct occ_plan *p, int stage, double bytes);
/* The tied embedding's shard, and what a rank of the first stage sends for its sum over replicas
 * and both copies; 0 where there is one stage, or nothing is tied. */
struct occ_plan_embedding {
	double shard_bytes, unfused_bytes, fused_bytes;
};
struct occ_plan_embedding occ_plan_embedding(const struct occ_plan *p);

#endif
