// compute capability 8.0, 256 bytes beside the arena
// group 0: cb_k0<<<(8, 1, 1), 256>>>(0x1, 0x2000, 0x39000000, 0x3e3504f3, 0x40000000, 0x800, input 0+0, arena+196608, arena+131072)
// group 0: cb_k1<<<(1, 1, 1), 32>>>(0x39000000, 0x3e3504f3, 0x40000000, arena+229376)
// group 1: cb_k2<<<(4, 1, 1), 256>>>(arena+196608, input 1+0, arena+0, 0x40, 0x20, 0x40, 0x1, 0x1, 0x0, 0x1, 0x800, 0x0, 0x1, 0x800, 0x20, 0x1, 0x20, 0x1)
// group 2: cb_k3<<<(16, 1, 1), 256>>>(0x100, arena+0, 0xff800000, arena+65536)
// group 3: cb_k2<<<(4, 1, 1), 256>>>(arena+65536, input 2+0, arena+0, 0x40, 0x40, 0x20, 0x1, 0x1, 0x0, 0x1, 0x1000, 0x0, 0x1, 0x800, 0x40, 0x1, 0x1, 0x20)
// group 4: cb_k4<<<(1, 1, 1), 128>>>(0x1, 0x2000, 0x8, arena+0, arena+131072, arena+163840, extra+0)
// group 4: cb_k5<<<(1, 1, 1), 32>>>(extra+0, 0x8, 0x2000, output 0+0)
// group 5: cb_k2<<<(4, 1, 1), 256>>>(arena+163840, input 2+0, arena+0, 0x40, 0x20, 0x40, 0x1, 0x1, 0x0, 0x1, 0x800, 0x0, 0x1, 0x800, 0x20, 0x1, 0x20, 0x1)
// group 6: cb_k2<<<(4, 1, 1), 256>>>(arena+65536, arena+163840, output 3+0, 0x40, 0x40, 0x20, 0x1, 0x1, 0x0, 0x1, 0x1000, 0x0, 0x1, 0x800, 0x1, 0x40, 0x1, 0x20)
// group 7: cb_k6<<<(16, 1, 1), 256>>>(0x100, arena+0, arena+65536, arena+131072)
// group 8: cb_k2<<<(4, 1, 1), 256>>>(arena+131072, input 1+0, arena+0, 0x40, 0x40, 0x20, 0x1, 0x1, 0x0, 0x1, 0x1000, 0x0, 0x1, 0x800, 0x40, 0x1, 0x1, 0x20)
// group 9: cb_k2<<<(4, 1, 1), 256>>>(arena+131072, arena+196608, output 2+0, 0x40, 0x40, 0x20, 0x1, 0x1, 0x0, 0x1, 0x1000, 0x0, 0x1, 0x800, 0x1, 0x40, 0x1, 0x20)
// group 10: cb_k7<<<(8, 1, 1), 256>>>(0x1, 0x2000, arena+229376, 0x800, arena+0, output 1+0)

#include "prelude.cuh"

extern "C" __global__ void __launch_bounds__(256) cb_k0(uint64_t p0, uint64_t p1, float p2, float p3, float p4, uint64_t p5, const float *__restrict__ p6, float *p7, float *p8) {
const bool all_even = ((((size_t)p6) & 15)) == 0;
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = (I)p1;
const float s3 = x_MUL(1.0f, p2);
const float s5 = x_MUL(s3, p4);
#pragma unroll
for (int turn = 0; turn < 1; turn++) {
const I q = blockIdx.x * (I)256 + (turn * 256 + threadIdx.x);
if (q >= (I)p5) return;
const I row = 0, col = q * V, e = col;
const int n = V;
float t0[V];
load(t0, p6 + e, all_even, n);
float v0[V]; EACH v0[j] = x_MUL(t0[j], p3);
{ float w[V]; EACH w[j] = v0[j]; store(p7 + e, w, true, n); }
{ float w[V]; EACH w[j] = s5; store(p8 + e, w, true, n); }
}
}
/* 256 */

extern "C" __global__ void __launch_bounds__(32) cb_k1(float p0, float p1, float p2, float *p3) {
const float s3 = x_MUL(1.0f, p0);
const float s5 = x_MUL(s3, p2);
if (threadIdx.x) return;
narrow(&p3[0], p1);
}
/* 32 */

extern "C" __global__ void __launch_bounds__(256) cb_k2(const float *__restrict__ p0, const float *__restrict__ p1, float *p2, uint64_t p3, uint64_t p4, uint64_t p5, uint64_t p6, uint64_t p7, uint64_t p8, uint64_t p9, uint64_t p10, uint64_t p11, uint64_t p12, uint64_t p13, uint64_t p14, uint64_t p15, uint64_t p16, uint64_t p17) {
typedef uint32_t I;
typedef float T;
__shared__ T x_tile[2][16][68], y_tile[2][16][68];
const I N = (I)p3, K = (I)p4, M = (I)p5;
const uint32_t across = (uint32_t)p6, tile = blockIdx.x % (uint32_t)p7;
const I batch = blockIdx.x / (uint32_t)p7;
const I first_row = tile / across * 64, first_column = tile % across * 64;
I x_at = 0;
{ I rest = batch;
x_at += rest % (I)p9 * (I)p8; rest /= (I)p9;
x_at += rest * (I)p10;
}
I y_at = 0;
{ I rest = batch;
y_at += rest % (I)p12 * (I)p11; rest /= (I)p12;
y_at += rest * (I)p13;
}
const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
const I x_outer = (I)p14, x_inner = (I)p15;
const bool x_along = x_inner == 1;
const I x_o = x_along ? threadIdx.x / 16 : threadIdx.x % 64;
const I x_k = x_along ? threadIdx.x % 16 : threadIdx.x / 64;
const I x_o_step = x_along ? 16 : 0, x_k_step = x_along ? 0 : 4;
T xs[4];
const I y_outer = (I)p16, y_inner = (I)p17;
const bool y_along = y_inner == 1;
const I y_o = y_along ? threadIdx.x / 16 : threadIdx.x % 64;
const I y_k = y_along ? threadIdx.x % 16 : threadIdx.x / 64;
const I y_o_step = y_along ? 16 : 0, y_k_step = y_along ? 0 : 4;
T ys[4];
const auto fetch = [&](I slice) {
#pragma unroll
for (int j = 0; j < 4; j++) {
const I xo = first_row + x_o + j * x_o_step, xk = slice + x_k + j * x_k_step;
const I yo = first_column + y_o + j * y_o_step, yk = slice + y_k + j * y_k_step;
xs[j] = xo < N && xk < K ? (T)widen(p0[x_at + xo * x_outer + xk * x_inner]) : (T)0;
ys[j] = yo < M && yk < K ? (T)widen(p1[y_at + yo * y_outer + yk * y_inner]) : (T)0;
}
};
const auto put = [&](int buffer) {
#pragma unroll
for (int j = 0; j < 4; j++) {
x_tile[buffer][x_k + j * x_k_step][x_o + j * x_o_step] = xs[j];
y_tile[buffer][y_k + j * y_k_step][y_o + j * y_o_step] = ys[j];
}
};
T sum[4][4] = {};
for (I slice = 0, turn = 1; slice < K + 16; slice += 16, turn ^= 1) {
const bool goes_on = slice < K;
if (goes_on) fetch(slice);
if (slice > 0) {
#pragma unroll 4
for (int k = 0; k < 16; k++) {
T a[4], b[4];
#pragma unroll
for (int j = 0; j < 4; j++) a[j] = x_tile[turn][k][ty * 4 + j], b[j] = y_tile[turn][k][tx * 4 + j];
#pragma unroll
for (int r = 0; r < 4; r++)
#pragma unroll
for (int j = 0; j < 4; j++) sum[r][j] = mad(a[r], b[j], sum[r][j]);
}
}
if (goes_on) put(turn ^ 1);
__syncthreads();
}
for (int r = 0; r < 4; r++)
for (int j = 0; j < 4; j++) {
const I at_row = first_row + ty * 4 + r, at_column = first_column + tx * 4 + j;
if (at_row < N && at_column < M) narrow(&p2[(batch * N + at_row) * M + at_column], sum[r][j]);
}
}
/* 256 */

extern "C" __global__ void __launch_bounds__(256) cb_k3(uint64_t p0, const float *__restrict__ p1, float p2, float *p3) {
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = 64;
const unsigned t = threadIdx.x % 16, team = threadIdx.x / 16 % 1, slot = threadIdx.x / 16;
const I row = blockIdx.x * (I)16 + slot;
if (row >= ROWS) return;
__shared__ __align__(16) float tiles[1024];
float *const tile3 = tiles + (0 + slot) * 64;
float *const tile4 = tiles + (0 + slot) * 64;
int r0 = INT32_MIN;
for (I leaf = team; leaf < (I)1; leaf += 1) {
int k0 = INT32_MIN;
#pragma unroll 2
for (I turn = 0; turn < 1; turn++) {
const I col = turn * 64 + t * V;
const I e = row * COLUMNS + col;
const int n = V;
float t1[V];
EACH t1[j] = ONE_WHERE((int64_t)((e + j) % (I)64) <= (int64_t)((e + j) / (I)64 % (I)64) + (int64_t)0);
float t0[V];
load(t0, p1 + e, true, n);
float v0[V]; EACH v0[j] = x_SELECT(t1[j], t0[j], p2);
EACH k0 = max(k0, key_of((v0[j])));
{ float w[V]; EACH w[j] = v0[j]; store(tile3 + col, w, true, V); }
}
r0 = fold_largest<V>(k0);
}
const float s1 = of_key(r0);
float r1 = 0;
for (I leaf = team; leaf < (I)1; leaf += 1) {
float a1[V] = {};
#pragma unroll 2
for (I turn = 0; turn < 1; turn++) {
const I col = turn * 64 + t * V;
const I e = row * COLUMNS + col;
const int n = V;
float t3[V];
load(t3, tile3 + col, true, V);
float v1[V]; EACH v1[j] = x_SUB(t3[j], s1);
float v2[V]; EACH v2[j] = x_EXP(v1[j]);
EACH a1[j] += v2[j];
{ float w[V]; EACH w[j] = v2[j]; store(tile4 + col, w, true, V); }
}
r1 = fold(a1);
}
const float s2 = r1;
const float s3 = x_RECIPROCAL(s2);
for (I leaf = team; leaf < (I)1; leaf += 1) {
#pragma unroll 2
for (I turn = 0; turn < 1; turn++) {
const I col = turn * 64 + t * V;
const I e = row * COLUMNS + col;
const int n = V;
float t4[V];
load(t4, tile4 + col, true, V);
float v3[V]; EACH v3[j] = x_MUL(t4[j], s3);
{ float w[V]; EACH w[j] = v3[j]; store(p3 + e, w, true, n); }
}
}
}
/* 256 */

extern "C" __global__ void __launch_bounds__(128) cb_k4(uint64_t p0, uint64_t p1, uint64_t p2, const float *__restrict__ p3, const float *__restrict__ p4, float *p5, float *p6) {
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
float v0[V]; EACH v0[j] = x_MUL(t0[j], t0[j]);
EACH a0[j] += v0[j];
float t1[V];
load(t1, p4 + e, true, n);
float v1[V]; EACH v1[j] = x_MUL(t1[j], t0[j]);
{ float w[V]; EACH w[j] = v1[j]; store(p5 + e, w, true, n); }
}
{ const float sum = fold(a0);
if (t == 0) p6[run] = sum; }
}
/* 128 */

extern "C" __global__ void __launch_bounds__(32) cb_k5(const float *__restrict__ p0, uint64_t p1, uint64_t p2, float *p3) {
float s0;
s0 = pairs_of_warp(p0, 0, p1) / (float)p2;
if (threadIdx.x) return;
narrow(&p3[0], s0);
}
/* 32 */

extern "C" __global__ void __launch_bounds__(256) cb_k6(uint64_t p0, const float *__restrict__ p1, const float *__restrict__ p2, float *p3) {
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = 64;
const unsigned t = threadIdx.x % 16, team = threadIdx.x / 16 % 1, slot = threadIdx.x / 16;
const I row = blockIdx.x * (I)16 + slot;
if (row >= ROWS) return;
__shared__ __align__(16) float tiles[2048];
float *const tile0 = tiles + (0 + slot) * 64;
float *const tile1 = tiles + (16 + slot) * 64;
float r0 = 0;
for (I leaf = team; leaf < (I)1; leaf += 1) {
float a0[V] = {};
#pragma unroll 2
for (I turn = 0; turn < 1; turn++) {
const I col = turn * 64 + t * V;
const I e = row * COLUMNS + col;
const int n = V;
float t0[V];
load(t0, p1 + e, true, n);
store(tile0 + col, t0, true, V);
float t1[V];
load(t1, p2 + e, true, n);
store(tile1 + col, t1, true, V);
float v0[V]; EACH v0[j] = x_MUL(t0[j], t1[j]);
EACH a0[j] += v0[j];
}
r0 = fold(a0);
}
const float s0 = r0;
for (I leaf = team; leaf < (I)1; leaf += 1) {
#pragma unroll 2
for (I turn = 0; turn < 1; turn++) {
const I col = turn * 64 + t * V;
const I e = row * COLUMNS + col;
const int n = V;
float t0[V];
load(t0, tile0 + col, true, V);
float v1[V]; EACH v1[j] = x_SUB(t0[j], s0);
float t1[V];
load(t1, tile1 + col, true, V);
float v2[V]; EACH v2[j] = x_MUL(t1[j], v1[j]);
float t2[V];
EACH t2[j] = ONE_WHERE((int64_t)((e + j) % (I)64) <= (int64_t)((e + j) / (I)64 % (I)64) + (int64_t)0);
float v3[V]; EACH v3[j] = x_SELECT(t2[j], v2[j], 0.0f);
{ float w[V]; EACH w[j] = v3[j]; store(p3 + e, w, true, n); }
}
}
}
/* 256 */

extern "C" __global__ void __launch_bounds__(256) cb_k7(uint64_t p0, uint64_t p1, const float *__restrict__ p2, uint64_t p3, const float *__restrict__ p4, float *p5) {
const bool all_even = ((((size_t)p5) & 15)) == 0;
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = (I)p1;
const float s0 = widen(p2[0]);
#pragma unroll
for (int turn = 0; turn < 1; turn++) {
const I q = blockIdx.x * (I)256 + (turn * 256 + threadIdx.x);
if (q >= (I)p3) return;
const I row = 0, col = q * V, e = col;
const int n = V;
float t0[V];
load(t0, p4 + e, true, n);
float v0[V]; EACH v0[j] = x_MUL(t0[j], s0);
{ float w[V]; EACH w[j] = v0[j]; store(p5 + e, w, all_even, n); }
}
}
/* 256 */

