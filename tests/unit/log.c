/* Which lines OCC_LOG lets through, and what they look like. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/check.h"

#define ERR "occ-train: one line\n"
#define WRONG "occ-train: OCC_LOG: expected error, info or debug, perhaps with :rank, found "

/* A thread of this rank (-1: not set) writes an error, an info and a debug line. */
static const struct {
	const char *wish;
	int rank;
	const char *lines;
} rows[] = {
	{NULL, 3, ERR},
	{"", 3, ERR},
	{"error", 3, ERR},
	{"info", 3, ERR "occ-train: rank 3: info: one line\n"},
	{"debug", 3, ERR "occ-train: rank 3: info: one line\nocc-train: rank 3: debug: one line\n"},
	{"debug", -1, ERR "occ-train: info: one line\nocc-train: debug: one line\n"},
	{"info:3", 3, ERR "occ-train: rank 3: info: one line\n"},
	{"debug:3", 2, ERR},
	{"debug:3", -1, ERR},
	{"info:0", 0, ERR "occ-train: rank 0: info: one line\n"},
	{"error:2", 3, ERR},
	/* not understood: rank 0 says so, once */
	{"debugs", 0, WRONG "'debugs'\n" ERR},
	{"debugs", -1, WRONG "'debugs'\n" ERR},
	{"debugs", 3, ERR},
	{"bug", 0, WRONG "'bug'\n" ERR},
	{"DEBUG", 0, WRONG "'DEBUG'\n" ERR},
	{"debug:", 0, WRONG "'debug:'\n" ERR},
	{"debug:x", 0, WRONG "'debug:x'\n" ERR},
	{"debug:-1", 0, WRONG "'debug:-1'\n" ERR},
	{"debug:1:2", 0, WRONG "'debug:1:2'\n" ERR},
	{"debug:123456789", 0, WRONG "'debug:123456789'\n" ERR},
	{":0", 0, WRONG "':0'\n" ERR},
};

/* The wish is read once per thread, so each row has a thread of its own. */
static void *speak(void *arg)
{
	int rank = *(const int *)arg;
	if (rank >= 0)
		occ_log_rank(rank);
	occ_log(OCC_LOG_ERROR, "%s line", "one");
	occ_log(OCC_LOG_INFO, "%s line", "one");
	occ_log(OCC_LOG_DEBUG, "%s line", "one");
	return NULL;
}

/* What a thread puts out on standard error. */
static void heard(int rank, char *text, size_t size)
{
	FILE *f = tmpfile();
	pthread_t thread;
	int old = dup(STDERR_FILENO);
	dup2(fileno(f), STDERR_FILENO);
	pthread_create(&thread, NULL, speak, &rank);
	pthread_join(thread, NULL);
	dup2(old, STDERR_FILENO);
	close(old);
	rewind(f);
	text[fread(text, 1, size - 1, f)] = 0;
	fclose(f);
}

int main(void)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char text[1000];
		const char *wish = rows[i].wish;
		if (wish)
			setenv("OCC_LOG", wish, 1);
		else
			unsetenv("OCC_LOG");
		heard(rows[i].rank, text, sizeof(text));
		CHECK(!strcmp(text, rows[i].lines), "OCC_LOG=%s, rank %d: '%s', not '%s'",
		      wish ? wish : "(unset)", rows[i].rank, text, rows[i].lines);
	}
	return check_done();
}
