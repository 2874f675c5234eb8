/* orthogonal.cuh: kernels of Muon and NorMuon (optim/orthogonal.h), for a batch of matrices of one
 * shape; optim.cuh comes first. `stride` is the number of elements from one matrix of scratch to
 * the next. Sums have a fixed order. */
enum { TILE = 64, SLICE = 16 }; /* a block computes a tile of a product, 4 x 4 elements a thread */

static __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
static __forceinline__ double fused(double a, double b, double c) { return __fma_rn(a, b, c); }

/* Moves the momentum and sets x, where the iteration starts. */
template <class T>
static __forceinline__ void begin(const part &p, T *x, double *sums, uint64_t stride) {
    const T *const grad = (const T *)p.row->arrays.grad;
    T *const m = (T *)p.row->arrays.state[0], *const to = x + p.matrix * stride;
    const T rest = (T)p.factor[CB_MUON_REST], scale = (T)p.factor[CB_GRAD_SCALE];
    const bool ahead = p.factor[CB_MUON_AHEAD] != 0;
    double sum = 0;
#pragma unroll 4
    for (int64_t i = p.begin + threadIdx.x; i < p.end; i += THREADS) {
        const T g = scale * grad[i], moved = m[i] + rest * (g - m[i]);
        const T start = ahead ? moved + rest * (g - moved) : moved;
        m[i] = moved;
        to[i] = start;
        sum += (double)start * (double)start;
    }
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <class T>
static __forceinline__ void scale(const part &p, T *x, const double *sums, uint64_t stride,
                                  uint64_t chunks) {
    const double norm = sqrt(sum_of(sums + p.matrix * chunks, chunks));
    const double least = p.factor[CB_MUON_LEAST];
    const T by = (T)(1 / (norm < least ? least : norm)); /* NaN stays */
    T *const at = x + p.matrix * stride;
#pragma unroll 4
    for (int64_t i = p.begin + threadIdx.x; i < p.end; i += THREADS) at[i] *= by;
}

/* out = x y, [n,k] times [k,m]. A turned operand is stored as [k,n] or [m,k]. With `gram`,
 * out = a I + b gram + c x y. */
template <class T>
static __forceinline__ void multiply(const T *x, const T *y, T *out, int64_t n, int64_t k,
                                     int64_t m, bool x_turned, bool y_turned, const T *gram,
                                     const double *factor, uint32_t tile) {
    __shared__ T xs[SLICE][TILE + 4], ys[SLICE][TILE + 4];
    const uint32_t across = (uint32_t)((m + TILE - 1) / TILE);
    const int64_t row = (int64_t)(tile / across) * TILE, column = (int64_t)(tile % across) * TILE;
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const int along = threadIdx.x % SLICE, line = threadIdx.x / SLICE; /* contiguous inner axis */
    const int beside = threadIdx.x % TILE, deep = threadIdx.x / TILE;  /* contiguous outer axis */
    T sum[4][4] = {};
#pragma unroll 1
    for (int64_t slice = 0; slice < k; slice += SLICE) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int xo = x_turned ? beside : line + j * (THREADS / SLICE),
                      xi = x_turned ? deep + j * (THREADS / TILE) : along,
                      yo = y_turned ? line + j * (THREADS / SLICE) : beside,
                      yi = y_turned ? along : deep + j * (THREADS / TILE);
            const int64_t r = row + xo, i = slice + xi, c = column + yo, l = slice + yi;
            xs[xi][xo] = r < n && i < k ? x[x_turned ? i * n + r : r * k + i] : (T)0;
            ys[yi][yo] = c < m && l < k ? y[y_turned ? c * k + l : l * m + c] : (T)0;
        }
        __syncthreads();
#pragma unroll 4
        for (int i = 0; i < SLICE; i++) {
            T a[4], b[4];
#pragma unroll
            for (int j = 0; j < 4; j++) a[j] = xs[i][ty * 4 + j], b[j] = ys[i][tx * 4 + j];
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int j = 0; j < 4; j++) sum[r][j] = fused(a[r], b[j], sum[r][j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int64_t at_row = row + ty * 4 + r, at_column = column + tx * 4 + j;
            if (at_row >= n || at_column >= m) continue;
            const int64_t at = at_row * m + at_column;
            T value = sum[r][j];
            if (gram) {
                value = (T)factor[CB_MUON_B] * gram[at] + (T)factor[CB_MUON_C] * value;
                if (at_row == at_column) value += (T)factor[CB_MUON_A];
            }
            out[at] = value;
        }
}

/* Divides a line of x by sqrt(v) + eps; writes the sum of its squares. A block for each line. */
template <class T>
static __forceinline__ void divide_line(const device_row *row, const double *factor, T *x,
                                        double *sums, uint64_t width, int64_t line) {
    T *const v = (T *)row->arrays.state[1];
    const double beta = factor[CB_MUON_BETA];
    double sum = 0, left = 0;
    for (uint64_t i = threadIdx.x; i < width; i += THREADS) sum += (double)x[i] * (double)x[i];
    sum = sum_of_block(sum);
    const T moved = (T)(beta * (double)v[line] + (1 - beta) * sum / (double)width);
    const T by = (T)(1 / (sqrt((double)moved) + factor[CB_MUON_ROW_EPS]));
    for (uint64_t i = threadIdx.x; i < width; i += THREADS) {
        const T new_x = x[i] * by;
        x[i] = new_x;
        left += (double)new_x * (double)new_x;
    }
    left = sum_of_block(left); /* all threads have read v */
    if (threadIdx.x == 0) v[line] = moved, sums[blockIdx.x] = left;
}

/* `height` 0: the update is not normalized by rows. */
template <class T>
static __forceinline__ void apply(const part &p, const T *x, const double *sums, uint64_t stride,
                                  uint64_t height, double size) {
    const T *const from = x + p.matrix * stride;
    T *const param = (T *)p.row->arrays.param;
    double rate = p.factor[CB_MUON_RATE] * (height ? 1 : size);
    if (height) {
        const double square = sum_of(sums + p.matrix * height, height);
        if (square != 0) rate *= size / sqrt(square); /* NaN stays */
    }
    const T keep = (T)p.factor[CB_MUON_KEEP], by = (T)rate;
#pragma unroll 4
    for (int64_t i = p.begin + threadIdx.x; i < p.end; i += THREADS)
        param[i] = param[i] * keep - by * from[i];
}

#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, 4)
#define COMMON                                                                               \
    const device_row *rows, const double *factors, const failure *failed,                    \
        const device_words *words
#define KERNELS(T, type)                                                                     \
    KERNEL cb_begin_##type(COMMON, T *x, double *sums, uint64_t stride, uint64_t chunks) {   \
        if (is_off(failed, words)) return;                                                   \
        begin(part_of(rows, factors, chunks), x, sums, stride);                              \
    }                                                                                        \
    KERNEL cb_scale_##type(COMMON, T *x, double *sums, uint64_t stride, uint64_t chunks) {   \
        if (is_off(failed, words)) return;                                                   \
        scale(part_of(rows, factors, chunks), x, sums, stride, chunks);                      \
    }                                                                                        \
    KERNEL cb_gram_##type(COMMON, const T *x, T *gram, uint64_t stride, uint64_t height,     \
                          uint64_t width, uint64_t tiles) {                                  \
        if (is_off(failed, words)) return;                                                   \
        const uint32_t matrix = blockIdx.x / (uint32_t)tiles,                                \
            tile = blockIdx.x % (uint32_t)tiles;                                             \
        const bool is_tall = height > width;                                                 \
        const uint64_t side = is_tall ? width : height;                                      \
        const T *const of = x + matrix * stride;                                             \
        multiply<T>(of, of, gram + matrix * side * side, side, is_tall ? height : width,     \
                    side, is_tall, !is_tall, nullptr, nullptr, tile);                        \
    }                                                                                        \
    KERNEL cb_mix_##type(COMMON, const T *gram, T *square, uint64_t side, uint64_t tiles) {  \
        if (is_off(failed, words)) return;                                                   \
        const uint32_t matrix = blockIdx.x / (uint32_t)tiles,                                \
            tile = blockIdx.x % (uint32_t)tiles;                                             \
        const T *const of = gram + matrix * side * side;                                     \
        multiply<T>(of, of, square + matrix * side * side, side, side, side, false, false,   \
                    of, factors + rows[matrix].set * FACTORS_MOST, tile);                    \
    }                                                                                        \
    KERNEL cb_next_##type(COMMON, const T *x, const T *square, T *y, uint64_t stride,        \
                          uint64_t height, uint64_t width, uint64_t tiles) {                 \
        if (is_off(failed, words)) return;                                                   \
        const uint32_t matrix = blockIdx.x / (uint32_t)tiles,                                \
            tile = blockIdx.x % (uint32_t)tiles;                                             \
        const bool is_tall = height > width;                                                 \
        const uint64_t side = is_tall ? width : height;                                      \
        const T *const of = x + matrix * stride, *const by = square + matrix * side * side;  \
        multiply<T>(is_tall ? of : by, is_tall ? by : of, y + matrix * stride, height, side, \
                    width, false, false, nullptr, nullptr, tile);                            \
    }                                                                                        \
    KERNEL cb_lines_##type(COMMON, T *x, double *sums, uint64_t stride, uint64_t height,     \
                           uint64_t width) {                                                 \
        if (is_off(failed, words)) return;                                                   \
        const uint32_t matrix = blockIdx.x / (uint32_t)height,                               \
            line = blockIdx.x % (uint32_t)height;                                            \
        const device_row *const row = rows + matrix;                                         \
        divide_line(row, factors + row->set * FACTORS_MOST,                                  \
                    x + matrix * stride + line * width, sums, width, line);                  \
    }                                                                                        \
    KERNEL cb_apply_##type(COMMON, const T *x, const double *sums, uint64_t stride,          \
                           uint64_t height, uint64_t width, uint64_t chunks,                 \
                           uint64_t by_lines) {                                              \
        if (is_off(failed, words)) return;                                                   \
        const part p = part_of(rows, factors, chunks);                                       \
        const double h = (double)height, w = (double)width;                                  \
        const double size = by_lines                            ? 0.2 * sqrt(h * w)          \
                            : p.factor[CB_MUON_MATCH_RMS] != 0 ? 0.2 * sqrt(fmax(h, w))     \
                                                               : sqrt(fmax(1.0, h / w));     \
        apply(p, x, sums, stride, by_lines ? height : 0, size);                              \
    }
KERNELS(float, f32)
#ifndef CB_F32_ALONE
KERNELS(double, f64)
#endif
