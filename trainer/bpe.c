/* Merging. A word is a linked list of symbols; a heap holds the pairs that can merge, lowest merge
 * first, then leftmost. Entries are not removed when their pair goes: a popped one that no longer
 * fits is passed over. So a word of n symbols costs n log n, whatever it is. Most words never come
 * here: they stand in a direct-mapped cache, one line of the processor's cache each. */
#include "trainer/bpe.h"

#include <string.h>

#include "base/mem.h"

enum { CACHE_WORDS = 1 << 15, CACHED_BYTES = 30, CACHED_IDS = 8 };

struct cached {
	uint8_t bytes, n; /* bytes 0: nothing here */
	char text[CACHED_BYTES];
	int32_t ids[CACHED_IDS];
};

struct symbol {
	int32_t id; /* -1: merged into the one before */
	uint32_t prev, next;
};

struct occ_bpe {
	struct occ_vocab vocab;
	struct cached *cache; /* [CACHE_WORDS] */
	size_t room;          /* symbols for which there is scratch */
	struct symbol *symbols;
	uint64_t *heap; /* id of what is made << 32 | position */
	size_t waiting; /* entries of the heap */
};

static const uint32_t none = UINT32_MAX;

struct occ_bpe *occ_bpe_open(const char *path, struct occ_err *e)
{
	struct occ_bpe *b = occ_alloc(1, sizeof(*b));
	if (occ_vocab_open(&b->vocab, path, e)) {
		occ_free(b);
		return NULL;
	}
	b->cache = occ_alloc(CACHE_WORDS, sizeof(*b->cache));
	return b;
}

void occ_bpe_close(struct occ_bpe *b)
{
	if (!b)
		return;
	occ_vocab_release(&b->vocab);
	occ_free(b->cache);
	occ_free(b->symbols);
	occ_free(b->heap);
	occ_free(b);
}

const struct occ_vocab *occ_bpe_vocab(const struct occ_bpe *b)
{
	return &b->vocab;
}

static void push(struct occ_bpe *b, uint64_t entry)
{
	size_t i = b->waiting++;
	for (; i && b->heap[(i - 1) / 2] > entry; i = (i - 1) / 2)
		b->heap[i] = b->heap[(i - 1) / 2];
	b->heap[i] = entry;
}

static uint64_t pop(struct occ_bpe *b)
{
	uint64_t top = b->heap[0], last = b->heap[--b->waiting];
	size_t i = 0, n = b->waiting;
	for (size_t child; (child = 2 * i + 1) < n; i = child) {
		child += child + 1 < n && b->heap[child + 1] < b->heap[child];
		if (b->heap[child] >= last)
			break;
		b->heap[i] = b->heap[child];
	}
	b->heap[i] = last;
	return top;
}

/* Puts the pair that starts at symbol i on the heap, if it can merge. */
static void offer(struct occ_bpe *b, uint32_t i)
{
	const struct symbol *s = b->symbols;
	if (i == none || s[i].next == none)
		return;
	int32_t id = occ_vocab_merge(&b->vocab, s[i].id, s[s[i].next].id);
	if (id >= 0)
		push(b, (uint64_t)id << 32 | i);
}

/* An upper bound of the heap: one entry for each pair at first, two for each merge. */
static void make_room(struct occ_bpe *b, size_t n)
{
	if (n <= b->room)
		return;
	occ_free(b->symbols);
	occ_free(b->heap);
	b->room = n < 1024 ? 1024 : n;
	b->symbols = occ_alloc(b->room, sizeof(*b->symbols));
	b->heap = occ_alloc(3 * b->room, sizeof(*b->heap));
}

static void start(struct occ_bpe *b, const char *word, uint32_t n)
{
	make_room(b, n);
	for (uint32_t i = 0; i < n; i++)
		b->symbols[i] = (struct symbol){b->vocab.byte_id[(unsigned char)word[i]],
						i ? i - 1 : none, i + 1 < n ? i + 1 : none};
	b->waiting = 0;
	for (uint32_t i = 0; i + 1 < n; i++)
		offer(b, i);
}

static void merge(struct occ_bpe *b, const char *word, uint32_t n)
{
	start(b, word, n);
	struct symbol *s = b->symbols;
	while (b->waiting) {
		uint64_t entry = pop(b);
		uint32_t i = (uint32_t)entry, next = s[i].next;
		const struct occ_pair *p = &b->vocab.pairs[(entry >> 32) - 256];
		if (s[i].id != p->left || next == none || s[next].id != p->right)
			continue;
		s[i].id = (int32_t)(entry >> 32);
		s[i].next = s[next].next;
		s[next].id = -1;
		if (s[i].next != none)
			s[s[i].next].prev = i;
		offer(b, s[i].prev);
		offer(b, i);
	}
}

void occ_ids_append(struct occ_ids *out, const int32_t *ids, int64_t n)
{
	if (out->n + n > out->room) {
		int64_t room = 2 * out->room + n + 1024;
		int32_t *at = occ_alloc((size_t)room, sizeof(*at));
		if (out->n)
			memcpy(at, out->at, (size_t)out->n * sizeof(*at));
		occ_free(out->at);
		out->at = at;
		out->room = room;
	}
	memcpy(out->at + out->n, ids, (size_t)n * sizeof(*ids));
	out->n += n;
}

static struct cached *slot(const struct occ_bpe *b, const char *word, size_t n)
{
	uint64_t h = n;
	for (; n >= 8; n -= 8, word += 8) {
		uint64_t x;
		memcpy(&x, word, 8);
		h = (h ^ x) * 0x9e3779b97f4a7c15u;
		h ^= h >> 32;
	}
	uint64_t x = 0;
	memcpy(&x, word, n);
	h = (h ^ x) * 0x9e3779b97f4a7c15u;
	return &b->cache[(h ^ h >> 32) % CACHE_WORDS];
}

void occ_bpe_word(struct occ_bpe *b, const char *word, size_t n, struct occ_ids *out)
{
	struct cached *c = n && n <= CACHED_BYTES ? slot(b, word, n) : NULL;
	if (c && c->bytes == n && !memcmp(c->text, word, n)) {
		occ_ids_append(out, c->ids, c->n);
		return;
	}
	int64_t before = out->n;
	merge(b, word, (uint32_t)n);
	for (uint32_t i = 0; i != none && i < n; i = b->symbols[i].next)
		occ_ids_append(out, &b->symbols[i].id, 1);
	if (!c || out->n - before > CACHED_IDS)
		return;
	c->bytes = (uint8_t)n;
	c->n = (uint8_t)(out->n - before);
	memcpy(c->text, word, n);
	memcpy(c->ids, out->at + before, c->n * sizeof(*c->ids));
}
