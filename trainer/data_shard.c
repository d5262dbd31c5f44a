/* One data file: found to be of a kind, mapped, scanned. Knows no format. */
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "trainer/data_kind.h"
#include "trainer/files.h"

static const struct occ_data_kind *const kinds[] = {&occ_data_megatron, &occ_data_llmc,
						    &occ_data_text};

int occ_path_ends(const char *path, const char *end)
{
	size_t n = strlen(path), m = strlen(end);
	return n > m && !strcmp(path + n - m, end);
}

int occ_view_open(struct occ_view *v, const char *path, struct occ_err *e)
{
	struct stat st;
	void *at;
	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		return occ_fail(e, OCC_E_DATA, "%s: a directory, not a file", path);
	if (occ_map_open(path, OCC_E_DATA, &at, &v->bytes, e))
		return -1;
	v->at = at;
	if (!v->bytes)
		return occ_fail(e, OCC_E_DATA, "%s: the file is empty", path);
	return 0;
}

void occ_shard_release(struct occ_shard *s)
{
	occ_map_close((void *)(uintptr_t)s->map.at, s->map.bytes);
	occ_map_close((void *)(uintptr_t)s->idx.at, s->idx.bytes);
	occ_free(s->ids);
}

int occ_shard_open(struct occ_shard *s, const char *path, struct occ_tokenizer *tok,
		   struct occ_err *e)
{
	const struct occ_data_kind *const *k = kinds; /* the last takes any file */
	*s = (struct occ_shard){.path = path, .sequences = -1, .documents = -1};
	while (!(*k)->probe(path)) /* NOLINT */
		k++;
	return (*k)->open(s, path, tok, e);
}

enum { BLOCK = 1 << 14 }; /* tokens scanned before looking at the result */

int64_t occ_shard_scan(const struct occ_shard *s, int64_t limit, int64_t *max)
{
	*max = -1;
	for (int64_t at = 0; at < s->n; at += BLOCK) {
		int64_t lo, hi, n = s->n - at < BLOCK ? s->n - at : BLOCK;
		s->type->range((const char *)s->tokens + at * s->type->size, n, &lo, &hi);
		*max = hi > *max ? hi : *max;
		if (lo >= 0 && hi < limit)
			continue;
		for (int64_t i = at;; i++) {
			int64_t id = s->type->at(s->tokens, i);
			if (id < 0 || id >= limit)
				return i;
		}
	}
	return -1;
}
