/* Sleeps between calls: a core that is wanted elsewhere is not kept from it. */
#include "parallel/ticker.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "base/mem.h"

struct occ_ticker {
	pthread_t thread;
	void (*tick)(void);
	struct timespec nap;
	atomic_int ends;
};

static void *run(void *arg)
{
	struct occ_ticker *t = arg;
	while (!atomic_load(&t->ends)) {
		nanosleep(&t->nap, NULL);
		t->tick();
	}
	return NULL;
}

struct occ_ticker *occ_ticker_open(void (*tick)(void), long us)
{
	struct occ_ticker *t = occ_alloc(1, sizeof(*t));
	sigset_t all, before;
	t->tick = tick;
	t->nap = (struct timespec){us / 1000000, us % 1000000 * 1000};
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int failed = pthread_create(&t->thread, NULL, run, t);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!failed)
		return t;
	occ_free(t);
	return NULL;
}

void occ_ticker_close(struct occ_ticker *t)
{
	if (!t)
		return;
	atomic_store(&t->ends, 1);
	pthread_join(t->thread, NULL);
	occ_free(t);
}
