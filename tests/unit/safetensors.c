/* Reading and writing safetensors: every rule of the format has a row that breaks it. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "tests/check.h"
#include "tests/fuzz/safetensors.c"
#include "trainer/safetensors.h"

static char dir[] = "/tmp/occ-st-XXXXXX";
static char path[64];

static void put_file(uint64_t head_bytes, const char *head, size_t n, size_t data_bytes)
{
	FILE *f = fopen(path, "wb");
	fwrite(&head_bytes, 8, 1, f);
	fwrite(head, 1, n, f);
	for (size_t i = 0; i < data_bytes; i++)
		fputc((int)(i * 7 + 1), f);
	fclose(f);
}

/* {"a": {...}} with the given members. */
#define ONE(members) "{\"a\":{" members "}}"
#define T(shape, b, e) "\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":[" #b "," #e "]"
#define A(shape, b, e) "\"a\":{" T(shape, b, e) "}"
#define B(shape, b, e) "\"b\":{" T(shape, b, e) "}"

static const struct row {
	const char *head;
	size_t data;
	const char *why; /* NULL: accepted, `n` tensors */
	int n;
} rows[] = {
	{"{}", 0, NULL, 0},
	{"{}      ", 0, NULL, 0},
	{"{ \"a\" : {" T("[2]", 0, 8) "}\n}", 8, NULL, 1},
	{ONE(T("[]", 0, 4)), 4, NULL, 1},
	{ONE(T("[0,3]", 0, 0)), 0, NULL, 1},
	{"{" A("[1]", 0, 4) "," B("[1]", 4, 8) "}", 8, NULL, 2},
	{"{" B("[1]", 4, 8) "," A("[1]", 0, 4) "}", 8, NULL, 2},
	{"{" B("[0]", 4, 4) "," A("[1]", 0, 4) "}", 4, NULL, 2},
	{"{\"__metadata__\":{\"k\":\"v\"}," A("[1]", 0, 4) "}", 4, NULL, 1},
	{"{\"__metadata__\":{}}", 0, NULL, 0},
	{ONE("\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]"), 3, NULL, 1},
	{"{\"\\u00e9\\\"\":{" T("[1]", 0, 4) "}}", 4, NULL, 1},
	{"", 0, "begin with", 0},
	{" {}", 0, "begin with", 0},
	{"[]", 0, "begin with", 0},
	{"{}x", 0, "not valid", 0},
	{"{}{}", 0, "not one JSON object", 0},
	{"{}\n", 0, "not one JSON object", 0},
	{"{", 0, "not one JSON object", 0},
	{"{}}", 0, "not valid", 0},
	{"{\"a\":true}", 0, "not valid", 0},
	{"{\"a\":{\"b\":{\"c\":[]}}}", 0, "not valid", 0},
	{"{\"a\xff\":1}", 0, "not valid", 0},
	{"{\"a\xc0\x80\":1}", 0, "not valid", 0},
	{"{\"a\x01\":1}", 0, "not valid", 0},
	{"{\"a\\u0000\":1}", 0, "not valid", 0},
	{"{\"a\":1}", 0, "entry is not", 0},
	{"{\"a\":[]}", 0, "entry is not", 0},
	{"{\"__metadata__\":{\"k\":1}}", 0, "__metadata__ maps", 0},
	{"{\"__metadata__\":[]}", 0, "__metadata__ maps", 0},
	{"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ occurs twice", 0},
	{"{" A("[1]", 0, 4) "," A("[1]", 4, 8) "}", 8, "'a': this name occurs twice", 0},
	{ONE(T("[1]", 0, 4) ",\"more\":1"), 4, "entry is not", 0},
	{ONE("\"dtype\":\"F32\",\"shape\":[1]"), 4, "entry is not", 0},
	{ONE("\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1]"), 4, "data_offsets are not", 0},
	{ONE("\"dtype\":\"F8\",\"shape\":[1],\"data_offsets\":[0,4]"), 4, "unknown dtype 'F8'", 0},
	{ONE("\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]"), 4, "unknown dtype", 0},
	{ONE(T("1", 0, 4)), 4, "shape is not a list", 0},
	{ONE(T("[\"1\"]", 0, 4)), 4, "dimension", 0},
	{ONE(T("[-1]", 0, 4)), 4, "dimension", 0},
	{ONE(T("[-0]", 0, 0)), 0, "dimension", 0},
	{ONE(T("[01]", 0, 4)), 4, "not valid", 0},
	{ONE(T("[1.0]", 0, 4)), 4, "not valid", 0},
	{ONE(T("[1e0]", 0, 4)), 4, "not valid", 0},
	{ONE(T("[9007199254740994]", 0, 4)), 4, "dimension", 0},
	{ONE(T("[1,1,1,1,1,1,1,1,1]", 0, 4)), 4, "more than 8", 0},
	{ONE(T("[4294967296,4294967296]", 0, 4)), 4, "overflows", 0},
	{ONE(T("[4611686018427387904]", 0, 0)), 0, "dimension", 0},
	{ONE(T("[2147483648,2147483648,2147483648]", 0, 4)), 4, "overflows", 0},
	{ONE(T("[1]", 0, 3)), 4, "3 bytes, but its shape", 0},
	{ONE(T("[2]", 0, 4)), 4, "4 bytes, but its shape", 0},
	{ONE(T("[1]", 4, 0)), 4, "data_offsets [4, 0]", 0},
	{ONE(T("[1]", 0, 8)), 4, "data_offsets [0, 8]", 0},
	{ONE(T("[1]", 0, 99999999999999999999)), 4, "data_offsets are not", 0},
	{ONE(T("[1]", 0, -4)), 4, "data_offsets are not", 0},
	{ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]"), 4, "data_offsets are not", 0},
	{ONE("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]"), 4, "data_offsets", 0},
	{ONE(T("[1]", 4, 8)), 8, "begin at 4, expected 0", 0},
	{"{" A("[1]", 0, 4) "," B("[1]", 8, 12) "}", 12, "begin at 8, expected 4", 0},
	{"{" A("[2]", 0, 8) "," B("[2]", 4, 12) "}", 12, "begin at 4, expected 8", 0},
	{ONE(T("[1]", 0, 4)), 5, "5 bytes of data", 0},
	{"{}", 1, "1 bytes of data", 0},
};

static void check_rules(void)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		const struct row *r = &rows[i];
		struct occ_st s;
		struct occ_err e = {0};
		put_file(strlen(r->head), r->head, strlen(r->head), r->data);
		int got = occ_st_open(&s, path, OCC_E_DATA, &e);
		if (r->why) {
			CHECK(got == -1 && e.code == OCC_E_DATA, "%s", r->head);
			CHECK(strstr(e.text, r->why) && strstr(e.text, path), "%s: '%s'", r->head,
			      e.text);
		} else {
			CHECK(got == 0 && s.n == r->n, "%s: %s", r->head, e.text);
		}
		if (got == 0)
			occ_st_close(&s);
	}
}

static void check_lengths(void)
{
	static const struct {
		uint64_t n;
		size_t real;
		const char *why;
	} table[] = {
		{100000001, 2, "at most 100000000"},
		{UINT64_MAX, 2, "at most"},
		{3, 2, "truncated"},
		{100000000, 2, "truncated"},
		{0, 2, "begin with"},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
		struct occ_st s;
		struct occ_err e = {0};
		put_file(table[i].n, "{}", table[i].real, 0);
		CHECK(occ_st_open(&s, path, OCC_E_CKPT, &e) == -1 && e.code == OCC_E_CKPT &&
			      strstr(e.text, table[i].why),
		      "row %zu: %s", i, e.text);
	}
	for (int n = 0; n < 8; n++) {
		struct occ_st s;
		struct occ_err e = {0};
		put_file(0, "", 0, 0);
		CHECK(truncate(path, n) == 0 && occ_st_open(&s, path, OCC_E_DATA, &e) == -1 &&
			      strstr(e.text, "too few"),
		      "%d bytes: %s", n, e.text);
	}
	struct occ_st s;
	struct occ_err e = {0}, e2 = {0};
	CHECK(occ_st_open(&s, dir, 3, &e) == -1 && strstr(e.text, "regular"), "%s", e.text);
	CHECK(occ_st_open(&s, "/nonexistent/x", 3, &e2) == -1 && e2.code == 3, "%s", e2.text);
}

/* Halves that have exact values by definition. */
static void check_floats(void)
{
	static const struct {
		uint16_t h;
		float f16, bf16;
	} v[] = {
		{0x0000, 0.0f, 0.0f},           {0x3c00, 1.0f, 0x1p-7f},
		{0xc000, -2.0f, -2.0f},         {0x7bff, 65504.0f, 0x1.fep120f},
		{0x0001, 0x1p-24f, 0x1p-133f},  {0x83ff, -0x1.ff8p-15f, -0x1.7fcp-120f},
		{0x0400, 0x1p-14f, 0x1p-119f},  {0x7c00, INFINITY, 0x1p121f},
		{0xfc00, -INFINITY, -0x1p121f},
	};
	for (size_t i = 0; i < sizeof(v) / sizeof(*v); i++) {
		struct occ_st_tensor t = {.name = "t", .dtype = OCC_ST_F16, .data = &v[i].h};
		float f = occ_st_float(&t, 0);
		CHECK(f == v[i].f16, "f16 %04x: %g", v[i].h, (double)f);
		t.dtype = OCC_ST_BF16;
		f = occ_st_float(&t, 0);
		uint32_t u = (uint32_t)v[i].h << 16;
		CHECK(memcmp(&f, &u, 4) == 0, "bf16 %04x: %g", v[i].h, (double)f);
	}
	uint16_t nan = 0x7e01, neg = 0x8000;
	struct occ_st_tensor t = {.name = "t", .dtype = OCC_ST_F16, .data = &nan};
	CHECK(isnan(occ_st_float(&t, 0)), "NaN");
	t.data = &neg;
	CHECK(signbit(occ_st_float(&t, 0)), "-0");
}

static char *slurp(const char *file, size_t *n)
{
	static char buf[1 << 16];
	FILE *f = fopen(file, "rb");
	*n = f ? fread(buf, 1, sizeof(buf), f) : 0;
	if (f)
		fclose(f);
	return buf;
}

static void check_write(void)
{
	static const float x[6] = {1, -2, 3.5f, 0, NAN, 1e-40f};
	struct occ_st_tensor t[3] = {
		{.name = "z", .ndim = 2, .dim = {2, 3}, .data = x, .bytes = 24},
		{.name = "a\"\\", .ndim = 0, .data = x + 1, .bytes = 4},
		{.name = "m", .ndim = 1, .dim = {0}, .data = x, .bytes = 0},
	};
	static const char want[] =
		"{\"__metadata__\":{\"format\":\"pt\"},"
		"\"a\\\"\\\\\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
		"\"m\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]},"
		"\"z\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]}}";
	struct occ_st s;
	struct occ_err e = {0};
	size_t n;
	CHECK(occ_st_write(path, t, 3, &e) == 0, "%s", e.text);
	const char *bytes = slurp(path, &n);
	uint64_t head;
	memcpy(&head, bytes, 8);
	CHECK(head % 8 == 0 && n == 8 + head + 28, "%zu bytes, header %zu", n, (size_t)head);
	CHECK(!memcmp(bytes + 8, want, sizeof(want) - 1), "%.*s", (int)head, bytes + 8);
	CHECK(occ_st_open(&s, path, 3, &e) == 0 && s.n == 3, "%s", e.text);
	const struct occ_st_tensor *z = occ_st_find(&s, "z");
	CHECK(z && z->ndim == 2 && z->dim[1] == 3 && !memcmp(z->data, x, 24), "z");
	CHECK(occ_st_find(&s, "y") == NULL, "y");
	occ_st_close(&s);
}

static void check_write_failures(void)
{
	static const char *const bad[] = {"/nonexistent/x.safetensors", "/tmp", "/dev/null"};
	struct occ_st_tensor t = {.name = "a", .data = "abcd", .bytes = 4};
	struct stat st;
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		struct occ_err e = {0};
		CHECK(occ_st_write(bad[i], &t, 1, &e) == -1 && e.code == OCC_E_CKPT &&
			      strstr(e.text, bad[i]),
		      "%s: %s", bad[i], e.text);
	}
	CHECK(stat("/dev/null", &st) == 0 && S_ISCHR(st.st_mode), "the device must stay");
}

static void check_inspect(void)
{
	struct occ_err e = {0};
	FILE *f = fopen(path, "w");
	fputs("just some text that is no safetensors file\n", f);
	fclose(f);
	CHECK(occ_st_inspect(path, &e) == 0 && e.code == 0, "text");
	CHECK(occ_st_inspect(dir, &e) == 0 && e.code == 0, "directory");
	CHECK(occ_st_inspect("/nonexistent", &e) == 0 && e.code == 0, "missing");
	CHECK(occ_st_inspect("/nonexistent.safetensors", &e) == -1 && e.code == 3, "named so");
}

/* A real file with a few bytes of its header changed, many times: read or refused, never worse. */
static void check_mutations(void)
{
	static const char likely[] = "{}[]\",:0123456789-\\uF ";
	static uint8_t x[1 << 14], y[1 << 14];
	FILE *f = fopen("tests/data/tiny_gpt2/model.safetensors", "rb");
	size_t n = f ? fread(x, 1, sizeof(x), f) : 0;
	CHECK(n > 9000, "run from the project's root");
	if (f)
		fclose(f);
	srandom(1);
	for (int round = 0; round < 3000 && n; round++) {
		size_t len = random() % 8 ? n : (size_t)random() % n;
		memcpy(y, x, n);
		for (long k = random() % 4; k >= 0; k--)
			y[random() % 1208] =
				(uint8_t)(random() % 2 ? likely[random() % 22] : random());
		CHECK(LLVMFuzzerTestOneInput(y, len) == 0, "round %d", round);
	}
}

int main(void)
{
	if (!mkdtemp(dir))
		return 1;
	snprintf(path, sizeof(path), "%s/x", dir);
	check_rules();
	check_lengths();
	check_floats();
	check_write();
	check_write_failures();
	check_inspect();
	check_mutations();
	unlink(path);
	CHECK(rmdir(dir) == 0, "files are left in %s", dir);
	CHECK(occ_mem_live() == 0, "%lld bytes leaked", (long long)occ_mem_live());
	return check_done();
}
