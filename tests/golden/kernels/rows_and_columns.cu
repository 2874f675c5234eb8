// compute capability 8.0, 77824 bytes beside the arena
// group 0: cb_k0<<<(512, 1, 1), 256>>>(0x2000, input 3+0, input 0+0, arena+0, 0x43c00000, 0x3727c5ac, input 1+0, input 2+0, arena+12582912, arena+25362432, arena+25395200, extra+0, extra+32768)
// group 0: cb_k1<<<(384, 1, 1), 128>>>(0x2000, 0xc00, extra+0, extra+32768, arena+0, input 1+0, input 2+0, extra+65536)
// group 0: cb_k2<<<(1, 1, 1), 64>>>(extra+65536, 0x40, 0xc00, 0x30, output 0+0)
// group 1: cb_k3<<<(64, 1, 1), 128>>>(0x2000, arena+12582912, arena+0, 0x40000000, 0x80, arena+25362432, arena+25395200, input 1+0, 0x43c00000, input 3+0, output 1+0, arena+25165824, arena+25264128)
// group 1: cb_k4<<<(6, 2, 1), 64>>>(0x180, arena+25165824, output 2+0, 0x40, arena+25264128, output 3+0, 0x40)

#include "prelude.cuh"

#include "mixed.cuh"

extern "C" __global__ void __launch_bounds__(256) cb_k0(uint64_t p0, const float *__restrict__ p1, const float *__restrict__ p2, float *p3, float p4, float p5, const float *__restrict__ p6, const float *__restrict__ p7, float *p8, float *p9, float *p10, float *p11, float *p12) {
const bool all_even = ((((size_t)p1 | (size_t)p2 | (size_t)p6 | (size_t)p7) & 15)) == 0;
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = 384;
const unsigned t = threadIdx.x % 16, team = threadIdx.x / 16 % 1, slot = threadIdx.x / 16;
const I row = blockIdx.x * (I)16 + slot;
if (row >= ROWS) return;
__shared__ __align__(16) float tiles6[16][384];
float *const tile6 = tiles6[slot];
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
float t1[V];
load(t1, p2 + e, all_even, n);
float v0[V]; EACH v0[j] = x_MUL(t0[j], t1[j]);
{ float w[V]; EACH w[j] = v0[j]; store(p3 + e, w, true, n); }
EACH a0[j] += v0[j];
}
r0 = fold(a0);
}
const float s0 = r0;
const float s2 = x_DIV(s0, p4);
float r1 = 0;
for (I leaf = team; leaf < (I)1; leaf += 1) {
float a1[V] = {};
#pragma unroll 2
for (I turn = 0; turn < 6; turn++) {
const I col = turn * 64 + t * V;
const I e = row * COLUMNS + col;
const int n = V;
float t2[V];
load(t2, p3 + e, true, n);
float v1[V]; EACH v1[j] = x_SUB(t2[j], s2);
float v2[V]; EACH v2[j] = x_MUL(v1[j], v1[j]);
EACH a1[j] += v2[j];
{ float w[V]; EACH w[j] = v1[j]; store(tile6 + col, w, true, V); }
}
r1 = fold(a1);
}
const float s3 = r1;
const float s4 = x_DIV(s3, p4);
const float s6 = x_ADD(s4, p5);
const float s7 = x_RSQRT(s6);
for (I leaf = team; leaf < (I)1; leaf += 1) {
#pragma unroll 2
for (I turn = 0; turn < 6; turn++) {
const I col = turn * 64 + t * V;
const I e = row * COLUMNS + col;
const int n = V;
float t6[V];
load(t6, tile6 + col, true, V);
float v3[V]; EACH v3[j] = x_MUL(t6[j], s7);
float t3[V];
load(t3, p6 + col, all_even, n);
float v4[V]; EACH v4[j] = x_MUL(v3[j], t3[j]);
float t4[V];
load(t4, p7 + col, all_even, n);
float v5[V]; EACH v5[j] = x_ADD(v4[j], t4[j]);
{ float w[V]; EACH w[j] = v5[j]; store(p8 + e, w, true, n); }
}
}
if (team == 0 && t == 0) {
narrow(&p9[row], s2);
narrow(&p10[row], s7);
p11[row] = s2;
p12[row] = s7;
}
}
/* 256 */

extern "C" __global__ void __launch_bounds__(128) cb_k1(uint64_t p0, uint64_t p1, const float *__restrict__ p2, const float *__restrict__ p3, float *p4, const float *__restrict__ p5, const float *__restrict__ p6, float *p7) {
const bool all_even = ((((size_t)p5 | (size_t)p6) & 15)) == 0;
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = 384;
const unsigned t = threadIdx.x % 16;
const I run = blockIdx.x * (I)8 + threadIdx.x / 16;
if (run >= (I)p1) return;
float a2[V] = {};
const I first = run * (I)1024 + t * V, last = run * (I)1024 + (I)1024;
#pragma unroll 4
for (I e = first; e < last && e < ROWS * COLUMNS; e += 64) {
const I row = e / COLUMNS, col = e - row * COLUMNS;
const int n = V;
const float s2 = p2[row];
const float s7 = p3[row];
float t2[V];
load(t2, p4 + e, true, n);
float v1[V]; EACH v1[j] = x_SUB(t2[j], s2);
float v3[V]; EACH v3[j] = x_MUL(v1[j], s7);
float t3[V];
load(t3, p5 + col, all_even, n);
float v4[V]; EACH v4[j] = x_MUL(v3[j], t3[j]);
float t4[V];
load(t4, p6 + col, all_even, n);
float v5[V]; EACH v5[j] = x_ADD(v4[j], t4[j]);
float v6[V]; EACH v6[j] = x_MUL(v5[j], v5[j]);
EACH a2[j] += v6[j];
}
{ const float sum = fold(a2);
if (t == 0) p7[run] = sum; }
}
/* 128 */

extern "C" __global__ void __launch_bounds__(64) cb_k2(const float *__restrict__ p0, uint64_t p1, uint64_t p2, uint64_t p3, float *p4) {
__shared__ float part[64];
float s8;
{ counter leaves = {};
#pragma unroll 1
for (uint64_t i = threadIdx.x * p1; i < (threadIdx.x + 1) * p1 && i < p2; i++) leaves.push(p0[i]);
part[threadIdx.x] = leaves.sum();
__syncthreads();
s8 = pairs_of(part, (int)p3); }
if (threadIdx.x) return;
narrow(&p4[0], s8);
}
/* 64 */

extern "C" __global__ void __launch_bounds__(128) cb_k3(uint64_t p0, const float *__restrict__ p1, const float *__restrict__ p2, float p3, uint64_t p4, const float *__restrict__ p5, const float *__restrict__ p6, const float *__restrict__ p7, float p8, const float *__restrict__ p9, float *p10, float *p11, float *p12) {
const bool all_even = ((((size_t)p7 | (size_t)p9 | (size_t)p10) & 15)) == 0;
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = 384;
__shared__ __align__(16) float staged0[3072];
ahead<float, 4, 6, 128> ahead0;
__shared__ __align__(16) float staged1[3072];
ahead<float, 4, 6, 128> ahead1;
__shared__ float kept7[8];
__shared__ float kept10[8];
float sums3[1][V] = {}, runs3[1][V] = {};
float sums4[1][V] = {}, runs4[1][V] = {};
const float s2 = x_MUL(1.0f, p3);
const I block = blockIdx.x;
const I begin = block * (I)p4, wanted = begin + (I)p4;
const I end = wanted < ROWS ? wanted : ROWS;
if (begin < end) {
const I from = begin * COLUMNS;
const int left = end - begin < 8 ? end - begin : 8;
ahead0.fetch(p1 + from, left * (int)(COLUMNS / 4), true);
ahead1.fetch(p2 + from, left * (int)(COLUMNS / 4), true);
}
for (I first = begin; first < end; first += 8) {
const int left = end - first < 8 ? end - first : 8;
__syncthreads();
ahead0.put(staged0, left * (int)(COLUMNS / 4));
ahead1.put(staged1, left * (int)(COLUMNS / 4));
__syncthreads();
const I next = first + 8;
if (next < end) {
const I from = next * COLUMNS;
const int left = end - next < 8 ? end - next : 8;
ahead0.fetch(p1 + from, left * (int)(COLUMNS / 4), true);
ahead1.fetch(p2 + from, left * (int)(COLUMNS / 4), true);
}
{
const int place = threadIdx.x / 16;
const bool works = place < left;
const int slot = works ? place : left - 1;
const unsigned t = threadIdx.x % 16, team = works ? threadIdx.x / 16 % 1 : 1;
const I row = first + slot;
const float s3 = widen(p5[row]);
const float s4 = widen(p6[row]);
float r0 = 0;
float r1 = 0;
for (I leaf = team; leaf < (I)1; leaf += 1) {
float a0[V] = {};
float a1[V] = {};
#pragma unroll 2
for (I turn = 0; turn < 6; turn++) {
const I col = turn * 64 + t * V;
const I e = row * COLUMNS + col;
const int n = V;
float t0[V];
load(t0, staged0 + slot * COLUMNS + col, true, V);
float v0[V]; EACH v0[j] = x_MUL(s2, t0[j]);
float t1[V];
load(t1, staged1 + slot * COLUMNS + col, true, V);
float v1[V]; EACH v1[j] = x_SUB(t1[j], s3);
float t2[V];
load(t2, p7 + col, all_even, n);
float v2[V]; EACH v2[j] = x_MUL(v0[j], t2[j]);
EACH a0[j] += v2[j];
float v3[V]; EACH v3[j] = x_MUL(v1[j], v2[j]);
EACH a1[j] += v3[j];
}
r0 = fold(a0);
r1 = fold(a1);
}
const float s5 = r0;
const float s7 = x_DIV(s5, p8);
const float s8 = r1;
const float s9 = x_MUL(s8, s4);
const float s10 = x_DIV(s9, p8);
if (team == 0 && t == 0) {
kept7[slot] = s7;
kept10[slot] = s10;
}
}
__syncthreads();
#pragma unroll
for (int chunk = 0; chunk < 1; chunk++) {
const I col = (chunk * 128 + threadIdx.x) * V;
if (col >= COLUMNS) continue;
float (&c3)[V] = sums3[chunk], (&b3)[V] = runs3[chunk];
float (&c4)[V] = sums4[chunk], (&b4)[V] = runs4[chunk];
#pragma unroll 2
for (int r = 0; r < left; r++) {
const I row = first + r, e = row * COLUMNS + col;
const int n = V;
const float s3 = widen(p5[row]);
const float s4 = widen(p6[row]);
const float s7 = kept7[r];
const float s10 = kept10[r];
float t0[V];
load(t0, staged0 + r * COLUMNS + col, true, V);
float v0[V]; EACH v0[j] = x_MUL(s2, t0[j]);
float t1[V];
load(t1, staged1 + r * COLUMNS + col, true, V);
float v1[V]; EACH v1[j] = x_SUB(t1[j], s3);
float t2[V];
load(t2, p7 + col, all_even, n);
float v2[V]; EACH v2[j] = x_MUL(v0[j], t2[j]);
float v4[V]; EACH v4[j] = x_MUL(v1[j], s4);
float v5[V]; EACH v5[j] = x_SUB(v2[j], s7);
float v6[V]; EACH v6[j] = x_MUL(v4[j], s10);
float v7[V]; EACH v7[j] = x_SUB(v5[j], v6[j]);
float v8[V]; EACH v8[j] = x_MUL(v7[j], s4);
float v9[V]; EACH v9[j] = x_MUL(v0[j], v4[j]);
EACH c3[j] += v9[j];
EACH c4[j] += v0[j];
float t5[V];
load(t5, p9 + e, all_even, n);
float v10[V]; EACH v10[j] = x_MUL(v8[j], t5[j]);
{ float w[V]; EACH w[j] = v10[j]; store(p10 + e, w, all_even, n); }
if ((row - begin) % 128 == 127 || row + 1 == end) {
}
}
}
}
#pragma unroll
for (int chunk = 0; chunk < 1; chunk++) {
const I col = (chunk * 128 + threadIdx.x) * V;
const int n = V;
if (col >= COLUMNS) continue;
float (&c3)[V] = sums3[chunk], (&b3)[V] = runs3[chunk];
store(p11 + block * COLUMNS + col, c3, true, n);
float (&c4)[V] = sums4[chunk], (&b4)[V] = runs4[chunk];
store(p12 + block * COLUMNS + col, c4, true, n);
}
}
/* 128 */

extern "C" __global__ void __launch_bounds__(64) cb_k4(uint64_t p0, const float *__restrict__ p1, float *p2, uint64_t p3, const float *__restrict__ p4, float *p5, uint64_t p6) {
const unsigned col = blockIdx.x * 64 + threadIdx.x, n = (unsigned)p0;
if (col >= n) return;
if (blockIdx.y == 0) {
float sum = 0;
#pragma unroll 4
for (unsigned block = 0; block < (unsigned)p3; block++) sum += p1[block * n + col];
narrow(&p2[col], sum);
}
if (blockIdx.y == 1) {
float sum = 0;
#pragma unroll 4
for (unsigned block = 0; block < (unsigned)p6; block++) sum += p4[block * n + col];
narrow(&p5[col], sum);
}
}
/* 64 */

