/* A configuration file into the table's fields: each member of the JSON text must be a row or a
 * section, once. cJSON's tree gives the values; the text is walked along with it, for the lines. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "base/opts_internal.h"

enum { MAX_FILE = 1 << 20 };

static int line_of(const char *text, size_t at)
{
	int line = 1;
	for (size_t i = 0; i < at && text[i]; i++)
		line += text[i] == '\n';
	return line;
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
	return read_object(s, m, occ_opts_json_value(name), path, e);
}

static int read_object(const struct source *s, const cJSON *object, const char *at,
		       const char *prefix, struct occ_err *e)
{
	int i = 0;
	const cJSON *m;
	cJSON_ArrayForEach(m, object)
	{
		char path[256];
		const char *name = occ_opts_json_member(at, i++);
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

static int refuse_syntax(const char *text, const char *file, const struct occ_json_fault *f,
			 struct occ_err *e)
{
	size_t from = f->at;
	while (from > 0 && text[from - 1] != '\n')
		from--;
	return occ_fail(e, OCC_E_CONFIG, "%s:%d: not valid JSON at column %zu%s%s%s", file,
			line_of(text, f->at), f->at - from + 1, *f->why ? " (" : "", f->why,
			*f->why ? ")" : "");
}

/* JSON that is no object; the first section shows what one looks like. */
static int refuse_other(const struct source *s, struct occ_err *e)
{
	int i = 0, line = line_of(s->text, strspn(s->text, " \t\r\n"));
	while (i < s->opts->n - 1 && !strchr(s->opts->rows[i].key, '.'))
		i++;
	const char *key = s->opts->rows[i].key;
	return occ_fail(e, OCC_E_CONFIG, "%s:%d: an object is needed: {\"%.*s\": {...}, ...}",
			s->file, line, (int)strcspn(key, "."), key);
}

int occ_opts_parse(const struct occ_opts *o, void *conf, const char *text, const char *file,
		   struct occ_err *e)
{
	struct source s = {o, conf, text, file};
	struct occ_json_fault fault;
	cJSON *tree = occ_opts_json_parse(text, &fault);
	if (!tree)
		return refuse_syntax(text, file, &fault, e);
	int bad = cJSON_IsObject(tree) ? read_object(&s, tree, text, "", e) : refuse_other(&s, e);
	cJSON_Delete(tree);
	return bad;
}

/* All of a file that may be a configuration, to be freed; NULL if it cannot be one. */
static char *read_text(const char *path, struct occ_err *e)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hold us up */
	FILE *f = fd < 0 ? NULL : fdopen(fd, "rb");
	if (!f || fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		const char *why = !f ? strerror(errno)
				  : S_ISDIR(st.st_mode)
					  ? strerror(EISDIR)
					  : "not a regular file; it is read by every rank";
		occ_fail(e, OCC_E_CONFIG, "%s: cannot be read: %s", path, why);
		if (f)
			fclose(f);
		return NULL;
	}
	char *text = occ_alloc(MAX_FILE + 2, 1);
	size_t n = fread(text, 1, MAX_FILE + 1, f);
	int why = ferror(f) ? errno : 0, bad = 0;
	fclose(f);
	if (why)
		bad = occ_fail(e, OCC_E_CONFIG, "%s: cannot be read: %s", path, strerror(why));
	else if (n > MAX_FILE)
		bad = occ_fail(e, OCC_E_CONFIG, "%s: larger than 1 MiB: not a configuration", path);
	else if (strlen(text) != n)
		bad = occ_fail(e, OCC_E_CONFIG, "%s:%d: a NUL byte: not JSON", path,
			       line_of(text, n));
	if (!bad)
		return text;
	occ_free(text);
	return NULL;
}

int occ_opts_load(const struct occ_opts *o, void *conf, const char *path, struct occ_err *e)
{
	char *text = read_text(path, e);
	int bad = text ? occ_opts_parse(o, conf, text, path, e) : -1;
	occ_free(text);
	return bad;
}
