/* The ticker: it ticks while its owner is busy or asleep, hears no signals, and ends at once. */
#include "parallel/ticker.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "tests/check.h"

static atomic_int ticks, off_thread, heard_elsewhere;
static pthread_t owner;

static void tick(void)
{
	atomic_fetch_add(&ticks, 1);
	if (!pthread_equal(pthread_self(), owner))
		atomic_fetch_add(&off_thread, 1);
}

static void hear(int sig)
{
	(void)sig;
	if (!pthread_equal(pthread_self(), owner))
		atomic_fetch_add(&heard_elsewhere, 1);
}

static void nap(long us)
{
	nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

/* Ticks until there are `n` more, or ten seconds are over (others may have the cores). */
static int gets(int n, int busy)
{
	double end = occ_clock_ms() + 1e4;
	int want = atomic_load(&ticks) + n;
	while (atomic_load(&ticks) < want && occ_clock_ms() < end)
		if (!busy)
			nap(200);
	return atomic_load(&ticks) >= want;
}

static void check_ticks(void)
{
	for (int busy = 0; busy < 2; busy++) {
		struct occ_ticker *t = occ_ticker_open(tick, 100);
		CHECK(t && gets(20, busy), "busy %d: %d ticks", busy, atomic_load(&ticks));
		occ_ticker_close(t);
		int last = atomic_load(&ticks);
		nap(5000);
		CHECK(atomic_load(&ticks) == last, "busy %d: it ticks on", busy);
	}
	CHECK(atomic_load(&off_thread) == atomic_load(&ticks), "on a thread of its own");
}

/* Not more often than asked: the sleep is before each call. */
static void check_pause(void)
{
	int before = atomic_load(&ticks);
	double begin = occ_clock_ms();
	struct occ_ticker *t = occ_ticker_open(tick, 10000);
	gets(3, 0);
	occ_ticker_close(t);
	int n = atomic_load(&ticks) - before;
	CHECK(n >= 3 && n <= (occ_clock_ms() - begin) / 10 + 1, "%d ticks of 10 ms in %g ms", n,
	      occ_clock_ms() - begin);
}

/* A signal to the process is never taken by the ticker's thread, and the owner's mask is as it was.
 */
static void check_signals(void)
{
	sigset_t usr, before, after;
	signal(SIGUSR1, hear);
	sigemptyset(&usr);
	sigaddset(&usr, SIGUSR1);
	pthread_sigmask(SIG_SETMASK, NULL, &before);
	struct occ_ticker *t = occ_ticker_open(tick, 100);
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	for (int s = 1; s < 32; s++)
		CHECK(sigismember(&before, s) == sigismember(&after, s), "mask of signal %d", s);
	/* With the owner deaf only the ticker's thread could take it. */
	pthread_sigmask(SIG_BLOCK, &usr, NULL);
	kill(getpid(), SIGUSR1);
	gets(20, 0);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	occ_ticker_close(t);
	CHECK(atomic_load(&heard_elsewhere) == 0, "the ticker's thread took a signal");
}

int main(void)
{
	owner = pthread_self();
	check_ticks();
	check_pause();
	check_signals();
	for (int i = 0; i < 500; i++) {
		struct occ_ticker *t = occ_ticker_open(tick, i % 3 * 50);
		CHECK(t, "ticker %d", i);
		occ_ticker_close(t);
	}
	struct occ_ticker *many[16];
	for (int i = 0; i < 16; i++)
		many[i] = occ_ticker_open(tick, 100);
	CHECK(gets(50, 0), "16 at once");
	for (int i = 0; i < 16; i++)
		occ_ticker_close(many[i]);
	occ_ticker_close(NULL);
	CHECK(occ_mem_live() == 0, "%lld bytes not freed", (long long)occ_mem_live());
	return check_done();
}
