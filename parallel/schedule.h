/* A training step as a list of instructions. Building is pure: any process can build any stage's
 * list, both ends of a link build the same marks, and the simulator plays all lists with no
 * transport. */
#ifndef OCC_PARALLEL_SCHEDULE_H
#define OCC_PARALLEL_SCHEDULE_H

#include <stdint.h>
#include <stdio.h>

enum occ_op {
	OCC_RECV_ACT,
	OCC_FORWARD,
	OCC_SEND_ACT,
	OCC_RECV_GRAD,
	OCC_BACKWARD,
	OCC_SEND_GRAD,
	OCC_REDUCE_GRADS,
	OCC_REDUCE_EMBED,
	OCC_NOPS
};
extern const char *const occ_op_name[OCC_NOPS];

enum { OCC_CRITICAL = 1u << 0 }; /* the transfer is on the critical path: it may be compressed */

/* Which transfers between stages are critical. TAIL: those that the receiver takes with nothing
 * left to hide them behind: gradients in its cool-down (Optimus-CC section 5, the epilogue),
 * activations in its warm-up. SLACK: those that it waits for in a simulated step. */
enum occ_mark { OCC_MARK_NONE, OCC_MARK_TAIL, OCC_MARK_SLACK, OCC_MARK_ALL };

struct occ_instr {
	uint8_t op, flags;
	int16_t peer; /* stage of the other end; -1 for none */
	int32_t mb;   /* micro-batch; -1 for none */
};

struct occ_schedule {
	int stage, nstages, nmicro;
	int slots; /* forward passes in flight at most: min(P - stage, M) */
	int n, cap;
	struct occ_instr *at; /* owned */
};

/* 1F1B, M >= 1 micro-batches on P >= 1 stages, M < P allowed. `s` is released by the caller. */
void occ_schedule_1f1b(struct occ_schedule *s, int stage, int P, int M);
/* Forward passes only (evaluation). */
void occ_schedule_forward(struct occ_schedule *s, int stage, int P, int M);
/* A pass over one list: sets or clears OCC_CRITICAL on the transfers of one direction, named by
 * what sends them: OCC_SEND_ACT or OCC_SEND_GRAD. Any rule but SLACK. */
void occ_schedule_mark(struct occ_schedule *s, enum occ_op send, enum occ_mark rule);
/* Gradients are critical where the activations of the same micro-batch and link are. */
void occ_schedule_follow(struct occ_schedule *s);
void occ_schedule_print(const struct occ_schedule *s, FILE *out);
void occ_schedule_release(struct occ_schedule *s);

#endif
