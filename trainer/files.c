/* Every step that the system can refuse goes through `failing`, so that tests can fail each in
 * turn. */
#include "trainer/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"

enum { PIECE = 1 << 20 }; /* summed while still in cache, then written */

static int failing(const struct occ_io *io)
{
	if (!io->fault || !occ_fault(io->fault, io->rank))
		return 0;
	errno = ENOSPC;
	return 1;
}

static int refuse(const struct occ_io *io, const char *path, const char *what, struct occ_err *e)
{
	return occ_fail(e, io->code, "%s: cannot %s: %s", path, what, strerror(errno));
}

static uint64_t stir(uint64_t state, uint64_t word)
{
	state ^= word;
	return (state << 29 | state >> 35) * 0x9e3779b97f4a7c15u;
}

void occ_sum_init(struct occ_sum *s)
{
	*s = (struct occ_sum){.state = 0x6f63632d73756d31u};
}

void occ_sum_add(struct occ_sum *s, const void *x, size_t bytes)
{
	const unsigned char *p = x, *end = p + bytes;
	for (; p < end && s->bytes % 8; s->bytes++) {
		s->word |= (uint64_t)*p++ << (s->bytes % 8 * 8);
		if (s->bytes % 8 == 7) {
			s->state = stir(s->state, s->word);
			s->word = 0;
		}
	}
	for (; end - p >= 8; p += 8, s->bytes += 8) {
		uint64_t word;
		memcpy(&word, p, 8);
		s->state = stir(s->state, word);
	}
	for (; p < end; s->bytes++)
		s->word |= (uint64_t)*p++ << (s->bytes % 8 * 8);
}

uint64_t occ_sum_get(const struct occ_sum *s)
{
	uint64_t h = stir(stir(s->state, s->word), s->bytes);
	h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
	return h ^ h >> 32;
}

static int open_aside(struct occ_file *f)
{
	struct stat st;
	if (failing(&f->io))
		return -1;
	if (stat(f->path, &st) == 0 && !S_ISREG(st.st_mode)) {
		errno = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
		return -1;
	}
	return open(f->aside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
}

int occ_file_create(struct occ_file *f, const char *path, struct occ_io io, struct occ_err *e)
{
	size_t n = strlen(path) + 5;
	*f = (struct occ_file){.io = io, .path = occ_strdup(path), .aside = occ_alloc(n, 1)};
	snprintf(f->aside, n, "%s.tmp", path);
	occ_sum_init(&f->sum);
	f->fd = open_aside(f);
	if (f->fd >= 0)
		return 0;
	refuse(&io, path, "create", e);
	occ_file_discard(f);
	return -1;
}

static int put(const struct occ_file *f, const char *p, size_t bytes)
{
	while (bytes > 0) {
		ssize_t done = failing(&f->io) ? -1 : write(f->fd, p, bytes);
		if (done < 0 && errno == EINTR)
			continue;
		if (done < 0)
			return -1;
		p += done;
		bytes -= (size_t)done;
	}
	return 0;
}

int occ_file_write(struct occ_file *f, const void *x, size_t bytes, struct occ_err *e)
{
	const char *p = x;
	while (bytes > 0) {
		size_t n = bytes < PIECE ? bytes : PIECE;
		occ_sum_add(&f->sum, p, n);
		if (put(f, p, n)) {
			refuse(&f->io, f->path, "write", e);
			occ_file_discard(f);
			return -1;
		}
		p += n;
		bytes -= n;
	}
	return 0;
}

/* The directory that holds `path`. */
static char *parent(const char *path)
{
	char *dir = occ_strdup(path), *slash = strrchr(dir, '/');
	if (slash && slash != dir)
		*slash = 0;
	else
		strcpy(dir, slash ? "/" : "."); /* at least two bytes: path is not empty */
	return dir;
}

int occ_file_commit(struct occ_file *f, struct occ_err *e)
{
	int bad = failing(&f->io) || fsync(f->fd);
	int closed = close(f->fd); /* network file systems report a full disk only here */
	f->fd = -1;
	bad = bad || closed || failing(&f->io) || rename(f->aside, f->path);
	if (bad) {
		refuse(&f->io, f->path, "write", e);
	} else {
		char *dir = parent(f->path);
		bad = occ_dir_sync(dir, f->io, e);
		occ_free(dir);
	}
	occ_file_discard(f);
	return bad ? -1 : 0;
}

void occ_file_discard(struct occ_file *f)
{
	if (f->fd >= 0)
		close(f->fd);
	f->fd = -1;
	if (f->aside)
		unlink(f->aside); /* already gone after a rename */
	occ_free(f->path);
	occ_free(f->aside);
	f->path = f->aside = NULL;
}

static int make_one(const char *path, const struct occ_io *io)
{
	struct stat st;
	if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
		return 0;
	return failing(io) || (mkdir(path, 0777) && errno != EEXIST) ? -1 : 0;
}

int occ_dir_make(const char *path, struct occ_io io, struct occ_err *e)
{
	char *p = occ_strdup(path);
	int bad = 0;
	for (char *s = p + 1; *p && *s && !bad; s++) {
		if (*s != '/')
			continue;
		*s = 0;
		bad = make_one(p, &io);
		*s = '/';
	}
	if (bad || make_one(path, &io))
		bad = refuse(&io, path, "create this directory", e);
	occ_free(p);
	return bad;
}

int occ_dir_sync(const char *path, struct occ_io io, struct occ_err *e)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	/* EINVAL: a file system that has nothing to sync in a directory. */
	int bad = fd < 0 || failing(&io) || (fsync(fd) && errno != EINVAL);
	if (bad)
		refuse(&io, path, "sync this directory", e);
	if (fd >= 0)
		close(fd);
	return bad ? -1 : 0;
}

int occ_dir_rename(const char *from, const char *to, struct occ_io io, struct occ_err *e)
{
	if (failing(&io) || rename(from, to))
		return refuse(&io, to, "rename into place", e);
	return 0;
}

int occ_dir_remove(const char *path)
{
	DIR *d = opendir(path);
	if (!d)
		return errno == ENOENT ? 0 : -1;
	for (struct dirent *it; (it = readdir(d));)
		if (strcmp(it->d_name, ".") && strcmp(it->d_name, ".."))
			unlinkat(dirfd(d), it->d_name, 0); /* what stays makes rmdir fail */
	closedir(d);
	return rmdir(path);
}

int occ_map_open(const char *path, int code, void **map, size_t *bytes, struct occ_err *e)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not hold us up */
	void *p = NULL;
	if (fd < 0)
		return occ_fail(e, code, "%s: cannot open: %s", path, strerror(errno));
	if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		close(fd);
		return occ_fail(e, code, "%s: not a regular file", path);
	}
	if (st.st_size > 0)
		p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	if (p == MAP_FAILED)
		return occ_fail(e, code, "%s: cannot read: %s", path, strerror(errno));
	*map = p;
	*bytes = (size_t)st.st_size;
	return 0;
}

void occ_map_close(void *map, size_t bytes)
{
	if (map)
		munmap(map, bytes);
}
