/* One table of modes, one of flags: parsing, checking and help are loops over them. */
#include "trainer/args.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

#define IN(m) (1u << (m))
#define RUNS (IN(OCC_TRAIN) | IN(OCC_PLAN) | IN(OCC_EVAL) | IN(OCC_GENERATE))

struct mode {
	const char *name, *usage, *help;
	unsigned needs_files; /* least number of positional arguments */
	unsigned max_files;
};

static const struct mode modes[OCC_NMODES] = {
	[OCC_TRAIN] = {"", "--config F [--set key=value]...", "train", 0, 0},
	[OCC_PLAN] = {"plan", "--config F [--ranks N] [--hardware H]... [--json]",
		      "layout, memory, bytes and predicted step time; no MPI, no GPU needed", 0, 0},
	[OCC_TOKENIZE] = {"tokenize", "--vocab V --out F.bin TEXT...",
			  "text to a token file; V = bytes or a vocab.bpe", 1, 1u << 20},
	[OCC_EVAL] = {"eval", "--config F", "validation loss and perplexity", 0, 0},
	[OCC_GENERATE] = {"generate", "--config F --prompt S", "continue a text", 0, 0},
	[OCC_EXPORT] = {"export", "--checkpoint D --out F.safetensors",
			"weights with Hugging Face GPT-2 names", 0, 0},
	[OCC_INSPECT] = {"inspect", "FILE",
			 "what a token file, data set, checkpoint or safetensors file holds", 1, 1},
};

enum kind { FLAG, TEXT, COUNT, NUMBER, SET, HARDWARE };

struct flag {
	const char *name;
	enum kind kind;
	size_t offset;
	unsigned modes, required; /* sets of modes that take it, that need it */
	const char *help;
};

#define AT(field) offsetof(struct occ_args, field)
static const struct flag flags[] = {
	{"--config", TEXT, AT(config), RUNS, RUNS, "JSON configuration"},
	{"--set", SET, 0, RUNS, 0,
	 "key=value; the value is JSON, a bare word a string; later wins"},
	{"--ranks", COUNT, AT(ranks), RUNS, 0,
	 "ranks as threads of this process (parallel.transport thread); plan: ranks to plan for"},
	{"--print-config", FLAG, AT(print_config), RUNS, 0,
	 "print the resolved configuration and exit"},
	{"--hardware", HARDWARE, 0, IN(OCC_PLAN), 0,
	 "a profile (configs/hardware/*.json) or key=value of one; later wins"},
	{"--measure", FLAG, AT(measure), IN(OCC_PLAN), 0,
	 "time this device's layers and codecs by a few micro-batches of each stage; under "
	 "mpirun the network too"},
	{"--trace", TEXT, AT(trace), IN(OCC_PLAN), 0,
	 "write the predicted step to this file, as log.trace_iters does a real one"},
	{"--json", FLAG, AT(json), IN(OCC_PLAN), 0, "one JSON object"},
	{"--vocab", TEXT, AT(vocab), IN(OCC_TOKENIZE), IN(OCC_TOKENIZE), "bytes, or a vocab.bpe"},
	{"--out", TEXT, AT(out), IN(OCC_TOKENIZE) | IN(OCC_EXPORT),
	 IN(OCC_TOKENIZE) | IN(OCC_EXPORT), "file to write"},
	{"--checkpoint", TEXT, AT(checkpoint), IN(OCC_EXPORT), IN(OCC_EXPORT),
	 "checkpoint.dir (its newest complete one) or one checkpoint in it"},
	{"--prompt", TEXT, AT(prompt), IN(OCC_GENERATE), IN(OCC_GENERATE), "text to continue"},
	{"--tokens", COUNT, AT(tokens), IN(OCC_GENERATE), 0, "tokens to generate (100)"},
	{"--temperature", NUMBER, AT(temperature), IN(OCC_GENERATE), 0,
	 "0 = the likeliest token (1)"},
	{"--top-k", COUNT, AT(top_k), IN(OCC_GENERATE), 0,
	 "only the k likeliest tokens; 0 = all (0)"},
	{"--seed", COUNT, AT(seed), IN(OCC_GENERATE), 0, "of the sampling (0)"},
	{"--help", FLAG, AT(help), ~0u, 0, "this text"},
	{"--version", FLAG, AT(version), ~0u, 0, "the version"},
};
enum { NFLAGS = sizeof(flags) / sizeof(flags[0]) };

static const struct flag *find(const char *name)
{
	for (int i = 0; i < NFLAGS; i++)
		if (!strcmp(flags[i].name, name))
			return &flags[i];
	return NULL;
}

static const char *full_name(enum occ_mode m)
{
	return m == OCC_TRAIN ? "training" : modes[m].name;
}

static int store_number(void *field, const struct flag *f, const char *text, struct occ_err *e)
{
	char *end;
	errno = 0;
	if (f->kind == COUNT) {
		long long v = strtoll(text, &end, 10);
		if (errno || end == text || *end || v < 0)
			return occ_fail(e, OCC_E_CONFIG,
					"%s %s: a whole number of 0 or more is needed", f->name,
					text);
		*(int64_t *)field = v;
		return 0;
	}
	double v = strtod(text, &end);
	if (errno || end == text || *end || !isfinite(v) || v < 0)
		return occ_fail(e, OCC_E_CONFIG, "%s %s: a number of 0 or more is needed", f->name,
				text);
	*(double *)field = v;
	return 0;
}

static int store(struct occ_args *a, const struct flag *f, char *text, struct occ_err *e)
{
	void *field = (char *)a + f->offset;
	if (f->kind == SET)
		a->sets[a->nsets++] = text;
	else if (f->kind == HARDWARE)
		a->hardware[a->nhardware++] = text;
	else if (f->kind == TEXT)
		*(const char **)field = text;
	else
		return store_number(field, f, text, e);
	return 0;
}

/* One flag at argv[*i], as "--name value" or "--name=value". */
static int take_flag(struct occ_args *a, int argc, char **argv, int *i, struct occ_err *e)
{
	char name[32], *word = argv[*i], *equals = strchr(word, '=');
	size_t n = equals ? (size_t)(equals - word) : strlen(word);
	snprintf(name, sizeof(name), "%.*s", (int)(n < 31 ? n : 31), word);
	const struct flag *f = find(name);
	if (!f)
		return occ_fail(e, OCC_E_CONFIG, "unknown flag %s; --help lists them", word);
	if (!(f->modes & IN(a->mode)))
		return occ_fail(e, OCC_E_CONFIG, "%s is not a flag of %s", f->name,
				full_name(a->mode));
	if (f->kind == FLAG) {
		if (equals)
			return occ_fail(e, OCC_E_CONFIG, "%s takes no value", f->name);
		*(int *)(void *)((char *)a + f->offset) = 1;
		return 0;
	}
	if (!equals && *i + 1 >= argc)
		return occ_fail(e, OCC_E_CONFIG, "%s needs a value", f->name);
	return store(a, f, equals ? equals + 1 : argv[++*i], e);
}

static int check_needs(const struct occ_args *a, struct occ_err *e)
{
	const struct mode *m = &modes[a->mode];
	if (a->help || a->version)
		return 0;
	for (int i = 0; i < NFLAGS; i++) {
		const struct flag *f = &flags[i];
		/* --print-config alone shows the defaults */
		if (!(f->required & IN(a->mode)) || a->print_config)
			continue;
		if (!*(const char *const *)(const void *)((const char *)a + f->offset))
			return occ_fail(e, OCC_E_CONFIG, "%s needs %s: occ-train %s%s%s",
					full_name(a->mode), f->name, m->name, *m->name ? " " : "",
					m->usage);
	}
	if ((unsigned)a->nfiles < m->needs_files)
		return occ_fail(e, OCC_E_CONFIG, "%s needs a file: occ-train %s %s", m->name,
				m->name, m->usage);
	if ((unsigned)a->nfiles > m->max_files)
		return occ_fail(e, OCC_E_CONFIG,
				"unexpected argument \"%s\" for %s; --help shows the usage",
				a->files[m->max_files], full_name(a->mode));
	return 0;
}

static int take_mode(struct occ_args *a, const char *word, struct occ_err *e)
{
	for (int m = OCC_TRAIN + 1; m < OCC_NMODES; m++)
		if (!strcmp(word, modes[m].name)) {
			a->mode = (enum occ_mode)m;
			return 0;
		}
	return occ_fail(e, OCC_E_CONFIG,
			"unknown mode \"%s\": plan, tokenize, eval, generate, export, inspect, or "
			"flags to train",
			word);
}

int occ_args_parse(struct occ_args *a, int argc, char **argv, struct occ_err *e)
{
	int i = 1, only_files = 0;
	*a = (struct occ_args){.tokens = 100, .temperature = 1.0};
	a->sets = occ_alloc((size_t)argc + 1, sizeof(char *));
	a->hardware = occ_alloc((size_t)argc + 1, sizeof(char *));
	a->files = occ_alloc((size_t)argc + 1, sizeof(char *));
	if (argc > 1 && argv[1][0] != '-' && take_mode(a, argv[i++], e))
		return -1;
	for (; i < argc; i++) {
		if (!only_files && !strcmp(argv[i], "--"))
			only_files = 1;
		else if (only_files || argv[i][0] != '-' || !argv[i][1])
			a->files[a->nfiles++] = argv[i];
		else if (take_flag(a, argc, argv, &i, e))
			return -1;
	}
	return check_needs(a, e);
}

void occ_args_release(struct occ_args *a)
{
	occ_free(a->sets);
	occ_free(a->hardware);
	occ_free(a->files);
	memset(a, 0, sizeof(*a));
}

void occ_args_help(FILE *out)
{
	fputs("occ-train: trains GPT models split over tensor, pipeline and data parallel "
	      "ranks\n\n",
	      out);
	for (int m = 0; m < OCC_NMODES; m++)
		fprintf(out, "  occ-train %s%s%s\n        %s\n", modes[m].name,
			*modes[m].name ? " " : "", modes[m].usage, modes[m].help);
	fputs("\nflags\n", out);
	for (int i = 0; i < NFLAGS; i++)
		fprintf(out, "  %-15s %s\n", flags[i].name, flags[i].help);
	fputs("\nexit codes\n"
	      "  0 finished   2 usage or config   3 data or init.load   4 checkpoint or metrics\n"
	      "  5 launch: the ranks do not fit the layout   6 non-finite numbers   7 "
	      "communication\n"
	      "  8 device or memory   70 a bug   75 stopped on request, checkpoint complete\n",
	      out);
}
