/* One direction between two stages. Knows the device of its tensor group, not what the rows mean.
 */
#include "parallel/link.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"

static size_t row_bytes(const struct occ_link *l)
{
	return (size_t)l->C * occ_type_size(l->tp->dev->type);
}

/* Where this rank's slice lies in the whole matrix. */
static size_t slice_offset(const struct occ_link *l)
{
	return (size_t)occ_slice_row(l->rows, l->tp->comm->rank, l->tp->comm->size) * row_bytes(l);
}

void occ_link_init(struct occ_link *l, struct occ_comm *world, struct occ_group *tp, int peer,
		   enum occ_tag tag, int64_t rows, int64_t C, struct occ_traffic *traffic)
{
	int t = tp->comm->rank, T = tp->comm->size;
	memset(l, 0, sizeof(*l));
	l->comm = world;
	l->tp = tp;
	l->traffic = traffic;
	l->peer = peer;
	l->tag = tag;
	l->rows = rows;
	l->C = C;
	l->bytes =
		(size_t)(occ_slice_row(rows, t + 1, T) - occ_slice_row(rows, t, T)) * row_bytes(l);
	for (int i = 0; i < 2; i++)
		l->wire[i] = occ_alloc(l->bytes, 1);
}

/* The time spent here is what the schedule could not hide. */
static void wait_wire(struct occ_link *l, int wire)
{
	double begin = occ_clock_ms();
	occ_comm_wait(l->comm, &l->req[wire]);
	l->traffic->exposed_ms += occ_clock_ms() - begin;
}

void occ_link_drain(struct occ_link *l)
{
	for (int i = 0; i < 2; i++)
		if (l->req[i].active)
			wait_wire(l, i);
}

void occ_link_release(struct occ_link *l)
{
	if (l->comm)
		occ_link_drain(l);
	for (int i = 0; i < 2; i++)
		occ_free(l->wire[i]);
	memset(l, 0, sizeof(*l));
}

void occ_link_send(struct occ_link *l, const void *d_x, unsigned flags)
{
	struct occ_device *d = l->tp->dev;
	int wire = (int)(l->posted++ % 2);
	(void)flags; /* the route will look at them */
	if (l->bytes == 0)
		return;
	wait_wire(l, wire);
	d->ops->get(d, l->wire[wire], (const char *)d_x + slice_offset(l), l->bytes);
	occ_comm_post_send(l->comm, l->wire[wire], l->bytes, l->peer, l->tag, &l->req[wire]);
	occ_traffic_count(l->traffic, l->bytes, l->bytes, occ_comm_crosses(l->comm, l->peer));
}

void occ_link_expect(struct occ_link *l, int64_t left)
{
	int64_t ahead = left < 2 ? left : 2;
	for (; l->posted - l->taken < ahead; l->posted++)
		if (l->bytes)
			occ_comm_post_recv(l->comm, l->wire[l->posted % 2], l->bytes, l->peer,
					   l->tag, &l->req[l->posted % 2]);
}

void occ_link_recv(struct occ_link *l, void *d_x, unsigned flags)
{
	struct occ_device *d = l->tp->dev;
	int wire = (int)(l->taken % 2);
	(void)flags;
	occ_link_expect(l, 1);
	if (l->bytes) {
		wait_wire(l, wire);
		d->ops->put(d, (char *)d_x + slice_offset(l), l->wire[wire], l->bytes);
		d->ops->sync(d); /* the wire may be posted again */
	}
	l->taken++;
	occ_group_gather_rows(l->tp, d_x, l->rows, l->C);
}
