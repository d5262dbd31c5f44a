/* The state of compression in a checkpoint, damaged or made up: refused in words that name the
 * file, whoever reads it. */
#include "tests/streams_kit.h"
#include "trainer/manifest.h"

/* ---- Damage. ---- */

enum { ROOM = 1 << 20, STREAM = 1 }; /* the file that is damaged: of rank 1 */

static const struct conf small = {{1, 1, 2}, 0, 1, SGD, OFF, 0, 0};

/* Its bytes again, with the manifest's checksum made good. */
static void rewrite(const char *file, const void *x, size_t n)
{
	struct occ_manifest m;
	struct occ_err e = {0};
	struct occ_sum s;
	struct occ_io io = {OCC_E_CKPT, "ckpt.write", 0};
	CHECK(occ_manifest_read(path, &m, &e) == 0, "%s", e.text);
	int i = occ_manifest_shards(&m) + STREAM;
	FILE *f = fopen(file, "wb");
	CHECK(f && fwrite(x, 1, n, f) == n && fclose(f) == 0, "%s", file);
	occ_sum_init(&s);
	occ_sum_add(&s, x, n);
	m.file[i].bytes = (int64_t)n;
	m.file[i].sum = occ_sum_get(&s);
	CHECK(occ_manifest_write(path, &m, io, &e) == 0, "%s", e.text);
	occ_manifest_release(&m);
}

/* Loaded in the same layout and in another one: both refuse, and name the file. */
static void refused(const char *file, const char *how)
{
	static const struct conf other = {{2, 1, 4}, 0, 1, TOPK, OFF, 0, 0};
	const struct conf *const readers[] = {&small, &other};
	for (int i = 0; i < 2; i++) {
		int code = run(&to, readers[i], load_body);
		CHECK(code == OCC_E_CKPT && strstr(to.e.text, file), "%s in %s: %d '%s'", how, file,
		      code, to.e.text);
	}
}

/* Numbers of the first and the second record that cannot be: where, how wide, what. */
static const struct lie {
	const char *what;
	int at, width;
	int64_t x;
} lies[] = {
	{"magic", 0, 1, 'x'},
	{"version", 8, 4, 2},
	{"rank", 12, 4, 0},
	{"records", 16, 4, 1},
	{"n of 0", 64 + 72, 8, 0},
	{"n below 0", 64 + 72, 8, -1},
	{"huge n", 64 + 72, 8, INT32_MAX},
	{"n beyond 32 bits", 64 + 72, 8, INT64_MAX},
	{"m of 0", 64 + 80, 8, 0},
	{"huge m", 64 + 80, 8, INT32_MAX},
	{"m beyond 32 bits", 64 + 80, 8, INT64_MIN},
	{"state below 0", 64 + 88, 8, -1},
	{"state beyond the file", 64 + 88, 8, 1 << 24},
	{"huge state", 64 + 88, 8, INT64_MAX},
	{"state that wraps in bytes", 64 + 88, 8, INT64_MAX / 4 + 1},
	{"calls below 0", 64 + 96, 8, -1},
	{"huge calls", 64 + 96, 8, INT64_MAX},
	{"no peers", 64 + 64, 4, 0},
};

static size_t load_good(char *x, char file[256])
{
	CHECK(run(&from, &small, save_body) == 0, "saving");
	snprintf(file, 256, "%s/stream-%d.bin", path, STREAM);
	return files_get(file, x, ROOM);
}

static void check_lies(char *good, char *x)
{
	char file[256];
	size_t n = load_good(good, file);
	for (size_t i = 0; i < sizeof(lies) / sizeof(*lies); i++) {
		memcpy(x, good, n);
		memcpy(x + lies[i].at, &lies[i].x, (size_t)lies[i].width);
		rewrite(file, x, n);
		refused("stream-1.bin", lies[i].what);
		load_good(good, file);
	}
	static const int names[] = {64, 64 + 40}; /* of the tensor, of the codec */
	for (int i = 0; i < 2; i++) {
		memcpy(x, good, n);
		memset(x + names[i], 'a', i ? 16 : 40);
		rewrite(file, x, n);
		refused("stream-1.bin", "a name without end");
		load_good(good, file);
	}
}

/* Cut off, with a checksum that fits what is left, or without; gone. */
static void check_cuts(char *good)
{
	char file[256];
	static const int cuts[] = {0, 1, 63, 64, 65, 64 + 127, 64 + 128, 64 + 132, 1000, -4, -1};
	for (size_t i = 0; i < 2 * sizeof(cuts) / sizeof(*cuts); i++) {
		size_t n = load_good(good, file);
		int cut = cuts[i / 2];
		n = cut < 0 ? n - (size_t)-cut : (size_t)cut;
		if (i % 2)
			rewrite(file, good, n);
		else
			CHECK(truncate(file, (off_t)n) == 0, "truncate");
		refused("stream-1.bin", "cut");
	}
	load_good(good, file);
	CHECK(unlink(file) == 0, "unlink");
	refused("stream-1.bin", "gone");
	load_good(good, file);
	good[70] ^= 1;
	FILE *f = fopen(file, "wb");
	CHECK(f && fwrite(good, 1, 1000, f) == 1000 && fclose(f) == 0, "%s", file);
	refused("stream-1.bin", "changed");
}

/* Files of ranks that there are none of. */
static void check_ranks(char *good)
{
	static const int ranks[] = {2, 99, -1};
	for (size_t i = 0; i < sizeof(ranks) / sizeof(*ranks); i++) {
		char file[256];
		struct occ_manifest m;
		struct occ_err e = {0};
		struct occ_io io = {OCC_E_CKPT, "ckpt.write", 0};
		load_good(good, file);
		CHECK(occ_manifest_read(path, &m, &e) == 0, "%s", e.text);
		m.file[occ_manifest_shards(&m) + STREAM].rank = ranks[i];
		CHECK(occ_manifest_write(path, &m, io, &e) == 0, "%s", e.text);
		occ_manifest_release(&m);
		refused("manifest.json", "a rank beyond the world");
	}
}

/* Any byte changed behind the checksum's back: taken or refused. */
static void check_noise(char *good, char *x)
{
	char file[256];
	size_t n = load_good(good, file);
	for (uint64_t i = 0; i < 150; i++) {
		memcpy(x, good, n);
		uint64_t at = whole_mix(i + 1) % (i % 2 ? n : 320);
		x[at] = (char)(whole_mix(i + 1) >> 50);
		rewrite(file, x, n);
		int code = run(&to, &small, load_body);
		CHECK(code == 0 || (code == OCC_E_CKPT && strstr(to.e.text, "stream-1.bin")),
		      "byte %d: %d '%s'", (int)at, code, to.e.text);
	}
}

int main(void)
{
	char *good = malloc(ROOM), *x = malloc(ROOM);
	worlds_begin();
	check_lies(good, x);
	check_cuts(good);
	check_ranks(good);
	check_noise(good, x);
	free(good);
	free(x);
	return worlds_end();
}
