/* What must hold between keys: each rule on both sides of its edge, and what the check resolves. */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "parallel/lane.h"
#include "tests/check.h"
#include "trainer/config.h"

/* --set words over the defaults (layers 12, hidden 768, heads 12, micro 1, global 8); `says` is in
 * the message, "" where the row is legal. */
static const struct {
	int ranks;
	const char *sets;
	int code;
	const char *says;
} rows[] = {
	{1, "", 0, ""},
	{8, "", 0, ""},
	/* shape */
	{1, "model.heads=5", 2, "model.hidden 768 is not divisible by model.heads 5"},
	{1, "model.hidden=769", 2, "model.hidden 769 is not divisible by model.heads 12"},
	{1, "model.hidden=8 model.heads=16", 2,
	 "model.hidden 8 is not divisible by model.heads 16"},
	{1, "model.hidden=12", 0, ""},
	{1, "model.hidden=1 model.heads=1", 0, ""},
	{1, "model.hidden=256 model.heads=1", 0, ""},
	{1, "model.hidden=257 model.heads=1", 2, "heads of more than 256"},
	{1, "model.hidden=1048576 model.heads=4096 model.layers=1048576", 2,
	 "the model is too large"},
	{1, "model.hidden=1048576 model.heads=4096 model.layers=85", 0, ""},
	{1, "model.hidden=1048576 model.heads=4096 model.layers=86", 2, "the model is too large"},
	{1, "model.hidden=1048576 model.heads=4096 model.layers=1 model.vocab_size=268435456", 0,
	 ""},
	{4096,
	 "model.hidden=1048576 model.heads=4096 model.layers=1 model.vocab_multiple=1048576 "
	 "parallel.tensor=4096",
	 2, "a multiple of 1048576 x 4096: the model is too large"},
	/* tensor and pipeline */
	{4, "parallel.tensor=4", 0, ""},
	{12, "parallel.tensor=12", 0, ""},
	{8, "parallel.tensor=8", 2, "model.heads 12 is not divisible by parallel.tensor 8"},
	{24, "parallel.tensor=24", 2, "model.heads 12 is not divisible by parallel.tensor 24"},
	{12, "parallel.pipeline=12", 0, ""},
	{5, "parallel.pipeline=5", 0, ""},
	{13, "parallel.pipeline=13", 2, "model.layers 12 is less than parallel.pipeline 13"},
	{2, "model.layers=1 parallel.pipeline=2", 2,
	 "model.layers 1 is less than parallel.pipeline 2"},
	/* ranks */
	{1, "parallel.tensor=2", 5, "1 ranks do not divide into parallel.tensor 2 x pipeline 1"},
	{3, "parallel.tensor=2", 5, "3 ranks do not divide"},
	{8, "parallel.tensor=2 parallel.pipeline=2 parallel.data=2", 0, ""},
	{8, "parallel.tensor=2 parallel.pipeline=2", 0, ""},
	{7, "parallel.tensor=2 parallel.pipeline=2 parallel.data=2", 5, "7 ranks do not fit"},
	{9, "parallel.tensor=2 parallel.pipeline=2 parallel.data=2", 5, "9 ranks do not fit"},
	{4, "parallel.tensor=2 parallel.pipeline=2 parallel.data=2", 5, "4 ranks do not fit"},
	{1, "parallel.data=2", 5, "1 ranks do not fit"},
	{1, "parallel.data=1048576", 5, "1 ranks do not fit"},
	{1,
	 "parallel.tensor=4096 parallel.pipeline=4096 parallel.data=1048576 model.layers=4096 "
	 "model.heads=4096 model.hidden=4096",
	 5, "1 ranks do not fit"},
	/* batch */
	{8, "batch.global=16", 0, ""},
	{8, "batch.global=12", 2,
	 "batch.global 12 is not divisible by batch.micro 1 x 8 replicas; "
	 "the nearest that is: 8"},
	{8, "batch.global=13", 2, "the nearest that is: 16"},
	{8, "batch.global=7", 2, "the nearest that is: 8"},
	{8, "batch.global=1", 2, "the nearest that is: 8"},
	{1, "batch.micro=3", 2,
	 "batch.global 8 is not divisible by batch.micro 3 x 1 replicas; "
	 "the nearest that is: 9"},
	{1, "batch.micro=8", 0, ""},
	{1, "batch.micro=16", 2, "the nearest that is: 16"},
	{2, "batch.micro=4", 0, ""},
	{2, "batch.micro=8", 2, "the nearest that is: 16"},
	{8, "parallel.tensor=4 batch.global=2", 0, ""},
	{1, "batch.micro=1048576 batch.global=1048576 model.seq_len=16777216", 2,
	 "a micro-batch is too large"},
	{1, "batch.global=16777216", 0, ""},
	/* length */
	{1, "train.iters=1125899906842623", 0, ""},
	{1, "train.iters=1125899906842624", 2, "at most 1125899906842623 steps"},
	{1, "train.iters=9000000000000000 batch.global=1 model.seq_len=1", 0, ""},
	/* files */
	{1, "checkpoint.every=1", 2, "checkpoint.every 1 needs checkpoint.dir"},
	{1, "checkpoint.every=1 checkpoint.dir=d", 0, ""},
	{1, "checkpoint.dir=d", 0, ""},
	{1, "log.tensorboard=true", 2, "log.tensorboard needs log.dir"},
	{1, "log.tensorboard=true log.dir=d", 0, ""},
	/* compression */
	{1, "compress.pipeline_backward.bits=3", 2,
	 "compress.pipeline_backward.bits: 3 is not one of 2, 4, 8"},
	{1, "compress.pipeline_forward.bits=5", 2,
	 "compress.pipeline_forward.bits: 5 is not one of 2, 4, 8"},
	{1, "compress.data_parallel.bits=7", 2,
	 "compress.data_parallel.bits: 7 is not one of 2, 4, 8"},
	{1, "compress.data_parallel.bits=2 compress.pipeline_forward.bits=4", 0, ""},
	{1, "compress.data_parallel.stages=1", 0, ""},
	{1, "compress.data_parallel.stages=2", 2,
	 "compress.data_parallel.stages 2 is more than parallel.pipeline 1"},
	{4, "compress.data_parallel.stages=4 parallel.pipeline=4", 0, ""},
	{4, "compress.data_parallel.stages=5 parallel.pipeline=4", 2,
	 "stages 5 is more than parallel.pipeline 4"},
	{1, "compress.data_parallel.codec=auto", 0, ""},
	{1, "compress.data_parallel.codec=auto compress.data_parallel.feedback=false", 2,
	 "auto needs compress.data_parallel.feedback"},
	{1, "compress.pipeline_forward.codec=dct", 0, ""},
	{1, "compress.pipeline_forward.codec=dct compress.pipeline_backward.codec=dct", 0, ""},
	{1, "compress.pipeline_forward.codec=dct compress.pipeline_backward.codec=cast", 2,
	 "compress.pipeline_backward.codec cast: with dct on compress.pipeline_forward"},
	{65, "compress.pipeline_backward.mark=slack parallel.pipeline=65 model.layers=65", 2,
	 "slack simulates at most 64 stages"},
	{1, "compress.data_parallel.codec=topk model.vocab_size=200000000", 2,
	 "topk counts at most 2^31 - 1 values of a tensor"},
	{1, "compress.pipeline_backward.codec=topk batch.micro=4096 batch.global=4096", 2,
	 "topk counts at most 2^31 - 1 values of a micro-batch"},
	{1, "compress.data_parallel.stages=0.999", 0, ""},
	{1, "compress.data_parallel.stages=all", 0, ""},
	{1, "compress.scope=all", 0, ""},
	/* resolved or taken as they are */
	{1, "train.iters=0", 0, ""},
	{1, "optimizer.warmup_iters=1000", 0, ""},
	{1, "optimizer.warmup_iters=50 optimizer.decay_iters=20", 0, ""},
	{1, "optimizer.lr=0 optimizer.min_lr=1", 0, ""},
	{1, "model.vocab_size=1 model.vocab_multiple=1", 0, ""},
	{1, "model.seq_len=1", 0, ""},
	/* the first rule that is broken speaks */
	{3, "model.heads=5 parallel.tensor=2 batch.micro=3", 2, "model.heads 5"},
	{3, "parallel.tensor=2 batch.micro=3", 5, "ranks"},
};

/* Loads the defaults and the words of `sets`; 0 if all were taken. */
static int load(struct occ_config *c, const char *sets, struct occ_err *e)
{
	char text[300], *words[8], *save = NULL;
	int n = 0;
	snprintf(text, sizeof(text), "%s", sets);
	for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save))
		words[n++] = w;
	return occ_config_load(c, NULL, words, n, e);
}

static void test_rows(void)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct occ_config c;
		struct occ_err e = {0};
		CHECK(!load(&c, rows[i].sets, &e), "%s: %s", rows[i].sets, e.text);
		int bad = occ_config_check(&c, rows[i].ranks, &e);
		CHECK((bad != 0) == (rows[i].code != 0) && e.code == rows[i].code,
		      "%d ranks, %s: %d '%s'", rows[i].ranks, rows[i].sets, e.code, e.text);
		CHECK(strstr(e.text, rows[i].says), "%d ranks, %s: '%s', not '%s'", rows[i].ranks,
		      rows[i].sets, e.text, rows[i].says);
		if (!bad)
			CHECK(c.parallel.tensor * c.parallel.pipeline * c.parallel.data ==
				      rows[i].ranks,
			      "%s: data became %lld", rows[i].sets, (long long)c.parallel.data);
		occ_config_release(&c);
	}
}

/* NCCL is for GPUs, and for builds that know them. */
static void test_nccl(void)
{
	static const char *const says[2][2] = {{"make CUDA=1", "make CUDA=1"}, {"", "needs mpi"}};
	static const char *const device[2] = {"auto", "cpu"};
	for (int i = 0; i < 2; i++) {
		struct occ_config c;
		struct occ_err e = {0};
		char sets[80];
		const char *want = says[occ_lane_built()][i];
		snprintf(sets, sizeof(sets), "parallel.transport=nccl train.device=%s", device[i]);
		CHECK(!load(&c, sets, &e), "%s: %s", sets, e.text);
		int bad = occ_config_check(&c, 1, &e);
		CHECK(!bad == !*want && e.code == (*want ? 2 : 0) && strstr(e.text, want),
		      "%s: %d '%s'", sets, e.code, e.text);
		occ_config_release(&c);
	}
}

/* The defaults are those of docs/design.md, and 0 means what the table says. */
static void test_resolved(void)
{
	struct occ_config c;
	struct occ_err e = {0};
	CHECK(!load(&c, "train.iters=70 parallel.tensor=2", &e) && !occ_config_check(&c, 8, &e),
	      "%s", e.text);
	CHECK(c.parallel.data == 4 && c.optimizer.decay_iters == 70, "data %lld, decay %lld",
	      (long long)c.parallel.data, (long long)c.optimizer.decay_iters);
	CHECK(!occ_config_check(&c, 8, &e) && c.parallel.data == 4, "a second check: %s", e.text);
	CHECK(c.model.layers == 12 && c.model.hidden == 768 && c.model.heads == 12 &&
		      c.model.seq_len == 1024 && c.model.vocab_size == 50257 &&
		      c.model.vocab_multiple == 128 && c.model.tie_embeddings,
	      "the model is GPT-2");
	CHECK(c.optimizer.lr == 3e-4 && c.optimizer.min_lr == 3e-5 && c.optimizer.beta1 == 0.9 &&
		      c.optimizer.beta2 == 0.95 && c.optimizer.eps == 1e-8 &&
		      c.optimizer.weight_decay == 0.1 && c.optimizer.clip_grad == 1 &&
		      !strcmp(c.optimizer.schedule, "cosine"),
	      "the optimizer's defaults");
	CHECK(c.train.seed == 1337 && c.train.timeout_s == 600 && c.checkpoint.keep == 2 &&
		      !strcmp(c.checkpoint.resume, "auto") && c.eval.iters == 10 &&
		      c.log.every == 1 && c.data.shuffle && !strcmp(c.data.tokenizer, "bytes"),
	      "the run's defaults");
	CHECK(c.compress.pipeline_backward.rank == 16 && c.compress.data_parallel.rank == 128 &&
		      !strcmp(c.compress.scope, "inter-node") &&
		      !strcmp(c.compress.pipeline_backward.mark, "tail") &&
		      !strcmp(c.compress.pipeline_forward.mark, "all") &&
		      c.compress.data_parallel.feedback_on &&
		      c.compress.data_parallel.stages == -1 && !c.compress.embedding_fused,
	      "the defaults of compression");
	occ_config_release(&c);
	CHECK(!load(&c, "optimizer.decay_iters=5", &e) && !occ_config_check(&c, 1, &e) &&
		      c.optimizer.decay_iters == 5,
	      "a decay that is set stays");
	occ_config_release(&c);
}

/* docs/config.md is what the table gives (make docs). */
static void test_page(void)
{
	char *page = NULL;
	size_t size, n = 0;
	FILE *made = open_memstream(&page, &size), *kept = fopen("docs/config.md", "rb");
	occ_opts_markdown(&occ_config_opts, made);
	fclose(made);
	char *text = occ_alloc(size + 2, 1);
	if (kept) {
		n = fread(text, 1, size + 1, kept);
		fclose(kept);
	}
	CHECK(n == size && !memcmp(text, page, size), "docs/config.md is old: make docs");
	occ_free(text);
	free(page);
}

int main(void)
{
	test_page();
	test_rows();
	test_nccl();
	test_resolved();
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}
