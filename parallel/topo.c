/* rank <-> (tp, dp, pp), and the groups of a rank made by splitting the world. */
#include "parallel/topo.h"

#include <string.h>

#include "base/mem.h"

struct occ_place occ_place_of(const struct occ_layout *l, int rank)
{
	int tp = rank % l->tensor, column = rank / l->tensor;
	return (struct occ_place){.tp = tp, .dp = column % l->data, .pp = column / l->data};
}

int occ_rank_of(const struct occ_layout *l, struct occ_place p)
{
	return (p.pp * l->data + p.dp) * l->tensor + p.tp;
}

int occ_layout_fit(struct occ_layout *l, int ranks, struct occ_err *e)
{
	int64_t model = (int64_t)l->tensor * l->pipeline;
	if (l->tensor < 1 || l->pipeline < 1 || l->data < 0)
		return occ_fail(
			e, OCC_E_LAUNCH,
			"parallel.tensor %d x pipeline %d x data %d: each must be at least 1 "
			"(data 0: what is left of the ranks)",
			l->tensor, l->pipeline, l->data);
	if (l->data == 0 && (model > ranks || ranks % model))
		return occ_fail(
			e, OCC_E_LAUNCH,
			"%d ranks do not divide into parallel.tensor %d x pipeline %d: start "
			"a multiple of %lld ranks",
			ranks, l->tensor, l->pipeline, (long long)model);
	if (l->data && (model > ranks || model * l->data != ranks))
		return occ_fail(
			e, OCC_E_LAUNCH,
			"%d ranks do not fit parallel.tensor %d x pipeline %d x data %d: start "
			"exactly their product, or set parallel.data=0",
			ranks, l->tensor, l->pipeline, l->data);
	if (l->data == 0)
		l->data = (int)(ranks / model);
	return 0;
}

int occ_stage_layers(int layers, int P, int s, int *first)
{
	int each = layers / P, more = layers % P;
	*first = s * each + (s < more ? s : more);
	return each + (s < more);
}

/* The groups that a rank may be in. */
enum which { TP, DP, MODEL, EMBED, FUSED, DP_NODE, DP_LEADERS };
static const char *const names[] = {
	[TP] = "tensor ranks",
	[DP] = "replicas",
	[MODEL] = "the ranks of a replica",
	[EMBED] = "the tied embedding",
	[FUSED] = "the tied embedding of all replicas",
	[DP_NODE] = "replicas of a node",
	[DP_LEADERS] = "replicas of different nodes",
};

/* The first replica on the same node as replica dp of (pp, tp). */
static int first_on_node(const struct occ_topo *t, int pp, int tp, int dp)
{
	const struct occ_layout *l = &t->layout;
	int node = t->node_of[occ_rank_of(l, (struct occ_place){tp, pp, dp})];
	for (int d = 0; d < dp; d++)
		if (t->node_of[occ_rank_of(l, (struct occ_place){tp, pp, d})] == node)
			return d;
	return dp;
}

/* 1 if the rank at q is in the group of that kind of the rank at t->place. */
static int together(const struct occ_topo *t, enum which g, struct occ_place q)
{
	struct occ_place p = t->place;
	int last = t->layout.pipeline - 1, shard = q.tp == p.tp;
	int end = last > 0 && (q.pp == 0 || q.pp == last) && (p.pp == 0 || p.pp == last);
	int replicas = shard && q.pp == p.pp;
	switch (g) {
	case TP:
		return q.pp == p.pp && q.dp == p.dp;
	case DP:
		return replicas;
	case MODEL:
		return q.dp == p.dp;
	case EMBED:
		return end && shard && q.dp == p.dp;
	case FUSED:
		return end && shard;
	case DP_NODE:
		return replicas &&
		       first_on_node(t, q.pp, q.tp, q.dp) == first_on_node(t, p.pp, p.tp, p.dp);
	case DP_LEADERS:
		return replicas && first_on_node(t, q.pp, q.tp, q.dp) == q.dp &&
		       first_on_node(t, p.pp, p.tp, p.dp) == p.dp;
	}
	return 0;
}

struct range {
	int at, end;
};

/* All of n, or only the own one: where members of a group may be. */
static struct range range_of(int all, int own, int n)
{
	return all ? (struct range){0, n} : (struct range){own, own + 1};
}

/* Members in the order of world ranks, which is that of tp, then dp, then pp. Collective. */
static struct occ_comm *group(struct occ_topo *t, enum which g, enum occ_kind kind)
{
	struct occ_comm *world = t->world, *c;
	const struct occ_layout *l = &t->layout;
	struct range tp = range_of(g == TP || g == MODEL, t->place.tp, l->tensor);
	struct range dp = range_of(g != TP && g != MODEL && g != EMBED, t->place.dp, l->data);
	struct range pp =
		range_of(g == MODEL || g == EMBED || g == FUSED, t->place.pp, l->pipeline);
	size_t most = (size_t)(tp.end - tp.at) * (size_t)(dp.end - dp.at);
	int *ranks = occ_alloc(most * (size_t)(pp.end - pp.at), sizeof(*ranks)), n = 0;
	for (int p = pp.at; p < pp.end; p++)
		for (int d = dp.at; d < dp.end; d++)
			for (int k = tp.at; k < tp.end; k++) {
				struct occ_place q = {.tp = k, .pp = p, .dp = d};
				if (together(t, g, q))
					ranks[n++] = occ_rank_of(l, q);
			}
	if (world->ops->choose)
		c = n ? world->ops->choose(world, ranks, n) : NULL;
	else
		c = world->ops->split(world, n ? ranks[0] : -1, world->rank);
	occ_free(ranks);
	if (c) {
		c->what = names[g];
		c->traffic = kind < OCC_NKINDS ? &t->traffic[kind] : NULL;
	}
	return c;
}

/* Sums over replicas are made inside nodes first: who is with whom. */
static void count_nodes(struct occ_topo *t)
{
	for (int d = 0; d < t->layout.data; d++) {
		int first = first_on_node(t, t->place.pp, t->place.tp, d);
		t->dp_nodes += first == d;
		for (int tp = 0; tp < t->layout.tensor; tp++)
			t->tp_differ |= first_on_node(t, t->place.pp, tp, d) != first;
	}
}

void occ_topo_init(struct occ_topo *t, struct occ_comm *world, const struct occ_layout *l,
		   int ranks_per_node, int fused)
{
	memset(t, 0, sizeof(*t));
	t->layout = *l;
	t->world = world;
	occ_check(l->tensor * l->pipeline * l->data == world->size,
		  "layout %d x %d x %d of %d ranks", l->tensor, l->pipeline, l->data, world->size);
	t->place = occ_place_of(l, world->rank);
	t->node_of = occ_alloc((size_t)world->size, sizeof(*t->node_of));
	occ_comm_nodes(world, ranks_per_node, t->node_of);
	world->node_of = t->node_of;
	count_nodes(t);
	t->tp = group(t, TP, OCC_TP);
	t->dp = group(t, DP, OCC_DP);
	t->model = group(t, MODEL, OCC_NKINDS);
	t->embed = group(t, fused ? FUSED : EMBED, OCC_EMBEDDING);
	t->dp_node = group(t, DP_NODE, OCC_DP);
	t->dp_leaders = group(t, DP_LEADERS, OCC_DP);
}

void occ_topo_release(struct occ_topo *t)
{
	occ_comm_close(t->dp_leaders);
	occ_comm_close(t->dp_node);
	occ_comm_close(t->embed);
	occ_comm_close(t->model);
	occ_comm_close(t->dp);
	occ_comm_close(t->tp);
	if (t->world)
		t->world->node_of = NULL;
	occ_free(t->node_of);
	memset(t, 0, sizeof(*t));
}
