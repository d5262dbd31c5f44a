/* The lock, messages, injected failures, errors, and the devices of the emulated runtime.
 * OCC_EMU_GPUS=n devices (1 by default), each with OCC_EMU_MEM bytes; OCC_EMU_SAME_GPU=1: all of
 * them call themselves the same GPU. */
#include "tests/cudaemu/emu_runtime.h"

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <random>
#include <sched.h>
#include <string>
#include <unistd.h>

namespace occ_emu
{
namespace
{
std::recursive_mutex lock;
thread_local int held; /* how often this thread has it */
thread_local cudaError_t last_error;
thread_local int device_of_thread;
thread_local const char *call_of_thread = "";

void print(const char *format, va_list list)
{
	char text[1024];
	vsnprintf(text, sizeof(text), format, list);
	fprintf(stderr, "cuda-emu: %s\n", text);
}

struct Failure {
	std::string call;
	long nth = 0, seen = 0;
};

Failure read_failure()
{
	Failure f;
	const char *e = getenv("OCC_EMU_FAIL"), *colon = e ? strrchr(e, ':') : nullptr;
	if (!e || !*e)
		return f;
	f.nth = number("OCC_EMU_FAIL", colon ? colon + 1 : "", 1, "CALL:N, as cudaMalloc:3");
	f.call.assign(e, (size_t)(colon - e));
	return f;
}

int device_count()
{
	const char *e = getenv("OCC_EMU_GPUS");
	long n = e && *e ? number("OCC_EMU_GPUS", e, 0, "0 to 1024") : 1;
	if (n > 1024)
		stop("OCC_EMU_GPUS=%s: 0 to 1024", e);
	return (int)n;
}

size_t memory_size()
{
	const char *e = getenv("OCC_EMU_MEM");
	return e && *e ? (size_t)number("OCC_EMU_MEM", e, 0, "bytes of a GPU's memory")
		       : (size_t)8 << 30;
}

bool bad_device(int device)
{
	return device < 0 || device >= (int)devices().size();
}

/* "OCCEMU", the device, and a number of the host. */
cudaUUID_t uuid_of(int device)
{
	cudaUUID_t uuid;
	char host[256] = "";
	uint64_t h = 14695981039346656037ull;
	gethostname(host, sizeof(host) - 1);
	for (const char *p = host; *p; p++)
		h = (h ^ (unsigned char)*p) * 1099511628211ull;
	const char *same = getenv("OCC_EMU_SAME_GPU");
	memset(&uuid, 0, sizeof(uuid));
	memcpy(uuid.bytes, "OCCEMU", 6);
	uuid.bytes[7] = same && *same == '1' ? 0 : (char)device;
	memcpy(uuid.bytes + 8, &h, 8);
	return uuid;
}
} // namespace

Lock::Lock()
{
	lock.lock();
	held++;
}

Lock::~Lock()
{
	held--;
	lock.unlock();
}

void give_lock_away()
{
	for (int i = 0; i < held; i++)
		lock.unlock();
	sched_yield();
	for (int i = 0; i < held; i++)
		lock.lock();
}

void say(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	print(format, list);
	va_end(list);
}

void stop(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	print(format, list);
	va_end(list);
	abort();
}

const char *after(const char *word, const char *text)
{
	size_t n = strlen(word);
	return strncmp(text, word, n) ? "" : text + n;
}

long number(const char *setting, const char *digits, long low, const char *should)
{
	char *end;
	errno = 0;
	long n = strtol(digits, &end, 10);
	if (end == digits || *end || errno || n < low)
		stop("%s=%s: %s", setting, getenv(setting), should);
	return n;
}

bool skips_wait()
{
	static const char *set = getenv("OCC_EMU_SKIP");
	static const std::string e = set ? set : "";
	static const bool all = !e.empty() && e.back() == '+';
	static const long nth =
		e.empty()
			? 0
			: number("OCC_EMU_SKIP", e.substr(0, e.size() - all).c_str(), 0, "N or N+");
	static long seen;
	return nth > 0 && (++seen == nth || (seen > nth && all));
}

namespace
{
Failure &failure()
{
	static Failure &f = *new Failure(read_failure());
	return f;
}

/* A test that meant to provoke something has not. */
void say_unused()
{
	const Failure &f = failure();
	if (f.nth && f.seen < f.nth)
		say("OCC_EMU_FAIL=%s:%ld never came: %ld calls", f.call.c_str(), (long)f.nth,
		    (long)f.seen);
}
} // namespace

bool fails(const char *call)
{
	static const int asked = atexit(say_unused);
	(void)asked;
	Failure &f = failure();
	return f.nth && f.call == call && ++f.seen == f.nth;
}

cudaError_t note(cudaError_t error)
{
	if (error != cudaSuccess)
		last_error = error;
	return error;
}

cudaError_t enter(const char *call, cudaError_t typical)
{
	call_of_thread = call;
	if (fails(call))
		return note(typical);
	return report(-1);
}

cudaError_t report(int device)
{
	if (devices().empty())
		return note(cudaErrorNoDevice);
	Device &d = devices()[device < 0 ? device_of_thread : device];
	if (device >= 0 && d.fault)
		d.reported = true;
	return d.reported ? note(d.fault) : cudaSuccess;
}

namespace
{
/* What OCC_EMU_STREAMS asks for: -1 for eager, else lazy's seed. */
long streams_seed()
{
	static const long seed = [] {
		const char *e = getenv("OCC_EMU_STREAMS");
		if (!e || !*e || !strcmp(e, "eager"))
			return -1L;
		if (!strcmp(e, "lazy"))
			return 7L;
		return number("OCC_EMU_STREAMS", after("lazy:", e), 0, "eager or lazy:SEED");
	}();
	return seed;
}
} // namespace

unsigned random_below(size_t n)
{
	static std::mt19937 rng((unsigned)streams_seed());
	return (unsigned)(rng() % n);
}

bool lazy()
{
	return streams_seed() >= 0;
}

std::vector<Device> &devices()
{
	static std::vector<Device> &all = *new std::vector<Device>((size_t)device_count());
	return all;
}

const char *current_call()
{
	return call_of_thread;
}

int current_device()
{
	return device_of_thread;
}
} // namespace occ_emu

using namespace occ_emu;

extern "C" {
cudaError_t cudaGetDeviceCount(int *n)
{
	Lock l;
	*n = (int)devices().size();
	if (fails(__func__))
		return note(cudaErrorInitializationError);
	return *n ? cudaSuccess : note(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
	Lock l;
	if (fails(__func__))
		return note(cudaErrorInitializationError);
	if (bad_device(device))
		return note(cudaErrorInvalidDevice);
	device_of_thread = device;
	return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
	*device = device_of_thread;
	return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device)
{
	ENTER(cudaErrorInitializationError);
	if (bad_device(device))
		return note(cudaErrorInvalidDevice);
	memset(p, 0, sizeof(*p));
	strcpy(p->name, "emulated GPU");
	p->uuid = uuid_of(device);
	p->major = 9;
	p->multiProcessorCount = 4;
	p->totalGlobalMem = memory_size();
	p->warpSize = 32;
	p->maxThreadsPerBlock = 1024;
	p->maxThreadsPerMultiProcessor = 2048;
	p->sharedMemPerBlock = 48 << 10;
	p->sharedMemPerBlockOptin = 227 << 10;
	p->sharedMemPerMultiprocessor = 228 << 10;
	p->regsPerBlock = 65536;
	p->pciBusID = p->uuid.bytes[7] + 1;
	p->unifiedAddressing = 1;
	p->asyncEngineCount = 2;
	p->concurrentKernels = 1;
	p->l2CacheSize = 50 << 20;
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device)
{
	cudaDeviceProp p;
	if (cudaError_t e = cudaGetDeviceProperties(&p, device))
		return e;
	switch (attribute) {
	case cudaDevAttrMultiProcessorCount:
		*value = p.multiProcessorCount;
		break;
	case cudaDevAttrComputeCapabilityMajor:
		*value = p.major;
		break;
	case cudaDevAttrComputeCapabilityMinor:
		*value = p.minor;
		break;
	case cudaDevAttrMaxThreadsPerBlock:
		*value = p.maxThreadsPerBlock;
		break;
	case cudaDevAttrMaxSharedMemoryPerBlockOptin:
		*value = (int)p.sharedMemPerBlockOptin;
		break;
	case cudaDevAttrPciBusId:
		*value = p.pciBusID;
		break;
	default:
		*value = 0;
	}
	return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
	cudaDeviceProp p;
	if (cudaError_t e = cudaGetDeviceProperties(&p, device))
		return e;
	snprintf(text, (size_t)bytes, "0000:%02x:00.0", (unsigned)p.pciBusID);
	return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
	ENTER(cudaErrorInitializationError);
	*all = memory_size();
	*left = *all - devices()[(size_t)device_of_thread].used;
	return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
	Lock l;
	cudaError_t e = last_error;
	last_error = cudaSuccess;
	report(-1); /* the error of a broken device stays */
	return e;
}

cudaError_t cudaPeekAtLastError(void)
{
	return last_error;
}

const char *cudaGetErrorName(cudaError_t e)
{
	switch (e) {
	case cudaSuccess:
		return "cudaSuccess";
	case cudaErrorInvalidValue:
		return "cudaErrorInvalidValue";
	case cudaErrorMemoryAllocation:
		return "cudaErrorMemoryAllocation";
	case cudaErrorLaunchFailure:
		return "cudaErrorLaunchFailure";
	case cudaErrorInvalidConfiguration:
		return "cudaErrorInvalidConfiguration";
	case cudaErrorInvalidResourceHandle:
		return "cudaErrorInvalidResourceHandle";
	case cudaErrorNotReady:
		return "cudaErrorNotReady";
	case cudaErrorNoDevice:
		return "cudaErrorNoDevice";
	case cudaErrorInvalidDevice:
		return "cudaErrorInvalidDevice";
	default:
		return "an error of CUDA";
	}
}

const char *cudaGetErrorString(cudaError_t e)
{
	switch (e) {
	case cudaSuccess:
		return "no error";
	case cudaErrorInvalidValue:
		return "invalid argument";
	case cudaErrorMemoryAllocation:
		return "out of memory";
	case cudaErrorLaunchFailure:
		return "unspecified launch failure";
	case cudaErrorMisalignedAddress:
		return "misaligned address";
	case cudaErrorInvalidConfiguration:
		return "invalid configuration argument";
	case cudaErrorInvalidResourceHandle:
		return "invalid resource handle";
	case cudaErrorNotReady:
		return "device not ready";
	case cudaErrorNoDevice:
		return "no CUDA-capable device is detected";
	case cudaErrorInvalidDevice:
		return "invalid device ordinal";
	case cudaErrorStreamCaptureUnsupported:
		return "operation not permitted when stream is capturing";
	case cudaErrorStreamCaptureInvalidated:
		return "operation failed due to a previous error during capture";
	case cudaErrorStreamCaptureIsolation:
		return "dependency created on uncaptured work in another stream";
	case cudaErrorInitializationError:
		return "initialization error";
	case cudaErrorInvalidDeviceFunction:
		return "invalid device function";
	default:
		return "an error of CUDA";
	}
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
	*version = CUDART_VERSION;
	return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
	*version = CUDART_VERSION;
	return cudaSuccess;
}
}
