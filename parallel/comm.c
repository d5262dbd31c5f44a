/* What all transports share: posting, waiting with a deadline, nodes. Knows no transport by name;
 * collectives are in collect.c. */
#include "parallel/comm.h"

#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"

static const char *const tag_name[] = {
	[OCC_TAG_ACT] = "act",
	[OCC_TAG_ACT_LENGTH] = "act length",
	[OCC_TAG_ACT_VARYING] = "act varying",
	[OCC_TAG_GRAD] = "grad",
	[OCC_TAG_GRAD_LENGTH] = "grad length",
	[OCC_TAG_GRAD_VARYING] = "grad varying",
	[OCC_TAG_COLL] = "collective",
	[OCC_TAG_AGREE] = "agree",
	[OCC_TAG_TEST] = "test",
	[OCC_TAG_BLAME] = "blame",
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

static int test_now(struct occ_req *r)
{
	if (r->active && r->comm->ops->test(r->comm, r))
		r->active = 0;
	return !r->active;
}

/* Tells every rank whom this one waits for and hears the same from those whose time is up as well.
 * waits_for[r] stays -1 for the silent ones. Nothing is freed: the process is about to end. */
static void exchange_blame(struct occ_comm *w, int peer, double until, int *waits_for)
{
	size_t n = (size_t)w->size;
	struct occ_req *out = occ_alloc(n, sizeof(*out)), *in = occ_alloc(n, sizeof(*in));
	int *mine = occ_alloc(1, sizeof(*mine)), *heard = occ_alloc(n, sizeof(*heard));
	*mine = peer;
	for (int r = 0; r < w->size; r++) {
		waits_for[r] = r == w->rank ? peer : -1;
		if (r == w->rank)
			continue;
		occ_comm_post_recv(w, &heard[r], sizeof(*heard), r, OCC_TAG_BLAME, &in[r]);
		occ_comm_post_send(w, mine, sizeof(*mine), r, OCC_TAG_BLAME, &out[r]);
	}
	while (occ_clock_ms() < until) {
		for (int r = 0; r < w->size; r++)
			if (in[r].active && test_now(&in[r]))
				waits_for[r] = heard[r];
		w->ops->idle(w);
	}
}

/* The lowest rank that waits for a silent one, or for it knows not whom; in a ring of waits the
 * lowest rank. */
static int speaker(const struct occ_comm *w, const int *waits_for)
{
	for (int r = 0; r < w->size; r++)
		if (waits_for[r] == w->size || (waits_for[r] >= 0 && waits_for[waits_for[r]] < 0))
			return r;
	for (int r = 0; r < w->rank; r++)
		if (waits_for[r] >= 0)
			return r;
	return w->rank;
}

void occ_comm_hold(double seconds)
{
	double until = occ_clock_ms() + 1e3 * seconds;
	while (occ_clock_ms() < until)
		usleep(50000);
}

void occ_comm_compare_notes(struct occ_comm *w, int peer)
{
	int *waits_for = occ_alloc((size_t)w->size, sizeof(*waits_for));
	double grace = w->timeout_s < 20 ? 1e3 : 1e3 * w->timeout_s / 20;
	grace = grace < 5e3 ? grace : 5e3;
	exchange_blame(w, peer, occ_clock_ms() + grace, waits_for);
	if (speaker(w, waits_for) != w->rank)
		occ_comm_hold(3);
}

static void give_up(struct occ_comm *c, const struct occ_req *r) __attribute__((noreturn));
static void give_up(struct occ_comm *c, const struct occ_req *r)
{
	occ_comm_compare_notes(c->root, c->world[r->peer]);
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
		double last = occ_clock_ms(), limit = last + c->timeout_s * 1e3;
		do {
			double now = occ_clock_ms();
			if (now - last >
			    1e3) /* this rank itself was stopped: that does not count */
				limit += now - last;
			if (now > limit)
				give_up(c, r);
			last = now;
			c->ops->idle(c);
		} while (!c->ops->test(c, r));
	}
	r->active = 0;
}

int occ_comm_test(struct occ_comm *c, struct occ_req *r)
{
	if (r->active && c->ops->test(c, r))
		r->active = 0;
	return !r->active;
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
