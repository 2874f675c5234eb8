/* matmul.cuh: products of 16-bit matrices on tensor cores (mma.sync, sm_80 and newer). A block of 2
 * x COLUMNS/32 warps computes ROWS x COLUMNS elements of the result, each warp ROWS/2 x 32 of them.
 * It works on slices of 32 of the inner axis, double-buffered in shared memory: while one slice is
 * multiplied, cp.async loads the next. Slices have the layout of the matrix, and ldmatrix
 * transposes them where needed, so transposed matrices cost nothing. An element of the result is
 * one f32 sum in the order of the inner axis, sixteen at a time, rounded once. So neither the tile
 * size nor the layout of a matrix changes its bits. */

enum { SLICE = 32, PAD = 8 }; /* elements; padding puts the rows of ldmatrix in different banks */

inline uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* Copies `given` bytes to shared memory and fills up to 16 bytes with zeros. */
inline void copy16(void *to, const void *from, int given) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(given)
                 : "memory");
}
inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
inline void await_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

template <bool TURNED> inline void load_matrices(uint32_t (&to)[4], const void *row) {
    if constexpr (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(shared_address(row))
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(shared_address(row))
                     : "memory");
}

/* sum += a b, where a is 16 x 16 and b is 16 x 8. */
#define MULTIPLY(T, name)                                                                   \
    inline void multiply(float (&sum)[4], const uint32_t (&a)[4], const uint32_t *b, T) {   \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name                 \
                     ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])               \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));   \
    }
MULTIPLY(half_t, "f16")
MULTIPLY(bhalf_t, "bf16")

/* One of the two matrices. Its axes are the outer one (rows or columns of the result) and the inner
 * one. ALONG: the inner axis is contiguous. A line of a tile is contiguous: SLICE elements of the
 * inner axis if ALONG, else SIZE elements of the outer axis. */
template <class T, class I, int SIZE, bool ALONG, int THREADS> struct side {
    enum { LINES = ALONG ? SIZE : SLICE, LINE = ALONG ? SLICE : SIZE, STEP = LINE + PAD };
    enum { ELEMENTS = LINES * STEP };
    const T *from;      /* element 0 of the matrix */
    I outer, inner;     /* sizes of the axes */
    I line_step, step;  /* strides between lines, and within a line: 1 if `even` */
    I first;            /* this block's first element of the outer axis */
    bool even;          /* 16-byte accesses are allowed */

    inline void fetch(T *tile, I slice) const {
#pragma unroll
        for (int k = 0; k < LINES * LINE / 8 / THREADS; k++) {
            const int at = threadIdx.x + k * THREADS, line = at / (LINE / 8), in = at % (LINE / 8) * 8;
            const I l = (ALONG ? first : slice) + line, e = (ALONG ? slice : first) + in;
            const I lines = ALONG ? outer : inner, elements = ALONG ? inner : outer;
            const int n = l < lines && e < elements ? (int)min(elements - e, (I)8) : 0;
            T *const to = tile + line * STEP + in;
            const T *const source = n ? from + l * line_step + e * step : from;
            if (even) {
                copy16(to, source, 2 * n);
            } else {
                T x[8];
                uint4 all;
#pragma unroll
                for (int j = 0; j < 8; j++) x[j].bits = j < n ? source[j * step].bits : 0;
                memcpy(&all, x, sizeof all);
                *(uint4 *)to = all;
            }
        }
    }
    /* Loads four 8 x 8 matrices: 16 elements of the outer axis from `at` on by 16 of the inner axis
     * from `k` on. Their order is rows first for the left matrix, k first for the right one. */
    template <bool LEFT> inline void load(uint32_t (&to)[4], const T *tile, int at, int k) const {
        const int lane = threadIdx.x % 32, low = lane / 8 % 2 * 8, high = lane / 16 * 8;
        const int o = at + (LEFT ? low : high), i = k + (LEFT ? high : low);
        const int line = (ALONG ? o : i) + lane % 8, in = ALONG ? i : o;
        load_matrices<!ALONG>(to, tile + line * STEP + in);
    }
};

/* Computes the block's elements of the product of x and y, from (x.first, y.first) on, into `out`,
 * whose rows have y.outer elements. */
template <int ROWS, int COLUMNS, class T, class I, class X, class Y>
inline void product(T *out, const X &x, const Y &y, bool out_even) {
    enum { ACROSS = COLUMNS / 32, THREADS = 64 * ACROSS, TALL = ROWS / 32, OUT = COLUMNS + PAD };
    enum { BUFFER = X::ELEMENTS + Y::ELEMENTS };
    __shared__ __align__(16) T memory[2 * BUFFER > ROWS * OUT ? 2 * BUFFER : ROWS * OUT];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / ACROSS * (ROWS / 2), column = warp % ACROSS * 32;
    const bool copies = x.even || y.even;
    float sum[TALL][4][4] = {};
    const auto fetch = [&](int turn, I slice) {
        x.fetch(memory + turn * BUFFER, slice);
        y.fetch(memory + turn * BUFFER + X::ELEMENTS, slice);
        if (copies) end_copies();
    };
    if (x.inner) fetch(0, 0);
#pragma unroll 1
    for (I slice = 0, turn = 0; slice < x.inner; slice += SLICE, turn ^= 1) {
        const T *const mine = memory + turn * BUFFER;
        if (copies) await_copies();
        __syncthreads(); /* the slice has arrived, and no thread reads the other buffer any more */
        if (slice + SLICE < x.inner) fetch(turn ^ 1, slice + SLICE);
#pragma unroll
        for (int k = 0; k < SLICE; k += 16) {
            uint32_t a[4], b[2][4];
#pragma unroll
            for (int j = 0; j < 2; j++)
                y.template load<false>(b[j], mine + X::ELEMENTS, column + 16 * j, k);
#pragma unroll
            for (int i = 0; i < TALL; i++) {
                x.template load<true>(a, mine, row + 16 * i, k);
#pragma unroll
                for (int j = 0; j < 4; j++) multiply(sum[i][j], a, &b[j / 2][j % 2 * 2], T());
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TALL; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                T *const to = memory + (row + 16 * i + 8 * half + lane / 4) * OUT + column + 8 * j +
                              lane % 4 * 2;
                narrow(&to[0], sum[i][j][2 * half]);
                narrow(&to[1], sum[i][j][2 * half + 1]);
            }
    __syncthreads();
#pragma unroll 4
    for (int at = threadIdx.x; at < ROWS * COLUMNS / 8; at += THREADS) {
        const int r = at / (COLUMNS / 8), c = at % (COLUMNS / 8) * 8;
        if (x.first + r >= x.outer || y.first + c >= y.outer) continue;
        const int n = (int)min(y.outer - (y.first + c), (I)8);
        T *const to = out + (x.first + r) * y.outer + y.first + c;
        const T *const from = memory + r * OUT + c;
        if (out_even && n == 8) *(uint4 *)to = *(const uint4 *)from;
        else
            for (int j = 0; j < n; j++) to[j] = from[j];
    }
}
