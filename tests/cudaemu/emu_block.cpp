/* The scheduler of a block. Its threads run to the end one after the other on one fiber; only a
 * thread that has to wait keeps its fiber, and another one goes on with the rest.
 * OCC_EMU_ORDER=forward|reverse|random:SEED: of threads and blocks. */
#include "tests/cudaemu/emu_block.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <numeric>
#include <random>

#include "tests/cudaemu/emu_runtime.h"

namespace occ_emu
{
Thread *current;
dim3 grid_dim, block_dim;
uint3 block_index;
unsigned char *dynamic_shared;
Block &block = *new Block; /* threads may still run while the process ends */

namespace
{
enum Order { FORWARD, REVERSE, RANDOM };
std::mt19937 rng(1);
Order thread_order;

std::vector<int> &order =
	*new std::vector<int>; /* of the threads that have not begun, from next_new on */
size_t next_new;
std::vector<int> &ready = *new std::vector<int>; /* threads that may go on, from next_ready on */
size_t next_ready;
std::vector<Fiber *> &idle = *new std::vector<Fiber *>;
Fiber *thread_fiber; /* the OS thread's */
const Kernel *kernel;
void **kernel_arguments;
int live;

struct Barrier {
	int arrived;
	const Site *site;
	int count, all, any; /* of the predicates */
	int results[4];      /* enum Vote; of the last time that it opened */
} at_barrier;

Order read_order()
{
	const char *e = getenv("OCC_EMU_ORDER");
	if (!e || !*e || !strcmp(e, "forward"))
		return FORWARD;
	if (!strcmp(e, "reverse"))
		return REVERSE;
	if (strcmp(e, "random"))
		rng.seed((unsigned)number("OCC_EMU_ORDER", after("random:", e), 0,
					  "forward, reverse or random:SEED"));
	return RANDOM;
}

bool some_ready()
{
	return next_ready < ready.size();
}

bool some_new()
{
	return next_new < order.size();
}

/* Threads that wait go on before others begin: what is in the cache stays one warp's stacks. */
bool begin_next()
{
	if (!some_new() || !some_ready())
		return some_new();
	return thread_order == RANDOM && (rng() & 1);
}

void resume_ready()
{
	if (thread_order == RANDOM)
		std::swap(ready[next_ready],
			  ready[next_ready + rng() % (ready.size() - next_ready)]);
	Lane *lane = &block.lanes[ready[next_ready++]];
	if (!some_ready()) {
		ready.clear();
		next_ready = 0;
	}
	lane->state = RUNNING;
	current = lane;
	fiber_switch(lane->fiber);
}

void work();

Fiber *idle_fiber()
{
	if (idle.empty())
		return fiber_new(work);
	Fiber *f = idle.back();
	idle.pop_back();
	return f;
}

/* Gives the OS thread to what can go on; to run_block() if nothing can. */
void go_elsewhere()
{
	if (begin_next())
		fiber_switch(idle_fiber());
	else if (some_ready())
		resume_ready();
	else
		fiber_switch(thread_fiber);
}

void open_barrier()
{
	Barrier &b = at_barrier;
	b.results[VOTE_COUNT] = b.count;
	b.results[VOTE_AND] = b.all;
	b.results[VOTE_OR] = b.any;
	b.arrived = b.count = b.any = 0;
	b.all = 1;
	for (int i : order)
		if (block.lanes[i].state == AT_BARRIER)
			make_ready(i);
}

void check_exit(const Lane *lane, const Warp &warp)
{
	unsigned bit = 1u << (lane->number & 31);
	const Lane *lanes = &block.lanes[lane->number & ~31];
	for (unsigned m = warp.arrived; m; m &= m - 1) {
		const Warp_call &call = lanes[__builtin_ctz(m)].call;
		if (call.mask & bit)
			stop_in_kernel("%s:%d: mask %08x names lane %d, which has exited",
				       call.site->file, call.site->line, call.mask,
				       lane->number & 31);
	}
}

void thread_ends(Lane *lane)
{
	Warp &warp = block.warps[lane->number >> 5];
	lane->state = DONE;
	warp.done |= 1u << (lane->number & 31);
	if (warp.arrived)
		check_exit(lane, warp);
	if (--live && at_barrier.arrived == live)
		open_barrier();
}

/* What every fiber does, for ever: begins threads and runs them to their end. */
void work()
{
	for (;;) {
		while (begin_next()) {
			Lane *lane = &block.lanes[order[next_new++]];
			lane->state = RUNNING;
			lane->fiber = fiber_running();
			current = lane;
			kernel->call(kernel_arguments);
			thread_ends((Lane *)current);
		}
		idle.push_back(fiber_running());
		if (some_ready())
			resume_ready();
		else
			fiber_switch(thread_fiber);
	}
}

[[noreturn]] void stop_deadlock()
{
	int shown = 0;
	say("kernel %s, block (%u,%u,%u): deadlock: a barrier or mask that not all reach",
	    block.kernel, block_index.x, block_index.y, block_index.z);
	for (const Lane &lane : block.lanes) {
		if (lane.state != AT_BARRIER && lane.state != AT_WARP)
			continue;
		say("  thread %d waits at %s:%d (%s, mask %08x)", lane.number, lane.site->file,
		    lane.site->line,
		    lane.state == AT_BARRIER ? "__syncthreads" : "a warp operation",
		    lane.state == AT_BARRIER ? ~0u : lane.call.mask);
		if (++shown == 8)
			break;
	}
	abort();
}

void run_block()
{
	std::iota(order.begin(), order.end(), 0);
	if (thread_order == REVERSE)
		std::reverse(order.begin(), order.end());
	if (thread_order == RANDOM)
		std::shuffle(order.begin(), order.end(), rng);
	for (Lane &lane : block.lanes)
		lane.state = UNSTARTED;
	std::fill(block.warps.begin(), block.warps.end(), Warp{0, 0});
	ready.clear();
	next_ready = next_new = 0;
	live = (int)block.lanes.size();
	at_barrier = {0, nullptr, 0, 1, 0, {}};
	while (live) {
		if (!some_new() && !some_ready())
			stop_deadlock();
		go_elsewhere();
	}
}

void set_up(const Shape &shape)
{
	static const Order chosen = read_order();
	size_t n = (size_t)shape.block.x * shape.block.y * shape.block.z;
	thread_order = chosen;
	grid_dim = shape.grid;
	block_dim = shape.block;
	block.lanes.resize(n);
	block.warps.resize((n + 31) / 32);
	order.resize(n);
	for (size_t i = 0; i < n; i++) {
		block.lanes[i].number = (int)i;
		block.lanes[i].index = {(unsigned)i % shape.block.x,
					(unsigned)i / shape.block.x % shape.block.y,
					(unsigned)i / (shape.block.x * shape.block.y)};
	}
	thread_fiber = fiber_of_thread();
}

std::vector<size_t> order_of_blocks(size_t n)
{
	std::vector<size_t> blocks;
	if (thread_order == FORWARD)
		return blocks;
	blocks.resize(n);
	std::iota(blocks.begin(), blocks.end(), (size_t)0);
	if (thread_order == REVERSE)
		std::reverse(blocks.begin(), blocks.end());
	else
		std::shuffle(blocks.begin(), blocks.end(), rng);
	return blocks;
}

} // namespace

void make_ready(int lane)
{
	block.lanes[lane].state = READY;
	ready.push_back(lane);
}

void wait_for_others(Lane *self)
{
	go_elsewhere();
	current = self;
}

void stop_in_kernel(const char *format, ...)
{
	char text[512];
	va_list list;
	va_start(list, format);
	vsnprintf(text, sizeof(text), format, list);
	va_end(list);
	stop("kernel %s: %s", block.kernel, text);
}

int barrier(const Site *site, Vote vote, bool predicate)
{
	Lane *self = (Lane *)current;
	Barrier &b = at_barrier;
	if (b.arrived == 0)
		b.site = site;
	else if (b.site != site)
		stop_in_kernel("threads of one block meet at different barriers: %s:%d and %s:%d",
			       b.site->file, b.site->line, site->file, site->line);
	b.count += predicate;
	b.all &= predicate;
	b.any |= predicate;
	self->site = site;
	if (++b.arrived == live) {
		open_barrier();
	} else {
		self->state = AT_BARRIER;
		wait_for_others(self);
	}
	return b.results[vote];
}

void run_kernel(const Kernel &k, void **arguments, const Shape &shape)
{
	size_t n = (size_t)shape.grid.x * shape.grid.y * shape.grid.z;
	void *room = nullptr;
	if (shape.shared_bytes && posix_memalign(&room, 128, shape.shared_bytes))
		stop("no memory");
	dynamic_shared = (unsigned char *)room;
	kernel = &k;
	kernel_arguments = arguments;
	block.kernel = k.name;
	set_up(shape);
	std::vector<size_t> blocks = order_of_blocks(n);
	for (size_t i = 0; i < n; i++) {
		size_t b = blocks.empty() ? i : blocks[i];
		block_index = {(unsigned)(b % shape.grid.x),
			       (unsigned)(b / shape.grid.x % shape.grid.y),
			       (unsigned)(b / ((size_t)shape.grid.x * shape.grid.y))};
		shared_memory_of_block(k, shape.shared_bytes);
		run_block();
	}
	shared_memory_after(k);
	current = nullptr;
	dynamic_shared = nullptr;
	free(room);
}
} // namespace occ_emu
