/* Files for tests: a directory of their own, files written from bytes, standard output caught. */
#ifndef OCC_TESTS_FILES_H
#define OCC_TESTS_FILES_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char files_dir[] = "/tmp/occ-test-XXXXXX";

/* The path of a file there; eight may be in use at a time. */
static inline char *files_path(const char *name)
{
	static char paths[8][128];
	static int next;
	char *p = paths[next++ % 8];
	snprintf(p, sizeof(paths[0]), "%s/%s", files_dir, name);
	return p;
}

static inline void files_begin(void)
{
	if (!mkdtemp(files_dir))
		exit(1);
}

static inline void files_end(void)
{
	char command[128];
	snprintf(command, sizeof(command), "rm -r %s", files_dir);
	if (system(command))
		exit(1);
}

static inline char *files_put(const char *name, const void *x, size_t n)
{
	char *path = files_path(name);
	FILE *f = fopen(path, "wb");
	if (!f || fwrite(x, 1, n, f) != n || fclose(f)) {
		perror(path);
		exit(1);
	}
	return path;
}

/* The bytes of a file, with a 0 behind them; at most `room` - 1. */
static inline size_t files_get(const char *path, void *x, size_t room)
{
	FILE *f = fopen(path, "rb");
	size_t n = f ? fread(x, 1, room - 1, f) : 0;
	if (f)
		fclose(f);
	((char *)x)[n] = 0;
	return n;
}

/* Between the two, standard output goes to a file; its text comes back. */
static inline int files_catch(void)
{
	fflush(stdout);
	int real = dup(STDOUT_FILENO);
	FILE *f = freopen(files_path("stdout"), "w", stdout);
	if (real < 0 || !f)
		exit(1);
	return real;
}

static inline void files_release(int real, char *text, size_t room)
{
	fflush(stdout);
	dup2(real, STDOUT_FILENO);
	close(real);
	files_get(files_path("stdout"), text, room);
}

#endif
