/* The manifest: one table of rows gives writing, reading and the comparison with a config. */
#include "trainer/manifest.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"

enum { VERSION = 1, SUM_DIGITS = 16, MAX_MANIFEST = 1 << 28 };
static const char format[] = "occ-train checkpoint";
/* First line: this, the digits, quote, comma, newline. */
static const char opening[] = "{\"checksum\":\"";
enum { FIRST_LINE = sizeof(opening) - 1 + SUM_DIGITS + 3 };

enum type { INT, COUNT, BOOL, REAL }; /* int64_t, int, int as true or false, double */

static const struct row {
	const char *section, *key;
	enum type type;
	size_t at;
	double lo, hi;
	int match; /* a config must agree */
} rows[] = {
#define MODEL(key, type, field, lo, hi, match)                                                     \
	{                                                                                          \
		"model", key, type, offsetof(struct occ_manifest, shape.field), lo, hi, match      \
	}
	{NULL, "step", INT, offsetof(struct occ_manifest, step), 0, 0x1p53, 0},
	{NULL, "skipped", INT, offsetof(struct occ_manifest, skipped), 0, 0x1p53, 0},
	{NULL, "skipped_in_row", INT, offsetof(struct occ_manifest, skipped_in_row), 0, 0x1p53, 0},
	MODEL("layers", INT, layers, 1, 1 << 16, 1),
	MODEL("hidden", INT, hidden, 1, 1 << 20, 1),
	MODEL("heads", INT, heads, 1, 1 << 20, 1),
	MODEL("seq_len", INT, seq_len, 1, 1 << 30, 1),
	MODEL("vocab_size", INT, vocab, 1, 1 << 30, 1),
	MODEL("tie_embeddings", BOOL, tied, 0, 1, 1),
	MODEL("vocab_padded", INT, vocab_padded, 1, 0x1p40, 0),
	MODEL("init_std", REAL, init_std, 0, 1e300, 0),
	MODEL("dropout", REAL, dropout, 0, 1, 0),
	MODEL("recompute", BOOL, recompute, 0, 1, 0),
	{"layout", "tensor", COUNT, offsetof(struct occ_manifest, layout.tensor), 1, 1 << 20, 0},
	{"layout", "pipeline", COUNT, offsetof(struct occ_manifest, layout.pipeline), 1, 1 << 16,
	 0},
#undef MODEL
};
enum { NROWS = sizeof(rows) / sizeof(rows[0]) };

static double get(const struct occ_manifest *m, const struct row *r)
{
	const void *p = (const char *)m + r->at;
	return r->type == INT    ? (double)*(const int64_t *)p
	       : r->type == REAL ? *(const double *)p
				 : *(const int *)p;
}

static void set(struct occ_manifest *m, const struct row *r, double x)
{
	void *p = (char *)m + r->at;
	if (r->type == INT)
		*(int64_t *)p = (int64_t)x;
	else if (r->type == REAL)
		*(double *)p = x;
	else
		*(int *)p = (int)x;
}

int occ_manifest_shards(const struct occ_manifest *m)
{
	return m->layout.tensor * m->layout.pipeline;
}

int occ_manifest_files(const struct occ_manifest *m)
{
	return occ_manifest_shards(m) + m->nstreams;
}

static char *manifest_path(const char *ckpt)
{
	size_t n = strlen(ckpt) + sizeof("/manifest.json");
	char *path = occ_alloc(n, 1);
	snprintf(path, n, "%s/manifest.json", ckpt);
	return path;
}

char *occ_stream_path(const char *ckpt, int rank)
{
	size_t n = strlen(ckpt) + 40;
	char *path = occ_alloc(n, 1);
	snprintf(path, n, "%s/stream-%d.bin", ckpt, rank);
	return path;
}

char *occ_shard_path(const char *ckpt, const struct occ_manifest *m, int i)
{
	size_t n = strlen(ckpt) + 40;
	int T = m->layout.tensor;
	if (i >= occ_manifest_shards(m))
		return occ_stream_path(ckpt, m->file[i].rank);
	char *path = occ_alloc(n, 1);
	snprintf(path, n, "%s/shard-%d-%d.bin", ckpt, i / T, i % T);
	return path;
}

static cJSON *file_json(const struct occ_manifest *m, int i)
{
	char sum[SUM_DIGITS + 1], *path = occ_shard_path("", m, i);
	cJSON *f = cJSON_CreateObject();
	snprintf(sum, sizeof(sum), "%016llx", (unsigned long long)m->file[i].sum);
	cJSON_AddStringToObject(f, "name", path + 1);
	cJSON_AddNumberToObject(f, "bytes", (double)m->file[i].bytes);
	cJSON_AddStringToObject(f, "checksum", sum);
	if (i >= occ_manifest_shards(m))
		cJSON_AddNumberToObject(f, "rank", m->file[i].rank);
	occ_free(path);
	return f;
}

static cJSON *to_json(const struct occ_manifest *m)
{
	cJSON *root = cJSON_CreateObject();
	cJSON_AddStringToObject(root, "format", format);
	cJSON_AddNumberToObject(root, "version", VERSION);
	for (int i = 0; i < NROWS; i++) {
		cJSON *to = rows[i].section ? cJSON_GetObjectItem(root, rows[i].section) : root;
		if (!to)
			to = cJSON_AddObjectToObject(root, rows[i].section);
		double x = get(m, &rows[i]);
		cJSON_AddItemToObject(to, rows[i].key,
				      rows[i].type == BOOL ? cJSON_CreateBool(x != 0)
							   : cJSON_CreateNumber(x));
	}
	cJSON *files = cJSON_AddArrayToObject(root, "files");
	for (int i = 0; i < occ_manifest_shards(m); i++)
		cJSON_AddItemToArray(files, file_json(m, i));
	if (m->nstreams == 0)
		return root;
	cJSON *streams = cJSON_AddObjectToObject(root, "streams");
	cJSON_AddNumberToObject(streams, "data", m->data);
	files = cJSON_AddArrayToObject(streams, "files");
	for (int i = occ_manifest_shards(m); i < occ_manifest_files(m); i++)
		cJSON_AddItemToArray(files, file_json(m, i));
	return root;
}

static void first_line(char line[FIRST_LINE + 1], const char *rest, size_t bytes)
{
	struct occ_sum s;
	occ_sum_init(&s);
	occ_sum_add(&s, rest, bytes);
	snprintf(line, FIRST_LINE + 1, "%s%016llx\",\n", opening,
		 (unsigned long long)occ_sum_get(&s));
}

int occ_manifest_write(const char *ckpt, const struct occ_manifest *m, struct occ_io io,
		       struct occ_err *e)
{
	struct occ_file f;
	cJSON *root = to_json(m);
	char *text = cJSON_Print(root), *path = manifest_path(ckpt);
	char line[FIRST_LINE + 1];
	occ_check(text && text[0] == '{', "no text for %s", path);
	size_t rest = strlen(text + 1);
	first_line(line, text + 1, rest);
	int bad = occ_file_create(&f, path, io, e) || occ_file_write(&f, line, FIRST_LINE, e) ||
		  occ_file_write(&f, text + 1, rest, e) || occ_file_commit(&f, e);
	cJSON_free(text);
	cJSON_Delete(root);
	occ_free(path);
	return bad ? -1 : 0;
}

static int bad_value(const char *path, const char *key, struct occ_err *e)
{
	return occ_fail(e, OCC_E_CKPT, "%s: %s is missing or out of range", path, key);
}

static int read_rows(const cJSON *root, struct occ_manifest *m, const char *path, struct occ_err *e)
{
	for (int i = 0; i < NROWS; i++) {
		const struct row *r = &rows[i];
		const cJSON *in =
			r->section ? cJSON_GetObjectItemCaseSensitive(root, r->section) : root;
		const cJSON *j = cJSON_GetObjectItemCaseSensitive(in, r->key);
		int ok = r->type == BOOL ? cJSON_IsBool(j) : cJSON_IsNumber(j);
		double x = !ok ? -1 : r->type == BOOL ? cJSON_IsTrue(j) : j->valuedouble;
		if (!ok || !(x >= r->lo && x <= r->hi))
			return bad_value(path, r->key, e);
		set(m, r, x);
	}
	m->layout.data = 1;
	return 0;
}

/* What the weight tables rely on. */
static int check_shape(const struct occ_manifest *m, const char *path, struct occ_err *e)
{
	const struct occ_gpt_shape *s = &m->shape;
	int T = m->layout.tensor;
	if (s->heads < 1 || T < 1 || s->hidden % s->heads || s->heads % T ||
	    s->layers < m->layout.pipeline || s->vocab_padded < s->vocab || s->vocab_padded % T)
		return occ_fail(e, OCC_E_CKPT, "%s: its sizes do not fit each other", path);
	return 0;
}

/* One entry of a list of files; ranks are below `ranks`. */
static int read_file(const cJSON *it, double ranks, struct occ_shard_file *f)
{
	const cJSON *bytes = cJSON_GetObjectItemCaseSensitive(it, "bytes");
	const cJSON *rank = cJSON_GetObjectItemCaseSensitive(it, "rank");
	const char *sum = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(it, "checksum"));
	if (!cJSON_IsNumber(bytes) || !(bytes->valuedouble >= 0) || bytes->valuedouble > 0x1p53 ||
	    !sum || strlen(sum) != SUM_DIGITS)
		return -1;
	f->bytes = (int64_t)bytes->valuedouble;
	f->sum = strtoull(sum, NULL, 16);
	if (ranks == 0)
		return 0;
	if (!cJSON_IsNumber(rank) || !(rank->valuedouble >= 0 && rank->valuedouble < ranks))
		return -1;
	f->rank = (int)rank->valuedouble;
	return 0;
}

static int read_files(const cJSON *root, struct occ_manifest *m, const char *path,
		      struct occ_err *e)
{
	const cJSON *files = cJSON_GetObjectItemCaseSensitive(root, "files"), *it;
	const cJSON *streams = cJSON_GetObjectItemCaseSensitive(root, "streams");
	const cJSON *data = cJSON_GetObjectItemCaseSensitive(streams, "data");
	const cJSON *more = cJSON_GetObjectItemCaseSensitive(streams, "files");
	int64_t n = (int64_t)m->layout.tensor * m->layout.pipeline;
	int i = 0;
	if (!cJSON_IsArray(files) || cJSON_GetArraySize(files) != n)
		return bad_value(path, "files", e);
	if (streams &&
	    (!cJSON_IsNumber(data) || !(data->valuedouble >= 1) || data->valuedouble > 1 << 20 ||
	     !cJSON_IsArray(more) || cJSON_GetArraySize(more) > data->valuedouble * (double)n))
		return bad_value(path, "streams", e);
	m->data = streams ? (int)data->valuedouble : 1;
	m->nstreams = streams ? cJSON_GetArraySize(more) : 0;
	m->file = occ_alloc((size_t)(n + m->nstreams), sizeof(*m->file));
	cJSON_ArrayForEach(it, files) if (read_file(it, 0, &m->file[i++])) return bad_value(
		path, "files", e);
	cJSON_ArrayForEach(it, more) if (read_file(it, (double)n * m->data,
						   &m->file[i++])) return bad_value(path, "streams",
										    e);
	return 0;
}

static int read_json(const cJSON *root, struct occ_manifest *m, const char *path, struct occ_err *e)
{
	const char *kind = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "format"));
	const cJSON *version = cJSON_GetObjectItemCaseSensitive(root, "version");
	if (!kind || strcmp(kind, format))
		return occ_fail(e, OCC_E_CKPT, "%s: not a checkpoint of this program", path);
	if (!cJSON_IsNumber(version) || version->valuedouble != VERSION)
		return occ_fail(e, OCC_E_CKPT, "%s: written in version %g, this program reads %d",
				path, version ? version->valuedouble : 0, VERSION);
	if (read_rows(root, m, path, e) || check_shape(m, path, e))
		return -1;
	return read_files(root, m, path, e);
}

static int read_text(const char *text, size_t n, struct occ_manifest *m, const char *path,
		     struct occ_err *e)
{
	char line[FIRST_LINE + 1];
	if (n <= FIRST_LINE || n > MAX_MANIFEST)
		return occ_fail(e, OCC_E_CKPT, "%s: %zu bytes are no manifest", path, n);
	first_line(line, text + FIRST_LINE, n - FIRST_LINE);
	if (memcmp(line, text, FIRST_LINE))
		return occ_fail(e, OCC_E_CKPT, "%s: damaged (checksum)", path);
	cJSON *root = cJSON_ParseWithLength(text, n);
	int bad = root ? read_json(root, m, path, e)
		       : occ_fail(e, OCC_E_CKPT, "%s: not valid JSON", path);
	cJSON_Delete(root);
	return bad;
}

void occ_manifest_table(const struct occ_manifest *m, int file, struct occ_weights *w)
{
	struct occ_place at = {.tp = file % m->layout.tensor, .pp = file / m->layout.tensor};
	occ_weights_init(w, &m->shape, &m->layout, at);
}

int occ_shard_stores(const struct occ_weights *w, const struct occ_weight *p)
{
	return !p->copy && (p->split != OCC_WHOLE || w->tp == 0);
}

struct occ_shard_head occ_shard_head(const struct occ_weights *w, int pp, int tp)
{
	struct occ_shard_head h = {.magic = "occshard",
				   .version = VERSION,
				   .arrays = OCC_SHARD_ARRAYS,
				   .pp = (uint32_t)pp,
				   .tp = (uint32_t)tp};
	for (int i = 0; i < w->n; i++)
		if (occ_shard_stores(w, &w->at[i]))
			h.elements += (uint64_t)(w->at[i].lrows * w->at[i].lcols);
	return h;
}

/* The three sizes of a shard file: as the table has it, as the manifest says, as it is. */
static int check_size(const char *ckpt, const struct occ_manifest *m, int i, struct occ_err *e)
{
	struct occ_weights w;
	struct stat st;
	char *path = occ_shard_path(ckpt, m, i);
	int64_t want = m->file[i].bytes;
	int bad = 0;
	if (i < occ_manifest_shards(m)) {
		occ_manifest_table(m, i, &w);
		struct occ_shard_head h = occ_shard_head(&w, 0, 0);
		want = (int64_t)(sizeof(h) + h.elements * OCC_SHARD_ARRAYS * sizeof(float));
		occ_weights_release(&w);
	}
	if (stat(path, &st) || !S_ISREG(st.st_mode))
		bad = occ_fail(e, OCC_E_CKPT, "%s: missing", path);
	else if (st.st_size != want || m->file[i].bytes != want)
		bad = occ_fail(e, OCC_E_CKPT, "%s: %lld bytes, expected %lld", path,
			       (long long)st.st_size, (long long)want);
	occ_free(path);
	return bad;
}

int occ_manifest_read(const char *ckpt, struct occ_manifest *m, struct occ_err *e)
{
	struct occ_manifest got = {0};
	char *path = manifest_path(ckpt);
	void *text;
	size_t n;
	int bad = occ_map_open(path, OCC_E_CKPT, &text, &n, e);
	if (!bad) {
		bad = read_text(text, n, &got, path, e);
		occ_map_close(text, n);
	}
	for (int i = 0; !bad && i < occ_manifest_files(&got); i++)
		bad = check_size(ckpt, &got, i, e);
	occ_free(path);
	if (bad)
		occ_manifest_release(&got);
	else
		*m = got;
	return bad ? -1 : 0;
}

void occ_manifest_release(struct occ_manifest *m)
{
	occ_free(m->file);
	memset(m, 0, sizeof(*m));
}

int occ_manifest_match(const struct occ_manifest *m, const struct occ_gpt_shape *s,
		       const char *ckpt, struct occ_err *e)
{
	struct occ_manifest mine = {.shape = *s};
	for (int i = 0; i < NROWS; i++) {
		double a = get(m, &rows[i]), b = get(&mine, &rows[i]);
		if (!rows[i].match || a == b)
			continue;
		if (rows[i].type == BOOL)
			return occ_fail(e, OCC_E_CKPT,
					"%s: model.%s is %s in the checkpoint, %s in the "
					"config",
					ckpt, rows[i].key, a != 0 ? "true" : "false",
					b != 0 ? "true" : "false");
		return occ_fail(e, OCC_E_CKPT,
				"%s: model.%s is %.0f in the checkpoint, %.0f in the config", ckpt,
				rows[i].key, a, b);
	}
	return 0;
}
