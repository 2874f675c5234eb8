/* kern_pool_mean.h: average pooling for kern_pool.c along rows of outputs, tap by tap, so that
 * compilers vectorize it. Each output adds the same elements in the same order as DEFINE_MEAN. */

/* gather adds x[0], x[stride], ... to y[0], y[1], ...; scatter adds x[0], x[1], ... to y[0],
 * y[stride], ... */
#define DEFINE_MEAN_TAPS(real)                                                      \
    static inline __attribute__((always_inline)) void gather_##real(                \
        const real *restrict x, int64_t stride, real *restrict y, int64_t n) {      \
        for (int64_t i = 0; i < n; i++) y[i] += x[i * stride];                      \
    }                                                                               \
    static inline __attribute__((always_inline)) void scatter_##real(               \
        const real *restrict x, int64_t stride, real *restrict y, int64_t n) {      \
        for (int64_t i = 0; i < n; i++) y[i * stride] += x[i];                      \
    }                                                                               \
    static void pairs_##real(const real *restrict x, real *restrict y, int64_t n) { \
        for (int64_t i = 0; i < n; i++) {                                           \
            y[2 * i] = x[i] + 0;                                                    \
            y[2 * i + 1] = x[i] + 0;                                                \
        }                                                                           \
    }                                                                               \
    static inline void divide_##real(real *restrict y, real area, int64_t n) {      \
        for (int64_t i = 0; i < n; i++) y[i] /= area;                               \
    }

#define DEFINE_WIDE_AVG(name, real)                                                        \
    static void name(const pool *p, int64_t plane) {                                       \
        const real *x = (const real *)p->in + plane * p->h * p->w;                         \
        real *y = (real *)p->out + plane * p->oh * p->ow;                                  \
        const int64_t s = p->stride_w;                                                     \
        for (int64_t oy = 0; oy < p->oh; oy++, y += p->ow) {                               \
            const range rows = window_range(oy, p->stride_h, p->pad_h, p->kernel_h, p->h); \
            memset(y, 0, (size_t)p->ow * sizeof(real));                                    \
            for (int64_t k = 0; k < (rows.last - rows.first) * p->kernel_w; k++) {         \
                const int64_t iy = rows.first + k / p->kernel_w,                           \
                              shift = k % p->kernel_w - p->pad_w;                          \
                const range o = windows_at(shift, s, p->w, p->ow);                         \
                const real *from = x + iy * p->w + o.first * s + shift;                    \
                if (s == 1) gather_##real(from, 1, y + o.first, o.last - o.first);         \
                else if (s == 2) gather_##real(from, 2, y + o.first, o.last - o.first);    \
                else gather_##real(from, s, y + o.first, o.last - o.first);                \
            }                                                                              \
            divide_##real(y, (real)(p->kernel_h * p->kernel_w), p->ow);                    \
        }                                                                                  \
    }

/* Computes the row of inputs `i`. Later taps come first, since they belong to earlier windows. */
#define DEFINE_WIDE_AVG_BWD(name, row, real)                                             \
    static void row(const pool *p, range rows, const real *g, real *y) {                 \
        const int64_t s = p->stride_w, most = rows.last - rows.first;                    \
        const bool in_pairs = s == 2 && p->kernel_w == 2 && p->pad_w == 0 && most == 1;  \
        memset(y, 0, (size_t)p->w * sizeof(real));                                       \
        if (in_pairs) pairs_##real(g + rows.first * p->ow, y, p->ow);                    \
        for (int64_t k = 0; k < most * p->kernel_w && !in_pairs; k++) {                  \
            const int64_t window = rows.first + k / p->kernel_w,                         \
                          shift = p->kernel_w - 1 - k % p->kernel_w - p->pad_w;          \
            const range o = windows_at(shift, s, p->w, p->ow);                           \
            const real *from = g + window * p->ow + o.first;                             \
            real *to = y + o.first * s + shift;                                          \
            if (s == 1) scatter_##real(from, 1, to, o.last - o.first);                   \
            else scatter_##real(from, s, to, o.last - o.first);                          \
        }                                                                                \
        divide_##real(y, (real)(p->kernel_h * p->kernel_w), p->w);                       \
    }                                                                                    \
    static void name(const pool *p, int64_t plane) {                                     \
        const real *g = (const real *)p->in + plane * p->oh * p->ow;                     \
        real *y = (real *)p->out + plane * p->h * p->w;                                  \
        range before = {-1, -1};                                                         \
        for (int64_t i = 0; i < p->h; i++, y += p->w) {                                  \
            const range rows = windows_of(i, p->stride_h, p->pad_h, p->kernel_h, p->oh); \
            const bool is_same = rows.first == before.first && rows.last == before.last; \
            if (is_same) memcpy(y, y - p->w, (size_t)p->w * sizeof(real));               \
            else row(p, rows, g, y);                                                     \
            before = rows;                                                               \
        }                                                                                \
    }

DEFINE_MEAN_TAPS(float)
DEFINE_MEAN_TAPS(double)
DEFINE_WIDE_AVG(wide_avg_f32, float)
DEFINE_WIDE_AVG(wide_avg_f64, double)
DEFINE_WIDE_AVG_BWD(wide_avg_bwd_f32, avg_bwd_row_f32, float)
DEFINE_WIDE_AVG_BWD(wide_avg_bwd_f64, avg_bwd_row_f64, double)
