/* The files of log.dir: the directory, config.json, and metrics.jsonl as a resumed run continues
 * it. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/files.h"
#include "trainer/metrics.h"
#include "trainer/tensorboard.h"

static int write_config(struct occ_run *r, struct occ_err *e)
{
	char path[4200];
	snprintf(path, sizeof(path), "%s/config.json", r->conf.log.dir);
	struct occ_file f;
	char *text = occ_opts_json(&occ_config_opts, &r->conf);
	int bad = occ_file_create(&f, path, (struct occ_io){.code = OCC_E_CKPT}, e) ||
		  occ_file_write(&f, text, strlen(text), e) || occ_file_commit(&f, e);
	occ_free(text);
	return bad ? -1 : 0;
}

/* Copies the lines of a resumed run that are not past its step. */
static int keep_lines(const char *path, const char *aside, int64_t step, struct occ_err *e)
{
	FILE *in = fopen(path, "r"), *out = in ? fopen(aside, "w") : NULL;
	char *line = NULL;
	size_t cap = 0;
	int bad = 0;
	while (in && out && getline(&line, &cap, in) > 0) {
		cJSON *o = cJSON_Parse(line);
		const cJSON *at = cJSON_GetObjectItemCaseSensitive(o, "iter");
		if (o && !(cJSON_IsNumber(at) && at->valuedouble > (double)step))
			bad |= fputs(line, out) < 0;
		cJSON_Delete(o);
	}
	free(line);
	if (in)
		fclose(in);
	if (out)
		bad |= fclose(out) != 0 || rename(aside, path) != 0;
	bad |= in && !out;
	return bad ? occ_fail(e, OCC_E_CKPT, "%s: cannot be rewritten: %s", path, strerror(errno))
		   : 0;
}

int occ_metrics_files(struct occ_metrics *m, struct occ_err *e)
{
	struct occ_run *r = m->run;
	struct occ_io io = {.code = OCC_E_CKPT};
	char path[4200], aside[4216];
	if (r->world->rank != 0 || !r->conf.log.dir[0])
		return 0;
	if (occ_dir_make(r->conf.log.dir, io, e) || write_config(r, e))
		return -1;
	snprintf(path, sizeof(path), "%s/metrics.jsonl", r->conf.log.dir);
	snprintf(aside, sizeof(aside), "%s.tmp", path);
	if (r->resumed[0] && keep_lines(path, aside, r->step, e))
		return -1;
	if (r->conf.log.tensorboard && !(m->board = occ_tensorboard_open(r->conf.log.dir, e)))
		return -1;
	m->jsonl = fopen(path, r->resumed[0] ? "a" : "w");
	return m->jsonl ? 0
			: occ_fail(e, OCC_E_CKPT, "%s: cannot be written: %s", path,
				   strerror(errno));
}
