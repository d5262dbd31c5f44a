/* The nearest known key to one that is not known, for messages. */
#include <stdio.h>
#include <string.h>

#include "base/opts_internal.h"

/* Edit distance with swaps of neighbours as one edit; words longer than the limit count as far. */
static int distance(const char *a, const char *b)
{
	enum { MAX = 96 };
	int n = (int)strlen(a), m = (int)strlen(b), d[3][MAX + 1];
	if (n > MAX || m > MAX)
		return 2 * MAX;
	for (int j = 0; j <= m; j++)
		d[0][j] = j;
	for (int i = 1; i <= n; i++) {
		int *now = d[i % 3], *up = d[(i + 2) % 3], *two = d[(i + 1) % 3];
		now[0] = i;
		for (int j = 1; j <= m; j++) {
			int best = up[j - 1] + (a[i - 1] != b[j - 1]);
			if (up[j] + 1 < best)
				best = up[j] + 1;
			if (now[j - 1] + 1 < best)
				best = now[j - 1] + 1;
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
			    two[j - 2] + 1 < best)
				best = two[j - 2] + 1;
			now[j] = best;
		}
	}
	return d[n % 3][m];
}

const char *occ_opts_nearest(const struct occ_opts *o, const char *key)
{
	const char *best = "";
	int least = 1 << 20;
	for (int i = 0; i < o->n; i++) {
		int d = distance(key, o->rows[i].key);
		if (d < least) {
			least = d;
			best = o->rows[i].key;
		}
	}
	return best;
}

/* Length of the first `dots` + 1 parts of a key; 0 if it ends with them and so names no section. */
static size_t section_length(const char *key, int dots)
{
	for (size_t i = 0; key[i]; i++)
		if (key[i] == '.' && dots-- == 0)
			return i;
	return 0;
}

void occ_opts_nearest_section(const struct occ_opts *o, const char *path, char *out, size_t size)
{
	const char *key = occ_opts_nearest(o, path);
	int least = distance(path, key), dots = 0;
	for (const char *p = path; *p; p++)
		dots += *p == '.';
	snprintf(out, size, "%s", key);
	for (int i = 0; i < o->n; i++) {
		char section[128];
		size_t n = section_length(o->rows[i].key, dots);
		snprintf(section, sizeof(section), "%.*s", (int)n, o->rows[i].key);
		int d = distance(path, section);
		if (n && d < least) {
			least = d;
			snprintf(out, size, "%s", section);
		}
	}
}
