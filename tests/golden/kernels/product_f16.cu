// compute capability 8.0, 0 bytes beside the arena
// group 0: cb_k0<<<(4, 1, 1), 128>>>(input 0+0, input 1+0, output 0+0, 0x80, 0x40, 0x80, 0x2, 0x4, 0x0, 0x1, 0x0, 0x0, 0x1, 0x0, 0x40, 0x80)

#include "prelude.cuh"

#include "matmul.cuh"

extern "C" __global__ void __launch_bounds__(128) cb_k0(const half_t *__restrict__ p0, const half_t *__restrict__ p1, half_t *p2, uint64_t p3, uint64_t p4, uint64_t p5, uint64_t p6, uint64_t p7, uint64_t p8, uint64_t p9, uint64_t p10, uint64_t p11, uint64_t p12, uint64_t p13, uint64_t p14, uint64_t p15) {
typedef uint32_t I;
typedef half_t T;
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
const bool x_even = is_even(p0, 16);
const I x_line = (I)p14;
const I x_step = 1;
const side<T, I, 64, true, 128> x = {p0 + x_at, N, K, x_line, x_step, first_row, x_even};
const bool y_even = is_even(p1, 16);
const I y_line = (I)p15;
const I y_step = 1;
const side<T, I, 64, false, 128> y = {p1 + y_at, M, K, y_line, y_step, first_column, y_even};
const bool out_even = is_even(p2, 16);
product<64, 64, T, I>(p2 + batch * N * M, x, y, out_even);
}
/* 128 */

