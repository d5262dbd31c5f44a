/* Captured streams and graphs of the emulated runtime: nothing runs while it is captured, a graph
 * runs what was captured with the memory of the moment, and what CUDA forbids meanwhile spoils the
 * capture and nothing else. Compiled as .cu files are. TIME: 60 */
#include "tests/cuda/child.h"

#include <functional>
#include <thread>

#include <cublas_v2.h>

namespace
{
enum { N = 1 << 10, BYTES = N * 4 };

__global__ void k_add(const float *x, float *y, float a)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	y[i] += a * x[i];
}

float *device_floats(float value)
{
	float *d_x = nullptr;
	std::vector<float> x(N, value);
	REQUIRE(!cudaMalloc((void **)&d_x, BYTES));
	REQUIRE(!cudaMemcpy(d_x, x.data(), BYTES, cudaMemcpyHostToDevice));
	return d_x;
}

float first(const float *d_x)
{
	float v = 0;
	REQUIRE(!cudaMemcpy(&v, d_x, 4, cudaMemcpyDeviceToHost));
	return v;
}

cudaStream_t new_stream()
{
	cudaStream_t s;
	REQUIRE(!cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	return s;
}

cudaStreamCaptureStatus status(cudaStream_t s)
{
	cudaStreamCaptureStatus is;
	REQUIRE(!cudaStreamIsCapturing(s, &is));
	return is;
}

void begin(cudaStream_t s)
{
	REQUIRE(!cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
	REQUIRE(status(s) == cudaStreamCaptureStatusActive);
}

cudaGraphExec_t end(cudaStream_t s)
{
	cudaGraph_t graph;
	cudaGraphExec_t executable;
	REQUIRE(!cudaStreamEndCapture(s, &graph) && status(s) == cudaStreamCaptureStatusNone);
	REQUIRE(!cudaGraphInstantiate(&executable, graph, 0) && !cudaGraphDestroy(graph));
	return executable;
}

/* y += a x, where x is also copied from pinned memory and z is set to 0 and y added to it. */
struct Parts {
	cudaStream_t s = new_stream();
	float *d_x = device_floats(1), *d_y = device_floats(0), *d_z = device_floats(9), *pinned;
	float a = 2;
	Parts()
	{
		REQUIRE(!cudaMallocHost((void **)&pinned, 4));
		*pinned = 1;
	}
	void enqueue()
	{
		REQUIRE(!cudaMemcpyAsync(d_x, pinned, 4, cudaMemcpyHostToDevice, s));
		REQUIRE(!OCC_LAUNCH_ON(s, k_add, N / 128, 128, 0, d_x, d_y, a));
		REQUIRE(!cudaMemsetAsync(d_z, 0, BYTES, s));
		REQUIRE(!OCC_LAUNCH_ON(s, k_add, N / 128, 128, 0, d_y, d_z, 1.0f));
	}
	float z()
	{
		REQUIRE(!cudaStreamSynchronize(s));
		return first(d_z);
	}
};

void replay()
{
	Parts p;
	begin(p.s);
	p.enqueue();
	cudaGraphExec_t executable = end(p.s);
	REQUIRE(p.z() == 9 && first(p.d_y) == 0); /* nothing has run */
	p.a = 100;                                /* as at capture: 2 */
	REQUIRE(!cudaGraphLaunch(executable, p.s) && p.z() == 2);
	*p.pinned = 10; /* as at launch */
	REQUIRE(!cudaGraphLaunch(executable, p.s) && p.z() == 22);
	REQUIRE(!cudaGraphLaunch(executable, p.s) && !cudaGraphLaunch(executable, p.s));
	REQUIRE(!cudaGraphExecDestroy(executable)); /* what was launched still runs */
	REQUIRE(p.z() == 62);
	REQUIRE(cudaGraphLaunch(executable, p.s) == cudaErrorInvalidValue);
}

void products()
{
	cublasHandle_t h;
	float one = 1, zero = 0, *d_a = device_floats(1), *d_c = device_floats(0);
	cudaStream_t s = new_stream();
	REQUIRE(!cublasCreate(&h) && !cublasSetStream(h, s));
	begin(s);
	REQUIRE(!cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, &one, d_a, 8, d_a, 8, &zero, d_c,
			     8));
	one = 5;
	cudaGraphExec_t executable = end(s);
	REQUIRE(first(d_c) == 0);
	REQUIRE(!cudaGraphLaunch(executable, s) && !cudaStreamSynchronize(s) && first(d_c) == 8);
	REQUIRE(!cublasDestroy(h));
}

/* ---- What spoils a capture. ---- */

/* Refused with `why`; later work too, and the end; then the stream is as before. */
void spoils(const std::function<cudaError_t(Parts &)> &call, cudaError_t why)
{
	Parts p;
	cudaGraph_t graph;
	begin(p.s);
	REQUIRE(!cudaMemsetAsync(p.d_z, 0, BYTES, p.s));
	cudaError_t e = call(p);
	REQUIRE(e == why && cudaGetLastError() == why);
	REQUIRE(status(p.s) == cudaStreamCaptureStatusInvalidated);
	REQUIRE(cudaMemsetAsync(p.d_z, 0, BYTES, p.s) == cudaErrorStreamCaptureInvalidated);
	REQUIRE(cudaStreamEndCapture(p.s, &graph) == cudaErrorStreamCaptureInvalidated && !graph);
	REQUIRE(p.z() == 9);
	p.enqueue();
	REQUIRE(p.z() == 2);
}

void forbidden()
{
	static float pageable[4], *more;
	static cudaEvent_t event;
	const cudaError_t no = cudaErrorStreamCaptureUnsupported;
	REQUIRE(!cudaEventCreate(&event));
	spoils([](Parts &p) { return cudaStreamSynchronize(p.s); }, no);
	spoils([](Parts &p) { return cudaStreamQuery(p.s); }, no);
	spoils([](Parts &) { return cudaDeviceSynchronize(); }, no);
	spoils([](Parts &p) { return cudaEventRecord(event, p.s); }, no);
	spoils([](Parts &p) { return cudaStreamWaitEvent(p.s, event, 0); },
	       cudaErrorStreamCaptureIsolation);
	spoils([](Parts &) { return cudaEventSynchronize(event); }, no);
	spoils([](Parts &) { return cudaMalloc((void **)&more, 4); }, no);
	spoils([](Parts &p) { return cudaMallocAsync((void **)&more, 4, p.s); }, no);
	spoils([](Parts &p) { return cudaFree(p.d_x); }, no);
	spoils([](Parts &p) { return cudaFreeAsync(p.d_x, p.s); }, no);
	spoils([](Parts &) { return cudaMallocHost((void **)&more, 4); }, no);
	spoils(
		[](Parts &p) {
			return cudaMemcpyAsync(p.d_x, pageable, 16, cudaMemcpyHostToDevice, p.s);
		},
		no);
	spoils(
		[](Parts &p) {
			return cudaMemcpyAsync(pageable, p.d_x, 16, cudaMemcpyDeviceToHost, p.s);
		},
		no);
}

/* Other threads and other streams go on as ever. */
void others()
{
	Parts p;
	cudaStream_t other = new_stream();
	float *d_more = nullptr;
	begin(p.s);
	p.enqueue();
	std::thread([&] {
		d_more = device_floats(3);
		REQUIRE(cudaFree(d_more) == cudaSuccess);
		cudaGraph_t graph;
		REQUIRE(cudaStreamEndCapture(p.s, &graph) == cudaErrorStreamCaptureWrongThread);
	}).join();
	REQUIRE(!cudaMemsetAsync(p.d_z, 0, BYTES, other) && !cudaStreamSynchronize(other));
	cudaGraphExec_t executable = end(p.s);
	REQUIRE(!cudaGraphLaunch(executable, other) && !cudaStreamSynchronize(other));
	REQUIRE(first(p.d_z) == 2);
}

void misuse()
{
	cudaGraph_t graph;
	cudaStream_t s = new_stream();
	REQUIRE(cudaStreamEndCapture(s, &graph) == cudaErrorIllegalState);
	REQUIRE(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeThreadLocal) ==
		cudaErrorStreamCaptureUnsupported);
	begin(s);
	REQUIRE(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) ==
		cudaErrorIllegalState);
	REQUIRE(!cudaStreamEndCapture(s, &graph) && !cudaGraphDestroy(graph));
	REQUIRE(cudaGraphDestroy(graph) == cudaErrorInvalidValue);
}

/* ---- Injected failures: nothing has run, and the next try is right. ---- */

void broken()
{
	Parts p;
	cudaGraph_t graph = nullptr;
	cudaGraphExec_t executable;
	bool failed = cudaStreamBeginCapture(p.s, cudaStreamCaptureModeThreadLocal);
	if (!failed) {
		p.enqueue();
		failed = cudaStreamEndCapture(p.s, &graph);
	}
	failed = failed || cudaGraphInstantiate(&executable, graph, 0) ||
		 cudaGraphLaunch(executable, p.s);
	REQUIRE(failed && cudaGetLastError() && p.z() == 9);
	begin(p.s);
	p.enqueue();
	REQUIRE(!cudaGraphLaunch(end(p.s), p.s) && p.z() == 2);
}

const std::vector<Case> cases = {
	{"replay", replay, "", "a graph that is not"},
	{"replay", replay, "", ""},
	{"products", products, "", ""},
	{"forbidden", forbidden, "", ""},
	{"others", others, "", ""},
	{"misuse", misuse, "", ""},
	{"broken", broken, "OCC_EMU_FAIL=cudaStreamBeginCapture:1", ""},
	{"broken", broken, "OCC_EMU_FAIL=cudaStreamEndCapture:1", ""},
	{"broken", broken, "OCC_EMU_FAIL=cudaGraphInstantiate:1", ""},
	{"broken", broken, "OCC_EMU_FAIL=cudaGraphLaunch:1", ""},
};
} // namespace

int main(int argc, char **argv)
{
	run_if_child(argc, argv, cases);
	for (const Case &c : cases)
		for (const char *streams : {"eager", "lazy:1", "lazy:2"})
			check_case(c, std::string("OCC_EMU_STREAMS=") + streams);
	return check_done();
}
