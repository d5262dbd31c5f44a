/* The options engine: one table of rows gives JSON parsing, --set, --help, --print-config and
 * docs/config.md. An option that is not in the table does not exist: unknown and duplicate keys,
 * wrong types, values out of range and trailing text are refused (2) with the dotted path, the line
 * where the JSON text has one, and the nearest known key. */
#ifndef OCC_BASE_OPTS_H
#define OCC_BASE_OPTS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

enum occ_opt_type {
	OCC_OPT_INT,     /* int64_t */
	OCC_OPT_FLOAT,   /* double */
	OCC_OPT_BOOL,    /* int */
	OCC_OPT_STRING,  /* char *, owned by the struct */
	OCC_OPT_STRINGS, /* struct occ_strings, owned */
	OCC_OPT_INTS,    /* struct occ_ints, owned */
	OCC_OPT_STAGES   /* double: -1 "all", else a count (>= 1) or a fraction in (0,1) */
};

struct occ_strings {
	int n;
	char **at;
};
struct occ_ints {
	int n;
	int64_t *at;
};

struct occ_opt {
	const char *key; /* dotted: "model.layers" */
	enum occ_opt_type type;
	size_t offset;       /* of the field in the config struct */
	const char *def;     /* default, as JSON text */
	double lo, hi;       /* inclusive range of numbers (and of list elements); lo > hi: any */
	const char *choices; /* "a|b|c" for strings, or NULL */
	const char *help;
};

struct occ_opts {
	const struct occ_opt *rows;
	int n;
	const char *flag; /* that sets one on the command line; NULL: --set */
};

/* All fields from the defaults. `conf` is then released by occ_opts_release. */
void occ_opts_defaults(const struct occ_opts *o, void *conf);
/* Sets fields from JSON text; `file` only names it in messages. Returns 0 or -1; after a refusal
 * each field holds its old or its new value, and the struct is released as ever. */
int occ_opts_parse(const struct occ_opts *o, void *conf, const char *text, const char *file,
		   struct occ_err *e);
int occ_opts_load(const struct occ_opts *o, void *conf, const char *path, struct occ_err *e);
/* "key=value": the value is JSON; a bare word is a string. Later wins. */
int occ_opts_set(const struct occ_opts *o, void *conf, const char *assignment, struct occ_err *e);
void occ_opts_release(const struct occ_opts *o, void *conf);

/* Resolved configuration as JSON, sections as objects; parses back to the same values bit for bit.
 */
char *occ_opts_json(const struct occ_opts *o, const void *conf); /* caller frees with occ_free */
void occ_opts_help(const struct occ_opts *o, FILE *out);         /* for --help */
void occ_opts_markdown(const struct occ_opts *o, FILE *out);     /* for docs/config.md */
/* Known key nearest to `key` by edit distance. */
const char *occ_opts_nearest(const struct occ_opts *o, const char *key);

#endif
