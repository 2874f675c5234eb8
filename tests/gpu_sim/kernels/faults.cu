// Kernels that are wrong, one way each.
typedef unsigned int u32;

extern "C" __global__ void store_past(float *y, int n) { y[blockIdx.x * blockDim.x + threadIdx.x + n] = 1; }
extern "C" __global__ void load_vector(const float *x, float4 *y) { y[0] = *(const float4 *)(x + 1); }
extern "C" __global__ void write_constant(const float *table) { *(volatile float *)table = 1; }
__constant__ float table[4] = {1, 2, 3, 4};
extern "C" __global__ void read_constant(float *y) { y[threadIdx.x] = table[threadIdx.x]; }

extern "C" __global__ void divergent_barrier(float *y) {
    if (threadIdx.x < 40) {
        __syncthreads();
        y[threadIdx.x] = 1;
    }
    __syncthreads();
    y[threadIdx.x] = 2;
}
extern "C" __global__ void barrier_of_some(float *y) {
    if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;");
    y[threadIdx.x] = 1;
}
extern "C" __global__ void divergent_shuffle(float *y) {
    if (threadIdx.x < 16) y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, y[threadIdx.x], 16);
}
extern "C" __global__ void different_shuffles(float *y) {
    if (threadIdx.x < 16)
        y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, y[threadIdx.x], 1);
    else
        y[threadIdx.x] = __shfl_xor_sync(0xffffffffu, y[threadIdx.x], 2);
}
extern "C" __global__ void not_in_mask(float *y) { y[threadIdx.x] = __shfl_xor_sync(0xffffu, y[threadIdx.x], 1); }

extern "C" __global__ void spin(volatile int *flag) {
    while (!*flag) {}
}
extern "C" __global__ void trap_unless(const int *x) {
    if (*x != 3) asm("trap;");
}

// Races
extern "C" __global__ void blocks_write(float *y) { y[threadIdx.x] = blockIdx.x; }
extern "C" __global__ void blocks_read(float *y) {
    float v = y[(threadIdx.x + blockDim.x) % (2 * blockDim.x)];
    y[blockIdx.x * blockDim.x + threadIdx.x] = v;
}
extern "C" __global__ void threads_write(float *y) { y[threadIdx.x / 2] = threadIdx.x; }
extern "C" __global__ void halves_write(unsigned short *y) { y[threadIdx.x] = threadIdx.x; } // no race
extern "C" __global__ void atomic_and_plain(u32 *y) {
    if (threadIdx.x == 0)
        y[0] = 1;
    else
        atomicAdd(y, 1u);
}
extern "C" __global__ void warp_exchange(float *y) { // no race: __syncwarp orders the lanes
    __shared__ float held[32];
    held[threadIdx.x] = y[threadIdx.x];
    __syncwarp();
    float v = held[threadIdx.x ^ 1];
    __syncwarp();
    held[threadIdx.x] = v;
    y[threadIdx.x] = held[threadIdx.x];
}
extern "C" __global__ void producer_consumer(float *y) { // no race: a barrier of which one warp only arrives
    __shared__ float held[32];
    if (threadIdx.x < 32) {
        held[threadIdx.x] = y[threadIdx.x];
        asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
        asm volatile("bar.sync 1, 64;" ::: "memory");
        y[threadIdx.x] = held[threadIdx.x - 32];
    }
}
extern "C" __global__ void all_fence(const float *x, float *parts, u32 *count, float *out) {
    __shared__ int is_last; // no race: every thread fences before the barrier, one counts
    parts[blockIdx.x * blockDim.x + threadIdx.x] = x[threadIdx.x];
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) is_last = atomicAdd(count, 1u) == gridDim.x - 1;
    __syncthreads();
    if (!is_last) return;
    float sum = 0;
    for (int i = 0; i < gridDim.x; i++) sum += parts[i * blockDim.x + threadIdx.x];
    out[threadIdx.x] = sum;
}
extern "C" __global__ void wrong_counter(const float *x, float *parts, u32 *count, float *out) {
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = x[0];
        __threadfence();
        atomicAdd(count + blockIdx.x, 1u); // each its own, so that nobody knows of the others
        out[blockIdx.x] = parts[0];
    }
}
