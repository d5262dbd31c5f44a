/* The keys of a hardware profile. */
#include "trainer/hardware.h"

#include <string.h>

#define AT(field) offsetof(struct occ_hardware, field)
#define RATE(key, field, def, help)                                                                \
	{                                                                                          \
		key, OCC_OPT_FLOAT, AT(field), def, 1e-6, 1e12, NULL, help                         \
	}
#define TIME(key, field, def, help)                                                                \
	{                                                                                          \
		key, OCC_OPT_FLOAT, AT(field), def, 0, 1e9, NULL, help                             \
	}
#define COUNT(key, field, help)                                                                    \
	{                                                                                          \
		key, OCC_OPT_INT, AT(field), "0", 0, 1 << 24, NULL, help                           \
	}

/* The defaults are of one core of the machine that docs/results.md describes. */
static const struct occ_opt rows[] = {
	{"name", OCC_OPT_STRING, AT(name), "\"one CPU core, 10 Gb/s\"", 1, 0, NULL, "what it is"},
	RATE("device.fp32_gflops", device.fp32_gflops, "100",
	     "matrix products of a rank, fp32, as achieved"),
	RATE("device.bf16_gflops", device.bf16_gflops, "200", "the same in bf16"),
	RATE("device.other_gops", device.other_gops, "8", "other arithmetic of a rank"),
	RATE("device.memory_gbytes_per_s", device.memory_gbytes_per_s, "20",
	     "a rank's memory traffic"),
	TIME("device.call_us", device.call_us, "1", "of a call or a kernel's launch"),
	COUNT("node.ranks", node.ranks,
	      "ranks of a node where parallel.ranks_per_node is 0; 0: all on one"),
	RATE("node.gbytes_per_s", node.gbytes_per_s, "1.25", "out of a node, and the same into it"),
	TIME("node.latency_us", node.latency_us, "30", "between nodes"),
	RATE("inside.gbytes_per_s", inside.gbytes_per_s, "5", "of a rank inside its node"),
	TIME("inside.latency_us", inside.latency_us, "5", "inside a node"),
	COUNT("host.machines", host.machines,
	      "machines that emulated nodes are spread over; 0: each node is its own"),
	{"host.cores", OCC_OPT_FLOAT, AT(host.cores), "0", 0, 1e6, NULL,
	 "cores of a machine; 0: enough for its ranks"},
};

const struct occ_opts occ_hardware_opts = {rows, sizeof(rows) / sizeof(rows[0]), "--hardware"};

int occ_hardware_load(struct occ_hardware *h, char *const *words, int n, struct occ_err *e)
{
	memset(h, 0, sizeof(*h));
	occ_opts_defaults(&occ_hardware_opts, h);
	for (int i = 0; i < n; i++)
		if (strchr(words[i], '=') ? occ_opts_set(&occ_hardware_opts, h, words[i], e)
					  : occ_opts_load(&occ_hardware_opts, h, words[i], e))
			return -1;
	return 0;
}

void occ_hardware_release(struct occ_hardware *h)
{
	occ_opts_release(&occ_hardware_opts, h);
}

struct occ_rates occ_hardware_rates(const struct occ_hardware *h)
{
	return (struct occ_rates){
		.products = {1e9 * h->device.fp32_gflops, 1e9 * h->device.bf16_gflops},
		.others = 1e9 * h->device.other_gops,
		.bytes = 1e9 * h->device.memory_gbytes_per_s,
		.call_s = 1e-6 * h->device.call_us,
	};
}
