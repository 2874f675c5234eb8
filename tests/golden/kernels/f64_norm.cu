// compute capability 8.0, 0 bytes beside the arena
// group 0: cb_k0<<<(1, 1, 1), 256>>>(0x32, arena+8192)
// group 1: cb_k1<<<(20, 1, 1), 128>>>(0x32, input 1+0, input 0+0, arena+0, arena+17152, arena+16896, arena+8192)
// group 2: cb_k2<<<(4, 1, 1), 256>>>(0x3e8, arena+8192, arena+0)
// group 3: cb_k3<<<(1, 1, 1), 128>>>(0x3e8, arena+8192, 0x3e8, output 0+0)
// group 4: cb_k4<<<(1, 1, 1), 256>>>(0x1, arena+16384)
// group 5: cb_k5<<<(1, 1, 1), 256>>>(0x1, arena+16640)
// group 6: cb_k6<<<(1, 1, 1), 256>>>(0x1, arena+16384, arena+16640)
// group 7: cb_k7<<<(1, 1, 1), 256>>>(0x1, arena+16640)
// group 8: cb_k8<<<(4, 1, 1), 256>>>(0x3e8, arena+8192, arena+16384, arena+16640)
// group 9: cb_k6<<<(4, 1, 1), 256>>>(0x3e8, arena+8192, arena+0)
// group 10: cb_k9<<<(20, 1, 1), 128>>>(0x32, input 0+0, arena+17152, arena+8192, input 1+0, arena+16896, arena+0)
// group 10: cb_k10<<<(50, 1, 1), 128>>>(0x14, 0x32, arena+17152, arena+8192, input 1+0, arena+16896, output 1+0, arena+16384)

#include "prelude.cuh"

extern "C" __global__ void __launch_bounds__(256) cb_k0(uint64_t p0, double *p1) {
typedef uint32_t I;
const I i = blockIdx.x * (I)256 + threadIdx.x;
if (i >= (I)p0) return;
p1[i] = cb_f64_of_bits(0x0ull);
}
/* 256 */

extern "C" __global__ void __launch_bounds__(128) cb_k1(uint64_t p0, const double *__restrict__ p1, const double *__restrict__ p2, double *p3, double *p4, double *p5, const double *__restrict__ p6) {
typedef uint32_t I;
const I row = blockIdx.x, COLUMNS = (I)p0;
typedef double T;
__shared__ T shared[2][128];
const I at = row * COLUMNS;
T mean = 0, spread = 0;
for (I c = threadIdx.x; c < COLUMNS; c += blockDim.x) mean += widen(p1[at + c]);
mean = block_sum(mean, shared[0]) / (T)COLUMNS;
for (I c = threadIdx.x; c < COLUMNS; c += blockDim.x) { const T d = (T)widen(p1[at + c]) - mean; spread += d * d; }
spread = block_sum(spread, shared[1]) / (T)COLUMNS;
const T rstd = (T)1 / p_SQRT(spread + (T)0x1.4f8b588e368f1p-17);
if (threadIdx.x == 0) {
narrow(&p4[row], rstd);
narrow(&p5[row], mean);
}
for (I c = threadIdx.x; c < COLUMNS; c += blockDim.x) {
const T d = (T)widen(p1[at + c]) - mean;
narrow(&p3[at + c], d * rstd * (T)widen(p2[c]) + (T)widen(p6[c]));
}
}
/* 128 */

extern "C" __global__ void __launch_bounds__(256) cb_k2(uint64_t p0, double *p1, const double *__restrict__ p2) {
typedef uint32_t I;
const I i = blockIdx.x * (I)256 + threadIdx.x;
if (i >= (I)p0) return;
const I o0 = i;
const auto x0 = widen(p2[o0]);
narrow(&p1[i], p_SQUARE(x0));
}
/* 256 */

extern "C" __global__ void __launch_bounds__(128) cb_k3(uint64_t p0, const double *__restrict__ p1, uint64_t p2, double *p3) {
typedef uint32_t I;
const I i = blockIdx.x, first = 0, count = (I)p0;
__shared__ double part[128];
I from = 0;
{ I rest = i;
}
double sum = 0;
#pragma unroll 8
for (I r = first + threadIdx.x; r < first + count; r += 128) {
I o = 0;
{ I rest = r;
o += rest % (I)50 * (I)1; rest /= (I)50;
o += rest * (I)50;
}
const double x = widen(p1[from + o]);
sum += x;
}
part[threadIdx.x] = sum;
for (unsigned n = 64; n > 0; n /= 2) {
__syncthreads();
if (threadIdx.x < n) part[threadIdx.x] += part[threadIdx.x + n];
}
if (threadIdx.x) return;
sum = part[0];
sum = sum / (double)p2;
narrow(&p3[i], sum);
}
/* 128 */

extern "C" __global__ void __launch_bounds__(256) cb_k4(uint64_t p0, double *p1) {
typedef uint32_t I;
const I i = blockIdx.x * (I)256 + threadIdx.x;
if (i >= (I)p0) return;
p1[i] = cb_f64_of_bits(0x3FF0000000000000ull);
}
/* 256 */

extern "C" __global__ void __launch_bounds__(256) cb_k5(uint64_t p0, double *p1) {
typedef uint32_t I;
const I i = blockIdx.x * (I)256 + threadIdx.x;
if (i >= (I)p0) return;
p1[i] = cb_f64_of_bits(0x3F50624DD2F1A9FCull);
}
/* 256 */

extern "C" __global__ void __launch_bounds__(256) cb_k6(uint64_t p0, double *p1, const double *__restrict__ p2) {
typedef uint32_t I;
const I i = blockIdx.x * (I)256 + threadIdx.x;
if (i >= (I)p0) return;
const I o0 = i;
const auto x0 = widen(p1[o0]);
const I o1 = i;
const auto x1 = widen(p2[o1]);
narrow(&p1[i], p_MUL(x0, x1));
}
/* 256 */

extern "C" __global__ void __launch_bounds__(256) cb_k7(uint64_t p0, double *p1) {
typedef uint32_t I;
const I i = blockIdx.x * (I)256 + threadIdx.x;
if (i >= (I)p0) return;
p1[i] = cb_f64_of_bits(0x4000000000000000ull);
}
/* 256 */

extern "C" __global__ void __launch_bounds__(256) cb_k8(uint64_t p0, double *p1, const double *__restrict__ p2, const double *__restrict__ p3) {
typedef uint32_t I;
const I i = blockIdx.x * (I)256 + threadIdx.x;
if (i >= (I)p0) return;
I o0 = 0;
{ I rest = i;
rest /= (I)50;
}
const auto x0 = widen(p2[o0]);
I o1 = 0;
{ I rest = i;
rest /= (I)50;
}
const auto x1 = widen(p3[o1]);
narrow(&p1[i], p_MUL(x0, x1));
}
/* 256 */

extern "C" __global__ void __launch_bounds__(128) cb_k9(uint64_t p0, const double *__restrict__ p1, const double *__restrict__ p2, const double *__restrict__ p3, const double *__restrict__ p4, const double *__restrict__ p5, double *p6) {
typedef uint32_t I;
const I row = blockIdx.x, COLUMNS = (I)p0;
typedef double T;
__shared__ T shared[2][128];
const I at = row * COLUMNS;
const I stat = row;
T level = 0, along = 0;
for (I c = threadIdx.x; c < COLUMNS; c += blockDim.x) {
const T g = widen(p3[at + c]);
T d = widen(p4[at + c]);
d = d - (T)widen(p5[stat]);
const T h = d * (T)widen(p2[stat]);
const T v = g * (T)widen(p1[c]);
level += v, along += v * h;
}
level = block_sum(level, shared[0]) / (T)COLUMNS;
along = block_sum(along, shared[1]) / (T)COLUMNS;
for (I c = threadIdx.x; c < COLUMNS; c += blockDim.x) {
const T g = widen(p3[at + c]);
T d = widen(p4[at + c]);
d = d - (T)widen(p5[stat]);
const T h = d * (T)widen(p2[stat]);
const T v = g * (T)widen(p1[c]);
narrow(&p6[at + c], (T)widen(p2[stat]) * (v - level - h * along));
}
}
/* 128 */

extern "C" __global__ void __launch_bounds__(128) cb_k10(uint64_t p0, uint64_t p1, const double *__restrict__ p2, const double *__restrict__ p3, const double *__restrict__ p4, const double *__restrict__ p5, double *p6, double *p7) {
typedef uint32_t I;
const I row = blockIdx.x, COLUMNS = (I)p0;
typedef double T;
__shared__ T shared[2][128];
const I at = row * COLUMNS;
T dweight = 0, dbias = 0;
for (I stat = threadIdx.x; stat < COLUMNS; stat += blockDim.x) {
const I place = stat * (I)p1 + row;
const T g = widen(p3[place]);
T d = widen(p4[place]);
d = d - (T)widen(p5[stat]);
const T h = d * (T)widen(p2[stat]);
dweight += g * h, dbias += g;
}
dweight = block_sum(dweight, shared[0]);
dbias = block_sum(dbias, shared[1]);
if (threadIdx.x == 0) {
narrow(&p6[row], dweight);
narrow(&p7[row], dbias);
}
}
/* 128 */

