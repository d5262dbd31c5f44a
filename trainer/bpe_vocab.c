/* Reads a list of merges and never trusts it: each line names two known symbols and makes a new
 * one. That every symbol is older than what it is merged into is what makes "lowest merge first"
 * right. */
#include <string.h>

#include "base/mem.h"
#include "trainer/bpe.h"
#include "trainer/files.h"

static const char end_of_text[] = "<|endoftext|>";

/* GPT-2 writes bytes as characters: printable ones as themselves, the others as U+0100 and up. */
static int printable(int c)
{
	return (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255);
}

struct reader {
	struct occ_vocab *v;
	const char *path;
	const char *text, *end;    /* what is left of the file */
	int64_t line;              /* from 1 */
	int16_t byte_of[256 + 68]; /* character to byte, -1 for none */
	int32_t *line_of;          /* [n]: the line that made each id */
	int32_t *strings;          /* hash of strings to ids + 1, 0 = free */
	uint64_t mask;             /* of both hashes */
};

static uint64_t stir(uint64_t h)
{
	h *= 0x9e3779b97f4a7c15u;
	return h ^ h >> 29;
}

static uint64_t hash_string(const char *s, size_t n)
{
	uint64_t h = n;
	for (size_t i = 0; i < n; i++)
		h = stir(h ^ (unsigned char)s[i]);
	return h;
}

static uint64_t hash_pair(int32_t left, int32_t right)
{
	return stir(stir((uint64_t)(uint32_t)left << 32 | (uint32_t)right));
}

/* The place in `strings` of this string, or the free one where it belongs. */
static int32_t *find(const struct reader *r, const char *s, size_t n)
{
	const struct occ_vocab *v = r->v;
	for (uint64_t h = hash_string(s, n);; h++) {
		int32_t *slot = &r->strings[h & r->mask], id = *slot - 1;
		if (id < 0 ||
		    (v->at[id + 1] - v->at[id] == n && !memcmp(v->pool + v->at[id], s, n)))
			return slot;
	}
}

int32_t occ_vocab_merge(const struct occ_vocab *v, int32_t left, int32_t right)
{
	for (uint64_t h = hash_pair(left, right);; h++) {
		int32_t id = v->slots[h & v->slots_mask];
		if (!id)
			return -1;
		const struct occ_pair *p = &v->pairs[id - 256];
		if (p->left == left && p->right == right)
			return id;
	}
}

static void add_pair(struct occ_vocab *v, int32_t id, struct occ_pair pair)
{
	uint64_t h = hash_pair(pair.left, pair.right);
	while (v->slots[h & v->slots_mask])
		h++;
	v->slots[h & v->slots_mask] = id;
	v->pairs[id - 256] = pair;
}

/* The string that stands at the end of the pool becomes the next id. */
static void add_string(struct reader *r, size_t n)
{
	struct occ_vocab *v = r->v;
	int32_t id = v->n++;
	v->at[id + 1] = v->at[id] + n;
	r->line_of[id] = (int32_t)r->line;
	*find(r, v->pool + v->at[id], n) = id + 1;
}

static void add_bytes(struct reader *r)
{
	struct occ_vocab *v = r->v;
	memset(r->byte_of, 0xff, sizeof(r->byte_of));
	for (int shown = 1, other = 256; shown >= 0; shown--)
		for (int c = 0; c < 256; c++) {
			if (printable(c) != shown)
				continue;
			r->byte_of[shown ? c : other++] = (int16_t)c;
			v->byte_id[c] = v->n;
			v->pool[v->at[v->n]] = (char)c;
			add_string(r, 1);
		}
}

/* One character of GPT-2's alphabet to its byte, or -1; *s is stepped over it. */
static int take_byte(const struct reader *r, const char **s, const char *end)
{
	unsigned c = (unsigned char)*(*s)++;
	if (c >= 0x80) {
		if (c < 0xc2 || c > 0xc5 || *s == end || (**s & 0xc0) != 0x80)
			return -1;
		c = (c & 0x1f) << 6 | (*(*s)++ & 0x3f);
	}
	return c < sizeof(r->byte_of) / sizeof(r->byte_of[0]) ? r->byte_of[c] : -1;
}

/* Decodes a symbol to the end of the pool + used; its id, or -1 with a refusal. */
static int32_t take_symbol(struct reader *r, const char *s, const char *end, size_t *used,
			   struct occ_err *e)
{
	char *to = r->v->pool + r->v->at[r->v->n] + *used;
	const char *p = s;
	size_t n = 0;
	while (p < end) {
		int c = take_byte(r, &p, end);
		if (c < 0)
			return occ_fail(
				e, OCC_E_DATA,
				"%s:%lld: column %lld is no character of GPT-2's byte alphabet",
				r->path, (long long)r->line, (long long)(p - s));
		to[n++] = (char)c;
	}
	*used += n;
	int32_t id = *find(r, to, n) - 1;
	if (id < 0)
		return occ_fail(e, OCC_E_DATA,
				"%s:%lld: merges '%.*s', which no byte and no line above makes",
				r->path, (long long)r->line, (int)(end - s < 200 ? end - s : 200),
				s);
	return id;
}

static int take_merge(struct reader *r, const char *s, const char *end, struct occ_err *e)
{
	struct occ_vocab *v = r->v;
	size_t n = 0;
	const char *gap = memchr(s, ' ', (size_t)(end - s));
	if (!gap || gap == s || gap + 1 == end || memchr(gap + 1, ' ', (size_t)(end - gap - 1)))
		return occ_fail(e, OCC_E_DATA,
				"%s:%lld: not a merge: expected two symbols with one space between",
				r->path, (long long)r->line);
	struct occ_pair pair = {take_symbol(r, s, gap, &n, e), -1};
	if (pair.left >= 0)
		pair.right = take_symbol(r, gap + 1, end, &n, e);
	if (pair.right < 0)
		return -1;
	int32_t known = *find(r, v->pool + v->at[v->n], n) - 1;
	if (known >= 0)
		return occ_fail(e, OCC_E_DATA, "%s:%lld: makes the same token as line %d", r->path,
				(long long)r->line, r->line_of[known]);
	add_string(r, n);
	add_pair(v, v->n - 1, pair);
	return 0;
}

static int take_lines(struct reader *r, struct occ_err *e)
{
	for (r->line = 1; r->text < r->end; r->line++) {
		const char *s = r->text, *end = memchr(s, '\n', (size_t)(r->end - s));
		r->text = end ? end + 1 : r->end;
		end = end ? end : r->end;
		if (end > s && end[-1] == '\r')
			end--;
		if (r->line == 1 && end - s >= 8 && !memcmp(s, "#version", 8))
			continue;
		if (take_merge(r, s, end, e))
			return -1;
	}
	return 0;
}

/* A symbol is never longer than it is written, so the file's size bounds the pool. */
static void make_room(struct reader *r, int64_t lines)
{
	struct occ_vocab *v = r->v;
	size_t ids = (size_t)lines + 257, slots = 1024;
	while (slots < 2 * ids)
		slots *= 2;
	r->mask = v->slots_mask = slots - 1;
	v->pool = occ_alloc((size_t)(r->end - r->text) + 256 + sizeof(end_of_text), 1);
	v->at = occ_alloc(ids + 1, sizeof(*v->at));
	v->pairs = occ_alloc(ids, sizeof(*v->pairs));
	v->slots = occ_alloc(slots, sizeof(*v->slots));
	r->strings = occ_alloc(slots, sizeof(*r->strings));
	r->line_of = occ_alloc(ids, sizeof(*r->line_of));
}

static int read_merges(struct reader *r, struct occ_err *e)
{
	struct occ_vocab *v = r->v;
	int64_t lines = 1;
	for (const char *s = r->text; s && s < r->end; lines++) {
		s = memchr(s, '\n', (size_t)(r->end - s));
		s = s ? s + 1 : NULL;
	}
	if (lines > INT32_MAX - 1024)
		return occ_fail(e, OCC_E_DATA, "%s: more merges than there are 32-bit ids",
				r->path);
	make_room(r, lines);
	add_bytes(r);
	if (take_lines(r, e))
		return -1;
	memcpy(v->pool + v->at[v->n], end_of_text, sizeof(end_of_text) - 1);
	v->at[v->n + 1] = v->at[v->n] + sizeof(end_of_text) - 1;
	v->n++;
	return 0;
}

int occ_vocab_open(struct occ_vocab *v, const char *path, struct occ_err *e)
{
	void *map;
	size_t bytes;
	*v = (struct occ_vocab){0};
	if (occ_map_open(path, OCC_E_DATA, &map, &bytes, e))
		return -1;
	struct reader r = {.v = v, .path = path, .text = map};
	int bad;
	if (bytes) {
		r.end = r.text + bytes;
		bad = read_merges(&r, e);
	} else {
		bad = occ_fail(e, OCC_E_DATA, "%s: the file is empty", path);
	}
	occ_free(r.strings);
	occ_free(r.line_of);
	occ_map_close(map, bytes);
	if (bad)
		occ_vocab_release(v);
	return bad;
}

void occ_vocab_release(struct occ_vocab *v)
{
	occ_free(v->pool);
	occ_free(v->at);
	occ_free(v->pairs);
	occ_free(v->slots);
	*v = (struct occ_vocab){0};
}
