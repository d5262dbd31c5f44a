/* Test-only NCCL on MPI: the communicators. A rank is a process with a GPU of its own
 * (OCC_EMU_GPUS); two ranks with one GPU are refused, as NCCL does.
 *
 * MPI is called by whichever thread is in a call of NCCL, or in a call of the runtime that waits or
 * asks (cuda...Synchronize, ...Query, cudaMemcpy, cudaFree), and nowhere else: so work goes on in
 * such calls only. A program that initialises MPI with MPI_THREAD_SERIALIZED has to keep its own
 * calls of MPI apart from these itself; its lock cannot be seen from here. Nor can two ranks be
 * threads of one process. */
#include "tests/cudaemu/emu_nccl.h"

#include <cstring>
#include <string>
#include <unistd.h>
#include <vector>

using namespace occ_emu;

namespace
{
enum { MAGIC = 0x6f6363, FIRST_TAG = 1 << 20 };

struct Id {
	int magic, root, tag;
};

struct Member {
	int rank, process; /* of the communicator; of MPI_COMM_WORLD */
	cudaUUID_t gpu;
	char host[64];
};

thread_local std::string last_message;

bool mpi_runs()
{
	int yes = 0;
	MPI_Initialized(&yes);
	return yes;
}

Member describe_self(int rank)
{
	Member m = {};
	cudaDeviceProp p;
	const char *host = getenv("NCCL_HOSTID");
	cudaGetDeviceProperties(&p, current_device());
	m.rank = rank;
	MPI_Comm_rank(MPI_COMM_WORLD, &m.process);
	m.gpu = p.uuid;
	if (host)
		strncpy(m.host, host, sizeof(m.host) - 1);
	else
		gethostname(m.host, sizeof(m.host) - 1);
	return m;
}

/* All members, by rank: gathered and sent around by the one that made the id. */
std::vector<Member> meet(const Id &id, int n, const Member &self)
{
	std::vector<Member> all((size_t)n);
	int bytes = (int)sizeof(Member);
	if (self.process != id.root) {
		MPI_Send(&self, bytes, MPI_BYTE, id.root, id.tag, MPI_COMM_WORLD);
		MPI_Recv(all.data(), n * bytes, MPI_BYTE, id.root, id.tag, MPI_COMM_WORLD,
			 MPI_STATUS_IGNORE);
		return all;
	}
	all[(size_t)self.rank] = self;
	for (int i = 1; i < n; i++) {
		Member m;
		MPI_Recv(&m, bytes, MPI_BYTE, MPI_ANY_SOURCE, id.tag, MPI_COMM_WORLD,
			 MPI_STATUS_IGNORE);
		all[(size_t)m.rank] = m;
	}
	for (const Member &m : all)
		if (m.process != self.process)
			MPI_Send(all.data(), n * bytes, MPI_BYTE, m.process, id.tag,
				 MPI_COMM_WORLD);
	return all;
}

ncclResult_t complain(ncclResult_t result, const std::string &message)
{
	last_message = message;
	say("NCCL: %s", message.c_str());
	return result;
}

ncclResult_t check_gpus(const std::vector<Member> &all)
{
	for (size_t i = 0; i < all.size(); i++)
		for (size_t j = 0; j < i; j++)
			if (!memcmp(&all[i].gpu, &all[j].gpu, sizeof(all[i].gpu)) &&
			    !strcmp(all[i].host, all[j].host))
				return complain(ncclInvalidUsage,
						"Duplicate GPU detected : rank " +
							std::to_string(j) + " and rank " +
							std::to_string(i) +
							" (OCC_EMU_GPUS=n gives a host n GPUs)");
	return ncclSuccess;
}

MPI_Comm connect(const Id &id, const std::vector<Member> &all)
{
	MPI_Group world, group;
	MPI_Comm mpi;
	std::vector<int> processes;
	for (const Member &m : all)
		processes.push_back(m.process);
	MPI_Comm_group(MPI_COMM_WORLD, &world);
	MPI_Group_incl(world, (int)processes.size(), processes.data(), &group);
	MPI_Comm_create_group(MPI_COMM_WORLD, group, id.tag, &mpi);
	MPI_Group_free(&group);
	MPI_Group_free(&world);
	return mpi;
}

bool blocks(const ncclConfig_t *config, bool otherwise)
{
	if (!config || config->blocking == NCCL_CONFIG_UNDEF_INT)
		return otherwise;
	return config->blocking != 0;
}

void release(Communicator &c)
{
	int over = 0;
	MPI_Finalized(&over);
	if (c.mpi != MPI_COMM_NULL && !over)
		MPI_Comm_free(&c.mpi);
}

ncclResult_t init_rank(const char *call, ncclComm_t *out, int n, const ncclUniqueId &unique,
		       int rank, const ncclConfig_t *config)
{
	Lock l;
	Id id;
	memcpy(&id, &unique, sizeof(id));
	if (fails(call))
		return complain(ncclSystemError, std::string(call) + ": injected failure");
	if (!mpi_runs() || id.magic != MAGIC || n < 1 || rank < 0 || rank >= n)
		return complain(ncclInvalidArgument, "bad rank or id, or MPI does not run");
	std::vector<Member> all = meet(id, n, describe_self(rank));
	auto c = std::make_shared<Communicator>();
	c->rank = rank;
	c->size = n;
	c->device = current_device();
	c->blocking = blocks(config, true);
	c->error = check_gpus(all);
	if (c->error && c->blocking)
		return c->error;
	if (!c->error)
		c->mpi = connect(id, all);
	*out = new ncclComm{c};
	return in_background(*c);
}
} // namespace

namespace occ_emu
{
ncclResult_t in_background(Communicator &c)
{
	if (c.blocking)
		return ncclSuccess;
	c.unasked = 1;
	return ncclInProgress;
}

ncclResult_t usable(const ncclComm *c)
{
	if (!c)
		return complain(ncclInvalidArgument, "no communicator");
	if (c->c->unasked)
		return complain(ncclInvalidArgument,
				"Attempt to use communicator before the previous operation "
				"returned ncclSuccess");
	if (c->c->ending)
		return complain(ncclInvalidUsage, "communicator was finalized");
	return ncclSuccess;
}
} // namespace occ_emu

extern "C" {
ncclResult_t ncclGetVersion(int *version)
{
	*version = NCCL_VERSION_CODE;
	return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t r)
{
	static const char *const words[] = {"no error",
					    "unhandled cuda error (run with NCCL_DEBUG=INFO)",
					    "unhandled system error (run with NCCL_DEBUG=INFO)",
					    "internal error - please report this issue",
					    "invalid argument (run with NCCL_DEBUG=WARN)",
					    "invalid usage (run with NCCL_DEBUG=WARN)",
					    "remote process exited or there was a network error",
					    "NCCL operation in progress"};
	return (unsigned)r < sizeof(words) / sizeof(words[0]) ? words[r] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t)
{
	return last_message.c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *unique)
{
	Lock l;
	static int made;
	Id id = {MAGIC, 0, FIRST_TAG + made++};
	if (fails(__func__))
		return complain(ncclSystemError, "ncclGetUniqueId: injected failure");
	if (!mpi_runs())
		return complain(ncclInvalidUsage, "MPI does not run: NCCL is emulated on it");
	MPI_Comm_rank(MPI_COMM_WORLD, &id.root);
	memset(unique, 0, sizeof(*unique));
	memcpy(unique, &id, sizeof(id));
	return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *out, int n, ncclUniqueId unique, int rank)
{
	return init_rank(__func__, out, n, unique, rank, nullptr);
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId unique, int rank,
				    ncclConfig_t *config)
{
	return init_rank(__func__, out, n, unique, rank, config);
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out,
			   ncclConfig_t *config)
{
	Lock l;
	*out = nullptr;
	if (fails(__func__))
		return complain(ncclSystemError, "ncclCommSplit: injected failure");
	if (ncclResult_t r = usable(comm))
		return r;
	MPI_Comm mpi;
	MPI_Comm_split(comm->c->mpi, color == NCCL_SPLIT_NOCOLOR ? MPI_UNDEFINED : color, key,
		       &mpi);
	if (mpi == MPI_COMM_NULL)
		return in_background(*comm->c);
	auto c = std::make_shared<Communicator>();
	c->mpi = mpi;
	c->device = comm->c->device;
	c->blocking = blocks(config, comm->c->blocking);
	MPI_Comm_rank(mpi, &c->rank);
	MPI_Comm_size(mpi, &c->size);
	*out = new ncclComm{c};
	in_background(*c);
	return in_background(*comm->c);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *result)
{
	Lock l;
	Communicator &c = *comm->c;
	advance();
	*result = c.error;
	if (c.unasked > 0) {
		c.unasked--;
		*result = c.error && c.error != ncclRemoteError ? c.error : ncclInProgress;
	} else if (!c.error && c.ending && c.ended < c.made) {
		*result = ncclInProgress;
	}
	return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
	Lock l;
	if (ncclResult_t r = usable(comm))
		return r;
	std::shared_ptr<Communicator> c = comm->c;
	c->ending = true;
	if (c->blocking)
		wait_until([c] { return c->ended == c->made; });
	return in_background(*c);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	Lock l;
	if (!comm)
		return ncclSuccess;
	std::shared_ptr<Communicator> c = comm->c;
	wait_until([c] { return c->ended == c->made; });
	release(*c);
	delete comm;
	return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
	Lock l;
	if (!comm)
		return ncclSuccess;
	comm->c->aborted = true; /* MPI's communicator stays: something may be under way on it */
	delete comm;
	advance();
	return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *n)
{
	*n = comm->c->size;
	return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
	*rank = comm->c->rank;
	return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
	*device = comm->c->device;
	return ncclSuccess;
}
}
