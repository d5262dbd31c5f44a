/* Reading JSON strictly: the grammar is checked here byte by byte, then cJSON builds the tree, then
 * each member must be a row of the table. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/opts_internal.h"

enum { MAX_DEPTH = 32, MAX_FILE = 1 << 20 };

/* A cursor over the text; each check moves it or leaves it at the fault. */
struct cursor {
	const unsigned char *p;
	int depth;
};

static int value(struct cursor *c);

static void space(struct cursor *c)
{
	while (*c->p == ' ' || *c->p == '\t' || *c->p == '\n' || *c->p == '\r')
		c->p++;
}

/* Length of the well-formed UTF-8 sequence at p, 0 if there is none. */
static int utf8(const unsigned char *p)
{
	static const struct {
		unsigned char lo, hi, first_lo, first_hi;
		int n;
	} forms[] = {
		{0x20, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2},
		{0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
		{0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
		{0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4},
		{0xf4, 0xf4, 0x80, 0x8f, 4},
	};
	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		if (p[0] < forms[i].lo || p[0] > forms[i].hi)
			continue;
		if (forms[i].n > 1 && (p[1] < forms[i].first_lo || p[1] > forms[i].first_hi))
			return 0;
		for (int k = 2; k < forms[i].n; k++)
			if (p[k] < 0x80 || p[k] > 0xbf)
				return 0;
		return forms[i].n;
	}
	return 0;
}

int occ_opts_is_utf8(const char *text)
{
	const unsigned char *p = (const unsigned char *)text;
	for (int n; *p; p += n) {
		n = *p < 0x20 ? 1 : utf8(p);
		if (!n)
			return 0;
	}
	return 1;
}

static int hex4(const unsigned char *p)
{
	int v = 0;
	for (int i = 0; i < 4; i++) {
		int h = p[i] >= '0' && p[i] <= '9'   ? p[i] - '0'
			: p[i] >= 'a' && p[i] <= 'f' ? p[i] - 'a' + 10
			: p[i] >= 'A' && p[i] <= 'F' ? p[i] - 'A' + 10
						     : -1;
		if (h < 0)
			return -1;
		v = v * 16 + h;
	}
	return v;
}

/* An escape after the backslash. \u0000 and lone surrogates are refused: no C string holds them. */
static int escape(struct cursor *c)
{
	if (*c->p && strchr("\"\\/bfnrt", *c->p)) {
		c->p++;
		return 1;
	}
	int v = *c->p == 'u' ? hex4(c->p + 1) : -1;
	if (v <= 0 || (v >= 0xdc00 && v <= 0xdfff))
		return 0;
	c->p += 5;
	if (v < 0xd800 || v > 0xdbff)
		return 1;
	int low = c->p[0] == '\\' && c->p[1] == 'u' ? hex4(c->p + 2) : -1;
	if (low < 0xdc00 || low > 0xdfff)
		return 0;
	c->p += 6;
	return 1;
}

static int string(struct cursor *c)
{
	if (*c->p != '"')
		return 0;
	c->p++;
	while (*c->p != '"') {
		int n = *c->p == '\\' ? 0 : utf8(c->p);
		if (*c->p == '\\') {
			c->p++;
			if (!escape(c))
				return 0;
		} else if (n) {
			c->p += n;
		} else {
			return 0; /* control character, end of text, or not UTF-8 */
		}
	}
	c->p++;
	return 1;
}

static int digits(struct cursor *c)
{
	const unsigned char *from = c->p;
	while (*c->p >= '0' && *c->p <= '9')
		c->p++;
	return c->p > from;
}

static int number(struct cursor *c)
{
	const unsigned char *from = c->p;
	if (*c->p == '-')
		c->p++;
	if (*c->p == '0' && c->p[1] >= '0' && c->p[1] <= '9')
		return 0;
	if (!digits(c))
		return 0;
	if (*c->p == '.' && (c->p++, !digits(c)))
		return 0;
	if (*c->p == 'e' || *c->p == 'E') {
		c->p++;
		if (*c->p == '+' || *c->p == '-')
			c->p++;
		if (!digits(c))
			return 0;
	}
	if (c->p - from > 60 || !isfinite(strtod((const char *)from, NULL))) {
		c->p = from;
		return 0;
	}
	return 1;
}

static int word(struct cursor *c, const char *w)
{
	size_t n = strlen(w);
	if (strncmp((const char *)c->p, w, n))
		return 0;
	c->p += n;
	return 1;
}

/* The members of an object or the items of a list, after the opening bracket. */
static int members(struct cursor *c, int named, unsigned char close)
{
	space(c);
	if (*c->p == close)
		return c->p++, 1;
	for (;;) {
		space(c);
		if (named && !string(c))
			return 0;
		space(c);
		if (named && *c->p != ':')
			return 0;
		c->p += named;
		if (!value(c))
			return 0;
		space(c);
		if (*c->p == close)
			return c->p++, 1;
		if (*c->p != ',')
			return 0;
		c->p++;
	}
}

static int value(struct cursor *c)
{
	space(c);
	if (*c->p == '{' || *c->p == '[') {
		int named = *c->p == '{';
		if (++c->depth > MAX_DEPTH)
			return 0;
		c->p++;
		int ok = members(c, named, named ? '}' : ']');
		c->depth--;
		return ok;
	}
	if (*c->p == '"')
		return string(c);
	return word(c, "true") || word(c, "false") || word(c, "null") || number(c);
}

cJSON *occ_opts_json_parse(const char *text, size_t *at)
{
	struct cursor c = {(const unsigned char *)text, 0};
	int ok = value(&c);
	if (ok)
		space(&c);
	*at = (size_t)((const char *)c.p - text);
	return ok && !*c.p ? cJSON_Parse(text) : NULL;
}

static int line_of(const char *text, size_t at)
{
	int line = 1;
	for (size_t i = 0; i < at && text[i]; i++)
		line += text[i] == '\n';
	return line;
}

/* Skips a valid value; gives the end. */
static const char *skip_value(const char *p)
{
	struct cursor c = {(const unsigned char *)p, 0};
	value(&c);
	return (const char *)c.p;
}

/* Start of member `want` (counted from 0) of the object at p, to find its line. */
static const char *member_at(const char *p, int want)
{
	struct cursor c = {(const unsigned char *)p, 0};
	space(&c);
	c.p++;
	for (;; want--) {
		space(&c);
		if (want == 0)
			return (const char *)c.p;
		string(&c);
		space(&c);
		c.p = (const unsigned char *)skip_value((const char *)c.p + 1);
		space(&c);
		c.p++; /* the comma */
	}
}

/* The value of a member, given where its name starts. */
static const char *member_value(const char *name)
{
	struct cursor c = {(const unsigned char *)name, 0};
	string(&c);
	space(&c);
	c.p++;
	space(&c);
	return (const char *)c.p;
}

struct source {
	const struct occ_opts *opts;
	void *conf;
	const char *text, *file;
};

static int read_object(const struct source *s, const cJSON *object, const char *at,
		       const char *prefix, struct occ_err *e);

/* A key that is no row and no section. An object was meant as a section. */
static int refuse_key(const struct source *s, const cJSON *m, const char *where, const char *path,
		      struct occ_err *e)
{
	char near[128];
	if (cJSON_IsObject(m))
		occ_opts_nearest_section(s->opts, path, near, sizeof(near));
	else
		snprintf(near, sizeof(near), "%s", occ_opts_nearest(s->opts, path));
	return occ_fail(e, OCC_E_CONFIG, "%sunknown key \"%.200s\"; did you mean \"%s\"?", where,
			path, near);
}

static int read_member(const struct source *s, const cJSON *m, const char *name, const char *path,
		       struct occ_err *e)
{
	char where[320];
	int line = line_of(s->text, (size_t)(name - s->text));
	const struct occ_opt *row = occ_opts_find(s->opts, path);
	snprintf(where, sizeof(where), "%.280s:%d: ", s->file, line);
	if (strchr(m->string, '.') && (row || occ_opts_is_section(s->opts, path)))
		return occ_fail(e, OCC_E_CONFIG,
				"%s\"%s\": a section is an object of its own: {\"model\": "
				"{\"layers\": 12}}",
				where, path);
	if (row)
		return occ_opts_store(row, s->conf, m, where, e);
	if (!occ_opts_is_section(s->opts, path))
		return refuse_key(s, m, where, path, e);
	if (!cJSON_IsObject(m))
		return occ_fail(e, OCC_E_CONFIG, "%s%s: this is a section; an object is needed",
				where, path);
	return read_object(s, m, member_value(name), path, e);
}

static int read_object(const struct source *s, const cJSON *object, const char *at,
		       const char *prefix, struct occ_err *e)
{
	int i = 0;
	const cJSON *m;
	cJSON_ArrayForEach(m, object)
	{
		char path[256];
		const char *name = member_at(at, i++);
		snprintf(path, sizeof(path), "%s%s%.200s", prefix, *prefix ? "." : "", m->string);
		for (const cJSON *k = object->child; k != m; k = k->next)
			if (!strcmp(k->string, m->string))
				return occ_fail(e, OCC_E_CONFIG, "%.280s:%d: duplicate key \"%s\"",
						s->file, line_of(s->text, (size_t)(name - s->text)),
						path);
		if (read_member(s, m, name, path, e))
			return -1;
	}
	return 0;
}

int occ_opts_parse(const struct occ_opts *o, void *conf, const char *text, const char *file,
		   struct occ_err *e)
{
	struct source s = {o, conf, text, file};
	size_t at;
	cJSON *tree = occ_opts_json_parse(text, &at);
	if (!tree) {
		size_t from = at;
		while (from > 0 && text[from - 1] != '\n')
			from--;
		return occ_fail(e, OCC_E_CONFIG, "%s:%d: not valid JSON at column %zu%s", file,
				line_of(text, at), at - from + 1,
				text[at] ? "" : " (the text ends here)");
	}
	int bad = cJSON_IsObject(tree)
			  ? read_object(&s, tree, text, "", e)
			  : occ_fail(e, OCC_E_CONFIG,
				     "%s:1: an object is needed: {\"model\": {...}, ...}", file);
	cJSON_Delete(tree);
	return bad;
}

int occ_opts_load(const struct occ_opts *o, void *conf, const char *path, struct occ_err *e)
{
	struct stat st;
	FILE *f = fopen(path, "rb");
	if (!f || fstat(fileno(f), &st) || S_ISDIR(st.st_mode)) {
		occ_fail(e, OCC_E_CONFIG, "%s: cannot be read: %s", path,
			 f ? "Is a directory" : strerror(errno));
		if (f)
			fclose(f);
		return -1;
	}
	char *text = occ_alloc(MAX_FILE + 2, 1);
	size_t n = fread(text, 1, MAX_FILE + 1, f);
	int bad = ferror(f);
	fclose(f);
	if (bad)
		occ_fail(e, OCC_E_CONFIG, "%s: cannot be read: %s", path, strerror(errno));
	else if (n > MAX_FILE)
		bad = occ_fail(e, OCC_E_CONFIG, "%s: larger than 1 MiB: not a configuration", path);
	else if (strlen(text) != n)
		bad = occ_fail(e, OCC_E_CONFIG, "%s:%d: a NUL byte: not JSON", path,
			       line_of(text, n));
	else
		bad = occ_opts_parse(o, conf, text, path, e);
	occ_free(text);
	return bad ? -1 : 0;
}
