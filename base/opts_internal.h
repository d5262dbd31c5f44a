/* Inside of the options engine: rows and fields (opts.c), nearest keys (opts_nearest.c), JSON. */
#ifndef OCC_BASE_OPTS_INTERNAL_H
#define OCC_BASE_OPTS_INTERNAL_H

#include <cjson/cJSON.h>

#include "base/opts.h"

/* Checks type, range and choices of `v`, then replaces the field. `where` starts the message
 * ("gpt2.json:12: " or "--set: "). */
int occ_opts_store(const struct occ_opt *row, void *conf, const cJSON *v, const char *where,
		   struct occ_err *e);
void occ_opts_clear(const struct occ_opt *row, void *conf); /* frees what the field owns */
const struct occ_opt *occ_opts_find(const struct occ_opts *o, const char *key);
int occ_opts_is_section(const struct occ_opts *o,
			const char *path); /* some key starts with "path." */
/* The known key nearest to `path`, or a section with as many parts where one is nearer. */
void occ_opts_nearest_section(const struct occ_opts *o, const char *path, char *out, size_t size);
int occ_opts_is_utf8(const char *text); /* any control character but NUL may stand in it */

/* Strict JSON (opts_json.c). */
struct occ_json_fault {
	size_t at;       /* offset in the text */
	const char *why; /* static; "" if nothing more can be said */
};

/* Parses `text` whole (RFC 8259, UTF-8). NULL on a fault. */
cJSON *occ_opts_json_parse(const char *text, struct occ_json_fault *fault);
/* In a text that is valid: where member i (from 0) of the object that begins here stands, and where
 * the value of the member that begins here does. */
const char *occ_opts_json_member(const char *object, int i);
const char *occ_opts_json_value(const char *member);

#endif
