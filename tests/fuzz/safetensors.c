/* Fuzz target of the safetensors reader: any bytes are read or refused, never more. The entry is
 * libFuzzer's; with -DFUZZ_MAIN it is a program that runs the files named. tests/unit/safetensors.c
 * calls it with mutations of a real file. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "trainer/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *x, size_t n);

/* Touches every element that can be had as a float. */
static float touch(const struct occ_st *s)
{
	float sum = 0;
	for (int i = 0; i < s->n; i++) {
		const struct occ_st_tensor *t = &s->at[i];
		if (t->dtype > OCC_ST_BF16)
			continue;
		int64_t count = (int64_t)t->bytes / occ_st_dtype_size[t->dtype];
		for (int64_t k = 0; k < count; k++)
			sum += occ_st_float(t, k);
	}
	return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *x, size_t n)
{
	struct occ_st s;
	struct occ_err e = {0};
	char path[64];
	int fd = memfd_create("fuzz", 0);
	if (fd < 0 || write(fd, x, n) != (ssize_t)n)
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (occ_st_open(&s, path, OCC_E_DATA, &e) == 0) {
		volatile float sum = touch(&s);
		(void)sum;
		occ_st_close(&s);
	} else if (e.code != OCC_E_DATA || !e.text[0]) {
		abort();
	}
	close(fd);
	return 0;
}

#ifdef FUZZ_MAIN
static uint8_t *slurp(const char *path, size_t *n)
{
	FILE *f = fopen(path, "rb");
	uint8_t *x = malloc(1 << 20);
	if (!f || !x)
		exit(1);
	*n = fread(x, 1, 1 << 20, f);
	fclose(f);
	return x;
}

/* A program that runs the files named, for what a fuzzer found. */
int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		size_t n;
		uint8_t *x = slurp(argv[i], &n);
		LLVMFuzzerTestOneInput(x, n);
		free(x);
	}
	return 0;
}
#endif
