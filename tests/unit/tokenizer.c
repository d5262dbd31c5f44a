/* Tokenizers: ids against Hugging Face's (tests/golden/bpe.txt) and against a plain model, texts
 * that come back whatever they are, where words end, merge lists that are wrong, and the files that
 * tokenize writes. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/rng.h"
#include "tests/check.h"
#include "tests/files.h"
#include "trainer/tokenizer.h"
#include "trainer/words.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define GPT2 "tests/data/vocab.bpe"
#define SHAKESPEARE "tests/data/tinyshakespeare.txt"

static struct occ_tokenizer *open_vocab(const char *path)
{
	struct occ_err e = {0};
	struct occ_tokenizer *t = occ_tokenizer_open(path, &e);
	if (!t) {
		fprintf(stderr, "%s (run from the project's root)\n", e.text);
		exit(1);
	}
	return t;
}

/* Encodes, and checks that the ids spell the text again. */
static int64_t encode(struct occ_tokenizer *t, const char *text, size_t n, int32_t **ids)
{
	int64_t count = occ_tokenizer_encode(t, text, n, ids);
	size_t at = 0, len = 0;
	int same = 1;
	for (int64_t i = 0; i < count && same; i++, at += len) {
		const char *s = occ_tokenizer_bytes(t, (*ids)[i], &len);
		same = s && len > 0 && len <= n - at && !memcmp(s, text + at, len);
	}
	CHECK(same && at == n, "%zu bytes came back as %zu", n, at);
	return count;
}

static size_t unhex(const char *hex, char *out)
{
	size_t n = 0;
	unsigned c;
	for (; hex[0] > ' ' && sscanf(hex, "%2x", &c) == 1; hex += 2)
		out[n++] = (char)c;
	return n;
}

static void check_golden(struct occ_tokenizer *t)
{
	static char line[1 << 16], text[1 << 16];
	FILE *f = fopen("tests/golden/bpe.txt", "r");
	int rows = 0;
	for (; f && fgets(line, sizeof(line), f); rows++) {
		char *want = strchr(line, '\t') + 1;
		int32_t *ids;
		size_t bytes = unhex(line, text);
		int64_t n = encode(t, text, bytes, &ids);
		int same = 1;
		for (int64_t i = 0; i < n; i++)
			same &= strtol(want, &want, 10) == ids[i];
		CHECK(same && *want == '\n', "row %d: %.*s", rows + 1, (int)bytes, text);
		occ_free(ids);
	}
	CHECK(rows > 200, "tests/golden/bpe.txt has %d rows", rows);
	if (f)
		fclose(f);
}

static void check_shakespeare(struct occ_tokenizer *t)
{
	static char text[1 << 21];
	size_t n = files_get(SHAKESPEARE, text, sizeof(text)), cut = n * 9 / 10;
	int32_t *ids;
	int64_t train = encode(t, text, cut, &ids);
	occ_free(ids);
	int64_t valid = encode(t, text + cut, n - cut, &ids);
	occ_free(ids);
	CHECK(train == 301966 && valid == 36059, "%lld and %lld tokens", (long long)train,
	      (long long)valid);
}

/* Bytes of every sort: random, every pair, UTF-8 that is broken in every way. */
static void check_bytes(struct occ_tokenizer *t)
{
	static const char *const broken[] = {
		"\x80",
		"\xc0\x80",
		"\xc2",
		"\xc3(",
		"\xe0\x80\x80",
		"\xe2\x82",
		"\xed\xa0\x80",
		"\xf0\x8f\xbf\xbf",
		"\xf0\x9f\x98",
		"\xf4\x90\x80\x80",
		"\xf5\x80",
		"\xff\xfe",
		"a\xffz",
		" \xc2 b",
		"\xe4\xb8\xad\xe4\xb8",
	};
	static char x[1 << 17];
	int32_t *ids;
	for (size_t i = 0; i < COUNT(broken); i++) {
		encode(t, broken[i], strlen(broken[i]), &ids);
		occ_free(ids);
	}
	for (int i = 0; i < 65536; i++) {
		x[2 * i] = (char)(i >> 8);
		x[2 * i + 1] = (char)i;
	}
	encode(t, x, sizeof(x), &ids);
	occ_free(ids);
	for (size_t n = 0; n < 400; n++) {
		for (size_t i = 0; i < n; i++)
			x[i] = (char)occ_rng_u64(n, i);
		encode(t, x, n, &ids);
		occ_free(ids);
	}
	for (size_t i = 0; i < sizeof(x); i++)
		x[i] = (char)occ_rng_u64(3, i);
	encode(t, x, sizeof(x), &ids);
	occ_free(ids);
}

/* A megabyte without a place to cut: a quadratic merge would run into the time limit. */
static void check_runs(struct occ_tokenizer *t)
{
	static const struct {
		const char *unit;
		int64_t tokens;
	} table[] = {{"a", 1 << 18},   {" ", 1 << 20}, {"\n", 1 << 19}, {"!", 1 << 17},
		     {"e\xcc\x81", 0}, {"\xff", 0},    {"ab", 0},       {"'s", 0}};
	static char x[1 << 20];
	for (size_t i = 0; i < COUNT(table); i++) {
		size_t len = strlen(table[i].unit);
		int32_t *ids;
		for (size_t k = 0; k < sizeof(x); k++)
			x[k] = table[i].unit[k % len];
		int64_t n = encode(t, x, sizeof(x), &ids);
		CHECK(!table[i].tokens || n == table[i].tokens, "run %zu: %lld", i, (long long)n);
		occ_free(ids);
	}
}

static void check_sizes(struct occ_tokenizer *bytes, struct occ_tokenizer *gpt2)
{
	size_t n = 0;
	int32_t *ids;
	CHECK(occ_tokenizer_size(bytes) == 256, "bytes");
	CHECK(occ_tokenizer_size(gpt2) == 50257, "%lld", (long long)occ_tokenizer_size(gpt2));
	const char *s = occ_tokenizer_bytes(gpt2, 50256, &n);
	CHECK(s && n == 13 && !memcmp(s, "<|endoftext|>", 13), "end of text");
	CHECK(!occ_tokenizer_bytes(gpt2, 50257, &n) && !occ_tokenizer_bytes(gpt2, -1, &n), "range");
	CHECK(!occ_tokenizer_bytes(bytes, 256, &n) && !occ_tokenizer_bytes(bytes, -1, &n), "range");
	CHECK(encode(gpt2, "<|endoftext|>", 13, &ids) > 1 && ids[0] == 27, "ordinary text");
	occ_free(ids);
	CHECK(occ_tokenizer_encode(bytes, "\0\377a", 3, &ids) == 3 && ids[0] == 0 &&
		      ids[1] == 255 && ids[2] == 'a',
	      "bytes are their ids");
	occ_free(ids);
	CHECK(occ_tokenizer_encode(gpt2, "", 0, &ids) == 0 && ids, "an empty text");
	occ_free(ids);
}

/* Pieces of any size give what the whole gives. */
static void check_feed(struct occ_tokenizer *t)
{
	static char text[20000];
	static const int64_t steps[] = {1, 2, 7, 100, 5000};
	size_t n = files_get(SHAKESPEARE, text, sizeof(text));
	int32_t *want;
	int64_t count = occ_tokenizer_encode(t, text, n, &want);
	for (size_t i = 0; i < COUNT(steps); i++) {
		struct occ_ids out = {0};
		size_t at = 0;
		for (int64_t enough = steps[i]; at < n; enough += steps[i]) {
			size_t next = occ_tokenizer_feed(t, text, n, at, enough, &out);
			CHECK(next == n || out.n >= enough, "stopped early");
			at = next;
		}
		CHECK(out.n == count && !memcmp(out.at, want, (size_t)count * sizeof(*want)),
		      "steps of %lld: %lld ids, not %lld", (long long)steps[i], (long long)out.n,
		      (long long)count);
		occ_free(out.at);
	}
	occ_free(want);
}

/* Words with | between them, by hand from the pattern. */
static const char *const words[] = {
	"Hello|,| world|!",
	"I|'m| we|'ll| he|'s",
	"'|S| '|s",
	"'s|s",
	"x|''|s",
	"!'|s",
	"a|1|b|22",
	"  | a",
	"a|  | b",
	"a|\n|b",
	"a|\n|\n|b",
	"\n\n",
	"a| ",
	"a|  ",
	" \n| a",
	"\t|\t|a",
	"\xc3\xa9t\xc3\xa9|\xc2\xbd\xe2\x85\xa7",
	"e|\xcc\x81",
	" \xf0\x9f\x98\x80|a",
	"a|\xc2\xa0|b",
	"\xe3\x80\x80|\xe3\x80\x80|a",
	"\x1c|a",
	"\x85|a",
	"a|\xff\xfe|b",
	"a|\xe4\xb8|b",
	"\xe4\xb8\xad|\xe4\xb8",
	"\xed\xa0\x80|a",
	"\xf0\x9d\x9f\x98|\xf0\x9d\x94\x84",
	"\xc2\x85|x",
	"a|\xe0\x81\xa1|b",
	"a|\xf0\x80\x81\xa1|b",
	"don|'t",
	"don|\xe2\x80\x99|t",
	"'re|'ve|'|r",
	"...|\n",
	" ...|a",
};

static void check_words(void)
{
	for (size_t i = 0; i < COUNT(words); i++) {
		char text[64], got[128] = "";
		size_t n = 0, at = 0;
		for (const char *p = words[i]; *p; p++)
			if (*p != '|')
				text[n++] = *p;
		while (at < n) {
			size_t end = occ_word_end(text, n, at);
			CHECK(end > at && end <= n, "words %zu", i);
			if (end <= at || end > n)
				break;
			snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s%.*s",
				 at ? "|" : "", (int)(end - at), text + at);
			at = end;
		}
		CHECK(!strcmp(got, words[i]), "'%s' is cut as '%s'", words[i], got);
	}
}

/* GPT-2's own words: the lowest pair, everywhere from the left, until there is none. */
static int model(const char (*pairs)[2][8], int npairs, const char *word, char (*out)[32])
{
	int n = 0;
	for (; word[n]; n++)
		snprintf(out[n], 32, "%c", word[n]);
	for (int p = 0; p < npairs; p++) {
		int to = 0;
		for (int i = 0; i < n; i++, to++) {
			int hit = i + 1 < n && !strcmp(out[i], pairs[p][0]) &&
				  !strcmp(out[i + 1], pairs[p][1]);
			char both[64];
			snprintf(both, sizeof(both), "%s%s", out[i], hit ? out[i + 1] : "");
			snprintf(out[to], 32, "%.31s", both);
			i += hit;
		}
		n = to;
	}
	return n;
}

static void check_model(void)
{
	static const char pairs[][2][8] = {{"a", "a"},   {"a", "b"},   {"aa", "b"},  {"b", "a"},
					   {"aa", "aa"}, {"ab", "ab"}, {"b", "b"},   {"bb", "aab"},
					   {"c", "ab"},  {"ba", "c"},  {"aaaa", "a"}};
	char list[512] = "", word[24], out[24][32];
	for (size_t i = 0; i < COUNT(pairs); i++)
		snprintf(list + strlen(list), sizeof(list) - strlen(list), "%s %s\n", pairs[i][0],
			 pairs[i][1]);
	struct occ_tokenizer *t = open_vocab(files_put("model.txt", list, strlen(list)));
	CHECK(occ_tokenizer_size(t) == 257 + (int64_t)COUNT(pairs), "size");
	for (uint64_t round = 0; round < 3000; round++) {
		size_t n = 1 + occ_rng_u64(1, round) % 20, len;
		for (size_t i = 0; i < n; i++)
			word[i] = (char)('a' + occ_rng_u64(2, round * 32 + i) % 3);
		word[n] = 0;
		int want = model(pairs, COUNT(pairs), word, out);
		int32_t *ids;
		int64_t got = encode(t, word, n, &ids);
		CHECK(got == want, "%s: %lld ids, not %d", word, (long long)got, want);
		for (int64_t i = 0; i < got && got == want; i++) {
			const char *s = occ_tokenizer_bytes(t, ids[i], &len);
			CHECK(len == strlen(out[i]) && !memcmp(s, out[i], len), "%s: id %lld", word,
			      (long long)i);
		}
		occ_free(ids);
	}
	occ_tokenizer_close(t);
}

static const struct merges_row {
	const char *text;
	int line; /* of what is wrong; 0: of the file; -1: good */
	const char *says;
} merges_rows[] = {
	{"a b\n", -1, ""},
	{"#version: 0.2\na b\nab c\n", -1, ""},
	{"#version: 0.2\r\na b\r\nab c\r\n", -1, ""},
	{"a b\nab c", -1, ""},
	{"#version\n", -1, ""},
	{"# #\n## #\n", -1, ""},
	{"\xc4\xa0 a\n", -1, ""},
	{"\xc5\x83 \xc3\xbf\n", -1, ""}, /* the last characters of both ranges */
	{"", 0, "empty"},
	{"\n", 1, "two symbols"},
	{"a b\n\n", 2, "two symbols"},
	{"a b\n\na c\n", 2, "two symbols"},
	{"a\n", 1, "two symbols"},
	{"a \n", 1, "two symbols"},
	{" a\n", 1, "two symbols"},
	{"a  b\n", 1, "two symbols"},
	{"a b c\n", 1, "two symbols"},
	{"{\"a\": 1}\n", 1, "'{\"a\":'"},
	{"a b\n#version: 0.2\n", 2, "'#version:'"},
	{"a b\nabc d\n", 2, "'abc'"},
	{"a b\nc ab\nd abc\n", 3, "'abc'"},
	{"a bc\nb c\n", 1, "'bc'"},
	{"a b\nb c\na b\n", 3, "line 1"},
	{"b c\na b\nab c\na bc\n", 4, "line 3"},
	{"a \xc5\x84\n", 1, "alphabet"},
	{"a \xc4\n", 1, "alphabet"},
	{"a \xff\n", 1, "alphabet"},
	{"a\tb c\n", 1, "alphabet"},
	{"\xe4\xb8\xad a\n", 1, "alphabet"},
	{"a \xc2\xad\n", 1, "alphabet"}, /* the soft hyphen is written otherwise */
};

static void check_merges(void)
{
	for (size_t i = 0; i < COUNT(merges_rows); i++) {
		const struct merges_row *r = &merges_rows[i];
		struct occ_err e = {0};
		char where[160];
		const char *path = files_put("m.txt", r->text, strlen(r->text));
		snprintf(where, sizeof(where), r->line > 0 ? "%s:%d: " : "%s: ", path, r->line);
		struct occ_tokenizer *t = occ_tokenizer_open(path, &e);
		CHECK((t != NULL) == (r->line < 0), "row %zu: %s", i, e.text);
		if (r->line >= 0)
			CHECK(e.code == OCC_E_DATA && !strncmp(e.text, where, strlen(where)) &&
				      strstr(e.text, r->says),
			      "row %zu: %s", i, e.text);
		occ_tokenizer_close(t);
	}
	static const char *const bad[] = {"/nonexistent.bpe", "/tmp", "/dev/null"};
	for (size_t i = 0; i < COUNT(bad); i++) {
		struct occ_err e = {0};
		CHECK(!occ_tokenizer_open(bad[i], &e) && e.code == OCC_E_DATA &&
			      strstr(e.text, bad[i]),
		      "%s: %s", bad[i], e.text);
	}
}

static int tokenize(const char *vocab, const char *out, char *const *texts, int n,
		    struct occ_err *e)
{
	char said[512];
	*e = (struct occ_err){0};
	int real = files_catch();
	int bad = occ_tokenize_files(vocab, out, texts, n, e);
	files_release(real, said, sizeof(said));
	CHECK((bad == 0) == (strstr(said, out) != NULL), "said: %s", said);
	return bad;
}

/* Header, then the ids of each text after those of the one before. */
static void check_file(const char *vocab, int size)
{
	static char x[1 << 16];
	static const char one[] = "First Citizen:\nBefore we proceed", two[] = " any further\xff\n";
	char *texts[] = {files_put("one", one, sizeof(one) - 1),
			 files_put("two", two, sizeof(two) - 1)};
	const char *out = files_path("out.bin");
	struct occ_tokenizer *t = open_vocab(vocab);
	struct occ_err e;
	int32_t *ids[2], head[256] = {size == 2 ? 20240520 : 20240801, size == 2 ? 1 : 7};
	int64_t a = encode(t, one, sizeof(one) - 1, &ids[0]),
		b = encode(t, two, sizeof(two) - 1, &ids[1]);
	head[2] = (int32_t)(a + b);
	CHECK(tokenize(vocab, out, texts, 2, &e) == 0, "%s", e.text);
	size_t n = files_get(out, x, sizeof(x));
	CHECK(n == 1024 + (size_t)((a + b) * size), "%zu bytes", n);
	CHECK(!memcmp(x, head, 1024), "header");
	for (int64_t i = 0; i < a + b; i++) {
		int32_t id = 0;
		memcpy(&id, x + 1024 + i * size, (size_t)size);
		CHECK(id == (i < a ? ids[0][i] : ids[1][i - a]), "token %lld is %d", (long long)i,
		      id);
	}
	occ_free(ids[0]);
	occ_free(ids[1]);
	occ_tokenizer_close(t);
}

/* Merges of all pairs of bytes: 65,793 ids, more than 16 bits. */
static char *make_wide(void)
{
	static char list[65536 * 6];
	char spelled[256][3];
	size_t n = 0;
	for (int c = 0, other = 256; c < 256; c++) {
		int plain = (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || c >= 174;
		int u = plain ? c : other++;
		snprintf(spelled[c], 3, u < 128 ? "%c" : "%c%c", u < 128 ? u : 0xc0 | u >> 6,
			 0x80 | (u & 63));
	}
	for (int i = 0; i < 65536; i++)
		n += (size_t)sprintf(list + n, "%s %s\n", spelled[i >> 8], spelled[i & 255]);
	return files_put("wide.txt", list, n);
}

static int exists(const char *name)
{
	struct stat st;
	return lstat(files_path(name), &st) == 0;
}

/* What cannot be read is 3, what cannot be written 4, a use that would destroy an input 2; in each
 * case the old output stands as it was and nothing is left beside it. */
static void check_refusals(void)
{
	static const struct {
		const char *vocab, *out, *text;
		int code;
		const char *says;
	} rows[] = {
		{"bytes", "out.bin", "nosuch", OCC_E_DATA, "nosuch"},
		{"bytes", "out.bin", "empty", OCC_E_DATA, "empty"},
		{"bytes", "out.bin", ".", OCC_E_DATA, "directory"},
		{"nosuch.bpe", "out.bin", "one", OCC_E_DATA, "nosuch.bpe"},
		{"bytes", "nosuch/out.bin", "one", OCC_E_CKPT, "nosuch/out.bin"},
		{"bytes", "one/out.bin", "one", OCC_E_CKPT, "one/out.bin"},
		{"bytes", ".", "one", OCC_E_CKPT, "."},
		{"bytes", "pipe", "one", OCC_E_CKPT, "pipe"},
		{"bytes", "one", "one", OCC_E_CONFIG, "overwrite the input"},
		{"bytes", "link", "one", OCC_E_CONFIG, "overwrite the input"},
		{"bytes", "hard", "one", OCC_E_CONFIG, "overwrite the input"},
		{"bytes", "x.bin", "x.bin.tmp", OCC_E_CONFIG, "overwrite the input"},
		{"m.txt", "m.txt", "one", OCC_E_CONFIG, "overwrite the input"},
	};
	char old[16], vocab[128];
	struct occ_err e;
	files_put("empty", "", 0);
	files_put("one", "text", 4);
	files_put("x.bin.tmp", "text", 4);
	files_put("m.txt", "a b\n", 4);
	CHECK(!symlink(files_path("one"), files_path("link")) &&
		      !link(files_path("one"), files_path("hard")) &&
		      !mkfifo(files_path("pipe"), 0600),
	      "%s", strerror(errno));
	for (size_t i = 0; i < COUNT(rows); i++) {
		files_put("out.bin", "old", 3);
		char *texts[] = {files_path("one"), files_path(rows[i].text)};
		int only = rows[i].code == OCC_E_CONFIG;
		snprintf(vocab, sizeof(vocab), "%s",
			 strcmp(rows[i].vocab, "bytes") ? files_path(rows[i].vocab) : "bytes");
		int bad = tokenize(vocab, files_path(rows[i].out), texts + only, 2 - only, &e);
		CHECK(bad && e.code == rows[i].code && strstr(e.text, rows[i].says),
		      "row %zu: code %d: %s", i, e.code, e.text);
		CHECK(files_get(files_path("out.bin"), old, sizeof(old)) == 3 &&
			      !strcmp(old, "old") && !exists("out.bin.tmp"),
		      "row %zu: the old output", i);
		CHECK(files_get(files_path("one"), old, sizeof(old)) == 4, "row %zu: the input", i);
	}
	CHECK(tokenize("bytes", files_path("out.bin"), NULL, 0, &e) && e.code == OCC_E_CONFIG,
	      "no text");
}

static void check_full_disk(void)
{
	struct rlimit small = {100000, RLIM_INFINITY}, was;
	char *text = occ_strdup(SHAKESPEARE), old[16];
	struct occ_err e;
	const char *out = files_put("out.bin", "old", 3);
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &was);
	setrlimit(RLIMIT_FSIZE, &small);
	int bad = tokenize("bytes", out, &text, 1, &e);
	setrlimit(RLIMIT_FSIZE, &was);
	CHECK(bad && e.code == OCC_E_CKPT && strstr(e.text, out) &&
		      strstr(e.text, "File too large"),
	      "%d %s", e.code, e.text);
	CHECK(files_get(out, old, sizeof(old)) == 3 && !exists("out.bin.tmp"), "the old output");
	occ_free(text);
}

int main(void)
{
	files_begin();
	struct occ_tokenizer *bytes = open_vocab("bytes"), *gpt2 = open_vocab(GPT2);
	check_golden(gpt2);
	check_shakespeare(gpt2);
	check_sizes(bytes, gpt2);
	check_bytes(bytes);
	check_bytes(gpt2);
	check_runs(gpt2);
	check_feed(bytes);
	check_feed(gpt2);
	check_words();
	check_model();
	check_merges();
	check_file("bytes", 2);
	check_file(GPT2, 2);
	check_file(make_wide(), 4);
	check_refusals();
	check_full_disk();
	occ_tokenizer_close(bytes);
	occ_tokenizer_close(gpt2);
	files_end();
	CHECK(occ_mem_live() == 0, "%lld bytes leaked", (long long)occ_mem_live());
	return check_done();
}
