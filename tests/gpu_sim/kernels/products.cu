// What the stand-in for cuBLASLt multiplies with: a thread for each element, halves of the inner axis in the workspace.
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ double number(const void *p, u64 at, int type) {
    if (type == 0) return ((const float *)p)[at];
    if (type == 1) return ((const double *)p)[at];
    u16 bits = ((const u16 *)p)[at];
    float x;
    if (type == 2) asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    else x = __uint_as_float((u32)bits << 16);
    return x;
}
__device__ void put(void *p, u64 at, int type, double x) {
    u16 bits;
    if (type == 0) ((float *)p)[at] = (float)x;
    else if (type == 1) ((double *)p)[at] = x;
    else {
        if (type == 2) asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"((float)x));
        else asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"((float)x));
        ((u16 *)p)[at] = bits;
    }
}

struct Matrix {
    const void *at;
    u64 row, column, batch; // steps
};

// parts: what holds two sums of each element, or null: they are made at once.
extern "C" __global__ void product(Matrix a, Matrix b, Matrix d, int type, int m, int n, int depth, double *parts) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y;
    u64 batch = blockIdx.z, place = 2 * ((batch * n + j) * m + i);
    if (i >= m) return;
    double sum = 0;
    for (int k = depth - 1; k >= 0; k--) {
        sum += number(a.at, batch * a.batch + i * a.row + k * a.column, type) *
               number(b.at, batch * b.batch + k * b.row + j * b.column, type);
        if (parts && k == depth / 2) parts[place] = sum, sum = 0;
    }
    if (parts) parts[place + 1] = sum, sum = parts[place] + parts[place + 1];
    put((void *)d.at, batch * d.batch + i * d.row + j * d.column, type, sum);
}
