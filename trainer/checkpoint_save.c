/* Saving in three phases, each agreed by all ranks before the next begins: the directory, the
 * shards, then the manifest and the rename. Whatever fails, only step-N.tmp has been touched, and
 * it goes. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/log.h"
#include "base/mem.h"
#include "trainer/checkpoint_internal.h"

struct save {
	const char *dir;
	int64_t keep;
	const struct occ_topo *topo;
	const struct occ_ckpt_state *s;
	struct occ_io io;
	char *tmp, *final, *old;
	struct occ_shard_file mine, stream; /* of the files this rank wrote */
	struct occ_err *e;
};

static int is_first(const struct save *v)
{
	return v->topo->world->rank == 0;
}

/* What earlier saves left behind: removed, or at least not in the way of this one. */
static int remove_stale(const struct save *v)
{
	int n, bad = 0;
	struct occ_ckpt_name *at = occ_ckpt_list(v->dir, &n, v->e);
	for (int i = 0; at && i < n; i++) {
		if (at[i].kind != OCC_CKPT_TMP)
			continue;
		char *path = occ_ckpt_path(v->dir, at[i]);
		if (occ_dir_remove(path) && at[i].step == v->s->step)
			bad = occ_fail(v->e, OCC_E_CKPT, "%s: cannot remove: %s", path,
				       strerror(errno));
		occ_free(path);
	}
	occ_free(at);
	return at ? bad : -1;
}

static void prepare(struct save *v)
{
	if (!is_first(v) || occ_dir_make(v->dir, v->io, v->e) || remove_stale(v))
		return;
	if (!occ_dir_make(v->tmp, v->io, v->e))
		occ_dir_sync(v->dir, v->io, v->e);
}

static int write_array(const struct save *v, struct occ_file *f, const float *x)
{
	const struct occ_weights *w = v->s->weights;
	for (int i = 0; i < w->n; i++) {
		const struct occ_weight *p = &w->at[i];
		size_t bytes = (size_t)(p->lrows * p->lcols) * sizeof(*x);
		if (occ_shard_stores(w, p) && occ_file_write(f, x + p->at, bytes, v->e))
			return -1;
	}
	return 0;
}

static void write_shard(struct save *v)
{
	const struct occ_topo *t = v->topo;
	struct occ_file f;
	if (t->place.dp != 0)
		return;
	struct occ_shard_head h = occ_shard_head(v->s->weights, t->place.pp, t->place.tp);
	struct occ_manifest m = {.layout = t->layout};
	char *path = occ_shard_path(v->tmp, &m, t->place.pp * t->layout.tensor + t->place.tp);
	int bad = occ_file_create(&f, path, v->io, v->e) ||
		  occ_file_write(&f, &h, sizeof(h), v->e) || write_array(v, &f, v->s->master) ||
		  write_array(v, &f, v->s->m) || write_array(v, &f, v->s->v);
	if (!bad) {
		v->mine.bytes = (int64_t)f.sum.bytes;
		v->mine.sum = occ_sum_get(&f.sum);
		occ_file_commit(&f, v->e);
	}
	occ_free(path);
}

static void write_streams(struct save *v)
{
	const struct occ_streams *s = v->s->streams;
	if (!s || s->n == 0)
		return;
	char *path = occ_stream_path(v->tmp, v->topo->world->rank);
	occ_streams_write(s, path, v->io, &v->stream, v->e);
	occ_free(path);
}

/* Collective: `mine` of every rank, in the order of ranks. */
static struct occ_shard_file *gather(const struct save *v, const struct occ_shard_file *mine)
{
	int n = v->topo->world->size;
	struct occ_shard_file *all = occ_alloc((size_t)n, sizeof(*all));
	size_t *bytes = occ_alloc((size_t)n, sizeof(*bytes));
	for (int r = 0; r < n; r++)
		bytes[r] = sizeof(*all);
	all[v->topo->world->rank] = *mine;
	occ_comm_gather(v->topo->world, all, bytes);
	occ_free(bytes);
	return all;
}

/* Collective: every file's size and checksum, in the manifest's order. */
static void collect(const struct save *v, struct occ_manifest *m)
{
	const struct occ_topo *t = v->topo;
	int n = t->world->size;
	struct occ_shard_file *all = gather(v, &v->mine), *streams = gather(v, &v->stream);
	m->file = occ_alloc((size_t)occ_manifest_shards(m) + (size_t)n, sizeof(*m->file));
	m->data = t->layout.data;
	for (int r = 0; r < n; r++) {
		struct occ_place p = occ_place_of(&t->layout, r);
		if (p.dp == 0)
			m->file[p.pp * t->layout.tensor + p.tp] = all[r];
		if (streams[r].bytes == 0)
			continue;
		streams[r].rank = r;
		m->file[occ_manifest_shards(m) + m->nstreams++] = streams[r];
	}
	occ_free(streams);
	occ_free(all);
}

/* tmp takes the place of a complete step-N: by exchange, else by way of .old, which a reader finds
 * too. */
static int replace(const struct save *v)
{
	if (!renameat2(AT_FDCWD, v->tmp, AT_FDCWD, v->final, RENAME_EXCHANGE)) {
		occ_dir_remove(v->tmp);
		return 0;
	}
	occ_dir_remove(v->old);
	if (occ_dir_rename(v->final, v->old, v->io, v->e))
		return -1;
	if (!occ_dir_rename(v->tmp, v->final, v->io, v->e))
		return 0;
	rename(v->old, v->final);
	return -1;
}

static void publish(struct save *v)
{
	const struct occ_layout l = {v->topo->layout.tensor, v->topo->layout.pipeline, 1};
	struct occ_manifest m = {.step = v->s->step,
				 .skipped = v->s->skipped,
				 .skipped_in_row = v->s->skipped_in_row,
				 .shape = *v->s->shape,
				 .layout = l};
	struct stat st;
	collect(v, &m);
	if (is_first(v) && !occ_manifest_write(v->tmp, &m, v->io, v->e)) {
		int there = stat(v->final, &st) == 0 && S_ISDIR(st.st_mode);
		if (!(there ? replace(v) : occ_dir_rename(v->tmp, v->final, v->io, v->e)))
			occ_dir_sync(v->dir, v->io, v->e);
	}
	occ_manifest_release(&m);
}

/* By way of .tmp, so that no half-removed one bears a complete one's name. */
static void discard(const struct save *v, struct occ_ckpt_name name)
{
	char *from = occ_ckpt_path(v->dir, name);
	name.kind = OCC_CKPT_TMP;
	char *to = occ_ckpt_path(v->dir, name);
	if (rename(from, to) || occ_dir_remove(to))
		occ_log(OCC_LOG_ERROR, "%.700s: cannot remove this old checkpoint: %s", from,
			strerror(errno));
	occ_free(from);
	occ_free(to);
}

static int is_complete(const char *path)
{
	struct occ_manifest m;
	struct occ_err ignored = {0};
	if (occ_manifest_read(path, &m, &ignored))
		return 0;
	occ_manifest_release(&m);
	return 1;
}

/* Removes older complete ones beyond `keep`, counting the one just written. */
static void prune(const struct save *v)
{
	struct occ_err ignored = {0};
	int n, kept = 1;
	struct occ_ckpt_name *at = occ_ckpt_list(v->dir, &n, &ignored);
	for (int i = 0; at && i < n; i++) {
		char *path = occ_ckpt_path(v->dir, at[i]);
		if (at[i].kind == OCC_CKPT_OLD && at[i].step == v->s->step)
			occ_dir_remove(path);
		else if (at[i].kind == OCC_CKPT_DONE && at[i].step < v->s->step &&
			 is_complete(path) && v->keep > 0 && ++kept > v->keep)
			discard(v, at[i]);
		occ_free(path);
	}
	occ_free(at);
}

static int run(struct save *v)
{
	static void (*const phases[])(struct save *) = {prepare, write_shard, write_streams,
							publish};
	for (size_t i = 0; i < sizeof(phases) / sizeof(phases[0]); i++) {
		phases[i](v);
		if (!occ_ckpt_agree(v->topo->world, v->e))
			continue;
		if (is_first(v))
			occ_dir_remove(v->tmp);
		return -1;
	}
	if (is_first(v))
		prune(v);
	return 0;
}

int occ_ckpt_save(const char *dir, int64_t keep, const struct occ_topo *topo,
		  const struct occ_ckpt_state *s, struct occ_err *e)
{
	occ_check(dir[0] && s->master && s->m && s->v,
		  "a checkpoint needs a directory and all arrays");
	struct occ_ckpt_name name = {s->step, OCC_CKPT_DONE};
	struct save v = {.dir = dir, .keep = keep, .topo = topo, .s = s, .e = e};
	v.io = (struct occ_io){OCC_E_CKPT, "ckpt.write", topo->world->rank};
	v.final = occ_ckpt_path(dir, name);
	name.kind = OCC_CKPT_TMP;
	v.tmp = occ_ckpt_path(dir, name);
	name.kind = OCC_CKPT_OLD;
	v.old = occ_ckpt_path(dir, name);
	int bad = run(&v);
	occ_free(v.final);
	occ_free(v.tmp);
	occ_free(v.old);
	return bad;
}
