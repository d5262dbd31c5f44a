/* A list of token files as one sequence of samples. */
#include "trainer/data.h"

#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/rng.h"
#include "trainer/data_kind.h"

#define LL(x) ((long long)(x))

struct occ_data {
	int nfiles;
	struct occ_tokens *files;
	int64_t *first; /* [nfiles + 1] first sample of each file */
	int64_t seq_len, tokens;
};

static int ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);
	return n > m && !strcmp(s + n - m, end);
}

/* "x.bin" -> "x.idx", into out */
static void index_path(const char *bin, char *out, size_t n)
{
	snprintf(out, n, "%.*s.idx", (int)(strlen(bin) - 4), bin);
}

/* Megatron with an index beside it, llm.c tokens for other .bin, else text. */
static int open_tokens(struct occ_tokens *t, const char *path, struct occ_tokenizer *tok, struct occ_err *e)
{
	char index[4096];
	memset(t, 0, sizeof(*t));
	t->path = occ_strdup(path);
	if (!ends_with(path, ".bin"))
		return occ_tokens_open_text(t, tok, e);
	index_path(path, index, sizeof(index));
	if (!access(index, F_OK))
		return occ_tokens_open_megatron(t, index, e);
	return occ_tokens_open_llmc(t, e);
}

static int check_tokens(const struct occ_tokens *t, int64_t seq_len, int64_t vocab, struct occ_err *e)
{
	int64_t bad;
	if (t->n <= seq_len)
		return occ_fail(e, OCC_E_DATA,
				"%s: %lld tokens: too few for one sample of model.seq_len + 1 = %lld", t->path,
				LL(t->n), LL(seq_len + 1));
	if (occ_tokens_scan(t, vocab, &bad) < 0)
		return occ_fail(e, OCC_E_DATA, "%s: token %lld is %lld; model.vocab_size is %lld", t->path,
				LL(bad), LL(occ_tokens_get(t, bad)), LL(vocab));
	return 0;
}

struct occ_data *occ_data_open(const struct occ_strings *files, struct occ_tokenizer *tok, int64_t seq_len,
			       int64_t vocab_size, struct occ_err *e)
{
	struct occ_data *d = occ_alloc(1, sizeof(*d));
	d->files = occ_alloc((size_t)files->n, sizeof(*d->files));
	d->first = occ_alloc((size_t)files->n + 1, sizeof(*d->first));
	d->seq_len = seq_len;
	for (int i = 0; i < files->n; i++) {
		struct occ_tokens *t = &d->files[i];
		d->nfiles = i + 1;
		if (open_tokens(t, files->at[i], tok, e) || check_tokens(t, seq_len, vocab_size, e)) {
			occ_data_close(d);
			return NULL;
		}
		d->first[i + 1] = d->first[i] + (t->n - 1) / seq_len;
		d->tokens += t->n;
	}
	return d;
}

void occ_data_close(struct occ_data *d)
{
	if (!d)
		return;
	for (int i = 0; i < d->nfiles; i++)
		occ_tokens_close(&d->files[i]);
	occ_free(d->files);
	occ_free(d->first);
	occ_free(d);
}

int64_t occ_data_samples(const struct occ_data *d)
{
	return d->first[d->nfiles];
}

int64_t occ_data_tokens(const struct occ_data *d)
{
	return d->tokens;
}

void occ_data_sample(const struct occ_data *d, int64_t g, int32_t *out)
{
	int lo = 0, hi = d->nfiles - 1;
	occ_check(g >= 0 && g < d->first[d->nfiles], "sample %lld of %lld", LL(g), LL(d->first[d->nfiles]));
	while (lo < hi) {
		int mid = (lo + hi + 1) / 2;
		if (d->first[mid] <= g)
			lo = mid;
		else
			hi = mid - 1;
	}
	const struct occ_tokens *t = &d->files[lo];
	int64_t from = (g - d->first[lo]) * d->seq_len;
	for (int64_t i = 0; i <= d->seq_len; i++)
		out[i] = (int32_t)occ_tokens_get(t, from + i);
}

int64_t occ_data_order(int64_t n, int64_t i, int shuffle, int64_t seed)
{
	if (!shuffle)
		return i % n;
	uint64_t key = occ_rng_key((uint64_t)seed, OCC_RNG_ORDER);
	return (int64_t)occ_rng_permute(occ_rng_u64(key, (uint64_t)(i / n)), (uint64_t)n, (uint64_t)(i % n));
}

/* 1 if the file starts with something that data files start with. */
static int looks_like_tokens(const char *path)
{
	int32_t magic = 0;
	FILE *f = fopen(path, "rb");
	size_t n = f ? fread(&magic, sizeof(magic), 1, f) : 0;
	if (f)
		fclose(f);
	return n == 1 && (magic == 20240520 || magic == 20240801);
}

static int print_tokens(const struct occ_tokens *t, struct occ_err *e)
{
	int64_t bad, max = occ_tokens_scan(t, INT64_MAX, &bad);
	if (bad >= 0)
		return occ_fail(e, OCC_E_DATA, "%s: token %lld is %lld", t->path, LL(bad),
				LL(occ_tokens_get(t, bad)));
	printf("file: %s\nkind: %s\ntokens: %lld\nbytes a token: %d\nlargest id: %lld\n", t->path, t->kind,
	       LL(t->n), t->width, LL(max));
	if (t->documents)
		printf("documents: %lld\n", LL(t->documents));
	return 1;
}

int occ_data_inspect(const char *path, struct occ_err *e)
{
	char bin[4096], index[4096];
	struct occ_tokens t = {.path = occ_strdup(path)};
	int known = 0, bad = 0;
	snprintf(bin, sizeof(bin), "%s", path);
	if (ends_with(path, ".idx"))
		memcpy(bin + strlen(bin) - 4, ".bin", 4);
	index_path(bin, index, sizeof(index));
	if (ends_with(bin, ".bin") && !access(index, F_OK)) {
		occ_free(t.path);
		t.path = occ_strdup(bin);
		known = 1;
		bad = occ_tokens_open_megatron(&t, index, e);
	} else if (looks_like_tokens(path)) {
		known = 1;
		bad = occ_tokens_open_llmc(&t, e);
	}
	int printed = known && !bad ? print_tokens(&t, e) : 0;
	occ_tokens_close(&t);
	return bad ? -1 : printed;
}
