/* A device of memory only, for tests of what moves. The hidden one hands out addresses with one bit
 * flipped, so that arithmetic on them works and any use by the host crashes; its memory starts as
 * NaN. */
#ifndef OCC_TESTS_FAKE_DEVICE_H
#define OCC_TESTS_FAKE_DEVICE_H

#include <string.h>

#include "base/device.h"
#include "base/mem.h"

/* The host address of device memory, either kind, and back. */
static inline void *fake_host(const struct occ_device *d, const void *d_x)
{
	return (void *)(d->ops->host_visible ? (uintptr_t)d_x
					     : (uintptr_t)d_x ^ (uintptr_t)1 << 62);
}

static void *fake_alloc(struct occ_device *d, size_t bytes)
{
	void *x = occ_alloc(bytes, 1);
	memset(x, d->ops->host_visible ? 0 : 0xff, bytes);
	return fake_host(d, x);
}

static void fake_free(struct occ_device *d, void *d_x)
{
	occ_free(fake_host(d, d_x));
}

static void fake_put(struct occ_device *d, void *d_dst, const void *src, size_t bytes)
{
	memcpy(fake_host(d, d_dst), src, bytes);
}

static void fake_get(struct occ_device *d, void *dst, const void *d_src, size_t bytes)
{
	memcpy(dst, fake_host(d, d_src), bytes);
}

static void fake_sync(struct occ_device *d)
{
	(void)d;
}

static const struct occ_device_ops fake_ops[2] = {
	{.name = "hidden",
	 .alloc = fake_alloc,
	 .free = fake_free,
	 .put = fake_put,
	 .get = fake_get,
	 .sync = fake_sync,
	 OCC_HOST_SLOTS},
	{.name = "visible",
	 .host_visible = 1,
	 .alloc = fake_alloc,
	 .free = fake_free,
	 .put = fake_put,
	 .get = fake_get,
	 .sync = fake_sync,
	 OCC_HOST_SLOTS},
};

#endif
