/* Fuzz target of the readers of training data: any bytes are read or refused, never more. The first
 * byte says what the rest is: a token file, an index and its tokens (two bytes say where the second
 * begins), or a list of merges. libFuzzer entry; with -DFUZZ_MAIN a program that runs the files
 * named. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "trainer/data.h"

int LLVMFuzzerTestOneInput(const uint8_t *x, size_t n);

enum { FUZZ_LLMC, FUZZ_MEGATRON, FUZZ_MERGES, FUZZ_KINDS };

static void fuzz_put(const char *path, const uint8_t *x, size_t n)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || write(fd, x, n) != (ssize_t)n || close(fd))
		abort();
}

static void fuzz_refused(const struct occ_err *e)
{
	if (e->code != OCC_E_DATA || !e->text[0])
		abort();
}

/* Every sample of what opens must hold ids of the vocabulary. */
static void fuzz_open(char *path)
{
	enum { S = 3, V = 300 };
	struct occ_err e = {0};
	struct occ_strings files = {1, &path};
	struct occ_data *d = occ_data_open(&files, NULL, S, V, &e);
	int32_t ids[S + 1];
	if (!d) {
		fuzz_refused(&e);
		return;
	}
	for (int64_t g = 0; g < occ_data_samples(d); g++) {
		occ_data_sample(d, g, ids);
		for (int i = 0; i <= S; i++)
			if (ids[i] < 0 || ids[i] >= V)
				abort();
	}
	occ_data_close(d);
}

static void fuzz_merges(const char *path, const uint8_t *x, size_t n)
{
	struct occ_err e = {0};
	struct occ_tokenizer *t = occ_tokenizer_open(path, &e);
	int32_t *ids;
	size_t at = 0, len;
	if (!t) {
		fuzz_refused(&e);
		return;
	}
	int64_t count = occ_tokenizer_encode(t, (const char *)x, n, &ids);
	for (int64_t i = 0; i < count; i++, at += len) {
		const char *s = occ_tokenizer_bytes(t, ids[i], &len);
		if (!s || len > n - at || memcmp(s, x + at, len))
			abort();
	}
	if (at != n)
		abort();
	occ_free(ids);
	occ_tokenizer_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *x, size_t n)
{
	char dir[] = "/tmp/occ-fuzz-XXXXXX", bin[64], idx[64];
	if (n < 3 || !mkdtemp(dir))
		return 0;
	snprintf(bin, sizeof(bin), "%s/x.bin", dir);
	snprintf(idx, sizeof(idx), "%s/x.idx", dir);
	int kind = x[0] % FUZZ_KINDS;
	size_t cut = (size_t)x[1] | (size_t)x[2] << 8;
	x += 3;
	n -= 3;
	cut = kind != FUZZ_MEGATRON ? 0 : cut < n ? cut : n;
	if (kind == FUZZ_MEGATRON)
		fuzz_put(idx, x, cut);
	fuzz_put(bin, x + cut, n - cut);
	if (kind == FUZZ_MERGES)
		fuzz_merges(bin, x, n);
	else
		fuzz_open(bin);
	unlink(bin);
	unlink(idx);
	rmdir(dir);
	return 0;
}

#ifdef FUZZ_MAIN
int main(int argc, char **argv)
{
	static uint8_t x[1 << 20];
	for (int i = 1; i < argc; i++) {
		FILE *f = fopen(argv[i], "rb");
		if (!f)
			return 1;
		size_t n = fread(x, 1, sizeof(x), f);
		fclose(f);
		LLVMFuzzerTestOneInput(x, n);
	}
	return 0;
}
#endif
