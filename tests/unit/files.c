/* The checksum, files written aside, and fault points. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"
#include "tests/check.h"
#include "trainer/files.h"

static char dir[] = "/tmp/occ-files-XXXXXX";

static uint64_t sum_of(const void *x, size_t n)
{
	struct occ_sum s;
	occ_sum_init(&s);
	occ_sum_add(&s, x, n);
	return occ_sum_get(&s);
}

/* Any cut into pieces gives the same sum; any change of one bit, or of the length, another. */
static void check_sum(void)
{
	unsigned char x[203];
	for (size_t i = 0; i < sizeof(x); i++)
		x[i] = (unsigned char)(i * 37 + (i >> 3));
	for (size_t n = 0; n <= 40; n++) {
		uint64_t whole = sum_of(x, n);
		for (size_t a = 0; a <= n; a++)
			for (size_t b = a; b <= n; b++) {
				struct occ_sum s;
				occ_sum_init(&s);
				occ_sum_add(&s, x, a);
				occ_sum_add(&s, x + a, b - a);
				occ_sum_add(&s, x + b, n - b);
				CHECK(occ_sum_get(&s) == whole, "%zu cut at %zu, %zu", n, a, b);
			}
		CHECK(n == 0 || whole != sum_of(x, n - 1), "length %zu", n);
	}
	uint64_t good = sum_of(x, sizeof(x));
	for (size_t bit = 0; bit < 8 * sizeof(x); bit++) {
		x[bit / 8] ^= (unsigned char)(1 << bit % 8);
		CHECK(sum_of(x, sizeof(x)) != good, "bit %zu", bit);
		for (size_t other = bit % 32 + 32; other < bit; other += 32) {
			/* the same bit of another float: signs, say */
			x[other / 8] ^= (unsigned char)(1 << other % 8);
			CHECK(sum_of(x, sizeof(x)) != good, "bits %zu, %zu", bit, other);
			x[other / 8] ^= (unsigned char)(1 << other % 8);
		}
		x[bit / 8] ^= (unsigned char)(1 << bit % 8);
	}
	static const unsigned char zeros[64];
	for (size_t n = 1; n < sizeof(zeros); n++)
		CHECK(sum_of(zeros, n) != sum_of(zeros, n - 1), "%zu zeros", n);
}

static int exists(const char *path)
{
	struct stat st;
	return stat(path, &st) == 0;
}

static void check_file(void)
{
	char path[64], aside[64], got[16] = "";
	struct occ_file f;
	struct occ_err e = {0};
	struct occ_io io = {.code = OCC_E_CKPT};
	snprintf(path, sizeof(path), "%s/f", dir);
	snprintf(aside, sizeof(aside), "%s/f.tmp", dir);
	CHECK(!occ_file_create(&f, path, io, &e) && !occ_file_write(&f, "one", 3, &e), "%s",
	      e.text);
	CHECK(exists(aside) && !exists(path), "written aside");
	occ_file_discard(&f);
	CHECK(!exists(aside) && !exists(path), "discarded");
	CHECK(!occ_file_create(&f, path, io, &e) && !occ_file_write(&f, "one", 3, &e) &&
		      !occ_file_write(&f, "two", 3, &e),
	      "%s", e.text);
	CHECK(occ_sum_get(&f.sum) == sum_of("onetwo", 6), "sum while writing");
	CHECK(!occ_file_commit(&f, &e) && exists(path) && !exists(aside), "%s", e.text);
	void *map;
	size_t n;
	CHECK(!occ_map_open(path, 3, &map, &n, &e) && n == 6 && !memcmp(map, "onetwo", 6), "map");
	memcpy(got, map, 6);
	occ_map_close(map, n);
	unlink(path);
}

static void check_dirs(void)
{
	char path[80], deep[80];
	struct occ_err e = {0};
	struct occ_io io = {.code = OCC_E_CKPT};
	snprintf(path, sizeof(path), "%s/a", dir);
	snprintf(deep, sizeof(deep), "%s/a//b/", dir);
	CHECK(!occ_dir_make(deep, io, &e) && exists(deep), "%s", e.text);
	CHECK(!occ_dir_make(deep, io, &e), "again: %s", e.text);
	CHECK(occ_dir_remove(path) == -1 && exists(deep), "not flat: must stay");
	CHECK(!occ_dir_remove(deep) && !occ_dir_remove(path) && !exists(path), "removed");
	CHECK(!occ_dir_remove(path), "not there");
	FILE *f = fopen(path, "w");
	fclose(f);
	CHECK(occ_dir_make(deep, io, &e) == -1 && e.code == OCC_E_CKPT, "below a file: %s", e.text);
	unlink(path);
}

/* This thread reads OCC_FAULT once, so all wanted faults are set before the first call. */
static void check_faults(void)
{
	char path[64];
	setenv("OCC_FAULT", "a:0:2,b:*:1,files:3:4", 1);
	int a[4], other = 0;
	for (int i = 0; i < 4; i++) {
		a[i] = occ_fault("a", 0);
		other |= occ_fault("a", 1) | occ_fault("c", 0);
	}
	CHECK(!a[0] && a[1] && !a[2] && !a[3] && !other, "second call, rank 0");
	CHECK(occ_fault("b", 7) && !occ_fault("b", 7), "any rank");
	struct occ_file f;
	struct occ_err e = {0};
	struct occ_io io = {OCC_E_CKPT, "files", 3};
	snprintf(path, sizeof(path), "%s/g", dir);
	CHECK(!occ_file_create(&f, path, io, &e) && !occ_file_write(&f, "x", 1, &e) &&
		      !occ_file_write(&f, "y", 1, &e),
	      "%s", e.text);
	CHECK(occ_file_commit(&f, &e) == -1 && e.code == OCC_E_CKPT && strstr(e.text, path) &&
		      strstr(e.text, strerror(ENOSPC)),
	      "fsync: %s", e.text);
	CHECK(!exists(path), "nothing is left");
}

int main(void)
{
	if (!mkdtemp(dir))
		return 1;
	check_sum();
	check_file();
	check_dirs();
	check_faults();
	CHECK(rmdir(dir) == 0, "files are left in %s", dir);
	CHECK(occ_mem_live() == 0, "%lld bytes leaked", (long long)occ_mem_live());
	return check_done();
}
