/* Collectives on device arrays, by a lane where there is one. Where the host cannot see the device
 * they go through staging memory, in pieces; what is counted is the whole array, so that counters
 * do not depend on the device. */
#include "parallel/group.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

static size_t largest(size_t a, size_t b)
{
	return a > b ? a : b;
}

/* Elements moved at once. */
static int64_t piece_of(const struct occ_group *g, enum occ_type type)
{
	return (int64_t)(g->max_bytes / occ_type_size(type));
}

void occ_group_init(struct occ_group *g, struct occ_comm *comm, struct occ_device *dev,
		    size_t max_bytes)
{
	memset(g, 0, sizeof(*g));
	g->comm = comm;
	g->dev = dev;
	g->max_bytes = largest(max_bytes / 4 * 4, 4);
	if (comm->root->lanes && comm->size > 1)
		g->lane = occ_lane_open(comm, dev, comm->what ? comm->what : "a group of ranks");
}

static void grow(void **p, size_t *have, size_t bytes)
{
	if (bytes <= *have)
		return;
	occ_free(*p);
	*p = occ_alloc(bytes, 1);
	*have = bytes;
}

static void grow_staging(struct occ_group *g, size_t bytes)
{
	if (bytes <= g->staging_bytes)
		return;
	if (g->staging)
		g->dev->ops->free_host(g->dev, g->staging);
	g->staging = g->dev->ops->alloc_host(g->dev, bytes);
	g->staging_bytes = bytes;
}

void occ_group_release(struct occ_group *g)
{
	occ_lane_close(g->lane);
	if (g->d_parts)
		g->dev->ops->free(g->dev, g->d_parts);
	if (g->staging)
		g->dev->ops->free_host(g->dev, g->staging);
	occ_free(g->scratch);
	memset(g, 0, sizeof(*g));
}

/* Stops the counting of pieces, which the caller makes good. */
static struct occ_traffic *hide_traffic(struct occ_group *g)
{
	struct occ_traffic *t = g->comm->traffic;
	g->comm->traffic = NULL;
	return t;
}

static void show_traffic(struct occ_group *g, struct occ_traffic *t, double begin)
{
	g->comm->traffic = t;
	if (t)
		t->exposed_ms += occ_clock_ms() - begin;
}

/* ---- By a lane: every rank folds its slice of everybody's values and hands the result back. ----
 */

static void grow_parts(struct occ_group *g, size_t bytes)
{
	if (bytes <= g->parts_bytes)
		return;
	if (g->d_parts)
		g->dev->ops->free(g->dev, g->d_parts);
	g->d_parts = g->dev->ops->alloc(g->dev, bytes);
	g->parts_bytes = bytes;
}

/* Bytes before the slice of rank r, of n elements. */
static size_t slice_at(const struct occ_group *g, int64_t n, enum occ_type type, int r)
{
	return (size_t)occ_slice_row(n, r, g->comm->size) * occ_type_size(type);
}

static size_t slice_bytes(const struct occ_group *g, int64_t n, enum occ_type type, int r)
{
	return slice_at(g, n, type, r + 1) - slice_at(g, n, type, r);
}

static void lane_reduce(struct occ_group *g, char *d_x, int64_t n, enum occ_type type, int max)
{
	int size = g->comm->size, me = g->comm->rank;
	size_t own = slice_bytes(g, n, type, me);
	char *d_own = d_x + slice_at(g, n, type, me), *d_parts = g->d_parts;
	occ_lane_begin(g->lane, NULL);
	for (int r = 0; r < size; r++) {
		if (r == me)
			continue;
		occ_lane_send(g->lane, d_x + slice_at(g, n, type, r), slice_bytes(g, n, type, r),
			      r);
		occ_lane_recv(g->lane, d_parts + (size_t)r * own, own, r);
	}
	occ_lane_end(g->lane, NULL);
	g->dev->ops->copy(g->dev, d_parts + (size_t)me * own, d_own, own);
	g->dev->ops->fold(g->dev, size, (int64_t)(own / occ_type_size(type)), type, max, d_parts,
			  d_own);
	occ_lane_begin(g->lane, NULL);
	for (int r = 0; r < size; r++) {
		if (r == me)
			continue;
		occ_lane_send(g->lane, d_own, own, r);
		occ_lane_recv(g->lane, d_x + slice_at(g, n, type, r), slice_bytes(g, n, type, r),
			      r);
	}
	occ_lane_end(g->lane, NULL);
}

/* ---- Through host memory. ---- */

static void reduce_piece(struct occ_group *g, char *d_x, int64_t n, enum occ_type type, int max)
{
	struct occ_device *d = g->dev;
	size_t bytes = (size_t)n * occ_type_size(type);
	void *x = g->staging ? g->staging : d_x;
	if (g->staging)
		d->ops->get(d, x, d_x, bytes);
	if (max)
		occ_comm_max(g->comm, x, n, g->scratch);
	else
		occ_comm_sum(g->comm, x, n, type, g->scratch);
	if (!g->staging)
		return;
	d->ops->put(d, d_x, x, bytes);
	d->ops->sync(d); /* the staging memory is used again */
}

/* Room for pieces of n elements. */
static void prepare(struct occ_group *g, int64_t n, enum occ_type type)
{
	size_t each = occ_type_size(type);
	if (g->lane) {
		int64_t size = g->comm->size;
		grow_parts(g, (size_t)((n + size - 1) / size * size) * each);
		return;
	}
	grow(&g->scratch, &g->scratch_bytes, occ_comm_scratch(g->comm, n, type));
	if (!g->dev->ops->host_visible)
		grow_staging(g, (size_t)n * each);
	g->dev->ops->sync(g->dev);
}

static void reduce(struct occ_group *g, char *d_x, int64_t n, enum occ_type type, int max)
{
	if (g->comm->size == 1)
		return;
	double begin = occ_clock_ms();
	struct occ_traffic *t = hide_traffic(g);
	int64_t piece = piece_of(g, type);
	piece = n < piece ? n : piece;
	prepare(g, piece, type);
	for (int64_t at = 0; at < n; at += piece) {
		int64_t m = n - at < piece ? n - at : piece;
		char *d_at = d_x + (size_t)at * occ_type_size(type);
		if (g->lane)
			lane_reduce(g, d_at, m, type, max);
		else
			reduce_piece(g, d_at, m, type, max);
	}
	show_traffic(g, t, begin);
	occ_comm_count_sum(g->comm, n, type);
}

void occ_group_sum(struct occ_group *g, void *d_x, int64_t n, enum occ_type type)
{
	reduce(g, d_x, n, type, 0);
}

void occ_group_max(struct occ_group *g, float *d_x, int64_t n)
{
	reduce(g, (char *)d_x, n, OCC_F32, 1);
}

static void bcast_staged(struct occ_group *g, float *d_x, size_t bytes)
{
	struct occ_device *d = g->dev;
	if (!d->ops->host_visible)
		grow_staging(g, bytes);
	void *x = d->ops->host_visible ? (void *)d_x : g->staging;
	d->ops->sync(d);
	if (g->staging && g->comm->rank == 0)
		d->ops->get(d, x, d_x, bytes);
	occ_comm_bcast(g->comm, x, bytes, 0);
	if (g->staging && g->comm->rank != 0)
		d->ops->put(d, d_x, x, bytes);
	d->ops->sync(d);
}

static void bcast_by_lane(struct occ_group *g, float *d_x, size_t bytes)
{
	struct occ_comm *c = g->comm;
	int parent, child[32], n = occ_tree(c->rank, c->size, 0, &parent, child);
	occ_lane_begin(g->lane, NULL);
	if (parent >= 0)
		occ_lane_recv(g->lane, d_x, bytes, parent);
	occ_lane_end(g->lane, NULL);
	occ_lane_begin(g->lane, NULL);
	for (int i = 0; i < n; i++) {
		occ_lane_send(g->lane, d_x, bytes, child[i]);
		if (c->traffic)
			occ_traffic_count(c->traffic, bytes, bytes, occ_comm_crosses(c, child[i]));
	}
	occ_lane_end(g->lane, NULL);
}

void occ_group_bcast(struct occ_group *g, float *d_x, int64_t n)
{
	size_t bytes = (size_t)n * sizeof(*d_x);
	if (g->comm->size == 1 || n == 0)
		return;
	double begin = occ_clock_ms();
	if (g->lane)
		bcast_by_lane(g, d_x, bytes);
	else
		bcast_staged(g, d_x, bytes);
	if (g->comm->traffic)
		g->comm->traffic->exposed_ms += occ_clock_ms() - begin;
}

struct rows {
	int64_t at, n;
};

/* Part k of rank's slice, `step` rows at once; empty past its end. */
static struct rows part_of(int64_t rows, int rank, int size, int64_t k, int64_t step)
{
	int64_t end = occ_slice_row(rows, rank + 1, size),
		at = occ_slice_row(rows, rank, size) + k * step;
	at = at < end ? at : end;
	return (struct rows){at, end - at < step ? end - at : step};
}

/* Part k of all slices, one behind the other in the staging memory. */
static void gather_part(struct occ_group *g, char *d_x, int64_t rows, size_t row_bytes, int64_t k,
			int64_t step)
{
	struct occ_device *d = g->dev;
	size_t *bytes = g->scratch;
	char *x = g->staging;
	for (int r = 0; r < g->comm->size; r++) {
		struct rows p = part_of(rows, r, g->comm->size, k, step);
		bytes[r] = (size_t)p.n * row_bytes;
		if (r == g->comm->rank)
			d->ops->get(d, x, d_x + (size_t)p.at * row_bytes, bytes[r]);
		x += bytes[r];
	}
	occ_comm_gather(g->comm, g->staging, bytes);
	x = g->staging;
	for (int r = 0; r < g->comm->size; r++) {
		struct rows p = part_of(rows, r, g->comm->size, k, step);
		if (r != g->comm->rank)
			d->ops->put(d, d_x + (size_t)p.at * row_bytes, x, bytes[r]);
		x += bytes[r];
	}
	d->ops->sync(d);
}

static void gather_staged(struct occ_group *g, char *d_x, int64_t rows, size_t row_bytes)
{
	int size = g->comm->size;
	int64_t most = (rows + size - 1) / size; /* rows of the largest slice */
	int64_t step = (int64_t)(g->max_bytes / row_bytes) / size;
	step = most < step ? most : step;
	occ_check(step > 0, "rows of %zu bytes from %d ranks in %zu bytes", row_bytes, size,
		  g->max_bytes);
	grow_staging(g, (size_t)(step * size) * row_bytes);
	for (int64_t k = 0; k * step < most; k++)
		gather_part(g, d_x, rows, row_bytes, k, step);
}

static void gather_direct(struct occ_group *g, char *d_x, int64_t rows, size_t row_bytes)
{
	size_t *bytes = g->scratch;
	for (int r = 0; r < g->comm->size; r++)
		bytes[r] = (size_t)part_of(rows, r, g->comm->size, 0, rows).n * row_bytes;
	g->dev->ops->sync(g->dev);
	occ_comm_gather(g->comm, d_x, bytes);
}

static void gather_by_lane(struct occ_group *g, char *d_x, int64_t rows, size_t row_bytes)
{
	int me = g->comm->rank, size = g->comm->size;
	struct rows own = part_of(rows, me, size, 0, rows);
	occ_lane_begin(g->lane, NULL);
	for (int r = 0; r < size; r++) {
		struct rows p = part_of(rows, r, size, 0, rows);
		if (r == me)
			continue;
		occ_lane_send(g->lane, d_x + (size_t)own.at * row_bytes, (size_t)own.n * row_bytes,
			      r);
		occ_lane_recv(g->lane, d_x + (size_t)p.at * row_bytes, (size_t)p.n * row_bytes, r);
	}
	occ_lane_end(g->lane, NULL);
}

void occ_group_gather_rows(struct occ_group *g, void *d_x, int64_t rows, int64_t C)
{
	size_t row_bytes = (size_t)C * occ_type_size(g->dev->type);
	if (g->comm->size == 1 || rows == 0)
		return;
	double begin = occ_clock_ms();
	struct occ_traffic *t = hide_traffic(g);
	grow(&g->scratch, &g->scratch_bytes, (size_t)g->comm->size * sizeof(size_t));
	if (g->lane)
		gather_by_lane(g, d_x, rows, row_bytes);
	else if (!g->dev->ops->host_visible)
		gather_staged(g, d_x, rows, row_bytes);
	else
		gather_direct(g, d_x, rows, row_bytes);
	show_traffic(g, t, begin);
	struct rows own = part_of(rows, g->comm->rank, g->comm->size, 0, rows);
	occ_comm_count_gather(g->comm, (size_t)own.n * row_bytes);
}
