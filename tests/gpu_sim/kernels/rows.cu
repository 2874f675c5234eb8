// Kernels whose threads meet: sums of rows and columns, and a sum over the blocks of a grid.
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ float warp_sum(float v) {
    for (int distance = 16; distance; distance >>= 1) v += __shfl_xor_sync(0xffffffffu, v, distance);
    return v;
}

// The sum over a block, in every thread; `part` has a float for each warp.
__device__ float block_sum(float v, float *part) {
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.f;
    if (threadIdx.x < 32) {
        v = warp_sum(v);
        if (threadIdx.x == 0) part[0] = v;
    }
    __syncthreads();
    v = part[0];
    __syncthreads();
    return v;
}

extern "C" __global__ void layer_norm(const float4 *__restrict__ x, const float4 *__restrict__ gain,
                                      const float4 *__restrict__ bias, float4 *__restrict__ y, float *mean,
                                      float *rstd) {
    __shared__ float part[32];
    u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    float4 v = x[i];
    float n = 4.f * blockDim.x, m = block_sum(v.x + v.y + v.z + v.w, part) / n;
    v.x -= m, v.y -= m, v.z -= m, v.w -= m;
    float r = rsqrtf(block_sum(v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w, part) / n + 1e-5f);
    float4 g = gain[threadIdx.x], b = bias[threadIdx.x];
    y[i] = make_float4(v.x * r * g.x + b.x, v.y * r * g.y + b.y, v.z * r * g.z + b.z, v.w * r * g.w + b.w);
    if (threadIdx.x == 0) mean[blockIdx.x] = m, rstd[blockIdx.x] = r;
}

// dx, and for each block its part of the gradients of gain and bias (column_sums adds them).
extern "C" __global__ void layer_norm_backward(const float *__restrict__ x, const float *__restrict__ dy,
                                               const float *__restrict__ gain, const float *mean, const float *rstd,
                                               float *dx, float *dgain, float *dbias, int rows, int columns) {
    __shared__ float part[32];
    float own_gain[4] = {0, 0, 0, 0}, own_bias[4] = {0, 0, 0, 0};
    for (int r = blockIdx.x; r < rows; r += gridDim.x) {
        float m = mean[r], s = rstd[r], s1 = 0, s2 = 0;
        const float *xr = x + (u64)r * columns, *dr = dy + (u64)r * columns;
        for (int c = threadIdx.x, k = 0; c < columns; c += blockDim.x, k++) {
            float d = dr[c], h = (xr[c] - m) * s;
            s1 += d * gain[c], s2 += d * gain[c] * h;
            if (k < 4) own_gain[k] += d * h, own_bias[k] += d;
        }
        s1 = block_sum(s1, part) / columns, s2 = block_sum(s2, part) / columns;
        for (int c = threadIdx.x; c < columns; c += blockDim.x)
            dx[(u64)r * columns + c] = s * (dr[c] * gain[c] - s1 - (xr[c] - m) * s * s2);
    }
    for (int c = threadIdx.x, k = 0; c < columns; c += blockDim.x, k++) {
        dgain[(u64)blockIdx.x * columns + c] = own_gain[k];
        dbias[(u64)blockIdx.x * columns + c] = own_bias[k];
    }
}

extern "C" __global__ void column_sums(const float *parts, float *out, int rows, int columns) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= columns) return;
    float sum = 0;
    for (int r = 0; r < rows; r++) sum += parts[(u64)r * columns + c];
    out[c] = sum;
}

// Loss and gradient of one row a block; dynamic shared memory has a float for each warp.
extern "C" __global__ void cross_entropy(const float *x, const int *labels, float *loss, float *dx, int n) {
    extern __shared__ float part[];
    const float *row = x + (u64)blockIdx.x * n;
    float most = -3.4e38f, sum = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) most = fmaxf(most, row[i]);
    for (int distance = 16; distance; distance >>= 1)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, distance));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = most;
    __syncthreads();
    most = part[0];
    for (int i = 1; i < blockDim.x / 32; i++) most = fmaxf(most, part[i]);
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += expf(row[i] - most);
    sum = block_sum(sum, part);
    int label = labels[blockIdx.x];
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        dx[(u64)blockIdx.x * n + i] = __expf(row[i] - most) / sum - (i == label);
    if (threadIdx.x == 0) loss[blockIdx.x] = logf(sum) + most - row[label];
}

// The block that comes last adds what all have written.
extern "C" __global__ void total(const float *x, float *parts, u32 *count, float *out) {
    __shared__ float part[32];
    __shared__ int is_last;
    float sum = block_sum(x[blockIdx.x * blockDim.x + threadIdx.x], part);
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = sum;
        __threadfence();
        is_last = atomicAdd(count, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!is_last) return;
    float v = threadIdx.x < gridDim.x ? parts[threadIdx.x] : 0.f;
    v = block_sum(v, part);
    if (threadIdx.x == 0) *out = v;
}
