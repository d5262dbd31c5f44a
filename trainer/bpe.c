/* Merging takes the pair of lowest rank first, leftmost among equals, from a heap over a linked list of
 * symbols. Pieces repeat, so their ids are cached. */
#include "trainer/bpe.h"

#include <string.h>

#include "base/mem.h"
#include "trainer/files.h"

struct symbol { uint32_t at, n; };            /* bytes of an id in `text` */
struct pair { uint64_t key; int32_t id; };    /* left << 32 | right; id 0: empty (no merge makes id 0) */

enum { CACHE = 1 << 15, CACHED_BYTES = 24, CACHED_IDS = 12 };
struct cached { uint8_t n, nids; unsigned char text[CACHED_BYTES]; int32_t ids[CACHED_IDS]; };

struct node { int32_t id; int prev, next; };  /* id < 0: merged away */
struct entry { int32_t id; int at; int32_t left, right; };

struct occ_bpe {
	struct symbol *symbols;
	int64_t nsymbols;
	char *text;                 /* bytes of all symbols, one after the other */
	size_t text_bytes;
	struct pair *pairs;
	int32_t *by_text;           /* hash of symbols by their bytes: id + 1; 0: empty */
	uint64_t mask;              /* of both tables */
	int32_t byte_id[256];
	struct cached *cache;       /* [CACHE] */
	struct node *nodes;         /* scratch of the longest piece so far */
	struct entry *heap;
	size_t room, nheap;
};

static uint64_t mix(uint64_t x)
{
	x ^= x >> 32;
	x *= 0x9e3779b97f4a7c15u;
	return x ^ x >> 29;
}

static uint64_t hash_bytes(const void *text, size_t n)
{
	const unsigned char *p = text;
	uint64_t h = n;
	for (size_t i = 0; i < n; i++)
		h = mix(h + p[i] + 1);
	return h;
}

static struct pair *find_pair(const struct occ_bpe *b, int32_t left, int32_t right)
{
	uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right, i = mix(key);
	while (b->pairs[i & b->mask].id && b->pairs[i & b->mask].key != key)
		i++;
	return &b->pairs[i & b->mask];
}

/* The slot of a symbol with these bytes, or the empty one where it would be. */
static int32_t *find_text(const struct occ_bpe *b, const char *text, size_t n)
{
	uint64_t i = hash_bytes(text, n);
	for (;; i++) {
		int32_t *slot = &b->by_text[i & b->mask];
		const struct symbol *s = &b->symbols[*slot - (*slot > 0)];
		if (!*slot || (s->n == n && !memcmp(b->text + s->at, text, n)))
			return slot;
	}
}

static void add_symbol(struct occ_bpe *b, size_t n)
{
	struct symbol s = {(uint32_t)b->text_bytes, (uint32_t)n};
	int32_t *slot = find_text(b, b->text + s.at, n);
	b->symbols[b->nsymbols++] = s;
	b->text_bytes += n;
	*slot = (int32_t)b->nsymbols;
}

static int printable(int c)
{
	return (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || c >= 174;
}

/* GPT-2's order of bytes: printable ones first. Unprintable byte number k is written U+0100 + k. */
static void add_bytes(struct occ_bpe *b)
{
	for (int pass = 0; pass < 2; pass++)
		for (int c = 0; c < 256; c++)
			if (printable(c) == !pass) {
				b->byte_id[c] = (int32_t)b->nsymbols;
				b->text[b->text_bytes] = (char)c;
				add_symbol(b, 1);
			}
}

/* The byte that one character of the file stands for, -1 if none; moves *p. */
static int read_byte(const unsigned char **p, const unsigned char *end)
{
	unsigned c = *(*p)++;
	if (c >= 0x80) {
		if (c < 0xc2 || c > 0xc5 || *p == end || (**p & 0xc0) != 0x80)
			return -1;
		c = (c & 0x1f) << 6 | (*(*p)++ & 0x3f);
	}
	if (c < 256)
		return printable((int)c) ? (int)c : -1;
	for (int byte = 0, k = 0; byte < 256; byte++)
		if (!printable(byte) && c == 256u + (unsigned)k++)
			return byte;
	return -1;
}

/* One symbol of a line: its bytes are put at the end of b->text; returns its id, -1 if unknown. */
static int32_t read_symbol(struct occ_bpe *b, const unsigned char **p, const unsigned char *end, size_t *n)
{
	size_t from = b->text_bytes + *n, len = 0;
	while (*p < end && **p != ' ') {
		int byte = read_byte(p, end);
		if (byte < 0)
			return -1;
		b->text[from + len++] = (char)byte;
	}
	*n += len;
	return len ? *find_text(b, b->text + from, len) - 1 : -1;
}

/* "left right" as a merge; what is wrong with the line, or NULL. */
static const char *add_merge(struct occ_bpe *b, const unsigned char *p, const unsigned char *end)
{
	size_t n = 0;
	int32_t left = read_symbol(b, &p, end, &n);
	if (left < 0)
		return "the first symbol is not known here";
	if (p == end || *p++ != ' ')
		return "two symbols with one space between are needed";
	int32_t right = read_symbol(b, &p, end, &n);
	if (right < 0)
		return "the second symbol is not known here";
	if (p != end)
		return "more than two symbols";
	struct pair *pair = find_pair(b, left, right);
	if (pair->id)
		return "this merge was there before";
	if (*find_text(b, b->text + b->text_bytes, n))
		return "the result of this merge was there before";
	*pair = (struct pair){(uint64_t)(uint32_t)left << 32 | (uint32_t)right, (int32_t)b->nsymbols};
	add_symbol(b, n);
	return NULL;
}

static int read_merges(struct occ_bpe *b, const char *path, const unsigned char *p, size_t bytes,
		       struct occ_err *e)
{
	const unsigned char *stop = p + bytes;
	for (int line = 1; p < stop; line++) {
		const unsigned char *end = memchr(p, '\n', (size_t)(stop - p)), *next;
		end = end ? end : stop;
		next = end < stop ? end + 1 : end;
		if (end > p && end[-1] == '\r')
			end--;
		int comment = line == 1 && end - p >= 8 && !memcmp(p, "#version", 8);
		const char *why = comment || p == end ? NULL : add_merge(b, p, end);
		if (why)
			return occ_fail(e, OCC_E_DATA, "%s:%d: %s", path, line, why);
		p = next;
	}
	return 0;
}

enum { MAX_FILE = 64 << 20 };

/* Tables that can never fill up: a merge takes at least four bytes of the file, a symbol's bytes are at
 * most the line's. */
static void make_room(struct occ_bpe *b, size_t bytes)
{
	size_t most = bytes / 3 + 512, slots = 1024;
	while (slots < 2 * most)
		slots *= 2;
	b->mask = slots - 1;
	b->symbols = occ_alloc(most, sizeof(*b->symbols));
	b->text = occ_alloc(bytes + 1024, 1);
	b->pairs = occ_alloc(slots, sizeof(*b->pairs));
	b->by_text = occ_alloc(slots, sizeof(*b->by_text));
	b->cache = occ_alloc(CACHE, sizeof(*b->cache));
}

struct occ_bpe *occ_bpe_open(const char *path, struct occ_err *e)
{
	static const char eot[] = "<|endoftext|>";
	void *map;
	size_t bytes;
	if (occ_map_open(path, OCC_E_DATA, &map, &bytes, e))
		return NULL;
	struct occ_bpe *b = occ_alloc(1, sizeof(*b));
	if (bytes == 0 || bytes > MAX_FILE) {
		occ_fail(e, OCC_E_DATA, "%s: %zu bytes: not a merge list", path, bytes);
	} else {
		make_room(b, bytes);
		add_bytes(b);
		if (!read_merges(b, path, map, bytes, e)) {
			memcpy(b->text + b->text_bytes, eot, sizeof(eot) - 1);
			b->symbols[b->nsymbols++] = (struct symbol){(uint32_t)b->text_bytes, sizeof(eot) - 1};
			b->text_bytes += sizeof(eot) - 1;
		}
	}
	occ_map_close(map, bytes);
	if (!e->code)
		return b;
	occ_bpe_close(b);
	return NULL;
}

void occ_bpe_close(struct occ_bpe *b)
{
	if (!b)
		return;
	void *const all[] = {b->symbols, b->text, b->pairs, b->by_text, b->cache, b->nodes, b->heap};
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		occ_free(all[i]);
	occ_free(b);
}

int64_t occ_bpe_size(const struct occ_bpe *b)
{
	return b->nsymbols;
}

const char *occ_bpe_bytes(const struct occ_bpe *b, int32_t id, size_t *n)
{
	*n = 0;
	if (id < 0 || id >= b->nsymbols)
		return NULL;
	*n = b->symbols[id].n;
	return b->text + b->symbols[id].at;
}

static int before(const struct entry *x, const struct entry *y)
{
	return x->id != y->id ? x->id < y->id : x->at < y->at; /* ids of merges are in order of rank */
}

static void push(struct occ_bpe *b, int at)
{
	struct node *n = b->nodes;
	if (at < 0 || n[at].next < 0)
		return;
	int32_t left = n[at].id, right = n[n[at].next].id, id = find_pair(b, left, right)->id;
	if (!id)
		return;
	size_t i = b->nheap++;
	struct entry x = {id, at, left, right};
	for (; i > 0 && before(&x, &b->heap[(i - 1) / 2]); i = (i - 1) / 2)
		b->heap[i] = b->heap[(i - 1) / 2];
	b->heap[i] = x;
}

static struct entry pop(struct occ_bpe *b)
{
	struct entry top = b->heap[0], x = b->heap[--b->nheap];
	size_t i = 0;
	for (;;) {
		size_t child = 2 * i + 1;
		if (child >= b->nheap)
			break;
		if (child + 1 < b->nheap && before(&b->heap[child + 1], &b->heap[child]))
			child++;
		if (!before(&b->heap[child], &x))
			break;
		b->heap[i] = b->heap[child];
		i = child;
	}
	b->heap[i] = x;
	return top;
}

static size_t merge(struct occ_bpe *b, const unsigned char *text, size_t n, int32_t *out)
{
	size_t count = 0;
	if (n > b->room) {
		occ_free(b->nodes);
		occ_free(b->heap);
		b->room = n;
		b->nodes = occ_alloc(n, sizeof(*b->nodes));
		b->heap = occ_alloc(3 * n, sizeof(*b->heap)); /* n - 1 pairs, two more for each of n - 1 merges */
	}
	struct node *nodes = b->nodes;
	for (size_t i = 0; i < n; i++)
		nodes[i] = (struct node){b->byte_id[text[i]], (int)i - 1, i + 1 < n ? (int)i + 1 : -1};
	b->nheap = 0;
	for (size_t i = 0; i < n; i++)
		push(b, (int)i);
	while (b->nheap) {
		struct entry x = pop(b);
		struct node *l = &nodes[x.at];
		if (l->id != x.left || l->next < 0 || nodes[l->next].id != x.right)
			continue; /* one of the two has been merged meanwhile */
		int gone = l->next;
		l->id = x.id;
		l->next = nodes[gone].next;
		nodes[gone].id = -1;
		if (l->next >= 0)
			nodes[l->next].prev = x.at;
		push(b, l->prev);
		push(b, x.at);
	}
	for (int i = 0; i >= 0; i = nodes[i].next)
		out[count++] = nodes[i].id;
	return count;
}

size_t occ_bpe_piece(struct occ_bpe *b, const unsigned char *text, size_t n, int32_t *out)
{
	struct cached *c = NULL;
	if (n <= CACHED_BYTES) {
		c = &b->cache[hash_bytes(text, n) % CACHE];
		if (c->n == n && !memcmp(c->text, text, n)) {
			memcpy(out, c->ids, c->nids * sizeof(*out));
			return c->nids;
		}
	}
	size_t count = merge(b, text, n, out);
	if (c && count <= CACHED_IDS) {
		c->n = (uint8_t)n;
		c->nids = (uint8_t)count;
		memcpy(c->text, text, n);
		memcpy(c->ids, out, count * sizeof(*out));
	}
	return count;
}
