/* Writing and listing safetensors. The bytes are those of the reference writer for F32 tensors. */
#include "trainer/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "trainer/files.h"

static int by_name(const void *a, const void *b)
{
	const struct occ_st_tensor *x = a, *y = b;
	return strcmp(x->name, y->name);
}

void occ_st_sort(struct occ_st_tensor *t, int n)
{
	qsort(t, (size_t)n, sizeof(*t), by_name);
}

static void put_name(FILE *out, const char *s)
{
	fputc('"', out);
	for (; *s; s++) {
		if ((unsigned char)*s < 0x20)
			fprintf(out, "\\u%04x", (unsigned)*s);
		else
			fprintf(out, *s == '"' || *s == '\\' ? "\\%c" : "%c", *s);
	}
	fputc('"', out);
}

/* Appends one entry and sets the tensor's bytes; returns where its data end. */
static size_t put_entry(FILE *out, struct occ_st_tensor *t, size_t begin)
{
	size_t bytes = 4;
	fputc(',', out);
	put_name(out, t->name);
	fputs(":{\"dtype\":\"F32\",\"shape\":[", out);
	for (int d = 0; d < t->ndim; d++) {
		fprintf(out, d ? ",%lld" : "%lld", (long long)t->dim[d]);
		bytes = occ_size_mul(bytes, (size_t)t->dim[d]);
	}
	fprintf(out, "],\"data_offsets\":[%zu,%zu]}", begin, begin + bytes);
	t->bytes = bytes;
	return begin + bytes;
}

int occ_st_write_header(struct occ_file *f, struct occ_st_tensor *t, int n, struct occ_err *e)
{
	char *text = NULL;
	size_t bytes = 0, at = 0;
	FILE *out = open_memstream(&text, &bytes);
	occ_check(out, "open_memstream");
	fputs("{\"__metadata__\":{\"format\":\"pt\"}", out);
	for (int i = 0; i < n; i++)
		at = put_entry(out, &t[i], at);
	fputc('}', out);
	while (ftell(out) % 8)
		fputc(' ', out);
	occ_check(fclose(out) == 0, "a header of %d tensors", n);
	uint64_t head = bytes;
	int bad = occ_file_write(f, &head, 8, e) || occ_file_write(f, text, bytes, e);
	free(text);
	return bad ? -1 : 0;
}

int occ_st_write(const char *path, const struct occ_st_tensor *t, int n, struct occ_err *e)
{
	struct occ_file f;
	struct occ_st_tensor *sorted = occ_alloc((size_t)n, sizeof(*t));
	for (int i = 0; i < n; i++)
		sorted[i] = t[i];
	occ_st_sort(sorted, n);
	int bad = occ_file_create(&f, path, (struct occ_io){.code = OCC_E_CKPT}, e) ||
		  occ_st_write_header(&f, sorted, n, e);
	for (int i = 0; i < n && !bad; i++)
		bad = occ_file_write(&f, sorted[i].data, sorted[i].bytes, e);
	bad = bad || occ_file_commit(&f, e);
	occ_free(sorted);
	return bad ? -1 : 0;
}

char *occ_st_shape(const struct occ_st_tensor *t, char *buf, size_t size)
{
	size_t at = (size_t)snprintf(buf, size, "[");
	for (int d = 0; d < t->ndim && at < size; d++)
		at += (size_t)snprintf(buf + at, size - at, d ? ", %lld" : "%lld",
				       (long long)t->dim[d]);
	if (at < size)
		snprintf(buf + at, size - at, "]");
	return buf;
}

/* By name, or by a length and an opening brace. */
static int looks_right(const char *path)
{
	static const char ending[] = ".safetensors";
	size_t n = strlen(path), k = sizeof(ending) - 1;
	unsigned char head[9] = {0};
	if (n > k && !strcmp(path + n - k, ending))
		return 1;
	struct occ_err ignored = {0};
	void *map;
	size_t bytes;
	if (occ_map_open(path, OCC_E_DATA, &map, &bytes, &ignored))
		return 0;
	if (bytes >= sizeof(head))
		memcpy(head, map, sizeof(head));
	occ_map_close(map, bytes);
	return head[8] == '{' && !(head[4] | head[5] | head[6] | head[7]);
}

int occ_st_inspect(const char *path, struct occ_err *e)
{
	struct occ_st s;
	char shape[200];
	int64_t elements = 0, bytes = 0;
	if (!looks_right(path))
		return 0;
	if (occ_st_open(&s, path, OCC_E_DATA, e))
		return -1;
	printf("kind: safetensors\ntensors: %d\n", s.n);
	for (int i = 0; i < s.n; i++) {
		const struct occ_st_tensor *t = &s.at[i];
		printf("tensor: ");
		put_name(stdout, t->name);
		printf(" %s %s\n", occ_st_dtype_name[t->dtype],
		       occ_st_shape(t, shape, sizeof(shape)));
		elements += (int64_t)(t->bytes / (size_t)occ_st_dtype_size[t->dtype]);
		bytes += (int64_t)t->bytes;
	}
	printf("elements: %lld\nbytes: %lld\n", (long long)elements, (long long)bytes);
	occ_st_close(&s);
	return 1;
}
