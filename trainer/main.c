/* occ-train: the modes, each a row. */
#include <stdio.h>

#include "base/mem.h"
#include "trainer/args.h"
#include "trainer/launch.h"
#include "trainer/run.h"
#include "trainer/stop.h"
#include "trainer/version.h"

/* A mode runs on ranks (body) or in this process alone (alone). */
struct row {
	int (*body)(struct occ_comm *world, void *args);
	int (*alone)(const struct occ_args *a);
};

static int tokenize_main(const struct occ_args *a)
{
	struct occ_err e = {0};
	if (occ_tokenize_files(a->vocab, a->out, a->files, a->nfiles, &e))
		occ_err_print(&e);
	return e.code;
}

static const struct row rows[OCC_NMODES] = {
	[OCC_TRAIN] = {occ_train_main, NULL},       [OCC_PLAN] = {NULL, occ_plan_main},
	[OCC_TOKENIZE] = {NULL, tokenize_main},     [OCC_EVAL] = {occ_eval_main, NULL},
	[OCC_GENERATE] = {occ_generate_main, NULL}, [OCC_EXPORT] = {NULL, occ_export_main},
	[OCC_INSPECT] = {NULL, occ_inspect_main},
};

static int print_help(void)
{
	occ_args_help(stdout);
	fputs("\nconfiguration keys (--config file.json, --set key=value)\n", stdout);
	occ_opts_help(&occ_config_opts, stdout);
	return 0;
}

static int print_config(const struct occ_args *a)
{
	struct occ_config c;
	struct occ_err e = {0};
	if (occ_config_load(&c, a->config, a->sets, a->nsets, &e)) {
		occ_err_print(&e);
	} else {
		char *text = occ_opts_json(&occ_config_opts, &c);
		fputs(text, stdout);
		occ_free(text);
	}
	occ_config_release(&c);
	return e.code;
}

static int run(const struct occ_args *a, char **argv)
{
	static const struct row measures = {occ_plan_measure_main, NULL};
	const struct row *r = a->measure ? &measures : &rows[a->mode];
	int ranks = r->body && !a->help && !a->version && !a->print_config;
	if (ranks)
		return occ_launch(a, r->body, argv);
	if (!occ_launch_speaks()) /* once is enough, also under mpirun */
		return 0;
	if (a->help)
		return print_help();
	if (a->version)
		return printf("occ-train %s\n", OCC_VERSION) < 0;
	return a->print_config ? print_config(a) : r->alone(a);
}

int main(int argc, char **argv)
{
	struct occ_args a;
	struct occ_err e = {0};
	int code;
	occ_process_guard();
	if (occ_args_parse(&a, argc, argv, &e))
		code = occ_launch_refuse(&e);
	else
		code = run(&a, argv);
	occ_args_release(&a);
	if ((fflush(stdout) || ferror(stdout)) && !code) {
		occ_fail(&e, OCC_E_CKPT, "standard output cannot be written");
		occ_err_print(&e);
		code = e.code;
	}
	return code;
}
