/* Test-only NCCL on MPI: the operations. All of a group that are of one communicator begin when
 * each of their streams has come to them, and end together. Buffers are copied on the way, so that
 * an abort leaves nothing behind that MPI could write to.
 * OCC_EMU_NCCL_ASYNC=N: after N operations of this process a communicator has failed: it reports
 * ncclRemoteError, and what it is given next does not end until it is aborted. */
#include "tests/cudaemu/emu_nccl.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <vector>

#include <cuda_bf16.h>

using namespace occ_emu;

namespace
{
enum Kind { SEND, RECEIVE, ALL_REDUCE, REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST };
enum { TAG = 77 };

struct Operation {
	Kind kind;
	const void *from; /* NULL: this rank gives nothing */
	void *to;         /* NULL: this rank gets nothing */
	size_t from_bytes, to_bytes, count;
	ncclDataType_t type;
	ncclRedOp_t op;
	int peer; /* or root */
	cudaStream_t stream;
	std::shared_ptr<Communicator> c;
	std::vector<char> in{}, out{};
};

struct Group {
	std::shared_ptr<Communicator> c;
	uint64_t ticket;
	bool lost; /* made after the communicator had failed */
	std::vector<Operation> operations;
	std::vector<cudaStream_t> streams;
	std::vector<bool> arrived;
	std::vector<MPI_Request> requests;
	bool flying = false, ended = false;
};

thread_local int depth;
thread_local std::vector<Operation> pending;

void start_operation(Operation &o, MPI_Request *r)
{
	MPI_Comm mpi = o.c->mpi;
	MPI_Datatype t = mpi_type(o.type);
	int n = (int)o.count;
	o.in.assign((const char *)o.from, (const char *)o.from + o.from_bytes);
	o.out.resize(std::max(o.to_bytes,
			      o.kind == REDUCE || o.kind == BROADCAST ? n * nccl_size(o.type) : 0));
	char *in = o.in.data(), *out = o.out.data();
	switch (o.kind) {
	case SEND:
		MPI_Isend(in, (int)o.from_bytes, MPI_BYTE, o.peer, TAG, mpi, r);
		break;
	case RECEIVE:
		MPI_Irecv(out, (int)o.to_bytes, MPI_BYTE, o.peer, TAG, mpi, r);
		break;
	case ALL_REDUCE:
		MPI_Iallreduce(in, out, n, t, mpi_op(o.op, o.type), mpi, r);
		break;
	case REDUCE:
		MPI_Ireduce(in, out, n, t, mpi_op(o.op, o.type), o.peer, mpi, r);
		break;
	case REDUCE_SCATTER:
		MPI_Ireduce_scatter_block(in, out, n, t, mpi_op(o.op, o.type), mpi, r);
		break;
	case ALL_GATHER:
		MPI_Iallgather(in, n, t, out, n, t, mpi, r);
		break;
	case BROADCAST:
		if (o.from)
			o.out = o.in;
		MPI_Ibcast(o.out.data(), n, t, o.peer, mpi, r);
		break;
	}
}

void average(Operation &o)
{
	for (size_t i = 0; i < o.to_bytes / nccl_size(o.type); i++) {
		if (o.type == ncclFloat32) {
			((float *)o.out.data())[i] /= (float)o.c->size;
		} else if (o.type == ncclBfloat16) {
			__nv_bfloat16 *x = (__nv_bfloat16 *)o.out.data() + i;
			*x = __float2bfloat16_rn(__bfloat162float(*x) / (float)o.c->size);
		}
	}
}

void finish_operation(Operation &o, const MPI_Status &status)
{
	int bytes = 0;
	if (o.kind == RECEIVE) {
		MPI_Get_count(&status, MPI_BYTE, &bytes);
		if ((size_t)bytes != o.to_bytes)
			stop("ncclRecv: rank %d sends %d bytes, rank %d receives %zu", o.peer,
			     bytes, o.c->rank, o.to_bytes);
	}
	if (o.op == ncclAvg)
		average(o);
	if (o.to)
		memcpy(o.to, o.out.data(), o.to_bytes);
}

void end(Group &g)
{
	g.ended = true;
	g.c->ended++;
	if (g.flying)
		in_flight(-1);
	if (g.flying && g.lost)
		stuck(-1);
}

void start(Group &g)
{
	g.flying = true;
	in_flight(1);
	if (g.lost) {
		stuck(1);
		return;
	}
	g.requests.resize(g.operations.size());
	for (size_t i = 0; i < g.operations.size(); i++)
		start_operation(g.operations[i], &g.requests[i]);
}

void test(Group &g)
{
	int n = (int)g.requests.size(), all = 0;
	std::vector<MPI_Status> statuses((size_t)n);
	PMPI_Testall(n, g.requests.data(), &all, statuses.data());
	if (!all)
		return;
	for (size_t i = 0; i < g.operations.size(); i++)
		finish_operation(g.operations[i], statuses[i]);
	end(g);
}

/* Of one of the group's streams, as long as it returns false. */
bool poll(const std::shared_ptr<Group> &g, size_t stream)
{
	static std::vector<std::shared_ptr<Group>> &buried =
		*new std::vector<std::shared_ptr<Group>>;
	g->arrived[stream] = true;
	if (g->ended)
		return true;
	if (g->c->aborted) {
		buried.push_back(g); /* MPI may still write to its buffers */
		end(*g);
		return true;
	}
	if (!g->flying && g->c->ended == g->ticket &&
	    std::find(g->arrived.begin(), g->arrived.end(), false) == g->arrived.end())
		start(*g);
	if (g->flying && !g->lost)
		test(*g);
	return g->ended;
}

/* Counts an operation; whether the communicator had failed before. */
bool lost(Communicator &c)
{
	static long seen;
	const char *asked = getenv("OCC_EMU_NCCL_ASYNC"); /* tests change it on the way */
	bool was = c.error == ncclRemoteError;
	if (++seen >=
	    (asked && *asked ? number("OCC_EMU_NCCL_ASYNC", asked, 1, "operations") : LONG_MAX))
		c.error = ncclRemoteError;
	return was;
}

ncclResult_t issue(const std::shared_ptr<Communicator> &c, std::vector<Operation> operations)
{
	auto g = std::make_shared<Group>();
	g->c = c;
	g->ticket = c->made++;
	g->lost = false;
	for (const Operation &o : operations) {
		g->lost |= lost(*c);
		if (std::find(g->streams.begin(), g->streams.end(), o.stream) == g->streams.end())
			g->streams.push_back(o.stream);
	}
	g->operations = std::move(operations);
	g->arrived.resize(g->streams.size());
	for (size_t i = 0; i < g->streams.size(); i++)
		if (enqueue(g->streams[i], [g, i] { return poll(g, i); }))
			return ncclUnhandledCudaError;
	return in_background(*c);
}

ncclResult_t flush()
{
	ncclResult_t result = ncclSuccess;
	std::vector<Operation> all = std::move(pending);
	pending.clear();
	while (!all.empty()) {
		std::shared_ptr<Communicator> c = all[0].c;
		auto other = std::stable_partition(all.begin(), all.end(),
						   [&](const Operation &o) { return o.c == c; });
		std::vector<Operation> mine(all.begin(), other);
		all.erase(all.begin(), other);
		ncclResult_t r = issue(c, std::move(mine));
		if (r != ncclSuccess)
			result = r;
	}
	return result;
}

bool buffer_fits(const char *call, const void *p, size_t bytes)
{
	if (!bytes || is_device(p, bytes))
		return true;
	say("%s: %zu bytes at %p are not within one allocation of device memory", call, bytes, p);
	return false;
}

ncclResult_t add(const char *call, const ncclComm *comm, Operation o)
{
	if (fails(call))
		return ncclSystemError;
	if (ncclResult_t r = usable(comm))
		return r;
	o.c = comm->c;
	if (!nccl_size(o.type) || (o.type == ncclBfloat16 && o.op == ncclProd) || o.peer < 0 ||
	    o.peer >= o.c->size || o.count * nccl_size(o.type) > INT_MAX)
		return ncclInvalidArgument;
	CUstream_st *s = stream_of(o.stream);
	if (!buffer_fits(call, o.from, o.from_bytes) || !buffer_fits(call, o.to, o.to_bytes) ||
	    !s || s->device != o.c->device)
		return ncclInvalidArgument;
	pending.push_back(std::move(o));
	return depth ? ncclSuccess : flush();
}
} // namespace

extern "C" {
ncclResult_t ncclGroupStart(void)
{
	depth++;
	return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
	Lock l;
	if (depth <= 0)
		return ncclInvalidUsage;
	if (--depth)
		return ncclSuccess;
	if (fails(__func__)) {
		pending.clear();
		return ncclSystemError;
	}
	return flush();
}

ncclResult_t ncclSend(const void *from, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
		      cudaStream_t stream)
{
	Lock l;
	size_t bytes = n * nccl_size(type);
	return add(__func__, comm,
		   {SEND, from, nullptr, bytes, 0, n, type, ncclSum, peer, stream, nullptr});
}

ncclResult_t ncclRecv(void *to, size_t n, ncclDataType_t type, int peer, ncclComm_t comm,
		      cudaStream_t stream)
{
	Lock l;
	size_t bytes = n * nccl_size(type);
	return add(__func__, comm,
		   {RECEIVE, nullptr, to, 0, bytes, n, type, ncclSum, peer, stream, nullptr});
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t n, ncclDataType_t type,
			   ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
	Lock l;
	size_t bytes = n * nccl_size(type);
	return add(__func__, comm,
		   {ALL_REDUCE, from, to, bytes, bytes, n, type, op, 0, stream, nullptr});
}

ncclResult_t ncclReduce(const void *from, void *to, size_t n, ncclDataType_t type, ncclRedOp_t op,
			int root, ncclComm_t comm, cudaStream_t stream)
{
	Lock l;
	size_t bytes = n * nccl_size(type);
	bool mine = comm && comm->c->rank == root;
	return add(__func__, comm,
		   {REDUCE, from, mine ? to : nullptr, bytes, mine ? bytes : 0, n, type, op, root,
		    stream, nullptr});
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t n, ncclDataType_t type,
			       ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
	Lock l;
	size_t bytes = n * nccl_size(type), all = comm ? bytes * (size_t)comm->c->size : 0;
	return add(__func__, comm,
		   {REDUCE_SCATTER, from, to, all, bytes, n, type, op, 0, stream, nullptr});
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t n, ncclDataType_t type,
			   ncclComm_t comm, cudaStream_t stream)
{
	Lock l;
	size_t bytes = n * nccl_size(type), all = comm ? bytes * (size_t)comm->c->size : 0;
	return add(__func__, comm,
		   {ALL_GATHER, from, to, bytes, all, n, type, ncclSum, 0, stream, nullptr});
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t n, ncclDataType_t type, int root,
			   ncclComm_t comm, cudaStream_t stream)
{
	Lock l;
	size_t bytes = n * nccl_size(type);
	bool mine = comm && comm->c->rank == root;
	return add(__func__, comm,
		   {BROADCAST, mine ? from : nullptr, to, mine ? bytes : 0, bytes, n, type, ncclSum,
		    root, stream, nullptr});
}
}

/* A GPU goes on while its host waits for a message; here somebody has to push. The program's own
 * waits come this way (MPI's profiling interface), so nothing else of it calls MPI meanwhile. */
extern "C" int MPI_Testall(int n, MPI_Request requests[], int *done, MPI_Status statuses[])
{
	{
		Lock lock;
		advance();
	}
	return PMPI_Testall(n, requests, done, statuses);
}
