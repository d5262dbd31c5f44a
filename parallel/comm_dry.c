/* The dry transport: one rank of a world of any size, alone in its process. Messages are counted
 * above and go nowhere; groups are known from the layout (parallel/topo.c). */
#include "parallel/comm.h"

#include "base/mem.h"

static void post_send(struct occ_comm *c, const void *x, size_t bytes, int peer, enum occ_tag tag,
		      struct occ_req *r)
{
	(void)c, (void)x, (void)bytes, (void)peer, (void)tag, (void)r;
}

static void post_recv(struct occ_comm *c, void *x, size_t bytes, int peer, enum occ_tag tag,
		      struct occ_req *r)
{
	(void)c, (void)x, (void)bytes, (void)peer, (void)tag, (void)r;
}

static int test(struct occ_comm *c, struct occ_req *r)
{
	(void)c, (void)r;
	return 1;
}

static void nothing(struct occ_comm *c)
{
	(void)c;
}

static int node(struct occ_comm *c)
{
	(void)c;
	return 0;
}

static void abort_dry(int code)
{
	(void)code; /* occ_die ends this process, which is all there is */
}

static struct occ_comm *choose(struct occ_comm *c, const int *ranks, int n);

static const struct occ_comm_ops dry_ops = {
	.name = "dry",
	.dry = 1,
	.post_send = post_send,
	.post_recv = post_recv,
	.test = test,
	.idle = nothing,
	.choose = choose,
	.node = node,
	.close = nothing,
	.abort = abort_dry,
};

static struct occ_comm *make(int rank, int size)
{
	struct occ_comm *c = occ_alloc(1, sizeof(*c));
	c->ops = &dry_ops;
	c->rank = rank;
	c->size = size;
	c->root = c;
	c->world = occ_alloc((size_t)size, sizeof(*c->world));
	return c;
}

static struct occ_comm *choose(struct occ_comm *c, const int *ranks, int n)
{
	struct occ_comm *s = make(0, n);
	for (int i = 0; i < n; i++) {
		s->world[i] = ranks[i];
		if (ranks[i] == c->rank)
			s->rank = i;
	}
	s->root = c;
	s->node_of = c->node_of;
	return s;
}

struct occ_comm *occ_comm_open_dry(int rank, int size)
{
	struct occ_comm *c = make(rank, size);
	for (int r = 0; r < size; r++)
		c->world[r] = r;
	return c;
}
