/* The simulator: plays the lists of all stages of a step without a transport: times, slots in
 * flight, deadlocks. Pure.
 *
 * It plays one replica and one tensor rank, for all do the same at the same time; where several of
 * a stage's ranks sit on one node, they share its network interface and its cores. Time flows from
 * event to event; between two events every pass and every transfer goes on at the rate that is its
 * share. Seconds, bytes, bytes/s, or any other units that agree. */
#ifndef OCC_PARALLEL_SIMULATE_H
#define OCC_PARALLEL_SIMULATE_H

#include "base/trace.h"
#include "parallel/schedule.h"

enum { OCC_SIM_STAGES = 64 }; /* at most */

/* What instructions cost a rank of one stage; [op][critical]. */
struct occ_sim_stage {
	double compute[OCC_NOPS][2]; /* own work: a pass; before a send: encoding; after a receive:
				      * decoding; before a sum: all of it */
	double delay[OCC_NOPS][2];   /* sends, sums: passes before the first byte arrives */
	/* Sends, sums: what is then sent; by this rank, or, where it leaves the node, by all ranks
	 * of the stage on this node, who do it at the same time. */
	double bytes[OCC_NOPS][2];
	int crosses[OCC_NOPS];          /* 1: it leaves the node */
	const char *codec[OCC_NOPS][2]; /* for the trace; NULL: none */
	int node;
	int sharers; /* ranks of this stage on the machine: each wants a core; >= 1 */
};

struct occ_sim_net {
	double node;   /* bytes/s out of a node, and the same into it */
	double inside; /* bytes/s of a rank inside its node */
	int hosts;     /* machines that the nodes are spread over evenly; 0: each its own */
	int nodes;     /* all of them */
	double cores;  /* of a host, for all its ranks; 0: enough for all */
};

enum occ_send_mode {
	OCC_SEND_POSTED,    /* at most `wires` messages at each end of a link and direction */
	OCC_SEND_RENDEZVOUS /* blocking until received: shows why no blocking send exists */
};

struct occ_sim_conf {
	const struct occ_schedule *all; /* [P] */
	int P;
	enum occ_send_mode mode;
	int wires;
	const struct occ_sim_stage *stage; /* [P] */
	struct occ_sim_net net;
	struct occ_trace *trace; /* [P] or NULL: opened here, released by the caller; in ms if times
				  * are in seconds */
};

struct occ_sim {
	double total;              /* until the last stage's last instruction; < 0: deadlock */
	double bubble;             /* 1 - busy / (P * total); busy: in passes */
	int stuck_stage, stuck_at; /* first stage that cannot go on and its instruction, or -1 */
	int max_slots[OCC_SIM_STAGES]; /* largest number of forward passes in flight */
};
void occ_sim_play(const struct occ_sim_conf *conf, struct occ_sim *out);

/* All stages and links alike, nothing shared, one wire. Sends are given as times. */
struct occ_cost {
	double forward, backward, send_act, send_grad, send_critical;
};
void occ_simulate(const struct occ_schedule *all, int P, const struct occ_cost *cost,
		  enum occ_send_mode mode, struct occ_sim *out);
/* Marks list `s`, one of the P of a step: a transfer is critical if its receiver waits for it when
 * all travel dense. Pure, so that all ranks agree. */
void occ_schedule_mark_slack(struct occ_schedule *s, enum occ_op send, int P, int M,
			     const struct occ_cost *cost);

#endif
