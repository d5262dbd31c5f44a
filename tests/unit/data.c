/* Data sets: what each kind of file gives as samples against a plain model, the order of samples,
 * and every way a file can be wrong: exit code 3, a line with file, position and value. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "tests/check.h"
#include "tests/fuzz/data.c"
#include "tests/token_files.h"
#include "trainer/data.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Opens one file; NULL and the line in *e, or the data set. */
static struct occ_data *open_one(const char *path, int64_t seq_len, int64_t vocab,
				 struct occ_err *e)
{
	struct occ_tokenizer *t = occ_tokenizer_open("bytes", e);
	char *at = occ_strdup(path);
	struct occ_strings files = {1, &at};
	memset(e, 0, sizeof(*e));
	struct occ_data *d = occ_data_open(&files, t, seq_len, vocab, e);
	occ_free(at);
	occ_tokenizer_close(t);
	return d;
}

/* `says` holds words with | between; each must stand in the line, and so must the path. */
static void check_line(const struct occ_err *e, const char *path, const char *says, const char *row)
{
	char words[256];
	snprintf(words, sizeof(words), "%s", says);
	CHECK(e->code == OCC_E_DATA, "%s: exit code %d", row, e->code);
	CHECK(strstr(e->text, path), "%s: does not name the file: %s", row, e->text);
	for (char *w = strtok(words, "|"); w; w = strtok(NULL, "|"))
		CHECK(strstr(e->text, w), "%s: does not say '%s': %s", row, w, e->text);
}

static void check_refused(const char *path, int64_t seq_len, int64_t vocab, const char *says,
			  const char *row)
{
	struct occ_err e;
	struct occ_data *d = open_one(path, seq_len, vocab, &e);
	CHECK(!d, "%s: was opened", row);
	if (!d)
		check_line(&e, path, says, row);
	occ_data_close(d);
}

/* One file for each kind and type of token, longer than two samples. */
enum { NFILES = 9, NTOKENS = 26 };
static const char *const names[NFILES] = {"a.bin", "b.bin", "c.bin", "d.bin", "e.bin",
					  "f.bin", "g.bin", "h.bin", "i.txt"};

static void make_files(void)
{
	static struct bytes b, idx;
	static const int codes[] = {1, 2, 3, 4, 5, 8};
	for (int f = 0; f < NFILES; f++) {
		if (f < 2) {
			make_llmc(&b, f, NTOKENS, f == 0 ? 2 : 4, 120);
		} else if (f == NFILES - 1) {
			make_text(&b, f, NTOKENS, 120);
		} else {
			char name[] = "x.idx";
			name[0] = names[f][0];
			make_megatron(&idx, &b, f, 10, codes[f - 2], 120);
			file(name, &idx);
		}
		file(names[f], &b);
	}
}

/* Samples of `nfiles` files from the first on, against the sentence of the header. */
static void check_samples(int first, int nfiles, int64_t S)
{
	struct occ_err e = {0};
	struct occ_tokenizer *t = occ_tokenizer_open("bytes", &e);
	char *paths[NFILES];
	struct occ_strings files = {nfiles, paths};
	int64_t each = (NTOKENS - 1) / S;
	int32_t ids[NTOKENS];
	for (int i = 0; i < nfiles; i++)
		paths[i] = occ_strdup(files_path(names[first + i]));
	struct occ_data *d = occ_data_open(&files, t, S, 256, &e);
	CHECK(d, "files %d to %d: %s", first, first + nfiles - 1, e.text);
	if (d) {
		CHECK(occ_data_samples(d) == nfiles * each &&
			      occ_data_tokens(d) == nfiles * NTOKENS,
		      "files %d +%d S %lld: %lld samples, %lld tokens", first, nfiles, (long long)S,
		      (long long)occ_data_samples(d), (long long)occ_data_tokens(d));
		for (int64_t g = 0; g < occ_data_samples(d); g++) {
			occ_data_sample(d, g, ids);
			for (int64_t i = 0; i <= S; i++)
				CHECK(ids[i] ==
					      token(first + (int)(g / each), g % each * S + i, 120),
				      "file %d S %lld sample %lld position %lld: %d", first,
				      (long long)S, (long long)g, (long long)i, ids[i]);
		}
	}
	occ_data_close(d);
	occ_tokenizer_close(t);
	for (int i = 0; i < nfiles; i++)
		occ_free(paths[i]);
}

static void check_contents(void)
{
	static const int64_t lengths[] = {1, 2, 5, 12, 13, 25};
	for (int first = 0; first < NFILES; first++)
		for (int n = 1; first + n <= NFILES; n++)
			for (size_t s = 0; s < COUNT(lengths); s++)
				check_samples(first, n, lengths[s]);
}

/* The largest id of each file must be refused as soon as the vocabulary ends with it, by its first
 * position; one id more is enough. */
static void check_vocabulary(void)
{
	for (int f = 0; f < NFILES; f++) {
		const char *path = files_path(names[f]);
		char says[64];
		int64_t at = 0;
		struct occ_err e;
		for (int64_t i = 1; i < NTOKENS; i++)
			if (token(f, i, 120) > token(f, at, 120))
				at = i;
		snprintf(says, sizeof(says), "token %lld is %d|vocab_size %d", (long long)at,
			 token(f, at, 120), token(f, at, 120));
		check_refused(path, 5, token(f, at, 120), says, names[f]);
		struct occ_data *d = open_one(path, 5, token(f, at, 120) + 1, &e);
		CHECK(d, "%s: %s", names[f], e.text);
		occ_data_close(d);
		check_refused(path, NTOKENS, 256, "26 tokens|27", names[f]);
	}
}

/* Bytes of a good token file changed: where, how many, to what; then its size. */
static const struct llmc_row {
	const char *row;
	int at, size;
	int64_t value;
	int bytes; /* of the file; 0 as they are */
	const char *says;
} llmc_rows[] = {
	{"magic", 0, 4, 0x01020304, 0, "16909060|0x01020304|20240520|nanoGPT|.idx"},
	{"zero magic", 0, 4, 0, 0, "starts with 0"},
	{"questions", 0, 4, 20240522, 0, "multiple-choice|20240522"},
	{"weights", 0, 4, 20240326, 0, "GPT-2 weights"},
	{"Llama weights", 0, 4, 20240803, 0, "Llama 3 weights"},
	{"state", 0, 4, 20240527, 0, "optimizer state"},
	{"debug state", 0, 4, 20240327, 0, "debug state"},
	{"tokenizer", 0, 4, 20240328, 0, "tokenizer"},
	{"version 0", 4, 4, 0, 0, "version 0|1"},
	{"version of the other kind", 4, 4, 7, 0, "version 7|1"},
	{"other kind", 0, 4, 20240801, 0, "version 1|7"},
	{"negative count", 8, 4, -1, 0, "header counts -1 tokens"},
	{"count too small", 8, 4, NTOKENS - 1, 0, "too long|1076 bytes|25 tokens|1074"},
	{"count too large", 8, 4, NTOKENS + 1, 0, "truncated|1076 bytes|27 tokens|1078"},
	{"largest count", 8, 4, INT32_MAX, 0, "truncated|1076|2147483647|4294968318"},
	{"count 0", 8, 4, 0, 0, "too long|0 tokens|1024"},
	{"no tokens", 8, 4, 0, 1024, "0 tokens|needs 6"},
	{"too short for a sample", 8, 4, 5, 1034, "5 tokens|needs 6"},
	{"one byte less", 0, 0, 0, 1075, "truncated|1075"},
	{"one byte more", 0, 0, 0, 1077, "too long|1077"},
	{"header only", 0, 0, 0, 1024, "truncated|1024"},
	{"half a header", 0, 0, 0, 512, "512 bytes|1024"},
	{"magic only", 0, 0, 0, 4, "4 bytes"},
	{"three bytes", 0, 0, 0, 3, "starts with"},
	{"empty", 0, 0, 0, -1, "empty"},
	{"id of the vocabulary's size", 1024 + 2 * 7, 2, 200, 0, "token 7 is 200|vocab_size 200"},
	{"largest id", 1024 + 2 * 25, 2, 65535, 0, "token 25 is 65535"},
};

static void check_llmc(void)
{
	static struct bytes b;
	for (size_t i = 0; i < COUNT(llmc_rows); i++) {
		const struct llmc_row *r = &llmc_rows[i];
		make_llmc(&b, 0, NTOKENS, 2, 120);
		memcpy(b.x + r->at, &r->value, (size_t)r->size);
		b.n = r->bytes < 0 ? 0 : r->bytes ? (size_t)r->bytes : b.n;
		check_refused(file("bad.bin", &b), 5, 200, r->says, r->row);
	}
	make_llmc(&b, 0, NTOKENS, 4, 120); /* an id that is negative as int32 */
	memset(b.x + 1024 + 4 * 3, 0xff, 4);
	check_refused(file("bad.bin", &b), 5, 200, "token 3 is 4294967295", "uint32");
}

/* A good index of 10 sequences (26 tokens of 2 bytes) changed, and the sizes of both files. Arrays:
 * lengths from byte 34, offsets from 74, documents from 154 to 178. */
static const struct idx_row {
	const char *row;
	int at, size;
	uint64_t value;
	int idx_bytes, bin_bytes; /* 0 as they are, -1 empty, -2 no such file */
	const char *says;         /* of bad.idx, or "bin:" and what is said of bad.bin */
} idx_rows[] = {
	{"magic", 0, 1, 'm', 0, 0, "MMIDIDX"},
	{"end of magic", 8, 1, 1, 0, 0, "MMIDIDX"},
	{"version", 9, 8, 2, 0, 0, "version 2|1"},
	{"huge version", 9, 8, UINT64_MAX, 0, 0, "version 18446744073709551615"},
	{"type 0", 17, 1, 0, 0, 0, "type code 0"},
	{"type 9", 17, 1, 9, 0, 0, "type code 9"},
	{"type 255", 17, 1, 255, 0, 0, "type code 255"},
	{"doubles", 17, 1, 6, 0, 0, "f64|6"},
	{"floats", 17, 1, 7, 0, 0, "f32|7"},
	{"wrong size of a token", 17, 1, 4, 0, 0, "sequence 1|byte 6|12"},
	{"fewer sequences", 18, 8, 9, 0, 0, "too long|178 bytes|9"},
	{"more sequences", 18, 8, 11, 0, 0, "truncated|178 bytes|11"},
	{"no sequences", 18, 8, 0, 0, 0, "too long|0 sequences"},
	{"sequences overflow", 18, 8, UINT64_MAX, 0, 0, "truncated|18446744073709551615"},
	{"sequences overflow x12", 18, 8, 0x1555555555555556, 0, 0, "truncated"},
	{"fewer documents", 26, 8, 2, 0, 0, "too long|2"},
	{"more documents", 26, 8, 5, 0, 0, "truncated|5"},
	{"documents overflow", 26, 8, UINT64_MAX, 0, 0, "truncated"},
	{"documents overflow x8", 26, 8, 0x2000000000000003, 0, 0, "truncated"},
	{"negative length", 34, 4, 0xffffffff, 0, 0, "sequence 0|length -1"},
	{"least length", 34 + 36, 4, 0x80000000, 0, 0, "sequence 9|-2147483648"},
	{"length too small", 34 + 8, 4, 4, 0, 0, "sequence 3|byte 16|14"},
	{"last length too small", 34 + 36, 4, 3, 0, 0, "bin:too long|52 bytes|50"},
	{"last length too large", 34 + 36, 4, 5, 0, 0, "bin:truncated|sequence 9|5 tokens|byte 44"},
	{"huge length", 34 + 36, 4, INT32_MAX, 0, 0, "bin:truncated|2147483647"},
	{"first offset", 74, 8, 2, 0, 0, "sequence 0|byte 2|0"},
	{"negative offset", 74 + 8, 8, UINT64_MAX, 0, 0, "sequence 1|byte -1|6"},
	{"offset off by one", 74 + 72, 8, 43, 0, 0, "sequence 9|byte 43|44"},
	{"first document", 154, 8, 1, 0, 0, "document 0|sequence 1"},
	{"document beyond the last", 162, 8, 11, 0, 0, "document 1|sequence 11"},
	{"documents go back", 170, 8, 3, 0, 0, "document 2|sequence 3"},
	{"negative document", 162, 8, UINT64_MAX, 0, 0, "document 1|-1"},
	{"last document early", 170, 8, 9, 0, 0, "document|9|10"},
	{"index one byte short", 0, 0, 0, 177, 0, "truncated|177"},
	{"index one byte long", 0, 0, 0, 179, 0, "too long|179"},
	{"header only", 0, 0, 0, 34, 0, "truncated|34"},
	{"half a header", 0, 0, 0, 20, 0, "truncated|20"},
	{"index empty", 0, 0, 0, -1, 0, "empty"},
	{"tokens one byte short", 0, 0, 0, 0, 51, "bin:truncated|51"},
	{"tokens one byte long", 0, 0, 0, 0, 53, "bin:too long|53|52"},
	{"tokens empty", 0, 0, 0, 0, -1, "bin:empty"},
	{"tokens missing", 0, 0, 0, 0, -2, "bin:No such file"},
};

static void resize(struct bytes *b, int bytes)
{
	b->n = bytes < 0 ? 0 : bytes ? (size_t)bytes : b->n;
}

static void check_megatron(void)
{
	static struct bytes idx, bin;
	for (size_t i = 0; i < COUNT(idx_rows); i++) {
		const struct idx_row *r = &idx_rows[i];
		int of_bin = !strncmp(r->says, "bin:", 4);
		make_megatron(&idx, &bin, 0, 10, 8, 120);
		memcpy(idx.x + r->at, &r->value, (size_t)r->size);
		resize(&idx, r->idx_bytes);
		resize(&bin, r->bin_bytes);
		const char *path = file("bad.bin", &bin);
		file("bad.idx", &idx);
		if (r->bin_bytes == -2)
			unlink(path);
		struct occ_err e;
		struct occ_data *d = open_one(path, 5, 200, &e);
		CHECK(!d, "%s: was opened", r->row);
		if (!d)
			check_line(&e, of_bin ? path : files_path("bad.idx"), r->says + 4 * of_bin,
				   r->row);
		occ_data_close(d);
	}
	make_megatron(&idx, &bin, 0, 10, 3, 120); /* int16: a negative id */
	memset(bin.x + 2 * 11, 0xff, 2);
	const char *path = file("bad.bin", &bin);
	file("bad.idx", &idx);
	check_refused(path, 5, 200, "token 11 is -1|vocab_size 200", "negative id");
	make_megatron(&idx, &bin, 0, 10, 5, 120); /* int64: an id whose lower half is small */
	bin.x[8 * 4 + 4] = 1;
	path = file("bad.bin", &bin);
	file("bad.idx", &idx);
	check_refused(path, 5, 200, "token 4 is 4294967", "int64");
	make_megatron(&idx, &bin, 0, 10, 8, 120); /* one more byte a sequence: modes */
	memset(idx.x + idx.n, 0, 10);
	idx.n += 10;
	path = file("bad.bin", &bin);
	file("bad.idx", &idx);
	struct occ_err e;
	struct occ_data *d = open_one(path, 5, 200, &e);
	CHECK(d && occ_data_samples(d) == 5, "modes: %s", e.text);
	occ_data_close(d);
	unlink(files_path("bad.idx"));
}

static void check_others(void)
{
	static struct bytes b, idx;
	make_llmc(&b, 0, NTOKENS, 2, 120);
	check_refused(file("tokens", &b), 5, 200, "llm.c tokens|*.bin", "tokens without .bin");
	make_megatron(&idx, &b, 0, 10, 8, 120);
	check_refused(file("index.idx", &idx), 5, 200, "index|.bin", "an index as text");
	b.n = 0;
	check_refused(file("none.txt", &b), 5, 256, "empty", "empty text");
	make_text(&b, 0, 5, 120);
	check_refused(file("short.txt", &b), 5, 256, "5 tokens|needs 6", "short text");
	check_refused(files_path("missing.txt"), 5, 256, "No such file", "missing");
	check_refused(files_path("missing.bin"), 5, 256, "No such file", "missing .bin");
	check_refused(files_dir, 5, 256, "directory", "directory");
	mkdir(files_path("dir.bin"), 0700);
	check_refused(files_path("dir.bin"), 5, 256, "directory", "directory .bin");
	check_refused("/dev/null", 5, 256, "not a regular file", "device");
	mkfifo(files_path("pipe"), 0600);
	check_refused(files_path("pipe"), 5, 256, "not a regular file", "pipe");
	check_refused(files_path("short.txt/x"), 5, 256, "Not a directory", "below a file");
}

static void check_several(void)
{
	struct occ_err e = {0};
	char *paths[3] = {occ_strdup(files_path("a.bin")), occ_strdup(files_path("nosuch.bin")),
			  occ_strdup(files_path("c.bin"))};
	struct occ_strings files = {3, paths};
	CHECK(!occ_data_open(&files, NULL, 5, 200, &e), "a missing file among others");
	check_line(&e, "nosuch.bin", "No such file", "a missing file among others");
	e = (struct occ_err){0};
	files.n = 0;
	CHECK(!occ_data_open(&files, NULL, 5, 200, &e) && e.code == OCC_E_DATA, "no files");
	for (int i = 0; i < 3; i++)
		occ_free(paths[i]);
}

/* More than 4 GiB of tokens, all of them holes but the last ones. */
static void check_large(void)
{
	static struct bytes idx;
	const uint64_t n = INT32_MAX;
	struct occ_err e;
	int32_t ids[5];
	memcpy(idx.x, "MMIDIDX\0\0", 9);
	idx.n = 9;
	add(&idx, 1, 8);
	add(&idx, 1, 1);
	add(&idx, 3, 8);
	add(&idx, 2, 8);
	for (uint64_t i = 0; i < 3; i++)
		add(&idx, n, 4);
	for (uint64_t i = 0; i < 3; i++)
		add(&idx, i * n, 8);
	add(&idx, 0, 8);
	add(&idx, 3, 8);
	file("large.idx", &idx);
	int fd = open(files_path("large.bin"), O_WRONLY | O_CREAT, 0600);
	int made = fd >= 0 && pwrite(fd, "\1\2\3\4\5\6\7", 7, (off_t)(3 * n - 7)) == 7;
	CHECK(made || errno == EFBIG || errno == ENOSPC, "large.bin: %s", strerror(errno));
	if (fd >= 0)
		close(fd);
	struct occ_data *d = made ? open_one(files_path("large.bin"), 4, 256, &e) : NULL;
	CHECK(d || !made, "%s", e.text);
	if (d) {
		int64_t samples = (int64_t)(3 * n - 1) / 4;
		CHECK(occ_data_samples(d) == samples && occ_data_tokens(d) == (int64_t)(3 * n),
		      "sizes");
		occ_data_sample(d, samples - 1, ids);
		CHECK(ids[0] == 3 && ids[4] == 7, "the last sample: %d to %d", ids[0], ids[4]);
	}
	occ_data_close(d);
	unlink(files_path("large.bin"));
}

/* Text through BPE is what the tokenizer makes of it. */
static void check_bpe(void)
{
	static const char text[] = "low lower lowest newer  wider\n";
	static const char merges[] = "#version: 0.2\n\xc4\xa0 l\nl o\nlo w\ne r\n";
	struct occ_err e = {0};
	struct occ_tokenizer *t =
		occ_tokenizer_open(files_put("m.txt", merges, sizeof(merges) - 1), &e);
	char *path = files_put("bpe.txt", text, sizeof(text) - 1);
	struct occ_strings files = {1, &path};
	int32_t *want, ids[6];
	int64_t n = occ_tokenizer_encode(t, text, sizeof(text) - 1, &want);
	struct occ_data *d = occ_data_open(&files, t, 5, 261, &e);
	CHECK(d && occ_data_tokens(d) == n && occ_data_samples(d) == (n - 1) / 5, "%s", e.text);
	for (int64_t g = 0; d && g < (n - 1) / 5; g++) {
		occ_data_sample(d, g, ids);
		CHECK(!memcmp(ids, want + g * 5, sizeof(ids)), "sample %lld", (long long)g);
	}
	occ_data_close(d);
	CHECK(!occ_data_open(&files, t, 5, 259, &e), "er is 259");
	check_line(&e, path, "is 259|vocab_size 259", "id of the merges");
	occ_free(want);
	occ_tokenizer_close(t);
}

static void check_order(void)
{
	static const int64_t sizes[] = {1, 2, 3, 4, 5, 7, 10, 64, 1000};
	static char seen[1000];
	for (size_t s = 0; s < COUNT(sizes); s++)
		for (int64_t epoch = 0; epoch < 3; epoch++) {
			int64_t n = sizes[s], same = 0, as_before = 0, other_seed = 0;
			memset(seen, 0, sizeof(seen));
			for (int64_t i = 0; i < n; i++) {
				int64_t at = epoch * n + i, g = occ_data_order(n, at, 1, 7);
				CHECK(g >= 0 && g < n && !seen[g], "n %lld: %lld at %lld",
				      (long long)n, (long long)g, (long long)at);
				if (g >= 0 && g < n)
					seen[g] = 1;
				same += g == i;
				as_before += epoch && g == occ_data_order(n, at - n, 1, 7);
				other_seed += g == occ_data_order(n, at, 1, 8);
				CHECK(occ_data_order(n, at, 0, 7) == i, "unshuffled");
			}
			CHECK(n < 64 || (same < n / 4 && as_before < n / 4 && other_seed < n / 4),
			      "n %lld: %lld in place, %lld as before, %lld as for another seed",
			      (long long)n, (long long)same, (long long)as_before,
			      (long long)other_seed);
		}
	for (int64_t i = 0, n = (int64_t)1 << 40; i < 1000; i++)
		CHECK(occ_data_order(n, 3 * n + i, 1, -5) < n &&
			      occ_data_order(n, 3 * n + i, 0, 0) == i,
		      "2^40 samples");
}

static void inspect(const char *name, int want, const char *says)
{
	struct occ_err e = {0};
	char text[1024];
	const char *path = name[0] == '/' ? name : files_path(name);
	int real = files_catch();
	int got = occ_data_inspect(path, &e);
	files_release(real, text, sizeof(text));
	CHECK(got == want && (got < 0) == (e.code == OCC_E_DATA), "inspect %s: %d %s", name, got,
	      e.text);
	CHECK((got > 0) == (text[0] != 0), "inspect %s printed: %s", name, text);
	CHECK(strstr(want < 0 ? e.text : text, says), "inspect %s: %s%s, not %s", name, text,
	      e.text, says);
}

static void check_inspect(void)
{
	static struct bytes b, idx;
	make_llmc(&b, 0, 5, 2, 1);
	memcpy(b.x + 1024, "\1\0\7\0\xff\xff\3\0\0\0", 10);
	file("in", &b);
	inspect("in", 1, "kind: llm.c tokens\ntokens: 5\ntype: u16\nmax id: 65535\n");
	b.n--;
	file("in", &b);
	inspect("in", -1, "truncated");
	make_llmc(&b, 0, 0, 4, 1);
	file("in", &b);
	inspect("in", 1, "kind: llm.c tokens (Llama 3)\ntokens: 0\ntype: u32\n");
	memset(b.x, 0, 4);
	file("in", &b);
	inspect("in", 0, "");
	make_llmc(&b, 0, 0, 4, 1);
	memcpy(b.x, "\x56\xd8\x34\x01", 4); /* 20240470: near, but none */
	file("in", &b);
	inspect("in", 0, "");
	make_megatron(&idx, &b, 0, 10, 8, 120);
	file("ix.bin", &b);
	file("ix.idx", &idx);
	static const char all[] =
		"kind: Megatron indexed data set\ntokens: 26\ntype: u16\nmax id: ";
	inspect("ix.bin", 1, all);
	inspect("ix.idx", 1, all);
	inspect("ix.idx", 1, "documents: 2\nsequences: 10\nlongest sequence: 5\n");
	idx.x[0] = 'm';
	file("ix.idx", &idx);
	inspect("ix.bin", -1, "MMIDIDX");
	inspect("ix.idx", -1, "MMIDIDX");
	idx.x[0] = 'M';
	file("x", &idx);
	inspect("x", -1, "*.idx");
	file("ix.idx", &idx);
	unlink(files_path("ix.bin"));
	inspect("ix.idx", -1, "ix.bin");
	make_megatron(&idx, &b, 0, 10, 4, 120);
	memset(b.x + 8, 0xff, 4);
	file("ix.bin", &b);
	file("ix.idx", &idx);
	inspect("ix.bin", -1, "token 2 is -1");
	inspect(files_dir, 0, "");
	inspect("nosuch", -1, "No such file");
	inspect("i.txt", 0, "");
}

/* Good files with a few bytes changed, many times: read or refused, never worse. */
static void check_mutations(void)
{
	static struct bytes b, idx;
	static uint8_t x[1 << 14];
	srandom(1);
	for (int round = 0; round < 1500; round++) {
		int kind = round % FUZZ_KINDS;
		b.n = idx.n = 0;
		if (kind == FUZZ_LLMC)
			make_llmc(&b, 0, NTOKENS, 2, 250);
		else if (kind == FUZZ_MEGATRON)
			make_megatron(&idx, &b, 0, 10, 1 + round % 8, 250);
		else
			b.n = (size_t)sprintf((char *)b.x, "#version\nt h\nth e\na n\nan d\n");
		size_t n = 3 + idx.n + b.n;
		x[0] = (uint8_t)kind;
		x[1] = (uint8_t)idx.n;
		x[2] = 0;
		memcpy(x + 3, idx.x, idx.n);
		memcpy(x + 3 + idx.n, b.x, b.n);
		for (long k = random() % 4; k > 0; k--)
			x[3 + (size_t)random() % (n - 3 < 180 ? n - 3 : 180)] =
				(uint8_t)(random() % 2 ? random() : random() % 4);
		n = random() % 8 ? n : 3 + (size_t)random() % (n - 3);
		CHECK(LLVMFuzzerTestOneInput(x, n) == 0, "round %d", round);
	}
}

int main(void)
{
	files_begin();
	make_files();
	check_contents();
	check_vocabulary();
	check_llmc();
	check_megatron();
	check_others();
	check_several();
	check_large();
	check_bpe();
	check_order();
	check_inspect();
	check_mutations();
	files_end();
	CHECK(occ_mem_live() == 0, "%lld bytes leaked", (long long)occ_mem_live());
	return check_done();
}
