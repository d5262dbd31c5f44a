/* Inside of the emulated NCCL. */
#ifndef OCC_TESTS_EMU_NCCL_H
#define OCC_TESTS_EMU_NCCL_H

#include <memory>

#include <mpi.h>
#include <nccl.h>

#include "tests/cudaemu/emu_runtime.h"

namespace occ_emu
{
struct Communicator {
	MPI_Comm mpi = MPI_COMM_NULL;
	int rank = 0, size = 1, device = 0;
	bool blocking = true;
	bool aborted = false;
	ncclResult_t error = ncclSuccess; /* what ncclCommGetAsyncError() says, and stays */
	int unasked = 0;                  /* it says ncclInProgress so often before */
	bool ending = false;
	/* Groups of operations run one after the other, in the order in which they were made. */
	uint64_t made = 0, ended = 0;
};

/* What a call returns that a communicator without blocking carries on with in the background. */
ncclResult_t in_background(Communicator &c);
/* Whether a new operation may be made: not before the last one's ncclInProgress was asked about. */
ncclResult_t usable(const ncclComm *c);

size_t nccl_size(ncclDataType_t type); /* 0: not emulated */
MPI_Datatype mpi_type(ncclDataType_t type);
MPI_Op mpi_op(ncclRedOp_t op, ncclDataType_t type);
} // namespace occ_emu

struct ncclComm {
	std::shared_ptr<occ_emu::Communicator> c;
};

#endif
