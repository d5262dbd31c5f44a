/* The pure half of the topology: places, fitting, layers, slices. */
#include "parallel/topo.h"

#include <string.h>

#include "tests/check.h"

/* rank -> place -> rank, with tp fastest and pp slowest. */
static void check_places(int T, int P, int D)
{
	struct occ_layout l = {.tensor = T, .pipeline = P, .data = D};
	int rank = 0;
	for (int pp = 0; pp < P; pp++)
		for (int dp = 0; dp < D; dp++)
			for (int tp = 0; tp < T; tp++, rank++) {
				struct occ_place p = occ_place_of(&l, rank);
				CHECK(p.tp == tp && p.pp == pp && p.dp == dp,
				      "%d x %d x %d: rank %d at tp %d pp %d dp %d", T, P, D, rank,
				      p.tp, p.pp, p.dp);
				CHECK(occ_rank_of(&l, p) == rank, "%d x %d x %d: rank %d", T, P, D,
				      rank);
			}
}

static const struct fit {
	int tensor, pipeline, data, ranks;
	int want;         /* data, or -1 for a refusal */
	const char *says; /* in its text */
} fits[] = {
	{1, 1, 0, 1, 1, ""},
	{2, 2, 0, 8, 2, ""},
	{2, 2, 2, 8, 2, ""},
	{4, 2, 0, 8, 1, ""},
	{1, 1, 8, 8, 8, ""},
	{3, 1, 0, 8, -1, "multiple of 3"},
	{4, 4, 0, 8, -1, "multiple of 16"},
	{2, 2, 1, 8, -1, "8 ranks"},
	{2, 2, 4, 8, -1, "data 4"},
	{0, 1, 0, 8, -1, "tensor 0"},
	{1, -1, 0, 8, -1, "pipeline -1"},
	{1, 1, -2, 8, -1, "data -2"},
	{1 << 20, 1 << 20, 0, 8, -1, "1048576"},
	{1 << 16, 1 << 16, 1 << 30, 8, -1, "1073741824"},
};

static void check_fit(const struct fit *f)
{
	struct occ_layout l = {.tensor = f->tensor, .pipeline = f->pipeline, .data = f->data};
	struct occ_err e = {0};
	int r = occ_layout_fit(&l, f->ranks, &e);
	if (f->want >= 0) {
		CHECK(r == 0 && e.code == 0 && l.data == f->want, "%d x %d on %d: data %d (%s)",
		      f->tensor, f->pipeline, f->ranks, l.data, e.text);
		return;
	}
	CHECK(r == -1 && e.code == OCC_E_LAUNCH && strstr(e.text, f->says), "%d x %d x %d: '%s'",
	      f->tensor, f->pipeline, f->data, e.text);
	CHECK(l.data == f->data, "a refusal changed the layout");
}

static void check_layers(int layers, int P)
{
	int next = 0, before = layers;
	for (int s = 0; s < P; s++) {
		int first, n = occ_stage_layers(layers, P, s, &first);
		CHECK(first == next && n == layers / P + (s < layers % P) && n <= before,
		      "%d layers, stage %d of %d: %d from %d", layers, s, P, n, first);
		next = first + n;
		before = n;
	}
	CHECK(next == layers, "%d of %d layers on %d stages", next, layers, P);
}

static void check_slices(int64_t rows, int T)
{
	CHECK(occ_slice_row(rows, 0, T) == 0 && occ_slice_row(rows, T, T) == rows, "%lld rows, %d",
	      (long long)rows, T);
	for (int t = 0; t < T; t++) {
		int64_t n = occ_slice_row(rows, t + 1, T) - occ_slice_row(rows, t, T);
		CHECK(n == rows / T || n == rows / T + 1, "%lld rows, slice %d of %d: %lld",
		      (long long)rows, t, T, (long long)n);
		if (rows < 1 << 20)
			CHECK(occ_slice_row(rows, t, T) == rows * t / T, "floor of %lld, %d of %d",
			      (long long)rows, t, T);
	}
}

int main(void)
{
	for (int T = 1; T <= 4; T++)
		for (int P = 1; P <= 4; P++)
			for (int D = 1; D <= 4; D++)
				check_places(T, P, D);
	for (size_t i = 0; i < sizeof(fits) / sizeof(fits[0]); i++)
		check_fit(&fits[i]);
	for (int layers = 1; layers <= 30; layers++)
		for (int P = 1; P <= 8; P++)
			check_layers(layers, P);
	for (int T = 1; T <= 9; T++) {
		for (int64_t rows = 0; rows <= 50; rows++)
			check_slices(rows, T);
		check_slices(INT64_MAX - 7, T);
	}
	return check_done();
}
