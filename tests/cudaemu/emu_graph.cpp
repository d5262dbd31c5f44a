/* Captures and graphs: a stream that captures keeps its work, and a graph runs what was kept, in
 * its order, as often as it is launched. What CUDA does not allow meanwhile spoils the capture. Not
 * emulated, and refused: events, memory and other graphs as parts of a graph. */
#include "tests/cudaemu/emu_runtime.h"

#include <set>
#include <thread>

namespace occ_emu
{
typedef std::vector<occ_emu_poll> Work;

struct Capture {
	std::thread::id thread;
	cudaStreamCaptureMode mode;
	bool spoiled;
	std::shared_ptr<Work> work;
};
} // namespace occ_emu

struct CUgraph_st {
	std::shared_ptr<occ_emu::Work> work;
};

struct CUgraphExec_st {
	std::shared_ptr<occ_emu::Work> work;
};

namespace occ_emu
{
namespace
{
auto &graphs = *new std::set<cudaGraph_t>; /* threads may outlive main() */
auto &executables = *new std::set<cudaGraphExec_t>;

cudaError_t spoil(Capture &c, cudaError_t why)
{
	c.spoiled = true;
	return note(why);
}

/* Whether the calling thread may not wait or allocate because of it. */
bool binds(const Capture &c)
{
	return c.mode == cudaStreamCaptureModeGlobal ||
	       (c.mode == cudaStreamCaptureModeThreadLocal &&
		c.thread == std::this_thread::get_id());
}

template <class T> bool known(const std::set<T> &all, T x)
{
	if (all.count(x))
		return true;
	say("%s: a graph that is not, or is no more", current_call());
	return false;
}

template <class T> cudaError_t destroy(std::set<T> &all, T x)
{
	if (!known(all, x))
		return note(cudaErrorInvalidValue);
	all.erase(x);
	delete x;
	return cudaSuccess;
}
} // namespace

cudaError_t keep(CUstream_st *stream, occ_emu_poll poll)
{
	if (stream->capture->spoiled)
		return note(cudaErrorStreamCaptureInvalidated);
	stream->capture->work->push_back(std::move(poll));
	return cudaSuccess;
}

cudaError_t barred(CUstream_st *stream, cudaError_t why)
{
	return stream && stream->capture ? spoil(*stream->capture, why) : cudaSuccess;
}

cudaError_t barred_for_device(int device)
{
	for (CUstream_st *s : all_streams())
		if (s->device == device && s->capture)
			return barred(s);
	return cudaSuccess;
}

cudaError_t barred_for_thread()
{
	for (CUstream_st *s : all_streams())
		if (s->capture && binds(*s->capture))
			return barred(s);
	return cudaSuccess;
}
} // namespace occ_emu

using namespace occ_emu;

extern "C" {
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode)
{
	ENTER(cudaErrorStreamCaptureUnsupported);
	CUstream_st *s = stream_of(stream);
	if (!s)
		return note(cudaErrorInvalidResourceHandle);
	if (s != stream)
		return note(cudaErrorStreamCaptureUnsupported);
	if (s->capture)
		return note(cudaErrorIllegalState);
	s->capture = std::make_shared<Capture>(
		Capture{std::this_thread::get_id(), mode, false, std::make_shared<Work>()});
	return cudaSuccess;
}

/* One that is made to fail ends the capture too. */
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
	Lock l;
	CUstream_st *s = stream_of(stream);
	*graph = nullptr;
	if (!s)
		return note(cudaErrorInvalidResourceHandle);
	if (!s->capture)
		return note(cudaErrorIllegalState);
	if (s->capture->mode != cudaStreamCaptureModeRelaxed &&
	    s->capture->thread != std::this_thread::get_id())
		return note(cudaErrorStreamCaptureWrongThread);
	std::shared_ptr<Capture> c = std::move(s->capture);
	s->capture = nullptr;
	if (fails(__func__) || c->spoiled)
		return note(cudaErrorStreamCaptureInvalidated);
	*graph = new CUgraph_st{c->work};
	graphs.insert(*graph);
	return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status)
{
	ENTER(cudaErrorInvalidValue);
	CUstream_st *s = stream_of(stream);
	if (!s)
		return note(cudaErrorInvalidResourceHandle);
	*status = !s->capture           ? cudaStreamCaptureStatusNone
		  : s->capture->spoiled ? cudaStreamCaptureStatusInvalidated
					: cudaStreamCaptureStatusActive;
	return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long)
{
	ENTER(cudaErrorMemoryAllocation);
	if (!known(graphs, graph))
		return note(cudaErrorInvalidValue);
	*executable = new CUgraphExec_st{graph->work};
	executables.insert(*executable);
	return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	ENTER(cudaErrorInvalidValue);
	return destroy(graphs, graph);
}

/* What was launched of it still runs. */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable)
{
	ENTER(cudaErrorInvalidValue);
	return destroy(executables, executable);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream)
{
	ENTER(cudaErrorInvalidValue);
	if (!known(executables, executable))
		return note(cudaErrorInvalidValue);
	for (const occ_emu_poll &poll : *executable->work)
		if (cudaError_t e = enqueue(stream, poll))
			return e;
	return cudaSuccess;
}
}
