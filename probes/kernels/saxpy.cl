// y = a * x + y, OpenCL C 1.0; the driver compiles it.
__kernel void saxpy(const float a, __global const float *x, __global float *y) {
    const size_t i = get_global_id(0);
    y[i] = a * x[i] + y[i];
}
