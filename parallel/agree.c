/* Broadcast, the small collectives, and agreement on failures: everything goes down one binomial
 * tree. The small ones are folded on rank 0 in rank order and are uncounted. Knows no transport. */
#include "parallel/comm.h"

enum { SMALL = 64 }; /* words moved at once */

int occ_tree(int rank, int size, int root, int *parent, int child[32])
{
	int v = (rank - root + size) % size, bit = 1, n = 0;
	while (bit < size && !(v & bit)) /* v hears from v without its lowest bit */
		bit <<= 1;
	*parent = v ? (v - bit + root) % size : -1;
	for (int b = bit >> 1; b; b >>= 1)
		if (v + b < size)
			child[n++] = (v + b + root) % size;
	return n;
}

static void tree(struct occ_comm *c, void *x, size_t bytes, int root, enum occ_tag tag)
{
	struct occ_req in = {0}, out[32] = {0};
	int parent, child[32], n = occ_tree(c->rank, c->size, root, &parent, child);
	if (parent >= 0) {
		occ_comm_post_recv(c, x, bytes, parent, tag, &in);
		occ_comm_wait(c, &in);
	}
	for (int i = 0; i < n; i++) {
		occ_comm_post_send(c, x, bytes, child[i], tag, &out[i]);
		if (c->traffic && tag == OCC_TAG_COLL)
			occ_traffic_count(c->traffic, bytes, bytes, occ_comm_crosses(c, child[i]));
	}
	for (int i = 0; i < n; i++)
		occ_comm_wait(c, &out[i]);
}

void occ_comm_bcast(struct occ_comm *c, void *x, size_t bytes, int root)
{
	tree(c, x, bytes, root, OCC_TAG_COLL);
}

/* Words of 8 bytes folded on rank 0 in rank order and handed round. */
static void fold_words(struct occ_comm *c, void *x, int n,
		       void (*fold)(void *x, const void *y, int n))
{
	uint64_t theirs[SMALL];
	for (int at = 0; at < n; at += SMALL) {
		int len = n - at < SMALL ? n - at : SMALL;
		size_t bytes = (size_t)len * sizeof(*theirs);
		char *mine = (char *)x + (size_t)at * sizeof(*theirs);
		struct occ_req r = {0};
		for (int p = 1; p < c->size && c->rank == 0; p++) {
			occ_comm_post_recv(c, theirs, bytes, p, OCC_TAG_AGREE, &r);
			occ_comm_wait(c, &r);
			fold(mine, theirs, len);
		}
		if (c->rank) {
			occ_comm_post_send(c, mine, bytes, 0, OCC_TAG_AGREE, &r);
			occ_comm_wait(c, &r);
		}
		tree(c, mine, bytes, 0, OCC_TAG_AGREE);
	}
}

static void add_doubles(void *x, const void *y, int n)
{
	double *a = x;
	const double *b = y;
	for (int i = 0; i < n; i++)
		a[i] += b[i];
}

static void max_int64s(void *x, const void *y, int n)
{
	int64_t *a = x;
	const int64_t *b = y;
	for (int i = 0; i < n; i++)
		a[i] = a[i] > b[i] ? a[i] : b[i];
}

void occ_comm_sum_double(struct occ_comm *c, double *x, int n)
{
	fold_words(c, x, n, add_doubles);
}

void occ_comm_max_int64(struct occ_comm *c, int64_t *x, int n)
{
	fold_words(c, x, n, max_int64s);
}

void occ_comm_barrier(struct occ_comm *c)
{
	int64_t nothing = 0;
	occ_comm_max_int64(c, &nothing, 1);
}

int occ_agree(struct occ_comm *c, const struct occ_err *e)
{
	/* The largest word is that of the lowest failing rank. */
	int64_t word = e->code ? (int64_t)(c->size - c->rank) << 8 | e->code : 0;
	int64_t top[2] = {word, !word}; /* and whether any has none */
	occ_comm_max_int64(c, top, 2);
	if (!top[0])
		return OCC_OK;
	if (top[0] == word)
		(top[1] ? occ_err_print_place : occ_err_print)(e);
	occ_comm_barrier(c); /* nobody ends the job before the line is out */
	return (int)(top[0] & 0xff);
}

int occ_differs(struct occ_comm *c, uint64_t word)
{
	int64_t x[2] = {(int64_t)word, (int64_t)~word};
	occ_comm_max_int64(c, x, 2);
	return x[0] != ~x[1];
}
