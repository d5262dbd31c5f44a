/* The table out again: resolved JSON, help, the page docs/config.md. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opts_internal.h"

struct text {
	char *at;
	size_t n, cap;
};

static void put(struct text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(struct text *t, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int need = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	while (t->n + (size_t)need + 1 > t->cap) {
		size_t cap = t->cap ? 2 * t->cap : 4096;
		char *more = occ_alloc(cap, 1);
		if (t->n)
			memcpy(more, t->at, t->n);
		occ_free(t->at);
		t->at = more;
		t->cap = cap;
	}
	va_start(ap, fmt);
	vsnprintf(t->at + t->n, t->cap - t->n, fmt, ap);
	va_end(ap);
	t->n += (size_t)need;
}

/* The shortest of 15 to 17 digits that reads back as the same number. */
static void put_double(struct text *t, double v)
{
	char s[40];
	for (int digits = 15; digits <= 17; digits++) {
		snprintf(s, sizeof(s), "%.*g", digits, v);
		if (strtod(s, NULL) == v)
			break;
	}
	put(t, "%s", s);
}

static void put_string(struct text *t, const char *s)
{
	cJSON *v = cJSON_CreateString(s);
	char *quoted = cJSON_PrintUnformatted(v);
	put(t, "%s", quoted);
	cJSON_free(quoted);
	cJSON_Delete(v);
}

static void put_value(struct text *t, const struct occ_opt *row, const void *conf)
{
	const void *f = (const char *)conf + row->offset;
	const struct occ_strings *s = f;
	const struct occ_ints *n = f;
	switch (row->type) {
	case OCC_OPT_INT:
		put(t, "%lld", (long long)*(const int64_t *)f);
		break;
	case OCC_OPT_FLOAT:
		put_double(t, *(const double *)f);
		break;
	case OCC_OPT_BOOL:
		put(t, "%s", *(const int *)f ? "true" : "false");
		break;
	case OCC_OPT_STRING:
		put_string(t, *(char *const *)f);
		break;
	case OCC_OPT_STRINGS:
		put(t, "[");
		for (int i = 0; i < s->n; i++) {
			put(t, "%s", i ? ", " : "");
			put_string(t, s->at[i]);
		}
		put(t, "]");
		break;
	case OCC_OPT_INTS:
		put(t, "[");
		for (int i = 0; i < n->n; i++)
			put(t, "%s%lld", i ? ", " : "", (long long)n->at[i]);
		put(t, "]");
		break;
	case OCC_OPT_STAGES:
		if (*(const double *)f < 0)
			put(t, "\"all\"");
		else
			put_double(t, *(const double *)f);
		break;
	}
}

static void indent(struct text *t, int depth)
{
	put(t, "%*s", 2 * depth, "");
}

/* Length of the shared beginning of two keys, in whole sections; *depth = their number. */
static size_t shared(const char *a, const char *b, int *depth)
{
	size_t n = 0;
	*depth = 0;
	for (size_t i = 0; a[i] && a[i] == b[i]; i++)
		if (a[i] == '.') {
			n = i + 1;
			++*depth;
		}
	return n;
}

char *occ_opts_json(const struct occ_opts *o, const void *conf)
{
	struct text t = {0};
	const char *before = "";
	int open = 0;
	put(&t, "{");
	for (int i = 0; i < o->n; i++) {
		const char *key = o->rows[i].key, *rest;
		int depth;
		rest = key + shared(before, key, &depth);
		for (; open > depth; open--) {
			put(&t, "\n");
			indent(&t, open);
			put(&t, "}");
		}
		put(&t, "%s\n", i ? "," : "");
		for (const char *dot; (dot = strchr(rest, '.')); rest = dot + 1) {
			indent(&t, ++open);
			put(&t, "\"%.*s\": {\n", (int)(dot - rest), rest);
		}
		indent(&t, open + 1);
		put(&t, "\"%s\": ", rest);
		put_value(&t, &o->rows[i], conf);
		before = key;
	}
	for (; open >= 0; open--) {
		put(&t, "\n");
		indent(&t, open);
		put(&t, "}");
	}
	put(&t, "\n");
	return t.at;
}

static void range(const struct occ_opt *row, char *out, size_t n)
{
	if (row->choices)
		snprintf(out, n, "%s", row->choices);
	else if (row->lo > row->hi)
		snprintf(out, n, "%s", "");
	else if (row->hi >= 1e15)
		snprintf(out, n, ">= %.15g", row->lo);
	else
		snprintf(out, n, "%.15g to %.15g", row->lo, row->hi);
}

void occ_opts_help(const struct occ_opts *o, FILE *out)
{
	for (int i = 0; i < o->n; i++) {
		char r[160];
		range(&o->rows[i], r, sizeof(r));
		fprintf(out, "  %-40s %s\n      %s%s%s%s\n", o->rows[i].key, o->rows[i].def,
			o->rows[i].help, *r ? " [" : "", r, *r ? "]" : "");
	}
}

/* A bar ends a cell, so it is escaped. */
static void put_cell(FILE *out, const char *s)
{
	for (; *s; s++) {
		if (*s == '|')
			fputc('\\', out);
		fputc(*s, out);
	}
}

void occ_opts_markdown(const struct occ_opts *o, FILE *out)
{
	fputs("# Configuration\n\nGenerated from the options table (`make docs`); do not edit.\n"
	      "JSON, sections as objects; `--set section.key=value` overrides the file, later "
	      "wins.\n"
	      "Unknown or duplicate keys, wrong types and values out of range are refused with "
	      "exit code 2.\n\n"
	      "| key | default | values | meaning |\n|---|---|---|---|\n",
	      out);
	for (int i = 0; i < o->n; i++) {
		char r[160];
		range(&o->rows[i], r, sizeof(r));
		fprintf(out, "| `%s` | `%s` | ", o->rows[i].key, o->rows[i].def);
		put_cell(out, r);
		fputs(" | ", out);
		put_cell(out, o->rows[i].help);
		fputs(" |\n", out);
	}
}
