/* The command line: modes and their flags, each a row of a table (args.c). */
#ifndef OCC_TRAINER_ARGS_H
#define OCC_TRAINER_ARGS_H

#include <stdint.h>
#include <stdio.h>

#include "base/err.h"

enum occ_mode {
	OCC_TRAIN,
	OCC_PLAN,
	OCC_TOKENIZE,
	OCC_EVAL,
	OCC_GENERATE,
	OCC_EXPORT,
	OCC_INSPECT,
	OCC_NMODES
};

/* Strings are borrowed from argv. */
struct occ_args {
	enum occ_mode mode;
	int help, version, print_config, json, measure;
	const char *config; /* --config, NULL if not given */
	char **sets;        /* --set key=value, in order; owned array */
	int nsets;
	char **hardware; /* --hardware, in order; owned array */
	int nhardware;
	int64_t ranks; /* --ranks; 0 if not given */
	const char *vocab, *out, *prompt, *checkpoint, *trace;
	int64_t tokens, top_k, seed; /* generate */
	double temperature;
	char **files; /* positional; owned array */
	int nfiles;
};

/* Refusals (2): unknown mode or flag (with the nearest), a flag that the mode does not take, a
 * missing value or required flag, a number that is none. */
int occ_args_parse(struct occ_args *a, int argc, char **argv, struct occ_err *e);
void occ_args_release(struct occ_args *a);
void occ_args_help(FILE *out); /* modes and flags; the config keys come from occ_opts_help */

#endif
