/* Cpu: sparse codecs. The k-th largest magnitude of a row is found first: bit by bit for short
 * rows, each by one thread; by histograms of its digits, taken by a team, for long ones. Then the
 * elements at or above it are written in the order of their columns. */
#include "base/cpu.h"

#include "base/vmath.h"

enum { LONG = 65536, MOST_PIECES = 64, BINS = 2048, SAMPLE = 4096 };

/* What is kept of a piece: magnitudes above `limit`, and the first `ties` equal to it. */
struct kept {
	int32_t limit;
	int64_t ties;
};

/* One piece of a long row. */
struct piece {
	int64_t at, end, above, equal; /* found above and at the limit */
	uint32_t *bin;
};

INLINE vi magnitudes(const float *x, int64_t i)
{
	return (vi)vload(OCC_F32, x, i) & 0x7fffffff;
}

static int32_t magnitude(float x)
{
	int32_t u;
	memcpy(&u, &x, sizeof(u));
	return u & 0x7fffffff;
}

static int64_t count_from(int64_t n, const float *x, int32_t limit)
{
	int64_t count = 0, whole = n - n % VW;
	for (int64_t i = 0; i < whole; i += VW)
		count += __builtin_popcount(vbits(magnitudes(x, i) >= limit));
	for (int64_t i = whole; i < n; i++)
		count += magnitude(x[i]) >= limit;
	return count;
}

static int32_t smallest_from(int64_t n, const float *x, int32_t limit)
{
	int32_t least = INT32_MAX;
	for (int64_t i = 0; i < n; i++) {
		int32_t u = magnitude(x[i]);
		u = u >= limit ? u : INT32_MAX;
		least = u < least ? u : least;
	}
	return least;
}

/* The k-th largest magnitude, k >= 1. */
static int32_t kth(int64_t n, const float *x, int64_t k)
{
	int32_t limit = 0;
	for (int bit = 30; bit >= 0; bit--) {
		int64_t found = count_from(n, x, limit | 1 << bit);
		if (found >= k)
			limit |= 1 << bit;
		if (found == k)
			return smallest_from(n, x, limit);
	}
	return limit;
}

INLINE void index_set(int width, void *at, int64_t i, int64_t v)
{
	if (width == 2)
		((uint16_t *)at)[i] = (uint16_t)v;
	else
		((int32_t *)at)[i] = (int32_t)v;
}

/* Writes column c of x to place m if it is kept; returns the next place. */
INLINE int64_t write_one(int width, int64_t c, const float *x, struct kept *kept, int64_t m,
			 void *at, float *value)
{
	int32_t u = magnitude(x[c]);
	if (u < kept->limit || (u == kept->limit && kept->ties-- <= 0))
		return m;
	index_set(width, at, m, c);
	value[m] = x[c];
	return m + 1;
}

/* Columns c .. end-1 that are kept, from place m on, places below `most` only. */
INLINE void write_kept(int width, int64_t c, int64_t end, const float *x, struct kept kept,
		       int64_t m, int64_t most, void *at, float *value)
{
	for (; c + VW <= end && m < most; c += VW) {
		unsigned lanes = vbits(magnitudes(x, c) >= kept.limit);
		for (; lanes && m < most; lanes &= lanes - 1)
			m = write_one(width, c + __builtin_ctz(lanes), x, &kept, m, at, value);
	}
	for (; c < end && m < most; c++)
		m = write_one(width, c, x, &kept, m, at, value);
}

static void write_row(int width, int64_t c, int64_t end, const float *x, struct kept kept,
		      int64_t m, int64_t most, void *at, float *value)
{
	if (width == 2)
		write_kept(2, c, end, x, kept, m, most, at, value);
	else
		write_kept(4, c, end, x, kept, m, most, at, value);
}

static void short_rows(struct occ_device *d, int64_t R, int64_t C, int64_t k, const float *x,
		       int width, void *at, float *value, float *least)
{
	int nt = cpu_team(d, R * C);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t r = 0; r < R; r++) {
		const float *row = x + r * C;
		int32_t limit = kth(C, row, k);
		int64_t above = limit < INT32_MAX ? count_from(C, row, limit + 1) : 0;
		write_row(width, 0, C, row, (struct kept){limit, k - above}, 0, k,
			  (char *)at + r * k * width, value + r * k);
		if (least)
			memcpy(&least[r], &limit, sizeof(limit));
	}
}

/* ---- Long rows. ---- */

/* Which magnitudes count, and which of their bits: those above `shift`, `bits` of them. */
struct digits {
	int32_t from, head; /* no less than `from`, and `head` is what stands above the digit */
	int shift, bits;
};

static void count_digits(const float *x, const struct piece *p, struct digits g)
{
	int64_t i = p->at;
	int32_t mask = (1 << g.bits) - 1;
	memset(p->bin, 0, BINS * sizeof(*p->bin));
	for (; i + VW <= p->end; i += VW) {
		vi u = magnitudes(x, i);
		vi here = (u >= g.from) & (u >> (g.shift + g.bits) == g.head);
		for (unsigned lanes = vbits(here); lanes; lanes &= lanes - 1)
			p->bin[magnitude(x[i + __builtin_ctz(lanes)]) >> g.shift & mask]++;
	}
	for (; i < p->end; i++) {
		int32_t u = magnitude(x[i]);
		if (u >= g.from && u >> (g.shift + g.bits) == g.head)
			p->bin[u >> g.shift & mask]++;
	}
}

/* The digit in which the k-th largest lies, -1 if there are fewer; what lies above it is counted
 * in each piece. */
static int find_digit(int64_t pieces, struct piece *p, int bits, int64_t *k)
{
	int64_t found = 0, sum = 0;
	int digit = 1 << bits;
	while (digit > 0 && found < *k) {
		digit--;
		sum = found;
		for (int64_t i = 0; i < pieces; i++)
			found += p[i].bin[digit];
	}
	if (found < *k)
		return -1;
	*k -= sum;
	for (int64_t i = 0; i < pieces; i++) {
		for (int b = digit + 1; b < 1 << bits; b++)
			p[i].above += p[i].bin[b];
		p[i].equal = p[i].bin[digit];
	}
	return digit;
}

/* A magnitude that most likely has k above it, from every n/SAMPLE-th element. */
static int32_t guess(int64_t n, const float *x, int64_t k)
{
	float some[SAMPLE];
	int64_t step = n / SAMPLE, rank = k / step + k / step / 2 + 32;
	if (rank >= SAMPLE)
		return 0;
	for (int64_t i = 0; i < SAMPLE; i++)
		some[i] = x[i * step];
	return kth(SAMPLE, some, rank);
}

static int digit_of(struct occ_device *d, const float *x, int64_t pieces, struct piece *p,
		    struct digits g, int64_t *k)
{
#pragma omp parallel for num_threads(d->threads) if (d->threads > 1) schedule(static)
	for (int64_t i = 0; i < pieces; i++)
		count_digits(x, &p[i], g);
	return find_digit(pieces, p, g.bits, k);
}

/* Cuts n elements in pieces; their number depends on n only. */
static int64_t cut(int64_t n, struct piece p[MOST_PIECES], uint32_t *bin)
{
	int64_t size = n / MOST_PIECES / VW * VW + VW, pieces = 0;
	size = size < LONG / 4 ? LONG / 4 : size;
	for (int64_t at = 0; at < n; at += size, pieces++)
		p[pieces] = (struct piece){at, at + size < n ? at + size : n, 0, 0,
					   bin ? bin + pieces * BINS : NULL};
	return pieces;
}

/* The k-th largest magnitude: 11, 10 and 10 bits. k becomes the number of ties to keep. */
static int32_t kth_of_pieces(struct occ_device *d, int64_t n, const float *x, int64_t pieces,
			     struct piece *p, int64_t *k)
{
	struct digits g = {guess(n, x, *k), 0, 20, 11};
	int digit = digit_of(d, x, pieces, p, g, k);
	if (digit < 0) { /* guessed too high */
		g.from = 0;
		digit = digit_of(d, x, pieces, p, g, k);
	}
	for (g.bits = 10; g.shift > 0;) {
		g.shift -= 10;
		g.head = digit;
		digit = digit << 10 | digit_of(d, x, pieces, p, g, k);
	}
	return digit;
}

static void long_row(struct occ_device *d, int64_t n, int64_t k, const float *x, int width,
		     void *at, float *value, float *least)
{
	struct piece p[MOST_PIECES];
	int64_t first[MOST_PIECES + 1] = {0}, ties[MOST_PIECES], left = k;
	int64_t pieces = cut(n, p, (void *)occ_cpu_scratch(d, (size_t)MOST_PIECES * BINS));
	int32_t limit = kth_of_pieces(d, n, x, pieces, p, &left);
	for (int64_t i = 0; i < pieces; i++) {
		ties[i] = left < p[i].equal ? left : p[i].equal;
		left -= ties[i];
		first[i + 1] = first[i] + p[i].above + ties[i];
	}
#pragma omp parallel for num_threads(d->threads) if (d->threads > 1) schedule(static)
	for (int64_t i = 0; i < pieces; i++)
		write_row(width, p[i].at, p[i].end, x, (struct kept){limit, ties[i]}, first[i],
			  first[i + 1], at, value);
	if (least)
		memcpy(least, &limit, sizeof(limit));
}

void occ_cpu_select(struct occ_device *d, int64_t R, int64_t C, int64_t k, const float *d_x,
		    int width, void *d_at, float *d_value, float *d_least)
{
	if (k <= 0)
		return;
	if (C < LONG) {
		short_rows(d, R, C, k, d_x, width, d_at, d_value, d_least);
		return;
	}
	for (int64_t r = 0; r < R; r++)
		long_row(d, C, k, d_x + r * C, width, (char *)d_at + r * k * width, d_value + r * k,
			 d_least ? d_least + r : NULL);
}

void occ_cpu_above(struct occ_device *d, int64_t n, const float *d_x, const float *d_least,
		   int64_t cap, int32_t *d_at, float *d_value, int64_t *count)
{
	struct piece p[MOST_PIECES];
	int64_t first[MOST_PIECES + 1] = {0}, pieces = cut(n, p, NULL);
	int32_t limit = magnitude(*d_least);
	int nt = cpu_team(d, n);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t i = 0; i < pieces; i++)
		p[i].above = count_from(p[i].end - p[i].at, d_x + p[i].at, limit);
	for (int64_t i = 0; i < pieces; i++)
		first[i + 1] = first[i] + p[i].above;
	*count = first[pieces];
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t i = 0; i < pieces; i++)
		write_row(4, p[i].at, p[i].end, d_x, (struct kept){limit, p[i].end - p[i].at},
			  first[i], first[i + 1] < cap ? first[i + 1] : cap, d_at, d_value);
}
