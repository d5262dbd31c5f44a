/* The data set: shards of any kind in one row of samples, and the order in which they are taken.
 * Knows of a file only that it is a shard, an array of ids. */
#include "trainer/data.h"

#include "base/mem.h"
#include "base/rng.h"
#include "trainer/data_kind.h"

struct occ_data {
	int nshards;
	int64_t seq_len, tokens;
	struct occ_shard *shards; /* [nshards] */
	int64_t *first; /* [nshards + 1]: number of its first sample; the last is the total */
};

static int check_shard(const struct occ_shard *s, int64_t seq_len, int64_t vocab_size,
		       struct occ_err *e)
{
	if (s->n <= seq_len)
		return occ_fail(e, OCC_E_DATA,
				"%s: %lld tokens, one sample of model.seq_len %lld needs %lld",
				s->path, (long long)s->n, (long long)seq_len,
				(long long)seq_len + 1);
	int64_t max, limit = vocab_size < INT32_MAX ? vocab_size : INT32_MAX;
	int64_t bad = limit > s->type->top ? -1 : occ_shard_scan(s, limit, &max);
	if (bad >= 0)
		return occ_fail(e, OCC_E_DATA,
				"%s: token %lld is %lld, ids must be below model.vocab_size %lld",
				s->path, (long long)bad, (long long)s->type->at(s->tokens, bad),
				(long long)vocab_size);
	return 0;
}

struct occ_data *occ_data_open(const struct occ_strings *files, struct occ_tokenizer *tok,
			       int64_t seq_len, int64_t vocab_size, struct occ_err *e)
{
	occ_check(seq_len > 0, "seq_len %lld", (long long)seq_len);
	if (files->n < 1) {
		occ_fail(e, OCC_E_DATA, "no data files are named");
		return NULL;
	}
	struct occ_data *d = occ_alloc(1, sizeof(*d));
	d->seq_len = seq_len;
	d->shards = occ_alloc((size_t)files->n, sizeof(*d->shards));
	d->first = occ_alloc((size_t)files->n + 1, sizeof(*d->first));
	for (int i = 0; i < files->n; i++) {
		struct occ_shard *s = &d->shards[d->nshards++];
		if (occ_shard_open(s, files->at[i], tok, e) ||
		    check_shard(s, seq_len, vocab_size, e)) {
			occ_data_close(d);
			return NULL;
		}
		d->tokens += s->n;
		d->first[i + 1] = d->first[i] + (s->n - 1) / seq_len;
	}
	return d;
}

void occ_data_close(struct occ_data *d)
{
	if (!d)
		return;
	for (int i = 0; i < d->nshards; i++)
		occ_shard_release(&d->shards[i]);
	occ_free(d->shards);
	occ_free(d->first);
	occ_free(d);
}

int64_t occ_data_samples(const struct occ_data *d)
{
	return d->first[d->nshards];
}

int64_t occ_data_tokens(const struct occ_data *d)
{
	return d->tokens;
}

void occ_data_sample(const struct occ_data *d, int64_t g, int32_t *out)
{
	int lo = 0, hi = d->nshards; /* first[lo] <= g < first[hi] */
	occ_check(g >= 0 && g < d->first[hi], "sample %lld of %lld", (long long)g,
		  (long long)d->first[hi]);
	while (hi - lo > 1) {
		int mid = lo + (hi - lo) / 2;
		if (d->first[mid] <= g)
			lo = mid;
		else
			hi = mid;
	}
	const struct occ_shard *s = &d->shards[lo];
	s->type->copy(s->tokens, (g - d->first[lo]) * d->seq_len, d->seq_len + 1, out);
}

int64_t occ_data_order(int64_t n, int64_t i, int shuffle, int64_t seed)
{
	occ_check(n > 0 && i >= 0, "position %lld of %lld samples", (long long)i, (long long)n);
	if (!shuffle)
		return i % n;
	uint64_t key = occ_rng_key((uint64_t)seed, OCC_RNG_ORDER);
	key = occ_rng_u64(key, (uint64_t)(i / n));
	return (int64_t)occ_rng_permute(key, (uint64_t)n, (uint64_t)(i % n));
}
