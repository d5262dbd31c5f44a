/* Sampling text from a model on one rank. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/run.h"

struct sampler {
	int64_t vocab, top_k;
	double temperature;
	uint64_t key;
	float *sorted; /* [vocab] scratch of the top-k threshold */
	double *p;     /* [vocab] */
};

static int descending(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;
	return (x < y) - (x > y);
}

static int32_t likeliest(const float *logits, int64_t n)
{
	int64_t best = 0;
	for (int64_t i = 1; i < n; i++)
		if (logits[i] > logits[best])
			best = i;
	return (int32_t)best;
}

/* Draw number `at` from softmax(logits / temperature) over the top k. */
static int32_t sample(struct sampler *s, const float *logits, int64_t at)
{
	float floor_logit = -INFINITY, top = logits[likeliest(logits, s->vocab)];
	double sum = 0;
	if (s->temperature <= 0)
		return likeliest(logits, s->vocab);
	if (s->top_k > 0 && s->top_k < s->vocab) {
		memcpy(s->sorted, logits, (size_t)s->vocab * sizeof(float));
		qsort(s->sorted, (size_t)s->vocab, sizeof(float), descending);
		floor_logit = s->sorted[s->top_k - 1];
	}
	for (int64_t i = 0; i < s->vocab; i++) {
		s->p[i] = logits[i] < floor_logit ? 0
						  : exp((double)(logits[i] - top) / s->temperature);
		sum += s->p[i];
	}
	double u = occ_rng_uniform(s->key, (uint64_t)at) * sum;
	int64_t i = 0;
	while (i < s->vocab - 1 && (u -= s->p[i]) >= 0)
		i++;
	return (int32_t)i;
}

static void put_token(struct occ_tokenizer *tok, int32_t id)
{
	size_t n;
	const char *bytes = occ_tokenizer_bytes(tok, id, &n);
	if (bytes)
		fwrite(bytes, 1, n, stdout);
	else /* the model has more ids than data.tokenizer: shown, not lost */
		printf("<|%d|>", id);
	fflush(stdout);
}

/* Prompt to ids, checked against the model. Returns the count, or -1. */
static int64_t encode_prompt(struct occ_run *r, int32_t **ids, struct occ_err *e)
{
	const char *text = r->args->prompt;
	r->tok = occ_tokenizer_open(r->conf.data.tokenizer, e);
	if (!r->tok)
		return -1;
	int64_t n = occ_tokenizer_encode(r->tok, text, strlen(text), ids);
	for (int64_t i = 0; i < n; i++)
		if ((*ids)[i] >= r->shape.vocab)
			return occ_fail(e, OCC_E_DATA,
					"--prompt: token %lld is %d, but model.vocab_size is %lld",
					(long long)i, (*ids)[i], (long long)r->shape.vocab);
	if (n == 0)
		return occ_fail(e, OCC_E_CONFIG,
				"--prompt is empty: at least one character is needed");
	return n;
}

static void generate(struct occ_run *r, const int32_t *prompt, int64_t n, struct occ_err *e)
{
	const struct occ_args *a = r->args;
	int64_t vocab = r->shape.vocab, T = r->shape.seq_len;
	struct sampler s = {
		.vocab = vocab,
		.top_k = a->top_k,
		.temperature = a->temperature,
		.key = occ_rng_key((uint64_t)a->seed, OCC_RNG_SAMPLE),
		.sorted = occ_alloc((size_t)vocab, sizeof(float)),
		.p = occ_alloc((size_t)vocab, sizeof(double)),
	};
	float *logits = occ_alloc((size_t)vocab, sizeof(float));
	int32_t *ids = occ_alloc((size_t)(n + a->tokens), sizeof(*ids));
	memcpy(ids, prompt, (size_t)n * sizeof(*ids));
	for (int64_t i = 0; i < n; i++)
		put_token(r->tok, ids[i]);
	for (int64_t i = 0; i < a->tokens; i++, n++) {
		int64_t from = n > T ? n - T : 0; /* the window slides */
		occ_gpt_next(&r->gpt, ids + from, n - from, logits);
		if (!isfinite(logits[likeliest(logits, vocab)])) {
			occ_fail(e, OCC_E_NUMERIC, "the model's logits are not finite");
			break;
		}
		ids[n] = sample(&s, logits, i);
		put_token(r->tok, ids[n]);
	}
	putchar('\n');
	occ_free(ids);
	occ_free(logits);
	occ_free(s.sorted);
	occ_free(s.p);
}

int occ_generate_main(struct occ_comm *world, void *args)
{
	struct occ_run r = {0};
	struct occ_err e = {0};
	int32_t *prompt = NULL;
	if (world->size > 1)
		occ_fail(&e, OCC_E_LAUNCH,
			 "generate runs on one rank, not %d: start it without a launcher",
			 world->size);
	int code = occ_agree(world, &e);
	if (code)
		return code;
	code = occ_run_open(&r, args, world, 0);
	if (!code) {
		int64_t n = encode_prompt(&r, &prompt, &e);
		if (n > 0)
			generate(&r, prompt, n, &e);
		code = occ_agree(world, &e);
	}
	occ_free(prompt);
	occ_run_close(&r);
	return code;
}
