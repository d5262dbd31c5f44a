/* export and inspect: files in, files or lines out; no ranks. */
#include <stdio.h>

#include "base/mem.h"
#include "trainer/run.h"
#include "trainer/safetensors.h"
#include "trainer/weights_io.h"

static int export_weights(const char *checkpoint, const char *out, struct occ_err *e)
{
	char path[4096];
	struct occ_gpt_shape shape;
	struct occ_weights w;
	int64_t step;
	if (occ_ckpt_find(NULL, "", checkpoint, path, e) || occ_ckpt_shape(path, &shape, &step, e))
		return -1;
	shape.vocab_padded = shape.vocab; /* one rank, no padding */
	struct occ_layout one = {1, 1, 1};
	occ_weights_init(&w, &shape, &one, (struct occ_place){0, 0, 0});
	struct occ_ckpt_state s = {.weights = &w, .shape = &shape};
	s.master = occ_alloc((size_t)w.size, sizeof(float));
	int bad = occ_ckpt_load(path, &s, e) || occ_weights_export(out, &w, s.master, e);
	if (!bad)
		printf("%s: %lld parameters of step %lld from %s\n", out,
		       (long long)occ_gpt_parameters(&shape), (long long)step, path);
	occ_free(s.master);
	occ_weights_release(&w);
	return bad ? -1 : 0;
}

int occ_export_main(const struct occ_args *a)
{
	struct occ_err e = {0};
	if (export_weights(a->checkpoint, a->out, &e))
		occ_err_print(&e);
	return e.code;
}

typedef int (*inspector)(const char *path,
			 struct occ_err *e); /* 1 printed, 0 not its kind, -1 refused */
static const inspector inspectors[] = {occ_ckpt_inspect, occ_data_inspect, occ_st_inspect};

int occ_inspect_main(const struct occ_args *a)
{
	struct occ_err e = {0};
	int known = 0;
	for (size_t i = 0; !known && i < sizeof(inspectors) / sizeof(inspectors[0]); i++)
		known = inspectors[i](a->files[0], &e);
	if (!known)
		occ_fail(&e, OCC_E_DATA,
			 "%s: not a token file, indexed data set, checkpoint or safetensors file",
			 a->files[0]);
	if (e.code)
		occ_err_print(&e);
	return e.code;
}
