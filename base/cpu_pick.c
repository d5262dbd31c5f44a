/* Cpu: elements by index, of one row or many. */
#include "base/cpu.h"

#include <string.h>

#include "base/vmath.h"

enum { STEP = 2048 }; /* indices in one piece of work */

INLINE int64_t index_get(int width, const void *at, int64_t i)
{
	return width == 2 ? ((const uint16_t *)at)[i] : ((const int32_t *)at)[i];
}

/* Index i of row i / k stands for element row * C + index. */
INLINE void gather(int width, int64_t i, int64_t end, int64_t C, int64_t k, const void *at,
		   const float *x, float *value)
{
	for (int64_t row = i / k, next; i < end; row++) {
		next = (row + 1) * k < end ? (row + 1) * k : end;
		for (; i < next; i++)
			value[i] = x[row * C + index_get(width, at, i)];
	}
}

INLINE void scatter(int width, int64_t i, int64_t end, int64_t C, int64_t k, enum occ_how how,
		    const void *at, const float *value, float *y)
{
	for (int64_t row = i / k, next; i < end; row++) {
		next = (row + 1) * k < end ? (row + 1) * k : end;
		for (; i < next; i++) {
			float *to = &y[row * C + index_get(width, at, i)], v = value[i];
			*to = how == OCC_SET ? v : how == OCC_ADD ? *to + v : *to - v;
		}
	}
}

void occ_cpu_pick(struct occ_device *d, int64_t R, int64_t C, int64_t k, int width,
		  const void *d_at, const float *d_x, float *d_value)
{
	int64_t n = R * k;
	int nt = cpu_team(d, n);
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t i = 0; i < n; i += STEP) {
		int64_t end = i + STEP < n ? i + STEP : n;
		if (width == 2)
			gather(2, i, end, C, k, d_at, d_x, d_value);
		else
			gather(4, i, end, C, k, d_at, d_x, d_value);
	}
}

/* No index stands twice in a row, so that the order of additions does not matter. */
void occ_cpu_place(struct occ_device *d, int64_t R, int64_t C, int64_t k, int width,
		   const void *d_at, const float *d_value, enum occ_how how, float *d_y)
{
	int64_t n = R * k;
	int nt = cpu_team(d, n);
	if (how == OCC_SET && R > 0 && C > 0)
		d->ops->zero(d, d_y, (size_t)(R * C) * sizeof(*d_y));
#pragma omp parallel for num_threads(nt) if (nt > 1) schedule(static)
	for (int64_t i = 0; i < n; i += STEP) {
		int64_t end = i + STEP < n ? i + STEP : n;
		if (width == 2)
			scatter(2, i, end, C, k, how, d_at, d_value, d_y);
		else
			scatter(4, i, end, C, k, how, d_at, d_value, d_y);
	}
}
