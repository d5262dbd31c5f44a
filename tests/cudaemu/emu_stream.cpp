/* Streams and events. OCC_EMU_STREAMS=eager runs work when it is put on a stream, so far as it can
 * go on; lazy:SEED leaves all work until a call waits for some, and mixes the streams at random,
 * which shows a missing wait between them. OCC_EMU_DEPTH=N: a call that puts more than N pieces of
 * work on a stream waits until there is room, as launches do. */
#include "tests/cudaemu/emu_runtime.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <time.h>

struct Recording {
	uint64_t asked = 0, reached = 0;
	double when = 0; /* seconds */
};

struct CUevent_st {
	int device;
	bool timed;
	std::shared_ptr<Recording> recording;
};

namespace occ_emu
{
namespace
{
/* Never destroyed: threads may still run while the process ends. */
std::vector<CUstream_st *> &streams = *new std::vector<CUstream_st *>;
std::set<cudaEvent_t> &events = *new std::set<cudaEvent_t>;
int flying, sticking;

double seconds()
{
	auto t = std::chrono::steady_clock::now().time_since_epoch();
	return std::chrono::duration<double>(t).count();
}

/* A wait that needs what its own thread would do next hangs on a GPU as well. */
void complain_of_wait(double since)
{
	static bool said;
	if (said || seconds() - since < 10)
		return;
	said = true;
	say("10 s of waiting for another process in %s (cudaFree and its like wait for all streams "
	    "of the device)",
	    current_call());
}

void pause(long rounds)
{
	static const struct timespec moment = {0, 50 * 1000};
	if (rounds > 1000 && !flying)
		stop("streams wait on each other for ever");
	if (rounds > 1000 && flying == sticking)
		stop("waits for ever for a communicator that has failed and was not aborted");
	give_lock_away();
	if (rounds >= 200)
		nanosleep(&moment, nullptr);
}

bool known(cudaEvent_t e)
{
	if (events.count(e))
		return true;
	say("an event that is not, or is no more");
	return false;
}

size_t depth()
{
	static const size_t n = [] {
		const char *e = getenv("OCC_EMU_DEPTH");
		return e && *e ? (size_t)number("OCC_EMU_DEPTH", e, 1, "pieces of work") : SIZE_MAX;
	}();
	return n;
}

enum Loading { AT_ONCE, WAITS, ALWAYS };

Loading loading()
{
	static const Loading chosen = [] {
		const char *e = getenv("OCC_EMU_LOAD");
		if (!e || !*e)
			return AT_ONCE;
		if (strcmp(e, "waits") && strcmp(e, "always"))
			stop("OCC_EMU_LOAD=%s: waits or always", e);
		return *e == 'w' ? WAITS : ALWAYS;
	}();
	return chosen;
}

void wait_for_null_order(CUstream_st *null_stream)
{
	for (size_t i = 0; i < streams.size(); i++)
		if (!streams[i]->nonblocking && streams[i]->device == null_stream->device)
			wait_stream(streams[i]);
}
} // namespace

const std::vector<CUstream_st *> &all_streams()
{
	return streams;
}

void in_flight(int change)
{
	flying += change;
}

void stuck(int change)
{
	sticking += change;
}

CUstream_st *stream_of(cudaStream_t stream)
{
	if (!stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
		CUstream_st *s = &devices()[(size_t)current_device()].null_stream;
		s->device = current_device();
		if (std::find(streams.begin(), streams.end(), s) == streams.end())
			streams.push_back(s);
		return s;
	}
	return std::find(streams.begin(), streams.end(), stream) == streams.end() ? nullptr
										  : stream;
}

bool step()
{
	size_t n = streams.size(), first = n ? random_below(n) : 0;
	for (size_t i = 0; i < n; i++) {
		CUstream_st *s = streams[(first + i) % n];
		if (!s->queue.empty() && s->queue.front()()) {
			s->queue.pop_front();
			return true;
		}
	}
	return false;
}

void advance()
{
	while (step() && !lazy())
		;
}

void wait_until(const std::function<bool()> &done)
{
	long rounds = 0;
	double since = 0;
	while (!done()) {
		if (step()) {
			rounds = 0;
			continue;
		}
		if (rounds == 0)
			since = seconds();
		else if (rounds % 1000 == 0)
			complain_of_wait(since);
		pause(++rounds);
	}
}

void wait_stream(CUstream_st *stream)
{
	if (!stream->queue.empty())
		wait_until([=] { return stream->queue.empty(); });
}

void wait_device(int device)
{
	wait_until([=] {
		return std::all_of(streams.begin(), streams.end(), [=](CUstream_st *s) {
			return s->device != device || s->queue.empty();
		});
	});
}

void first_use(const std::string &code, CUstream_st *stream)
{
	static auto &loaded = *new std::set<std::pair<int, std::string>>;
	if (loading() == AT_ONCE || !stream || stream->capture)
		return;
	if (loaded.insert({stream->device, code}).second || loading() == ALWAYS)
		wait_device(stream->device);
}

cudaError_t enqueue(cudaStream_t stream, occ_emu_poll poll)
{
	CUstream_st *s = stream_of(stream);
	if (!s) {
		say("a stream that is not, or is no more");
		return note(cudaErrorInvalidResourceHandle);
	}
	if (cudaError_t e = barred(s))
		return e;
	if (s == &devices()[(size_t)s->device].null_stream) {
		wait_for_null_order(s);
		s->queue.push_back(std::move(poll));
		wait_stream(s);
	} else if (lazy() || !s->queue.empty() || !poll()) {
		if (s->queue.size() >= depth())
			wait_until([=] { return s->queue.size() < depth(); });
		s->queue.push_back(std::move(poll));
	}
	return cudaSuccess;
}

cudaError_t enqueue_work(cudaStream_t stream, std::function<void()> work)
{
	CUstream_st *s = stream_of(stream);
	int device = s ? s->device : 0;
	occ_emu_poll poll = [=] {
		if (!devices()[(size_t)device].fault)
			work();
		return true;
	};
	return s && s->capture ? keep(s, poll) : enqueue(stream, poll);
}
} // namespace occ_emu

using namespace occ_emu;

extern "C" {
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int)
{
	ENTER(cudaErrorMemoryAllocation);
	*stream = new CUstream_st{current_device(), (flags & cudaStreamNonBlocking) != 0, {}, {}};
	streams.push_back(*stream);
	return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
	ENTER(cudaErrorMemoryAllocation);
	return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
	ENTER(cudaErrorMemoryAllocation);
	return cudaStreamCreateWithPriority(stream, 0, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	ENTER(cudaErrorInvalidResourceHandle);
	CUstream_st *s = stream_of(stream);
	if (!s || s != stream)
		return note(cudaErrorInvalidResourceHandle);
	wait_stream(s);
	streams.erase(std::find(streams.begin(), streams.end(), s));
	delete s;
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	ENTER(cudaErrorLaunchFailure);
	CUstream_st *s = stream_of(stream);
	if (!s)
		return note(cudaErrorInvalidResourceHandle);
	if (cudaError_t e = barred(s))
		return e;
	wait_stream(s);
	return report(s->device);
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
	ENTER(cudaErrorLaunchFailure);
	CUstream_st *s = stream_of(stream);
	if (!s)
		return note(cudaErrorInvalidResourceHandle);
	if (cudaError_t e = barred(s))
		return e;
	if (!s->queue.empty())
		advance();
	return s->queue.empty() ? report(s->device) : note(cudaErrorNotReady);
}

cudaError_t cudaDeviceSynchronize(void)
{
	ENTER(cudaErrorLaunchFailure);
	if (cudaError_t e = barred_for_device(current_device()))
		return e;
	wait_device(current_device());
	return report(current_device());
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	*least = 0;
	*greatest = -5;
	return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data)
{
	ENTER(cudaErrorInvalidValue);
	return enqueue_work(stream, [=] { function(data); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
	ENTER(cudaErrorMemoryAllocation);
	*event = new CUevent_st{current_device(), !(flags & cudaEventDisableTiming),
				std::make_shared<Recording>()};
	events.insert(*event);
	return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
	ENTER(cudaErrorMemoryAllocation);
	return cudaEventCreateWithFlags(event, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	ENTER(cudaErrorInvalidResourceHandle);
	if (!known(event))
		return note(cudaErrorInvalidResourceHandle);
	events.erase(event);
	delete event;
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	ENTER(cudaErrorInvalidResourceHandle);
	CUstream_st *s = stream_of(stream);
	if (!s || !known(event) || event->device != s->device)
		return note(cudaErrorInvalidResourceHandle);
	if (cudaError_t e = barred(s))
		return e;
	auto r = event->recording;
	uint64_t mine = ++r->asked;
	return enqueue(stream, [=] {
		if (r->reached < mine) {
			r->reached = mine;
			r->when = seconds();
		}
		return true;
	});
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
	ENTER(cudaErrorInvalidResourceHandle);
	if (!known(event))
		return note(cudaErrorInvalidResourceHandle);
	if (cudaError_t e = barred(stream_of(stream), cudaErrorStreamCaptureIsolation))
		return e;
	if (occ_emu::skips_wait())
		return cudaSuccess;
	auto r = event->recording;
	uint64_t last = r->asked; /* a later recording is no matter of this wait */
	return enqueue(stream, [=] { return r->reached >= last; });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	ENTER(cudaErrorLaunchFailure);
	if (!known(event))
		return note(cudaErrorInvalidResourceHandle);
	if (cudaError_t e = barred_for_thread())
		return e;
	auto r = event->recording;
	uint64_t last = r->asked;
	int device = event->device;
	wait_until([=] { return r->reached >= last; });
	return report(device);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
	ENTER(cudaErrorLaunchFailure);
	if (!known(event))
		return note(cudaErrorInvalidResourceHandle);
	if (cudaError_t e = barred_for_thread())
		return e;
	const Recording &r = *event->recording;
	if (r.reached < r.asked)
		advance();
	return r.reached >= r.asked ? report(event->device) : note(cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
	ENTER(cudaErrorInvalidResourceHandle);
	if (!known(from) || !known(to) || !from->timed || !to->timed || !from->recording->asked ||
	    !to->recording->asked)
		return note(cudaErrorInvalidResourceHandle);
	for (cudaEvent_t e : {from, to})
		if (e->recording->reached < e->recording->asked)
			return note(cudaErrorNotReady);
	*ms = (float)((to->recording->when - from->recording->when) * 1e3);
	return cudaSuccess;
}
}
