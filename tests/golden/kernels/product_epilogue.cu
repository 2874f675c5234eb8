// compute capability 8.0, 0 bytes beside the arena
// group 0: cb_k0<<<(2, 1, 1), 256>>>(input 0+0, input 1+0, arena+0, 0x40, 0x80, 0x60, 0x2, 0x2, 0x0, 0x1, 0x0, 0x0, 0x1, 0x0, 0x80, 0x1, 0x1, 0x60)
// group 1: cb_k1<<<(6, 1, 1), 256>>>(0x2, 0x600, arena+0, input 2+0, output 0+0)

#include "prelude.cuh"

extern "C" __global__ void __launch_bounds__(256) cb_k0(const float *__restrict__ p0, const float *__restrict__ p1, float *p2, uint64_t p3, uint64_t p4, uint64_t p5, uint64_t p6, uint64_t p7, uint64_t p8, uint64_t p9, uint64_t p10, uint64_t p11, uint64_t p12, uint64_t p13, uint64_t p14, uint64_t p15, uint64_t p16, uint64_t p17) {
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

extern "C" __global__ void __launch_bounds__(256) cb_k1(uint64_t p0, uint64_t p1, const float *__restrict__ p2, const float *__restrict__ p3, float *p4) {
const bool all_even = ((((size_t)p3 | (size_t)p4) & 15)) == 0;
typedef uint32_t I;
enum { V = 4 };
const I ROWS = (I)p0, COLUMNS = 3072;
#pragma unroll
for (int turn = 0; turn < 1; turn++) {
const I q = blockIdx.x * (I)256 + (turn * 256 + threadIdx.x);
if (q >= (I)p1) return;
const I row = q / (I)768, col = q % (I)768 * V, e = q * V;
const int n = V;
float t0[V];
load(t0, p2 + e, true, n);
float t1[V];
I o1_ = 0;
{ I rest = e;
o1_ += rest % (I)96 * (I)1; rest /= (I)96;
}
load(t1, p3 + o1_, all_even, n);
float v0[V]; EACH v0[j] = x_ADD(t0[j], t1[j]);
float v1[V]; EACH v1[j] = x_RELU(v0[j]);
{ float w[V]; EACH w[j] = v1[j]; store(p4 + e, w, all_even, n); }
}
}
/* 256 */

