// compute capability 8.0, 1280 bytes beside the arena
// group 0: cb_k0<<<(1, 1, 1), 256>>>(0x1, 0x10, 0x4, arena+18432, input 2+0, 0x3f666666, arena+19712, input 3+0, arena+20224)
// group 0: cb_k1<<<(1, 1, 1), 32>>>(arena+19456, 0x3f80722d, arena+19968, 0x3dcccccd, arena+20480)
// group 1: cb_k2<<<(16, 1, 1), 128>>>(0x120, 0x800, 0x1, input 0+0, extra+0)
// group 1: cb_k3<<<(16, 1, 1), 128>>>(0x120, 0x1, extra+0, 0x1, 0x800, arena+18688, arena+18944, arena+19200, extra+256)
// group 2: cb_k4<<<(1, 1, 1), 128>>>(0x2, 0x5, 0x39638e39, input 0+0, arena+18688, arena+19200, input 1+0, arena+18432, arena+0, extra+512)
// group 2: cb_k5<<<(1, 1, 1), 32>>>(0x39638e39, extra+512, 0x5, 0x1200, output 2+0)
// group 3: cb_k6<<<(1, 1, 1), 256>>>(0x1, 0x10, arena+19456, arena+19968, arena+20480, 0x4, arena+18944, arena+18688, arena+19712, arena+20224)
// group 4: cb_k7<<<(16, 1, 1), 128>>>(0x120, 0x800, 0x1, arena+0, arena+19200, arena+18688, input 0+0, extra+768)
// group 4: cb_k8<<<(16, 1, 1), 128>>>(0x120, 0x1, extra+768, 0x1, input 1+0, extra+1024, arena+18432, arena+18944)
// group 4: cb_k9<<<(18, 1, 1), 256>>>(0x1200, arena+0, arena+19200, arena+18688, input 0+0, extra+1024, input 1+0, output 3+0)
// group 5: cb_k10<<<(1, 1, 1), 256>>>(input 2+0, arena+19712, failure, 0x10)
// group 5: cb_k10<<<(1, 1, 1), 256>>>(input 3+0, arena+20224, failure, 0x10)

#include "prelude.cuh"

extern "C" __global__ void __launch_bounds__(256) cb_k0(uint64_t p0, uint64_t p1, uint64_t p2, float *p3, const float *__restrict__ p4, float p5, float *p6, const float *__restrict__ p7, float *p8) {
const bool all_even = ((((size_t)p4 | (size_t)p7) & 15)) == 0;
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = (I)p1;
#pragma unroll
for (int turn = 0; turn < 1; turn++) {
const I q = blockIdx.x * (I)256 + (turn * 256 + threadIdx.x);
if (q >= (I)p2) return;
const I row = 0, col = q * V, e = col;
const int n = V;
{ float w[V]; EACH w[j] = 0.0f; store(p3 + e, w, true, n); }
float t1[V];
load(t1, p4 + e, all_even, n);
float v0[V]; EACH v0[j] = x_MUL(t1[j], p5);
{ float w[V]; EACH w[j] = v0[j]; store(p6 + e, w, true, n); }
float t3[V];
load(t3, p7 + e, all_even, n);
float v1[V]; EACH v1[j] = x_MUL(t3[j], p5);
{ float w[V]; EACH w[j] = v1[j]; store(p8 + e, w, true, n); }
}
}
/* 256 */

extern "C" __global__ void __launch_bounds__(32) cb_k1(float *p0, float p1, float *p2, float p3, float *p4) {
if (threadIdx.x) return;
narrow(&p0[0], p1);
narrow(&p2[0], p3);
narrow(&p4[0], p3);
}
/* 32 */

extern "C" __global__ void __launch_bounds__(128) cb_k2(uint64_t p0, uint64_t p1, uint64_t p2, const float *__restrict__ p3, float *p4) {
typedef uint32_t I;
typedef float T;
__shared__ T shared[2][128];
const I channel = blockIdx.x, begin = blockIdx.y * (I)p1;
const I end = (I)p0 - begin < (I)p1 ? (I)p0 : begin + (I)p1;
const auto place = [=](I k) { return (k / (I)36 * (I)16 + channel) * (I)36 + k % (I)36; };
const I mine = (channel * (I)p2 + blockIdx.y) * 2;
T mean = 0, spread = 0;
#pragma unroll 8
for (I k = begin + threadIdx.x; k < end; k += blockDim.x) {
const I at = place(k);
mean += widen(p3[at]);
}
mean = block_sum(mean, shared[0]) / (T)(end - begin);
#pragma unroll 8
for (I k = begin + threadIdx.x; k < end; k += blockDim.x) {
const I at = place(k);
const T d = (T)widen(p3[at]) - mean;
spread += d * d;
}
spread = block_sum(spread, shared[1]);
if (threadIdx.x) return;
p4[mine] = mean, p4[mine + 1] = spread;
}
/* 128 */

extern "C" __global__ void __launch_bounds__(128) cb_k3(uint64_t p0, uint64_t p1, const float *__restrict__ p2, uint64_t p3, uint64_t p4, float *p5, float *p6, float *p7, float *p8) {
typedef uint32_t I;
typedef float T;
__shared__ T shared[2][128];
const I channel = blockIdx.x;
const T size = (T)p0;
const I from = channel * (I)p1 * 2;
const auto count = [=](I piece) { return piece + 1 < (I)p3 ? (T)p4 : size - (T)piece * (T)p4; };
T mean = 0, spread = 0;
for (I piece = threadIdx.x; piece < (I)p3; piece += blockDim.x) mean += p2[from + 2 * piece] * count(piece);
mean = block_sum(mean, shared[0]) / size;
for (I piece = threadIdx.x; piece < (I)p3; piece += blockDim.x) {
const T d = p2[from + 2 * piece] - mean;
spread += p2[from + 2 * piece + 1] + count(piece) * (d * d);
}
spread = block_sum(spread, shared[1]) / size;
if (threadIdx.x) return;
narrow(&p5[channel], mean);
narrow(&p6[channel], spread);
const T rstd = (T)1 / p_SQRT(spread + (T)0x1.4f8b588e368f1p-17);
narrow(&p7[channel], rstd);
p8[2 * channel] = mean, p8[2 * channel + 1] = rstd;
}
/* 128 */

extern "C" __global__ void __launch_bounds__(128) cb_k4(uint64_t p0, uint64_t p1, float p2, const float *__restrict__ p3, const float *__restrict__ p4, const float *__restrict__ p5, const float *__restrict__ p6, const float *__restrict__ p7, float *p8, float *p9) {
const bool all_even = ((((size_t)p3) & 15)) == 0;
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = 2304;
const unsigned t = threadIdx.x % 16;
const I run = blockIdx.x * (I)8 + threadIdx.x / 16;
if (run >= (I)p1) return;
const float s3 = x_MUL(1.0f, p2);
float a0[V] = {};
const I first = run * (I)1024 + t * V, last = run * (I)1024 + (I)1024;
#pragma unroll 4
for (I e = first; e < last && e < ROWS * COLUMNS; e += 64) {
const I row = e / COLUMNS, col = e - row * COLUMNS;
const int n = V;
float t0[V];
load(t0, p3 + e, all_even, n);
float t1[V];
I o1_ = 0;
{ I rest = e;
rest /= (I)36;
o1_ += rest % (I)16 * (I)1; rest /= (I)16;
}
EACH t1[j] = widen(p4[o1_]);
float v0[V]; EACH v0[j] = x_SUB(t0[j], t1[j]);
float t2[V];
I o2_ = 0;
{ I rest = e;
rest /= (I)36;
o2_ += rest % (I)16 * (I)1; rest /= (I)16;
}
EACH t2[j] = widen(p5[o2_]);
float v1[V]; EACH v1[j] = x_MUL(v0[j], t2[j]);
float t3[V];
I o3_ = 0;
{ I rest = e;
rest /= (I)36;
o3_ += rest % (I)16 * (I)1; rest /= (I)16;
}
EACH t3[j] = widen(p6[o3_]);
float v2[V]; EACH v2[j] = x_MUL(v1[j], t3[j]);
float t4[V];
I o4_ = 0;
{ I rest = e;
rest /= (I)36;
o4_ += rest % (I)16 * (I)1; rest /= (I)16;
}
EACH t4[j] = widen(p7[o4_]);
float v3[V]; EACH v3[j] = x_ADD(v2[j], t4[j]);
float v4[V]; EACH v4[j] = x_MUL(v3[j], v3[j]);
EACH a0[j] += v4[j];
float v5[V]; EACH v5[j] = x_MUL(s3, v3[j]);
float v6[V]; EACH v6[j] = x_ADD(v5[j], v5[j]);
{ float w[V]; EACH w[j] = v6[j]; store(p8 + e, w, true, n); }
}
{ const float sum = fold(a0);
if (t == 0) p9[run] = sum; }
}
/* 128 */

extern "C" __global__ void __launch_bounds__(32) cb_k5(float p0, const float *__restrict__ p1, uint64_t p2, uint64_t p3, float *p4) {
const float s3 = x_MUL(1.0f, p0);
float s0;
s0 = pairs_of_warp(p1, 0, p2) / (float)p3;
if (threadIdx.x) return;
narrow(&p4[0], s0);
}
/* 32 */

extern "C" __global__ void __launch_bounds__(256) cb_k6(uint64_t p0, uint64_t p1, const float *__restrict__ p2, const float *__restrict__ p3, const float *__restrict__ p4, uint64_t p5, const float *__restrict__ p6, const float *__restrict__ p7, float *p8, float *p9) {
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = (I)p1;
const float s0 = widen(p2[0]);
const float s1 = widen(p3[0]);
const float s2 = widen(p4[0]);
#pragma unroll
for (int turn = 0; turn < 1; turn++) {
const I q = blockIdx.x * (I)256 + (turn * 256 + threadIdx.x);
if (q >= (I)p5) return;
const I row = 0, col = q * V, e = col;
const int n = V;
float t0[V];
load(t0, p6 + e, true, n);
float v0[V]; EACH v0[j] = x_MUL(t0[j], s0);
float t1[V];
load(t1, p7 + e, true, n);
float v1[V]; EACH v1[j] = x_MUL(t1[j], s1);
float t2[V];
load(t2, p8 + e, true, n);
float v2[V]; EACH v2[j] = x_ADD(t2[j], v1[j]);
{ float w[V]; EACH w[j] = v2[j]; store(p8 + e, w, true, n); }
float v3[V]; EACH v3[j] = x_MUL(v0[j], s2);
float t4[V];
load(t4, p9 + e, true, n);
float v4[V]; EACH v4[j] = x_ADD(t4[j], v3[j]);
{ float w[V]; EACH w[j] = v4[j]; store(p9 + e, w, true, n); }
}
}
/* 256 */

extern "C" __global__ void __launch_bounds__(128) cb_k7(uint64_t p0, uint64_t p1, uint64_t p2, const float *__restrict__ p3, const float *__restrict__ p4, const float *__restrict__ p5, const float *__restrict__ p6, float *p7) {
typedef uint32_t I;
typedef float T;
__shared__ T shared[2][128];
const I channel = blockIdx.x, begin = blockIdx.y * (I)p1;
const I end = (I)p0 - begin < (I)p1 ? (I)p0 : begin + (I)p1;
const auto place = [=](I k) { return (k / (I)36 * (I)16 + channel) * (I)36 + k % (I)36; };
const I mine = (channel * (I)p2 + blockIdx.y) * 2;
T level = 0, along = 0;
#pragma unroll 8
for (I k = begin + threadIdx.x; k < end; k += blockDim.x) {
const I at = place(k);
const T g = widen(p3[at]);
const T h = ((T)widen(p6[at]) - (T)widen(p5[channel])) * (T)widen(p4[channel]);
level += g, along += g * h;
}
level = block_sum(level, shared[0]), along = block_sum(along, shared[1]);
if (threadIdx.x) return;
p7[mine] = level, p7[mine + 1] = along;
}
/* 128 */

extern "C" __global__ void __launch_bounds__(128) cb_k8(uint64_t p0, uint64_t p1, const float *__restrict__ p2, uint64_t p3, const float *__restrict__ p4, float *p5, float *p6, float *p7) {
typedef uint32_t I;
typedef float T;
__shared__ T shared[2][128];
const I channel = blockIdx.x;
const T size = (T)p0;
const I from = channel * (I)p1 * 2;
T level = 0, along = 0;
for (I piece = threadIdx.x; piece < (I)p3; piece += blockDim.x) level += p2[from + 2 * piece], along += p2[from + 2 * piece + 1];
level = block_sum(level, shared[0]), along = block_sum(along, shared[1]);
if (threadIdx.x) return;
narrow(&p6[channel], along);
narrow(&p7[channel], level);
const T w = widen(p4[channel]);
p5[2 * channel] = w * level / size, p5[2 * channel + 1] = w * along / size;
}
/* 128 */

extern "C" __global__ void __launch_bounds__(256) cb_k9(uint64_t p0, const float *__restrict__ p1, const float *__restrict__ p2, const float *__restrict__ p3, const float *__restrict__ p4, const float *__restrict__ p5, const float *__restrict__ p6, float *p7) {
typedef uint32_t I;
const I i = blockIdx.x * (I)256 + threadIdx.x;
if (i >= (I)p0) return;
typedef float T;
const I channel = i / (I)36 % (I)16;
const T g = widen(p1[i]);
const T h = ((T)widen(p4[i]) - (T)widen(p3[channel])) * (T)widen(p2[channel]);
const T v = g * (T)widen(p6[channel]);
narrow(&p7[i], (T)widen(p2[channel]) * (v - p5[2 * channel] - h * p5[2 * channel + 1]));
}
/* 256 */

extern "C" __global__ void __launch_bounds__(256) cb_k10(uint32_t *p0, const uint32_t *__restrict__ p1, const failure *__restrict__ p2, uint64_t p3) {
const uint64_t i = blockIdx.x * (uint64_t)256 + threadIdx.x;
if (i < p3 && p2->instr == 0) p0[i] = p1[i];
}
/* 256 */

