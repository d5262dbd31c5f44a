/* Launches: by the tests' own code, and by the host stubs of nvcc, whose kernels are looked up by
 * their mangled names in the library that g++ made of the same files. OCC_EMU_KERNELS=FILE is that
 * library; without it libocc_kernels_emu.so beside this one. */
#include "tests/cudaemu/emu_runtime.h"

#include <cstring>
#include <dlfcn.h>
#include <memory>
#include <string>
#include <unordered_map>

#include "tests/cudaemu/cuda_emu.h"
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace occ_emu
{
namespace
{
constexpr size_t MOST_SHARED = 227 << 10, ALIGN = 16;

struct Known {
	Kernel kernel;
	std::string name;
};

template <class T> std::unordered_map<const void *, T> &table()
{
	static auto &t = *new std::unordered_map<const void *, T>;
	return t;
}

/* From g++'s text for a function of the class: "... F)(P ...) = name<float>]". */
std::string readable(const std::string &text)
{
	static const std::string before = "F)(P ...) = ", nameless = "{anonymous}::";
	size_t from = text.find(before);
	if (from == std::string::npos)
		return text;
	std::string name = text.substr(from + before.size());
	name.pop_back();
	if (!name.compare(0, nameless.size(), nameless))
		name.erase(0, nameless.size());
	return name;
}

void *open_kernels()
{
	const char *given = getenv("OCC_EMU_KERNELS");
	std::string path = given && *given ? given : "";
	Dl_info info;
	if (path.empty() && dladdr((void *)open_kernels, &info)) {
		path = info.dli_fname;
		path = path.substr(0, path.rfind('/') + 1) + "libocc_kernels_emu.so";
	}
	/* Lazily: host code in it, which is never called, names functions of the program. */
	void *lib = dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL);
	if (!lib)
		say("%s", dlerror());
	return lib;
}

/* The kernel behind a host stub of nvcc. */
const Kernel *kernel_of(const void *stub)
{
	static auto &found = table<const Kernel *>();
	const Kernel *&k = found[stub];
	if (k)
		return k;
	static void *lib = open_kernels();
	auto &names = table<std::string>();
	auto name = names.find(stub);
	auto it = table<Known>().find(
		name == names.end() || !lib ? stub : dlsym(lib, name->second.c_str()));
	if (it != table<Known>().end())
		k = &it->second.kernel;
	else
		say("kernel %s is not in the tests' library",
		    name == names.end() ? "?" : name->second.c_str());
	return k;
}

bool launchable(const Kernel &k, const Shape &s)
{
	size_t threads = (size_t)s.block.x * s.block.y * s.block.z;
	if (threads && threads <= 1024 && s.block.z <= 64 && s.grid.x && s.grid.y && s.grid.z &&
	    s.grid.x <= 0x7fffffffu && s.grid.y <= 65535 && s.grid.z <= 65535)
		return true;
	say("kernel %s: grid (%u,%u,%u), block (%u,%u,%u)", k.name, s.grid.x, s.grid.y, s.grid.z,
	    s.block.x, s.block.y, s.block.z);
	return false;
}

/* A pointer into the host's own memory, which a GPU would fault on. */
bool reachable(const Kernel &k, void **arguments)
{
	for (size_t i = 0; i < k.count; i++) {
		const void *p = k.pointers[i] ? *(void **)arguments[i] : nullptr;
		if (!p || is_for_kernels(p))
			continue;
		say("kernel %s: argument %zu points to memory that is not the device's", k.name, i);
		return false;
	}
	return true;
}

/* More than 48 KB has to be asked for, kernel by kernel. */
size_t shared_limit(const Kernel *k)
{
	auto &asked = table<size_t>();
	auto it = asked.find(k);
	return it == asked.end() ? 48 << 10 : it->second;
}

size_t rounded(size_t bytes)
{
	return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* A launch copies its arguments. */
struct Arguments {
	std::unique_ptr<char, void (*)(void *)> bytes{nullptr, free};
	std::vector<void *> each;

	Arguments(const Kernel &k, void **from)
	{
		size_t all = ALIGN, at = 0;
		for (size_t i = 0; i < k.count; i++)
			all += rounded(k.sizes[i]);
		bytes.reset((char *)aligned_alloc(ALIGN, all));
		for (size_t i = 0; i < k.count; i++) {
			each.push_back(memcpy(bytes.get() + at, from[i], k.sizes[i]));
			at += rounded(k.sizes[i]);
		}
	}
};
} // namespace

const Kernel *register_kernel(const Kernel &kernel)
{
	Lock l;
	Known &known = table<Known>()[kernel.function];
	known = {kernel, readable(kernel.name)};
	known.kernel.name = known.name.c_str();
	return &known.kernel;
}

cudaError_t launch(const Kernel *k, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
		   void **arguments)
{
	Lock l;
	Shape shape = {grid, block, shared_bytes};
	if (cudaError_t e = report(-1))
		return e;
	CUstream_st *s = stream_of(stream);
	if (s && s->device != current_device()) {
		say("kernel %s: its stream belongs to device %d, the thread uses device %d",
		    k->name, s->device, current_device());
		return note(cudaErrorInvalidResourceHandle);
	}
	if (!launchable(*k, shape))
		return note(cudaErrorInvalidConfiguration);
	if (!reachable(*k, arguments))
		return note(cudaErrorIllegalAddress);
	if (shared_bytes > shared_limit(k)) {
		say("kernel %s: %zu bytes of dynamic shared memory, %zu allowed", k->name,
		    shared_bytes, shared_limit(k));
		return note(cudaErrorInvalidValue);
	}
	first_use(k->name, s);
	if (fails("cudaLaunchKernel"))
		return enqueue_work(stream, [s] {
			devices()[(size_t)s->device].fault = cudaErrorLaunchFailure;
		});
	auto copy = std::make_shared<Arguments>(*k, arguments);
	return enqueue_work(stream, [=] { run_kernel(*k, copy->each.data(), shape); });
}
} // namespace occ_emu

using namespace occ_emu;

namespace
{
/* A launch of nvcc's <<<>>> comes in two halves. */
struct Half {
	dim3 grid, block;
	size_t shared_bytes;
	void *stream;
};
thread_local std::vector<Half> halves;
} // namespace

extern "C" {
cudaError_t cudaLaunchKernel(const void *stub, dim3 grid, dim3 block, void **arguments,
			     size_t shared_bytes, cudaStream_t stream)
{
	Lock l;
	const Kernel *k = kernel_of(stub);
	if (!k)
		return note(cudaErrorInvalidDeviceFunction);
	return launch(k, grid, block, shared_bytes, stream, arguments);
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
			       size_t shared_bytes, cudaStream_t stream)
{
	return cudaLaunchKernel((const void *)kernel, grid, block, arguments, shared_bytes, stream);
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *stub)
{
	*kernel = (cudaKernel_t)stub;
	return cudaSuccess;
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void *stream)
{
	halves.push_back({grid, block, shared_bytes, stream});
	return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream)
{
	Half h = halves.back();
	halves.pop_back();
	*grid = h.grid;
	*block = h.block;
	*shared_bytes = h.shared_bytes;
	*(void **)stream = h.stream;
	return cudaSuccess;
}

void __cudaRegisterFunction(void **, const char *stub, char *, const char *name, int, uint3 *,
			    uint3 *, dim3 *, dim3 *, int *)
{
	Lock l;
	table<std::string>()[stub] = name;
}

void __cudaRegisterVar(void **, char *, char *, const char *name, int, size_t, int, int)
{
	say("__device__ variable %s: not emulated", name);
}

void **__cudaRegisterFatBinary(void *)
{
	static void *handle;
	return &handle;
}

void __cudaRegisterFatBinaryEnd(void **)
{
}

void __cudaUnregisterFatBinary(void **)
{
}

char __cudaInitModule(void **)
{
	return 1;
}

cudaError_t cudaFuncSetAttribute(const void *function, cudaFuncAttribute attribute, int value)
{
	ENTER(cudaErrorInvalidValue);
	if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
		return cudaSuccess;
	const Kernel *k = kernel_of(function);
	if (!k)
		return note(cudaErrorInvalidDeviceFunction);
	if (value < 0 || (size_t)value > MOST_SHARED)
		return note(cudaErrorInvalidValue);
	table<size_t>()[k] = (size_t)value;
	return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *, int, size_t)
{
	*blocks = 2;
	return cudaSuccess;
}
}
