/* Pooling over windows of [n,c,h,w] planes. Planes are independent; a task is a run of planes.
 * Gradients gather: an input sums the windows it lies in, so nothing is written twice. */
#include "kern.h"
#include "kern_half.h"
#include "kern_int.h"

#define TASK_ELEMENTS ((int64_t)1 << 15)

typedef struct pool {
    const void *in;
    void *out;
    int32_t *index; /* max pooling */
    cb_dtype dtype;
    int64_t planes, planes_per_task;
    int64_t h, w, oh, ow; /* of x and of y, also in the gradient */
    int64_t kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
    void (*run)(const struct pool *p, int64_t plane);
} pool;

/* Where along one axis window `o` meets the input: first <= i < last. */
typedef struct range {
    int64_t first, last;
} range;

static range window_range(int64_t o, int64_t stride, int64_t pad, int64_t kernel, int64_t n) {
    int64_t start = o * stride - pad;
    return (range){max_i64(start, 0), min_i64(start + kernel, n)};
}

/* The windows that input `i` lies in. */
static range windows_of(int64_t i, int64_t stride, int64_t pad, int64_t kernel, int64_t n) {
    int64_t below = i + pad - kernel + 1;
    return (range){below > 0 ? div_up(below, stride) : 0, min_i64((i + pad) / stride + 1, n)};
}

static inline float load_half(const pool *p, const uint16_t *at) { return half_load(p->dtype, at); }

#define PLAIN(p, at) (*(at))
#define STORE(p, at, x) (*(at) = (x))
#define STORE_HALF(p, at, x) half_store((p)->dtype, (at), (x))

/* The first largest of each window; the first NaN, if there is one, is the largest. */
#define DEFINE_MAX(name, stored, real, load)                                                \
    static void name(const pool *p, int64_t plane) {                                        \
        const stored *x = (const stored *)p->in + plane * p->h * p->w;                      \
        stored *y = (stored *)p->out + plane * p->oh * p->ow;                               \
        int32_t *index = p->index + plane * p->oh * p->ow;                                  \
        for (int64_t oy = 0; oy < p->oh; oy++) {                                            \
            range rows = window_range(oy, p->stride_h, p->pad_h, p->kernel_h, p->h);        \
            for (int64_t ox = 0; ox < p->ow; ox++) {                                        \
                range columns = window_range(ox, p->stride_w, p->pad_w, p->kernel_w, p->w); \
                int64_t best = rows.first * p->w + columns.first;                           \
                real most = load(p, x + best);                                              \
                for (int64_t iy = rows.first; iy < rows.last; iy++) {                       \
                    for (int64_t ix = columns.first; ix < columns.last; ix++) {             \
                        real v = load(p, x + iy * p->w + ix);                               \
                        if (!(v > most || (v != v && most == most))) continue;              \
                        most = v;                                                           \
                        best = iy * p->w + ix;                                              \
                    }                                                                       \
                }                                                                           \
                *y++ = x[best];                                                             \
                *index++ = (int32_t)best;                                                   \
            }                                                                               \
        }                                                                                   \
    }

#define DEFINE_AVG(name, stored, real, load, store)                                         \
    static void name(const pool *p, int64_t plane) {                                        \
        const stored *x = (const stored *)p->in + plane * p->h * p->w;                      \
        stored *y = (stored *)p->out + plane * p->oh * p->ow;                               \
        real area = (real)(p->kernel_h * p->kernel_w);                                      \
        for (int64_t oy = 0; oy < p->oh; oy++) {                                            \
            range rows = window_range(oy, p->stride_h, p->pad_h, p->kernel_h, p->h);        \
            for (int64_t ox = 0; ox < p->ow; ox++) {                                        \
                range columns = window_range(ox, p->stride_w, p->pad_w, p->kernel_w, p->w); \
                real sum = 0;                                                               \
                for (int64_t iy = rows.first; iy < rows.last; iy++) {                       \
                    for (int64_t ix = columns.first; ix < columns.last; ix++) {             \
                        sum += load(p, x + iy * p->w + ix);                                 \
                    }                                                                       \
                }                                                                           \
                store(p, y + oy * p->ow + ox, sum / area);                                  \
            }                                                                               \
        }                                                                                   \
    }

#define DEFINE_AVG_BWD(name, stored, real, load, store)                                    \
    static void name(const pool *p, int64_t plane) {                                       \
        const stored *g = (const stored *)p->in + plane * p->oh * p->ow;                   \
        stored *dx = (stored *)p->out + plane * p->h * p->w;                               \
        real area = (real)(p->kernel_h * p->kernel_w);                                     \
        for (int64_t iy = 0; iy < p->h; iy++) {                                            \
            range rows = windows_of(iy, p->stride_h, p->pad_h, p->kernel_h, p->oh);        \
            for (int64_t ix = 0; ix < p->w; ix++) {                                        \
                range columns = windows_of(ix, p->stride_w, p->pad_w, p->kernel_w, p->ow); \
                real sum = 0;                                                              \
                for (int64_t oy = rows.first; oy < rows.last; oy++) {                      \
                    for (int64_t ox = columns.first; ox < columns.last; ox++) {            \
                        sum += load(p, g + oy * p->ow + ox);                               \
                    }                                                                      \
                }                                                                          \
                store(p, dx + iy * p->w + ix, sum / area);                                 \
            }                                                                              \
        }                                                                                  \
    }

DEFINE_MAX(max_f32, float, float, PLAIN)
DEFINE_MAX(max_f64, double, double, PLAIN)
DEFINE_MAX(max_half, uint16_t, float, load_half)
DEFINE_AVG(avg_f32, float, float, PLAIN, STORE)
DEFINE_AVG(avg_f64, double, double, PLAIN, STORE)
DEFINE_AVG(avg_half, uint16_t, float, load_half, STORE_HALF)
DEFINE_AVG_BWD(avg_bwd_f32, float, float, PLAIN, STORE)
DEFINE_AVG_BWD(avg_bwd_f64, double, double, PLAIN, STORE)
DEFINE_AVG_BWD(avg_bwd_half, uint16_t, float, load_half, STORE_HALF)

typedef void (*plane_fn)(const pool *p, int64_t plane);

static void run_task(void *user, int64_t task, int thread) {
    (void)thread;
    const pool *p = user;
    int64_t last = min_i64((task + 1) * p->planes_per_task, p->planes);
    for (int64_t plane = task * p->planes_per_task; plane < last; plane++) p->run(p, plane);
}

/* `x` and `y` are the large and the small side of the op, whichever of them is the output. */
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
    static const plane_fn run[3] = {max_f32, max_f64, max_half};
    return run_planes(args, &args->in[0], &args->out[0], run);
}

static cb_status avg_pool2d(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    static const plane_fn run[3] = {avg_f32, avg_f64, avg_half};
    return run_planes(args, &args->in[0], &args->out[0], run);
}

static cb_status avg_pool2d_bwd(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    static const plane_fn run[3] = {avg_bwd_f32, avg_bwd_f64, avg_bwd_half};
    return run_planes(args, &args->out[0], &args->in[0], run);
}

cb_kernel_fn CB_KERN(pool)(cb_opcode code, cb_dtype dtype) {
    if (!cb_dtype_is_float(dtype)) return NULL;
    if (code == CB_OP_MAX_POOL2D) return max_pool2d;
    if (code == CB_OP_AVG_POOL2D) return avg_pool2d;
    if (code == CB_OP_AVG_POOL2D_BWD) return avg_pool2d_bwd;
    return NULL;
}
