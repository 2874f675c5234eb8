/* Pooling over windows of [n,c,h,w] planes. Planes are independent; a task is a run of planes.
 * Gradients gather: each input sums the windows that contain it, so nothing is written twice. */
#include "../../../base/ints.h"
#include "../../../base/kern_half.h"
#include "../../../micro/vecmath.h"
#include "../kern.h"

#define TASK_ELEMENTS ((int64_t)1 << 15)

typedef struct pool {
    const void *in;
    void *out;
    int32_t *index; /* max pooling */
    cb_dtype dtype;
    int64_t planes, planes_per_task;
    int64_t h, w, oh, ow; /* height and width of x and of y, also in the gradient */
    int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
    void (*run)(const struct pool *p, int64_t plane);
} pool;

/* A range of indices along one axis: first <= i < last. */
typedef struct range {
    int64_t first, last;
} range;

static range window_range(int64_t o, int64_t stride, int64_t pad, int64_t kernel, int64_t n) {
    int64_t start = o * stride - pad;
    return (range){max_i64(start, 0), min_i64(start + kernel, n)};
}

/* Returns the windows whose element `shift` is in the input. */
static range windows_at(int64_t shift, int64_t stride, int64_t n, int64_t windows) {
    range r = {shift >= 0 ? 0 : min_i64(div_up(-shift, stride), windows), 0};
    r.last = n <= shift ? 0 : min_i64(div_up(n - shift, stride), windows);
    r.last = max_i64(r.last, r.first);
    return r;
}

/* Returns the windows that contain input `i`. */
static range windows_of(int64_t i, int64_t stride, int64_t pad, int64_t kernel, int64_t n) {
    int64_t below = i + pad - kernel + 1;
    return (range){below > 0 ? div_up(below, stride) : 0, min_i64((i + pad) / stride + 1, n)};
}

static inline float load_half(const pool *p, const uint16_t *at) { return half_load(p->dtype, at); }

#define LOAD_PLAIN(p, at) (*(at))
#define STORE_PLAIN(p, at, x) (*(at) = (x))
#define STORE_HALF(p, at, x) half_store((p)->dtype, (at), (x))

/* Finds the first maximum of each window. A NaN counts as the largest element. Written without
 * branches, because the position of the largest element is unpredictable and gcc turns a
 * conditional into a branch. */
#define IS_MORE(v, most) (((v) > (most)) | (((v) != (v)) & ((most) == (most))))

#define DEFINE_MAX(name, window, stored, real, load)                                           \
    static inline __attribute__((always_inline)) int64_t window(                               \
        const pool *p, const stored *x, int64_t first, int64_t rows, int64_t columns) {        \
        int64_t best = first;                                                                  \
        for (int64_t i = 0; i < rows; i++) {                                                   \
            for (int64_t j = 0; j < columns; j++) {                                            \
                int64_t at = first + i * p->w + j;                                             \
                real v = load(p, x + at), most = load(p, x + best);                            \
                best += (at - best) & -(int64_t)IS_MORE(v, most);                              \
            }                                                                                  \
        }                                                                                      \
        return best;                                                                           \
    }                                                                                          \
    static void name(const pool *p, int64_t plane) {                                           \
        const stored *x = (const stored *)p->in + plane * p->h * p->w;                         \
        stored *y = (stored *)p->out + plane * p->oh * p->ow;                                  \
        int32_t *index = p->index + plane * p->oh * p->ow;                                     \
        for (int64_t oy = 0; oy < p->oh; oy++) {                                               \
            range r = window_range(oy, p->stride_h, p->pad_h, p->kernel_h, p->h);              \
            for (int64_t ox = 0; ox < p->ow; ox++) {                                           \
                range c = window_range(ox, p->stride_w, p->pad_w, p->kernel_w, p->w);          \
                int64_t first = r.first * p->w + c.first;                                      \
                int64_t rows = r.last - r.first, columns = c.last - c.first;                   \
                int64_t best = rows == 2 && columns == 2 ? window(p, x, first, 2, 2)           \
                                                         : window(p, x, first, rows, columns); \
                *y++ = x[best];                                                                \
                *index++ = (int32_t)best;                                                      \
            }                                                                                  \
        }                                                                                      \
    }

/* Does the same along a row of outputs, tap by tap, with vectors. */
#define WIDE_ROW 16 /* minimum number of outputs for which that is faster */
#define DEFINE_WIDE_MAX(name, row, real)                                                          \
    static inline __attribute__((always_inline)) void row(const real *restrict x, int64_t stride, \
                                                          int32_t place, real *restrict y,        \
                                                          int32_t *restrict index, int64_t n) {   \
        for (int64_t i = 0; i < n; i++) {                                                         \
            real v = x[i * stride], most = y[i];                                                  \
            int32_t at = place + (int32_t)(i * stride);                                           \
            bool is_more = IS_MORE(v, most);                                                      \
            y[i] = is_more ? v : most;                                                            \
            index[i] = is_more ? at : index[i];                                                   \
        }                                                                                         \
    }                                                                                             \
    static void name(const pool *p, int64_t plane) {                                              \
        const real *x = (const real *)p->in + plane * p->h * p->w;                                \
        real *y = (real *)p->out + plane * p->oh * p->ow;                                         \
        int32_t *index = p->index + plane * p->oh * p->ow;                                        \
        for (int64_t oy = 0; oy < p->oh; oy++, y += p->ow, index += p->ow) {                      \
            range rows = window_range(oy, p->stride_h, p->pad_h, p->kernel_h, p->h);              \
            for (int64_t ox = 0; ox < p->ow; ox++) {                                              \
                int64_t first = rows.first * p->w + max_i64(ox * p->stride_w - p->pad_w, 0);      \
                y[ox] = x[first];                                                                 \
                index[ox] = (int32_t)first;                                                       \
            }                                                                                     \
            for (int64_t k = 0; k < (rows.last - rows.first) * p->kernel_w; k++) {                \
                int64_t iy = rows.first + k / p->kernel_w, s = p->stride_w;                       \
                int64_t shift = k % p->kernel_w - p->pad_w;                                       \
                range o = windows_at(shift, s, p->w, p->ow);                                      \
                int64_t at = iy * p->w + o.first * s + shift, n = o.last - o.first;               \
                int32_t *to = index + o.first;                                                    \
                if (s == 1) row(x + at, 1, (int32_t)at, y + o.first, to, n);                      \
                else if (s == 2) row(x + at, 2, (int32_t)at, y + o.first, to, n);                 \
                else row(x + at, s, (int32_t)at, y + o.first, to, n);                             \
            }                                                                                     \
        }                                                                                         \
    }

/* Computes the mean over a window for each output: `in_h` to `out_w` are the sides of input and
 * output, and `along` finds the inputs that an output reads along one axis. */
#define DEFINE_MEAN(name, stored, real, load, store, along, in_h, in_w, out_h, out_w)  \
    static void name(const pool *p, int64_t plane) {                                   \
        const stored *x = (const stored *)p->in + plane * p->in_h * p->in_w;           \
        stored *y = (stored *)p->out + plane * p->out_h * p->out_w;                    \
        real area = (real)(p->kernel_h * p->kernel_w);                                 \
        for (int64_t i = 0; i < p->out_h; i++) {                                       \
            range rows = along(i, p->stride_h, p->pad_h, p->kernel_h, p->in_h);        \
            for (int64_t j = 0; j < p->out_w; j++) {                                   \
                range columns = along(j, p->stride_w, p->pad_w, p->kernel_w, p->in_w); \
                real sum = 0;                                                          \
                for (int64_t k = rows.first; k < rows.last; k++) {                     \
                    for (int64_t l = columns.first; l < columns.last; l++)             \
                        sum += load(p, x + k * p->in_w + l);                           \
                }                                                                      \
                store(p, y + i * p->out_w + j, sum / area);                            \
            }                                                                          \
        }                                                                              \
    }
#define DEFINE_AVG(name, stored, real, load, store) \
    DEFINE_MEAN(name, stored, real, load, store, window_range, h, w, oh, ow)
#define DEFINE_AVG_BWD(name, stored, real, load, store) \
    DEFINE_MEAN(name, stored, real, load, store, windows_of, oh, ow, h, w)

DEFINE_MAX(max_f32, max_window_f32, float, float, LOAD_PLAIN)
DEFINE_MAX(max_f64, max_window_f64, double, double, LOAD_PLAIN)
DEFINE_MAX(max_half, max_window_half, uint16_t, float, load_half)
DEFINE_WIDE_MAX(wide_max_f32, max_row_f32, float)
DEFINE_WIDE_MAX(wide_max_f64, max_row_f64, double)
DEFINE_AVG(avg_f32, float, float, LOAD_PLAIN, STORE_PLAIN)
DEFINE_AVG(avg_f64, double, double, LOAD_PLAIN, STORE_PLAIN)
DEFINE_AVG(avg_half, uint16_t, float, load_half, STORE_HALF)
DEFINE_AVG_BWD(avg_bwd_f32, float, float, LOAD_PLAIN, STORE_PLAIN)
DEFINE_AVG_BWD(avg_bwd_f64, double, double, LOAD_PLAIN, STORE_PLAIN)
DEFINE_AVG_BWD(avg_bwd_half, uint16_t, float, load_half, STORE_HALF)

#include "kern_pool_mean.h"

typedef void (*plane_fn)(const pool *p, int64_t plane);

static void run_task(void *user, int64_t task, int thread) {
    (void)thread;
    const pool *p = user;
    int64_t last = min_i64((task + 1) * p->planes_per_task, p->planes);
    for (int64_t plane = task * p->planes_per_task; plane < last; plane++) p->run(p, plane);
}

/* Runs an op over all planes. `x` and `y` are its large and its small side; either may be the
 * output. */
static cb_status run_planes(const cb_kernel_args *args, const cb_tensor *x, const cb_tensor *y,
                            const plane_fn run[3]) {
    const int64_t *a = args->attrs->i;
    pool p = {
        .in = args->in[0].data,
        .out = args->out[0].data,
        .index = args->n_out > 1 ? args->out[1].data : NULL,
        .dtype = x->dtype,
        .planes = x->shape.dim[0] * x->shape.dim[1],
        .h = x->shape.dim[2],
        .w = x->shape.dim[3],
        .oh = y->shape.dim[2],
        .ow = y->shape.dim[3],
        .kernel_h = a[0],
        .kernel_w = a[1],
        .stride_h = a[2],
        .stride_w = a[3],
        .pad_h = a[4],
        .pad_w = a[5],
        .run = run[x->dtype == CB_F32   ? 0
                   : x->dtype == CB_F64 ? 1
                                        : 2],
    };
    p.planes_per_task = max_i64(TASK_ELEMENTS / max_i64(p.h * p.w, 1), 1);
    cb_parallel(args->pool, div_up(p.planes, p.planes_per_task), run_task, &p);
    return CB_OK;
}

static cb_status max_pool2d(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    static const plane_fn narrow[3] = {max_f32, max_f64, max_half},
                          wide[3] = {wide_max_f32, wide_max_f64, max_half};
    const cb_tensor *y = &args->out[0];
    return run_planes(args, &args->in[0], y, y->shape.dim[3] < WIDE_ROW ? narrow : wide);
}

static cb_status avg_pool2d(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    static const plane_fn narrow[3] = {avg_f32, avg_f64, avg_half},
                          wide[3] = {wide_avg_f32, wide_avg_f64, avg_half};
    const cb_tensor *y = &args->out[0];
    return run_planes(args, &args->in[0], y, y->shape.dim[3] < WIDE_ROW ? narrow : wide);
}

static cb_status avg_pool2d_bwd(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    static const plane_fn narrow[3] = {avg_bwd_f32, avg_bwd_f64, avg_bwd_half},
                          wide[3] = {wide_avg_bwd_f32, wide_avg_bwd_f64, avg_bwd_half};
    const cb_tensor *y = &args->in[0];
    return run_planes(args, &args->out[0], y, y->shape.dim[3] < WIDE_ROW ? narrow : wide);
}

cb_kernel_fn CB_KERN(pool)(cb_opcode code, cb_dtype dtype) {
    if (!cb_dtype_is_float(dtype)) return NULL;
    if (code == CB_OP_MAX_POOL2D) return max_pool2d;
    if (code == CB_OP_AVG_POOL2D) return avg_pool2d;
    if (code == CB_OP_AVG_POOL2D_BWD) return avg_pool2d_bwd;
    return NULL;
}
