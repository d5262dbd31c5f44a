/* The transport of one rank: nobody to talk to, so every collective is a no-op above it. */
#include "parallel/comm.h"

#include "base/mem.h"

static void no_send(struct occ_comm *c, const void *x, size_t bytes, int peer, enum occ_tag tag,
		    struct occ_req *r)
{
	(void)c, (void)x, (void)bytes, (void)r;
	occ_bug(__FILE__, __LINE__, "no peer", "send to %d (tag %d) of one rank", peer, (int)tag);
}

static void no_recv(struct occ_comm *c, void *x, size_t bytes, int peer, enum occ_tag tag,
		    struct occ_req *r)
{
	(void)c, (void)x, (void)bytes, (void)r;
	occ_bug(__FILE__, __LINE__, "no peer", "receive from %d (tag %d) of one rank", peer,
		(int)tag);
}

static int test(struct occ_comm *c, struct occ_req *r)
{
	(void)c, (void)r;
	return 1;
}

static void idle(struct occ_comm *c)
{
	(void)c;
}

static struct occ_comm *split(struct occ_comm *c, int color, int key)
{
	(void)key;
	if (color < 0)
		return NULL;
	struct occ_comm *s = occ_comm_open_self(c->timeout_s);
	s->world[0] = c->world[0];
	s->root = c->root;
	s->node_of = c->node_of;
	return s;
}

static int node(struct occ_comm *c)
{
	(void)c;
	return 0;
}

static void close_self(struct occ_comm *c)
{
	(void)c;
}

static void abort_self(int code)
{
	(void)code; /* occ_die ends this process, which is all there is */
}

static const struct occ_comm_ops self_ops = {
	.name = "self",
	.post_send = no_send,
	.post_recv = no_recv,
	.test = test,
	.idle = idle,
	.split = split,
	.node = node,
	.close = close_self,
	.abort = abort_self,
};

struct occ_comm *occ_comm_open_self(double timeout_s)
{
	struct occ_comm *c = occ_alloc(1, sizeof(*c));
	c->ops = &self_ops;
	c->size = 1;
	c->root = c;
	c->timeout_s = timeout_s;
	c->world = occ_alloc(1, sizeof(*c->world));
	return c;
}
