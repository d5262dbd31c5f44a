/* Collectives on device arrays: any piece size, host-visible or not, gives the same bits and
 * counts. */
#include "parallel/group.h"

#include <string.h>

#include "base/mem.h"
#include "tests/check.h"
#include "tests/fake_device.h"

static float value(int rank, int64_t i)
{
	return (float)((i * 37 + rank * 11) % 101) / 7.0f - (float)rank;
}

struct setting {
	int visible;
	enum occ_type type;
	size_t max_bytes;
};

/* What is written on the device goes through a host copy of n floats and back. */
static void write_values(struct occ_device *d, void *d_x, int64_t n, int rank)
{
	for (int64_t i = 0; i < n; i++) {
		float v = value(rank, i);
		uint16_t h = occ_f32_to_bf16(v);
		size_t each = occ_type_size(d->type);
		d->ops->put(d, (char *)d_x + (size_t)i * each, d->type == OCC_F32 ? (void *)&v : &h,
			    each);
		d->ops->sync(d); /* v and h are gone */
	}
}

/* The one-rank truth in the same order. */
static float serial(enum occ_type type, int size, int64_t i, int max)
{
	float acc = 0;
	for (int r = 0; r < size; r++) {
		float v = value(r, i);
		v = type == OCC_F32 ? v : occ_bf16_to_f32(occ_f32_to_bf16(v));
		acc = r == 0 ? v : max ? fmaxf(acc, v) : acc + v;
	}
	return type == OCC_F32 ? acc : occ_bf16_to_f32(occ_f32_to_bf16(acc));
}

static float read_value(struct occ_device *d, const char *d_x, int64_t i)
{
	size_t each = occ_type_size(d->type);
	float v = 0;
	uint16_t h = 0;
	d->ops->get(d, d->type == OCC_F32 ? (void *)&v : &h, d_x + (size_t)i * each, each);
	return d->type == OCC_F32 ? v : occ_bf16_to_f32(h);
}

static void check_reduce(struct occ_group *g, int64_t n, int max)
{
	struct occ_device *d = g->dev;
	int size = g->comm->size;
	size_t each = occ_type_size(d->type);
	struct occ_traffic t = {0};
	char *d_x = d->ops->alloc(d, (size_t)(n + 1) * each);
	write_values(d, d_x, n + 1, g->comm->rank);
	g->comm->traffic = &t;
	if (max)
		occ_group_max(g, (void *)d_x, n);
	else
		occ_group_sum(g, d_x, n, d->type);
	g->comm->traffic = NULL;
	int wrong = 0;
	for (int64_t i = 0; i < n; i++)
		wrong += read_value(d, d_x, i) != serial(d->type, size, i, max);
	CHECK(wrong == 0, "size %d n %lld pieces of %zu: %d wrong", size, (long long)n,
	      g->max_bytes, wrong);
	double bytes = (double)t.wire_bytes;
	occ_comm_sum_double(g->comm, &bytes, 1);
	CHECK(t.messages == 2 * (size - 1) && bytes == 2.0 * (size - 1) * (double)n * (double)each,
	      "size %d n %lld: %lld messages, %g bytes", size, (long long)n, (long long)t.messages,
	      bytes);
	d->ops->free(d, d_x);
}

static void check_gather(struct occ_group *g, int64_t rows, int64_t C)
{
	struct occ_device *d = g->dev;
	int size = g->comm->size, rank = g->comm->rank, wrong = 0;
	size_t each = occ_type_size(d->type);
	struct occ_traffic t = {0};
	char *d_x = d->ops->alloc(d, (size_t)(rows * C) * each), *d_own;
	int64_t at = occ_slice_row(rows, rank, size) * C,
		end = occ_slice_row(rows, rank + 1, size) * C;
	memset(fake_host(d, d_x), 0x7f, (size_t)(rows * C) * each);
	d_own = d->ops->alloc(d, (size_t)(rows * C) * each);
	write_values(d, d_own, rows * C, 0);
	memcpy((char *)fake_host(d, d_x) + (size_t)at * each,
	       (char *)fake_host(d, d_own) + (size_t)at * each, (size_t)(end - at) * each);
	g->comm->traffic = &t;
	occ_group_gather_rows(g, d_x, rows, C);
	g->comm->traffic = NULL;
	for (int64_t i = 0; i < rows * C; i++)
		wrong += read_value(d, d_x, i) != read_value(d, d_own, i);
	CHECK(wrong == 0, "size %d, %lld rows, pieces of %zu: %d wrong", size, (long long)rows,
	      g->max_bytes, wrong);
	CHECK(t.messages == (rows ? size - 1 : 0) &&
		      t.raw_bytes == (int64_t)((size_t)(end - at) * each) * (size - 1),
	      "size %d, %lld rows: %lld messages", size, (long long)rows, (long long)t.messages);
	d->ops->free(d, d_own);
	d->ops->free(d, d_x);
}

static int body(struct occ_comm *c, void *arg)
{
	const struct setting *s = arg;
	struct occ_device dev = {.ops = &fake_ops[s->visible], .type = s->type, .threads = 1};
	struct occ_group g;
	occ_group_init(&g, c, &dev, s->max_bytes);
	for (int64_t n = 0; n < 300; n += 1 + n / 3) {
		check_reduce(&g, n, 0);
		if (s->type == OCC_F32)
			check_reduce(&g, n, 1);
	}
	for (int64_t rows = 0; rows < 12; rows++)
		check_gather(&g, rows, 3);
	CHECK((g.staging != NULL) == (!s->visible && c->size > 1), "who needs staging");
	CHECK(g.staging_bytes <= s->max_bytes, "%zu bytes of staging", g.staging_bytes);
	occ_group_release(&g);
	return 0;
}

int main(void)
{
	static const struct setting settings[] = {
		{1, OCC_F32, 1 << 16}, {0, OCC_F32, 1 << 16},  {0, OCC_F32, 96},  {1, OCC_F32, 96},
		{0, OCC_BF16, 96},     {1, OCC_BF16, 1 << 16}, {0, OCC_F32, 101},
	};
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		for (int n = 1; n <= 8; n += n < 4 ? 1 : 2) {
			struct setting s = settings[i];
			occ_comm_run_threads(n, 30, body, &s);
		}
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}
