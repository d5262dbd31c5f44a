/* Fibers: stacks of their own that run one after the other on whichever OS thread switches to them.
 */
#ifndef OCC_TESTS_EMU_FIBER_H
#define OCC_TESTS_EMU_FIBER_H

namespace occ_emu
{
struct Fiber;

/* `entry` never returns. Fibers are kept for ever and used again. */
Fiber *fiber_new(void (*entry)());

/* The fiber that stands for the calling OS thread's own stack. */
Fiber *fiber_of_thread();

/* Leaves the fiber that runs; returns when something switches back to it. */
void fiber_switch(Fiber *to);
Fiber *fiber_running();
} // namespace occ_emu

#endif
