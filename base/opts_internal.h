/* Inside of the options engine: storing one JSON value into one field. */
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
/* Parses `text` whole and strictly (RFC 8259, UTF-8). *at = offset of the fault. NULL on a fault.
 */
cJSON *occ_opts_json_parse(const char *text, size_t *at);

#endif
