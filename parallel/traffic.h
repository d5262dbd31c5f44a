/* What travelled, per kind of traffic; the fields of metrics.jsonl (docs/design.md, 7.3). */
#ifndef OCC_PARALLEL_TRAFFIC_H
#define OCC_PARALLEL_TRAFFIC_H

#include <stddef.h>
#include <stdint.h>

enum occ_kind { OCC_PP_FORWARD, OCC_PP_BACKWARD, OCC_DP, OCC_EMBEDDING, OCC_TP, OCC_NKINDS };

extern const char *const occ_kind_name[OCC_NKINDS]; /* "pp_forward" ... */

struct occ_traffic {
	int64_t messages;   /* a transfer is one message whatever its chunks, at its sender */
	int64_t raw_bytes;  /* shape x type before compression */
	int64_t wire_bytes; /* payload as sent */
	int64_t inter_node_raw_bytes; /* the part that left a node */
	int64_t inter_node_wire_bytes;
	double encode_ms, decode_ms; /* time in codecs */
	double exposed_ms;           /* time spent waiting in this kind of traffic */
};

void occ_traffic_count(struct occ_traffic *t, size_t raw, size_t wire, int inter_node);

#endif
