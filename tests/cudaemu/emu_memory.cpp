/* Device memory is memory of the host, filled with NaN. The direction and the bounds of each copy
 * are checked; copies to pageable memory wait as CUDA documents it. */
#include "tests/cudaemu/emu_runtime.h"

#include <cstring>
#include <map>
#include <memory>

namespace occ_emu
{
namespace
{
struct Piece {
	size_t bytes;
	int device; /* HOST: pinned */
	bool ours;  /* not registered memory */
};
enum { HOST = -1 };
/* By place(); threads may outlive main(). */
auto &pieces = *new std::map<uintptr_t, Piece>;

/* An address, but nothing that the leak sanitizer takes for one: what the program forgets to free
 * is not held by this table. */
uintptr_t place(const void *p)
{
	return (uintptr_t)p | (uintptr_t)1 << 63;
}

/* The allocation that p and `bytes` from it lie in, or NULL. */
const Piece *piece_of(const void *p, size_t bytes)
{
	auto it = pieces.upper_bound(place(p));
	if (it == pieces.begin())
		return nullptr;
	--it;
	size_t from = place(p) - it->first;
	if (from >= it->second.bytes || bytes > it->second.bytes - from)
		return nullptr;
	return &it->second;
}

bool is_pinned(const void *p, size_t bytes)
{
	const Piece *x = piece_of(p, bytes);
	return x && x->device == HOST;
}

/* Begins in device memory: whether it is all in there is_device() says. */
bool touches_device(const void *p)
{
	return is_device(p, 1);
}

cudaError_t release(void *p, bool device, const char *call)
{
	auto it = pieces.find(place(p));
	if (it == pieces.end() || (it->second.device != HOST) != device || !it->second.ours) {
		say("%s: %p is not what an allocation returned", call, p);
		return note(cudaErrorInvalidValue);
	}
	if (device)
		devices()[(size_t)it->second.device].used -= it->second.bytes;
	pieces.erase(it);
	free(p);
	return cudaSuccess;
}

cudaError_t allocate(void **p, size_t bytes)
{
	size_t left, all;
	*p = nullptr;
	if (cudaError_t e = cudaMemGetInfo(&left, &all))
		return e;
	if (!bytes)
		return cudaSuccess;
	if (bytes > left || posix_memalign(p, 256, bytes))
		return note(cudaErrorMemoryAllocation);
	memset(*p, 0xff, bytes); /* a GPU's memory holds garbage; NaN shows it */
	pieces[place(*p)] = {bytes, current_device(), true};
	devices()[(size_t)current_device()].used += bytes;
	return cudaSuccess;
}

struct Copy {
	char *to;
	const char *from;
	size_t to_pitch, from_pitch, width, height;
};

size_t span(size_t pitch, const Copy &c)
{
	return pitch * (c.height - 1) + c.width;
}

void move(const Copy &c)
{
	for (size_t i = 0; i < c.height; i++)
		memmove(c.to + i * c.to_pitch, c.from + i * c.from_pitch, c.width);
}

bool right_side(const char *call, const char *side, const void *p, size_t bytes, bool device)
{
	if (device ? is_device(p, bytes) : !touches_device(p))
		return true;
	if (device && touches_device(p))
		say("%s: %s: %zu bytes at %p reach past their allocation", call, side, bytes, p);
	else
		say("%s: %s: %p is memory of the %s", call, side, p, device ? "host" : "device");
	return false;
}

bool fits(const char *call, const Copy &c, cudaMemcpyKind kind)
{
	bool to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
	bool from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
	if (kind == cudaMemcpyDefault) {
		to = touches_device(c.to);
		from = touches_device(c.from);
	}
	return c.width <= c.to_pitch && c.width <= c.from_pitch &&
	       right_side(call, "destination", c.to, span(c.to_pitch, c), to) &&
	       right_side(call, "source", c.from, span(c.from_pitch, c), from);
}

/* CUDA may read a pageable source before the call returns, or when the copy's turn comes: what
 * relies on the first shows where streams are lazy. */
cudaError_t copy_pageable(const char *call, const Copy &c, cudaStream_t stream)
{
	size_t from = span(c.from_pitch, c);
	std::shared_ptr<char> stage((char *)malloc(from), free);
	memcpy(stage.get(), c.from, from);
	return enqueue_work(stream, [=] {
		Copy staged = c;
		if (lazy() && memcmp(stage.get(), c.from, from))
			stop("%s: %zu bytes of pageable memory at %p were changed before the copy "
			     "from there was done",
			     call, from, (const void *)c.from);
		staged.from = stage.get();
		move(staged);
	});
}

cudaError_t copy(const char *call, const Copy &c, cudaMemcpyKind kind, cudaStream_t stream)
{
	if (!c.width || !c.height)
		return cudaSuccess;
	if (!fits(call, c, kind))
		return note(cudaErrorInvalidValue);
	size_t from = span(c.from_pitch, c), to = span(c.to_pitch, c);
	bool from_pageable = !touches_device(c.from) && !is_pinned(c.from, from);
	bool to_pageable = !touches_device(c.to) && !is_pinned(c.to, to);
	CUstream_st *s = stream_of(stream);
	if (from_pageable || to_pageable)
		if (cudaError_t e = barred(s))
			return e;
	if (from_pageable)
		return copy_pageable(call, c, stream);
	if (cudaError_t e = enqueue_work(stream, [=] { move(c); }))
		return e;
	if (!to_pageable)
		return cudaSuccess;
	wait_stream(s); /* a pageable destination has its data when the call returns */
	return report(s->device);
}

Copy row(void *to, const void *from, size_t bytes)
{
	return {(char *)to, (const char *)from, bytes, bytes, bytes, 1};
}

cudaError_t copy_now(const char *call, const Copy &c, cudaMemcpyKind kind)
{
	if (cudaError_t e = barred_for_thread())
		return e;
	if (cudaError_t e = copy(call, c, kind, nullptr))
		return e;
	wait_stream(stream_of(nullptr));
	return report(current_device());
}

cudaError_t fill(const char *call, const Copy &c, int value, cudaStream_t stream)
{
	if (!c.width || !c.height)
		return cudaSuccess;
	if (c.width > c.to_pitch ||
	    !right_side(call, "destination", c.to, span(c.to_pitch, c), true))
		return note(cudaErrorInvalidValue);
	return enqueue_work(stream, [=] {
		for (size_t i = 0; i < c.height; i++)
			memset(c.to + i * c.to_pitch, value, c.width);
	});
}
} // namespace

bool is_device(const void *p, size_t bytes)
{
	const Piece *x = piece_of(p, bytes);
	return x && x->device != HOST;
}

bool is_for_kernels(const void *p)
{
	return piece_of(p, 1) || piece_of((const char *)p - 1, 1);
}
} // namespace occ_emu

using namespace occ_emu;

extern "C" {
cudaError_t cudaMalloc(void **p, size_t bytes)
{
	ENTER(cudaErrorMemoryAllocation);
	if (cudaError_t e = barred_for_thread())
		return e;
	return allocate(p, bytes);
}

cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t stream)
{
	ENTER(cudaErrorMemoryAllocation);
	if (cudaError_t e = barred(stream_of(stream)))
		return e;
	return allocate(p, bytes);
}

/* One pool a device; what can be set of it makes no difference here. */
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
	ENTER(cudaErrorInvalidValue);
	if (device < 0 || (size_t)device >= devices().size())
		return note(cudaErrorInvalidDevice);
	*pool = (cudaMemPool_t)&devices()[(size_t)device];
	return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr, void *value)
{
	ENTER(cudaErrorInvalidValue);
	return pool && value ? cudaSuccess : note(cudaErrorInvalidValue);
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t)
{
	ENTER(cudaErrorInvalidValue);
	return pool ? cudaSuccess : note(cudaErrorInvalidValue);
}

cudaError_t cudaFree(void *p)
{
	ENTER(cudaErrorInvalidValue);
	if (!p)
		return cudaSuccess;
	if (cudaError_t e = barred_for_thread())
		return e;
	auto it = pieces.find(place(p));
	if (it != pieces.end() && it->second.device != HOST)
		wait_device(it->second.device);
	return release(p, true, __func__);
}

cudaError_t cudaFreeAsync(void *p, cudaStream_t stream)
{
	ENTER(cudaErrorInvalidValue);
	return enqueue(stream, [p] { return !p || release(p, true, "cudaFreeAsync") || true; });
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
	ENTER(cudaErrorMemoryAllocation);
	*p = nullptr;
	if (!bytes)
		return cudaSuccess;
	if (cudaError_t e = barred_for_thread())
		return e;
	if (posix_memalign(p, 4096, bytes))
		return note(cudaErrorMemoryAllocation);
	pieces[place(*p)] = {bytes, HOST, true};
	return cudaSuccess;
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
	ENTER(cudaErrorMemoryAllocation);
	return cudaHostAlloc(p, bytes, 0);
}

cudaError_t cudaFreeHost(void *p)
{
	ENTER(cudaErrorInvalidValue);
	if (!p)
		return cudaSuccess;
	if (cudaError_t e = barred_for_thread())
		return e;
	wait_device(current_device());
	return release(p, false, __func__);
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned)
{
	ENTER(cudaErrorMemoryAllocation);
	if (!bytes || piece_of(p, 1))
		return note(cudaErrorInvalidValue);
	pieces[place(p)] = {bytes, HOST, false};
	return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
	ENTER(cudaErrorInvalidValue);
	auto it = pieces.find(place(p));
	if (it == pieces.end() || it->second.ours)
		return note(cudaErrorInvalidValue);
	wait_device(current_device());
	pieces.erase(it);
	return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind,
			    cudaStream_t stream)
{
	ENTER(cudaErrorInvalidValue);
	return copy(__func__, row(to, from, bytes), kind, stream);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
	ENTER(cudaErrorInvalidValue);
	return copy_now(__func__, row(to, from, bytes), kind);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
			      size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream)
{
	ENTER(cudaErrorInvalidValue);
	Copy c = {(char *)to, (const char *)from, to_pitch, from_pitch, width, height};
	return copy(__func__, c, kind, stream);
}

cudaError_t cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch,
			 size_t width, size_t height, cudaMemcpyKind kind)
{
	ENTER(cudaErrorInvalidValue);
	Copy c = {(char *)to, (const char *)from, to_pitch, from_pitch, width, height};
	return copy_now(__func__, c, kind);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes,
				cudaStream_t stream)
{
	ENTER(cudaErrorInvalidValue);
	return copy(__func__, row(to, from, bytes), cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
	ENTER(cudaErrorInvalidValue);
	return fill(__func__, row(to, nullptr, bytes), value, stream);
}

cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
	ENTER(cudaErrorInvalidValue);
	return fill(__func__, row(to, nullptr, bytes), value, nullptr);
}

cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height,
			      cudaStream_t stream)
{
	ENTER(cudaErrorInvalidValue);
	return fill(__func__, {(char *)to, nullptr, pitch, pitch, width, height}, value, stream);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p)
{
	ENTER(cudaErrorInvalidValue);
	const Piece *x = piece_of(p, 1);
	memset(a, 0, sizeof(*a));
	a->type = !x                  ? cudaMemoryTypeUnregistered
		  : x->device == HOST ? cudaMemoryTypeHost
				      : cudaMemoryTypeDevice;
	a->device = x ? x->device : HOST;
	if (x && x->device != HOST)
		a->devicePointer = (void *)p;
	return cudaSuccess;
}
}
