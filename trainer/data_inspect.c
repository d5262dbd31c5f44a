/* `occ-train inspect` for what training data can be: token files and indexed data sets. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "trainer/data.h"
#include "trainer/data_kind.h"
#include "trainer/files.h"

static int print(const struct occ_shard *s, struct occ_err *e)
{
	int64_t max, bad = occ_shard_scan(s, INT32_MAX, &max);
	if (bad >= 0)
		return occ_fail(e, OCC_E_DATA, "%s: token %lld is %lld, which no id can be",
				s->path, (long long)bad, (long long)s->type->at(s->tokens, bad));
	printf("kind: %s\ntokens: %lld\ntype: %s\n", s->kind, (long long)s->n, s->type->name);
	if (s->n)
		printf("max id: %lld\n", (long long)max);
	if (s->sequences >= 0)
		printf("documents: %lld\nsequences: %lld\nlongest sequence: %lld\n",
		       (long long)s->documents, (long long)s->sequences, (long long)s->longest);
	return 0;
}

static int inspect_as(const struct occ_data_kind *k, const char *path, struct occ_err *e)
{
	struct occ_shard s = {.path = path, .sequences = -1, .documents = -1};
	int bad = k->open(&s, path, NULL, e) || print(&s, e);
	occ_shard_release(&s);
	return bad ? -1 : 1;
}

/* PREFIX.bin for PREFIX.idx, or `path` itself; the caller frees. */
static char *bin_path(const char *path)
{
	char *bin = occ_strdup(path);
	if (occ_path_ends(path, ".idx"))
		memcpy(bin + strlen(bin) - 3, "bin", 3);
	return bin;
}

int occ_data_inspect(const char *path, struct occ_err *e)
{
	struct stat st;
	struct occ_view v = {0};
	int tokens = 0, known;
	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		return 0;
	if (occ_view_open(&v, path, e))
		return -1;
	char *bin = bin_path(path);
	const char *name = occ_llmc_name(&v, &tokens);
	if (occ_data_megatron.probe(bin) || (occ_megatron_index(&v) && occ_path_ends(path, ".idx")))
		known = inspect_as(&occ_data_megatron, bin, e);
	else if (name && tokens)
		known = inspect_as(&occ_data_llmc, path, e);
	else if (occ_megatron_index(&v))
		known = occ_fail(e, OCC_E_DATA,
				 "%s: the index of a Megatron data set, which must be named *.idx",
				 path);
	else
		known = name && printf("kind: %s\nbytes: %zu\n", name, v.bytes) > 0;
	occ_free(bin);
	occ_map_close((void *)(uintptr_t)v.at, v.bytes);
	return known;
}
