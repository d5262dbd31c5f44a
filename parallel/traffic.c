/* Counters of what travelled. Knows no transport. */
#include "parallel/traffic.h"

const char *const occ_kind_name[OCC_NKINDS] = {
	[OCC_PP_FORWARD] = "pp_forward",
	[OCC_PP_BACKWARD] = "pp_backward",
	[OCC_DP] = "dp",
	[OCC_EMBEDDING] = "embedding",
	[OCC_TP] = "tp",
};

void occ_traffic_count(struct occ_traffic *t, size_t raw, size_t wire, int inter_node)
{
	t->messages++;
	t->raw_bytes += (int64_t)raw;
	t->wire_bytes += (int64_t)wire;
	if (inter_node) {
		t->inter_node_raw_bytes += (int64_t)raw;
		t->inter_node_wire_bytes += (int64_t)wire;
	}
}
