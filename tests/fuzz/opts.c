/* Fuzz target of the options engine: any bytes are a configuration or are refused with exit code 2,
 * and what is accepted prints as JSON that reads back to the same print. A first byte '=' makes the
 * rest a word of --set, any other a file's text. The entry is libFuzzer's; with -DFUZZ_MAIN it is a
 * program that runs the files named. tests/unit/opts_mutations.c calls it with mutations of a few
 * texts. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *x, size_t n);

static void need(int ok)
{
	if (!ok)
		abort();
}

static void round_trip(const struct occ_config *c)
{
	struct occ_config d = {0};
	struct occ_err e = {0};
	char *once = occ_opts_json(&occ_config_opts, c);
	occ_opts_defaults(&occ_config_opts, &d);
	need(occ_opts_parse(&occ_config_opts, &d, once, "print", &e) == 0 && e.code == 0);
	char *twice = occ_opts_json(&occ_config_opts, &d);
	need(!strcmp(once, twice));
	occ_free(once);
	occ_free(twice);
	occ_config_release(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *x, size_t n)
{
	struct occ_config c = {0};
	struct occ_err e = {0};
	char *text = occ_alloc(n + 1, 1);
	if (n)
		memcpy(text, x + 1, n - 1);
	occ_opts_defaults(&occ_config_opts, &c);
	int bad = n && x[0] == '=' ? occ_opts_set(&occ_config_opts, &c, text, &e)
				   : occ_opts_parse(&occ_config_opts, &c, text, "fuzz", &e);
	need(bad ? e.code == OCC_E_CONFIG && e.text[0] : e.code == OCC_OK);
	if (!bad) {
		round_trip(&c);
		for (int ranks = 1; ranks <= 8; ranks *= 8) {
			struct occ_err why = {0};
			need(occ_config_check(&c, ranks, &why) == (why.code ? -1 : 0));
		}
	}
	occ_config_release(&c);
	occ_free(text);
	return 0;
}

#ifdef FUZZ_MAIN
static void run_file(const char *path)
{
	FILE *f = fopen(path, "rb");
	uint8_t *x = malloc(1 << 20);
	if (!f || !x)
		exit(1);
	size_t n = fread(x, 1, 1 << 20, f);
	fclose(f);
	LLVMFuzzerTestOneInput(x, n);
	free(x);
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		run_file(argv[i]);
	return 0;
}
#endif
