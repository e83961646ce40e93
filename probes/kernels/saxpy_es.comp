#version 310 es
// y = a * x + y, OpenGL ES 3.1; the driver compiles it.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer X { highp float x[]; };
layout(std430, binding = 1) buffer Y { highp float y[]; };
uniform highp float a;

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < uint(y.length())) {
        y[i] = a * x[i] + y[i];
    }
}
