/* The options engine on the trainer's own table: what is refused and in which words, what is
 * accepted, and that what is printed reads back as it was. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"
#include "tests/check.h"
#include "trainer/config.h"

static const struct occ_opts *const opts = &occ_config_opts;

/* Parses `text` over the defaults. */
static int parse(const char *text, struct occ_config *c, struct occ_err *e)
{
	memset(c, 0, sizeof(*c));
	memset(e, 0, sizeof(*e));
	occ_opts_defaults(opts, c);
	return occ_opts_parse(opts, c, text, "t.json", e);
}

#define SYNTAX "t.json:1: not valid JSON"
#define IN(section, rest) "{\"" section "\": {" rest "}}"

/* Refused texts; `says` is in the message. */
static const struct {
	const char *text, *says;
} bad_texts[] = {
	/* syntax, with the line */
	{"", "t.json:1: not valid JSON at column 1 (the text ends here)"},
	{" \n\n", "t.json:3: not valid JSON at column 1 (the text ends here)"},
	{"{", "t.json:1: not valid JSON at column 2 (the text ends here)"},
	{"{}}", "t.json:1: not valid JSON at column 3"},
	{"{} x", "t.json:1: not valid JSON at column 4 (a word without quotes)"},
	{"{}\n{}", "t.json:2: not valid JSON at column 1"},
	{"{\n\"model\": {\n\"layers\": 2,\n}}",
	 "t.json:4: not valid JSON at column 1 (the comma before it is one too many)"},
	{"{\n\"model\": {\n\"layers\" 2}}", "t.json:3: not valid JSON"},
	{"{,}", SYNTAX},
	{"{\"model\": {}, }", SYNTAX},
	{"{\"model\": {} \"train\": {}}", SYNTAX},
	{"{model: {}}", "t.json:1: not valid JSON at column 2 (a word without quotes)"},
	{"{'model': {}}", "not valid JSON at column 2 (strings stand in double quotes)"},
	{"{\"model\": {\"layers\": 2]}", SYNTAX},
	{"{\"data\": {\"train\": [\"a\",]}}", SYNTAX},
	{"{\"data\": {\"train\": [,\"a\"]}}", SYNTAX},
	{"{\"data\": {\"train\": [\"a\"", "the text ends here"},
	{"// a comment\n{}", "t.json:1: not valid JSON at column 1 (JSON has no comments)"},
	{"{} # a comment", "t.json:1: not valid JSON at column 4"},
	{"{ /* a comment */ }", "t.json:1: not valid JSON at column 3"},
	{"\xef\xbb\xbf{}", "t.json:1: not valid JSON at column 1 (a byte order mark)"},
	{"\f{}", "t.json:1: not valid JSON at column 1"},
	/* numbers */
	{IN("model", "\"layers\": 01"), "column 22 (a number that begins with 0)"},
	{IN("model", "\"layers\": +1"), SYNTAX},
	{IN("model", "\"layers\": 1."), "column 24 (a digit is missing)"},
	{IN("model", "\"layers\": .5"), SYNTAX},
	{IN("model", "\"layers\": 1e"), SYNTAX},
	{IN("model", "\"layers\": 1e+"), SYNTAX},
	{IN("model", "\"layers\": 0x10"), SYNTAX},
	{IN("model", "\"layers\": --1"), SYNTAX},
	{IN("model", "\"layers\": NaN"), SYNTAX},
	{IN("model", "\"layers\": Infinity"), SYNTAX},
	{IN("optimizer", "\"lr\": 1e400"), "column 22 (a number too large)"},
	{IN("optimizer", "\"lr\": 0.00000000000000000000000000000000000000000000000000000000001"),
	 "(a number of more than 60 characters)"},
	{IN("optimizer", "\"lr\": -1e400"), SYNTAX},
	/* words and strings */
	{IN("data", "\"shuffle\": True"), SYNTAX},
	{IN("data", "\"shuffle\": truee"), SYNTAX},
	{IN("log", "\"dir\": \"a"), "the text ends here"},
	{IN("log", "\"dir\": \"a\nb\""), SYNTAX},
	{IN("log", "\"dir\": \"a\tb\""), "column 19 (a control character)"},
	{IN("log", "\"dir\": \"a\\qb\""), "column 20 (no such escape)"},
	{"{\"log\": {\"dir\": \"\\", "the text ends here"},
	{IN("log", "\"dir\": \"\\u12"), SYNTAX},
	{IN("log", "\"dir\": \"\\u12g4\""), SYNTAX},
	{IN("log", "\"dir\": \"\\u0000\""), "(\\u0000 cannot stand in a string)"},
	{IN("log", "\"dir\": \"a\\ud800\""), "(half a surrogate pair)"},
	{IN("log", "\"dir\": \"\\ud800\\u0041\""), SYNTAX},
	{IN("log", "\"dir\": \"\\udc00\""), SYNTAX},
	{IN("log", "\"dir\": \"\x80\""), SYNTAX},
	{IN("log", "\"dir\": \"\xff\""), "column 18 (not UTF-8)"},
	{IN("log", "\"dir\": \"\xc0\xaf\""), SYNTAX}, /* overlong */
	{IN("log", "\"dir\": \"\xe0\x80\xaf\""), SYNTAX},
	{IN("log", "\"dir\": \"\xed\xa0\x80\""), SYNTAX},     /* a surrogate */
	{IN("log", "\"dir\": \"\xf4\x90\x80\x80\""), SYNTAX}, /* too large */
	{IN("log", "\"dir\": \"\xc3\""), SYNTAX},             /* cut short */
	{IN("log", "\"dir\": \"\xf0\x9f\x98"), SYNTAX},
	/* the top */
	{"[]", "t.json:1: an object is needed"},
	{"3", "t.json:1: an object is needed"},
	{"\n\nnull", "t.json:3: an object is needed"},
	{"\"model\"", "t.json:1: an object is needed"},
	/* duplicates */
	{"{\"model\": {},\n\"model\": {}}", "t.json:2: duplicate key \"model\""},
	{"{\"model\": {},\n\"mod\\u0065l\": {}}", "t.json:2: duplicate key \"model\""},
	{"{\"model\": {\"layers\": 1,\n\n\"layers\": 1}}",
	 "t.json:3: duplicate key \"model.layers\""},
	{"{\"compress\": {\"embedding\": {\"fused\": true,\n\"fused\": true}}}",
	 "t.json:2: duplicate key \"compress.embedding.fused\""},
	{"{\"compress\": {\"embedding\": {},\n\"embedding\": {}}}",
	 "t.json:2: duplicate key \"compress.embedding\""},
	/* unknown keys, with the line, the path and the nearest */
	{"{\n\"model\": {\n\"layer\": 2}}",
	 "t.json:3: unknown key \"model.layer\"; did you mean \"model.layers\"?"},
	{"{\n\"modle\": {\"layers\": 2}}",
	 "t.json:2: unknown key \"modle\"; did you mean \"model\"?"},
	{"{\"modle\": {}}", "t.json:1: unknown key \"modle\"; did you mean \"model\"?"},
	{"{\"compress\": {\"pipeline_backwards\": {}}}",
	 "unknown key \"compress.pipeline_backwards\"; did you mean "
	 "\"compress.pipeline_backward\"?"},
	{"{\"model\": {\"layer\": {}}}",
	 "unknown key \"model.layer\"; did you mean \"model.layers\"?"},
	{"{\"layers\": 2}", "t.json:1: unknown key \"layers\"; did you mean \"model.layers\"?"},
	{"{\"\": 2}", "t.json:1: unknown key \"\""},
	{"{\"model\": {\"\": 2}}", "t.json:1: unknown key \"model.\""},
	{"{\"init\": {\"laod\": \"x\"}}", "unknown key \"init.laod\"; did you mean \"init.load\"?"},
	{"{\"model\": {\"Layers\": 2}}",
	 "unknown key \"model.Layers\"; did you mean \"model.layers\"?"},
	{"{\"model\": {\"layers \": 2}}", "unknown key \"model.layers \""},
	{"{\"model\": {\"layers\\u0020\": 2}}", "unknown key \"model.layers \""},
	{"{\"model.layers\": 2}", "t.json:1: \"model.layers\": a section is an object"},
	{"{\"compress\": {\"embedding.fused\": true}}",
	 "t.json:1: \"compress.embedding.fused\": a section is an object"},
	/* sections and types */
	{"{\"model\": 3}", "t.json:1: model: this is a section; an object is needed"},
	{"{\"model\": null}", "t.json:1: model: this is a section"},
	{"{\"compress\": {\n\"embedding\": []}}",
	 "t.json:2: compress.embedding: this is a section"},
	{IN("model", "\n\"layers\": \"2\""),
	 "t.json:2: model.layers: a whole number is needed, not a string"},
	{IN("model", "\"layers\": 2.5"), "model.layers: a whole number is needed, not 2.5"},
	{IN("model", "\"layers\": true"),
	 "model.layers: a whole number is needed, not true or false"},
	{IN("model", "\"layers\": null"), "model.layers: a whole number is needed, not null"},
	{IN("model", "\"layers\": [2]"), "model.layers: a whole number is needed, not a list"},
	{IN("model", "\"layers\": {\"x\": 2}"),
	 "model.layers: a whole number is needed, not an object"},
	{IN("train", "\"seed\": 1e300"), "train.seed: 1e+300 is out of range: 0 to 9e+15"},
	{IN("train", "\"seed\": 9007199254740993"),
	 "train.seed: 9.00719925474099e+15 is out of range"},
	{IN("optimizer", "\"clip_grad\": 1e31"),
	 "optimizer.clip_grad: 1e+31 is out of range: 0 to 1e+30"},
	{IN("log", "\"trace_iters\": [1, 1e16]"),
	 "log.trace_iters: 1e+16 is out of range: 1 to 9e+15"},
	{IN("optimizer", "\"lr\": \"1e-3\""), "optimizer.lr: a number is needed, not a string"},
	{IN("optimizer", "\"lr\": false"), "optimizer.lr: a number is needed, not true or false"},
	{IN("data", "\"shuffle\": 1"), "data.shuffle: true or false is needed, not 1"},
	{IN("data", "\"shuffle\": \"true\""),
	 "data.shuffle: true or false is needed, not a string"},
	{IN("log", "\"dir\": 7"), "log.dir: a string is needed, not 7"},
	{IN("log", "\"dir\": null"), "log.dir: a string is needed, not null"},
	{IN("data", "\"train\": \"a.txt\""),
	 "data.train: a list of strings is needed, not a string"},
	{IN("data", "\"train\": [\"a\", 3]"), "data.train: a list of strings is needed, not 3"},
	{IN("data", "\"train\": [[\"a\"]]"), "data.train: a list of strings is needed, not a list"},
	{IN("log", "\"trace_iters\": 3"),
	 "log.trace_iters: a list of whole numbers is needed, not 3"},
	{IN("log", "\"trace_iters\": [1, 2.5]"),
	 "log.trace_iters: a list of whole numbers is needed, not 2.5"},
	{IN("log", "\"trace_iters\": [0]"), "log.trace_iters: 0 is out of range: at least 1"},
	{IN("compress", "\"data_parallel\": {\"stages\": \"some\"}"),
	 "compress.data_parallel.stages: \"all\""},
	{IN("compress", "\"data_parallel\": {\"stages\": 0}"),
	 "compress.data_parallel.stages: \"all\""},
	{IN("compress", "\"data_parallel\": {\"stages\": -1}"),
	 "compress.data_parallel.stages: \"all\""},
	{IN("compress", "\"data_parallel\": {\"stages\": 1.5}"),
	 "compress.data_parallel.stages: \"all\""},
	{IN("compress", "\"data_parallel\": {\"stages\": [1]}"),
	 "compress.data_parallel.stages: \"all\""},
	{IN("compress", "\"data_parallel\": {\"stages\": 1e300}"),
	 "compress.data_parallel.stages: \"all\""},
	{IN("compress", "\"data_parallel\": {\"feedback\": \"lazy\"}"),
	 "compress.data_parallel.feedback: true or false is needed"},
	/* ranges and choices */
	{IN("model", "\"layers\": 0"), "model.layers: 0 is out of range: 1 to 1048576"},
	{IN("model", "\"layers\": -3"), "model.layers: -3 is out of range"},
	{IN("model", "\"layers\": 1048577"), "model.layers: 1048577 is out of range"},
	{IN("model", "\"dropout\": 1"), "model.dropout: 1 is out of range: 0 to 0.999"},
	{IN("model", "\"dropout\": -0.1"), "model.dropout: -0.1 is out of range"},
	{IN("optimizer", "\"beta2\": 1"), "optimizer.beta2: 1 is out of range"},
	{IN("train", "\"iters\": -1"), "train.iters: -1 is out of range: at least 0"},
	{IN("train", "\"timeout_s\": 0"), "train.timeout_s: 0 is out of range"},
	{IN("train", "\"precision\": \"fp16\""),
	 "train.precision: \"fp16\" is not one of fp32|bf16"},
	{IN("train", "\"precision\": \"\""), "train.precision: \"\" is not one of"},
	{IN("train", "\"precision\": \"fp32|bf16\""), "is not one of fp32|bf16"},
	{IN("train", "\"precision\": \"fp3\""), "train.precision: \"fp3\" is not one of fp32|bf16"},
	{IN("train", "\"precision\": \"FP32\""), "train.precision: \"FP32\" is not one of"},
};

static void test_refusals(void)
{
	for (size_t i = 0; i < sizeof(bad_texts) / sizeof(bad_texts[0]); i++) {
		struct occ_config c;
		struct occ_err e;
		int bad = parse(bad_texts[i].text, &c, &e);
		CHECK(bad == -1 && e.code == OCC_E_CONFIG, "%s: code %d", bad_texts[i].text,
		      e.code);
		CHECK(strstr(e.text, bad_texts[i].says), "%s: '%s' does not say '%s'",
		      bad_texts[i].text, e.text, bad_texts[i].says);
		CHECK(!strncmp(e.text, "t.json:", 7), "%s: '%s' does not begin with the file",
		      bad_texts[i].text, e.text);
		occ_config_release(&c);
	}
}

/* Legal texts that a hasty reader would refuse. */
static const char *const good_texts[] = {
	"{}",
	" \r\n\t{ } \n",
	"{\"model\":{}}",
	IN("model", "\"layers\": 2"),
	IN("model", "\"layers\": 2.0"),
	IN("model", "\"layers\": 2e1"),
	IN("model", "\"layers\": 20E-1"),
	IN("model", "\"layers\": 1048576"),
	IN("optimizer", "\"lr\": 1"),
	IN("optimizer", "\"lr\": -0"),
	IN("optimizer", "\"lr\": 1e-400"),
	IN("train", "\"seed\": 9000000000000000"),
	IN("log", "\"dir\": \"\\u00e9\\ud83d\\ude00\xf0\x9f\x98\x80\""),
	IN("log", "\"dir\": \"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u0001\""),
	IN("log", "\"dir\": \"\x7f\""),
	IN("data", "\"train\": []"),
	IN("data", "\"train\": [ \"a\" , \"\" ]"),
	IN("mod\\u0065l", "\"layers\": 2"),
	IN("compress", "\"data_parallel\": {\"stages\": 3}"),
	IN("compress", "\"data_parallel\": {\"stages\": 0.5}"),
	IN("compress", "\"data_parallel\": {\"stages\": \"all\"}"),
};

static void test_accepted(void)
{
	for (size_t i = 0; i < sizeof(good_texts) / sizeof(good_texts[0]); i++) {
		struct occ_config c;
		struct occ_err e;
		CHECK(!parse(good_texts[i], &c, &e) && !e.code, "%s: %s", good_texts[i], e.text);
		occ_config_release(&c);
	}
}

/* Deep texts are refused, not followed; 32 levels are enough for any table. */
static void test_depth(void)
{
	static char text[400000];
	static const char *const open[] = {"[", "{\"a\":"};
	for (size_t k = 0; k < 2; k++)
		for (int depth = 31; depth <= 40000; depth = depth < 34 ? depth + 1 : depth * 34) {
			struct occ_config c;
			struct occ_err e;
			size_t n = 0;
			for (int i = 0; i < depth; i++)
				n += (size_t)sprintf(text + n, "%s", open[k]);
			CHECK(parse(text, &c, &e) && strstr(e.text, "t.json:1: not valid JSON"),
			      "%s", e.text);
			occ_config_release(&c);
		}
}

/* Files: what cannot be a configuration is refused before it is read as one. */
static void load_text(const char *path, const char *text, size_t n, const char *says)
{
	struct occ_config c = {0};
	struct occ_err e = {0};
	FILE *f = fopen(path, "wb");
	CHECK(f && fwrite(text, 1, n, f) == n && !fclose(f), "cannot write %s", path);
	int bad = occ_config_load(&c, path, NULL, 0, &e);
	CHECK((bad != 0) == (*says != 0) && e.code == (bad ? OCC_E_CONFIG : 0), "%s: code %d", says,
	      e.code);
	CHECK(strstr(e.text, says) && (!bad || !strncmp(e.text, path, strlen(path))),
	      "'%s', not '%s'", e.text, says);
	occ_config_release(&c);
}

static void test_files(void)
{
	enum { MIB = 1 << 20 };
	static char big[MIB + 1];
	char dir[] = "/tmp/occ-opts-XXXXXX", path[64];
	CHECK(mkdtemp(dir), "mkdtemp");
	snprintf(path, sizeof(path), "%s/c.json", dir);
	memset(big, ' ', sizeof(big));
	memcpy(big, "{}", 2);
	load_text(path, big, MIB, "");
	load_text(path, big, MIB + 1, ": larger than 1 MiB");
	load_text(path, "", 0, ":1: not valid JSON at column 1 (the text ends here)");
	load_text(path, "{}", 2, "");
	load_text(path, "\n{}\0", 4, ":2: a NUL byte");
	load_text(path, "\0{}", 3, ":1: a NUL byte");
	load_text(path, "{\"log\": {\"dir\": \"a\0b\"}}", 24, ":1: a NUL byte");
	load_text(path, "{\"model\": {\n\"layer\": 1}}", 24,
		  "/c.json:2: unknown key \"model.layer\"");
	struct occ_config c = {0};
	struct occ_err e = {0};
	unlink(path);
	CHECK(occ_config_load(&c, path, NULL, 0, &e) && e.code == 2 &&
		      strstr(e.text, "c.json: cannot be read"),
	      "missing: %s", e.text);
	occ_config_release(&c);
	memset(&e, 0, sizeof(e));
	CHECK(occ_config_load(&c, dir, NULL, 0, &e) && e.code == 2 && strstr(e.text, "directory"),
	      "directory: %s", e.text);
	occ_config_release(&c);
	rmdir(dir);
}

/* --set; `says` "" where it is accepted. */
static const struct {
	const char *set, *says;
} sets[] = {
	{"model.layers=3", ""},
	{"model.layers= 3 ", ""},
	{"model.layers=3.0", ""},
	{"log.dir=runs/a b", ""},
	{"log.dir=\"runs/a b\"", ""},
	{"log.dir=", ""},
	{"log.dir=a=b", ""},
	{"log.dir=7", ""},
	{"log.dir=null", ""},
	{"log.dir=\xc3\xa9", ""},
	{"train.precision=bf16", ""},
	{"train.precision=\"bf16\"", ""},
	{"data.shuffle=false", ""},
	{"data.train=[\"a\",\"b\"]", ""},
	{"log.trace_iters=[1,2]", ""},
	{"compress.data_parallel.stages=all", ""},
	{"compress.data_parallel.stages=\"all\"", ""},
	{"compress.data_parallel.stages=2", ""},
	{"compress.data_parallel.stages=0.25", ""},
	{"model.layers", "--set model.layers: the form is section.key=value"},
	{"", "the form is section.key=value"},
	{"=3", "the form is section.key=value"},
	{"model.layers=", "--set: model.layers: a whole number is needed"},
	{"model.layers=three", "--set: model.layers: a whole number is needed, as JSON, not three"},
	{"model.layers=3 4", "--set: model.layers: a whole number is needed"},
	{"model.layers=3.5", "--set: model.layers: a whole number is needed, not 3.5"},
	{"model.layers=0", "--set: model.layers: 0 is out of range"},
	{"model.layers=1e400", "--set: model.layers: a whole number is needed"},
	{"model.layers={}", "--set: model.layers: a whole number is needed, not an object"},
	{"optimizer.lr=nan", "--set: optimizer.lr: a number is needed"},
	{"optimizer.lr=0x1p-3", "--set: optimizer.lr: a number is needed"},
	{"data.shuffle=yes", "--set: data.shuffle: true or false is needed, as JSON, not yes"},
	{"data.shuffle=1", "--set: data.shuffle: true or false is needed, not 1"},
	{"data.train=a.txt", "--set: data.train: a list of strings is needed, as JSON, not a.txt; "
			     "one file is data.train=[\"a.txt\"]"},
	{"data.train=[a.txt]", "--set: data.train: a list of strings is needed, as JSON"},
	{"data.train=[1]", "--set: data.train: a list of strings is needed, not 1"},
	{"train.precision=fp8", "--set: train.precision: \"fp8\" is not one of fp32|bf16"},
	{"train.precision=", "--set: train.precision: \"\" is not one of"},
	{"compress.data_parallel.stages=most", "--set: compress.data_parallel.stages: \"all\""},
	{"compress.data_parallel.stages=1.5", "--set: compress.data_parallel.stages: \"all\""},
	{"log.dir=\"a", "--set: log.dir: a string is needed"},
	{"log.dir=\"a\" b", "--set: log.dir: a string is needed"},
	{"log.dir=\"\\ud800\"", "--set: log.dir: a string is needed"},
	{"log.dir=\xff", "--set: log.dir: not UTF-8"},
	{"log.dir=a\xc3", "--set: log.dir: not UTF-8"},
	{"model=3", "--set model: this is a section"},
	{"compress.embedding=3", "--set compress.embedding: this is a section"},
	{"model.=3", "--set: unknown key \"model.\""},
	{"layers=3", "--set: unknown key \"layers\"; did you mean \"model.layers\"?"},
	{"model.layer=3", "--set: unknown key \"model.layer\"; did you mean \"model.layers\"?"},
	{" model.layers=3", "--set: unknown key \" model.layers\"; did you mean \"model.layers\"?"},
	{"model.layers =3", "--set: unknown key \"model.layers \"; did you mean \"model.layers\"?"},
	{"MODEL.LAYERS=3", "--set: unknown key \"MODEL.LAYERS\""},
};

static void test_sets(void)
{
	for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
		struct occ_config c;
		struct occ_err e;
		parse("{}", &c, &e);
		int bad = occ_opts_set(opts, &c, sets[i].set, &e);
		CHECK((bad != 0) == (*sets[i].says != 0) && e.code == (bad ? OCC_E_CONFIG : 0),
		      "%s: %d '%s'", sets[i].set, e.code, e.text);
		CHECK(strstr(e.text, sets[i].says), "%s: '%s', not '%s'", sets[i].set, e.text,
		      sets[i].says);
		occ_config_release(&c);
	}
	char longest[600];
	struct occ_err e = {0};
	memset(longest, 'a', sizeof(longest));
	memcpy(longest + sizeof(longest) - 3, "=1", 3);
	CHECK(occ_opts_set(opts, NULL, longest, &e) && e.code == 2, "a key of 597 letters");
}

/* Defaults, then the file, then each --set; what is not named stays. */
static void test_precedence(void)
{
	struct occ_config c;
	struct occ_err e;
	parse("{\"model\": {\"layers\": 3, \"heads\": 2}, \"log\": {\"dir\": \"f\"}, "
	      "\"data\": {\"train\": [\"a\", \"b\"]}, \"compress\": {\"data_parallel\": "
	      "{\"stages\": 2}}}",
	      &c, &e);
	CHECK(!e.code && c.model.layers == 3 && c.model.heads == 2 && c.model.hidden == 768, "%s",
	      e.text);
	CHECK(!strcmp(c.log.dir, "f") && c.data.train.n == 2 && !strcmp(c.data.train.at[1], "b"),
	      "file");
	CHECK(c.compress.data_parallel.stages == 2, "stages");
	static const char *const later[] = {"model.layers=4",
					    "log.dir=s",
					    "data.train=[\"c\"]",
					    "model.layers=5",
					    "compress.data_parallel.stages=all",
					    "log.trace_iters=[7,8]"};
	for (size_t i = 0; i < sizeof(later) / sizeof(later[0]); i++)
		CHECK(!occ_opts_set(opts, &c, later[i], &e), "%s: %s", later[i], e.text);
	CHECK(c.model.layers == 5 && c.model.heads == 2 && !strcmp(c.log.dir, "s"),
	      "the last --set wins");
	CHECK(c.data.train.n == 1 && !strcmp(c.data.train.at[0], "c"),
	      "a list is replaced, not appended to");
	CHECK(c.compress.data_parallel.stages == -1, "all");
	CHECK(c.log.trace_iters.n == 2 && c.log.trace_iters.at[1] == 8, "numbers");
	/* A refused value leaves the old one. */
	CHECK(occ_opts_set(opts, &c, "data.train=[\"d\", 1]", &e) &&
		      !strcmp(c.data.train.at[0], "c"),
	      "kept");
	CHECK(occ_opts_set(opts, &c, "log.trace_iters=[0]", &e) && c.log.trace_iters.at[0] == 7,
	      "kept");
	CHECK(occ_opts_set(opts, &c, "train.precision=x", &e) && !strcmp(c.train.precision, "fp32"),
	      "kept");
	occ_config_release(&c);
}

/* What is printed reads back to the same text and the same numbers. */
static void round_trip(const char *text)
{
	struct occ_config c, d;
	struct occ_err e;
	CHECK(!parse(text, &c, &e), "%s: %s", text, e.text);
	char *once = occ_opts_json(opts, &c);
	CHECK(!parse(once, &d, &e), "%s: its print: %s", text, e.text);
	char *twice = occ_opts_json(opts, &d);
	CHECK(!strcmp(once, twice), "%s: prints differ", text);
	CHECK(!memcmp(&c.optimizer.lr, &d.optimizer.lr, sizeof(double)),
	      "%s: lr %.17g became %.17g", text, c.optimizer.lr, d.optimizer.lr);
	CHECK(c.train.seed == d.train.seed && !strcmp(c.log.dir, d.log.dir), "%s: changed", text);
	CHECK(c.compress.data_parallel.stages == d.compress.data_parallel.stages, "%s: stages",
	      text);
	occ_free(once);
	occ_free(twice);
	occ_config_release(&c);
	occ_config_release(&d);
}

static void test_round_trips(void)
{
	static const char *const numbers[] = {"0",
					      "-0",
					      "0.1",
					      "1e-5",
					      "3e-4",
					      "0.30000000000000004",
					      "1.7976931348623157e5",
					      "5e-324",
					      "2.2250738585072014e-308",
					      "0.1234567890123456789",
					      "1e6"};
	char text[200];
	for (size_t i = 0; i < sizeof(good_texts) / sizeof(good_texts[0]); i++)
		round_trip(good_texts[i]);
	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		snprintf(text, sizeof(text), "{\"optimizer\": {\"lr\": %s}}", numbers[i]);
		round_trip(text);
	}
	for (int i = 1; i < 128; i++) { /* every character, by its escape */
		snprintf(text, sizeof(text),
			 "{\"log\": {\"dir\": \"a\\u%04xb\"}, \"train\": {\"seed\": %d}}", i, i);
		round_trip(text);
	}
	round_trip("{\"data\": {\"train\": [\"\\\"\", \"\xf0\x9f\x98\x80\", \"\"]}, \"log\": "
		   "{\"trace_iters\": [1, 9e15]}}");
}

/* --set of a bare word prints as a JSON string that reads back. */
static void test_words_print(void)
{
	static const char *const words[] = {"a\tb", "a\"b\\", "\x01",    "7",
					    "null", "{}",     "\xc3\xa9"};
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		struct occ_config c, d;
		struct occ_err e;
		char set[40];
		parse("{}", &c, &e);
		snprintf(set, sizeof(set), "log.dir=%s", words[i]);
		CHECK(!occ_opts_set(opts, &c, set, &e) && !strcmp(c.log.dir, words[i]), "%s: %s",
		      set, e.text);
		char *print = occ_opts_json(opts, &c);
		CHECK(!parse(print, &d, &e) && !strcmp(d.log.dir, words[i]), "%s: %s", set, e.text);
		occ_free(print);
		occ_config_release(&c);
		occ_config_release(&d);
	}
}

/* Every row names itself once, its default holds, and the page and the help list it. */
static void test_table(void)
{
	char *page = NULL;
	size_t size;
	FILE *f = open_memstream(&page, &size);
	occ_opts_markdown(opts, f);
	occ_opts_help(opts, f);
	fclose(f);
	for (int i = 0; i < opts->n; i++) {
		char cell[120];
		const struct occ_opt *row = &opts->rows[i];
		for (int k = 0; k < i; k++)
			CHECK(strcmp(row->key, opts->rows[k].key), "%s stands twice", row->key);
		snprintf(cell, sizeof(cell), "\n| `%s` | `%s` |", row->key, row->def);
		CHECK(strstr(page, cell), "%s is not on the page", row->key);
		snprintf(cell, sizeof(cell), "\n  %s ", row->key);
		CHECK(strstr(page, cell), "%s is not in the help", row->key);
		CHECK(!strcmp(occ_opts_nearest(opts, row->key), row->key),
		      "%s is not nearest to itself", row->key);
		CHECK(row->help && *row->help, "%s has no help", row->key);
	}
	free(page);
}

/* Rows without a range: whole numbers end where a double no longer holds each of them. */
static void test_unbounded(void)
{
	struct any {
		int64_t whole;
		double real;
		struct occ_ints list;
	} a = {0};
	static const struct occ_opt rows[] = {
		{"s.whole", OCC_OPT_INT, offsetof(struct any, whole), "7", 1, 0, NULL, "any"},
		{"s.real", OCC_OPT_FLOAT, offsetof(struct any, real), "0", 1, 0, NULL, "any"},
		{"s.list", OCC_OPT_INTS, offsetof(struct any, list), "[]", 1, 0, NULL, "any"},
	};
	static const struct {
		const char *set;
		int refused;
	} words[] = {
		{"s.whole=9007199254740991", 0},      {"s.whole=-9007199254740991", 0},
		{"s.whole=9007199254740992", 1},      {"s.whole=9007199254740993", 1},
		{"s.whole=-9007199254740993", 1},     {"s.whole=1e300", 1},
		{"s.list=[9007199254740993]", 1},     {"s.list=[-9007199254740991]", 0},
		{"s.real=1.7976931348623157e308", 0}, {"s.real=-1e300", 0},
	};
	const struct occ_opts table = {rows, 3, NULL};
	occ_opts_defaults(&table, &a);
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		struct occ_err e = {0};
		CHECK(occ_opts_set(&table, &a, words[i].set, &e) == -words[i].refused, "%s: '%s'",
		      words[i].set, e.text);
		CHECK(!words[i].refused || strstr(e.text, "is out of range"), "%s: '%s'",
		      words[i].set, e.text);
	}
	CHECK(a.whole == -9007199254740991 && a.real == -1e300 && a.list.n == 1 &&
		      a.list.at[0] == -9007199254740991,
	      "%lld", (long long)a.whole);
	occ_opts_release(&table, &a);
}

int main(void)
{
	test_unbounded();
	test_refusals();
	test_accepted();
	test_depth();
	test_files();
	test_sets();
	test_precedence();
	test_round_trips();
	test_words_print();
	test_table();
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}
