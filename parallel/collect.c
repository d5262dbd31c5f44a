/* Collectives over posted sends, the same on every transport. Knows no transport.
 *
 * Sum and max: element i belongs to the rank whose slice holds it. Each owner receives the others'
 * values of its slice, folds them in rank order 0..size-1 in fp32, rounds once and hands the result
 * back: reduce-scatter, then all-gather, in chunks of every slice at once, the next chunk in flight
 * while this one is folded. What is sent is what a ring would send, and no bit depends on chunks.
 */
#include "parallel/comm.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

enum {
	PIECE = 1 << 19, /* elements in flight at once: bounds the scratch whatever n is */
	WIDTH = 512,     /* elements folded at once */
	WINDOW = 8       /* peers in flight in a gather */
};

enum fold { SUM, MAX };

struct span {
	int64_t at, n;
};

struct job {
	struct occ_comm *c;
	char *x;
	int64_t n, chunk; /* chunk: elements of a slice moved at once */
	size_t each;      /* bytes of an element */
	enum occ_type type;
	enum fold fold;
	struct occ_req
		*req; /* [2 slots][send, recv][size] scatter, then [send, recv][size] gather */
	char *buffer; /* [2 slots][size - 1][chunk] */
};

int64_t occ_slice_row(int64_t rows, int t, int T)
{
	return rows / T * t + rows % T * t / T;
}

static int64_t least(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static int64_t chunk_of(int64_t n, int size)
{
	int64_t most = PIECE / size > 1 ? PIECE / size : 1;
	return least(most, (n + size - 1) / size);
}

static size_t requests_bytes(int size)
{
	return ((size_t)size * 6 * sizeof(struct occ_req) + 63) / 64 * 64;
}

size_t occ_comm_scratch(const struct occ_comm *c, int64_t n, enum occ_type type)
{
	if (c->size == 1 || c->ops->dry)
		return 0;
	return requests_bytes(c->size) +
	       2 * (size_t)(c->size - 1) * (size_t)chunk_of(n, c->size) * occ_type_size(type);
}

/* Chunk k of rank's slice; empty past its end. */
static struct span span_of(const struct job *j, int rank, int64_t k)
{
	int64_t end = occ_slice_row(j->n, rank + 1, j->c->size);
	int64_t at = least(occ_slice_row(j->n, rank, j->c->size) + k * j->chunk, end);
	return (struct span){at, least(j->chunk, end - at)};
}

static char *element(const struct job *j, int64_t i)
{
	return j->x + (size_t)i * j->each;
}

/* Where the values of rank r arrive; own values stay in x. */
static char *arrival(const struct job *j, int64_t k, int r)
{
	size_t row = (size_t)(k & 1) * (size_t)(j->c->size - 1) + (size_t)(r - (r > j->c->rank));
	return j->buffer + row * (size_t)j->chunk * j->each;
}

static struct occ_req *scatter_req(const struct job *j, int64_t k, int recv)
{
	return j->req + ((k & 1) * 2 + recv) * j->c->size;
}

static void send_span(const struct job *j, struct span s, int peer, struct occ_req *r)
{
	if (s.n)
		occ_comm_post_send(j->c, element(j, s.at), (size_t)s.n * j->each, peer,
				   OCC_TAG_COLL, r);
}

static void recv_span(const struct job *j, char *to, struct span s, int peer, struct occ_req *r)
{
	if (s.n)
		occ_comm_post_recv(j->c, to, (size_t)s.n * j->each, peer, OCC_TAG_COLL, r);
}

static void wait_all(struct occ_comm *c, struct occ_req *r, int n)
{
	for (int i = 0; i < n; i++)
		occ_comm_wait(c, &r[i]);
}

/* Chunk k of every slice goes to its owner. */
static void scatter_post(const struct job *j, int64_t k)
{
	int size = j->c->size, me = j->c->rank;
	struct span own = span_of(j, me, k);
	for (int d = 1; d < size; d++) {
		int from = (me - d + size) % size;
		recv_span(j, arrival(j, k, from), own, from, &scatter_req(j, k, 1)[from]);
	}
	for (int d = 1; d < size; d++) {
		int to = (me + d) % size;
		send_span(j, span_of(j, to, k), to, &scatter_req(j, k, 0)[to]);
	}
}

static void gather_post(const struct job *j, int64_t k)
{
	int size = j->c->size, me = j->c->rank;
	struct occ_req *send = j->req + 4 * size, *recv = send + size;
	struct span own = span_of(j, me, k);
	for (int d = 1; d < size; d++) {
		int from = (me - d + size) % size;
		struct span s = span_of(j, from, k);
		recv_span(j, element(j, s.at), s, from, &recv[from]);
	}
	for (int d = 1; d < size; d++)
		send_span(j, own, (me + d) % size, &send[(me + d) % size]);
}

static void load(enum occ_type type, const char *from, int64_t n, float *restrict to)
{
	if (type == OCC_F32) {
		memcpy(to, from, (size_t)n * sizeof(*to));
		return;
	}
	const uint16_t *restrict h = (const void *)from;
	for (int64_t i = 0; i < n; i++)
		to[i] = occ_bf16_to_f32(h[i]);
}

static void store(enum occ_type type, const float *restrict from, int64_t n, char *to)
{
	if (type == OCC_F32) {
		memcpy(to, from, (size_t)n * sizeof(*from));
		return;
	}
	uint16_t *restrict h = (void *)to;
	for (int64_t i = 0; i < n; i++)
		h[i] = occ_f32_to_bf16(from[i]);
}

static void fold_in(enum fold f, const float *restrict v, int64_t n, float *restrict acc)
{
	if (f == SUM) {
		for (int64_t i = 0; i < n; i++)
			acc[i] += v[i];
		return;
	}
	for (int64_t i = 0; i < n; i++)
		acc[i] = v[i] > acc[i] || v[i] != v[i] ? v[i] : acc[i]; /* NaN stays */
}

/* Chunk k of the own slice: all ranks' values in rank order, one rounding. */
static void fold_chunk(const struct job *j, int64_t k)
{
	struct span own = span_of(j, j->c->rank, k);
	float acc[WIDTH], v[WIDTH];
	for (int64_t i = 0; i < own.n; i += WIDTH) {
		int64_t n = least(WIDTH, own.n - i);
		for (int r = 0; r < j->c->size; r++) {
			const char *from = r == j->c->rank ? element(j, own.at) : arrival(j, k, r);
			from += (size_t)i * j->each;
			load(j->type, from, n, r ? v : acc);
			if (r)
				fold_in(j->fold, v, n, acc);
		}
		store(j->type, acc, n, element(j, own.at + i));
	}
}

static void reduce(struct occ_comm *c, void *x, int64_t n, enum occ_type type, enum fold fold,
		   void *scratch)
{
	int size = c->size;
	struct job j = {.c = c, .x = x, .n = n, .type = type, .fold = fold, .req = scratch};
	j.each = occ_type_size(type);
	j.chunk = chunk_of(n, size);
	j.buffer = (char *)scratch + requests_bytes(size);
	memset(scratch, 0, requests_bytes(size));
	int64_t chunks = n ? ((n + size - 1) / size + j.chunk - 1) / j.chunk : 0;
	if (chunks)
		scatter_post(&j, 0);
	for (int64_t k = 0; k < chunks; k++) {
		wait_all(c, scatter_req(&j, k, 1), size);
		if (k + 1 < chunks)
			scatter_post(&j, k + 1);
		fold_chunk(&j, k);
		wait_all(c, scatter_req(&j, k, 0),
			 size); /* before results overwrite what was sent */
		wait_all(c, j.req + 4 * size, 2 * size);
		gather_post(&j, k);
	}
	wait_all(c, j.req + 4 * size, 2 * size);
}

void occ_comm_count_sum(struct occ_comm *c, int64_t n, enum occ_type type)
{
	size_t each = occ_type_size(type), own;
	if (!c->traffic || c->size == 1)
		return;
	own = (size_t)(occ_slice_row(n, c->rank + 1, c->size) -
		       occ_slice_row(n, c->rank, c->size)) *
	      each;
	for (int p = 0; p < c->size; p++) {
		if (p == c->rank)
			continue;
		int64_t theirs = occ_slice_row(n, p + 1, c->size) - occ_slice_row(n, p, c->size);
		size_t out = (size_t)theirs * each;
		occ_traffic_count(c->traffic, out, out, occ_comm_crosses(c, p));
		occ_traffic_count(c->traffic, own, own, occ_comm_crosses(c, p));
	}
}

static void reduce_counted(struct occ_comm *c, void *x, int64_t n, enum occ_type type,
			   enum fold fold, void *scratch)
{
	if (c->size == 1)
		return;
	double begin = occ_clock_ms();
	if (!c->ops->dry)
		reduce(c, x, n, type, fold, scratch);
	occ_comm_count_sum(c, n, type);
	if (c->traffic)
		c->traffic->exposed_ms += occ_clock_ms() - begin;
}

void occ_comm_sum(struct occ_comm *c, void *x, int64_t n, enum occ_type type, void *scratch)
{
	reduce_counted(c, x, n, type, SUM, scratch);
}

void occ_comm_max(struct occ_comm *c, float *x, int64_t n, void *scratch)
{
	reduce_counted(c, x, n, OCC_F32, MAX, scratch);
}

static size_t offset_of(const size_t *bytes, int rank)
{
	size_t at = 0;
	for (int r = 0; r < rank; r++)
		at += bytes[r];
	return at;
}

void occ_comm_count_gather(struct occ_comm *c, size_t own)
{
	for (int p = 0; p < c->size && c->traffic; p++)
		if (p != c->rank)
			occ_traffic_count(c->traffic, own, own, occ_comm_crosses(c, p));
}

void occ_comm_gather(struct occ_comm *c, void *all, const size_t *bytes)
{
	struct occ_req req[2 * WINDOW] = {0};
	int size = c->size, me = c->rank;
	const char *own = (char *)all + offset_of(bytes, me);
	double begin = occ_clock_ms();
	for (int d = 1; d < size; d++) {
		int to = (me + d) % size, from = (me - d + size) % size;
		struct occ_req *r = &req[d % WINDOW * 2];
		wait_all(c, r, 2);
		if (bytes[from])
			occ_comm_post_recv(c, (char *)all + offset_of(bytes, from), bytes[from],
					   from, OCC_TAG_COLL, &r[0]);
		if (bytes[me])
			occ_comm_post_send(c, own, bytes[me], to, OCC_TAG_COLL, &r[1]);
	}
	wait_all(c, req, 2 * WINDOW);
	occ_comm_count_gather(c, bytes[me]);
	if (c->traffic)
		c->traffic->exposed_ms += occ_clock_ms() - begin;
}
