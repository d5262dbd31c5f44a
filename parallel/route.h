/* Routes: how each transfer travels. A pure function from what is known of a transfer to a codec
 * and a reason; both ends of a link ask it with the same numbers, so no header need travel.
 * Compressed back-propagation, selective stages, warm-up, "only between nodes" and the least ratio
 * are rows of one table (Optimus-CC sections 4 to 7). */
#ifndef OCC_PARALLEL_ROUTE_H
#define OCC_PARALLEL_ROUTE_H

#include "compress/codec.h"
#include "parallel/schedule.h"
#include "parallel/traffic.h"

enum occ_scope { OCC_SCOPE_INTER_NODE, OCC_SCOPE_ALL, OCC_SCOPE_NONE };

/* One site of compression. */
struct occ_site {
	struct occ_knobs knobs; /* codec NULL: never compressed */
	enum occ_mark mark;     /* links: which transfers are critical */
	int feedback;
	float forget;       /* links: part of the residual that each message drops */
	int64_t start_iter; /* steps before it run dense */
	double min_ratio;   /* data parallel: what a matrix must save; 0: always compressed */
	int stages;         /* data parallel: the earliest so many stages */
};

enum { OCC_NSITES = OCC_DP + 1 }; /* pp_forward, pp_backward, dp */

struct occ_policy {
	enum occ_scope scope;
	struct occ_site site[OCC_NSITES]; /* by enum occ_kind */
	int fused;                        /* fused embedding synchronisation */
	int64_t bucket_bytes;             /* of a dense sum over replicas; 0: 25 MB */
	int undo;     /* steps may be skipped: streams must be able to go back */
	uint64_t key; /* randomness of codecs */
};

struct occ_transfer {
	enum occ_kind kind;
	int stage;      /* of the sender */
	int peers;      /* that take part: 2 on a link, the contributors of a sum */
	int inter_node; /* leaves a node */
	int critical;   /* links: marked by the schedule */
	int64_t step;   /* from 0 */
	int64_t n, m;   /* the matrix; n 1: a vector */
	enum occ_type type;
};

struct occ_route {
	const struct occ_codec_ops *codec; /* NULL: dense */
	const char *why;
};

struct occ_route occ_route(const struct occ_policy *p, const struct occ_transfer *t);
/* Pipeline gradients take the support of their activations (dct forward). */
int occ_route_follows(const struct occ_policy *p);
/* The site whose knobs a kind uses: a gradient that follows uses the forward's. */
const struct occ_site *occ_route_site(const struct occ_policy *p, enum occ_kind kind);
/* Bytes that a dense sum of the matrix would send, over those of the compressed one. 0 where the
 * wire's length is not known before. */
double occ_route_ratio(const struct occ_site *s, const struct occ_transfer *t);

#endif
