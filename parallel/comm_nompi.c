/* The build without MPI: asking for it is refused in one line. */
#include "parallel/comm.h"

#include <stddef.h>

struct occ_comm *occ_comm_open_mpi(double timeout_s, struct occ_err *e)
{
	(void)timeout_s;
	occ_fail(e, OCC_E_CONFIG,
		 "this build has no MPI: use parallel.transport=thread with --ranks N, or install "
		 "openmpi-bin and libopenmpi-dev and build with MPI=1");
	return NULL;
}
