/* Checkpoints over ranks that are threads: any layout reads what any layout wrote, bit for bit;
 * whatever fails, all ranks say so and the older one still loads; damage anywhere is refused. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "tests/check.h"
#include "tests/whole.h"
#include "trainer/checkpoint.h"

static char top[] = "/tmp/occ-ckpt-XXXXXX"; /* everything happens in here */

static const struct occ_gpt_shape base = {.layers = 4,
					  .hidden = 8,
					  .heads = 4,
					  .seq_len = 5,
					  .vocab = 13,
					  .tied = 1,
					  .init_std = 0.02,
					  .dropout = 0.1};

/* A save by all ranks of a layout. */
struct job {
	struct occ_layout l;
	struct occ_gpt_shape shape;
	const char *dir;
	int64_t keep, step;
	uint64_t seed;
	int code;        /* expected on all ranks */
	char text[1024]; /* of the failure; equal on all ranks */
	int failed;      /* ranks that failed */
};

static struct occ_gpt_shape shape_for(struct occ_gpt_shape s, int T, int64_t multiple)
{
	s.vocab_padded = occ_vocab_padded(s.vocab, multiple, T);
	return s;
}

/* master, m and v of a shard. */
static void draw(const struct occ_weights *w, uint64_t seed, float *flat)
{
	for (uint64_t a = 0; a < 3; a++)
		whole_fill(w, seed + a, flat + (int64_t)a * w->size);
}

static void state(struct occ_ckpt_state *s, const struct occ_weights *w,
		  const struct occ_gpt_shape *shape, float *flat)
{
	*s = (struct occ_ckpt_state){.weights = w,
				     .shape = shape,
				     .master = flat,
				     .m = flat + w->size,
				     .v = flat + 2 * w->size};
}

static int save_body(struct occ_comm *world, void *arg)
{
	struct job *j = arg;
	struct occ_topo t;
	struct occ_weights w;
	struct occ_ckpt_state s;
	struct occ_err e = {0};
	occ_topo_init(&t, world, &j->l, 0, 0);
	occ_weights_init(&w, &j->shape, &j->l, t.place);
	float *flat = occ_alloc((size_t)w.size, 3 * sizeof(*flat));
	draw(&w, j->seed, flat);
	state(&s, &w, &j->shape, flat);
	s.step = j->step;
	s.skipped = 3;
	s.skipped_in_row = 2;
	int bad = occ_ckpt_save(j->dir, j->keep, &t, &s, &e);
	CHECK((bad != 0) == (e.code != 0), "returned %d with code %d", bad, e.code);
	if (bad)
		__atomic_add_fetch(&j->failed, 1, __ATOMIC_RELAXED);
	occ_comm_barrier(world);
	if (world->rank == 0)
		memcpy(j->text, e.text, sizeof(e.text));
	occ_comm_barrier(world);
	CHECK(!strcmp(j->text, e.text), "rank %d says '%s', rank 0 '%s'", world->rank, e.text,
	      j->text);
	occ_free(flat);
	occ_weights_release(&w);
	occ_topo_release(&t);
	return e.code;
}

static int save(struct job *j)
{
	int n = j->l.tensor * j->l.pipeline * j->l.data;
	j->failed = 0;
	int code = occ_comm_run_threads(n, 60, save_body, j);
	CHECK(j->failed == (code ? n : 0), "%d of %d ranks failed", j->failed, n);
	return code;
}

static struct job job_of(struct occ_layout l, const char *dir, int64_t step)
{
	struct job j = {.l = l,
			.shape = shape_for(base, l.tensor, 1),
			.dir = dir,
			.step = step,
			.seed = 100 * (uint64_t)step};
	return j;
}

/* Loads one rank's shard; 1 if it is bit-equal to what `seed` draws, 0 if not, -1 if refused. */
static int load(const char *path, struct occ_layout l, int rank, const struct occ_gpt_shape *shape,
		uint64_t seed, struct occ_err *e)
{
	struct occ_weights w;
	struct occ_ckpt_state s;
	occ_weights_init(&w, shape, &l, occ_place_of(&l, rank));
	size_t n = (size_t)w.size * 3;
	float *want = occ_alloc(n, sizeof(*want)), *got = occ_alloc(n, sizeof(*got));
	draw(&w, seed, want);
	memset(got, 0xee, n * sizeof(*got));
	state(&s, &w, shape, got);
	int result = -1;
	if (occ_ckpt_load(path, &s, e) == 0) {
		result = !memcmp(want, got, n * sizeof(*got));
		CHECK(s.skipped == 3 && s.skipped_in_row == 2, "counters");
	} else {
		uint32_t first;
		memcpy(&first, got, 4);
		CHECK(first == 0xeeeeeeeeu, "outputs touched by a refused load");
	}
	occ_free(want);
	occ_free(got);
	occ_weights_release(&w);
	return result;
}

/* dir = top/name */
#define IN_TOP(dir, name) snprintf(dir, sizeof(dir), "%s/" name, top)

/* Valid until four calls later. */
static char *join(const char *dir, const char *name)
{
	static _Thread_local char buf[4][512];
	static _Thread_local int next;
	char *s = buf[next++ % 4];
	snprintf(s, sizeof(buf[0]), "%s/%s", dir, name);
	return s;
}

static int exists(const char *dir, const char *name)
{
	struct stat st;
	return stat(join(dir, name), &st) == 0;
}

static void remove_all(const char *dir)
{
	char cmd[300];
	snprintf(cmd, sizeof(cmd), "rm -rf '%s'", dir);
	CHECK(system(cmd) == 0, "%s", cmd);
}

/* What a call writes to file descriptor fd goes to a file; end returns its text. */
static int saved_fd;
static void capture_begin(int fd)
{
	int to = open(join(top, "captured"), O_RDWR | O_CREAT | O_TRUNC, 0600);
	fflush(stdout);
	saved_fd = dup(fd);
	dup2(to, fd);
	close(to);
}

static char *capture_end(int fd)
{
	static char text[4096];
	fflush(stdout);
	dup2(saved_fd, fd);
	close(saved_fd);
	FILE *f = fopen(join(top, "captured"), "r");
	text[fread(text, 1, sizeof(text) - 1, f)] = 0;
	fclose(f);
	unlink(join(top, "captured"));
	return text;
}

static int lines(const char *s)
{
	int n = 0;
	for (; *s; s++)
		n += *s == '\n';
	return n;
}

static const struct occ_layout layouts[] = {{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {2, 2, 2},
					    {4, 1, 2}, {1, 3, 2}, {4, 2, 1}, {1, 4, 1}};
enum { NLAYOUTS = sizeof(layouts) / sizeof(layouts[0]) };

static void check_pairs(int tied)
{
	char dir[64];
	IN_TOP(dir, "pairs");
	struct occ_gpt_shape shape = base;
	char path[300];
	shape.tied = tied;
	for (int a = 0; a < NLAYOUTS; a++) {
		struct job j = job_of(layouts[a], dir, a + 1);
		j.shape = shape_for(shape, j.l.tensor, 1 + a % 3);
		CHECK(save(&j) == 0, "layout %d: %s", a, j.text);
		snprintf(path, sizeof(path), "%s/step-%08d", dir, a + 1);
		for (int b = 0; b < NLAYOUTS; b++) {
			struct occ_layout l = layouts[b];
			struct occ_gpt_shape mine =
				shape_for(shape, l.tensor, b == a ? 1 + a % 3 : 4);
			for (int r = 0; r < l.tensor * l.pipeline * l.data; r++) {
				struct occ_err e = {0};
				int got = load(path, l, r, &mine, j.seed, &e);
				CHECK(got == 1, "%d read by rank %d of %d: %d %s", a, r, b, got,
				      e.text);
			}
		}
	}
	remove_all(dir);
}

/* Weights alone, as eval and export want them. */
static void check_weights_only(void)
{
	char dir[64];
	IN_TOP(dir, "only");
	struct job j = job_of(layouts[3], dir, 7);
	struct occ_weights w;
	struct occ_err e = {0};
	struct occ_gpt_shape shape = {0};
	int64_t step = 0;
	CHECK(save(&j) == 0, "%s", j.text);
	CHECK(occ_ckpt_shape(join(dir, "step-00000007"), &shape, &step, &e) == 0, "%s", e.text);
	CHECK(step == 7 && shape.hidden == 8 && shape.vocab == 13 && shape.tied == 1 &&
		      shape.dropout == 0.1 && shape.init_std == 0.02 && shape.layers == 4,
	      "shape");
	int64_t stored = occ_gpt_parameters(&shape) + (shape.vocab_padded - 13) * 8, bytes = 0;
	for (int i = 0; i < 4; i++) {
		char file[40];
		struct stat st;
		snprintf(file, sizeof(file), "step-00000007/shard-%d-%d.bin", i / 2, i % 2);
		CHECK(stat(join(dir, file), &st) == 0, "%s", file);
		bytes += st.st_size;
	}
	CHECK(bytes == 4 * 64 + 12 * stored, "each value once: %d bytes", (int)bytes);
	occ_weights_init(&w, &shape, &layouts[0], (struct occ_place){0, 0, 0});
	float *want = occ_alloc((size_t)w.size, 4), *got = occ_alloc((size_t)w.size, 4);
	struct occ_ckpt_state s = {.weights = &w, .shape = &shape, .master = got};
	whole_fill(&w, j.seed, want);
	CHECK(occ_ckpt_load(join(dir, "step-00000007"), &s, &e) == 0 && s.step == 7, "%s", e.text);
	CHECK(!memcmp(want, got, (size_t)w.size * 4), "weights");
	occ_free(want);
	occ_free(got);
	occ_weights_release(&w);
	remove_all(dir);
}

struct find_job {
	const char *dir, *resume;
	char want[300];
	int code;
};

static int find_body(struct occ_comm *world, void *arg)
{
	struct find_job *f = arg;
	char path[4096];
	struct occ_err e = {0};
	int bad = occ_ckpt_find(world, f->dir, f->resume, path, &e);
	CHECK((bad != 0) == (f->code != 0) && e.code == f->code, "%s in %s: %d %s", f->resume,
	      f->dir, e.code, e.text);
	CHECK(bad || !strcmp(path, f->want), "%s in %s: '%s', expected '%s'", f->resume, f->dir,
	      path, f->want);
	return 0;
}

/* The checkpoint that a search ends at; want "" for none, NULL for a refusal. */
static void check_find(const char *dir, const char *resume, const char *want, int passed_over)
{
	struct find_job f = {.dir = dir, .resume = resume, .code = want ? 0 : OCC_E_CKPT};
	if (want && want[0])
		snprintf(f.want, sizeof(f.want), "%s", want);
	capture_begin(2);
	occ_comm_run_threads(3, 60, find_body, &f);
	const char *text = capture_end(2);
	CHECK(lines(text) == passed_over, "%s in %s: %d lines expected: %s", resume, dir,
	      passed_over, text);
	char path[4096]; /* the same without ranks */
	struct occ_err e = {0};
	capture_begin(2);
	occ_ckpt_find(NULL, dir, resume, path, &e);
	capture_end(2);
	CHECK(e.code == f.code && (e.code || !strcmp(path, f.want)), "alone: %s %s", path, e.text);
}

/* The k-th step of saving fails on rank r, for every k: all ranks fail with 4, nothing of ours is
 * left, the older one loads. `step` 1 replaces the older one itself. */
static void check_faults(int rank, int64_t step)
{
	char dir[64];
	IN_TOP(dir, "faults");
	const struct occ_layout l = {2, 2, 1};
	struct job old = job_of(l, dir, 1), j = job_of(l, dir, step);
	struct occ_err e = {0};
	char spec[64], path[300];
	int k = 0, code = OCC_E_CKPT;
	old.shape.layers = j.shape.layers = 2;
	j.seed = old.seed + 50;
	CHECK(save(&old) == 0, "%s", old.text);
	while (code) {
		snprintf(spec, sizeof(spec), "ckpt.write:%d:%d", rank, ++k);
		setenv("OCC_FAULT", spec, 1);
		code = save(&j);
		unsetenv("OCC_FAULT");
		CHECK(code == 0 || code == OCC_E_CKPT, "%s: %d", spec, code);
		CHECK(!code || (strstr(j.text, dir) && strstr(j.text, "No space")), "%s", j.text);
		snprintf(path, sizeof(path), "%s/step-%08d.tmp", dir, (int)step);
		struct stat st;
		CHECK(stat(path, &st) != 0, "%s: %s is left", spec, path);
		for (int r = 0; code && r < 4; r++) {
			int got = load(join(dir, "step-00000001"), l, r, &old.shape, old.seed, &e);
			if (step == 1 && got == 0)
				got = load(join(dir, "step-00000001"), l, r, &j.shape, j.seed, &e);
			CHECK(got == 1, "%s: rank %d: %d %s", spec, r, got, e.text);
		}
	}
	CHECK(k > 22, "only %d steps can fail", k - 1);
	snprintf(path, sizeof(path), "%s/step-%08d", dir, (int)step);
	CHECK(load(path, l, rank, &j.shape, j.seed, &e) == 1, "the last save: %s", e.text);
	remove_all(dir);
}

static void flip(const char *path, long at, int bit)
{
	FILE *f = fopen(path, "r+b");
	int c;
	fseek(f, at, SEEK_SET);
	c = fgetc(f);
	fseek(f, at, SEEK_SET);
	fputc(c ^ 1 << bit, f);
	fclose(f);
}

static char *slurp(const char *path, long size)
{
	char *x = occ_alloc((size_t)size, 1);
	FILE *f = fopen(path, "rb");
	CHECK(fread(x, 1, (size_t)size, f) == (size_t)size, "%s", path);
	fclose(f);
	return x;
}

static void spit(const char *path, char *x, long size)
{
	FILE *f = fopen(path, "wb");
	CHECK(fwrite(x, 1, (size_t)size, f) == (size_t)size, "%s", path);
	fclose(f);
	occ_free(x);
}

static void check_refused(const char *ckpt, const char *file, const char *how, long at)
{
	struct occ_gpt_shape shape = shape_for(base, 1, 1);
	struct occ_err e = {0};
	int got = load(ckpt, layouts[0], 0, &shape, 100, &e);
	CHECK(got == -1 && e.code == OCC_E_CKPT && strstr(e.text, file), "%s %s %ld: %d %s", file,
	      how, at, got, e.text);
}

/* One bit changed, the end cut off, bytes added, or the file gone: in every file of a checkpoint.
 */
static void check_damage(void)
{
	static const char *const files[] = {"manifest.json", "shard-0-0.bin", "shard-0-1.bin",
					    "shard-1-0.bin", "shard-1-1.bin"};
	char dir[64];
	IN_TOP(dir, "damage");
	char ckpt[300], path[400], kept[400];
	struct job j = job_of((struct occ_layout){2, 2, 2}, dir, 1);
	struct stat st;
	CHECK(save(&j) == 0, "%s", j.text);
	snprintf(ckpt, sizeof(ckpt), "%s/step-00000001", dir);
	snprintf(kept, sizeof(kept), "%s/kept", top);
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		snprintf(path, sizeof(path), "%s/%s", ckpt, files[i]);
		CHECK(stat(path, &st) == 0, "%s", path);
		long size = (long)st.st_size, step = size / 97 + 1;
		for (long at = 0; at < size; at += at < 80 ? 1 : step) {
			flip(path, at, (int)(at % 8));
			check_refused(ckpt, files[i], "flipped at", at);
			flip(path, at, (int)(at % 8));
		}
		for (long n = 0; n < size; n += size / 11 + 1) {
			char *whole = slurp(path, size);
			CHECK(truncate(path, n) == 0, "truncate");
			check_refused(ckpt, files[i], "cut at", n);
			spit(path, whole, size);
		}
		CHECK(truncate(path, size + 1) == 0, "truncate");
		check_refused(ckpt, files[i], "longer by", 1);
		CHECK(truncate(path, size) == 0 && rename(path, kept) == 0, "hide");
		check_refused(ckpt, files[i], "missing", 0);
		rename(kept, path);
	}
	struct occ_gpt_shape shape = shape_for(base, 1, 1);
	struct occ_err e = {0};
	CHECK(load(ckpt, layouts[0], 0, &shape, 100, &e) == 1, "all undone: %s", e.text);
	/* Two files exchanged: same size, good content, wrong place. */
	snprintf(path, sizeof(path), "%s/shard-0-1.bin", ckpt);
	snprintf(kept, sizeof(kept), "%s/shard-1-1.bin", ckpt);
	CHECK(renameat2(AT_FDCWD, path, AT_FDCWD, kept, RENAME_EXCHANGE) == 0, "exchange");
	check_refused(ckpt, "shard-0-1.bin", "exchanged", 0);
	remove_all(dir);
}

/* keep, stale directories, later steps, replacing. */
static void check_directory(void)
{
	char dir[64];
	IN_TOP(dir, "deep/er/dir");
	const struct occ_layout l = {2, 1, 1};
	struct occ_err e = {0};
	struct job j;
	for (int step = 1; step <= 5; step++) {
		j = job_of(l, dir, step);
		j.keep = step <= 3 ? 0 : 2;
		CHECK(save(&j) == 0, "%s", j.text);
		CHECK(exists(dir, "step-00000001") == (step <= 3), "keep 0 keeps all, step %d",
		      step);
	}
	CHECK(!exists(dir, "step-00000003") && exists(dir, "step-00000004") &&
		      exists(dir, "step-00000005"),
	      "keep 2");
	static const char *const other[] = {"step-9.tmp", "step-00000009.tmp.x", "other.tmp",
					    "step-000000009"};
	for (size_t i = 0; i < sizeof(other) / sizeof(*other); i++)
		CHECK(mkdir(join(dir, other[i]), 0700) == 0, "%s", other[i]);
	CHECK(mkdir(join(dir, "step-00000009.tmp"), 0700) == 0, "stale");
	CHECK(mkdir(join(dir, "step-00000002"), 0700) == 0, "incomplete");
	FILE *f = fopen(join(dir, "step-00000009.tmp/shard-0-0.bin"), "w");
	fclose(f);
	j = job_of(l, dir, 3); /* a run from an earlier step again */
	j.keep = 1;
	CHECK(save(&j) == 0, "%s", j.text);
	CHECK(!exists(dir, "step-00000009.tmp"), "stale directory");
	for (size_t i = 0; i < sizeof(other) / sizeof(*other); i++)
		CHECK(exists(dir, other[i]), "%s is not ours", other[i]);
	CHECK(exists(dir, "step-00000002") && exists(dir, "step-00000003") &&
		      exists(dir, "step-00000004") && exists(dir, "step-00000005"),
	      "only older complete ones go");
	j.seed = 7777; /* replaced */
	CHECK(save(&j) == 0 && load(join(dir, "step-00000003"), l, 1, &j.shape, 7777, &e) == 1,
	      "%s", e.text);
	/* replaced by way of .old and interrupted between the two renames */
	CHECK(rename(join(dir, "step-00000005"), join(dir, "step-00000005.old")) == 0, "rename");
	check_find(dir, "auto", join(dir, "step-00000005.old"), 0);
	j = job_of(l, dir, 5);
	CHECK(save(&j) == 0 && !exists(dir, "step-00000005.old"), "old goes");
	remove_all(join(top, "deep"));
}

static void check_searches(void)
{
	char dir[64];
	IN_TOP(dir, "search");
	const struct occ_layout l = {2, 2, 1};
	char one[300], two[300], three[300];
	snprintf(one, sizeof(one), "%s/step-00000001", dir);
	snprintf(two, sizeof(two), "%s/step-00000002", dir);
	snprintf(three, sizeof(three), "%s/step-00000003", dir);
	check_find("", "auto", "", 0);
	check_find(dir, "auto", "", 0); /* not there yet */
	check_find("", dir, NULL, 0);
	check_find("/dev/null", "auto", NULL, 0);
	for (int step = 1; step <= 3; step++) {
		struct job j = job_of(l, dir, step);
		CHECK(save(&j) == 0, "%s", j.text);
	}
	check_find(dir, "auto", three, 0);
	check_find(dir, "never", "", 0);
	check_find("", dir, three, 0);
	check_find(dir, one, one, 0);
	check_find("elsewhere", one, one, 0);
	flip(join(three, "shard-1-1.bin"), 333, 3);
	check_find(dir, "auto", two, 1);
	check_find(dir, three, three, 0); /* asked for by name: loading refuses it */
	CHECK(unlink(join(two, "manifest.json")) == 0, "unlink");
	check_find(dir, "auto", one, 2);
	check_find("", dir, one, 2);
	check_find("", two, NULL, 0);
	CHECK(truncate(join(one, "shard-0-0.bin"), 100) == 0, "truncate");
	check_find(dir, "auto", "", 3);
	check_find("", dir, NULL, 3);
	remove_all(dir);
}

static void check_mismatch(void)
{
	static const struct {
		const char *why;
		struct occ_gpt_shape s;
	} rows[] = {
		{"model.layers is 4 in the checkpoint, 5", {5, 8, 4, 5, 13, 13, 1, 0, 0, 0}},
		{"model.hidden is 8 in the checkpoint, 12", {4, 12, 4, 5, 13, 13, 1, 0, 0, 0}},
		{"model.heads is 4 in the checkpoint, 2", {4, 8, 2, 5, 13, 13, 1, 0, 0, 0}},
		{"model.seq_len is 5 in the checkpoint, 6", {4, 8, 4, 6, 13, 13, 1, 0, 0, 0}},
		{"model.vocab_size is 13 in the checkpoint, 12", {4, 8, 4, 5, 12, 13, 1, 0, 0, 0}},
		{"model.tie_embeddings is true in the checkpoint, false",
		 {4, 8, 4, 5, 13, 13, 0, 0, 0, 0}},
	};
	char dir[64];
	IN_TOP(dir, "match");
	struct job j = job_of(layouts[0], dir, 1);
	CHECK(save(&j) == 0, "%s", j.text);
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct occ_err e = {0};
		int got = load(join(dir, "step-00000001"), layouts[0], 0, &rows[i].s, 100, &e);
		CHECK(got == -1 && e.code == OCC_E_CKPT && strstr(e.text, rows[i].why),
		      "'%s' got '%s'", rows[i].why, e.text);
	}
	struct occ_gpt_shape s = j.shape; /* what may differ */
	struct occ_err e = {0};
	s.dropout = 0.5, s.recompute = 1, s.init_std = 1, s.vocab_padded = 20;
	CHECK(load(join(dir, "step-00000001"), layouts[0], 0, &s, 100, &e) == 1, "%s", e.text);
	remove_all(dir);
}

static void check_inspect(void)
{
	char dir[64];
	IN_TOP(dir, "inspect");
	struct job j = job_of(layouts[3], dir, 12);
	struct occ_err e = {0};
	CHECK(occ_ckpt_inspect(top, &e) == 0 && occ_ckpt_inspect("/dev/null", &e) == 0 &&
		      occ_ckpt_inspect(join(top, "none"), &e) == 0 && !e.code,
	      "not checkpoints: %s", e.text);
	CHECK(save(&j) == 0, "%s", j.text);
	char one[100];
	snprintf(one, sizeof(one), "%s/step-00000012", dir);
	const char *const paths[] = {dir, one};
	for (int i = 0; i < 2; i++) {
		capture_begin(1);
		int got = occ_ckpt_inspect(paths[i], &e);
		const char *text = capture_end(1);
		CHECK(got == 1 && strstr(text, "\nstep: 12\n") && strstr(text, "\nhidden: 8\n") &&
			      strstr(text, "\ntensor: 2\n") && strstr(text, "\nchecksums: good\n"),
		      "%d %s %s", got, text, e.text);
	}
	flip(join(dir, "step-00000012/shard-0-1.bin"), 70, 0);
	CHECK(occ_ckpt_inspect(paths[1], &e) == -1 && strstr(e.text, "shard-0-1.bin"), "%s",
	      e.text);
	remove_all(dir);
}

/* Places where no directory can be made: refused on all ranks, in words. */
static void check_nowhere(void)
{
	static const char *const bad[] = {"/proc/occ-none/x", "/dev/null", "/dev/null/x"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		struct job j = job_of((struct occ_layout){2, 1, 2}, bad[i], 1);
		CHECK(save(&j) == OCC_E_CKPT && strstr(j.text, bad[i]), "%s: %s", bad[i], j.text);
	}
}

int main(void)
{
	if (!mkdtemp(top))
		return 1;
	check_pairs(1);
	check_pairs(0);
	check_weights_only();
	check_faults(0, 2);
	check_faults(3, 2);
	check_faults(0, 1);
	check_damage();
	check_directory();
	check_searches();
	check_mismatch();
	check_inspect();
	check_nowhere();
	CHECK(rmdir(top) == 0, "files are left in %s", top);
	CHECK(occ_mem_live() == 0, "%lld bytes leaked", (long long)occ_mem_live());
	return check_done();
}
