/* Names and verification of the files of a checkpoint, and agreement about them. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "trainer/manifest.h"

enum { PIECE = 1 << 20 };

static const char *const suffix[] = {
	[OCC_CKPT_DONE] = "", [OCC_CKPT_OLD] = ".old", [OCC_CKPT_TMP] = ".tmp"};

/* The whole file through the checksum. read(2), not a map: a bad disk gives an error, not a signal.
 */
static int sum_file(int fd, struct occ_sum *s)
{
	char *buf = occ_alloc(PIECE, 1);
	ssize_t n;
	occ_sum_init(s);
	while ((n = read(fd, buf, PIECE)) > 0 || (n < 0 && errno == EINTR))
		if (n > 0)
			occ_sum_add(s, buf, (size_t)n);
	occ_free(buf);
	return n < 0 ? -1 : 0;
}

int occ_shard_verify(const char *ckpt, const struct occ_manifest *m, int i, struct occ_err *e)
{
	char *path = occ_shard_path(ckpt, m, i);
	struct occ_sum s;
	int fd = open(path, O_RDONLY | O_CLOEXEC), bad = 0;
	if (fd < 0 || sum_file(fd, &s))
		bad = occ_fail(e, OCC_E_CKPT, "%s: cannot read: %s", path, strerror(errno));
	else if ((int64_t)s.bytes != m->file[i].bytes || occ_sum_get(&s) != m->file[i].sum)
		bad = occ_fail(e, OCC_E_CKPT, "%s: damaged (checksum)", path);
	if (fd >= 0)
		close(fd);
	occ_free(path);
	return bad;
}

char *occ_ckpt_path(const char *dir, struct occ_ckpt_name name)
{
	size_t n = strlen(dir) + 40;
	char *path = occ_alloc(n, 1);
	snprintf(path, n, "%s/step-%08lld%s", dir, (long long)name.step, suffix[name.kind]);
	return path;
}

/* step-DIGITS as occ_ckpt_path writes it, with or without a suffix of ours. */
static struct occ_ckpt_name parse(const char *text)
{
	struct occ_ckpt_name name = {0};
	char *end;
	size_t digits = strncmp(text, "step-", 5) ? 0 : strspn(text + 5, "0123456789");
	if (digits < 8 || digits > 16 || (digits > 8 && text[5] == '0'))
		return name;
	name.step = strtoll(text + 5, &end, 10);
	for (int k = OCC_CKPT_DONE; k <= OCC_CKPT_TMP; k++)
		if (!strcmp(end, suffix[k]))
			name.kind = (enum occ_ckpt_kind)k;
	return name;
}

static int newest_first(const void *a, const void *b)
{
	const struct occ_ckpt_name *x = a, *y = b;
	if (x->step != y->step)
		return x->step > y->step ? -1 : 1;
	return (int)x->kind - (int)y->kind;
}

struct occ_ckpt_name *occ_ckpt_list(const char *dir, int *n, struct occ_err *e)
{
	struct occ_ckpt_name *at = NULL;
	DIR *d = opendir(dir);
	int cap = 0, k = 0;
	if (!d && errno != ENOENT) {
		occ_fail(e, OCC_E_CKPT, "%s: cannot read this directory: %s", dir, strerror(errno));
		return NULL;
	}
	for (struct dirent *it; d && (it = readdir(d));) {
		struct occ_ckpt_name name = parse(it->d_name);
		if (name.kind == OCC_CKPT_NONE)
			continue;
		if (k == cap) {
			struct occ_ckpt_name *more =
				occ_alloc((size_t)(cap += cap + 16), sizeof(*at));
			for (int i = 0; i < k; i++)
				more[i] = at[i];
			occ_free(at);
			at = more;
		}
		at[k++] = name;
	}
	if (d)
		closedir(d);
	if (!at)
		at = occ_alloc(0, sizeof(*at));
	qsort(at, (size_t)k, sizeof(*at), newest_first);
	*n = k;
	return at;
}

int occ_ckpt_agree(struct occ_comm *world, struct occ_err *e)
{
	if (!world)
		return e->code ? -1 : 0;
	int64_t first = e->code ? world->size - world->rank : 0;
	occ_comm_max_int64(world, &first, 1);
	if (first == 0)
		return 0;
	occ_comm_bcast(world, e, sizeof(*e), world->size - (int)first);
	return -1;
}
