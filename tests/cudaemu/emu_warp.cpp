/* Warp operations: a lane waits until the last lane of its mask arrives, and that one computes the
 * results of all. */
#include "tests/cudaemu/emu_block.h"

namespace occ_emu
{
namespace
{
void check(const Lane *self, const Lane *lanes, const Warp &warp)
{
	const Warp_call &call = self->call;
	int lane = self->number & 31;
	if (!(call.mask >> lane & 1))
		stop_in_kernel("%s:%d: lane %d is not in its own mask %08x", call.site->file,
			       call.site->line, lane, call.mask);
	if (call.mask & warp.done)
		stop_in_kernel("%s:%d: mask %08x names lane %d, which has exited", call.site->file,
			       call.site->line, call.mask, __builtin_ctz(call.mask & warp.done));
	/* Those that wait have been compared with each other. */
	if (unsigned m = call.mask & warp.arrived) {
		const Warp_call &other = lanes[__builtin_ctz(m)].call;
		if (other.site != call.site)
			stop_in_kernel("lanes of one mask meet at different warp operations: "
				       "%s:%d and %s:%d",
				       call.site->file, call.site->line, other.site->file,
				       other.site->line);
		if (other.mask != call.mask)
			stop_in_kernel("%s:%d: lanes name different masks: %08x and %08x",
				       call.site->file, call.site->line, call.mask, other.mask);
	}
}

uint64_t combine(const Warp_call &call, uint64_t a, uint64_t b)
{
	bool less = call.is_signed ? (int64_t)b < (int64_t)a : b < a;
	switch (call.op) {
	case WARP_ADD:
		return a + b;
	case WARP_MIN:
		return less ? b : a;
	case WARP_MAX:
		return less ? a : b;
	case WARP_BIT_AND:
		return a & b;
	case WARP_BIT_OR:
		return a | b;
	default:
		return a ^ b;
	}
}

uint64_t reduction(const Lane *lanes, const Warp_call &call)
{
	unsigned m = call.mask;
	uint64_t out = lanes[__builtin_ctz(m)].call.value;
	for (m &= m - 1; m; m &= m - 1)
		out = combine(call, out, lanes[__builtin_ctz(m)].call.value);
	return out;
}

/* The lanes whose value is that of `value`. */
unsigned equal_lanes(const Lane *lanes, unsigned mask, uint64_t value)
{
	unsigned out = 0;
	for (unsigned m = mask; m; m &= m - 1)
		if (lanes[__builtin_ctz(m)].call.value == value)
			out |= 1u << __builtin_ctz(m);
	return out;
}

int source_lane(int lane, const Warp_call &call)
{
	int first = lane & ~(call.width - 1), last = first + call.width - 1, from = lane;
	if (call.op == WARP_INDEX)
		return first | (call.argument & (call.width - 1));
	if (call.op == WARP_XOR)
		from = lane ^ call.argument;
	else if (call.op == WARP_UP)
		from = lane - call.argument;
	else
		from = lane + call.argument;
	if (call.op == WARP_UP)
		return from < first ? lane : from;
	return from > last ? lane : from;
}

void compute(Lane *lanes, const Warp_call &call)
{
	uint64_t all = 0;
	if (call.op == WARP_SYNC)
		return;
	if (call.op == WARP_BALLOT)
		all = equal_lanes(lanes, call.mask, 1);
	else if (call.op >= WARP_ADD && call.op <= WARP_BIT_XOR)
		all = reduction(lanes, call);
	for (unsigned m = call.mask; m; m &= m - 1) {
		int i = __builtin_ctz(m);
		if (call.op == WARP_MATCH) {
			lanes[i].result = equal_lanes(lanes, call.mask, lanes[i].call.value);
		} else if (call.op > WARP_DOWN) {
			lanes[i].result = all;
		} else {
			/* What a lane outside of the mask has is undefined on a GPU; NaN here. */
			int from = source_lane(i, lanes[i].call);
			lanes[i].result = call.mask >> from & 1 ? lanes[from].call.value : ~0ull;
		}
	}
}
} // namespace

unsigned active_mask()
{
	const Lane *self = (const Lane *)current;
	const Warp &warp = block.warps[self->number >> 5];
	int first = self->number & ~31, lanes = (int)block.lanes.size() - first;
	unsigned real = lanes >= 32 ? ~0u : (1u << lanes) - 1;
	return real & ~warp.done;
}

uint64_t warp_operation(const Warp_call &call)
{
	Lane *self = (Lane *)current;
	int first = self->number & ~31, lanes = (int)block.lanes.size() - first;
	Lane *warp_lanes = &block.lanes[first];
	Warp &warp = block.warps[self->number >> 5];
	self->call = call;
	self->site = call.site;
	if (lanes < 32) /* the last warp may be partial: its full mask names lanes that are not */
		self->call.mask &= (1u << lanes) - 1;
	unsigned mask = self->call.mask;
	check(self, warp_lanes, warp);
	warp.arrived |= 1u << (self->number & 31);
	if (mask & ~warp.arrived) {
		self->state = AT_WARP;
		wait_for_others(self);
		return self->result;
	}
	warp.arrived &= ~mask;
	compute(warp_lanes, self->call);
	for (unsigned m = mask; m; m &= m - 1)
		if (first + __builtin_ctz(m) != self->number)
			make_ready(first + __builtin_ctz(m));
	return self->result;
}
} // namespace occ_emu
