// compute capability 8.0, 256 bytes beside the arena
// group 0: cb_k0<<<(1, 1, 1), 128>>>(0x1, 0x2000, 0x8, 0x39000000, 0x3f8e3923, 0x40000000, input 0+0, input 1+0, seed, step, 0x0, output 1+0, extra+0)
// group 0: cb_k1<<<(1, 1, 1), 32>>>(0x39000000, 0x3f8e3923, 0x40000000, extra+0, 0x8, 0x2000, output 0+0)
// group 1: cb_k2<<<(1, 1, 1), 32>>>(count, failure)

#include "prelude.cuh"

extern "C" __global__ void __launch_bounds__(128) cb_k0(uint64_t p0, uint64_t p1, uint64_t p2, float p3, float p4, float p5, const float *__restrict__ p6, const float *__restrict__ p7, uint64_t p8, const uint64_t *__restrict__ p9_at, uint64_t p10, float *p11, float *p12) {
const bool all_even = ((((size_t)p6 | (size_t)p7 | (size_t)p11) & 15)) == 0;
const uint64_t p9 = *p9_at;
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = (I)p1;
const unsigned t = threadIdx.x % 16;
const I run = blockIdx.x * (I)8 + threadIdx.x / 16;
if (run >= (I)p2) return;
const float s4 = x_MUL(1.0f, p3);
const float s6 = x_MUL(s4, p5);
float a0[V] = {};
const I first = run * (I)1024 + t * V, last = run * (I)1024 + (I)1024;
#pragma unroll 4
for (I e = first; e < last && e < ROWS * COLUMNS; e += 64) {
const I row = e / COLUMNS, col = e - row * COLUMNS;
const int n = V;
float t0[V];
load(t0, p6 + e, all_even, n);
float t1[V];
load(t1, p7 + e, all_even, n);
float v0[V]; EACH v0[j] = x_MUL(t0[j], t1[j]);
float v1[V]; EACH v1[j] = x_MUL(v0[j], p4);
float t2[V];
keep_even(t2, p8, p9, (uint32_t)p10, 6554u, e);
float v2[V]; EACH v2[j] = x_KEEP(t2[j], v1[j]);
float v3[V]; EACH v3[j] = x_MUL(v2[j], v2[j]);
EACH a0[j] += v3[j];
float v4[V]; EACH v4[j] = x_MUL(s6, v2[j]);
float v5[V]; EACH v5[j] = x_MUL(v4[j], p4);
float v6[V]; EACH v6[j] = x_KEEP(t2[j], v5[j]);
float v7[V]; EACH v7[j] = x_MUL(v6[j], t1[j]);
{ float w[V]; EACH w[j] = v7[j]; store(p11 + e, w, all_even, n); }
}
{ const float sum = fold(a0);
if (t == 0) p12[run] = sum; }
}
/* 128 */

extern "C" __global__ void __launch_bounds__(32) cb_k1(float p0, float p1, float p2, const float *__restrict__ p3, uint64_t p4, uint64_t p5, float *p6) {
const float s4 = x_MUL(1.0f, p0);
const float s6 = x_MUL(s4, p2);
float s1;
s1 = pairs_of_warp(p3, 0, p4) / (float)p5;
if (threadIdx.x) return;
narrow(&p6[0], s1);
}
/* 32 */

extern "C" __global__ void __launch_bounds__(32) cb_k2(uint64_t *p0, const failure *__restrict__ p1) {
if (threadIdx.x == 0 && p1->instr == 0) p0[0]++;
}
/* 32 */

