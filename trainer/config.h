/* The configuration: the struct, its option rows, and what must hold between keys. */
#ifndef OCC_TRAINER_CONFIG_H
#define OCC_TRAINER_CONFIG_H

#include "base/opts.h"

struct occ_config_model {
	int64_t layers, hidden, heads, seq_len, vocab_size, vocab_multiple;
	double dropout, init_std;
	char *recompute; /* none, full */
	int tie_embeddings;
};
struct occ_config_parallel {
	int64_t tensor, pipeline, data, ranks_per_node;
	double bucket_mb;
	char *transport;
};
struct occ_config_batch {
	int64_t micro, global;
};
struct occ_config_optimizer {
	double lr, min_lr, beta1, beta2, eps, weight_decay, clip_grad;
	int64_t warmup_iters, decay_iters, wsd_iters;
	char *schedule; /* cosine, linear, constant, wsd */
};
struct occ_config_train {
	int64_t iters, seed, threads, max_skipped;
	double timeout_s;
	char *precision, *device;
};
struct occ_config_data {
	struct occ_strings train, valid;
	char *tokenizer;
	int shuffle;
};
struct occ_config_eval {
	int64_t every, iters;
};
struct occ_config_checkpoint {
	char *dir, *resume;
	int64_t every, keep;
};
struct occ_config_log {
	int64_t every;
	char *dir;
	int tensorboard;
	struct occ_ints trace_iters;
	double peak_gflops; /* of one rank, for mfu; 0: not stated, mfu is null */
};
/* One compression site (design.md 7.2); every site has every knob. */
struct occ_config_site {
	char *codec, *mark, *feedback, *type;
	int feedback_on; /* data_parallel.feedback is a bool */
	int64_t rank, iterations, bits, group, period, start_iter;
	double fraction, epsilon, min_ratio, stages, forget;
};
struct occ_config_compress {
	char *scope;
	struct occ_config_site pipeline_backward, pipeline_forward, data_parallel;
	int embedding_fused;
};

struct occ_config {
	struct occ_config_model model;
	struct occ_config_parallel parallel;
	struct occ_config_batch batch;
	struct occ_config_optimizer optimizer;
	struct occ_config_train train;
	char *init_load;
	struct occ_config_data data;
	struct occ_config_eval eval;
	struct occ_config_checkpoint checkpoint;
	struct occ_config_log log;
	struct occ_config_compress compress;
};

extern const struct occ_opts occ_config_opts;

/* Defaults, then the file, then each "key=value" in turn. `path` NULL: defaults only. */
int occ_config_load(struct occ_config *c, const char *path, char *const *sets, int nsets,
		    struct occ_err *e);
/* What must hold between keys for `ranks` ranks: hidden % heads, heads % tp, layers >= pp, global %
 * (micro * dp), keys that need another key, parts that are built (2); tp*pp*dp = ranks (5). Also
 * resolves parallel.data 0 and decay_iters 0. */
int occ_config_check(struct occ_config *c, int ranks, struct occ_err *e);
void occ_config_release(struct occ_config *c);

#endif
