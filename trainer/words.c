/* A hand-written matcher: each branch of the pattern is one decision on the class of a character.
 */
#include "trainer/words.h"

#include <stdint.h>
#include <string.h>

/* Values as scripts/unicode-table writes them. */
enum occ_char { OCC_CHAR_OTHER, OCC_CHAR_LETTER, OCC_CHAR_NUMBER, OCC_CHAR_SPACE };

static const uint32_t starts[] = {
#include "trainer/unicode_table.inc"
};

enum { WORD_MAX = 1 << 30 };

static enum occ_char class_of(uint32_t c)
{
	size_t lo = 0, hi = sizeof(starts) / sizeof(starts[0]);
	while (hi - lo > 1) {
		size_t mid = lo + (hi - lo) / 2;
		if (starts[mid] >> 2 <= c)
			lo = mid;
		else
			hi = mid;
	}
	return starts[lo] & 3;
}

/* Length of the UTF-8 character at p (1 for a byte that starts none); *c is set if it is valid. */
static size_t decode(const unsigned char *p, size_t n, uint32_t *c)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	size_t len = p[0] < 0xc2 ? 1 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 1;
	if (len == 1 || len > n)
		return 1;
	uint32_t x = p[0] & (0x7fu >> len);
	for (size_t i = 1; i < len; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 1;
		x = x << 6 | (p[i] & 0x3f);
	}
	if (x < least[len] || x > 0x10ffff || (x >= 0xd800 && x < 0xe000))
		return 1;
	*c = x;
	return len;
}

static enum occ_char ascii(unsigned char c)
{
	if ((c | 32) >= 'a' && (c | 32) <= 'z')
		return OCC_CHAR_LETTER;
	if (c >= '0' && c <= '9')
		return OCC_CHAR_NUMBER;
	return c == ' ' || (c >= '\t' && c <= '\r') ? OCC_CHAR_SPACE : OCC_CHAR_OTHER;
}

/* Class of the character at *at < n, which is stepped over. */
static enum occ_char char_next(const char *text, size_t n, size_t *at)
{
	const unsigned char *p = (const unsigned char *)text + *at;
	uint32_t c = 0;
	if (*p < 0x80) {
		++*at;
		return ascii(*p);
	}
	size_t len = decode(p, n - *at, &c);
	*at += len;
	return len == 1 ? OCC_CHAR_OTHER : class_of(c);
}

/* The end of the run of class `k` that `at` stands in; *last is where its last character starts. */
static size_t run(const char *text, size_t n, size_t at, enum occ_char k, size_t *last)
{
	size_t limit = n - at < WORD_MAX ? n : at + WORD_MAX;
	while (at < limit) {
		size_t next = at;
		if (char_next(text, n, &next) != k)
			break;
		*last = at;
		at = next;
	}
	return at;
}

/* White space leaves its last character to the word behind it, unless it has no other. */
static size_t spaces(const char *text, size_t n, size_t at)
{
	size_t last = at, end = run(text, n, at, OCC_CHAR_SPACE, &last);
	return end < n && last > at ? last : end;
}

static size_t contraction(const char *p, size_t n)
{
	static const char *const tails[] = {"s", "t", "re", "ve", "m", "ll", "d"};
	for (size_t i = 0; n && *p == '\'' && i < sizeof(tails) / sizeof(tails[0]); i++) {
		size_t len = strlen(tails[i]);
		if (len < n && !memcmp(p + 1, tails[i], len))
			return 1 + len;
	}
	return 0;
}

size_t occ_word_end(const char *text, size_t n, size_t at)
{
	size_t len = contraction(text + at, n - at), next, last;
	if (len)
		return at + len;
	next = at + (text[at] == ' ' && at + 1 < n); /* the optional space */
	size_t first = next;
	enum occ_char k = char_next(text, n, &next);
	if (k == OCC_CHAR_SPACE)
		return spaces(text, n, at);
	return run(text, n, first, k, &last);
}
