/* JSON, strictly: the grammar is checked here byte by byte, then cJSON builds the tree. cJSON alone
 * takes much that RFC 8259 does not (trailing text, lone surrogates, control characters, 1e400).
 * What keys mean is not known here. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/opts_internal.h"

enum { MAX_DEPTH = 32, MAX_DIGITS = 60 }; /* cJSON reads 63 characters of a number */

/* A cursor over the text; each check moves it or leaves it at the fault. */
struct cursor {
	const unsigned char *p;
	int depth;
	const char *why; /* of the fault, where more can be said than that it is one */
};

static int fault(struct cursor *c, const char *why)
{
	c->why = why;
	return 0;
}

static int value(struct cursor *c);

static void space(struct cursor *c)
{
	while (*c->p == ' ' || *c->p == '\t' || *c->p == '\n' || *c->p == '\r')
		c->p++;
}

/* Length of the well-formed UTF-8 sequence at p, 0 if there is none. */
static int utf8(const unsigned char *p)
{
	static const struct {
		unsigned char lo, hi, first_lo, first_hi;
		int n;
	} forms[] = {
		{0x20, 0x7f, 0, 0, 1},       {0xc2, 0xdf, 0x80, 0xbf, 2},
		{0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
		{0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3},
		{0xf0, 0xf0, 0x90, 0xbf, 4}, {0xf1, 0xf3, 0x80, 0xbf, 4},
		{0xf4, 0xf4, 0x80, 0x8f, 4},
	};
	for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++) {
		if (p[0] < forms[i].lo || p[0] > forms[i].hi)
			continue;
		if (forms[i].n > 1 && (p[1] < forms[i].first_lo || p[1] > forms[i].first_hi))
			return 0;
		for (int k = 2; k < forms[i].n; k++)
			if (p[k] < 0x80 || p[k] > 0xbf)
				return 0;
		return forms[i].n;
	}
	return 0;
}

int occ_opts_is_utf8(const char *text)
{
	const unsigned char *p = (const unsigned char *)text;
	for (int n; *p; p += n) {
		n = *p < 0x20 ? 1 : utf8(p);
		if (!n)
			return 0;
	}
	return 1;
}

static int hex4(const unsigned char *p)
{
	int v = 0;
	for (int i = 0; i < 4; i++) {
		int h = p[i] >= '0' && p[i] <= '9'   ? p[i] - '0'
			: p[i] >= 'a' && p[i] <= 'f' ? p[i] - 'a' + 10
			: p[i] >= 'A' && p[i] <= 'F' ? p[i] - 'A' + 10
						     : -1;
		if (h < 0)
			return -1;
		v = v * 16 + h;
	}
	return v;
}

/* An escape after the backslash. \u0000 and lone surrogates are refused: no C string holds them. */
static int escape(struct cursor *c)
{
	if (*c->p && strchr("\"\\/bfnrt", *c->p)) {
		c->p++;
		return 1;
	}
	int v = *c->p == 'u' ? hex4(c->p + 1) : -1;
	if (v == 0)
		return fault(c, "\\u0000 cannot stand in a string");
	if (v < 0)
		return *c->p ? fault(c, "no such escape") : 0;
	if (v >= 0xdc00 && v <= 0xdfff)
		return fault(c, "half a surrogate pair");
	c->p += 5;
	if (v < 0xd800 || v > 0xdbff)
		return 1;
	int low = c->p[0] == '\\' && c->p[1] == 'u' ? hex4(c->p + 2) : -1;
	if (low < 0xdc00 || low > 0xdfff)
		return fault(c, "half a surrogate pair");
	c->p += 6;
	return 1;
}

static int string(struct cursor *c)
{
	if (*c->p != '"')
		return 0;
	c->p++;
	while (*c->p != '"') {
		int n = *c->p == '\\' ? 0 : utf8(c->p);
		if (*c->p == '\\') {
			c->p++;
			if (!escape(c))
				return 0;
		} else if (n) {
			c->p += n;
		} else if (*c->p) {
			return fault(c, *c->p < 0x20 ? "a control character" : "not UTF-8");
		} else {
			return 0;
		}
	}
	c->p++;
	return 1;
}

static int digits(struct cursor *c)
{
	const unsigned char *from = c->p;
	while (*c->p >= '0' && *c->p <= '9')
		c->p++;
	return c->p > from;
}

static int number(struct cursor *c)
{
	const unsigned char *from = c->p;
	if (*c->p == '-')
		c->p++;
	if (*c->p == '0' && c->p[1] >= '0' && c->p[1] <= '9')
		return fault(c, "a number that begins with 0");
	if (!digits(c))
		return 0;
	if (*c->p == '.' && (c->p++, !digits(c)))
		return fault(c, "a digit is missing");
	if (*c->p == 'e' || *c->p == 'E') {
		c->p++;
		if (*c->p == '+' || *c->p == '-')
			c->p++;
		if (!digits(c))
			return fault(c, "a digit is missing");
	}
	if (c->p - from <= MAX_DIGITS && isfinite(strtod((const char *)from, NULL)))
		return 1;
	const char *why = c->p - from > MAX_DIGITS ? "a number of more than 60 characters"
						   : "a number too large";
	c->p = from;
	return fault(c, why);
}

static int word(struct cursor *c, const char *w)
{
	size_t n = strlen(w);
	if (strncmp((const char *)c->p, w, n) != 0)
		return 0;
	c->p += n;
	return 1;
}

/* The members of an object or the items of a list, after the opening bracket. */
static int members(struct cursor *c, int named, unsigned char close)
{
	space(c);
	if (*c->p == close)
		return c->p++, 1;
	for (;;) {
		space(c);
		if (named && !string(c))
			return 0;
		space(c);
		if (named && *c->p != ':')
			return 0;
		c->p += named;
		if (!value(c))
			return 0;
		space(c);
		if (*c->p == close)
			return c->p++, 1;
		if (*c->p != ',')
			return 0;
		c->p++;
	}
}

static int value(struct cursor *c)
{
	space(c);
	if (*c->p == '{' || *c->p == '[') {
		int named = *c->p == '{';
		if (++c->depth > MAX_DEPTH)
			return fault(c, "nested too deeply");
		c->p++;
		int ok = members(c, named, named ? '}' : ']');
		c->depth--;
		return ok;
	}
	if (*c->p == '"')
		return string(c);
	return word(c, "true") || word(c, "false") || word(c, "null") || number(c);
}

/* What stands at a fault that the grammar has no words for; "" if nothing more can be said. */
static const char *guess(const char *text, const char *p)
{
	const char *before = p;
	while (before > text && strchr(" \t\r\n", before[-1]))
		before--;
	if (!*p)
		return "the text ends here";
	if (!strncmp(p, "\xef\xbb\xbf", 3))
		return "a byte order mark";
	if (*p == '/' || *p == '#')
		return "JSON has no comments";
	if (*p == '\'')
		return "strings stand in double quotes";
	if (isalpha((unsigned char)*p))
		return "a word without quotes";
	if ((*p == '}' || *p == ']') && before > text && before[-1] == ',')
		return "the comma before it is one too many";
	return "";
}

cJSON *occ_opts_json_parse(const char *text, struct occ_json_fault *fault_at)
{
	struct cursor c = {(const unsigned char *)text, 0, NULL};
	int ok = value(&c);
	if (ok)
		space(&c);
	const char *end = (const char *)c.p;
	if (ok && !*end)
		return cJSON_Parse(text);
	*fault_at = (struct occ_json_fault){(size_t)(end - text), c.why ? c.why : guess(text, end)};
	return NULL;
}

/* Skips a valid value; gives the end. */
static const char *skip_value(const char *p)
{
	struct cursor c = {(const unsigned char *)p, 0, NULL};
	value(&c);
	return (const char *)c.p;
}

const char *occ_opts_json_member(const char *object, int i)
{
	struct cursor c = {(const unsigned char *)object, 0, NULL};
	space(&c);
	c.p++;
	for (;; i--) {
		space(&c);
		if (i == 0)
			return (const char *)c.p;
		string(&c);
		space(&c);
		c.p = (const unsigned char *)skip_value((const char *)c.p + 1);
		space(&c);
		c.p++; /* the comma */
	}
}

const char *occ_opts_json_value(const char *member)
{
	struct cursor c = {(const unsigned char *)member, 0, NULL};
	string(&c);
	space(&c);
	c.p++;
	space(&c);
	return (const char *)c.p;
}
