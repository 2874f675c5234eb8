/* factored.cuh: kernels of Adafactor (optim/factored.h), for a batch of rows of one shape;
 * optim.cuh comes first. A row has `matrices` matrices of height x width, or none: then `height` is
 * 0. Sums are in double and in a fixed order. */

enum { WARPS = THREADS / 32, ROWS = 0, COLUMNS = 1, WHOLE = 2 }; /* states */

template <class T> static __forceinline__ double least_of(const double *factor) {
    const double least = factor[CB_ADAFACTOR_LEAST];
    return least < 0 ? (sizeof(T) == 4 ? 0x1p-23 : 0x1p-52) : least;
}

static __forceinline__ double moved_mean(double old, double mean, double share) {
    return share < 0.5 ? old + share * (mean - old) : mean - (1 - share) * (mean - old);
}

static __forceinline__ double sum_of_warp(double x) {
    for (int step = 16; step; step /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, step);
    return x;
}

/* A warp for each line: moves its mean, and sums the squares of its weights. */
template <class T>
static __forceinline__ void move_line(const device_row *rows, const double *factors,
                                      double *weights, uint64_t lines, uint64_t width,
                                      uint64_t all) {
    const uint64_t at = blockIdx.x * (uint64_t)WARPS + threadIdx.x / 32;
    if (at >= all) return;
    const device_row *const row = rows + at / lines;
    const double *const factor = factors + row->set * FACTORS_MOST;
    const uint64_t line = at % lines;
    const T *const g = (const T *)row->arrays.grad + line * width,
                  *const p = (const T *)row->arrays.param + line * width;
    const T scale = (T)factor[CB_GRAD_SCALE];
    double squares = 0, weight = 0;
    for (uint64_t i = threadIdx.x % 32; i < width; i += 32) {
        const double x = (double)(scale * g[i]), w = (double)p[i];
        squares += x * x;
        weight += w * w;
    }
    squares = sum_of_warp(squares);
    weight = sum_of_warp(weight);
    if (threadIdx.x % 32) return;
    T *const mean = (T *)row->arrays.state[ROWS] + line;
    *mean = (T)moved_mean((double)*mean, squares / (double)width, factor[CB_ADAFACTOR_SHARE]);
    weights[at] = weight;
}

/* A block for 32 columns of a matrix; each warp sums every eighth line. */
template <class T>
static __forceinline__ void move_columns(const device_row *rows, const double *factors,
                                         uint64_t matrices, uint64_t height, uint64_t width) {
    __shared__ double sums[WARPS][32];
    const uint32_t across = (uint32_t)((width + 31) / 32), at = blockIdx.x / across;
    const device_row *const row = rows + at / (uint32_t)matrices;
    const double *const factor = factors + row->set * FACTORS_MOST;
    const uint64_t matrix = at % (uint32_t)matrices,
                   column = blockIdx.x % across * 32 + threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const T scale = (T)factor[CB_GRAD_SCALE];
    double sum = 0;
    if (column < width) {
        const T *const g = (const T *)row->arrays.grad + matrix * height * width + column;
        for (uint64_t k = warp; k < height; k += WARPS) {
            const double x = (double)(scale * g[k * width]);
            sum += x * x;
        }
    }
    sums[warp][threadIdx.x % 32] = sum;
    __syncthreads();
    if (warp || column >= width) return;
    for (int k = 1; k < WARPS; k++) sum += sums[k][threadIdx.x];
    T *const mean = (T *)row->arrays.state[COLUMNS] + matrix * width + column;
    *mean = (T)moved_mean((double)*mean, sum / (double)height, factor[CB_ADAFACTOR_SHARE]);
}

/* A block for each matrix: by = the mean of its row means, at least `least`. */
template <class T>
static __forceinline__ void mean_of_means(const device_row *rows, const double *factors,
                                          double *by, uint64_t matrices, uint64_t height) {
    const device_row *const row = rows + blockIdx.x / (uint32_t)matrices;
    const T *const mean = (const T *)row->arrays.state[ROWS] +
                          blockIdx.x % (uint32_t)matrices * height;
    const double least = least_of<T>(factors + row->set * FACTORS_MOST);
    double sum = 0;
    for (uint64_t k = threadIdx.x; k < height; k += THREADS) sum += (double)mean[k];
    sum = sum_of_block(sum) / (double)height;
    if (threadIdx.x == 0) by[blockIdx.x] = sum < least ? least : sum; /* NaN stays */
}

/* For rows without matrices: moves the mean of each element, and sums the squares of weights. */
template <class T> static __forceinline__ void move_elements(const part &p, double *weights) {
    const T *const grad = (const T *)p.row->arrays.grad,
                  *const param = (const T *)p.row->arrays.param;
    T *const v = (T *)p.row->arrays.state[WHOLE];
    const T scale = (T)p.factor[CB_GRAD_SCALE], share = (T)p.factor[CB_ADAFACTOR_SHARE],
            rest = (T)(1 - p.factor[CB_ADAFACTOR_SHARE]);
    const bool is_small = p.factor[CB_ADAFACTOR_SHARE] < 0.5;
    double sum = 0;
    for (int64_t i = p.begin + threadIdx.x; i < p.end; i += THREADS) {
        const T g = scale * grad[i], way = g * g - v[i];
        v[i] = is_small ? v[i] + share * way : g * g - rest * way;
        sum += (double)param[i] * (double)param[i];
    }
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) weights[blockIdx.x] = sum;
}

/* Returns the update of element i, before it is clipped. */
template <class T>
static __forceinline__ T update_of(const part &p, const double *by, uint64_t matrices,
                                   uint64_t height, uint64_t width, int64_t i) {
    const double bound = least_of<T>(p.factor);
    const T least = (T)(bound * bound), g = (T)p.factor[CB_GRAD_SCALE] *
                                            ((const T *)p.row->arrays.grad)[i];
    T mean;
    if (height) {
        const uint64_t line = (uint64_t)i / width, matrix = line / height;
        const double row = (double)((const T *)p.row->arrays.state[ROWS])[line];
        mean = (T)(row / by[p.matrix * matrices + matrix]) *
               ((const T *)p.row->arrays.state[COLUMNS])[matrix * width + (uint64_t)i % width];
    } else {
        mean = ((const T *)p.row->arrays.state[WHOLE])[i];
    }
    const T spread = mean < least ? least : mean; /* NaN stays */
    return g / (T)sqrt(spread);
}

#define KERNEL extern "C" __global__ void __launch_bounds__(THREADS, 4)
#define COMMON                                                                            \
    const device_row *rows, const double *factors, const failure *failed,                 \
        const device_words *words
#define SHAPE uint64_t matrices, uint64_t height, uint64_t width
#define KERNELS(T, type)                                                                  \
    KERNEL cb_lines_##type(COMMON, double *weights, uint64_t lines, uint64_t width,       \
                           uint64_t all) {                                                \
        if (is_off(failed, words)) return;                                                \
        move_line<T>(rows, factors, weights, lines, width, all);                          \
    }                                                                                     \
    KERNEL cb_columns_##type(COMMON, SHAPE) {                                             \
        if (is_off(failed, words)) return;                                                \
        move_columns<T>(rows, factors, matrices, height, width);                          \
    }                                                                                     \
    KERNEL cb_means_##type(COMMON, double *by, uint64_t matrices, uint64_t height) {      \
        if (is_off(failed, words)) return;                                                \
        mean_of_means<T>(rows, factors, by, matrices, height);                            \
    }                                                                                     \
    KERNEL cb_elements_##type(COMMON, double *weights, uint64_t chunks) {                 \
        if (is_off(failed, words)) return;                                                \
        move_elements<T>(part_of(rows, factors, chunks), weights);                        \
    }                                                                                     \
    KERNEL cb_measure_##type(COMMON, const double *by, double *sizes, SHAPE,              \
                             uint64_t chunks) {                                           \
        if (is_off(failed, words)) return;                                                \
        const part p = part_of(rows, factors, chunks);                                    \
        double sum = 0;                                                                   \
        for (int64_t i = p.begin + threadIdx.x; i < p.end; i += THREADS) {                \
            const double u = (double)update_of<T>(p, by, matrices, height, width, i);     \
            sum += u * u;                                                                 \
        }                                                                                 \
        sum = sum_of_block(sum);                                                          \
        if (threadIdx.x == 0) sizes[blockIdx.x] = sum;                                    \
    }                                                                                     \
    KERNEL cb_total_##type(COMMON, const double *weights, const double *sizes,            \
                           double *rates, uint64_t lines, uint64_t chunks) {              \
        if (is_off(failed, words)) return;                                                \
        const device_row *const row = rows + blockIdx.x;                                  \
        const double *const f = factors + row->set * FACTORS_MOST;                        \
        const double w = sum_of(weights + blockIdx.x * lines, lines),                     \
                     u = sum_of(sizes + blockIdx.x * chunks, chunks), n = (double)row->n; \
        double rate = f[CB_ADAFACTOR_RATE] * fmax(f[CB_ADAFACTOR_LEAST_SIZE], sqrt(w / n)); \
        if (u > 0) rate /= fmax(1.0, sqrt(u / n) / f[CB_ADAFACTOR_MOST]);                 \
        if (threadIdx.x == 0) rates[blockIdx.x] = rate;                                   \
    }                                                                                     \
    KERNEL cb_apply_##type(COMMON, const double *by, const double *rates, SHAPE,          \
                           uint64_t chunks) {                                             \
        if (is_off(failed, words)) return;                                                \
        const part p = part_of(rows, factors, chunks);                                    \
        T *const param = (T *)p.row->arrays.param;                                        \
        const T keep = (T)p.factor[CB_ADAFACTOR_KEEP], rate = (T)rates[p.matrix];         \
        for (int64_t i = p.begin + threadIdx.x; i < p.end; i += THREADS)                  \
            param[i] = param[i] * keep -                                                  \
                       rate * update_of<T>(p, by, matrices, height, width, i);            \
    }
KERNELS(float, f32)
#ifndef CB_F32_ALONE
KERNELS(double, f64)
#endif
