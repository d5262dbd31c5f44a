/* Every key there is. What a key means to others than its reader stands in docs/design.md. */
#include "trainer/config.h"

#include <stddef.h>
#include <string.h>

#define AT(field) offsetof(struct occ_config, field)
#define BIG 9e15
#define CODECS "none|cast|quant|topk|dct|powersgd|errbound"

#define INT(key, field, def, lo, hi, help)                                                         \
	{                                                                                          \
		key, OCC_OPT_INT, AT(field), def, lo, hi, NULL, help                               \
	}
#define FLT(key, field, def, lo, hi, help)                                                         \
	{                                                                                          \
		key, OCC_OPT_FLOAT, AT(field), def, lo, hi, NULL, help                             \
	}
#define FLAG(key, field, def, help)                                                                \
	{                                                                                          \
		key, OCC_OPT_BOOL, AT(field), def, 1, 0, NULL, help                                \
	}
#define STR(key, field, def, choices, help)                                                        \
	{                                                                                          \
		key, OCC_OPT_STRING, AT(field), def, 1, 0, choices, help                           \
	}
#define LIST(key, field, def, help)                                                                \
	{                                                                                          \
		key, OCC_OPT_STRINGS, AT(field), def, 1, 0, NULL, help                             \
	}

/* The knobs of the codecs, the same at every site. */
#define KNOBS(site, field, codecs, default_rank)                                                   \
	STR(site ".codec", field.codec, "\"none\"", codecs, "codec of this site"),                 \
		STR(site ".type", field.type, "\"bf16\"", "bf16|fp16", "cast: type on the wire"),  \
		INT(site ".bits", field.bits, "8", 2, 8, "quant: bits a value, 2, 4 or 8"),        \
		INT(site ".group", field.group, "128", 1, 1 << 20,                                 \
		    "quant: values that share a scale"),                                           \
		FLT(site ".fraction", field.fraction, "0.01", 1e-9, 1,                             \
		    "topk, dct: fraction of values kept"),                                         \
		INT(site ".period", field.period, "1000", 1, BIG,                                  \
		    "dct: steps that a threshold lives"),                                          \
		INT(site ".rank", field.rank, default_rank, 1, 1 << 20, "powersgd: rank"),         \
		INT(site ".iterations", field.iterations, "1", 1, 1000,                            \
		    "powersgd: power iterations"),                                                 \
		FLT(site ".epsilon", field.epsilon, "0.001", 1e-30, 1e14,                          \
		    "errbound: largest absolute error"),                                           \
		INT(site ".start_iter", field.start_iter, "0", 0, BIG,                             \
		    "steps before this one run dense")

static const struct occ_opt rows[] = {
	INT("model.layers", model.layers, "12", 1, 1 << 20, "transformer blocks"),
	INT("model.hidden", model.hidden, "768", 1, 1 << 20, "width"),
	INT("model.heads", model.heads, "12", 1, 1 << 20, "attention heads; divides hidden"),
	INT("model.seq_len", model.seq_len, "1024", 1, 1 << 24, "tokens a sequence"),
	INT("model.vocab_size", model.vocab_size, "50257", 1, 1 << 28, "token ids are below it"),
	INT("model.vocab_multiple", model.vocab_multiple, "128", 1, 1 << 20,
	    "the vocabulary is padded to a multiple of this x parallel.tensor; padding never "
	    "enters the loss"),
	FLT("model.dropout", model.dropout, "0", 0, 0.999,
	    "probability; the mask depends on seed, step, layer and global position only"),
	STR("model.recompute", model.recompute, "\"none\"", "none|full",
	    "full: keep each layer's input only and compute the rest again in the backward pass"),
	FLAG("model.tie_embeddings", model.tie_embeddings, "true",
	     "input and output embedding are one"),
	FLT("model.init_std", model.init_std, "0.02", 0, 1e3,
	    "standard deviation of initial weights"),

	INT("parallel.tensor", parallel.tensor, "1", 1, 4096, "tensor parallel ranks"),
	INT("parallel.pipeline", parallel.pipeline, "1", 1, 4096, "pipeline stages"),
	INT("parallel.data", parallel.data, "0", 0, 1 << 20,
	    "replicas; 0 = what is left of the ranks"),
	INT("parallel.ranks_per_node", parallel.ranks_per_node, "0", 0, 1 << 20,
	    "0 = detect; else nodes are emulated: rank / ranks_per_node"),
	STR("parallel.transport", parallel.transport, "\"auto\"", "auto|mpi|nccl|thread",
	    "auto: under a launcher nccl where each rank has a GPU of its own, else mpi; without "
	    "one a "
	    "single rank. thread, with --ranks N: ranks are threads"),
	FLT("parallel.bucket_mb", parallel.bucket_mb, "25", 0.001, 1e6,
	    "MiB of dense gradients that replicas sum at once; on GPUs during the backward pass"),

	INT("batch.micro", batch.micro, "1", 1, 1 << 20, "sequences of a micro-batch"),
	INT("batch.global", batch.global, "8", 1, 1 << 24,
	    "sequences of a step, over all replicas"),

	FLT("optimizer.lr", optimizer.lr, "3e-4", 0, 1e6, "largest learning rate"),
	FLT("optimizer.min_lr", optimizer.min_lr, "3e-5", 0, 1e6, "learning rate after the decay"),
	INT("optimizer.warmup_iters", optimizer.warmup_iters, "0", 0, BIG,
	    "steps of linear warm-up"),
	INT("optimizer.decay_iters", optimizer.decay_iters, "0", 0, BIG,
	    "step at which the decay ends; 0 = train.iters"),
	STR("optimizer.schedule", optimizer.schedule, "\"cosine\"", "cosine|linear|constant|wsd",
	    "shape between warm-up and the end of the decay"),
	INT("optimizer.wsd_iters", optimizer.wsd_iters, "0", 0, BIG,
	    "wsd: steps of the final decay"),
	FLT("optimizer.beta1", optimizer.beta1, "0.9", 0, 0.9999999, "AdamW, first moment"),
	FLT("optimizer.beta2", optimizer.beta2, "0.95", 0, 0.9999999, "AdamW, second moment"),
	FLT("optimizer.eps", optimizer.eps, "1e-8", 1e-30, 1, "AdamW"),
	FLT("optimizer.weight_decay", optimizer.weight_decay, "0.1", 0, 1e3,
	    "decoupled; of the 2-D tensors only"),
	FLT("optimizer.clip_grad", optimizer.clip_grad, "1.0", 0, 1e30,
	    "largest global gradient norm; 0 = no clipping"),

	INT("train.iters", train.iters, "100", 0, BIG, "steps; 0 loads, saves and exits"),
	INT("train.seed", train.seed, "1337", 0, BIG, "of weights, data order and dropout"),
	STR("train.precision", train.precision, "\"fp32\"", "fp32|bf16", "compute type"),
	STR("train.device", train.device, "\"auto\"", "auto|cpu|cuda|ref|strict", "device"),
	INT("train.threads", train.threads, "0", 0, 4096,
	    "threads a rank; 0 = allowed cores / ranks on the node"),
	FLT("train.timeout_s", train.timeout_s, "600", 1e-3, 1e7, "longest wait for another rank"),
	INT("train.max_skipped", train.max_skipped, "0", 0, BIG,
	    "non-finite steps in a row that are skipped; one more exits 6"),

	STR("init.load", init_load, "\"\"", NULL, "safetensors with GPT-2 names to start from"),

	LIST("data.train", data.train, "[]",
	     "files: .bin with .idx (Megatron), .bin (llm.c), else text"),
	LIST("data.valid", data.valid, "[]", "files, as data.train"),
	STR("data.tokenizer", data.tokenizer, "\"bytes\"", NULL,
	    "bytes, or the path of a vocab.bpe; for text data and generate"),
	FLAG("data.shuffle", data.shuffle, "true", "false: samples in the order of the files"),

	INT("eval.every", eval.every, "0", 0, BIG,
	    "steps between evaluations; 0 = after the last only"),
	INT("eval.iters", eval.iters, "10", 1, BIG,
	    "global batches of data.valid that are evaluated"),

	STR("checkpoint.dir", checkpoint.dir, "\"\"", NULL,
	    "where checkpoints go; the last step is always saved"),
	INT("checkpoint.every", checkpoint.every, "0", 0, BIG,
	    "steps between checkpoints; 0 = the last only"),
	INT("checkpoint.keep", checkpoint.keep, "2", 0, BIG, "newest ones kept; 0 = all"),
	STR("checkpoint.resume", checkpoint.resume, "\"auto\"", NULL,
	    "auto: the newest complete one in dir, else a fresh start; never; or a path"),

	INT("log.every", log.every, "1", 1, BIG, "steps between lines"),
	STR("log.dir", log.dir, "\"\"", NULL, "gets metrics.jsonl and config.json"),
	FLAG("log.tensorboard", log.tensorboard, "false", "a TensorBoard event file in log.dir"),
	{"log.trace_iters", OCC_OPT_INTS, AT(log.trace_iters), "[]", 1, BIG, NULL,
	 "steps to trace"},
	FLT("log.peak_gflops", log.peak_gflops, "0", 0, 1e12,
	    "matrix-product peak of one rank in GFLOP/s, for mfu; 0: mfu is null"),

	STR("compress.scope", compress.scope, "\"inter-node\"", "inter-node|all|none",
	    "which transfers may be compressed"),
	KNOBS("compress.pipeline_backward", compress.pipeline_backward, CODECS, "16"),
	STR("compress.pipeline_backward.mark", compress.pipeline_backward.mark, "\"tail\"",
	    "tail|slack|all", "which transfers are critical"),
	STR("compress.pipeline_backward.feedback", compress.pipeline_backward.feedback, "\"lazy\"",
	    "lazy|none", "lazy error propagation"),
	FLT("compress.pipeline_backward.forget", compress.pipeline_backward.forget, "0", 0, 1,
	    "part of the residual that each message drops; 0: nothing is lost"),
	KNOBS("compress.pipeline_forward", compress.pipeline_forward, CODECS, "16"),
	STR("compress.pipeline_forward.mark", compress.pipeline_forward.mark, "\"all\"",
	    "tail|slack|all", "which transfers are critical"),
	STR("compress.pipeline_forward.feedback", compress.pipeline_forward.feedback, "\"none\"",
	    "lazy|none", "lazy error propagation"),
	FLT("compress.pipeline_forward.forget", compress.pipeline_forward.forget, "0", 0, 1,
	    "part of the residual that each message drops; 0: nothing is lost"),
	KNOBS("compress.data_parallel", compress.data_parallel, CODECS "|auto", "128"),
	{"compress.data_parallel.stages", OCC_OPT_STAGES, AT(compress.data_parallel.stages),
	 "\"all\"", 1, 0, NULL, "earliest stages: a number, a fraction in (0,1), or \"all\""},
	FLAG("compress.data_parallel.feedback", compress.data_parallel.feedback_on, "true",
	     "error feedback"),
	FLT("compress.data_parallel.min_ratio", compress.data_parallel.min_ratio, "1.0", 0, 1e9,
	    "a matrix is compressed where this ratio is exceeded; 0 = always"),
	FLAG("compress.embedding.fused", compress.embedding_fused, "false",
	     "fused embedding synchronisation"),
};

const struct occ_opts occ_config_opts = {rows, sizeof(rows) / sizeof(rows[0]), "--set"};

int occ_config_load(struct occ_config *c, const char *path, char *const *sets, int nsets,
		    struct occ_err *e)
{
	memset(c, 0, sizeof(*c));
	occ_opts_defaults(&occ_config_opts, c);
	if (path && occ_opts_load(&occ_config_opts, c, path, e))
		return -1;
	for (int i = 0; i < nsets; i++)
		if (occ_opts_set(&occ_config_opts, c, sets[i], e))
			return -1;
	return 0;
}

void occ_config_release(struct occ_config *c)
{
	occ_opts_release(&occ_config_opts, c);
	memset(c, 0, sizeof(*c));
}
