/* Rows, fields and values: what may be stored where. Text becomes JSON in opts_json.c, JSON becomes
 * rows in opts_read.c, rows become text in opts_print.c. */
#include "base/opts.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/opts_internal.h"

static void *field(const struct occ_opt *row, void *conf)
{
	return (char *)conf + row->offset;
}

const struct occ_opt *occ_opts_find(const struct occ_opts *o, const char *key)
{
	for (int i = 0; i < o->n; i++)
		if (!strcmp(o->rows[i].key, key))
			return &o->rows[i];
	return NULL;
}

int occ_opts_is_section(const struct occ_opts *o, const char *path)
{
	size_t n = strlen(path);
	for (int i = 0; i < o->n; i++)
		if (!strncmp(o->rows[i].key, path, n) && o->rows[i].key[n] == '.')
			return 1;
	return 0;
}

void occ_opts_clear(const struct occ_opt *row, void *conf)
{
	void *f = field(row, conf);
	if (row->type == OCC_OPT_STRING) {
		occ_free(*(char **)f);
		*(char **)f = NULL;
	} else if (row->type == OCC_OPT_STRINGS) {
		struct occ_strings *s = f;
		for (int i = 0; i < s->n; i++)
			occ_free(s->at[i]);
		occ_free(s->at);
		*s = (struct occ_strings){0, NULL};
	} else if (row->type == OCC_OPT_INTS) {
		occ_free(((struct occ_ints *)f)->at);
		*(struct occ_ints *)f = (struct occ_ints){0, NULL};
	}
}

static const char *const type_name[] = {
	[OCC_OPT_INT] = "a whole number",
	[OCC_OPT_FLOAT] = "a number",
	[OCC_OPT_BOOL] = "true or false",
	[OCC_OPT_STRING] = "a string",
	[OCC_OPT_STRINGS] = "a list of strings",
	[OCC_OPT_INTS] = "a list of whole numbers",
	[OCC_OPT_STAGES] = "\"all\", a whole number of stages, or a fraction between 0 and 1",
};

static const char *json_name(const cJSON *v)
{
	return cJSON_IsNull(v)     ? "null"
	       : cJSON_IsBool(v)   ? "true or false"
	       : cJSON_IsNumber(v) ? "a number"
	       : cJSON_IsString(v) ? "a string"
	       : cJSON_IsArray(v)  ? "a list"
				   : "an object";
}

static int wrong_type(const struct occ_opt *row, const cJSON *v, const char *where,
		      struct occ_err *e)
{
	if (cJSON_IsNumber(v))
		return occ_fail(e, OCC_E_CONFIG, "%s%s: %s is needed, not %.15g", where, row->key,
				type_name[row->type], v->valuedouble);
	return occ_fail(e, OCC_E_CONFIG, "%s%s: %s is needed, not %s", where, row->key,
			type_name[row->type], json_name(v));
}

static int is_whole(const cJSON *v)
{
	return cJSON_IsNumber(v) && floor(v->valuedouble) == v->valuedouble;
}

/* Whole numbers end where a double no longer holds each of them. */
static int check_range(const struct occ_opt *row, double x, const char *where, struct occ_err *e)
{
	int whole = row->type == OCC_OPT_INT || row->type == OCC_OPT_INTS, any = row->lo > row->hi;
	double exact = whole ? 9007199254740991.0 : HUGE_VAL;
	double lo = any ? -exact : row->lo, hi = any || row->hi > exact ? exact : row->hi;
	if (x >= lo && x <= hi)
		return 0;
	if (x < lo && hi >= 1e15)
		return occ_fail(e, OCC_E_CONFIG, "%s%s: %.15g is out of range: at least %.15g",
				where, row->key, x, lo);
	return occ_fail(e, OCC_E_CONFIG, "%s%s: %.15g is out of range: %.15g to %.15g", where,
			row->key, x, lo, hi);
}

static int check_choice(const struct occ_opt *row, const char *s, const char *where,
			struct occ_err *e)
{
	size_t n = strlen(s);
	const char *p = row->choices;
	while (p) {
		const char *end = strchr(p, '|');
		size_t len = end ? (size_t)(end - p) : strlen(p);
		if (len == n && !memcmp(p, s, n))
			return 0;
		p = end ? end + 1 : NULL;
	}
	return row->choices ? occ_fail(e, OCC_E_CONFIG, "%s%s: \"%s\" is not one of %s", where,
				       row->key, s, row->choices)
			    : 0;
}

static int store_strings(const struct occ_opt *row, void *conf, const cJSON *v, const char *where,
			 struct occ_err *e)
{
	const cJSON *item;
	int n = 0;
	if (!cJSON_IsArray(v))
		return wrong_type(row, v, where, e);
	cJSON_ArrayForEach(item, v) if (!cJSON_IsString(item)) return wrong_type(row, item, where,
										 e);
	struct occ_strings s = {cJSON_GetArraySize(v),
				occ_alloc((size_t)cJSON_GetArraySize(v), sizeof(char *))};
	cJSON_ArrayForEach(item, v) s.at[n++] = occ_strdup(item->valuestring);
	occ_opts_clear(row, conf);
	*(struct occ_strings *)field(row, conf) = s;
	return 0;
}

static int store_ints(const struct occ_opt *row, void *conf, const cJSON *v, const char *where,
		      struct occ_err *e)
{
	const cJSON *item;
	int n = 0;
	if (!cJSON_IsArray(v))
		return wrong_type(row, v, where, e);
	cJSON_ArrayForEach(item, v)
	{
		if (!is_whole(item))
			return wrong_type(row, item, where, e);
		if (check_range(row, item->valuedouble, where, e))
			return -1;
	}
	struct occ_ints s = {cJSON_GetArraySize(v),
			     occ_alloc((size_t)cJSON_GetArraySize(v), sizeof(int64_t))};
	cJSON_ArrayForEach(item, v) s.at[n++] = (int64_t)item->valuedouble;
	occ_opts_clear(row, conf);
	*(struct occ_ints *)field(row, conf) = s;
	return 0;
}

static int store_stages(const struct occ_opt *row, void *conf, const cJSON *v, const char *where,
			struct occ_err *e)
{
	double *f = field(row, conf), x = cJSON_IsNumber(v) ? v->valuedouble : 0;
	if (cJSON_IsString(v) && !strcmp(v->valuestring, "all")) {
		*f = -1;
		return 0;
	}
	if (!cJSON_IsNumber(v) || !(x > 0) || (x >= 1 && (!is_whole(v) || x > 1e9)))
		return wrong_type(row, v, where, e);
	*f = x;
	return 0;
}

static int store_number(const struct occ_opt *row, void *conf, const cJSON *v, const char *where,
			struct occ_err *e)
{
	int whole = row->type == OCC_OPT_INT;
	if (whole ? !is_whole(v) : !cJSON_IsNumber(v))
		return wrong_type(row, v, where, e);
	if (check_range(row, v->valuedouble, where, e))
		return -1;
	if (whole)
		*(int64_t *)field(row, conf) = (int64_t)v->valuedouble;
	else
		*(double *)field(row, conf) = v->valuedouble;
	return 0;
}

int occ_opts_store(const struct occ_opt *row, void *conf, const cJSON *v, const char *where,
		   struct occ_err *e)
{
	switch (row->type) {
	case OCC_OPT_INT:
	case OCC_OPT_FLOAT:
		return store_number(row, conf, v, where, e);
	case OCC_OPT_BOOL:
		if (!cJSON_IsBool(v))
			return wrong_type(row, v, where, e);
		*(int *)field(row, conf) = cJSON_IsTrue(v);
		return 0;
	case OCC_OPT_STRING:
		if (!cJSON_IsString(v))
			return wrong_type(row, v, where, e);
		if (check_choice(row, v->valuestring, where, e))
			return -1;
		occ_opts_clear(row, conf);
		*(char **)field(row, conf) = occ_strdup(v->valuestring);
		return 0;
	case OCC_OPT_STRINGS:
		return store_strings(row, conf, v, where, e);
	case OCC_OPT_INTS:
		return store_ints(row, conf, v, where, e);
	case OCC_OPT_STAGES:
		return store_stages(row, conf, v, where, e);
	}
	occ_check(0, "option %s has no type", row->key);
	return -1;
}

void occ_opts_defaults(const struct occ_opts *o, void *conf)
{
	for (int i = 0; i < o->n; i++) {
		struct occ_err e = {0};
		struct occ_json_fault fault;
		cJSON *v = occ_opts_json_parse(o->rows[i].def, &fault);
		occ_check(v && !occ_opts_store(&o->rows[i], conf, v, "default of ", &e), "%s: %s",
			  o->rows[i].key, e.text);
		cJSON_Delete(v);
	}
}

void occ_opts_release(const struct occ_opts *o, void *conf)
{
	for (int i = 0; i < o->n; i++)
		occ_opts_clear(&o->rows[i], conf);
}

int occ_opts_set(const struct occ_opts *o, void *conf, const char *assignment, struct occ_err *e)
{
	char key[128], where[32];
	const char *flag = o->flag ? o->flag : "--set";
	const char *equals = strchr(assignment, '=');
	size_t n = equals ? (size_t)(equals - assignment) : 0;
	if (!equals || n == 0 || n >= sizeof(key))
		return occ_fail(e, OCC_E_CONFIG, "%s %.200s: the form is section.key=value", flag,
				assignment);
	snprintf(key, sizeof(key), "%.*s", (int)n, assignment);
	const struct occ_opt *row = occ_opts_find(o, key);
	if (!row && occ_opts_is_section(o, key))
		return occ_fail(e, OCC_E_CONFIG, "%s %s: this is a section; set one of its keys",
				flag, key);
	if (!row)
		return occ_fail(e, OCC_E_CONFIG, "%s: unknown key \"%s\"; did you mean \"%s\"?",
				flag, key, occ_opts_nearest(o, key));
	if (!occ_opts_is_utf8(equals + 1)) /* it could not be printed as JSON */
		return occ_fail(e, OCC_E_CONFIG, "%s: %s: not UTF-8", flag, key);
	struct occ_json_fault fault;
	cJSON *v = occ_opts_json_parse(equals + 1, &fault);
	int word = (row->type == OCC_OPT_STRING || row->type == OCC_OPT_STAGES) && equals[1] != '"';
	if (word && (!v || (row->type == OCC_OPT_STRING && !cJSON_IsString(v)))) {
		cJSON_Delete(v); /* a bare word; for strings also one that looks like a number */
		v = cJSON_CreateString(equals + 1);
	}
	if (!v && row->type == OCC_OPT_STRINGS)
		return occ_fail(e, OCC_E_CONFIG,
				"%s: %s: a list of strings is needed, as JSON, not %.200s; "
				"one file is %s=[\"a.txt\"]",
				flag, key, equals + 1, key);
	if (!v)
		return occ_fail(e, OCC_E_CONFIG, "%s: %s: %s is needed, as JSON, not %.200s", flag,
				key, type_name[row->type], equals + 1);
	snprintf(where, sizeof(where), "%s: ", flag);
	int bad = occ_opts_store(row, conf, v, where, e);
	cJSON_Delete(v);
	return bad;
}
