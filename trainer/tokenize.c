/* `occ-train tokenize`: texts to one llm.c token file, complete or absent. Texts are encoded one
 * after another in pieces, so that memory does not grow with them; uint16 where every id fits, else
 * uint32. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "trainer/data_kind.h"
#include "trainer/files.h"

enum { PIECE = 1 << 16 };

struct job {
	struct occ_tokenizer *tok;
	struct occ_file file;
	int size; /* bytes of an id */
	int64_t n;
	int64_t bytes; /* of text */
	struct occ_ids ids;
};

static int same_file(const char *a, const char *b)
{
	struct stat x, y;
	return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Neither the output nor the file written beside it may be one that is read. */
static int check_out(const char *out, const char *input, struct occ_err *e)
{
	size_t n = strlen(out) + 5;
	char *aside = occ_alloc(n, 1);
	snprintf(aside, n, "%s.tmp", out);
	int bad = same_file(out, input) || same_file(aside, input);
	occ_free(aside);
	return bad ? occ_fail(e, OCC_E_CONFIG, "%s: the output would overwrite the input %s", out,
			      input)
		   : 0;
}

static int write_ids(struct job *j, struct occ_err *e)
{
	uint16_t narrow[4096];
	const struct occ_ids *ids = &j->ids;
	if (j->size == 4)
		return occ_file_write(&j->file, ids->at, (size_t)ids->n * 4, e);
	for (int64_t at = 0; at < ids->n; at += 4096) {
		int64_t n = ids->n - at < 4096 ? ids->n - at : 4096;
		for (int64_t i = 0; i < n; i++)
			narrow[i] = (uint16_t)ids->at[at + i];
		if (occ_file_write(&j->file, narrow, (size_t)n * 2, e))
			return -1;
	}
	return 0;
}

static int write_text(struct job *j, const char *path, const struct occ_view *v, struct occ_err *e)
{
	for (size_t at = 0; at < v->bytes;) {
		j->ids.n = 0;
		at = occ_tokenizer_feed(j->tok, (const char *)v->at, v->bytes, at, PIECE, &j->ids);
		j->n += j->ids.n;
		if (j->n > INT32_MAX)
			return occ_fail(e, OCC_E_DATA,
					"%s: more than %d tokens, which one token file can hold: "
					"write several",
					path, INT32_MAX);
		if (write_ids(j, e))
			return -1;
	}
	j->bytes += (int64_t)v->bytes;
	return 0;
}

static int take_text(struct job *j, const char *path, struct occ_err *e)
{
	struct occ_view v = {0};
	int bad = occ_view_open(&v, path, e) || write_text(j, path, &v, e);
	occ_map_close((void *)(uintptr_t)v.at, v.bytes);
	return bad ? -1 : 0;
}

static void make_header(const struct job *j, int32_t head[OCC_LLMC_HEAD / 4])
{
	memset(head, 0, OCC_LLMC_HEAD);
	head[0] = j->size == 2 ? OCC_LLMC_U16 : OCC_LLMC_U32;
	head[1] = j->size == 2 ? 1 : 7;
	head[2] = (int32_t)j->n;
}

/* The number of tokens is known last, so the header is written twice. */
static int write_file(struct job *j, char *const *texts, int n, struct occ_err *e)
{
	int32_t head[OCC_LLMC_HEAD / 4] = {0};
	if (occ_file_write(&j->file, head, sizeof(head), e))
		return -1;
	for (int i = 0; i < n; i++)
		if (take_text(j, texts[i], e))
			return -1;
	make_header(j, head);
	if (pwrite(j->file.fd, head, sizeof(head), 0) != sizeof(head))
		return occ_fail(e, OCC_E_CKPT, "%s: cannot write its header", j->file.path);
	return occ_file_commit(&j->file, e);
}

static int tokenize(struct job *j, const char *out, char *const *texts, int n, struct occ_err *e)
{
	for (int i = 0; i < n; i++)
		if (check_out(out, texts[i], e))
			return -1;
	struct occ_io io = {.code = OCC_E_CKPT};
	if (occ_file_create(&j->file, out, io, e))
		return -1;
	j->size = occ_tokenizer_size(j->tok) <= 65536 ? 2 : 4;
	int bad = write_file(j, texts, n, e);
	occ_file_discard(&j->file); /* nothing is left to discard where all went well */
	occ_free(j->ids.at);
	return bad;
}

int occ_tokenize_files(const char *vocab, const char *out, char *const *texts, int n,
		       struct occ_err *e)
{
	struct job j = {0};
	if (n < 1)
		return occ_fail(e, OCC_E_CONFIG, "tokenize: no text is named");
	if (strcmp(vocab, "bytes") && check_out(out, vocab, e))
		return -1;
	j.tok = occ_tokenizer_open(vocab, e);
	if (!j.tok)
		return -1;
	int bad = tokenize(&j, out, texts, n, e);
	occ_tokenizer_close(j.tok);
	if (!bad)
		printf("%s: %lld tokens from %lld bytes\n", out, (long long)j.n,
		       (long long)j.bytes);
	return bad;
}
