// Pointwise kernels: one element a thread, sixteen bytes a thread with dropout, and the update of many tensors.
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

extern "C" __global__ void scale(const float *__restrict__ x, float *__restrict__ y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i];
}

extern "C" __global__ void axpy(const float *__restrict__ x, float *y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}

__device__ float from_bf16(u32 bits) { return __uint_as_float(bits << 16); }
__device__ u32 to_bf16(float x) {
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

// Philox4x32 with seven rounds.
__device__ void philox(u32 block, u64 seed, u32 out[4]) {
    u32 c0 = block, c1 = 0, c2 = 0, c3 = 0, k0 = (u32)seed, k1 = (u32)(seed >> 32);
    for (int round = 0; round < 7; round++) {
        u32 high0 = __umulhi(0xD2511F53u, c0), low0 = 0xD2511F53u * c0;
        u32 high1 = __umulhi(0xCD9E8D57u, c2), low1 = 0xCD9E8D57u * c2;
        c0 = high1 ^ c1 ^ k0, c1 = low1, c2 = high0 ^ c3 ^ k1, c3 = low0;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

// y = dropout(gelu(x + bias)) on bf16, eight elements a thread; those whose 16 bits are under `limit` are dropped.
extern "C" __global__ void gelu_dropout(const uint4 *__restrict__ x, const float *__restrict__ bias,
                                        uint4 *__restrict__ y, u64 seed, u32 limit, float scale, u32 n8,
                                        u32 columns) {
    u32 i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n8) return;
    uint4 v = x[i];
    u32 random[4], words[4] = {v.x, v.y, v.z, v.w};
    philox(i, seed, random);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        int half = 16 * (j & 1);
        float a = from_bf16(words[j >> 1] >> half & 0xffff) + bias[(i * 8 + j) % columns], t;
        asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(0.79788456f * fmaf(0.044715f * a * a, a, a)));
        a = (random[j >> 1] >> half & 0xffff) >= limit ? 0.5f * a * (1.f + t) * scale : 0.f;
        words[j >> 1] = (words[j >> 1] & ~(0xffffu << half)) | to_bf16(a) << half;
    }
    y[i] = make_uint4(words[0], words[1], words[2], words[3]);
}

struct Row {
    float *p;
    const float *g;
    float *m, *v;
    u64 n;
};

// AdamW over any number of tensors: block b works on part where[b].y of tensor where[b].x.
extern "C" __global__ void adamw(const Row *rows, const uint2 *where, const float *h, u32 part) {
    uint2 at = where[blockIdx.x];
    Row r = rows[at.x];
    u64 begin = (u64)at.y * part, end = begin + part < r.n ? begin + part : r.n;
    float lr = h[0], b1 = h[1], b2 = h[2], eps = h[3], decay = h[4], c1 = h[5], c2 = h[6];
    for (u64 i = begin + threadIdx.x; i < end; i += blockDim.x) {
        float g = __ldg(r.g + i), p = r.p[i] * (1.f - lr * decay), m = r.m[i], v = r.v[i];
        m = fmaf(b1, m - g, g), v = fmaf(b2, v - g * g, g * g);
        p -= lr * c1 * m / (sqrtf(v) * c2 + eps);
        r.p[i] = p, r.m[i] = m, r.v[i] = v;
    }
}
