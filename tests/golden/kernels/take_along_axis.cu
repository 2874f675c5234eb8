// compute capability 8.0, 0 bytes beside the arena
// group 0: cb_k0<<<(1, 1, 1), 256>>>(input 1+0, failure, 0x30, 0x32, 0x1, 0x0)
// group 0: cb_k1<<<(1, 1, 1), 256>>>(0x30, input 1+0, input 0+0, output 0+0, 0x32)

#include "prelude.cuh"

extern "C" __global__ void __launch_bounds__(256) cb_k0(const int64_t *__restrict__ p0, failure *p1, uint64_t p2, uint64_t p3, uint64_t p4, uint64_t p5) {
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

extern "C" __global__ void __launch_bounds__(256) cb_k1(uint64_t p0, const int64_t *__restrict__ p1, const float *__restrict__ p2, float *p3, uint64_t p4) {
typedef uint32_t I;
const I i = blockIdx.x * (I)256 + threadIdx.x;
if (i >= (I)p0) return;
const int64_t r = p1[i];
const I INNER = 1;
const I outer = i / (INNER * (I)3);
const bool is_there = r >= 0 && r < (int64_t)p4;
const I from = is_there ? (outer * (I)50 + (I)r) * INNER + i % INNER : 0;
p3[i] = p2[from];
}
/* 256 */

