/* Looks at weights in safetensors files, for scripts. The key third of a qkv bias is left out: its
 * exact gradient is 0, what moves it is rounding.
 *
 *   weights A      "weight NAME NORM PROBE" for each tensor, as tests/golden/gpt2_ref.py has them:
 * a norm, and a sum that notices every exchanged element weights A B    "weight NAME D" with D = |a
 * - b| / |a|, and at last "weight all D" */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "trainer/safetensors.h"

static int64_t elements(const struct occ_st_tensor *t)
{
	int64_t n = 1;

	for (int i = 0; i < t->ndim; i++)
		n *= t->dim[i];
	return n;
}

static int counts(const struct occ_st_tensor *t, int64_t i)
{
	int64_t n = elements(t);

	return !strstr(t->name, "attn.c_attn.bias") || i < n / 3 || i >= n - n / 3;
}

static void probe(const struct occ_st *s)
{
	for (int k = 0; k < s->n; k++) {
		const struct occ_st_tensor *t = &s->at[k];
		double norm = 0, sum = 0;

		for (int64_t i = 0; i < elements(t); i++) {
			double w = counts(t, i) ? (double)occ_st_float(t, i) : 0;

			norm += w * w;
			sum += w * sin((double)(i + 1));
		}
		printf("weight %s %.12g %.12g\n", t->name, sqrt(norm), sum);
	}
}

/* Adds |a - b|^2 and |a|^2 of one tensor to sums[0] and sums[1]. */
static void add(const struct occ_st_tensor *a, const struct occ_st_tensor *b, double sums[2])
{
	for (int64_t i = 0; i < elements(a); i++) {
		double x = (double)occ_st_float(a, i), d = x - (double)occ_st_float(b, i);

		if (counts(a, i)) {
			sums[0] += d * d;
			sums[1] += x * x;
		}
	}
}

static int compare(const struct occ_st *a, const struct occ_st *b)
{
	double all[2] = {0, 0};

	for (int k = 0; k < a->n; k++) {
		const struct occ_st_tensor *t = occ_st_find(b, a->at[k].name);
		double one[2] = {0, 0};

		if (!t || elements(t) != elements(&a->at[k])) {
			fprintf(stderr, "weights: %s: not in %s with this size\n", a->at[k].name,
				b->path);
			return 1;
		}
		add(&a->at[k], t, one);
		all[0] += one[0];
		all[1] += one[1];
		printf("weight %s %.3g\n", t->name, one[0] > 0 ? sqrt(one[0] / one[1]) : 0);
	}
	printf("weight all %.3g\n", all[0] > 0 ? sqrt(all[0] / all[1]) : 0);
	return a->n != b->n;
}

int main(int argc, char **argv)
{
	struct occ_err e = {0};
	struct occ_st s[2];
	int ret = 0;

	if (argc < 2 || argc > 3) {
		fprintf(stderr, "usage: weights A.safetensors [B.safetensors]\n");
		return 2;
	}
	for (int i = 1; i < argc; i++) {
		if (occ_st_open(&s[i - 1], argv[i], OCC_E_DATA, &e) != 0) {
			occ_err_print(&e);
			return e.code;
		}
	}
	if (argc == 2)
		probe(&s[0]);
	else
		ret = compare(&s[0], &s[1]);
	for (int i = 1; i < argc; i++)
		occ_st_close(&s[i - 1]);
	return ret;
}
