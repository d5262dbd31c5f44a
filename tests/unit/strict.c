/* What the strict device must catch, and what it must let pass: each scene in a process of its own.
 */
#include "base/device.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/check.h"

struct scene {
	struct occ_device *d;
	float *x, *y; /* 4 floats each */
	float host[4];
};

static void host_reads(struct scene *s)
{
	*(volatile float *)s->host = *(volatile float *)s->x;
}

static void host_pointer(struct scene *s)
{
	s->d->ops->add(s->d, 4, s->host, s->y);
}

static void past_the_end(struct scene *s)
{
	s->d->ops->add(s->d, 4, s->x + 1, s->y);
}

static void freed(struct scene *s)
{
	s->d->ops->free(s->d, s->x);
	s->d->ops->add(s->d, 4, s->x, s->y);
}

static void unwritten_ids(struct scene *s)
{
	s->d->ops->embed_forward(s->d, 4, 1, 0, 4, (int32_t *)(void *)s->x, s->y, s->y);
}

static void freed_twice(struct scene *s)
{
	s->d->ops->free(s->d, s->x);
	s->d->ops->free(s->d, s->x);
}

static void unwritten_numbers(struct scene *s)
{
	s->d->ops->add(s->d, 4, s->x, s->y);
	s->d->ops->get(s->d, s->host, s->y, sizeof(s->host));
	_exit(isnan(s->host[0]) && isnan(s->host[3]) ? 1 : 0);
}

static void blameless(struct scene *s)
{
	s->d->ops->add(s->d, 2, s->x + 2, s->y + 2);
}

static const struct crime {
	const char *name;
	void (*commit)(struct scene *s);
	int status; /* exit code, or 128 + signal */
} crimes[] = {
	{"host reads", host_reads, 128 + SIGSEGV},
	{"host pointer", host_pointer, OCC_E_BUG},
	{"past the end", past_the_end, OCC_E_BUG},
	{"freed", freed, OCC_E_BUG},
	{"freed twice", freed_twice, OCC_E_BUG},
	{"unwritten numbers are NaN", unwritten_numbers, 1},
	{"unwritten ids", unwritten_ids, OCC_E_BUG},
	{"blameless", blameless, 0},
};

static void convict(const struct crime *c)
{
	pid_t child = fork();
	if (!child) {
		struct occ_err e = {0};
		struct scene s = {.d = occ_device_open("strict", OCC_F32, 1, &e)};
		signal(SIGSEGV, SIG_DFL); /* a sanitizer would exit with a code of its own */
		close(STDERR_FILENO);
		s.x = s.d->ops->alloc(s.d, sizeof(s.host));
		s.y = s.d->ops->alloc(s.d, sizeof(s.host));
		c->commit(&s);
		_exit(0);
	}
	int status = 0;
	waitpid(child, &status, 0);
	int got = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
	CHECK(got == c->status, "%s: %d, not %d", c->name, got, c->status);
}

int main(void)
{
	for (size_t i = 0; i < sizeof(crimes) / sizeof(crimes[0]); i++)
		convict(&crimes[i]);
	return check_done();
}
