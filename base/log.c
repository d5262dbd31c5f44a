/* The wish is parsed once per thread; nothing is shared between ranks. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { NO_RANK = -1, ALL_RANKS = -1 };

static const char *const names[] = {"error", "info", "debug"};

struct wish {
	int loaded, rank; /* a rank, or all */
	enum occ_log_level level;
};

static _Thread_local struct wish wish;
static _Thread_local int my_rank = NO_RANK;

/* "LEVEL" or "LEVEL:RANK"; 0 if it is neither. */
static int parse(const char *text, struct wish *w)
{
	size_t n = strcspn(text, ":");
	const char *digits = text + n + (text[n] == ':');
	for (int i = OCC_LOG_ERROR; i <= OCC_LOG_DEBUG; i++)
		if (strlen(names[i]) == n && !strncmp(names[i], text, n))
			*w = (struct wish){1, ALL_RANKS, (enum occ_log_level)i};
	if (text[n] == ':')
		w->rank = atoi(digits);
	return w->loaded && strspn(digits, "0123456789") == strlen(digits) &&
	       (text[n] == 0 || (*digits && strlen(digits) < 8));
}

static void load(void)
{
	static const struct wish none = {1, ALL_RANKS, OCC_LOG_ERROR};
	const char *text = getenv("OCC_LOG");
	int good = !text || !*text || parse(text, &wish);
	if (!good || !text || !*text)
		wish = none;
	if (!good && my_rank <= 0) /* once, and no reason to stop */
		occ_log(OCC_LOG_ERROR,
			"OCC_LOG: expected error, info or debug, perhaps with :rank, found '%.60s'",
			text);
}

void occ_log_rank(int rank)
{
	my_rank = rank;
}

static int log_on(enum occ_log_level level)
{
	if (!wish.loaded)
		load();
	return level == OCC_LOG_ERROR ||
	       (level <= wish.level && (wish.rank == ALL_RANKS || wish.rank == my_rank));
}

void occ_log(enum occ_log_level level, const char *fmt, ...)
{
	struct occ_err line = {0};
	char text[900], rank[24] = "";
	va_list ap;
	if (!log_on(level))
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (my_rank != NO_RANK)
		snprintf(rank, sizeof(rank), "rank %d: ", my_rank);
	if (level == OCC_LOG_ERROR)
		snprintf(line.text, sizeof(line.text), "%s", text);
	else
		snprintf(line.text, sizeof(line.text), "%s%s: %s", rank, names[level], text);
	occ_err_print(&line);
}
