/* Reading safetensors. The header comes from outside: its text is scanned before cJSON sees it,
 * because cJSON takes more than the format allows (fractions, literals, control characters, deep
 * nesting), and every number is checked before it is used. Knows nothing of GPT-2. */
#include "trainer/safetensors.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/type.h"
#include "trainer/files.h"

enum { MAX_HEADER = 100000000, MAX_DEPTH = 3, MAX_DIMS = 8 };

const char *const occ_st_dtype_name[OCC_ST_NDTYPES] = {"F32", "F16", "BF16", "F64", "I64",
						       "I32", "I16", "I8",   "U8",  "BOOL"};
const int occ_st_dtype_size[OCC_ST_NDTYPES] = {4, 2, 2, 8, 8, 4, 2, 1, 1, 1};

struct reader {
	struct occ_st *s;
	int code;
	const char *head;
	size_t head_bytes, data_bytes;
	struct occ_err *e;
};

/* Bytes of the UTF-8 sequence at p (shortest form, no surrogates), 0 if it is none. */
static size_t utf8(const unsigned char *p, size_t left)
{
	static const unsigned least[5] = {0, 0, 0x80, 0x800, 0x10000};
	size_t n = p[0] < 0x80       ? 1
		   : p[0] >> 5 == 6  ? 2
		   : p[0] >> 4 == 14 ? 3
		   : p[0] >> 3 == 30 ? 4
				     : 0;
	if (n <= 1 || n > left)
		return n > left ? 0 : n;
	unsigned c = p[0] & (0x7fu >> n);
	for (size_t i = 1; i < n; i++) {
		if (p[i] >> 6 != 2)
			return 0;
		c = c << 6 | (p[i] & 0x3fu);
	}
	return c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) ? 0 : n;
}

/* Length of the string literal at p, quotes included; 0 if it is broken. */
static size_t scan_string(const char *p, size_t left)
{
	size_t i = 1;
	while (i < left && p[i] != '"') {
		size_t n = utf8((const unsigned char *)p + i, left - i);
		if (n == 0 || (unsigned char)p[i] < 0x20)
			return 0;
		if (p[i] == '\\' && left - i > 5 && !memcmp(p + i, "\\u0000", 6))
			return 0; /* would end the name early */
		i += p[i] == '\\' ? 2 : n;
	}
	return i < left ? i + 1 : 0;
}

/* Length of the whole number at p; 0 for leading zeros. */
static size_t scan_number(const char *p, size_t left)
{
	size_t sign = p[0] == '-', n = sign;
	while (n < left && p[n] >= '0' && p[n] <= '9')
		n++;
	return n == sign || (p[sign] == '0' && n > sign + 1) ? 0 : n;
}

/* Length of the token at p; 0 for what this format's headers never hold. */
static size_t scan_token(const char *p, size_t left, int *depth)
{
	if (*p == '"')
		return scan_string(p, left);
	if (*p == '-' || (*p >= '0' && *p <= '9'))
		return scan_number(p, left);
	if (*p == '{' || *p == '[')
		return ++*depth <= MAX_DEPTH;
	if (*p == '}' || *p == ']')
		return --*depth >= 0;
	return *p && strchr(":, \t\r\n", *p) != NULL;
}

static int scan(const struct reader *r)
{
	int depth = 0;
	size_t at = 0, n;
	for (; at < r->head_bytes; at += n) {
		n = scan_token(r->head + at, r->head_bytes - at, &depth);
		if (n == 0)
			return occ_fail(r->e, r->code, "%s: the header is not valid at byte %zu",
					r->s->path, 8 + at);
	}
	return 0;
}

/* The eight bytes of length, and that the header lies within the file. */
static int find_header(struct reader *r)
{
	const struct occ_st *s = r->s;
	uint64_t n = 0;
	if (s->map_bytes < 8)
		return occ_fail(r->e, r->code, "%s: %zu bytes are too few for safetensors", s->path,
				s->map_bytes);
	memcpy(&n, s->map, 8);
	if (n > MAX_HEADER)
		return occ_fail(r->e, r->code, "%s: header of %llu bytes, at most %d are allowed",
				s->path, (unsigned long long)n, MAX_HEADER);
	if (n > s->map_bytes - 8)
		return occ_fail(r->e, r->code,
				"%s: header of %llu bytes in a file of %zu: truncated?", s->path,
				(unsigned long long)n, s->map_bytes);
	r->head = (const char *)s->map + 8;
	r->head_bytes = (size_t)n;
	r->data_bytes = s->map_bytes - 8 - (size_t)n;
	if (n == 0 || r->head[0] != '{')
		return occ_fail(r->e, r->code, "%s: the header does not begin with '{'", s->path);
	return 0;
}

/* A whole number >= 0 that a double holds exactly. */
static int whole(const cJSON *j, int64_t *out)
{
	if (!cJSON_IsNumber(j) || signbit(j->valuedouble) || j->valuedouble > 9007199254740992.0)
		return -1;
	*out = (int64_t)j->valuedouble;
	return 0;
}

static int tensor_fail(const struct reader *r, const struct occ_st_tensor *t, const char *what)
{
	return occ_fail(r->e, r->code, "%s: tensor '%s': %s", r->s->path, t->name, what);
}

static int read_dtype(const struct reader *r, const cJSON *j, struct occ_st_tensor *t)
{
	const char *name = cJSON_GetStringValue(j);
	for (int i = 0; name && i < OCC_ST_NDTYPES; i++) {
		if (!strcmp(name, occ_st_dtype_name[i])) {
			t->dtype = (enum occ_st_dtype)i;
			return 0;
		}
	}
	return occ_fail(r->e, r->code, "%s: tensor '%s': unknown dtype '%s'", r->s->path, t->name,
			name ? name : "(no string)");
}

/* Sets dims and bytes = product * size; an overflow on the way refuses, whatever follows. */
static int read_shape(const struct reader *r, const cJSON *j, struct occ_st_tensor *t)
{
	const cJSON *it;
	size_t bytes = (size_t)occ_st_dtype_size[t->dtype];
	if (!cJSON_IsArray(j))
		return tensor_fail(r, t, "shape is not a list");
	cJSON_ArrayForEach(it, j)
	{
		if (t->ndim == MAX_DIMS)
			return tensor_fail(r, t, "more than 8 dimensions");
		if (whole(it, &t->dim[t->ndim]))
			return tensor_fail(r, t, "a dimension is not a whole number >= 0");
		if (__builtin_mul_overflow(bytes, (size_t)t->dim[t->ndim++], &bytes))
			return tensor_fail(r, t, "the size overflows");
	}
	t->bytes = bytes;
	return 0;
}

static int read_range(const struct reader *r, const cJSON *j, struct occ_st_tensor *t)
{
	int64_t b, end;
	if (!cJSON_IsArray(j) || cJSON_GetArraySize(j) != 2 || whole(j->child, &b) ||
	    whole(j->child->next, &end))
		return tensor_fail(r, t, "data_offsets are not two whole numbers >= 0");
	if (b > end || (size_t)end > r->data_bytes)
		return occ_fail(r->e, r->code,
				"%s: tensor '%s': data_offsets [%lld, %lld] in %zu bytes of data",
				r->s->path, t->name, (long long)b, (long long)end, r->data_bytes);
	if ((size_t)(end - b) != t->bytes)
		return occ_fail(r->e, r->code,
				"%s: tensor '%s': %lld bytes, but its shape and dtype need %zu",
				r->s->path, t->name, (long long)(end - b), t->bytes);
	t->data = r->head + r->head_bytes + b;
	return 0;
}

static int read_tensor(const struct reader *r, const cJSON *j, struct occ_st_tensor *t)
{
	t->name = occ_strdup(j->string);
	/* Three members, each there: none is double and none unknown. */
	if (!cJSON_IsObject(j) || cJSON_GetArraySize(j) != 3)
		return tensor_fail(r, t, "its entry is not {dtype, shape, data_offsets}");
	if (read_dtype(r, cJSON_GetObjectItemCaseSensitive(j, "dtype"), t) ||
	    read_shape(r, cJSON_GetObjectItemCaseSensitive(j, "shape"), t))
		return -1;
	return read_range(r, cJSON_GetObjectItemCaseSensitive(j, "data_offsets"), t);
}

static int check_metadata(const struct reader *r, const cJSON *j)
{
	const cJSON *it = NULL;
	int bad = !cJSON_IsObject(j);
	if (!bad)
		cJSON_ArrayForEach(it, j) bad |= !cJSON_IsString(it);
	return bad ? occ_fail(r->e, r->code, "%s: __metadata__ maps strings to strings only",
			      r->s->path)
		   : 0;
}

static int by_name(const void *a, const void *b)
{
	const struct occ_st_tensor *const *x = a, *const *y = b;
	return strcmp((*x)->name, (*y)->name);
}

static int check_names(const struct reader *r)
{
	const struct occ_st_tensor **p = occ_alloc((size_t)r->s->n, sizeof(*p));
	int bad = 0;
	for (int i = 0; i < r->s->n; i++)
		p[i] = &r->s->at[i];
	qsort(p, (size_t)r->s->n, sizeof(*p), by_name);
	for (int i = 1; i < r->s->n && !bad; i++)
		if (!strcmp(p[i - 1]->name, p[i]->name))
			bad = tensor_fail(r, p[i], "this name occurs twice");
	occ_free(p);
	return bad;
}

/* Empty tensors stand before the one that begins where they do. */
static int by_data(const void *a, const void *b)
{
	const struct occ_st_tensor *x = a, *y = b;
	if (x->data != y->data)
		return (const char *)x->data < (const char *)y->data ? -1 : 1;
	if (!x->bytes != !y->bytes)
		return x->bytes ? 1 : -1;
	return strcmp(x->name, y->name);
}

/* The ranges cover the data: no hole, no overlap, nothing left. */
static int check_cover(const struct reader *r)
{
	const struct occ_st *s = r->s;
	const char *start = r->head + r->head_bytes, *next = start;
	qsort(s->at, (size_t)s->n, sizeof(*s->at), by_data);
	for (int i = 0; i < s->n; next += s->at[i++].bytes)
		if (s->at[i].data != next)
			return occ_fail(r->e, r->code,
					"%s: tensor '%s': its data begin at %zu, expected %zu "
					"(a hole or an overlap)",
					s->path, s->at[i].name,
					(size_t)((const char *)s->at[i].data - start),
					(size_t)(next - start));
	if ((size_t)(next - start) != r->data_bytes)
		return occ_fail(r->e, r->code, "%s: %zu bytes of data, the tensors need %zu",
				s->path, r->data_bytes, (size_t)(next - start));
	return 0;
}

static int read_entries(const struct reader *r, const cJSON *root)
{
	const cJSON *it;
	int metadata = 0;
	r->s->at = occ_alloc((size_t)cJSON_GetArraySize(root), sizeof(*r->s->at));
	cJSON_ArrayForEach(it, root)
	{
		if (!strcmp(it->string, "__metadata__")) {
			if (metadata++)
				return occ_fail(r->e, r->code, "%s: __metadata__ occurs twice",
						r->s->path);
			if (check_metadata(r, it))
				return -1;
		} else if (read_tensor(r, it, &r->s->at[r->s->n++])) {
			return -1;
		}
	}
	return check_names(r) || check_cover(r) ? -1 : 0;
}

static int read_header(struct reader *r)
{
	const char *end = NULL;
	if (find_header(r) || scan(r))
		return -1;
	cJSON *root = cJSON_ParseWithLengthOpts(r->head, r->head_bytes, &end, 0);
	const char *stop = r->head + r->head_bytes;
	while (root && end < stop && *end == ' ')
		end++;
	int bad = !root || end != stop;
	if (bad)
		occ_fail(r->e, r->code,
			 "%s: the header is not one JSON object and spaces (byte %zu)", r->s->path,
			 end ? (size_t)(end - r->head) + 8 : 8);
	else
		bad = read_entries(r, root);
	cJSON_Delete(root);
	return bad ? -1 : 0;
}

int occ_st_open(struct occ_st *s, const char *path, int code, struct occ_err *e)
{
	struct occ_st got = {0};
	struct reader r = {.s = &got, .code = code, .e = e};
	if (occ_map_open(path, code, &got.map, &got.map_bytes, e))
		return -1;
	got.path = occ_strdup(path);
	if (read_header(&r)) {
		occ_st_close(&got);
		return -1;
	}
	*s = got;
	return 0;
}

void occ_st_close(struct occ_st *s)
{
	for (int i = 0; i < s->n; i++)
		occ_free(s->at[i].name);
	occ_free(s->at);
	occ_free(s->path);
	occ_map_close(s->map, s->map_bytes);
	memset(s, 0, sizeof(*s));
}

const struct occ_st_tensor *occ_st_find(const struct occ_st *s, const char *name)
{
	for (int i = 0; i < s->n; i++)
		if (!strcmp(s->at[i].name, name))
			return &s->at[i];
	return NULL;
}

static float half(uint16_t h)
{
	uint32_t sign = (uint32_t)(h >> 15) << 31, exp = h >> 10 & 31, frac = h & 1023, u;
	float f;
	if (exp == 0) { /* zero or subnormal: frac * 2^-24 is exact */
		f = ldexpf((float)frac, -24);
		return sign ? -f : f;
	}
	u = sign | (exp == 31 ? 255u : exp + 112) << 23 | frac << 13;
	memcpy(&f, &u, sizeof(f));
	return f;
}

float occ_st_float(const struct occ_st_tensor *t, int64_t i)
{
	uint16_t h;
	float f;
	if (t->dtype == OCC_ST_F32) {
		memcpy(&f, (const char *)t->data + i * 4, 4);
		return f;
	}
	occ_check(t->dtype == OCC_ST_F16 || t->dtype == OCC_ST_BF16, "%s has dtype %s", t->name,
		  occ_st_dtype_name[t->dtype]);
	memcpy(&h, (const char *)t->data + i * 2, 2);
	return t->dtype == OCC_ST_F16 ? half(h) : occ_bf16_to_f32(h);
}
