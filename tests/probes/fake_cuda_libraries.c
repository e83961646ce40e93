/* FAKES of libcudart, libnvrtc, libcublas and libcudnn for the tests of who testifies: no GPU, no CUDA. They really do the
 * work, on the CPU, with the memory of fake_libcuda.c, so that the ctypes marshalling is proven. Nothing that they answer
 * says anything about CUDA. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int cudaRuntimeGetVersion(int *version) { *version = 12060; return 0; }
int cudaMalloc(void **pointer, size_t bytes) { *pointer = malloc(bytes); return 0; }
int cudaMemset(void *pointer, int value, size_t bytes) { memset(pointer, value, bytes); return 0; }
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) { memcpy(to, from, bytes); return kind == 2 ? 0 : 21; }
int cudaFree(void *pointer) { free(pointer); return 0; }

static const char code[] = ".target sm_50 .entry saxpy(";
int nvrtcVersion(int *major, int *minor) { *major = 12; *minor = 6; return 0; }
int nvrtcCreateProgram(void **program, const char *text, const char *name, int n, void *a, void *b) { *program = (void *)1; return strstr(text, "saxpy") ? 0 : 6; }
int nvrtcCompileProgram(void *program, int count, const char **options) { return strcmp(options[0], "--gpu-architecture=sm_87") ? 5 : 0; }
int nvrtcGetCUBINSize(void *program, size_t *size) { *size = sizeof code; return 0; }
int nvrtcGetCUBIN(void *program, char *out) { memcpy(out, code, sizeof code); return 0; }

int cublasGetProperty(int kind, int *value) { *value = 12 - kind; return 0; }
int cublasCreate_v2(void **handle) { *handle = (void *)2; return 0; }
int cublasDestroy_v2(void *handle) { return 0; }
int cublasSgemm_v2(void *handle, int ta, int tb, int m, int n, int k, const float *alpha, const float *a, int lda,
                   const float *b, int ldb, const float *beta, float *c, int ldc) {
    for (int column = 0; column < n; column++)
        for (int row = 0; row < m; row++) {
            float sum = 0;
            for (int i = 0; i < k; i++) sum += a[i * lda + row] * b[column * ldb + i];
            c[column * ldc + row] = *alpha * sum + (*beta ? *beta * c[column * ldc + row] : 0);
        }
    return handle != (void *)2 || ta || tb;
}

static int width;
size_t cudnnGetVersion(void) { return 90300; }
size_t cudnnGetCudartVersion(void) { return 12060; }
int cudnnCreate(void **handle) { *handle = (void *)3; return 0; }
int cudnnDestroy(void *handle) { return 0; }
int cudnnCreateTensorDescriptor(void **descriptor) { *descriptor = (void *)4; return 0; }
int cudnnDestroyTensorDescriptor(void *descriptor) { return 0; }
int cudnnSetTensor4dDescriptor(void *descriptor, int format, int type, int n, int c, int h, int w) { width = w; return format || type || n * c * h != 1; }
int cudnnAddTensor(void *handle, const float *alpha, void *a, const float *x, const float *beta, void *c, float *y) {
    for (int i = 0; i < width; i++) y[i] = *alpha * x[i] + *beta * y[i];
    if (getenv("FAKE_CUDNN_WRONG")) y[0] += 1;
    return handle != (void *)3 || a != (void *)4 || c != a;
}
