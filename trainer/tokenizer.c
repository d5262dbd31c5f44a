/* Bytes are ids, or pieces of text are merged by a table. */
#include "trainer/tokenizer.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/bpe.h"
#include "trainer/files.h"
#include "trainer/pretoken.h"

struct occ_tokenizer {
	struct occ_bpe *bpe; /* NULL: bytes */
	char bytes[256];
};

struct occ_tokenizer *occ_tokenizer_open(const char *vocab, struct occ_err *e)
{
	struct occ_tokenizer *t = occ_alloc(1, sizeof(*t));
	for (int i = 0; i < 256; i++)
		t->bytes[i] = (char)i;
	if (!strcmp(vocab, "bytes") || (t->bpe = occ_bpe_open(vocab, e)))
		return t;
	occ_free(t);
	return NULL;
}

void occ_tokenizer_close(struct occ_tokenizer *t)
{
	if (t)
		occ_bpe_close(t->bpe);
	occ_free(t);
}

int64_t occ_tokenizer_size(const struct occ_tokenizer *t)
{
	return t->bpe ? occ_bpe_size(t->bpe) : 256;
}

int64_t occ_tokenizer_encode(struct occ_tokenizer *t, const char *text, size_t n, int32_t **ids)
{
	const unsigned char *p = (const unsigned char *)text;
	int32_t *out = occ_alloc(n, sizeof(*out)); /* no piece has more ids than bytes */
	size_t count = 0;
	for (size_t at = 0; at < n;) {
		size_t len = t->bpe ? occ_pretoken(p + at, n - at) : 1;
		if (t->bpe)
			count += occ_bpe_piece(t->bpe, p + at, len, out + count);
		else
			out[count++] = p[at];
		at += len;
	}
	*ids = out;
	return (int64_t)count;
}

const char *occ_tokenizer_bytes(const struct occ_tokenizer *t, int32_t id, size_t *n)
{
	if (t->bpe)
		return occ_bpe_bytes(t->bpe, id, n);
	*n = id >= 0 && id < 256;
	return *n ? &t->bytes[id] : NULL;
}

static int same_file(const char *a, const char *b)
{
	char x[PATH_MAX], y[PATH_MAX];
	return realpath(a, x) && realpath(b, y) && !strcmp(x, y);
}

/* Ids of n bytes as `width`-byte words, in pieces that fit a buffer. */
static int write_ids(struct occ_file *f, const int32_t *ids, int64_t n, int width, struct occ_err *e)
{
	unsigned char buf[1 << 14];
	const int64_t most = (int64_t)sizeof(buf) / width;
	for (int64_t at = 0; at < n; at += most) {
		int64_t len = n - at < most ? n - at : most;
		for (int64_t i = 0; i < len; i++)
			memcpy(buf + i * width, &ids[at + i], (size_t)width);
		if (occ_file_write(f, buf, (size_t)(len * width), e))
			return -1;
	}
	return 0;
}

static int encode_file(struct occ_tokenizer *t, const char *path, int32_t **ids, int64_t *n, struct occ_err *e)
{
	void *map;
	size_t bytes;
	if (occ_map_open(path, OCC_E_DATA, &map, &bytes, e))
		return -1;
	*n = occ_tokenizer_encode(t, map, bytes, ids);
	occ_map_close(map, bytes);
	return 0;
}

static int write_tokens(const char *out, int64_t vocab, int32_t *const *ids, const int64_t *counts, int n,
			struct occ_err *e)
{
	struct occ_file f;
	int wide = vocab > 65536;
	int32_t head[256] = {wide ? 20240801 : 20240520, wide ? 7 : 1};
	int64_t total = 0;
	for (int i = 0; i < n; i++)
		total += counts[i];
	if (total > INT32_MAX)
		return occ_fail(e, OCC_E_DATA, "%s: %lld tokens; one token file holds at most %d", out,
				(long long)total, INT32_MAX);
	head[2] = (int32_t)total;
	if (occ_file_create(&f, out, (struct occ_io){.code = OCC_E_CKPT}, e) ||
	    occ_file_write(&f, head, sizeof(head), e))
		return -1;
	for (int i = 0; i < n; i++)
		if (write_ids(&f, ids[i], counts[i], wide ? 4 : 2, e))
			return -1;
	if (occ_file_commit(&f, e))
		return -1;
	printf("%s: %lld tokens\n", out, (long long)total);
	return 0;
}

int occ_tokenize_files(const char *vocab, const char *out, char *const *texts, int n, struct occ_err *e)
{
	struct occ_tokenizer *t = occ_tokenizer_open(vocab, e);
	int32_t **ids = occ_alloc((size_t)n, sizeof(*ids));
	int64_t *counts = occ_alloc((size_t)n, sizeof(*counts));
	int bad = !t;
	for (int i = 0; i < n && !bad; i++) {
		if (same_file(out, texts[i]))
			bad = occ_fail(e, OCC_E_CONFIG, "--out %s is one of the texts", out);
		else
			bad = encode_file(t, texts[i], &ids[i], &counts[i], e);
	}
	if (!bad)
		bad = write_tokens(out, occ_tokenizer_size(t), ids, counts, n, e);
	for (int i = 0; i < n; i++)
		occ_free(ids[i]);
	occ_free(ids);
	occ_free(counts);
	occ_tokenizer_close(t);
	return bad ? -1 : 0;
}
