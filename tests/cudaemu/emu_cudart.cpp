/* Test-only CUDA runtime: "device memory" is host memory, streams are queues run by this thread.
 * OCC_EMU_STREAMS=eager (default) runs work when it is enqueued; lazy[:seed] defers all work until a
 * synchronisation asks for it and interleaves the streams at random: finds missing waits.
 * OCC_EMU_MEM=bytes limits device memory. */
#include "tests/cudaemu/cuda_emu.h"
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim
#include "tests/cudaemu/emu_internal.h"
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

struct CUstream_st { std::deque<std::function<bool()>> q; bool nonblocking; int prio; };
struct CUevent_st { uint64_t recorded = 0, done = 0; double t = 0; };

namespace occ_emu {
namespace {
thread_local cudaError_t last = cudaSuccess;
std::map<uintptr_t, size_t> dev, pinned;
size_t used, limit_ = 0;
std::set<cudaStream_t> streams;
CUstream_st null_stream{{}, false, 0};
int lazy = -1; std::mt19937 rng(7);
bool running;
cudaError_t err(cudaError_t e) { if (e != cudaSuccess) last = e; return e; }
double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
CUstream_st *str(cudaStream_t s) { return s && s != cudaStreamLegacy && s != cudaStreamPerThread ? s : &null_stream; }
void init() {
    if (lazy >= 0) return;
    const char *e = getenv("OCC_EMU_STREAMS");
    lazy = e && !strncmp(e, "lazy", 4);
    if (e && !strncmp(e, "lazy:", 5)) rng.seed(atoi(e + 5));
    if ((e = getenv("OCC_EMU_MEM"))) limit_ = strtoull(e, nullptr, 0);
    streams.insert(&null_stream);
}
bool find(const std::map<uintptr_t, size_t> &m, const void *p, size_t n) {
    auto it = m.upper_bound((uintptr_t)p);
    if (it == m.begin()) return false;
    --it;
    return (uintptr_t)p + n <= it->first + it->second && (uintptr_t)p >= it->first;
}
/* run queued work until done() holds; false: nothing can make progress and nothing is in flight */
int in_flight;   /* operations that wait on another process (NCCL) */
template <class F> bool drain(F done) {
    long idle_rounds = 0;
    while (!done()) {
        std::vector<CUstream_st *> c;
        for (auto s : streams) if (!s->q.empty()) c.push_back(s);
        if (c.empty()) return done();
        bool prog = false;
        size_t off = rng() % c.size();
        for (size_t i = 0; i < c.size(); i++) {
            CUstream_st *s = c[(i + off) % c.size()];
            if (s->q.front()()) { s->q.pop_front(); prog = true; break; }
        }
        if (prog) idle_rounds = 0;
        else if (++idle_rounds > 1000 && !in_flight) { fprintf(stderr, "cuda-emu: streams wait on each other for ever\n"); abort(); }
    }
    return true;
}
void drain_all() { drain([] { for (auto s : streams) if (!s->q.empty()) return false; return true; }); }
void drain_stream(CUstream_st *s) { drain([s] { return s->q.empty(); }); }
std::vector<KInfo> *kinfo() { static auto *v = new std::vector<KInfo>(); return v; }
std::unordered_map<const void *, std::string> host_to_name;   /* nvcc host stub -> mangled kernel name */
std::unordered_map<const void *, size_t> smem_optin;
}  // namespace

void flight(int d) { in_flight += d; }
bool register_kernel_info(const KInfo &k) { kinfo()->push_back(k); return true; }
bool is_device(const void *p, size_t n) { return find(dev, p, n); }

cudaError_t enqueue(cudaStream_t s0, std::function<bool()> poll) {
    init();
    CUstream_st *s = str(s0);
    if (!streams.count(s)) { fprintf(stderr, "cuda-emu: destroyed or foreign stream\n"); return err(cudaErrorInvalidResourceHandle); }
    if (s == &null_stream) {      /* legacy stream: orders with every blocking stream */
        for (auto o : std::vector<CUstream_st *>(streams.begin(), streams.end())) if (!o->nonblocking) drain_stream(o);
        s->q.push_back(std::move(poll)); drain_stream(s);
    } else {
        s->q.push_back(std::move(poll));
        if (!lazy && !running) drain_stream(s);
    }
    return cudaSuccess;
}
cudaError_t launch(std::function<void()> body, dim3 g, dim3 b, size_t smem, cudaStream_t st, const char *name, char *lo, char *hi) {
    init();
    size_t nt = (size_t)b.x * b.y * b.z;
    if (!nt || nt > 1024 || b.z > 64 || !g.x || !g.y || !g.z || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535)
        return err(cudaErrorInvalidConfiguration);
    if (smem > 227 * 1024) return err(cudaErrorInvalidValue);
    return enqueue(st, [=]() { run_kernel(body, g, b, smem, name, lo, hi); return true; });
}
}  // namespace occ_emu
using namespace occ_emu;

extern "C" {
cudaError_t cudaMalloc(void **p, size_t n) {
    init();
    if (!n) { *p = nullptr; return cudaSuccess; }
    if (limit_ && used + n > limit_) return err(cudaErrorMemoryAllocation);
    void *q = aligned_alloc(256, (n + 255) / 256 * 256);
    if (!q) return err(cudaErrorMemoryAllocation);
    memset(q, 0xFF, n);           /* real memory is garbage: NaN shows it */
    dev[(uintptr_t)q] = n; used += n; *p = q;
    return cudaSuccess;
}
cudaError_t cudaFree(void *p) {
    if (!p) return cudaSuccess;
    drain_all();
    auto it = dev.find((uintptr_t)p);
    if (it == dev.end()) return err(cudaErrorInvalidValue);
    used -= it->second; dev.erase(it); free(p);
    return cudaSuccess;
}
cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t) { return cudaMalloc(p, n); }
cudaError_t cudaFreeAsync(void *p, cudaStream_t s) { return enqueue(s, [p] { auto it = dev.find((uintptr_t)p); if (it != dev.end()) { used -= it->second; dev.erase(it); free(p); } return true; }); }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned) { init(); *p = aligned_alloc(64, (n + 63) / 64 * 64); if (!*p) return err(cudaErrorMemoryAllocation); pinned[(uintptr_t)*p] = n; return cudaSuccess; }
cudaError_t cudaMallocHost(void **p, size_t n) { return cudaHostAlloc(p, n, 0); }
cudaError_t cudaFreeHost(void *p) { if (!p) return cudaSuccess; drain_all(); if (!pinned.erase((uintptr_t)p)) return err(cudaErrorInvalidValue); free(p); return cudaSuccess; }
cudaError_t cudaHostRegister(void *p, size_t n, unsigned) { pinned[(uintptr_t)p] = n; return cudaSuccess; }
cudaError_t cudaHostUnregister(void *p) { return pinned.erase((uintptr_t)p) ? cudaSuccess : err(cudaErrorInvalidValue); }
static cudaError_t copy_check(void *d, const void *s, size_t n, cudaMemcpyKind k) {
    bool dd = is_device(d, n), sd = is_device(s, n);
    if (k == cudaMemcpyHostToDevice && (!dd || sd)) return cudaErrorInvalidValue;
    if (k == cudaMemcpyDeviceToHost && (dd || !sd)) return cudaErrorInvalidValue;
    if (k == cudaMemcpyDeviceToDevice && (!dd || !sd)) return cudaErrorInvalidValue;
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *d, const void *s, size_t n, cudaMemcpyKind k, cudaStream_t st) {
    init();
    if (!n) return cudaSuccess;
    cudaError_t e = copy_check(d, s, n, k);
    if (e) return err(e);
    if (!is_device(s, n) && !find(pinned, s, n)) {            /* pageable source: staged before return */
        auto stage = std::make_shared<std::vector<char>>((const char *)s, (const char *)s + n);
        return enqueue(st, [=] { memmove(d, stage->data(), n); return true; });
    }
    e = enqueue(st, [=] { memmove(d, s, n); return true; });
    if (!e && !is_device(d, n) && !find(pinned, d, n)) drain_stream(str(st));   /* pageable destination: synchronous */
    return e;
}
cudaError_t cudaMemcpy(void *d, const void *s, size_t n, cudaMemcpyKind k) { return cudaMemcpyAsync(d, s, n, k, nullptr); }
cudaError_t cudaMemsetAsync(void *d, int v, size_t n, cudaStream_t st) {
    if (n && !is_device(d, n)) return err(cudaErrorInvalidValue);
    return enqueue(st, [=] { memset(d, v, n); return true; });
}
cudaError_t cudaMemset(void *d, int v, size_t n) { return cudaMemsetAsync(d, v, n, nullptr); }
cudaError_t cudaMemGetInfo(size_t *f, size_t *t) { init(); *t = limit_ ? limit_ : (size_t)8 << 30; *f = *t - used; return cudaSuccess; }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned fl, int prio) { init(); *s = new CUstream_st{{}, (fl & cudaStreamNonBlocking) != 0, prio}; streams.insert(*s); return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned fl) { return cudaStreamCreateWithPriority(s, fl, 0); }
cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithPriority(s, 0, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t s) { if (!streams.count(s)) return err(cudaErrorInvalidResourceHandle); drain_stream(s); streams.erase(s); delete s; return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { init(); drain_stream(str(s)); return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t s) { init(); return str(s)->q.empty() ? cudaSuccess : cudaErrorNotReady; }
cudaError_t cudaDeviceSynchronize(void) { init(); drain_all(); return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) { *e = new CUevent_st(); return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { drain_all(); delete e; return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { uint64_t v = ++e->recorded; return enqueue(s, [=] { if (e->done < v) { e->done = v; e->t = now(); } return true; }); }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) { uint64_t v = e->recorded; return enqueue(s, [=] { return e->done >= v; }); }
cudaError_t cudaEventSynchronize(cudaEvent_t e) { uint64_t v = e->recorded; drain([=] { return e->done >= v; }); return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t e) { return e->done >= e->recorded ? cudaSuccess : cudaErrorNotReady; }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) { *ms = (float)((b->t - a->t) * 1e3); return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *u) { return enqueue(s, [=] { f(u); return true; }); }
cudaError_t cudaGetDeviceCount(int *n) { *n = 1; return cudaSuccess; }
cudaError_t cudaSetDevice(int d) { return d == 0 ? cudaSuccess : err(cudaErrorInvalidDevice); }
cudaError_t cudaGetDevice(int *d) { *d = 0; return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int) {
    memset(p, 0, sizeof *p); strcpy(p->name, "occ CPU emulation of CUDA"); p->major = 9; p->minor = 0; p->multiProcessorCount = 4;
    p->totalGlobalMem = (size_t)8 << 30; p->warpSize = 32; p->maxThreadsPerBlock = 1024; p->sharedMemPerBlock = 48 << 10; p->sharedMemPerBlockOptin = 227 << 10;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr a, int) {
    switch (a) { case cudaDevAttrMultiProcessorCount: *v = 4; break; case cudaDevAttrComputeCapabilityMajor: *v = 9; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *v = 227 << 10; break; default: *v = 0; } return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *s, int n, int) { snprintf(s, n, "0000:00:00.0"); return cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *lo, int *hi) { *lo = 0; *hi = -5; return cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void *f, cudaFuncAttribute a, int v) { if (a == cudaFuncAttributeMaxDynamicSharedMemorySize) { if (v > 227 * 1024) return err(cudaErrorInvalidValue); smem_optin[f] = v; } return cudaSuccess; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *, int, size_t) { *n = 2; return cudaSuccess; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *a, const void *p) { memset(a, 0, sizeof *a); a->type = is_device(p, 1) ? cudaMemoryTypeDevice : find(pinned, p, 1) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered; return cudaSuccess; }
cudaError_t cudaGetLastError(void) { cudaError_t e = last; last = cudaSuccess; return e; }
cudaError_t cudaPeekAtLastError(void) { return last; }
const char *cudaGetErrorString(cudaError_t e) { return e == cudaSuccess ? "no error" : e == cudaErrorMemoryAllocation ? "out of memory" : e == cudaErrorInvalidValue ? "invalid argument" : "CUDA error (emulated)"; }
const char *cudaGetErrorName(cudaError_t e) { return cudaGetErrorString(e); }
cudaError_t cudaRuntimeGetVersion(int *v) { *v = 13000; return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *v) { *v = 13000; return cudaSuccess; }

/* what nvcc's host objects call: lets an executable built by nvcc run its kernels from the g++-built copy */
static struct { dim3 g, b; size_t sm; cudaStream_t s; } cfgstack[16]; static int ncfg;
unsigned __cudaPushCallConfiguration(dim3 g, dim3 b, size_t sm, cudaStream_t s) { cfgstack[ncfg++ & 15] = {g, b, sm, s}; return 0; }
cudaError_t __cudaPopCallConfiguration(dim3 *g, dim3 *b, size_t *sm, void *s) { auto &c = cfgstack[--ncfg & 15]; *g = c.g; *b = c.b; *sm = c.sm; *(cudaStream_t *)s = c.s; return cudaSuccess; }
void **__cudaRegisterFatBinary(void *) { static void *h; return &h; }
void __cudaRegisterFatBinaryEnd(void **) {}
void __cudaUnregisterFatBinary(void **) {}
void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}
void __cudaRegisterFunction(void **, const char *hostFun, char *, const char *name, int, uint3 *, uint3 *, dim3 *, dim3 *, int *) { host_to_name[hostFun] = name; }
char __cudaInitModule(void **) { return 1; }
cudaError_t __cudaGetKernel(cudaKernel_t *k, const void *f) { *k = (cudaKernel_t)f; return cudaSuccess; }
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 g, dim3 b, void **a, size_t sm, cudaStream_t s);
cudaError_t cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **argv, size_t sm, cudaStream_t s) {
    static void *lib;
    if (!lib) {
        const char *n = getenv("OCC_EMU_KERNELS");
        lib = dlopen(n ? n : "libocc_kernels_emu.so", RTLD_LAZY | RTLD_LOCAL);
        if (!lib) { fprintf(stderr, "cuda-emu: %s\n", dlerror()); return err(cudaErrorSharedObjectInitFailed); }
    }
    auto it = host_to_name.find(f);
    const void *fn = it == host_to_name.end() ? f : dlsym(lib, it->second.c_str());
    for (const KInfo &k : *kinfo()) if (k.fn == fn) {
        auto store = std::make_shared<std::vector<std::vector<char>>>();
        for (size_t i = 0; i < k.n; i++) store->emplace_back((char *)argv[i], (char *)argv[i] + k.size[i]);
        auto call = k.call;
        char **lo = (char **)dlsym(lib, "occ_emu_shared_lo"), **hi = (char **)dlsym(lib, "occ_emu_shared_hi");
        return launch([=] { void *a[32]; for (size_t i = 0; i < store->size(); i++) a[i] = (*store)[i].data(); call(a); }, g, b, sm, s,
                      "argv kernel", lo ? *lo : nullptr, hi ? *hi : nullptr);
    }
    fprintf(stderr, "cuda-emu: kernel %s has no CPU copy\n", it == host_to_name.end() ? "?" : it->second.c_str());
    return err(cudaErrorInvalidDeviceFunction);
}
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 g, dim3 b, void **a, size_t sm, cudaStream_t s) { return cudaLaunchKernel((const void *)k, g, b, a, sm, s); }
}
extern "C" occ_emu::Stats *occ_emu_stats(void) { return &occ_emu::stats(); }
