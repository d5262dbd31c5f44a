/* Counted host memory. Allocation never returns NULL: it dies with exit code 8 and the size asked
 * for. */
#ifndef OCC_BASE_MEM_H
#define OCC_BASE_MEM_H

#include <stddef.h>
#include <stdint.h>

/* n * size bytes, zeroed, aligned to 64; the product is checked for overflow; n == 0 gives a valid
 * pointer. The caller owns it and gives it to occ_free. */
void *occ_alloc(size_t n, size_t size);
char *occ_strdup(const char *s);
void occ_free(void *p); /* NULL is allowed */

/* a * b in bytes or counts; dies (8) on overflow. For sizes that come from files, compare first. */
size_t occ_size_mul(size_t a, size_t b);

/* Process-wide: bytes now held, and the number of occ_alloc calls so far. */
int64_t occ_mem_live(void);
int64_t occ_mem_calls(void);

#endif
