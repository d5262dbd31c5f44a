/* One voice, one line, one write. */
#include "base/err.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static _Thread_local char place[128];
static void (*abort_hook)(int code);
static pthread_mutex_t speaking = PTHREAD_MUTEX_INITIALIZER;

void occ_err_place(const char *text)
{
	snprintf(place, sizeof(place), "%s", text);
}

void occ_err_on_abort(void (*hook)(int code))
{
	abort_hook = hook;
}

/* Puts out "occ-train: TEXT\n"; UTF-8 passes, control characters do not. */
static void put_line(const char *text)
{
	char line[1536];
	int n = snprintf(line, sizeof(line) - 1, "occ-train: %s", text);
	if (n > (int)sizeof(line) - 2)
		n = (int)sizeof(line) - 2;
	for (int i = 0; i < n; i++)
		if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
			line[i] = '?';
	line[n++] = '\n';
	ssize_t done = write(STDERR_FILENO, line, (size_t)n);
	(void)done; /* nowhere left to report to */
}

int occ_fail(struct occ_err *e, int code, const char *fmt, ...)
{
	if (e->code != OCC_OK)
		return -1;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(e->text, sizeof(e->text), fmt, ap);
	va_end(ap);
	e->code = code;
	return -1;
}

void occ_err_print(const struct occ_err *e)
{
	put_line(e->text);
}

static void put_line_with_place(const char *text)
{
	char line[1408];
	snprintf(line, sizeof(line), "%s%s%s", place, place[0] ? ": " : "", text);
	put_line(line);
}

void occ_err_print_place(const struct occ_err *e)
{
	put_line_with_place(e->text);
}

static void speak_and_abort(int code, const char *text) __attribute__((noreturn));
static void speak_and_abort(int code, const char *text)
{
	pthread_mutex_lock(&speaking); /* never released: whoever comes second waits for the end */
	fflush(stdout);
	put_line_with_place(text);
	if (abort_hook)
		abort_hook(code);
	_exit(code);
}

void occ_die(int code, const char *fmt, ...)
{
	char text[1024];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	speak_and_abort(code, text);
}

void occ_bug(const char *file, int line, const char *cond, const char *fmt, ...)
{
	char why[512], text[1024];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
	snprintf(text, sizeof(text), "bug at %s:%d: %s: %s", file, line, cond, why);
	speak_and_abort(OCC_E_BUG, text);
}
