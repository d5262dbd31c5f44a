/* The emulated runtime: devices, streams and events, threads; misuse, races between streams and
 * injected failures are caught. Compiled as .cu files are.
 * TIME: 300 */
#include "tests/cuda/child.h"

#include <thread>

#include <cublas_v2.h>

namespace
{
enum { N = 1 << 12, BYTES = N * 4 };

__global__ void k_fill(float *x, float v)
{
	x[blockIdx.x * blockDim.x + threadIdx.x] = v;
}

__global__ void k_add(const float *x, float *y)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	y[i] += x[i];
}

float *device_floats()
{
	float *d_x = nullptr;
	REQUIRE(!cudaMalloc((void **)&d_x, BYTES));
	return d_x;
}

cudaStream_t new_stream()
{
	cudaStream_t s;
	REQUIRE(!cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
	return s;
}

/* ---- Devices and threads. ---- */

void devices()
{
	cudaDeviceProp p[3];
	int n = 0;
	REQUIRE(!cudaGetDeviceCount(&n) && n == 3);
	for (int i = 0; i < 3; i++) {
		char bus[32];
		REQUIRE(!cudaGetDeviceProperties(&p[i], i));
		REQUIRE(!cudaDeviceGetPCIBusId(bus, sizeof(bus), i));
		REQUIRE(p[i].pciBusID == i + 1 && p[i].major == 9);
		for (int j = 0; j < i; j++)
			REQUIRE(memcmp(&p[i].uuid, &p[j].uuid, sizeof(p[i].uuid)));
	}
	REQUIRE(cudaSetDevice(3) == cudaErrorInvalidDevice);
	REQUIRE(cudaGetLastError() == cudaErrorInvalidDevice && !cudaGetLastError());
}

void same_gpu()
{
	cudaDeviceProp p[2];
	REQUIRE(!cudaGetDeviceProperties(&p[0], 0) && !cudaGetDeviceProperties(&p[1], 1));
	REQUIRE(!memcmp(&p[0].uuid, &p[1].uuid, sizeof(p[0].uuid)));
}

void no_gpu()
{
	int n = -1;
	void *d_x;
	REQUIRE(cudaGetDeviceCount(&n) == cudaErrorNoDevice && n == 0);
	REQUIRE(cudaMalloc(&d_x, 4) == cudaErrorNoDevice);
}

void work_as_rank(int device)
{
	float v = 0;
	REQUIRE(!cudaSetDevice(device));
	REQUIRE(!cudaGetLastError());
	cudaStream_t s = new_stream();
	float *d_x = device_floats(), *d_y = device_floats();
	REQUIRE(!cudaMemsetAsync(d_y, 0, BYTES, s));
	for (int i = 1; i <= 100; i++) {
		OCC_LAUNCH_ON(s, k_fill, N / 128, 128, 0, d_x, (float)(i * (device + 1)));
		OCC_LAUNCH_ON(s, k_add, N / 128, 128, 0, d_x, d_y);
	}
	REQUIRE(!cudaMemcpyAsync(&v, d_y + N - 1, 4, cudaMemcpyDeviceToHost, s));
	REQUIRE(v == 5050.0f * (float)(device + 1));
	REQUIRE(!cudaFree(d_x) && !cudaFree(d_y) && !cudaStreamDestroy(s));
}

void threads()
{
	std::vector<std::thread> all;
	cudaSetDevice(77); /* an error of this thread only */
	for (int i = 0; i < 4; i++)
		all.emplace_back(work_as_rank, i);
	for (std::thread &t : all)
		t.join();
	REQUIRE(cudaGetLastError() == cudaErrorInvalidDevice);
}

/* ---- Streams. ---- */

/* y = y + x on one stream after x was made on another; `waits`: as it should be. */
void hand_over(bool waits)
{
	cudaStream_t a = new_stream(), b = new_stream();
	cudaEvent_t made;
	float v = 0, *d_x = device_floats(), *d_y = device_floats();
	REQUIRE(!cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
	REQUIRE(!cudaMemset(d_y, 0, BYTES));
	for (int i = 0; i < 3; i++)
		OCC_LAUNCH_ON(a, k_fill, N / 128, 128, 0, d_x, (float)i);
	REQUIRE(!cudaEventRecord(made, a));
	if (waits)
		REQUIRE(!cudaStreamWaitEvent(b, made, 0));
	OCC_LAUNCH_ON(b, k_add, N / 128, 128, 0, d_x, d_y);
	REQUIRE(!cudaEventDestroy(made)); /* what was asked of it still holds */
	REQUIRE(!cudaStreamSynchronize(b));
	REQUIRE(!cudaMemcpy(&v, d_y, 4, cudaMemcpyDeviceToHost));
	REQUIRE(v == 2.0f);
}

void wait_missing()
{
	hand_over(false);
}

void wait_there()
{
	hand_over(true);
}

void questions()
{
	cudaStream_t s = new_stream();
	cudaEvent_t from, to;
	float ms = -1, *d_x = device_floats();
	REQUIRE(!cudaEventCreate(&from) && !cudaEventCreate(&to));
	REQUIRE(cudaEventElapsedTime(&ms, from, to) == cudaErrorInvalidResourceHandle);
	REQUIRE(!cudaEventRecord(from, s));
	OCC_LAUNCH_ON(s, k_fill, N / 128, 128, 0, d_x, 1.0f);
	REQUIRE(!cudaEventRecord(to, s));
	REQUIRE(cudaEventElapsedTime(&ms, from, to) == cudaErrorNotReady);
	while (cudaEventQuery(to) == cudaErrorNotReady)
		;
	REQUIRE(!cudaStreamQuery(s) && !cudaEventElapsedTime(&ms, from, to) && ms > 0);
}

/* A pinned source is read late, a pageable one at once. */
void copies()
{
	cudaStream_t s = new_stream();
	float *pinned, pageable[4] = {1, 2, 3, 4}, back[8] = {}, *d_x = device_floats();
	REQUIRE(!cudaMallocHost((void **)&pinned, 16));
	pinned[0] = 1;
	REQUIRE(!cudaMemcpyAsync(d_x, pinned, 4, cudaMemcpyHostToDevice, s));
	REQUIRE(!cudaMemcpyAsync(d_x + 1, pageable, 4, cudaMemcpyHostToDevice, s));
	pinned[0] = 9;
	REQUIRE(!cudaMemcpyAsync(back, d_x, 8, cudaMemcpyDeviceToHost, s));
	REQUIRE(back[0] == 9 && back[1] == 1);
	REQUIRE(!cudaMemcpy2DAsync(d_x + 8, 16, pageable, 8, 8, 2, cudaMemcpyDefault, s));
	REQUIRE(!cudaMemcpy2DAsync(back, 12, d_x + 8, 16, 8, 2, cudaMemcpyDeviceToHost, s));
	REQUIRE(back[0] == 1 && back[1] == 2 && back[3] == 3 && back[4] == 4);
}

/* A pageable source may be read when the call is made, or later: both are CUDA's right. */
void changed_source()
{
	cudaStream_t s = new_stream();
	float pageable[4] = {1, 2, 3, 4}, back = 0, *d_x = device_floats();
	REQUIRE(!cudaMemcpyAsync(d_x, pageable, 16, cudaMemcpyHostToDevice, s));
	pageable[2] = 9;
	REQUIRE(!cudaMemcpyAsync(&back, d_x + 2, 4, cudaMemcpyDeviceToHost, s) && back == 3);
}

/* ---- Misuse: an error, and a line that says what it is. ---- */

void wrong_direction()
{
	float h[4] = {}, *d_x = device_floats();
	REQUIRE(cudaMemcpy(d_x, h, 4, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
	REQUIRE(cudaMemcpy(h, d_x, 4, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
	REQUIRE(cudaMemcpy(h, h, 4, cudaMemcpyDeviceToDevice) == cudaErrorInvalidValue);
	REQUIRE(cudaGetLastError() == cudaErrorInvalidValue && !cudaGetLastError());
}

void past_allocation()
{
	std::vector<float> h(N + 1);
	float *d_x = device_floats();
	REQUIRE(cudaMemcpy(d_x, h.data(), BYTES + 4, cudaMemcpyHostToDevice) ==
		cudaErrorInvalidValue);
	REQUIRE(cudaMemset(d_x + 1, 0, BYTES) == cudaErrorInvalidValue);
	REQUIRE(cudaMemcpy2DAsync(d_x + N - 6, 16, h.data(), 16, 16, 2, cudaMemcpyHostToDevice,
				  nullptr) == cudaErrorInvalidValue);
}

void inner_free()
{
	float *d_x = device_floats(), *pinned;
	REQUIRE(!cudaMallocHost((void **)&pinned, 16));
	REQUIRE(cudaFree(d_x + 2) == cudaErrorInvalidValue);
	REQUIRE(cudaFree(pinned) == cudaErrorInvalidValue);
	REQUIRE(cudaFreeHost(d_x) == cudaErrorInvalidValue);
	REQUIRE(!cudaFree(d_x) && cudaFree(d_x) == cudaErrorInvalidValue);
}

void dead_stream()
{
	cudaStream_t s = new_stream();
	float *d_x = device_floats();
	REQUIRE(!cudaStreamDestroy(s));
	REQUIRE(OCC_LAUNCH_ON(s, k_fill, 1, 32, 0, d_x, 1.0f) == cudaErrorInvalidResourceHandle);
	REQUIRE(cudaMemsetAsync(d_x, 0, 4, s) == cudaErrorInvalidResourceHandle);
}

void foreign_stream()
{
	cudaEvent_t e;
	cudaStream_t s = new_stream();
	float *d_x = device_floats();
	REQUIRE(!cudaSetDevice(1));
	REQUIRE(!cudaEventCreate(&e));
	REQUIRE(cudaEventRecord(e, s) == cudaErrorInvalidResourceHandle);
	REQUIRE(OCC_LAUNCH_ON(s, k_fill, 1, 32, 0, d_x, 1.0f) == cudaErrorInvalidResourceHandle);
}

void host_argument()
{
	static float x[N];
	float *pinned;
	REQUIRE(!cudaMallocHost((void **)&pinned, BYTES));
	OCC_LAUNCH_ON(nullptr, k_fill, 1, 32, 0, pinned, 1.0f);
	REQUIRE(!cudaGetLastError());
	REQUIRE(OCC_LAUNCH_ON(nullptr, k_fill, 1, 32, 0, x, 1.0f) == cudaErrorIllegalAddress);
}

void bad_launch()
{
	float *d_x = device_floats();
	cudaStream_t s = new_stream();
	REQUIRE(OCC_LAUNCH_ON(s, k_fill, 1, 2048, 0, d_x, 1.0f) == cudaErrorInvalidConfiguration);
	REQUIRE(OCC_LAUNCH_ON(s, k_fill, 0, 32, 0, d_x, 1.0f) == cudaErrorInvalidConfiguration);
	REQUIRE(OCC_LAUNCH_ON(s, k_fill, 1, 32, 49153, d_x, 1.0f) == cudaErrorInvalidValue);
	REQUIRE(!OCC_LAUNCH_ON(s, k_fill, 1, 32, 49152, d_x, 1.0f));
}

/* ---- Injected failures. ---- */

void no_memory()
{
	float *d_x;
	device_floats();
	REQUIRE(cudaMalloc((void **)&d_x, BYTES) == cudaErrorMemoryAllocation && !d_x);
	device_floats();
}

void little_memory()
{
	size_t left = 0, full = 0;
	float *d_x = device_floats(), *d_y;
	REQUIRE(!cudaMemGetInfo(&left, &full) && full == 20000 && left == 20000 - BYTES);
	REQUIRE(cudaMalloc((void **)&d_y, BYTES) == cudaErrorMemoryAllocation);
	REQUIRE(!cudaFree(d_x));
	device_floats();
}

/* A kernel that fails does so later, and its device is of no more use. */
void broken_kernel()
{
	cudaStream_t s = new_stream();
	float *d_x = device_floats(), *d_y;
	REQUIRE(!OCC_LAUNCH_ON(s, k_fill, 1, 32, 0, d_x, 1.0f) && !cudaStreamSynchronize(s));
	REQUIRE(!OCC_LAUNCH_ON(s, k_fill, 1, 32, 0, d_x, 2.0f) && !cudaGetLastError());
	REQUIRE(cudaStreamSynchronize(s) == cudaErrorLaunchFailure);
	REQUIRE(cudaGetLastError() == cudaErrorLaunchFailure);
	REQUIRE(cudaGetLastError() == cudaErrorLaunchFailure);
	REQUIRE(cudaMalloc((void **)&d_y, 4) == cudaErrorLaunchFailure);
	REQUIRE(OCC_LAUNCH_ON(s, k_fill, 1, 32, 0, d_x, 1.0f) == cudaErrorLaunchFailure);
	REQUIRE(!strcmp(cudaGetErrorString(cudaErrorLaunchFailure), "unspecified launch failure"));
}

void broken_product()
{
	cublasHandle_t h;
	float one = 1, *d_x = device_floats();
	auto multiply = [&] {
		return cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, d_x, 2, d_x + 8, 2,
				   &one, d_x + 16, 2);
	};
	REQUIRE(!cublasCreate(&h) && !multiply());
	REQUIRE(multiply() == CUBLAS_STATUS_EXECUTION_FAILED && !multiply());
	REQUIRE(!cublasDestroy(h));
}

const std::vector<Case> cases = {
	{"devices", devices, "OCC_EMU_GPUS=3", ""},
	{"same-gpu", same_gpu, "OCC_EMU_GPUS=2 OCC_EMU_SAME_GPU=1", ""},
	{"no-gpu", no_gpu, "OCC_EMU_GPUS=0", ""},
	{"threads", threads, "OCC_EMU_GPUS=4", ""},
	{"threads", threads, "OCC_EMU_GPUS=4 OCC_EMU_STREAMS=lazy:1", ""},
	{"wait-missing", wait_missing, "OCC_EMU_STREAMS=eager", ""},
	{"wait-there", wait_there, "", ""},
	{"questions", questions, "OCC_EMU_STREAMS=lazy:2", ""},
	{"copies", copies, "OCC_EMU_STREAMS=lazy:2", ""},
	{"changed-source", changed_source, "", ""},
	{"changed-source", changed_source, "OCC_EMU_STREAMS=lazy:2",
	 "16 bytes of pageable memory at"},
	{"wrong-direction", wrong_direction, "", "is memory of the host"},
	{"wrong-direction", wrong_direction, "", ""},
	{"past-allocation", past_allocation, "", "reach past their allocation"},
	{"past-allocation", past_allocation, "", ""},
	{"inner-free", inner_free, "", "is not what an allocation returned"},
	{"inner-free", inner_free, "", ""},
	{"dead-stream", dead_stream, "", "a stream that is not"},
	{"dead-stream", dead_stream, "", ""},
	{"foreign-stream", foreign_stream, "OCC_EMU_GPUS=2", "belongs to device 0"},
	{"foreign-stream", foreign_stream, "OCC_EMU_GPUS=2", ""},
	{"host-argument", host_argument, "", "argument 0 points to memory that is not"},
	{"host-argument", host_argument, "", ""},
	{"bad-launch", bad_launch, "", "kernel k_fill"},
	{"bad-launch", bad_launch, "", ""},
	{"no-memory", no_memory, "OCC_EMU_FAIL=cudaMalloc:2", ""},
	{"little-memory", little_memory, "OCC_EMU_MEM=20000", ""},
	{"broken-kernel", broken_kernel, "OCC_EMU_FAIL=cudaLaunchKernel:2", ""},
	{"broken-kernel", broken_kernel, "OCC_EMU_FAIL=cudaLaunchKernel:2 OCC_EMU_STREAMS=lazy",
	 ""},
	{"broken-product", broken_product, "OCC_EMU_FAIL=cublasSgemm:2", ""},
	{"wait-there", wait_there, "OCC_EMU_STREAMS=lazy:x",
	 "OCC_EMU_STREAMS=lazy:x: eager or lazy:SEED"},
	{"wait-there", wait_there, "OCC_EMU_STREAMS=lazily", "eager or lazy:SEED"},
	{"wait-there", wait_there, "OCC_EMU_STREAMS=5", "eager or lazy:SEED"},
	{"wait-there", wait_there, "OCC_EMU_ORDER=random:", "OCC_EMU_ORDER=random:: forward"},
	{"wait-there", wait_there, "OCC_EMU_ORDER=backward", "forward, reverse or random:SEED"},
	{"wait-there", wait_there, "OCC_EMU_GPUS=many", "OCC_EMU_GPUS=many: 0 to 1024"},
	{"wait-there", wait_there, "OCC_EMU_MEM=-5", "OCC_EMU_MEM=-5: bytes"},
	{"wait-there", wait_there, "OCC_EMU_FAIL=cudaMalloc", "CALL:N, as cudaMalloc:3"},
	{"wait-there", wait_there, "OCC_EMU_SKIP=+", "N or N+"},
};
} // namespace

/* The leak sanitizer asks. Cases leave what they made to the end of their process. */
extern "C" int __lsan_is_turned_off()
{
	return 1;
}

int main(int argc, char **argv)
{
	const Case without = {"wait-missing", wait_missing, "", "wrong"};
	const Case with = {"wait-there", wait_there, "", ""};
	int caught = 0;
	run_if_child(argc, argv, cases);
	for (const Case &c : cases)
		check_case(c, "");
	for (int seed = 1; seed <= 5; seed++) {
		std::string lazily = "OCC_EMU_STREAMS=lazy:" + std::to_string(seed);
		check_case(with, lazily);
		caught += !run_child(without, lazily).ended_well;
	}
	CHECK(caught > 0, "no seed of five shows the missing wait");
	return check_done();
}
