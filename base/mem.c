/* Each block carries its size in the 64 bytes before it, so that live memory can be counted. */
#include "base/mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { HEAD = 64 };

static _Atomic int64_t live, calls;

size_t occ_size_mul(size_t a, size_t b)
{
	size_t r;
	if (__builtin_mul_overflow(a, b, &r))
		occ_die(OCC_E_DEVICE, "size %zu x %zu does not fit in memory's address range", a,
			b);
	return r;
}

void *occ_alloc(size_t n, size_t size)
{
	size_t bytes = occ_size_mul(n, size), whole;
	if (__builtin_add_overflow(bytes, (size_t)HEAD + 63, &whole))
		occ_die(OCC_E_DEVICE, "out of memory: %zu bytes asked for", bytes);
	whole &= ~(size_t)63;
	char *p = aligned_alloc(64, whole);
	if (!p)
		occ_die(OCC_E_DEVICE, "out of memory: %zu bytes asked for, %lld held", bytes,
			(long long)occ_mem_live());
	memset(p, 0, whole);
	memcpy(p, &bytes, sizeof(bytes));
	atomic_fetch_add(&live, (int64_t)bytes);
	atomic_fetch_add(&calls, 1);
	return p + HEAD;
}

char *occ_strdup(const char *s)
{
	size_t n = strlen(s) + 1;
	return memcpy(occ_alloc(n, 1), s, n);
}

void occ_free(void *p)
{
	size_t bytes;
	if (!p)
		return;
	char *head = (char *)p - HEAD;
	memcpy(&bytes, head, sizeof(bytes));
	atomic_fetch_sub(&live, (int64_t)bytes);
	free(head);
}

int64_t occ_mem_live(void)
{
	return atomic_load(&live);
}

int64_t occ_mem_calls(void)
{
	return atomic_load(&calls);
}
