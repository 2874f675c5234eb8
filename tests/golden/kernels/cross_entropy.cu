// compute capability 8.0, 512 bytes beside the arena
// group 0: cb_k0<<<(1, 1, 1), 256>>>(0x1, arena+0)
// group 1: cb_k1<<<(1, 1, 1), 256>>>(0x40, arena+256, input 1+0, arena+0)
// group 2: cb_k2<<<(1, 1, 1), 128>>>(0x1, 0x40, 0x1, arena+256, extra+0)
// group 2: cb_k3<<<(1, 1, 1), 32>>>(extra+0, 0x1, arena+0)
// group 3: cb_k4<<<(1, 1, 1), 256>>>(input 1+0, failure, 0x40, 0x1f4, 0x5, 0xffffffffffffff9c)
// group 3: cb_k5<<<(4, 1, 1), 256>>>(0x40, arena+0, input 1+0, 0xffffffffffffff9c, input 0+0, output 1+0, arena+256)
// group 4: cb_k6<<<(1, 1, 1), 128>>>(0x1, 0x40, 0x1, arena+0, arena+256, extra+256)
// group 4: cb_k7<<<(1, 1, 1), 32>>>(arena+0, extra+256, 0x1, output 0+0)

#include "prelude.cuh"

extern "C" __global__ void __launch_bounds__(256) cb_k0(uint64_t p0, int64_t *p1) {
typedef uint32_t I;
const I i = blockIdx.x * (I)256 + threadIdx.x;
if (i >= (I)p0) return;
p1[i] = (int64_t)0xFFFFFFFFFFFFFF9Cull;
}
/* 256 */

extern "C" __global__ void __launch_bounds__(256) cb_k1(uint64_t p0, uint8_t *p1, const int64_t *__restrict__ p2, const int64_t *__restrict__ p3) {
typedef uint32_t I;
const I i = blockIdx.x * (I)256 + threadIdx.x;
if (i >= (I)p0) return;
const I o0 = i;
const auto x0 = widen(p2[o0]);
I o1 = 0;
{ I rest = i;
}
const auto x1 = widen(p3[o1]);
narrow(&p1[i], p_NE(x0, x1));
}
/* 256 */

extern "C" __global__ void __launch_bounds__(128) cb_k2(uint64_t p0, uint64_t p1, uint64_t p2, const uint8_t *__restrict__ p3, float *p4) {
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = (I)p1;
const unsigned t = threadIdx.x % 16;
const I run = blockIdx.x * (I)8 + threadIdx.x / 16;
if (run >= (I)p2) return;
float a0[V] = {};
const I first = run * (I)1024 + t * V, last = run * (I)1024 + (I)1024;
#pragma unroll 4
for (I e = first; e < last && e < ROWS * COLUMNS; e += 64) {
const I row = e / COLUMNS, col = e - row * COLUMNS;
const int n = V;
float t0[V];
load(t0, p3 + e, true, n);
EACH a0[j] += t0[j];
}
{ const float sum = fold(a0);
if (t == 0) p4[run] = sum; }
}
/* 128 */

extern "C" __global__ void __launch_bounds__(32) cb_k3(const float *__restrict__ p0, uint64_t p1, float *p2) {
float s0;
s0 = pairs_of_warp(p0, 0, p1);
if (threadIdx.x) return;
narrow(&p2[0], s0);
}
/* 32 */

extern "C" __global__ void __launch_bounds__(256) cb_k4(const int64_t *__restrict__ p0, failure *p1, uint64_t p2, uint64_t p3, uint64_t p4, uint64_t p5) {
typedef uint32_t I;
__shared__ uint64_t wrong[256];
uint64_t first = ~(uint64_t)0;
#pragma unroll 4
for (I i = threadIdx.x; i < (I)p2; i += 256) {
const int64_t at = p0[i];
const bool is_wrong = at < 0 || at >= (int64_t)p3;
if (is_wrong && at != (int64_t)p5 && i < first) first = i;
}
wrong[threadIdx.x] = first;
#pragma unroll 1
for (unsigned n = 128; n > 0; n /= 2) {
__syncthreads();
if (threadIdx.x < n && wrong[threadIdx.x + n] < first) wrong[threadIdx.x] = first = wrong[threadIdx.x + n];
}
if (threadIdx.x == 0 && first != ~(uint64_t)0 && p1->instr == 0) {
p1->index = p0[first];
p1->instr = (uint32_t)p4;
}
}
/* 256 */

extern "C" __global__ void __launch_bounds__(256) cb_k5(uint64_t p0, const float *__restrict__ p1, const int64_t *__restrict__ p2, uint64_t p3, const float *__restrict__ p4, float *p5, float *p6) {
const bool all_even = ((((size_t)p4 | (size_t)p5) & 15)) == 0;
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = 500;
const unsigned t = threadIdx.x % 16, team = threadIdx.x / 16 % 1, slot = threadIdx.x / 16;
const I row = blockIdx.x * (I)16 + slot;
if (row >= ROWS) return;
__shared__ __align__(16) float tiles[8000];
float *const tile0 = tiles + (0 + slot) * 500;
float *const tile2 = tiles + (0 + slot) * 500;
float taken5 = 0;
const float s11 = widen(p1[0]);
const float s12 = x_DIV(1.0f, s11);
const float s14 = x_NEG(s12);
const int64_t x0 = p2[row], i0 = x0 == (int64_t)p3 ? -1 : x0;
const float s0 = (float)i0;
const float s8 = x_GE(s0, 0.0f);
int r0 = INT32_MIN;
for (I leaf = team; leaf < (I)1; leaf += 1) {
int k0 = INT32_MIN;
const I first = leaf * 1024 + t * V;
#pragma unroll 2
for (I col = first; col < COLUMNS && col < first + 1024; col += 64) {
const I e = row * COLUMNS + col;
const int n = V;
float t0[V];
load(t0, p4 + e, all_even, n);
store(tile0 + col, t0, true, V);
EACH k0 = max(k0, key_of((t0[j])));
EACH if ((int64_t)(col + j) == i0) taken5 = t0[j];
}
r0 = fold_largest<V>(k0);
}
const float s5 = __shfl_sync(team_mask<V>(), taken5, (int)(i0 / V), 16);
const float s1 = of_key(r0);
float r1 = 0;
for (I leaf = team; leaf < (I)1; leaf += 1) {
float a1[V] = {};
const I first = leaf * 1024 + t * V;
#pragma unroll 2
for (I col = first; col < COLUMNS && col < first + 1024; col += 64) {
const I e = row * COLUMNS + col;
const int n = V;
float t0[V];
load(t0, tile0 + col, true, V);
float v0[V]; EACH v0[j] = x_SUB(t0[j], s1);
float v1[V]; EACH v1[j] = x_EXP(v0[j]);
EACH a1[j] += v1[j];
{ float w[V]; EACH w[j] = v1[j]; store(tile2 + col, w, true, V); }
}
r1 = fold(a1);
}
const float s2 = r1;
const float s3 = x_LOG(s2);
const float s4 = x_ADD(s1, s3);
const float s6 = x_SUB(s4, s5);
const float s9 = x_SELECT(s8, s6, 0.0f);
const float s13 = x_DIV(s12, s2);
for (I leaf = team; leaf < (I)1; leaf += 1) {
const I first = leaf * 1024 + t * V;
#pragma unroll 2
for (I col = first; col < COLUMNS && col < first + 1024; col += 64) {
const I e = row * COLUMNS + col;
const int n = V;
float t2[V];
load(t2, tile2 + col, true, V);
float v2[V]; EACH v2[j] = x_MUL(t2[j], s13);
float v3[V]; EACH v3[j] = (int64_t)(col + j) == i0 ? x_ADD(v2[j], s14) : v2[j];
float v4[V]; EACH v4[j] = x_KEEP(s8, v3[j]);
{ float w[V]; EACH w[j] = v4[j]; store(p5 + e, w, all_even, n); }
}
}
if (team == 0 && t == 0) {
narrow(&p6[row], s9);
}
}
/* 256 */

extern "C" __global__ void __launch_bounds__(128) cb_k6(uint64_t p0, uint64_t p1, uint64_t p2, const float *__restrict__ p3, const float *__restrict__ p4, float *p5) {
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = (I)p1;
const unsigned t = threadIdx.x % 16;
const I run = blockIdx.x * (I)8 + threadIdx.x / 16;
if (run >= (I)p2) return;
const float s1 = widen(p3[0]);
float a0[V] = {};
const I first = run * (I)1024 + t * V, last = run * (I)1024 + (I)1024;
#pragma unroll 4
for (I e = first; e < last && e < ROWS * COLUMNS; e += 64) {
const I row = e / COLUMNS, col = e - row * COLUMNS;
const int n = V;
float t0[V];
load(t0, p4 + e, true, n);
EACH a0[j] += t0[j];
}
{ const float sum = fold(a0);
if (t == 0) p5[run] = sum; }
}
/* 128 */

extern "C" __global__ void __launch_bounds__(32) cb_k7(const float *__restrict__ p0, const float *__restrict__ p1, uint64_t p2, float *p3) {
const float s1 = widen(p0[0]);
float s0;
s0 = pairs_of_warp(p1, 0, p2);
if (threadIdx.x) return;
const float s2 = x_DIV(s0, s1);
narrow(&p3[0], s2);
}
/* 32 */

