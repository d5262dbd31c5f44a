// emulate-delay: a constant one-way delay on emulated links, where the kernel has no netem.
//
//   emulate-delay NANOSECONDS LINKS
//
// scripts/emulate-cluster builds and calls it. Makes two TAP devices for each link, node<i> and
// port<i>, in the network namespace it is started in, prints "ready", and passes frames between
// them until it is ended: node<i> to port<i> after the delay, port<i> to node<i> at once. The
// devices go with the process. Frames keep their virtio-net header, so large segments pass
// unexpanded.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { MAX_LINKS = 64, MAX_FRAME = 10 + 14 + 8 + 65536, MAX_QUEUED = 1024 };

struct frame {
	struct frame *next;
	long long due;
	size_t size;
	char data[];
};

struct link {
	int node, port;
	struct frame *head, **tail; // what waits to leave the node
	int queued;
};

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "emulate-delay: %s: %s\n", what, strerror(errno));
	exit(1);
}

static long long now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (long long)t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int open_tap(const char *name, int i)
{
	struct ifreq r;
	int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), buffer = 4 << 20;
	if (fd < 0)
		fail("/dev/net/tun");
	memset(&r, 0, sizeof(r));
	r.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
	snprintf(r.ifr_name, sizeof(r.ifr_name), "%s%d", name, i);
	if (ioctl(fd, TUNSETIFF, &r) < 0)
		fail("TUNSETIFF");
	if (ioctl(fd, TUNSETOFFLOAD, (unsigned long)(TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6)) < 0)
		fail("TUNSETOFFLOAD");
	if (ioctl(fd, TUNSETSNDBUF, &buffer) < 0)
		fail("TUNSETSNDBUF");
	return fd;
}

// Takes what either end has sent: the node's frames into the queue, the switch's on at once.
static void take(struct link *l, long long delay)
{
	static char buffer[MAX_FRAME];
	ssize_t size;
	while (l->queued < MAX_QUEUED && (size = read(l->node, buffer, sizeof(buffer))) > 0) {
		struct frame *f = malloc(sizeof(*f) + (size_t)size);
		if (!f)
			fail("malloc");
		f->next = NULL;
		f->due = now() + delay;
		f->size = (size_t)size;
		memcpy(f->data, buffer, (size_t)size);
		*l->tail = f;
		l->tail = &f->next;
		l->queued++;
	}
	while ((size = read(l->port, buffer, sizeof(buffer))) > 0)
		(void)!write(l->node, buffer, (size_t)size);
}

static void pass_due(struct link *l, long long at)
{
	while (l->head && l->head->due <= at) {
		struct frame *f = l->head;
		(void)!write(l->port, f->data, f->size);
		l->head = f->next;
		if (!l->head)
			l->tail = &l->head;
		l->queued--;
		free(f);
	}
}

// Waits until a frame comes or the first one is due.
static void wait_for_any(const struct link *links, int n)
{
	static struct pollfd fds[2 * MAX_LINKS];
	long long first = -1;
	for (int i = 0; i < n; i++) {
		const struct link *l = &links[i];
		fds[2 * i] = (struct pollfd){.fd = l->node, .events = POLLIN};
		fds[2 * i + 1] = (struct pollfd){.fd = l->port, .events = POLLIN};
		if (l->queued >= MAX_QUEUED)
			fds[2 * i].events = 0;
		if (l->head && (first < 0 || l->head->due < first))
			first = l->head->due;
	}
	long long rest = first < 0 ? 0 : first - now();
	rest = rest < 0 ? 0 : rest;
	struct timespec t = {rest / 1000000000LL, rest % 1000000000LL};
	if (ppoll(fds, (nfds_t)(2 * n), first < 0 ? NULL : &t, NULL) < 0 && errno != EINTR)
		fail("ppoll");
}

int main(int argc, char **argv)
{
	static struct link links[MAX_LINKS];
	if (argc != 3 || atoi(argv[2]) < 1 || atoi(argv[2]) > MAX_LINKS) {
		fprintf(stderr, "usage: emulate-delay NANOSECONDS LINKS\n");
		return 64;
	}
	long long delay = atoll(argv[1]);
	int n = atoi(argv[2]);
	for (int i = 0; i < n; i++) {
		links[i].node = open_tap("node", i);
		links[i].port = open_tap("port", i);
		links[i].tail = &links[i].head;
	}
	prctl(PR_SET_TIMERSLACK, 1UL);
	// ahead of the ranks, which may keep every core busy; without the right to it, as it is
	struct sched_param priority = {.sched_priority = 10};
	(void)sched_setscheduler(0, SCHED_FIFO, &priority);
	puts("ready");
	fflush(stdout);
	for (;;) {
		wait_for_any(links, n);
		for (int i = 0; i < n; i++)
			take(&links[i], delay);
		long long at = now();
		for (int i = 0; i < n; i++)
			pass_due(&links[i], at);
	}
}
