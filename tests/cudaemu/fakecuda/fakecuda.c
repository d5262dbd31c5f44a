/* A stand-in for libcuda.so.1, for tests that compile cuDNN's plans on a machine without a driver.
 * Nothing is ever run: every call succeeds, those here fill what their caller reads, and all the
 * others of the driver's interface (rest.s, from the toolkit's stub library) return 0. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof(*(a)))
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#pragma GCC diagnostic ignored "-Wunused-parameter"

typedef int result; /* of a call; 0 is success */

enum { ONE_OF_ANYTHING = 4096 };
static int thing[ONE_OF_ANYTHING]; /* what every handle points to */

/* Attributes of the device by their number; all others are 1. */
static const struct {
	int number, value;
} attributes[] = {
	{1, 1024},    /* threads per block */
	{10, 32},     /* threads per warp */
	{16, 132},    /* multiprocessors */
	{75, 9},      /* compute capability, major */
	{76, 0},      /* and minor */
	{97, 232448}, /* bytes of shared memory a block may ask for */
};

result cuInit(unsigned flags)
{
	return 0;
}

result cuDriverGetVersion(int *version)
{
	*version = 13000;
	return 0;
}

result cuDeviceGetCount(int *n)
{
	*n = 1;
	return 0;
}

result cuDeviceGet(int *device, int i)
{
	*device = i;
	return 0;
}

result cuDeviceGetName(char *name, int room, int device)
{
	snprintf(name, (size_t)room, "stand-in");
	return 0;
}

result cuDeviceTotalMem_v2(size_t *bytes, int device)
{
	*bytes = (size_t)80 << 30;
	return 0;
}

result cuDeviceGetAttribute(int *value, int number, int device)
{
	*value = 1;
	for (size_t i = 0; i < COUNT(attributes); i++)
		if (attributes[i].number == number)
			*value = attributes[i].value;
	return 0;
}

static result give(void **out)
{
	*out = thing;
	return 0;
}

result cuDevicePrimaryCtxRetain(void **context, int device)
{
	return give(context);
}

result cuCtxGetCurrent(void **context)
{
	return give(context);
}

result cuCtxGetDevice(int *device)
{
	*device = 0;
	return 0;
}

result cuLibraryLoadData(void **library, const void *code, void *a, void *b, unsigned n, void *c,
			 void *d, unsigned m)
{
	return give(library);
}

result cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
	return give(kernel);
}

result cuLibraryGetModule(void **module, void *library)
{
	return give(module);
}

result cuLibraryGetGlobal(void **at, size_t *bytes, void *library, const char *name)
{
	if (bytes)
		*bytes = sizeof(thing);
	return give(at);
}

result cuLibraryGetKernelCount(unsigned *n, void *library)
{
	*n = 1;
	return 0;
}

result cuLibraryEnumerateKernels(void **kernels, unsigned n, void *library)
{
	for (unsigned i = 0; i < n; i++)
		give(&kernels[i]);
	return 0;
}

result cuKernelGetFunction(void **function, void *kernel)
{
	return give(function);
}

/* Attribute 0 is the number of threads a block may have. */
result cuKernelGetAttribute(int *value, int number, void *kernel, int device)
{
	*value = number == 0 ? 1024 : 0;
	return 0;
}

result cuFuncGetAttribute(int *value, int number, void *function)
{
	return cuKernelGetAttribute(value, number, function, 0);
}

result cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *function, int block, size_t smem)
{
	*n = 1;
	return 0;
}

result cuOccupancyMaxActiveClusters(int *n, void *function, void *config)
{
	*n = 66;
	return 0;
}

result cuGetErrorString(result e, const char **text)
{
	*text = "an error of the stand-in";
	return 0;
}

result cuGetErrorName(result e, const char **text)
{
	return cuGetErrorString(e, text);
}

/* Tables of functions without names: there are none. */
result cuGetExportTable(const void **table, const void *id)
{
	*table = NULL;
	return 1;
}

static result nothing(void)
{
	return 0;
}

result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
			   int *status)
{
	result (*any)(void) = nothing;
	char newer[256];
	void *self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
	snprintf(newer, sizeof(newer), "%s_v2", name);
	*function = self ? dlsym(self, newer) : NULL;
	if (self && !*function)
		*function = dlsym(self, name);
	if (!*function)
		memcpy(function, &any, sizeof(any));
	if (status)
		*status = 0;
	return 0;
}

result cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
	return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
