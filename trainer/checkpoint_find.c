/* Which checkpoint a run begins with. Rank 0 alone reads directories, so that ranks on other
 * machines cannot see another newest one; verifying is shared out over the ranks. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "trainer/checkpoint.h"
#include "trainer/manifest.h"

enum { MAX_PATH = 4096 };

struct find {
	struct occ_comm *world; /* NULL: alone */
	struct occ_err *e;
};

static int rank(const struct find *f)
{
	return f->world ? f->world->rank : 0;
}

static void bcast(const struct find *f, void *x, size_t bytes)
{
	if (f->world)
		occ_comm_bcast(f->world, x, bytes, 0);
}

static int is_checkpoint(const char *path)
{
	char file[MAX_PATH + 20];
	struct stat st;
	snprintf(file, sizeof(file), "%s/manifest.json", path);
	return stat(file, &st) == 0;
}

/* This rank's share of the files of one checkpoint. */
static void verify(const struct find *f, const char *path, struct occ_err *e)
{
	struct occ_manifest m;
	int size = f->world ? f->world->size : 1, bad = 0;
	if (occ_manifest_read(path, &m, e))
		return;
	for (int i = rank(f); !bad && i < occ_manifest_files(&m); i += size)
		bad = occ_shard_verify(path, &m, i, e);
	occ_manifest_release(&m);
}

/* A file that is there but may not be read is not damage: going on from an older checkpoint would
 * silently lose work. Collective; rank 0 looks. */
static int barred(const struct find *f, const char *path)
{
	char file[MAX_PATH + 256];
	DIR *d = rank(f) == 0 ? opendir(path) : NULL;
	if (rank(f) == 0 && !d && errno != ENOENT)
		occ_fail(f->e, OCC_E_CKPT, "%.500s: cannot be read: %s", path, strerror(errno));
	for (struct dirent *x; d && (x = readdir(d));) {
		snprintf(file, sizeof(file), "%s/%s", path, x->d_name);
		if (access(file, R_OK) && errno != ENOENT)
			occ_fail(f->e, OCC_E_CKPT, "%.500s: cannot be read: %s", file,
				 strerror(errno));
	}
	if (d)
		closedir(d);
	bcast(f, f->e, sizeof(*f->e));
	return f->e->code;
}

/* Collective. The newest good one of the n names that rank 0 has; path "" if none is. */
static int pick(const struct find *f, const char *dir, const struct occ_ckpt_name *at, int n,
		char path[MAX_PATH])
{
	bcast(f, &n, sizeof(n));
	for (int i = 0; i < n; i++) {
		struct occ_err why = {0};
		memset(path, 0, MAX_PATH);
		if (rank(f) == 0) {
			char *full = occ_ckpt_path(dir, at[i]);
			snprintf(path, MAX_PATH, "%s", full);
			occ_free(full);
		}
		bcast(f, path, MAX_PATH);
		verify(f, path, &why);
		if (occ_ckpt_agree(f->world, &why) == 0)
			return 0;
		if (barred(f, path))
			return -1;
		if (rank(f) == 0)
			occ_log(OCC_LOG_ERROR, "%.400s: passed over, as it is not complete: %.450s",
				path, why.text);
	}
	path[0] = 0;
	return 0;
}

/* Collective. */
static int newest(const struct find *f, const char *dir, char path[MAX_PATH])
{
	struct occ_ckpt_name *at = NULL;
	int n = 0, good = 0;
	if (rank(f) == 0)
		at = occ_ckpt_list(dir, &n, f->e);
	if (occ_ckpt_agree(f->world, f->e))
		return -1;
	for (int i = 0; i < n; i++)
		if (at[i].kind != OCC_CKPT_TMP)
			at[good++] = at[i];
	int bad = pick(f, dir, at, good, path);
	occ_free(at);
	return bad;
}

/* Collective. A path that must hold a checkpoint. */
static int explicit(const struct find *f, const char *given, char path[MAX_PATH])
{
	int one = rank(f) == 0 && is_checkpoint(given);
	bcast(f, &one, sizeof(one));
	if (one) {
		snprintf(path, MAX_PATH, "%s", given);
		return 0;
	}
	if (newest(f, given, path))
		return -1;
	if (!path[0])
		return occ_fail(f->e, OCC_E_CKPT, "%s: holds no complete checkpoint", given);
	return 0;
}

int occ_ckpt_find(struct occ_comm *world, const char *dir, const char *resume, char path[MAX_PATH],
		  struct occ_err *e)
{
	struct find f = {world, e};
	int automatic = !strcmp(resume, "auto");
	const char *where = automatic ? dir : resume;
	path[0] = 0;
	if (!strcmp(resume, "never") || (automatic && !dir[0]))
		return 0;
	if (strlen(where) + 40 > MAX_PATH)
		return occ_fail(e, OCC_E_CKPT, "checkpoint path of %zu bytes is too long",
				strlen(where));
	return automatic ? newest(&f, where, path) : explicit(&f, where, path);
}

static void print(const char *path, const struct occ_manifest *m)
{
	const struct occ_gpt_shape *s = &m->shape;
	int64_t bytes = 0;
	for (int i = 0; i < occ_manifest_files(m); i++)
		bytes += m->file[i].bytes;
	printf("kind: checkpoint\npath: %s\nstep: %lld\nskipped: %lld\n", path, (long long)m->step,
	       (long long)m->skipped);
	printf("layers: %lld\nhidden: %lld\nheads: %lld\nseq_len: %lld\nvocab_size: %lld\n"
	       "tie_embeddings: %s\nparameters: %lld\n",
	       (long long)s->layers, (long long)s->hidden, (long long)s->heads,
	       (long long)s->seq_len, (long long)s->vocab, s->tied ? "true" : "false",
	       (long long)occ_gpt_parameters(s));
	printf("tensor: %d\npipeline: %d\nfiles: %d\nbytes: %lld\nchecksums: good\n",
	       m->layout.tensor, m->layout.pipeline, occ_manifest_files(m), (long long)bytes);
}

/* 1 if there is something here that claims to be a checkpoint; its path. */
static int claims(const char *given, char path[MAX_PATH], struct occ_err *e)
{
	struct stat st;
	struct find alone = {NULL, e};
	int n = 0;
	if (strlen(given) + 40 > MAX_PATH || stat(given, &st) || !S_ISDIR(st.st_mode))
		return 0;
	struct occ_ckpt_name *at = occ_ckpt_list(given, &n, e);
	occ_free(at);
	if (!at)
		return -1;
	if (!n && !is_checkpoint(given))
		return 0;
	return explicit(&alone, given, path) ? -1 : 1;
}

int occ_ckpt_inspect(const char *given, struct occ_err *e)
{
	char path[MAX_PATH];
	struct occ_manifest m;
	struct find alone = {NULL, e};
	int found = claims(given, path, e);
	if (found != 1)
		return found;
	verify(&alone, path, e);
	if (e->code || occ_manifest_read(path, &m, e))
		return -1;
	print(path, &m);
	occ_manifest_release(&m);
	return 1;
}
