// What else the language has: votes and reductions of a warp, atomics, switches, local arrays, constants,
// functions that are called, double precision.
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

__constant__ float coefficients[8] = {1, 2, 3, 4, 5, 6, 7, 8};
__device__ u32 launches = 7;
__device__ u32 *where_launches = &launches;

__device__ __noinline__ float polynomial(float x, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum = sum * x + coefficients[i & 7];
    return sum;
}

extern "C" __global__ void mathematics(const float *x, float *y, int which) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float v = x[i];
    switch (which) {
        case 0: v = sinf(v); break;
        case 1: v = cosf(v); break;
        case 2: v = tanhf(v); break;
        case 3: v = log1pf(fabsf(v)); break;
        case 4: v = powf(fabsf(v), 1.5f); break;
        case 5: v = erff(v); break;
        case 6: v = expf(v); break;
        case 7: v = polynomial(v, 5); break;
        default: v = 1 / v;
    }
    y[i] = v;
}

extern "C" __global__ void doubles(const double *x, double *y) {
    int i = threadIdx.x;
    y[i] = exp(x[i]) / 3 + sqrt(fabs(x[i]));
}

extern "C" __global__ void warp_operations(const int *x, u32 *out) {
    u32 i = threadIdx.x, all = 0xffffffffu;
    int v = x[i];
    out[0 * 32 + i] = __ballot_sync(all, v > 0);
    out[1 * 32 + i] = __any_sync(all, v > 100) << 1 | __all_sync(all, v > -100);
    out[2 * 32 + i] = __reduce_add_sync(all, v);
    out[3 * 32 + i] = __reduce_min_sync(all, v);
    out[4 * 32 + i] = __reduce_max_sync(all, (u32)v);
    out[5 * 32 + i] = __reduce_or_sync(all, (u32)v);
    out[6 * 32 + i] = __match_any_sync(all, v);
    out[7 * 32 + i] = __shfl_sync(all, v, i + 5, 8);
    out[8 * 32 + i] = __shfl_up_sync(all, v, 3);
    out[9 * 32 + i] = __shfl_down_sync(all, v, 2, 16);
    if (i < 16) out[10 * 32 + i] = __shfl_xor_sync(0xffffu, v, 1);
    __syncwarp();
    out[11 * 32 + i] = __syncthreads_count(v > 0);
    int same;
    out[12 * 32 + i] = __match_all_sync(all, v & 0, &same) & (u32)-same;
    out[13 * 32 + i] = __reduce_xor_sync(all, (u32)v) + __reduce_and_sync(all, (u32)v);
}

extern "C" __global__ void atomics(u32 *a, float *f, const u32 *x) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x, v = x[i];
    atomicAdd(&a[0], v), atomicMax(&a[1], v), atomicMin(&a[2], v), atomicOr(&a[3], v), atomicXor(&a[4], v);
    atomicAnd(&a[5], v), atomicInc(&a[6], 9u), atomicCAS(&a[7], 0u, 5u), atomicExch(&a[8], 3u);
    atomicMax((int *)&a[9], (int)v - 50), atomicAdd((u64 *)&a[10], (u64)v << 20);
    atomicAdd(f, 0.5f);
    if (i == 0) a[12] = *where_launches;
}

extern "C" __global__ void local_arrays(const float *x, float *y, int shift) {
    int i = threadIdx.x;
    float own[8];
    for (int k = 0; k < 8; k++) own[(k * 3 + shift) & 7] = x[i] * k;
    y[i] = own[(i + shift) & 7];
}
