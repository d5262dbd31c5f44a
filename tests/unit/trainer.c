/* Learning-rate schedules with every edge, the command line, and TensorBoard's checksum. */
#include <string.h>

#include "tests/check.h"
#include "trainer/args.h"
#include "trainer/optim.h"
#include "trainer/tensorboard.h"

/* iters 100, lr 1, min_lr 0.1 in all rows. */
static const struct {
	const char *schedule;
	int64_t warmup, decay, wsd, t;
	double lr;
} rates[] = {
	{"cosine", 0, 0, 0, 0, 1.0},
	{"cosine", 0, 0, 0, 50, 0.55},
	{"cosine", 0, 0, 0, 100, 0.1},
	{"cosine", 10, 0, 0, 0, 0.1},
	{"cosine", 10, 0, 0, 9, 1.0},
	{"cosine", 10, 0, 0, 10, 1.0},
	{"cosine", 10, 0, 0, 55, 0.55},
	{"cosine", 10, 60, 0, 60, 0.1},
	{"cosine", 10, 60, 0, 99, 0.1},
	{"cosine", 100, 0, 0, 99, 1.0}, /* warm-up as long as the run */
	{"cosine", 100, 0, 0, 100, 0.1},
	{"cosine", 200, 0, 0, 99, 0.5}, /* longer than the run: warm-up decides first */
	{"cosine", 200, 50, 0, 150, 0.755},
	{"linear", 0, 0, 0, 25, 0.775},
	{"linear", 20, 0, 0, 60, 0.55},
	{"linear", 20, 0, 0, 100, 0.1},
	{"constant", 10, 0, 0, 4, 0.5},
	{"constant", 10, 20, 0, 90, 1.0}, /* always */
	{"wsd", 10, 0, 20, 79, 1.0},
	{"wsd", 10, 0, 20, 80, 1.0},
	{"wsd", 10, 0, 20, 90, 0.55},
	{"wsd", 10, 0, 20, 100, 0.1},
	{"wsd", 0, 0, 0, 99, 1.0}, /* no decay phase */
	{"wsd", 0, 0, 100, 50, 0.55},
};

static void test_rates(void)
{
	for (size_t i = 0; i < sizeof(rates) / sizeof(rates[0]); i++) {
		char name[16];
		snprintf(name, sizeof(name), "%s", rates[i].schedule);
		struct occ_config_optimizer o = {
			.lr = 1.0,
			.min_lr = 0.1,
			.warmup_iters = rates[i].warmup,
			.decay_iters = rates[i].decay,
			.wsd_iters = rates[i].wsd,
			.schedule = name,
		};
		CHECK_NEAR(occ_lr_at(&o, 100, rates[i].t), rates[i].lr, 1e-12,
			   "row %zu: %s at %lld", i, name, (long long)rates[i].t);
	}
}

static const struct {
	const char *line; /* words after the program's name */
	int code;
	const char *says; /* part of the refusal */
} lines[] = {
	{"--config a.json", 0, ""},
	{"--config=a.json --set a=1 --set b=2 --ranks 4", 0, ""},
	{"plan --config a.json --json", 0, ""},
	{"tokenize --vocab bytes --out x.bin a b c", 0, ""},
	{"tokenize --vocab bytes --out x.bin -- --odd-name", 0, ""},
	{"generate --config a --prompt p --tokens 5 --temperature 0.5 --top-k 3 --seed 9", 0, ""},
	{"inspect f", 0, ""},
	{"--help", 0, ""},
	{"--version", 0, ""},
	{"export --help", 0, ""},
	{"--print-config", 0, ""},
	{"", 2, "--config"},
	{"--set a=1", 2, "--config"},
	{"trian --config a", 2, "trian"},
	{"--confg a", 2, "--confg"},
	{"--config", 2, "needs a value"},
	{"--config a --json", 2, "--json is not a flag of training"},
	{"--config a b", 2, "\"b\""},
	{"--config a --ranks x", 2, "--ranks x"},
	{"--config a --ranks -1", 2, "--ranks -1"},
	{"--config a --ranks 99999999999999999999", 2, "--ranks"},
	{"generate --config a --prompt p --temperature nan", 2, "--temperature"},
	{"generate --config a", 2, "--prompt"},
	{"export --out f", 2, "--checkpoint"},
	{"inspect", 2, "file"},
	{"inspect a b", 2, "\"b\""},
	{"tokenize --vocab bytes --out x", 2, "file"},
	{"--help=1", 2, "takes no value"},
};

static void test_args(void)
{
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		char text[128], *argv[16], program[] = "occ-train", *save = NULL;
		int argc = 0;
		struct occ_args a;
		struct occ_err e = {0};
		snprintf(text, sizeof(text), "%s", lines[i].line);
		argv[argc++] = program;
		for (char *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save))
			argv[argc++] = w;
		int bad = occ_args_parse(&a, argc, argv, &e);
		CHECK(e.code == lines[i].code, "\"%s\": %d %s", lines[i].line, e.code, e.text);
		CHECK(bad == (e.code ? -1 : 0), "\"%s\"", lines[i].line);
		CHECK(strstr(e.text, lines[i].says), "\"%s\": %s", lines[i].line, e.text);
		occ_args_release(&a);
	}
}

int main(void)
{
	test_rates();
	test_args();
	CHECK(occ_crc32c("123456789", 9) == 0xe3069283u, "the check value of CRC-32C");
	return check_done();
}
