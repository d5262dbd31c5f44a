/* What `plan` reckons with: the rates of a rank's device, of its node's network and of its host,
 * from JSON (configs/hardware) or as `plan --measure` finds them. */
#ifndef OCC_TRAINER_HARDWARE_H
#define OCC_TRAINER_HARDWARE_H

#include "base/device.h"
#include "base/opts.h"

struct occ_hardware {
	char *name;
	struct {
		double fp32_gflops, bf16_gflops; /* matrix products of one rank, as achieved */
		double other_gops;               /* everything else that is arithmetic */
		double memory_gbytes_per_s;
		double call_us; /* of a kernel's launch, or a function's call */
	} device;
	struct {
		int64_t ranks;       /* of a node; 0: all ranks are on one */
		double gbytes_per_s; /* out of a node, and the same into it */
		double latency_us;
	} node;
	struct {
		double gbytes_per_s, latency_us; /* of a rank, inside its node */
	} inside;
	struct {
		int64_t machines; /* that all nodes are spread over; 0: each node is its own */
		double cores;     /* of a machine; 0: enough for its ranks */
	} host;
};

extern const struct occ_opts occ_hardware_opts;

/* Defaults (one core, 10 Gb/s), then each word in turn: a JSON file, or key=value. Released by the
 * caller also after a refusal (2). */
int occ_hardware_load(struct occ_hardware *h, char *const *words, int n, struct occ_err *e);
void occ_hardware_release(struct occ_hardware *h);
struct occ_rates occ_hardware_rates(const struct occ_hardware *h);

#endif
