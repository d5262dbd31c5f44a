/* The expression as a scanner: one class per character, and runs of one class. */
#include "trainer/pretoken.h"

#include <stdint.h>
#include <string.h>

#include "trainer/unicode_ranges.h"

enum class { LETTER, NUMBER, SPACE, OTHER, END };

static int within(const uint32_t (*r)[2], size_t n, uint32_t c)
{
	size_t lo = 0, hi = n;
	while (lo < hi) {
		size_t mid = (lo + hi) / 2;
		if (c > r[mid][1])
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < n && c >= r[lo][0];
}

static int is_space(uint32_t c)
{
	return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
	       (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
	       c == 0x3000;
}

static enum class class_of(uint32_t c)
{
	if (c < 0x80) {
		unsigned lower = c | 0x20;
		return lower >= 'a' && lower <= 'z' ? LETTER
		       : c >= '0' && c <= '9'       ? NUMBER
		       : is_space(c)                ? SPACE
						    : OTHER;
	}
	if (is_space(c))
		return SPACE;
	if (within(letters, sizeof(letters) / sizeof(letters[0]), c))
		return LETTER;
	return within(numbers, sizeof(numbers) / sizeof(numbers[0]), c) ? NUMBER : OTHER;
}

/* Class and length of the character at p[0]. */
static enum class next(const unsigned char *p, size_t n, size_t *len)
{
	static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
	*len = n ? 1 : 0;
	if (!n)
		return END;
	if (p[0] < 0x80)
		return class_of(p[0]);
	size_t k = p[0] >= 0xf0 && p[0] < 0xf5 ? 4 : p[0] >= 0xe0 ? 3 : p[0] >= 0xc2 ? 2 : 0;
	if (!k || k > n || p[0] >= 0xf5)
		return OTHER;
	uint32_t c = p[0] & (0xffu >> (k + 1));
	for (size_t i = 1; i < k; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return OTHER;
		c = c << 6 | (p[i] & 0x3fu);
	}
	if (c < least[k] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
		return OTHER;
	*len = k;
	return class_of(c);
}

/* Bytes of the run of `want` at p; *last = length of its last character. */
static size_t run(const unsigned char *p, size_t n, enum class want, size_t *last)
{
	size_t at = 0, len;
	while (at < n && next(p + at, n - at, &len) == want) {
		at += len;
		*last = len;
	}
	return at;
}

static size_t contraction(const unsigned char *p, size_t n)
{
	static const char *const ends[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
	for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		size_t len = strlen(ends[i]);
		if (len <= n && !memcmp(p, ends[i], len))
			return len;
	}
	return 0;
}

size_t occ_pretoken(const unsigned char *p, size_t n)
{
	size_t len, last = 0, from = 0, found = p[0] == '\'' ? contraction(p, n) : 0;
	if (found)
		return found;
	enum class k = next(p, n, &len);
	if (p[0] == ' ') {
		enum class after = next(p + 1, n - 1, &len);
		if (after != SPACE && after != END) {
			from = 1;
			k = after;
		}
	}
	if (k != SPACE)
		return from + run(p + from, n - from, k, &last);
	size_t spaces = run(p, n, SPACE, &last);
	return spaces == n || spaces == last ? spaces : spaces - last; /* the last one starts a word */
}
