/* Files of tokens for tests: good ones of each kind, made in memory so that a test can spoil them.
 */
#ifndef OCC_TESTS_TOKEN_FILES_H
#define OCC_TESTS_TOKEN_FILES_H

#include "base/rng.h"
#include "tests/files.h"

struct bytes {
	uint8_t x[1 << 16];
	size_t n;
};

static inline void add(struct bytes *b, uint64_t value, size_t size)
{
	memcpy(b->x + b->n, &value, size);
	b->n += size;
}

static inline const char *file(const char *name, const struct bytes *b)
{
	return files_put(name, b->x, b->n);
}

/* The token at position i of file f in all tests: any 8 bits below `top`. */
static inline int32_t token(int f, int64_t i, int top)
{
	return (int32_t)(occ_rng_u64((uint64_t)f + 1, (uint64_t)i) % (uint64_t)top);
}

static inline void make_llmc(struct bytes *b, int f, int32_t n, size_t size, int top)
{
	b->n = 0;
	add(b, size == 2 ? 20240520 : 20240801, 4);
	add(b, size == 2 ? 1 : 7, 4);
	add(b, (uint32_t)n, 4);
	while (b->n < 1024)
		add(b, 0, 4);
	for (int64_t i = 0; i < n; i++)
		add(b, (uint64_t)token(f, i, top), size);
}

/* Sequences of 3, 0, 5, 1, 4, ... tokens in two documents. */
static inline void make_megatron(struct bytes *idx, struct bytes *bin, int f, int sequences,
				 int code, int top)
{
	static const int lengths[] = {3, 0, 5, 1, 4};
	static const size_t sizes[] = {0, 1, 1, 2, 4, 8, 8, 4, 2};
	size_t size = sizes[code];
	uint64_t n = 0, at = 0;
	idx->n = bin->n = 0;
	memcpy(idx->x, "MMIDIDX\0\0", 9);
	idx->n = 9;
	add(idx, 1, 8);
	add(idx, (uint64_t)code, 1);
	add(idx, (uint64_t)sequences, 8);
	add(idx, 3, 8);
	for (int i = 0; i < sequences; i++)
		add(idx, (uint64_t)lengths[i % 5], 4);
	for (int i = 0; i < sequences; at += (uint64_t)lengths[i++ % 5] * size)
		add(idx, at, 8);
	for (int i = 0; i < 3; i++)
		add(idx, (uint64_t)(i == 1 ? sequences / 2 : i * sequences / 2), 8);
	for (int i = 0; i < sequences; i++)
		for (int k = 0; k < lengths[i % 5]; k++)
			add(bin, (uint64_t)token(f, (int64_t)n++, top), size);
}

static inline void make_text(struct bytes *b, int f, int32_t n, int top)
{
	b->n = 0;
	for (int64_t i = 0; i < n; i++)
		add(b, (uint64_t)token(f, i, top), 1);
}

#endif
