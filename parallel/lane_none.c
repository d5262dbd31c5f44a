/* The build without CUDA has no lanes. */
#include "parallel/lane.h"

#include <stddef.h>

int occ_lane_built(void)
{
	return 0;
}

int occ_lane_serves(struct occ_comm *c, struct occ_device *d, struct occ_err *e)
{
	(void)c, (void)d;
	if (e)
		occ_fail(e, OCC_E_CONFIG,
			 "parallel.transport nccl: this program was built without CUDA");
	return 0;
}

struct occ_lane *occ_lane_open(struct occ_comm *c, struct occ_device *d, const char *what)
{
	(void)c, (void)d, (void)what;
	return NULL;
}

struct occ_lane *occ_lane_open_pair(struct occ_comm *world, struct occ_device *d, int peer,
				    const char *what)
{
	(void)world, (void)d, (void)peer, (void)what;
	return NULL;
}

void occ_lane_close(struct occ_lane *l)
{
	(void)l;
}

void occ_lane_guard(int on)
{
	(void)on;
}

void occ_lane_begin(struct occ_lane *l, void *after)
{
	(void)l, (void)after;
}

void occ_lane_send(struct occ_lane *l, const void *d_x, size_t bytes, int peer)
{
	(void)l, (void)d_x, (void)bytes, (void)peer;
}

void occ_lane_recv(struct occ_lane *l, void *d_x, size_t bytes, int peer)
{
	(void)l, (void)d_x, (void)bytes, (void)peer;
}

void occ_lane_end(struct occ_lane *l, void *mark)
{
	(void)l, (void)mark;
}
