/* One rank of a run: everything it owns, opened in order and agreed by all ranks at each step. */
#ifndef OCC_TRAINER_RUN_H
#define OCC_TRAINER_RUN_H

#include "trainer/args.h"
#include "trainer/checkpoint.h"
#include "trainer/data.h"
#include "trainer/optim.h"
#include "trainer/policy.h"

struct occ_run {
	const struct occ_args *args; /* borrowed; shared by rank threads */
	struct occ_config conf;      /* owned; resolved for these ranks */
	struct occ_comm *world;      /* borrowed */
	struct occ_topo topo;
	struct occ_device *dev;
	struct occ_group tp;
	struct occ_gpt_shape shape;
	struct occ_gpt gpt;
	struct occ_stage stage;   /* of gpt */
	struct occ_policy policy; /* how things travel */
	struct occ_exec exec;
	struct occ_optim optim;
	struct occ_tokenizer *tok;      /* NULL until data or generate needs it */
	struct occ_data *train, *valid; /* NULL where not set or this stage reads no tokens */
	struct occ_schedule sched, eval_sched, masked_sched;
	struct occ_streams streams; /* what compression keeps on this rank */
	/* Of the checkpoint's residuals, over all ranks: how many went on, were moved, are new;
	 * the norms of all of them and of those that were dropped. */
	struct {
		double exact, moved, fresh, norm, dropped;
	} resumed_streams;
	int compresses;  /* some rank has a transfer that may travel compressed */
	int64_t nmicro;  /* micro-batches of a step on this replica */
	int32_t *tokens; /* [nmicro][micro][seq_len + 1]; owned */
	int64_t step;    /* steps completed */
	int64_t skipped, skipped_in_row;
	char resumed[4096]; /* checkpoint this run continued from, "" if none */
};

/* What a run opens. Training needs all; the others leave parts out. */
enum { OCC_NEED_TRAIN = 1, OCC_NEED_VALID = 2 };

/* Collective over world, except that nothing is agreed where it is one rank. Loads the
 * configuration, fits the layout, opens device, data and model, fills the weights from a
 * checkpoint, init.load or the seed. Returns the agreed exit code; 0 when all ranks are ready. */
int occ_run_open(struct occ_run *r, const struct occ_args *args, struct occ_comm *world, int needs);
void occ_run_close(struct occ_run *r);

/* Fills r->tokens with global batch `batch` of d for this replica. Samples past the end (evaluation
 * only: limit >= 0) are padding. */
void occ_run_tokens(struct occ_run *r, const struct occ_data *d, int64_t batch, int shuffle,
		    int64_t limit);

/* Shape of the model for a configuration. Pure. */
struct occ_gpt_shape occ_run_shape(const struct occ_config *c, int tp);

struct occ_eval {
	double loss;        /* mean over tokens; NaN of none */
	double masked_loss; /* with activations compressed as in training; NaN where they are not */
	int64_t tokens;
	int stopped; /* a stop was asked for meanwhile: the values are of what was done */
};
/* Collective. Over the first eval.iters global batches of data.valid. */
struct occ_eval occ_run_eval(struct occ_run *r, int stoppable);

/* Modes: the body of each rank. Return the exit code. */
int occ_train_main(struct occ_comm *world, void *args);
int occ_eval_main(struct occ_comm *world, void *args);
int occ_generate_main(struct occ_comm *world, void *args);
int occ_plan_measure_main(struct occ_comm *world, void *args);
/* Modes of one process with no ranks. */
int occ_export_main(const struct occ_args *a);
int occ_inspect_main(const struct occ_args *a);
int occ_plan_main(const struct occ_args *a);

#endif
