#version 450
// y = a * x + y. Shipped as saxpy.spv: glslangValidator -V --target-env vulkan1.0 saxpy.comp -o saxpy.spv
layout(local_size_x = 64) in;
layout(std430, set = 0, binding = 0) readonly buffer X { float x[]; };
layout(std430, set = 0, binding = 1) buffer Y { float y[]; };
layout(push_constant) uniform Parameters { float a; uint count; };

void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i < count) {
        y[i] = a * x[i] + y[i];
    }
}
