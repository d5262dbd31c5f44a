/* Test-only NCCL subset on MPI: each process is a rank with its own (emulated) GPU.
 * OCC_EMU_SAME_GPU=1 makes communicator creation fail as real NCCL does when two ranks name one
 * GPU. */
#include <nccl.h>
#include <mpi.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>
#include <cuda_bf16.h>
#include "tests/cudaemu/emu_internal.h"
namespace occ_emu
{
void flight(int);
}
using occ_emu::enqueue;
struct ncclComm {
	MPI_Comm c;
	int rank, n;
};
namespace
{
struct Id {
	uint64_t magic;
	int root;
	int tag;
};
size_t tsz(ncclDataType_t t)
{
	switch (t) {
	case ncclInt8:
	case ncclUint8:
		return 1;
	case ncclFloat16:
	case ncclBfloat16:
		return 2;
	case ncclInt32:
	case ncclUint32:
	case ncclFloat32:
		return 4;
	case ncclInt64:
	case ncclUint64:
	case ncclFloat64:
		return 8;
	default:
		return 1;
	}
}
MPI_Datatype mpit(ncclDataType_t t)
{
	switch (t) {
	case ncclInt8:
		return MPI_INT8_T;
	case ncclUint8:
		return MPI_UINT8_T;
	case ncclInt32:
		return MPI_INT32_T;
	case ncclUint32:
		return MPI_UINT32_T;
	case ncclInt64:
		return MPI_INT64_T;
	case ncclUint64:
		return MPI_UINT64_T;
	case ncclFloat32:
		return MPI_FLOAT;
	case ncclFloat64:
		return MPI_DOUBLE;
	default:
		return MPI_UINT16_T;
	}
}
void bfsum(void *a, void *b, int *n, MPI_Datatype *)
{
	auto x = (__nv_bfloat16 *)a, y = (__nv_bfloat16 *)b;
	for (int i = 0; i < *n; i++)
		y[i] = __float2bfloat16_rn(__bfloat162float(x[i]) + __bfloat162float(y[i]));
}
void bfmax(void *a, void *b, int *n, MPI_Datatype *)
{
	auto x = (__nv_bfloat16 *)a, y = (__nv_bfloat16 *)b;
	for (int i = 0; i < *n; i++)
		if (__bfloat162float(x[i]) > __bfloat162float(y[i]))
			y[i] = x[i];
}
MPI_Op mpio(ncclRedOp_t o, ncclDataType_t t)
{
	static MPI_Op bs = MPI_OP_NULL, bm = MPI_OP_NULL;
	if (bs == MPI_OP_NULL) {
		MPI_Op_create(bfsum, 1, &bs);
		MPI_Op_create(bfmax, 1, &bm);
	}
	if (t == ncclBfloat16)
		return o == ncclMax ? bm : bs;
	return o == ncclMax ? MPI_MAX : o == ncclMin ? MPI_MIN : o == ncclProd ? MPI_PROD : MPI_SUM;
}
void scale(void *p, size_t n, ncclDataType_t t, float f)
{
	if (t == ncclFloat32)
		for (size_t i = 0; i < n; i++)
			((float *)p)[i] *= f;
	else if (t == ncclBfloat16)
		for (size_t i = 0; i < n; i++)
			((__nv_bfloat16 *)p)[i] =
				__float2bfloat16_rn(__bfloat162float(((__nv_bfloat16 *)p)[i]) * f);
}
int depth;
struct P2P {
	bool send;
	void *p;
	size_t bytes;
	int peer;
	ncclComm_t c;
	cudaStream_t s;
};
std::vector<P2P> pend;
bool inited()
{
	int f = 0;
	MPI_Initialized(&f);
	return f;
}
/* start() fills requests on the first poll; done when all complete */
ncclResult_t post(cudaStream_t s, std::function<void(std::vector<MPI_Request> &)> start,
		  std::function<void()> fin = nullptr)
{
	auto st = std::make_shared<std::pair<bool, std::vector<MPI_Request>>>(
		false, std::vector<MPI_Request>());
	return enqueue(s,
		       [=] {
			       if (!st->first) {
				       st->first = true;
				       occ_emu::flight(1);
				       start(st->second);
			       }
			       int ok = 0;
			       MPI_Testall((int)st->second.size(), st->second.data(), &ok,
					   MPI_STATUSES_IGNORE);
			       if (!ok)
				       return false;
			       occ_emu::flight(-1);
			       if (fin)
				       fin();
			       return true;
		       }) == cudaSuccess
		       ? ncclSuccess
		       : ncclInvalidArgument;
}
ncclResult_t flush()
{
	if (pend.empty())
		return ncclSuccess;
	auto v = std::make_shared<std::vector<P2P>>(std::move(pend));
	pend.clear();
	return post((*v)[0].s, [v](std::vector<MPI_Request> &r) {
		for (auto &o : *v) {
			MPI_Request q;
			if (o.send)
				MPI_Isend(o.p, (int)o.bytes, MPI_BYTE, o.peer, 77, o.c->c, &q);
			else
				MPI_Irecv(o.p, (int)o.bytes, MPI_BYTE, o.peer, 77, o.c->c, &q);
			r.push_back(q);
		}
	});
}
bool dev(const void *p, size_t n)
{
	if (!n || occ_emu::is_device(p, n))
		return true;
	fprintf(stderr, "nccl-emu: buffer %p (%zu bytes) is not device memory\n", p, n);
	return false;
}
} // namespace
extern "C" {
ncclResult_t ncclGetVersion(int *v)
{
	*v = 22809;
	return ncclSuccess;
}
const char *ncclGetErrorString(ncclResult_t r)
{
	return r == ncclSuccess        ? "no error"
	       : r == ncclInvalidUsage ? "invalid usage"
				       : "NCCL error (emulated)";
}
const char *ncclGetLastError(ncclComm_t)
{
	return "";
}
ncclResult_t ncclGetUniqueId(ncclUniqueId *u)
{
	if (!inited())
		return ncclInvalidUsage;
	static int ctr;
	memset(u, 0, sizeof *u);
	Id i{0x6f63636e63636cull, 0, 1000 + ctr++};
	MPI_Comm_rank(MPI_COMM_WORLD, &i.root);
	memcpy(u, &i, sizeof i);
	return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t *c, int n, ncclUniqueId u, int rank)
{
	if (!inited())
		return ncclInvalidUsage;
	if (getenv("OCC_EMU_SAME_GPU") && n > 1) {
		fprintf(stderr, "nccl-emu: Duplicate GPU detected\n");
		return ncclInvalidUsage;
	}
	Id i;
	memcpy(&i, &u, sizeof i);
	if (i.magic != 0x6f63636e63636cull)
		return ncclInvalidArgument;
	int me;
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	std::vector<int> tab(n);
	if (me == i.root) { /* the id's maker is a member and gathers who is who */
		tab[rank] = me;
		for (int k = 1; k < n; k++) {
			int m[2];
			MPI_Recv(m, 2, MPI_INT, MPI_ANY_SOURCE, i.tag, MPI_COMM_WORLD,
				 MPI_STATUS_IGNORE);
			tab[m[0]] = m[1];
		}
		for (int k = 0; k < n; k++)
			if (tab[k] != me)
				MPI_Send(tab.data(), n, MPI_INT, tab[k], i.tag, MPI_COMM_WORLD);
	} else {
		int m[2] = {rank, me};
		MPI_Send(m, 2, MPI_INT, i.root, i.tag, MPI_COMM_WORLD);
		MPI_Recv(tab.data(), n, MPI_INT, i.root, i.tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	}
	MPI_Group w, g;
	MPI_Comm_group(MPI_COMM_WORLD, &w);
	MPI_Group_incl(w, n, tab.data(), &g);
	auto *r = new ncclComm{MPI_COMM_NULL, rank, n};
	MPI_Comm_create_group(MPI_COMM_WORLD, g, i.tag, &r->c);
	*c = r;
	return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t *c, int n, ncclUniqueId u, int rank, ncclConfig_t *)
{
	return ncclCommInitRank(c, n, u, rank);
}
ncclResult_t ncclCommSplit(ncclComm_t c, int color, int key, ncclComm_t *o, ncclConfig_t *)
{
	MPI_Comm m;
	MPI_Comm_split(c->c, color == NCCL_SPLIT_NOCOLOR ? MPI_UNDEFINED : color, key, &m);
	if (m == MPI_COMM_NULL) {
		*o = nullptr;
		return ncclSuccess;
	}
	auto *r = new ncclComm{m, 0, 0};
	MPI_Comm_rank(m, &r->rank);
	MPI_Comm_size(m, &r->n);
	*o = r;
	return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t c)
{
	if (c) {
		MPI_Comm_free(&c->c);
		delete c;
	}
	return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t)
{
	return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t c)
{
	return ncclCommDestroy(c);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t *r)
{
	*r = ncclSuccess;
	return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t c, int *n)
{
	*n = c->n;
	return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t c, int *n)
{
	*n = c->rank;
	return ncclSuccess;
}
ncclResult_t ncclGroupStart(void)
{
	depth++;
	return ncclSuccess;
}
ncclResult_t ncclGroupEnd(void)
{
	if (depth <= 0)
		return ncclInvalidUsage;
	return --depth ? ncclSuccess : flush();
}
static ncclResult_t p2p(bool send, void *p, size_t n, ncclDataType_t t, int peer, ncclComm_t c,
			cudaStream_t s)
{
	if (!dev(p, n * tsz(t)) || peer < 0 || peer >= c->n)
		return ncclInvalidArgument;
	pend.push_back({send, p, n * tsz(t), peer, c, s});
	return depth ? ncclSuccess : flush();
}
ncclResult_t ncclSend(const void *p, size_t n, ncclDataType_t t, int peer, ncclComm_t c,
		      cudaStream_t s)
{
	return p2p(true, (void *)p, n, t, peer, c, s);
}
ncclResult_t ncclRecv(void *p, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s)
{
	return p2p(false, p, n, t, peer, c, s);
}
ncclResult_t ncclAllReduce(const void *a, void *b, size_t n, ncclDataType_t t, ncclRedOp_t o,
			   ncclComm_t c, cudaStream_t s)
{
	if (!dev(a, n * tsz(t)) || !dev(b, n * tsz(t)))
		return ncclInvalidArgument;
	return post(
		s,
		[=](std::vector<MPI_Request> &r) {
			MPI_Request q;
			MPI_Iallreduce(a == b ? MPI_IN_PLACE : a, b, (int)n, mpit(t), mpio(o, t),
				       c->c, &q);
			r.push_back(q);
		},
		[=] {
			if (o == ncclAvg)
				scale(b, n, t, 1.0f / c->n);
		});
}
ncclResult_t ncclReduceScatter(const void *a, void *b, size_t n, ncclDataType_t t, ncclRedOp_t o,
			       ncclComm_t c, cudaStream_t s)
{
	if (!dev(a, n * tsz(t) * c->n) || !dev(b, n * tsz(t)))
		return ncclInvalidArgument;
	auto tmp = std::make_shared<std::vector<char>>(n * tsz(t));
	return post(
		s,
		[=](std::vector<MPI_Request> &r) {
			MPI_Request q;
			MPI_Ireduce_scatter_block(a, tmp->data(), (int)n, mpit(t), mpio(o, t), c->c,
						  &q);
			r.push_back(q);
		},
		[=] {
			memcpy(b, tmp->data(), tmp->size());
			if (o == ncclAvg)
				scale(b, n, t, 1.0f / c->n);
		});
}
ncclResult_t ncclAllGather(const void *a, void *b, size_t n, ncclDataType_t t, ncclComm_t c,
			   cudaStream_t s)
{
	if (!dev(a, n * tsz(t)) || !dev(b, n * tsz(t) * c->n))
		return ncclInvalidArgument;
	bool in = (const char *)a == (char *)b + n * tsz(t) * c->rank;
	return post(s, [=](std::vector<MPI_Request> &r) {
		MPI_Request q;
		MPI_Iallgather(in ? MPI_IN_PLACE : a, (int)n, mpit(t), b, (int)n, mpit(t), c->c,
			       &q);
		r.push_back(q);
	});
}
ncclResult_t ncclBroadcast(const void *a, void *b, size_t n, ncclDataType_t t, int root,
			   ncclComm_t c, cudaStream_t s)
{
	return post(s, [=](std::vector<MPI_Request> &r) {
		if (c->rank == root && a != b)
			memcpy(b, a, n * tsz(t));
		MPI_Request q;
		MPI_Ibcast(b, (int)n, mpit(t), root, c->c, &q);
		r.push_back(q);
	});
}
ncclResult_t ncclReduce(const void *a, void *b, size_t n, ncclDataType_t t, ncclRedOp_t o, int root,
			ncclComm_t c, cudaStream_t s)
{
	return post(s, [=](std::vector<MPI_Request> &r) {
		MPI_Request q;
		MPI_Ireduce(a == b && c->rank == root ? MPI_IN_PLACE : a, b, (int)n, mpit(t),
			    mpio(o, t), root, c->c, &q);
		r.push_back(q);
	});
}
}
