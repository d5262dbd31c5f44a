/* Arrays of token ids by type. `range` is the scan that every token of every file goes through
 * once, so it is written for the vectoriser: no branch, no early exit. Knows no file format. */
#include <string.h>

#include "trainer/data_kind.h"

#define TYPE(T, id, limit)                                                                         \
	static int64_t at_##id(const void *x, int64_t i)                                           \
	{                                                                                          \
		return ((const T *)x)[i];                                                          \
	}                                                                                          \
	static void range_##id(const void *x, int64_t n, int64_t *lo, int64_t *hi)                 \
	{                                                                                          \
		const T *p = x;                                                                    \
		T low = p[0], high = p[0];                                                         \
		for (int64_t i = 1; i < n; i++) {                                                  \
			low = p[i] < low ? p[i] : low;                                             \
			high = p[i] > high ? p[i] : high;                                          \
		}                                                                                  \
		*lo = low;                                                                         \
		*hi = high;                                                                        \
	}                                                                                          \
	static void copy_##id(const void *x, int64_t at, int64_t n, int32_t *out)                  \
	{                                                                                          \
		const T *p = (const T *)x + at;                                                    \
		for (int64_t i = 0; i < n; i++)                                                    \
			out[i] = (int32_t)p[i];                                                    \
	}                                                                                          \
	const struct occ_token_type occ_token_##id = {                                             \
		.name = #id,                                                                       \
		.size = sizeof(T),                                                                 \
		.top = limit,                                                                      \
		.at = at_##id,                                                                     \
		.range = range_##id,                                                               \
		.copy = copy_##id,                                                                 \
	};

TYPE(uint8_t, u8, UINT8_MAX)
TYPE(int8_t, i8, INT64_MAX) /* NOLINT(bugprone-signed-char-misuse): a sign is wanted */
TYPE(uint16_t, u16, UINT16_MAX)
TYPE(int16_t, i16, INT64_MAX)
TYPE(int32_t, i32, INT64_MAX)
TYPE(uint32_t, u32, UINT32_MAX)
TYPE(int64_t, i64, INT64_MAX)
