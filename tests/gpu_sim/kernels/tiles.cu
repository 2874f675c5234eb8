// Kernels on tiles in shared memory: a transpose, a product with copies on the way, one on tensor cores.
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

extern "C" __global__ void transpose(const float *x, float *y, int rows, int columns) {
    __shared__ float tile[32][33];
    int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (r + k < rows && c < columns) tile[threadIdx.y + k][threadIdx.x] = x[(u64)(r + k) * columns + c];
    __syncthreads();
    int to_c = blockIdx.y * 32 + threadIdx.x, to_r = blockIdx.x * 32 + threadIdx.y;
    for (int k = 0; k < 32; k += 8)
        if (to_r + k < columns && to_c < rows) y[(u64)(to_r + k) * rows + to_c] = tile[threadIdx.x][threadIdx.y + k];
}

__device__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
__device__ void copy16(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ void wait_for_all_but_one() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

// C = A B; 64 x 64 a block of 256 threads, 16 deep, in two buffers. Sizes are multiples of these.
extern "C" __global__ void __launch_bounds__(256) sgemm(const float *__restrict__ a, const float *__restrict__ b,
                                                        float *__restrict__ c, int m, int n, int depth) {
    __shared__ __align__(16) float as[2][64][16], bs[2][16][64];
    int t = threadIdx.x, tx = t % 16, ty = t / 16;
    float sum[4][4] = {};
    const float *from_a = a + (u64)(blockIdx.y * 64 + t / 4) * depth + t % 4 * 4;
    const float *from_b = b + (u64)(t / 16) * n + blockIdx.x * 64 + t % 16 * 4;
    copy16(&as[0][t / 4][t % 4 * 4], from_a), copy16(&bs[0][t / 16][t % 16 * 4], from_b);
    end_group();
    for (int k = 0, s = 0; k < depth; k += 16, s ^= 1) {
        if (k + 16 < depth) {
            copy16(&as[s ^ 1][t / 4][t % 4 * 4], from_a + k + 16);
            copy16(&bs[s ^ 1][t / 16][t % 16 * 4], from_b + (u64)(k + 16) * n);
        }
        end_group();
        wait_for_all_but_one();
        __syncthreads();
        for (int q = 0; q < 16; q++) {
            float4 v = *(float4 *)&bs[s][q][tx * 4];
            for (int i = 0; i < 4; i++) {
                float u = as[s][ty * 4 + i][q];
                sum[i][0] = fmaf(u, v.x, sum[i][0]), sum[i][1] = fmaf(u, v.y, sum[i][1]);
                sum[i][2] = fmaf(u, v.z, sum[i][2]), sum[i][3] = fmaf(u, v.w, sum[i][3]);
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        *(float4 *)&c[(u64)(blockIdx.y * 64 + ty * 4 + i) * n + blockIdx.x * 64 + tx * 4] =
            make_float4(sum[i][0], sum[i][1], sum[i][2], sum[i][3]);
}

// C = A B in bf16 with f32 sums: 32 x 16 a block of four warps, each of 16 x 8, 16 deep. B has rows of n.
extern "C" __global__ void __launch_bounds__(128) bf16_gemm(const uint4 *__restrict__ a, const uint4 *__restrict__ b,
                                                            float *__restrict__ c, int m, int n, int depth) {
    __shared__ __align__(16) u16 as[32][16], bs[16][16];
    int t = threadIdx.x, warp = t / 32, lane = t % 32, row = warp / 2 * 16, column = warp % 2 * 8;
    float d[4] = {0, 0, 0, 0};
    for (int k = 0; k < depth; k += 16) {
        if (t < 64) *(uint4 *)&as[t / 2][t % 2 * 8] = a[((u64)(blockIdx.y * 32 + t / 2) * depth + k) / 8 + t % 2];
        else if (t < 96)
            *(uint4 *)&bs[(t - 64) / 2][t % 2 * 8] = b[((u64)(k + (t - 64) / 2) * n + blockIdx.x * 16) / 8 + t % 2];
        __syncthreads();
        u32 ra[4], rb[2];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(ra[0]), "=r"(ra[1]), "=r"(ra[2]), "=r"(ra[3])
                     : "r"(shared_address(&as[row + lane % 16][lane / 16 * 8])));
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(rb[0]), "=r"(rb[1])
                     : "r"(shared_address(&bs[lane % 16][column])));
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                     "{%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(ra[0]), "r"(ra[1]), "r"(ra[2]), "r"(ra[3]), "r"(rb[0]), "r"(rb[1]));
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        c[(u64)(blockIdx.y * 32 + row + lane / 4 + i / 2 * 8) * n + blockIdx.x * 16 + column + lane % 4 * 2 + i % 2] =
            d[i];
}
