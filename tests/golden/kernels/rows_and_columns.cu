// compute capability 8.0, 65536 bytes beside the arena
// group 0: cb_k0<<<(512, 1, 1), 256>>>(0x2000, input 0+0, 0x43c00000, 0x3727c5ac, input 1+0, input 2+0, output 0+0, extra+0, extra+32768)
// group 0: cb_k1<<<(6, 64, 1), 1024>>>(0x2000, 0x80, extra+0, extra+32768, input 0+0, input 1+0, input 2+0, arena+0)
// group 0: cb_k2<<<(6, 1, 1), 64>>>(0x180, arena+0, output 1+0, 0x40)

#include "prelude.cuh"

extern "C" __global__ void __launch_bounds__(256) cb_k0(uint64_t p0, const float *__restrict__ p1, float p2, float p3, const float *__restrict__ p4, const float *__restrict__ p5, float *p6, float *p7, float *p8) {
const bool all_even = ((((size_t)p1 | (size_t)p4 | (size_t)p5 | (size_t)p6) & 15)) == 0;
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = 384;
const unsigned t = threadIdx.x % 16, team = threadIdx.x / 16 % 1, slot = threadIdx.x / 16;
const I row = blockIdx.x * (I)16 + slot;
if (row >= ROWS) return;
__shared__ __align__(16) float tiles[6144];
float *const tile0 = tiles + (0 + slot) * 384;
float r0 = 0;
for (I leaf = team; leaf < (I)1; leaf += 1) {
float a0[V] = {};
#pragma unroll 2
for (I turn = 0; turn < 6; turn++) {
const I col = turn * 64 + t * V;
const I e = row * COLUMNS + col;
const int n = V;
float t0[V];
load(t0, p1 + e, all_even, n);
store(tile0 + col, t0, true, V);
EACH a0[j] += t0[j];
}
r0 = fold(a0);
}
const float s0 = r0;
const float s2 = x_DIV(s0, p2);
float r1 = 0;
for (I leaf = team; leaf < (I)1; leaf += 1) {
float a1[V] = {};
#pragma unroll 2
for (I turn = 0; turn < 6; turn++) {
const I col = turn * 64 + t * V;
const I e = row * COLUMNS + col;
const int n = V;
float t0[V];
load(t0, tile0 + col, true, V);
float v0[V]; EACH v0[j] = x_SUB(t0[j], s2);
float v1[V]; EACH v1[j] = x_MUL(v0[j], v0[j]);
EACH a1[j] += v1[j];
}
r1 = fold(a1);
}
const float s3 = r1;
const float s4 = x_DIV(s3, p2);
const float s6 = x_ADD(s4, p3);
const float s7 = x_RSQRT(s6);
for (I leaf = team; leaf < (I)1; leaf += 1) {
#pragma unroll 2
for (I turn = 0; turn < 6; turn++) {
const I col = turn * 64 + t * V;
const I e = row * COLUMNS + col;
const int n = V;
float t0[V];
load(t0, tile0 + col, true, V);
float v0[V]; EACH v0[j] = x_SUB(t0[j], s2);
float v2[V]; EACH v2[j] = x_MUL(v0[j], s7);
float t1[V];
load(t1, p4 + col, all_even, n);
float v3[V]; EACH v3[j] = x_MUL(v2[j], t1[j]);
float t2[V];
load(t2, p5 + col, all_even, n);
float v4[V]; EACH v4[j] = x_ADD(v3[j], t2[j]);
{ float w[V]; EACH w[j] = v4[j]; store(p6 + e, w, all_even, n); }
}
}
if (team == 0 && t == 0) {
p7[row] = s2;
p8[row] = s7;
}
}
/* 256 */

extern "C" __global__ void __launch_bounds__(1024) cb_k1(uint64_t p0, uint64_t p1, const float *__restrict__ p2, const float *__restrict__ p3, const float *__restrict__ p4, const float *__restrict__ p5, const float *__restrict__ p6, float *p7) {
const bool all_even = ((((size_t)p4 | (size_t)p5 | (size_t)p6) & 15)) == 0;
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = 384;
__shared__ __align__(16) float slots[2][1][4096];
const unsigned quad = threadIdx.x % 16, slot = threadIdx.x / 16;
const I col = (blockIdx.x * (I)16 + quad) * V, block = blockIdx.y;
const int n = V;
float c[1] = {}, b[1] = {};
int turn = 0;
const I begin = block * (I)p1, wanted = begin + (I)p1;
const I end = wanted < ROWS ? wanted : ROWS;
#pragma unroll 1
for (I first = begin; first < end; first += 64, turn ^= 1) {
const I row = first + slot, e = row * COLUMNS + col;
if (row < end && col < COLUMNS) {
float c4[V] = {};
const float s2 = p2[row];
const float s7 = p3[row];
float t0[V];
load(t0, p4 + e, all_even, n);
float v0[V]; EACH v0[j] = x_SUB(t0[j], s2);
float v2[V]; EACH v2[j] = x_MUL(v0[j], s7);
float t1[V];
load(t1, p5 + col, all_even, n);
float v3[V]; EACH v3[j] = x_MUL(v2[j], t1[j]);
float t2[V];
load(t2, p6 + col, all_even, n);
float v4[V]; EACH v4[j] = x_ADD(v3[j], t2[j]);
EACH c4[j] += v4[j];
store(slots[turn][0] + (slot * 16 + quad) * V, c4, true, V);
}
__syncthreads();
const bool ends = first + 64 >= end;
const int left = ends ? end - first : 64;
#pragma unroll
for (int i = 0; i < 1; i++) {
const int at = i * 1024 + threadIdx.x;
if (at >= 64) continue;
const float *const from = &slots[turn][0][0] + at / 64 * 4096 + at % 64;
float sum = c[i];
#pragma unroll 8
for (int r = 0; r < left; r++) sum += from[r * 64];
c[i] = sum;
if (ends || (first + 64 - begin) % 128 == 0) {
if (at / 64 == 0) b[i] += sum, c[i] = 0;
}
}
}
#pragma unroll
for (int i = 0; i < 1; i++) {
const int at = i * 1024 + threadIdx.x;
if (at >= 64) continue;
const I column = blockIdx.x * (I)64 + at % 64;
if (column >= COLUMNS) continue;
if (at / 64 == 0) p7[block * COLUMNS + column] = b[i];
}
}
/* 1024 */

extern "C" __global__ void __launch_bounds__(64) cb_k2(uint64_t p0, const float *__restrict__ p1, float *p2, uint64_t p3) {
const unsigned col = blockIdx.x * 64 + threadIdx.x, n = (unsigned)p0;
if (col >= n) return;
float sum = 0;
#pragma unroll 16
for (unsigned block = 0; block < (unsigned)p3; block++) sum += p1[block * n + col];
narrow(&p2[col], sum);
}
/* 64 */

