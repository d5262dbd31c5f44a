/* Inside of the emulated CUDA runtime, and what the other emulated libraries use of it.
 *
 * Threads: one recursive lock is held in every entry point, so also while a kernel runs. Current
 * device and last error belong to a thread. Waits give the lock away while nothing can go on. */
#ifndef OCC_TESTS_EMU_RUNTIME_H
#define OCC_TESTS_EMU_RUNTIME_H

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <cuda_runtime_api.h>

typedef std::function<bool()> occ_emu_poll;

namespace occ_emu
{
struct Kernel;
struct Capture;
} // namespace occ_emu

struct CUstream_st {
	int device;
	bool nonblocking;
	std::deque<occ_emu_poll> queue;
	std::shared_ptr<occ_emu::Capture> capture; /* NULL: its work is run */
};

namespace occ_emu
{

struct Lock {
	Lock();
	~Lock();
};
void give_lock_away(); /* for a moment; other threads may then change anything */

/* One line on standard error; stop() then aborts. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
[[noreturn]] void stop(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The rest of a text that begins with `word`, else "". */
const char *after(const char *word, const char *text);
/* The whole number, at least `low`, that a setting of the environment ends in (`digits`); else it
 * stops and says what the setting `should` be. */
long number(const char *setting, const char *digits, long low, const char *should);

/* OCC_EMU_FAIL=CALL:N: whether this is the N-th call of that function. */
bool fails(const char *call);

/* OCC_EMU_SKIP=N or N+: whether this is the N-th cudaStreamWaitEvent, or one from there on: a bug
 * of the program that lazy streams must show. */
bool skips_wait();

/* The entry of most functions of the runtime: OCC_EMU_FAIL's error, or that of a broken device. */
cudaError_t enter(const char *call, cudaError_t typical);
#define ENTER(typical)                                                                             \
	::occ_emu::Lock lock_;                                                                     \
	if (cudaError_t entered_ = ::occ_emu::enter(__func__, typical))                            \
	return entered_

cudaError_t note(cudaError_t error); /* as the thread's last error */
unsigned random_below(size_t n);
bool lazy(); /* OCC_EMU_STREAMS=lazy[:SEED] */

struct Device {
	size_t used = 0;
	CUstream_st null_stream{};
	cudaError_t fault = cudaSuccess; /* of a kernel; seen by the next call that waits... */
	bool reported = false;           /* ...and by all calls from then on */
};
std::vector<Device> &devices();
int current_device();
const char *current_call();     /* for messages: the last that was entered */
cudaError_t report(int device); /* at the end of a call that waited */

/* Memory. */
bool is_device(const void *p, size_t bytes); /* within one allocation */
bool is_for_kernels(
	const void *p); /* device or pinned memory, or the end of it, perhaps of nothing */

/* Streams. Work is polled in the order of its stream until it returns true. It is polled by calls
 * that wait or ask, and when it is put on an idle stream: then once (OCC_EMU_STREAMS=eager). */
CUstream_st *stream_of(cudaStream_t stream); /* NULL: not a stream */
cudaError_t enqueue(cudaStream_t stream, occ_emu_poll poll);
cudaError_t enqueue_work(cudaStream_t stream,
			 std::function<void()> work); /* a broken GPU drops it */
void wait_until(const std::function<bool()> &done);
void wait_stream(CUstream_st *stream);
void wait_device(int device); /* all of its streams */
/* OCC_EMU_LOAD=waits: code is loaded when it is first used, and all streams of the device have to
 * run empty for it, as may happen to CUDA's; =always: as if it were loaded again each time. What a
 * stream waits for must not be up to what this thread does next. */
void first_use(const std::string &code, CUstream_st *stream);
bool step();                /* one piece of work of any stream; false: none can go on */
void advance();             /* for calls that ask: what can go on; one piece if lazy */
void in_flight(int change); /* work that waits for another process */
void stuck(int change);     /* work that will never end unless it is aborted */

const std::vector<CUstream_st *> &all_streams();

/* Captures (emu_graph.cpp). keep: the work of a stream that captures. The others spoil a capture
 * and return an error where the call in hand may not be made while the stream captures, or any
 * stream of the device, or one that binds the thread. */
cudaError_t keep(CUstream_st *stream, occ_emu_poll poll);
cudaError_t barred(CUstream_st *stream, cudaError_t why = cudaErrorStreamCaptureUnsupported);
cudaError_t barred_for_device(int device);
cudaError_t barred_for_thread();

/* Runs all blocks of a kernel now. */
struct Shape {
	dim3 grid, block;
	size_t shared_bytes;
};
void run_kernel(const Kernel &kernel, void **arguments, const Shape &shape);
} // namespace occ_emu

#endif
