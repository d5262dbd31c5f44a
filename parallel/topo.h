/* rank <-> (tp, dp, pp): tp fastest, pp slowest; the groups of a rank; nodes. */
#ifndef OCC_PARALLEL_TOPO_H
#define OCC_PARALLEL_TOPO_H

#include "parallel/comm.h"

struct occ_layout {
	int tensor, pipeline, data;
};
struct occ_place {
	int tp, pp, dp;
};

/* Pure. */
struct occ_place occ_place_of(const struct occ_layout *l, int rank);
int occ_rank_of(const struct occ_layout *l, struct occ_place p);
/* data 0 = what is left of the ranks. Refusal 5 if tp*pp*dp != ranks. */
int occ_layout_fit(struct occ_layout *l, int ranks, struct occ_err *e);
/* Layers of stage s: [*first, *first + n); the first layers % P stages hold one more. Returns n. */
int occ_stage_layers(int layers, int P, int s, int *first);

struct occ_topo {
	struct occ_layout layout;
	struct occ_place place;
	struct occ_comm *world;   /* borrowed; pipeline neighbours talk over it */
	struct occ_comm *tp, *dp; /* owned; size >= 1 always */
	struct occ_comm *model;   /* owned; all (tp, pp) of this replica: the global norm */
	/* Owned; those that share the tied embedding: first and last stage of this (tp, dp), or,
	 * fused, of this tp and all dp (Optimus-CC section 6). NULL elsewhere and for one stage. */
	struct occ_comm *embed;
	/* Owned; the ranks of dp on this node, and the first of each node (NULL on the others). */
	struct occ_comm *dp_node, *dp_leaders;
	int dp_nodes;  /* nodes of this rank's dp group */
	int tp_differ; /* 1: some tp ranks of this stage see other nodes in their dp groups */
	int *node_of;  /* owned; [world size] */
	struct occ_traffic traffic[OCC_NKINDS];
};

/* Collective over world. Groups count their traffic here: tp in OCC_TP, dp in OCC_DP, embed. */
void occ_topo_init(struct occ_topo *t, struct occ_comm *world, const struct occ_layout *l,
		   int ranks_per_node, int fused);
void occ_topo_release(struct occ_topo *t);

#endif
