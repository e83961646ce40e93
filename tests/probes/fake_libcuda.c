/* A FAKE libcuda.so.1 for the tests of probes/cuda.py: no GPU, no driver. It really does saxpy, on the CPU, so that the
 * ctypes marshalling is proven: 64-bit pointers, float arguments, out-parameters, argument arrays. Told by the environment to
 * answer errors or a wrong number. Nothing that it answers says anything about CUDA. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int told(const char *name) { const char *text = getenv(name); return text ? atoi(text) : 0; }
static int current; /* context in use: every memory call without one is CUDA_ERROR_INVALID_CONTEXT */

int cuInit(unsigned flags) { return flags ? 1 : told("FAKE_INIT"); }
int cuDriverGetVersion(int *version) { *version = 12060; return 0; }
int cuDeviceGetCount(int *count) { *count = told("FAKE_COUNT") ? told("FAKE_COUNT") : 1; return told("FAKE_COUNT_ERROR"); }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int length, int device) { snprintf(name, length, "Fake GPU %d of a test", device); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = (size_t)8 << 30; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
    case 13: *value = 1020000; return 0; /* kHz */
    case 16: *value = 8; return 0;
    case 18: *value = 1; return 0;
    case 75: *value = 8; return 0;
    case 76: *value = 7; return 0;
    }
    return 1;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(intptr_t)(0x100 + device); return told("FAKE_CONTEXT"); }
int cuDevicePrimaryCtxRelease(int device) { current = 0; return 0; }
int cuCtxSetCurrent(void *context) { current = (int)(intptr_t)context; return 0; }
int cuMemAlloc_v2(uint64_t *pointer, size_t bytes) {
    if (!current) return 201;
    *pointer = (uint64_t)(uintptr_t)malloc(bytes);
    return told("FAKE_ALLOC");
}
int cuMemFree_v2(uint64_t pointer) { free((void *)(uintptr_t)pointer); return 0; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) { memcpy((void *)(uintptr_t)to, from, bytes); return 0; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) { memcpy(to, (void *)(uintptr_t)from, bytes); return 0; }
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { *free_bytes = (size_t)5 << 30; *total = (size_t)8 << 30; return 0; }
int cuModuleLoadDataEx(void **module, const char *image, unsigned count, int *options, void **values) {
    if (count != 2 || options[0] != 5 || options[1] != 6 || (intptr_t)values[1] < 64) return 1;
    if (!strstr(image, ".entry saxpy(") || !strstr(image, ".target sm_50")) return 200;
    if (told("FAKE_LOAD")) strcpy(values[0], "ptxas fatal: a line of the fake's JIT log");
    *module = (void *)0x200;
    return told("FAKE_LOAD");
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = (void *)0x300;
    return module == (void *)0x200 && !strcmp(name, "saxpy") ? 0 : 500;
}
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra) {
    float *z = *(float **)arguments[0], *x = *(float **)arguments[1], *y = *(float **)arguments[2];
    float a = *(float *)arguments[3];
    unsigned n = *(unsigned *)arguments[4];
    if (function != (void *)0x300 || gy * gz * by * bz != 1 || (uint64_t)gx * bx < n || shared || extra) return 1;
    for (unsigned i = 0; i < n; i++) z[i] = a * x[i] + y[i];
    if (told("FAKE_WRONG") && current - 0x100 < told("FAKE_WRONG")) z[n / 2] += 1;
    return told("FAKE_LAUNCH");
}
int cuEventCreate(void **event, unsigned flags) { *event = (void *)0x400; return 0; }
int cuEventRecord(void *event, void *stream) { return 0; }
int cuEventSynchronize(void *event) { return told("FAKE_SYNC"); }
int cuEventElapsedTime(float *milliseconds, void *start, void *end) { *milliseconds = 0.25f; return 0; }
int cuEventDestroy_v2(void *event) { return 0; }
int cuGetErrorName(int number, const char **text) {
    *text = number == 46 ? "CUDA_ERROR_DEVICE_UNAVAILABLE" : number == 917 ? "CUDA_ERROR_OF_TOMORROW" : NULL;
    return *text ? 0 : 1;
}
