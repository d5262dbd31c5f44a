/* Fibers. A switch is a few instructions on x86-64; elsewhere makecontext() starts a fiber and
 * setjmp() leaves it, since swapcontext() makes two system calls. */
#include "tests/cudaemu/emu_fiber.h"

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

#include "tests/cudaemu/emu_runtime.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
#define SWITCH_BY_ASSEMBLY
#endif

#ifdef SWITCH_BY_ASSEMBLY
extern "C" void occ_emu_switch(void **save, void *to);
__asm__(".text\n"
	".type occ_emu_switch,@function\n"
	".globl occ_emu_switch\n"
	"occ_emu_switch:\n"
	"	pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15\n"
	"	movq %rsp, (%rdi); movq %rsi, %rsp\n"
	"	popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp; ret\n"
	".size occ_emu_switch, .-occ_emu_switch\n");
#endif

namespace occ_emu
{
struct Fiber {
	void (*entry)();
#ifdef SWITCH_BY_ASSEMBLY
	void *top;
#else
	bool started;
	jmp_buf left;
	ucontext_t start;
#endif
	const void *stack; /* for the address sanitizer */
	size_t bytes;
	void *fake;
};

namespace
{
#ifdef __SANITIZE_ADDRESS__
constexpr size_t STACK = 512 << 10;
#else
constexpr size_t STACK = 128 << 10;
#endif
constexpr size_t GUARD = 64 << 10;                     /* a whole page, whatever its size */
std::vector<Fiber *> &all = *new std::vector<Fiber *>; /* for the leak sanitizer */
Fiber *running;                                        /* under the lock, as all of the emulation */

void arrived(Fiber *self)
{
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_finish_switch_fiber(self ? self->fake : nullptr, nullptr, nullptr);
#else
	(void)self;
#endif
}

void start()
{
	arrived(nullptr);
	running->entry();
}

/* Fibers that stop at one depth would share few cache sets if their stacks began alike. */
size_t stagger()
{
	return all.size() * 320 % 4096 / 64 * 64;
}

void prepare(Fiber *f, char *low)
{
	char *top = low + STACK - stagger();
#ifdef SWITCH_BY_ASSEMBLY
	void **slot = (void **)top;
	*--slot = nullptr; /* where start() would return to */
	*--slot = (void *)start;
	f->top = slot - 6; /* the registers that the switch pops, all zero */
#else
	getcontext(&f->start);
	f->start.uc_stack.ss_sp = low;
	f->start.uc_stack.ss_size = (size_t)(top - low);
	f->start.uc_link = nullptr;
	makecontext(&f->start, start, 0);
#endif
}
} // namespace

Fiber *fiber_new(void (*entry)())
{
	Fiber *f = new Fiber();
	char *low = (char *)mmap(nullptr, GUARD + STACK, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (low == (char *)MAP_FAILED || mprotect(low, GUARD, PROT_NONE))
		stop("no memory for the stack of a fiber");
	f->entry = entry;
	f->stack = low + GUARD;
	f->bytes = STACK;
	prepare(f, low + GUARD);
	all.push_back(f);
	return f;
}

Fiber *fiber_of_thread()
{
	static thread_local Fiber own;
#ifdef __SANITIZE_ADDRESS__
	if (!own.stack) {
		pthread_attr_t attr;
		pthread_getattr_np(pthread_self(), &attr);
		pthread_attr_getstack(&attr, (void **)&own.stack, &own.bytes);
		pthread_attr_destroy(&attr);
	}
#endif
#ifndef SWITCH_BY_ASSEMBLY
	own.started = true;
#endif
	running = &own;
	return running;
}

Fiber *fiber_running()
{
	return running;
}

void fiber_switch(Fiber *to)
{
	Fiber *from = running;
	running = to;
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_start_switch_fiber(&from->fake, to->stack, to->bytes);
#endif
#ifdef SWITCH_BY_ASSEMBLY
	occ_emu_switch(&from->top, to->top);
#else
	if (!_setjmp(from->left)) {
		if (to->started)
			_longjmp(to->left, 1);
		to->started = true;
		setcontext(&to->start);
	}
#endif
	arrived(from);
}
} // namespace occ_emu
