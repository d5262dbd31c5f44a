/* What all transports share: posting, waiting with a deadline, nodes. Knows no transport by name;
 * collectives are in collect.c. */
#include "parallel/comm.h"

#include <string.h>

#include "base/mem.h"

static const char *const tag_name[] = {
	[OCC_TAG_ACT] = "act",	   [OCC_TAG_GRAD] = "grad", [OCC_TAG_COLL] = "collective",
	[OCC_TAG_AGREE] = "agree", [OCC_TAG_TEST] = "test",
};

static void start(struct occ_comm *c, size_t bytes, int peer, enum occ_tag tag, struct occ_req *r)
{
	occ_check(!r->active, "request posted twice (peer %d, tag %d)", peer, (int)tag);
	occ_check(peer >= 0 && peer < c->size, "peer %d of %d", peer, c->size);
	memset(r, 0, sizeof(*r));
	r->active = 1;
	r->peer = peer;
	r->tag = tag;
	r->bytes = bytes;
	r->comm = c;
}

void occ_comm_post_send(struct occ_comm *c, const void *x, size_t bytes, int peer, enum occ_tag tag,
			struct occ_req *r)
{
	start(c, bytes, peer, tag, r);
	r->src = x;
	c->ops->post_send(c, x, bytes, peer, tag, r);
}

void occ_comm_post_recv(struct occ_comm *c, void *x, size_t bytes, int peer, enum occ_tag tag,
			struct occ_req *r)
{
	start(c, bytes, peer, tag, r);
	r->dst = x;
	c->ops->post_recv(c, x, bytes, peer, tag, r);
}

static void give_up(const struct occ_comm *c, const struct occ_req *r) __attribute__((noreturn));
static void give_up(const struct occ_comm *c, const struct occ_req *r)
{
	occ_die(OCC_E_COMM, "rank %d %s for %g s (tag %s, %zu bytes): gone or stuck",
		c->world[r->peer], r->dst ? "sent nothing" : "took nothing", c->timeout_s,
		tag_name[r->tag], r->bytes);
}

void occ_comm_wait(struct occ_comm *c, struct occ_req *r)
{
	if (!r->active)
		return;
	occ_check(r->comm == c, "request of another communicator (tag %s)", tag_name[r->tag]);
	if (!c->ops->test(c, r)) {
		double limit = occ_clock_ms() + c->timeout_s * 1e3;
		do {
			if (occ_clock_ms() > limit)
				give_up(c, r);
			c->ops->idle(c);
		} while (!c->ops->test(c, r));
	}
	r->active = 0;
}

int occ_comm_crosses(const struct occ_comm *c, int peer)
{
	return c->node_of && c->node_of[c->world[peer]] != c->node_of[c->world[c->rank]];
}

/* Numbers nodes from 0 in the order of their lowest ranks; in: that lowest rank, for each rank. */
static void number_nodes(int size, int *node_of)
{
	int next = 0;
	for (int r = 0; r < size; r++)
		node_of[r] = node_of[r] == r ? next++ : node_of[node_of[r]];
}

void occ_comm_nodes(struct occ_comm *world, int ranks_per_node, int *node_of)
{
	int size = world->size;
	if (ranks_per_node > 0) {
		for (int r = 0; r < size; r++)
			node_of[r] = r / ranks_per_node;
		return;
	}
	int64_t *lowest = occ_alloc((size_t)size, sizeof(*lowest));
	lowest[world->rank] = world->ops->node(world);
	occ_comm_max_int64(world, lowest, size);
	for (int r = 0; r < size; r++)
		node_of[r] = (int)lowest[r];
	occ_free(lowest);
	number_nodes(size, node_of);
}

void occ_comm_close(struct occ_comm *c)
{
	if (!c)
		return;
	c->ops->close(c);
	occ_free(c->world);
	occ_free(c);
}
