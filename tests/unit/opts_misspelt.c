/* Every known key with one letter dropped, doubled or swapped with its neighbour: refused, named,
 * and answered with the right key, by --set and in a file. */
#include <string.h>

#include "base/mem.h"
#include "tests/check.h"
#include "trainer/config.h"

static const struct occ_opts *const opts = &occ_config_opts;

/* Parses `text` over the defaults. */
static int parse(const char *text, struct occ_config *c, struct occ_err *e)
{
	memset(c, 0, sizeof(*c));
	memset(e, 0, sizeof(*e));
	occ_opts_defaults(opts, c);
	return occ_opts_parse(opts, c, text, "t.json", e);
}

/* {"a": {"b": VALUE}} for "a.b". */
static void nest(const char *key, const char *value, char *out, size_t size)
{
	size_t n = 0;
	int depth = 1;
	n += (size_t)snprintf(out, size, "{\"");
	for (; *key; key++) {
		if (*key == '.') {
			n += (size_t)snprintf(out + n, size - n, "\": {\"");
			depth++;
		} else {
			out[n++] = *key;
		}
	}
	n += (size_t)snprintf(out + n, size - n, "\": %s", value);
	while (depth--)
		n += (size_t)snprintf(out + n, size - n, "}");
}

static int known(const char *key)
{
	size_t n = strlen(key);
	for (int i = 0; i < opts->n; i++)
		if (!strcmp(opts->rows[i].key, key) ||
		    (!strncmp(opts->rows[i].key, key, n) && opts->rows[i].key[n] == '.'))
			return 1;
	return 0;
}

struct tally {
	int all, right_set, right_file;
};

static void misspelt(const char *key, const char *wrong, struct tally *t)
{
	char text[300], want[200];
	struct occ_config c;
	struct occ_err e;
	if (known(wrong))
		return;
	t->all++;
	parse("{}", &c, &e);
	snprintf(text, sizeof(text), "%s=1", wrong);
	CHECK(occ_opts_set(opts, &c, text, &e) && e.code == 2, "--set %s", text);
	snprintf(want, sizeof(want), "\"%s\"", wrong);
	CHECK(strstr(e.text, want), "%s: '%s'", wrong, e.text);
	snprintf(want, sizeof(want), "did you mean \"%s\"?", key);
	t->right_set += strstr(e.text, want) != NULL;
	occ_config_release(&c);
	nest(wrong, "1", text, sizeof(text));
	CHECK(parse(text, &c, &e) && e.code == 2 && strstr(e.text, "t.json:1: "), "%s: '%s'", text,
	      e.text);
	/* In a file the section may be what is wrong: then that is what is named. */
	const char *from = strstr(e.text, "did you mean \"");
	size_t n = from ? strcspn(from += 14, "\"") : 0;
	t->right_file += n > 0 && !strncmp(from, key, n) && (key[n] == '.' || !key[n]);
	occ_config_release(&c);
}

static void test_misspelt(void)
{
	struct tally t = {0, 0, 0};
	for (int i = 0; i < opts->n; i++) {
		const char *key = opts->rows[i].key;
		int n = (int)strlen(key);
		for (int k = 0; k < n; k++) {
			char wrong[100];
			snprintf(wrong, sizeof(wrong), "%.*s%s", k, key, key + k + 1);
			misspelt(key, wrong, &t);
			snprintf(wrong, sizeof(wrong), "%.*s%c%s", k + 1, key, key[k], key + k + 1);
			misspelt(key, wrong, &t);
			if (k + 1 == n || key[k] == key[k + 1])
				continue;
			snprintf(wrong, sizeof(wrong), "%.*s%c%c%s", k, key, key[k + 1], key[k],
				 key + k + 2);
			misspelt(key, wrong, &t);
		}
	}
	CHECK(t.all > 3000, "%d spellings", t.all);
	CHECK(t.right_set >= t.all - 2, "nearest key right for %d of %d by --set", t.right_set,
	      t.all);
	CHECK(t.right_file >= t.all * 97 / 100, "nearest key right for %d of %d in files",
	      t.right_file, t.all);
}

int main(void)
{
	test_misspelt();
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}
