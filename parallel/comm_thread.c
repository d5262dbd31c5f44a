/* Ranks as threads of one process. Whoever comes second to a message copies it: a send finds the
 * posted receive in its peer's mailbox or is queued there, and the other way round. Requests are
 * the queue elements, so a message allocates nothing and no lock is held while bytes are copied.
 *
 * A waiting rank sleeps on its mailbox: every completion raises the mailbox's event count, `test`
 * notes the count before it looks, and `idle` sleeps only while the count is what `test` saw. */
#include "parallel/comm.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"

enum { YIELDS = 20, NAP_NS = 10 * 1000 * 1000, STACK_BYTES = 16 << 20 };

struct queue {
	struct occ_req *head, *tail;
};

/* What rank `owner` of a team receives: at most one of a peer's two queues matches a given tag. */
struct mailbox {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	unsigned events; /* completions of this rank's requests */
	struct queue sends, recvs;
};

struct team {
	int size, open; /* open: ranks that have not closed */
	struct mailbox *box;
	struct seat {
		int color, key;
		struct team *made;
	} * seat; /* the table of a split */
};

/* One rank's view. */
struct thread_comm {
	struct team *team;
	unsigned seen; /* events at the last test */
	int yields;
};

static void push(struct queue *q, struct occ_req *r)
{
	r->next = NULL;
	if (q->tail)
		q->tail->next = r;
	else
		q->head = r;
	q->tail = r;
}

/* A request is the sender's or the receiver's: `rank` is whose it must be on the other side. */
static struct occ_req *take(struct queue *q, int rank, enum occ_tag tag, int by_peer)
{
	struct occ_req *before = NULL;
	for (struct occ_req *r = q->head; r; before = r, r = r->next) {
		if (r->tag != tag || (by_peer ? r->peer : r->comm->rank) != rank)
			continue;
		*(before ? &before->next : &q->head) = r->next;
		if (q->tail == r)
			q->tail = before;
		return r;
	}
	return NULL;
}

static struct team *team_of(const struct occ_comm *c)
{
	return ((struct thread_comm *)c->impl)->team;
}

/* After this the other rank may forget its request; its mailbox stays. */
static void complete(struct occ_req *r)
{
	struct mailbox *box = &team_of(r->comm)->box[r->comm->rank];
	__atomic_store_n(&r->done, 1, __ATOMIC_RELEASE);
	pthread_mutex_lock(&box->lock);
	__atomic_add_fetch(&box->events, 1, __ATOMIC_RELEASE);
	pthread_cond_signal(&box->changed);
	pthread_mutex_unlock(&box->lock);
}

static void deliver(struct occ_req *send, struct occ_req *recv, struct occ_req *mine)
{
	occ_check(send->bytes == recv->bytes,
		  "rank %d sends %zu bytes, rank %d expects %zu (tag %d)", send->comm->rank,
		  send->bytes, recv->comm->rank, recv->bytes, (int)send->tag);
	if (send->bytes)
		memcpy(recv->dst, send->src, send->bytes);
	mine->done = 1;
	complete(mine == send ? recv : send);
}

static void post_send(struct occ_comm *c, const void *x, size_t bytes, int peer, enum occ_tag tag,
		      struct occ_req *r)
{
	struct mailbox *box = &team_of(c)->box[peer];
	(void)x, (void)bytes;
	pthread_mutex_lock(&box->lock);
	struct occ_req *recv = take(&box->recvs, c->rank, tag, 1);
	if (!recv)
		push(&box->sends, r);
	pthread_mutex_unlock(&box->lock);
	if (recv)
		deliver(r, recv, r);
}

static void post_recv(struct occ_comm *c, void *x, size_t bytes, int peer, enum occ_tag tag,
		      struct occ_req *r)
{
	struct mailbox *box = &team_of(c)->box[c->rank];
	(void)x, (void)bytes;
	pthread_mutex_lock(&box->lock);
	struct occ_req *send = take(&box->sends, peer, tag, 0);
	if (!send)
		push(&box->recvs, r);
	pthread_mutex_unlock(&box->lock);
	if (send)
		deliver(send, r, r);
}

static int test(struct occ_comm *c, struct occ_req *r)
{
	struct thread_comm *t = c->impl;
	t->seen = __atomic_load_n(&t->team->box[c->rank].events, __ATOMIC_ACQUIRE);
	int done = __atomic_load_n(&r->done, __ATOMIC_ACQUIRE);
	if (done)
		t->yields = 0;
	return done;
}

static void idle(struct occ_comm *c)
{
	struct thread_comm *t = c->impl;
	struct mailbox *box = &t->team->box[c->rank];
	if (t->yields++ < YIELDS) {
		sched_yield();
		return;
	}
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += NAP_NS;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_mutex_lock(&box->lock);
	while (box->events == t->seen)
		if (pthread_cond_timedwait(&box->changed, &box->lock, &until))
			break; /* the time limit is the caller's */
	pthread_mutex_unlock(&box->lock);
}

static struct team *team_open(int size)
{
	struct team *t = occ_alloc(1, sizeof(*t));
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	t->size = t->open = size;
	t->box = occ_alloc((size_t)size, sizeof(*t->box));
	t->seat = occ_alloc((size_t)size, sizeof(*t->seat));
	for (int i = 0; i < size; i++) {
		pthread_mutex_init(&t->box[i].lock, NULL);
		pthread_cond_init(&t->box[i].changed, &attr);
	}
	pthread_condattr_destroy(&attr);
	return t;
}

static void team_leave(struct team *t)
{
	if (__atomic_sub_fetch(&t->open, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	for (int i = 0; i < t->size; i++) {
		pthread_cond_destroy(&t->box[i].changed);
		pthread_mutex_destroy(&t->box[i].lock);
	}
	occ_free(t->seat);
	occ_free(t->box);
	occ_free(t);
}

static struct occ_comm *split(struct occ_comm *c, int color, int key);

static int node(struct occ_comm *c)
{
	(void)c;
	return 0;
}

static void close_thread(struct occ_comm *c)
{
	team_leave(team_of(c));
	occ_free(c->impl);
}

static void abort_thread(int code)
{
	(void)code; /* occ_die ends the process and so all ranks */
}

static const struct occ_comm_ops thread_ops = {
	.name = "thread",
	.post_send = post_send,
	.post_recv = post_recv,
	.test = test,
	.idle = idle,
	.split = split,
	.node = node,
	.close = close_thread,
	.abort = abort_thread,
};

static struct occ_comm *view_open(struct team *t, int rank, double timeout_s)
{
	struct occ_comm *c = occ_alloc(1, sizeof(*c));
	struct thread_comm *impl = occ_alloc(1, sizeof(*impl));
	impl->team = t;
	c->ops = &thread_ops;
	c->rank = rank;
	c->root = c;
	c->size = t->size;
	c->timeout_s = timeout_s;
	c->world = occ_alloc((size_t)t->size, sizeof(*c->world));
	for (int r = 0; r < t->size; r++)
		c->world[r] = r;
	c->impl = impl;
	return c;
}

/* Position of rank r among the ranks of its color: how many come before it by key, then rank. */
static int order(const struct team *t, int r)
{
	int before = 0;
	for (int i = 0; i < t->size; i++)
		if (t->seat[i].color == t->seat[r].color &&
		    (t->seat[i].key < t->seat[r].key ||
		     (i < r && t->seat[i].key == t->seat[r].key)))
			before++;
	return before;
}

static struct occ_comm *join(struct occ_comm *c, int leader)
{
	struct team *t = team_of(c);
	struct occ_comm *s = view_open(t->seat[leader].made, order(t, c->rank), c->timeout_s);
	for (int r = 0; r < t->size; r++)
		if (t->seat[r].color == t->seat[c->rank].color)
			s->world[order(t, r)] = c->world[r];
	s->root = c->root;
	s->node_of = c->node_of;
	return s;
}

static struct occ_comm *split(struct occ_comm *c, int color, int key)
{
	struct team *t = team_of(c);
	struct occ_comm *s = NULL;
	int leader = 0, members = 0;
	t->seat[c->rank] = (struct seat){color, key, NULL};
	occ_comm_barrier(c);
	while (t->seat[leader].color != color)
		leader++;
	for (int r = 0; r < t->size; r++)
		members += t->seat[r].color == color;
	if (leader == c->rank && color >= 0)
		t->seat[leader].made = team_open(members);
	occ_comm_barrier(c);
	if (color >= 0)
		s = join(c, leader);
	occ_comm_barrier(c); /* the table may be written again */
	return s;
}

struct crew {
	struct occ_comm *world;
	int (*body)(struct occ_comm *world, void *arg);
	void *arg;
	int result;
	pthread_t thread;
};

static void *run(void *p)
{
	struct crew *w = p;
	w->result = w->body(w->world, w->arg);
	occ_comm_close(w->world);
	return NULL;
}

static void launch(struct crew *w)
{
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	int e = pthread_create(&w->thread, &attr, run, w);
	pthread_attr_destroy(&attr);
	if (e)
		occ_die(OCC_E_COMM, "cannot start rank %d of %d as a thread: %s", w->world->rank,
			w->world->size, strerror(e));
}

int occ_comm_run_threads(int n, double timeout_s, int (*body)(struct occ_comm *world, void *arg),
			 void *arg)
{
	struct team *t = team_open(n);
	struct crew *crew = occ_alloc((size_t)n, sizeof(*crew));
	for (int r = 0; r < n; r++)
		crew[r] = (struct crew){
			.world = view_open(t, r, timeout_s), .body = body, .arg = arg};
	for (int r = 0; r < n; r++)
		launch(&crew[r]);
	for (int r = 0; r < n; r++)
		pthread_join(crew[r].thread, NULL);
	int worst = crew[0].result;
	for (int r = 1; r < n; r++)
		worst = crew[r].result > worst ? crew[r].result : worst;
	occ_free(crew);
	return worst;
}
