/* The emulated NCCL against plain sums: every operation, in place too, groups over two streams,
 * communicators that do not block, splits, refusals, failures and aborts.
 * RUN: mpi=2,4 */
#include "tests/check.h"
#include "tests/cuda/quiet.h"

#include <fcntl.h>
#include <unistd.h>
#include <vector>

#include <mpi.h>
#include <nccl.h>

namespace
{
enum { COUNT = 1000 };
int rank, size;
cudaStream_t stream, other;

/* What rank r holds at i: small integers, so that sums are exact in bf16 too. */
float value(int r, int i)
{
	return (float)((i * 7 + r * 3) % 11 - 5);
}

float sum_at(int i)
{
	float sum = 0;
	for (int r = 0; r < size; r++)
		sum += value(r, i);
	return sum;
}

template <class T> struct Buffer {
	std::vector<T> h;
	T *d = nullptr;

	explicit Buffer(int n, bool filled = true) : h((size_t)n)
	{
		cudaMalloc((void **)&d, h.size() * sizeof(T));
		for (int i = 0; i < n; i++)
			h[(size_t)i] = (T)value(rank, i);
		if (filled)
			cudaMemcpy(d, h.data(), h.size() * sizeof(T), cudaMemcpyHostToDevice);
	}
	~Buffer()
	{
		cudaFree(d);
	}
	Buffer(const Buffer &) = delete;

	void get()
	{
		cudaMemcpyAsync(h.data(), d, h.size() * sizeof(T), cudaMemcpyDeviceToHost, stream);
		cudaStreamSynchronize(stream);
	}
	float at(int i) const
	{
		return (float)h[(size_t)i];
	}
};

ncclResult_t settle(ncclComm_t c, ncclResult_t r)
{
	while (r == ncclInProgress)
		if (ncclCommGetAsyncError(c, &r))
			return ncclInternalError;
	return r;
}

ncclUniqueId shared_id()
{
	ncclUniqueId id;
	if (rank == 0)
		CHECK(!ncclGetUniqueId(&id), "id");
	MPI_Bcast(&id, sizeof(id), MPI_BYTE, 0, MPI_COMM_WORLD);
	return id;
}

template <class T> void reductions(ncclComm_t c, ncclDataType_t type)
{
	Buffer<T> x(COUNT), y(COUNT, false), z(COUNT), part(COUNT / size, false);
	CHECK(!ncclAllReduce(x.d, y.d, COUNT, type, ncclSum, c, stream), "all-reduce");
	CHECK(!ncclAllReduce(z.d, z.d, COUNT, type, ncclMax, c, stream), "in place");
	CHECK(!ncclReduceScatter(x.d, part.d, COUNT / (size_t)size, type, ncclAvg, c, stream),
	      "reduce-scatter");
	x.get();
	y.get();
	z.get();
	part.get();
	for (int i = 0; i < COUNT; i++) {
		float most = value(0, i);
		for (int r = 1; r < size; r++)
			most = fmaxf(most, value(r, i));
		CHECK(x.at(i) == value(rank, i), "the source stays");
		CHECK(y.at(i) == sum_at(i), "sum %d: %g", i, y.at(i));
		CHECK(z.at(i) == most, "max %d: %g", i, z.at(i));
	}
	for (int i = 0; i < COUNT / size; i++) {
		float mean = sum_at(rank * (COUNT / size) + i) / (float)size;
		CHECK(part.at(i) == (float)(T)mean, "mean %d: %g, not %g", i, part.at(i), mean);
	}
}

void reduction_to_root(ncclComm_t c)
{
	Buffer<float> x(COUNT);
	CHECK(ncclReduce(x.d, x.d, COUNT, ncclFloat, ncclSum, size - 1, c, stream) ==
		      ncclSystemError,
	      "OCC_EMU_FAIL");
	CHECK(!ncclReduce(x.d, x.d, COUNT, ncclFloat, ncclSum, size - 1, c, stream), "reduce");
	x.get();
	for (int i = 0; i < COUNT; i++)
		CHECK(x.at(i) == (rank == size - 1 ? sum_at(i) : value(rank, i)), "%d", i);
}

void distributions(ncclComm_t c)
{
	Buffer<float> all(COUNT * size, false), x(COUNT), y(COUNT);
	CHECK(!ncclAllGather(x.d, all.d, COUNT, ncclFloat, c, stream), "all-gather");
	CHECK(!ncclBroadcast(y.d, y.d, COUNT, ncclFloat, size - 1, c, stream), "broadcast");
	all.get();
	y.get();
	for (int i = 0; i < COUNT; i++)
		CHECK(y.at(i) == value(size - 1, i), "broadcast %d", i);
	for (int r = 0; r < size; r++)
		for (int i = 0; i < COUNT; i++)
			CHECK(all.at(r * COUNT + i) == value(r, i), "from %d: %d", r, i);
}

/* Around the ring: the send on one stream, the receive on another; both end with the group. */
void ring(ncclComm_t c)
{
	Buffer<float> x(COUNT, false), y(COUNT, false);
	cudaEvent_t done;
	int next = (rank + 1) % size, last = (rank + size - 1) % size;
	cudaMemcpyAsync(x.d, x.h.data(), COUNT * 4, cudaMemcpyHostToDevice, other);
	CHECK(!ncclGroupStart() && !ncclSend(x.d, COUNT, ncclFloat, next, c, other) &&
		      !ncclRecv(y.d, COUNT, ncclFloat, last, c, stream),
	      "ring");
	CHECK(settle(c, ncclGroupEnd()) == ncclSuccess, "group");
	cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
	cudaEventRecord(done, other);
	cudaEventSynchronize(done);
	CHECK(cudaStreamQuery(stream) == cudaSuccess, "a group ends on all of its streams");
	y.get();
	for (int i = 0; i < COUNT; i++)
		CHECK(y.at(i) == value(last, i), "%d: %g", i, y.at(i));
	cudaEventDestroy(done);
}

/* Operations of one communicator keep their order, whatever streams they are on. */
void order(ncclComm_t c)
{
	Buffer<float> x(COUNT);
	cudaEvent_t e;
	cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
	for (int i = 0; i < 6; i++) {
		cudaStream_t s = (i & 1) != 0 ? other : stream;
		CHECK(!ncclAllReduce(x.d, x.d, COUNT, ncclFloat, ncclMax, c, s), "%d", i);
		cudaEventRecord(e, s);
		cudaStreamWaitEvent(s == stream ? other : stream, e, 0);
	}
	cudaStreamSynchronize(other);
	x.get();
	float most = value(0, 0);
	for (int r = 1; r < size; r++)
		most = fmaxf(most, value(r, 0));
	CHECK(x.at(0) == most, "%g", x.at(0));
	cudaEventDestroy(e);
}

void without_blocking()
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclComm_t c, half;
	Buffer<float> x(COUNT);
	int n = 0, mine = -1;
	config.blocking = 0;
	ncclUniqueId id = shared_id();
	ncclResult_t r = ncclCommInitRankConfig(&c, size, id, rank, &config);
	CHECK(r == ncclInProgress, "it goes on in the background: %d", (int)r);
	{
		Quiet q;
		CHECK(ncclAllReduce(x.d, x.d, COUNT, ncclFloat, ncclSum, c, stream) ==
			      ncclInvalidArgument,
		      "not before it was asked about");
	}
	CHECK(settle(c, r) == ncclSuccess, "init");
	ring(c);
	r = ncclCommSplit(c, rank % 2, -rank, &half, nullptr);
	CHECK(settle(c, r) == ncclSuccess && settle(half, ncclInProgress) == ncclSuccess, "split");
	ncclCommCount(half, &n);
	ncclCommUserRank(half, &mine);
	CHECK(n == (size + 1 - rank % 2) / 2 && mine == n - 1 - rank / 2, "%d of %d", mine, n);
	r = ncclAllReduce(x.d, x.d, COUNT, ncclFloat, ncclMin, half, stream);
	CHECK(settle(half, r) == ncclSuccess, "all-reduce of a half");
	x.get();
	for (int i = 0; i < COUNT; i++) {
		float least = value(rank % 2, i);
		for (int k = rank % 2; k < size; k += 2)
			least = fminf(least, value(k, i));
		CHECK(x.at(i) == least, "%d", i);
	}
	CHECK(settle(half, ncclCommFinalize(half)) == ncclSuccess && !ncclCommDestroy(half),
	      "half");
	CHECK(settle(c, ncclCommFinalize(c)) == ncclSuccess && !ncclCommDestroy(c), "end");
}

void refusals(ncclComm_t c)
{
	ncclComm_t same;
	float host = 0;
	Quiet q;
	CHECK(ncclAllReduce(&host, &host, 1, ncclFloat, ncclSum, c, stream) == ncclInvalidArgument,
	      "host memory");
	Buffer<float> x(4);
	CHECK(ncclSend(x.d, 5, ncclFloat, 0, c, stream) == ncclInvalidArgument, "past the end");
	CHECK(ncclSend(x.d, 4, ncclFloat, size, c, stream) == ncclInvalidArgument, "peer");
	CHECK(ncclGroupEnd() == ncclInvalidUsage, "no group");
	ncclUniqueId id = shared_id();
	cudaSetDevice(0);
	CHECK(ncclCommInitRank(&same, size, id, rank) ==
		      (size > 1 ? ncclInvalidUsage : ncclSuccess),
	      "two ranks with one GPU");
	cudaSetDevice(rank);
}

/* A communicator that has failed says so, and lets go of its stream when it is aborted. */
void failure()
{
	ncclComm_t c;
	ncclResult_t r = ncclSuccess;
	Buffer<float> x(COUNT);
	ncclUniqueId id = shared_id();
	CHECK(!ncclCommInitRank(&c, size, id, rank), "init");
	CHECK(!ncclCommGetAsyncError(c, &r) && r == ncclSuccess, "sound");
	setenv("OCC_EMU_NCCL_ASYNC", "1", 1); /* fewer than there were */
	ncclAllReduce(x.d, x.d, COUNT, ncclFloat, ncclSum, c, stream);
	ncclAllReduce(x.d, x.d, COUNT, ncclFloat, ncclSum, c, stream);
	for (int i = 0; i < 100; i++)
		CHECK(cudaStreamQuery(stream) == cudaErrorNotReady, "it does not end");
	CHECK(!ncclCommGetAsyncError(c, &r) && r == ncclRemoteError, "%d", (int)r);
	MPI_Barrier(MPI_COMM_WORLD);
	CHECK(!ncclCommAbort(c) && !cudaStreamSynchronize(stream), "abort");
}
} // namespace

int main(int argc, char **argv)
{
	int level;
	ncclComm_t c;
	setenv("OCC_EMU_GPUS", "8", 1);
	setenv("OCC_EMU_FAIL", "ncclReduce:1", 1);
	setenv("OCC_EMU_STREAMS", "lazy:3", 0);
	MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	cudaSetDevice(rank);
	cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
	cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
	ncclUniqueId id = shared_id();
	CHECK(!ncclCommInitRank(&c, size, id, rank), "init");
	reductions<float>(c, ncclFloat);
	reductions<__nv_bfloat16>(c, ncclBfloat16);
	reduction_to_root(c);
	distributions(c);
	ring(c);
	order(c);
	refusals(c);
	without_blocking();
	CHECK(!ncclCommDestroy(c), "destroy");
	failure();
	MPI_Finalize();
	return rank ? check_failed != 0 : check_done();
}
