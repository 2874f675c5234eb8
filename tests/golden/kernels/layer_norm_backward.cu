// compute capability 8.0, 36096 bytes beside the arena
// group 0: cb_k0<<<(128, 1, 1), 256>>>(0x800, 0x35aaaaab, 0x40000000, input 3+0, input 2+0, 0x43c00000, 0x3727c5ac, input 0+0, input 1+0, extra+3072, extra+11264, extra+19456, extra+27648)
// group 0: cb_k1<<<(6, 64, 1), 256>>>(0x800, 0x35aaaaab, 0x40000000, 0x20, extra+3072, extra+11264, extra+19456, extra+27648, input 3+0, input 2+0, input 0+0, input 1+0, arena+0, arena+98304, arena+196608)
// group 0: cb_k2<<<(6, 3, 1), 64>>>(0x180, arena+0, output 1+0, 0x40, arena+98304, output 2+0, 0x40, arena+196608, output 3+0, 0x40)
// group 0: cb_k3<<<(96, 1, 1), 128>>>(0x800, 0x300, 0x35aaaaab, 0x40000000, extra+3072, extra+11264, extra+19456, extra+27648, input 3+0, input 2+0, input 0+0, input 1+0, extra+0)
// group 0: cb_k4<<<(12, 1, 1), 32>>>(0x40, 0x300, extra+0, extra+35840)
// group 0: cb_k5<<<(1, 1, 1), 32>>>(0x35aaaaab, 0x40000000, extra+35840, 0xc, 0xc0000, output 0+0)

#include "prelude.cuh"

extern "C" __global__ void __launch_bounds__(256) cb_k0(uint64_t p0, float p1, float p2, const float *__restrict__ p3, const float *__restrict__ p4, float p5, float p6, const float *__restrict__ p7, const float *__restrict__ p8, float *p9, float *p10, float *p11, float *p12) {
const bool all_even = ((((size_t)p3 | (size_t)p4 | (size_t)p7 | (size_t)p8) & 15)) == 0;
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = 384;
const unsigned t = threadIdx.x % 16, team = threadIdx.x / 16 % 1, slot = threadIdx.x / 16;
const I row = blockIdx.x * (I)16 + slot;
if (row >= ROWS) return;
__shared__ __align__(16) float tiles[6144];
float *const tile7 = tiles + (0 + slot) * 384;
const float s11 = x_MUL(1.0f, p1);
const float s13 = x_MUL(s11, p2);
float r0 = 0;
for (I leaf = team; leaf < (I)1; leaf += 1) {
float a0[V] = {};
#pragma unroll 2
for (I turn = 0; turn < 6; turn++) {
const I col = turn * 64 + t * V;
const I e = row * COLUMNS + col;
const int n = V;
float t0[V];
load(t0, p3 + e, all_even, n);
float t1[V];
I o1_ = 0;
{ I rest = e;
o1_ += rest % (I)384 * (I)1; rest /= (I)384;
}
load(t1, p4 + o1_, all_even, n);
float v0[V]; EACH v0[j] = x_ADD(t0[j], t1[j]);
EACH a0[j] += v0[j];
{ float w[V]; EACH w[j] = v0[j]; store(tile7 + col, w, true, V); }
}
r0 = fold(a0);
}
const float s0 = r0;
const float s2 = x_DIV(s0, p5);
float r1 = 0;
for (I leaf = team; leaf < (I)1; leaf += 1) {
float a1[V] = {};
#pragma unroll 2
for (I turn = 0; turn < 6; turn++) {
const I col = turn * 64 + t * V;
const I e = row * COLUMNS + col;
const int n = V;
float t7[V];
load(t7, tile7 + col, true, V);
float v1[V]; EACH v1[j] = x_SUB(t7[j], s2);
float v2[V]; EACH v2[j] = x_MUL(v1[j], v1[j]);
EACH a1[j] += v2[j];
}
r1 = fold(a1);
}
const float s3 = r1;
const float s4 = x_DIV(s3, p5);
const float s6 = x_ADD(s4, p6);
const float s7 = x_RSQRT(s6);
float r2 = 0;
float r3 = 0;
for (I leaf = team; leaf < (I)1; leaf += 1) {
float a2[V] = {};
float a3[V] = {};
#pragma unroll 2
for (I turn = 0; turn < 6; turn++) {
const I col = turn * 64 + t * V;
const I e = row * COLUMNS + col;
const int n = V;
float t7[V];
load(t7, tile7 + col, true, V);
float v1[V]; EACH v1[j] = x_SUB(t7[j], s2);
float v3[V]; EACH v3[j] = x_MUL(v1[j], s7);
float t2[V];
load(t2, p7 + col, all_even, n);
float v4[V]; EACH v4[j] = x_MUL(v3[j], t2[j]);
float t3[V];
load(t3, p8 + col, all_even, n);
float v5[V]; EACH v5[j] = x_ADD(v4[j], t3[j]);
float v7[V]; EACH v7[j] = x_MUL(s13, v5[j]);
float v8[V]; EACH v8[j] = x_MUL(v7[j], t2[j]);
EACH a2[j] += v8[j];
float v9[V]; EACH v9[j] = x_MUL(v1[j], v8[j]);
EACH a3[j] += v9[j];
}
r2 = fold(a2);
r3 = fold(a3);
}
const float s14 = r2;
const float s15 = x_DIV(s14, p5);
const float s16 = r3;
const float s17 = x_MUL(s16, s7);
const float s18 = x_DIV(s17, p5);
if (team == 0 && t == 0) {
p9[row] = s2;
p10[row] = s7;
p11[row] = s15;
p12[row] = s18;
}
}
/* 256 */

extern "C" __global__ void __launch_bounds__(256) cb_k1(uint64_t p0, float p1, float p2, uint64_t p3, const float *__restrict__ p4, const float *__restrict__ p5, const float *__restrict__ p6, const float *__restrict__ p7, const float *__restrict__ p8, const float *__restrict__ p9, const float *__restrict__ p10, const float *__restrict__ p11, float *p12, float *p13, float *p14) {
const bool all_even = ((((size_t)p8 | (size_t)p9 | (size_t)p10 | (size_t)p11) & 15)) == 0;
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = 384;
__shared__ __align__(16) float slots[2][3][1024];
const unsigned quad = threadIdx.x % 16, slot = threadIdx.x / 16;
const I col = (blockIdx.x * (I)16 + quad) * V, block = blockIdx.y;
const int n = V;
const float s11 = x_MUL(1.0f, p1);
const float s13 = x_MUL(s11, p2);
float c[1] = {}, b[1] = {};
int turn = 0;
const I begin = block * (I)p3, wanted = begin + (I)p3;
const I end = wanted < ROWS ? wanted : ROWS;
#pragma unroll 1
for (I first = begin; first < end; first += 16, turn ^= 1) {
const I row = first + slot, e = row * COLUMNS + col;
if (row < end && col < COLUMNS) {
float c4[V] = {};
float c5[V] = {};
float c6[V] = {};
const float s2 = p4[row];
const float s7 = p5[row];
const float s15 = p6[row];
const float s18 = p7[row];
float t0[V];
load(t0, p8 + e, all_even, n);
float t1[V];
I o1_ = 0;
{ I rest = e;
o1_ += rest % (I)384 * (I)1; rest /= (I)384;
}
load(t1, p9 + o1_, all_even, n);
float v0[V]; EACH v0[j] = x_ADD(t0[j], t1[j]);
float v1[V]; EACH v1[j] = x_SUB(v0[j], s2);
float v3[V]; EACH v3[j] = x_MUL(v1[j], s7);
float t2[V];
load(t2, p10 + col, all_even, n);
float v4[V]; EACH v4[j] = x_MUL(v3[j], t2[j]);
float t3[V];
load(t3, p11 + col, all_even, n);
float v5[V]; EACH v5[j] = x_ADD(v4[j], t3[j]);
float v7[V]; EACH v7[j] = x_MUL(s13, v5[j]);
float v8[V]; EACH v8[j] = x_MUL(v7[j], t2[j]);
float v10[V]; EACH v10[j] = x_SUB(v8[j], s15);
float v11[V]; EACH v11[j] = x_MUL(v3[j], s18);
float v12[V]; EACH v12[j] = x_SUB(v10[j], v11[j]);
float v13[V]; EACH v13[j] = x_MUL(v12[j], s7);
float v14[V]; EACH v14[j] = x_MUL(v7[j], v3[j]);
EACH c4[j] += v14[j];
EACH c5[j] += v7[j];
EACH c6[j] += v13[j];
store(slots[turn][0] + (slot * 16 + quad) * V, c4, true, V);
store(slots[turn][1] + (slot * 16 + quad) * V, c5, true, V);
store(slots[turn][2] + (slot * 16 + quad) * V, c6, true, V);
}
__syncthreads();
const bool ends = first + 16 >= end;
const int left = ends ? end - first : 16;
#pragma unroll
for (int i = 0; i < 1; i++) {
const int at = i * 256 + threadIdx.x;
if (at >= 192) continue;
const float *const from = &slots[turn][0][0] + at / 64 * 1024 + at % 64;
float sum = c[i];
#pragma unroll 8
for (int r = 0; r < left; r++) sum += from[r * 64];
c[i] = sum;
if (ends || (first + 16 - begin) % 128 == 0) {
if (at / 64 == 2) b[i] += sum, c[i] = 0;
}
}
}
#pragma unroll
for (int i = 0; i < 1; i++) {
const int at = i * 256 + threadIdx.x;
if (at >= 192) continue;
const I column = blockIdx.x * (I)64 + at % 64;
if (column >= COLUMNS) continue;
if (at / 64 == 0) p12[block * COLUMNS + column] = c[i];
if (at / 64 == 1) p13[block * COLUMNS + column] = c[i];
if (at / 64 == 2) p14[block * COLUMNS + column] = b[i];
}
}
/* 256 */

extern "C" __global__ void __launch_bounds__(64) cb_k2(uint64_t p0, const float *__restrict__ p1, float *p2, uint64_t p3, const float *__restrict__ p4, float *p5, uint64_t p6, const float *__restrict__ p7, float *p8, uint64_t p9) {
const unsigned col = blockIdx.x * 64 + threadIdx.x, n = (unsigned)p0;
if (col >= n) return;
if (blockIdx.y == 0) {
float sum = 0;
#pragma unroll 16
for (unsigned block = 0; block < (unsigned)p3; block++) sum += p1[block * n + col];
narrow(&p2[col], sum);
}
if (blockIdx.y == 1) {
float sum = 0;
#pragma unroll 16
for (unsigned block = 0; block < (unsigned)p6; block++) sum += p4[block * n + col];
narrow(&p5[col], sum);
}
if (blockIdx.y == 2) {
float sum = 0;
#pragma unroll 16
for (unsigned block = 0; block < (unsigned)p9; block++) sum += p7[block * n + col];
narrow(&p8[col], sum);
}
}
/* 64 */

extern "C" __global__ void __launch_bounds__(128) cb_k3(uint64_t p0, uint64_t p1, float p2, float p3, const float *__restrict__ p4, const float *__restrict__ p5, const float *__restrict__ p6, const float *__restrict__ p7, const float *__restrict__ p8, const float *__restrict__ p9, const float *__restrict__ p10, const float *__restrict__ p11, float *p12) {
const bool all_even = ((((size_t)p8 | (size_t)p9 | (size_t)p10 | (size_t)p11) & 15)) == 0;
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = 384;
const unsigned t = threadIdx.x % 16;
const I run = blockIdx.x * (I)8 + threadIdx.x / 16;
if (run >= (I)p1) return;
const float s11 = x_MUL(1.0f, p2);
const float s13 = x_MUL(s11, p3);
float a4[V] = {};
const I first = run * (I)1024 + t * V, last = run * (I)1024 + (I)1024;
#pragma unroll 4
for (I e = first; e < last && e < ROWS * COLUMNS; e += 64) {
const I row = e / COLUMNS, col = e - row * COLUMNS;
const int n = V;
const float s2 = p4[row];
const float s7 = p5[row];
const float s15 = p6[row];
const float s18 = p7[row];
float t0[V];
load(t0, p8 + e, all_even, n);
float t1[V];
I o1_ = 0;
{ I rest = e;
o1_ += rest % (I)384 * (I)1; rest /= (I)384;
}
load(t1, p9 + o1_, all_even, n);
float v0[V]; EACH v0[j] = x_ADD(t0[j], t1[j]);
float v1[V]; EACH v1[j] = x_SUB(v0[j], s2);
float v3[V]; EACH v3[j] = x_MUL(v1[j], s7);
float t2[V];
load(t2, p10 + col, all_even, n);
float v4[V]; EACH v4[j] = x_MUL(v3[j], t2[j]);
float t3[V];
load(t3, p11 + col, all_even, n);
float v5[V]; EACH v5[j] = x_ADD(v4[j], t3[j]);
float v6[V]; EACH v6[j] = x_MUL(v5[j], v5[j]);
EACH a4[j] += v6[j];
}
{ const float sum = fold(a4);
if (t == 0) p12[run] = sum; }
}
/* 128 */

extern "C" __global__ void __launch_bounds__(32) cb_k4(uint64_t p0, uint64_t p1, const float *__restrict__ p2, float *p3) {
if (blockIdx.y == 0) {
const uint64_t first = blockIdx.x * p0, last = first + p0;
const float sum = pairs_of_warp(p2, first, last < p1 ? last : p1);
if (threadIdx.x == 0) p3[blockIdx.x] = sum;
}
}
/* 32 */

extern "C" __global__ void __launch_bounds__(32) cb_k5(float p0, float p1, const float *__restrict__ p2, uint64_t p3, uint64_t p4, float *p5) {
const float s11 = x_MUL(1.0f, p0);
const float s13 = x_MUL(s11, p1);
float s8;
s8 = pairs_of_warp(p2, 0, p3) / (float)p4;
if (threadIdx.x) return;
narrow(&p5[0], s8);
}
/* 32 */

