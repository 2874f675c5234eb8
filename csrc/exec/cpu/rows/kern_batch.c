/* batch_norm, the op that computes only its statistics, and its gradient. x is [images, channels,
 * plane]; each channel has its own statistics.
 *
 * Long planes: a task is a channel, processed in pieces of at most CB_TILE elements of one plane.
 * Short planes: a task is BATCH_GROUP channels, which are adjacent in an image, processed in pieces
 * of several images, because a single channel would use a few bytes of each cache line. Planes of
 * one element: the channels are columns of a matrix, and vectors run over them. */
#include "../executor/scalar.h"
#include "../executor/vector.h"
#include "../move/kern_copy.h"

#define BATCH_GROUP 8
#define SHORT_PLANE 64
#define SHORT_PIECE 256  /* elements of a channel gathered at a time */
#define BATCH_COLUMNS 32 /* columns of a task, if planes have one element */
_Static_assert(CB_TILE <= BATCH_GROUP * SHORT_PIECE, "a long piece fits the tile of a task");

typedef struct batch {
    const cb_kernel_args *args;
    const cb_tensor *stats; /* the outputs mean, var and rstd */
    int64_t images, channels, plane;
    int64_t image; /* elements of an image */
    int64_t count; /* elements of a channel */
    bool is_short;
    int64_t group;          /* channels of a task */
    int64_t pieces, planes; /* pieces of a channel; planes in a piece */
    bool is_far;            /* result 0 bypasses the caches */
} batch;

typedef struct place { /* the place of piece p of the channels from `channel` on */
    int64_t first;     /* element of the tensor */
    int64_t channels, planes;
    int64_t run; /* elements of one channel in one plane */
} place;

static place place_of(const batch *m, int64_t channel, int64_t p) {
    if (m->is_short) {
        int64_t image = p * m->planes;
        return (place){.first = image * m->image + channel * m->plane,
                       .channels = min_i64(m->group, m->channels - channel),
                       .planes = min_i64(m->planes, m->images - image),
                       .run = m->plane};
    }
    int64_t in_plane = div_up(m->plane, CB_TILE), at = p % in_plane * CB_TILE;
    return (place){.first = p / in_plane * m->image + channel * m->plane + at,
                   .channels = 1,
                   .planes = 1,
                   .run = min_i64(CB_TILE, m->plane - at)};
}

/* Stores a row to elements at..at+n of a tensor, bypassing the caches. */
static void store_far(const cb_tensor *t, int64_t at, int64_t n, const float *row) {
    float *to = cb_at(t, at);
    for (int64_t i = 0; i < n; i += CB_VW) vm_store_far(to + i, vm_load(row + i));
}

#define REAL_BITS 32
#include "kern_batch_rows.h"

#include "kern_batch_columns.h"
#undef REAL_BITS
#define REAL_BITS 64
#include "kern_batch_rows.h"

#include "kern_batch_columns.h"

static batch batch_of(const cb_kernel_args *args, const cb_shape *x) {
    batch m = {.args = args, .images = x->dim[0], .channels = x->dim[1], .planes = 1};
    m.plane = cb_numel_of(x, 2, x->rank);
    m.image = m.channels * m.plane;
    m.count = m.images * m.plane;
    m.is_short = m.plane > 0 && m.plane < SHORT_PLANE;
    m.group = m.is_short ? BATCH_GROUP : 1;
    if (m.is_short) m.planes = SHORT_PIECE / m.plane;
    m.pieces = m.is_short ? div_up(m.images, m.planes) : m.images * div_up(m.plane, CB_TILE);
    return m;
}

/* Runs `task` for each group of channels, or `columns` if planes have one element. */
static cb_status run(const cb_kernel_args *args, const cb_shape *x, cb_task_fn task,
                     cb_task_fn columns) {
    batch m = batch_of(args, x);
    const bool gives_y = args->code != CB_OP_BATCH_NORM_STATS;
    m.stats = args->out + (gives_y ? 1 : 0);
    if (m.plane == 1 && m.images > 0) {
        cb_parallel(args->pool, div_up(m.channels, BATCH_COLUMNS), columns, &m);
        return CB_OK;
    }
    const cb_tensor *y = &args->out[0];
    m.is_far = gives_y && y->dtype == CB_F32 && !m.is_short && m.plane % CB_VW == 0 &&
               (uintptr_t)y->data % 64 == 0 &&
               (size_t)(m.channels * m.count) * sizeof(float) >= CB_FAR_BYTES;
    cb_parallel(args->pool, div_up(m.channels, m.group), task, &m);
    return CB_OK;
}

static cb_status run_batch(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    const cb_tensor *x = &args->in[0];
    return x->dtype == CB_F64 ? run(args, &x->shape, batch_task_f64, columns_task_f64)
                              : run(args, &x->shape, batch_task_f32, columns_task_f32);
}

static cb_status run_stats(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    const cb_tensor *x = &args->in[0];
    return x->dtype == CB_F64 ? run(args, &x->shape, stats_task_f64, columns_stats_task_f64)
                              : run(args, &x->shape, stats_task_f32, columns_stats_task_f32);
}

static cb_status run_batch_bwd(const cb_kernel_args *args, cb_error *err) {
    (void)err;
    const cb_tensor *x = &args->in[1];
    return x->dtype == CB_F64 ? run(args, &x->shape, batch_bwd_task_f64, columns_bwd_task_f64)
                              : run(args, &x->shape, batch_bwd_task_f32, columns_bwd_task_f32);
}

cb_kernel_fn CB_KERN(batch)(cb_opcode code, cb_dtype dtype) {
    if (!cb_dtype_is_float(dtype)) return NULL;
    switch (code) {
        case CB_OP_BATCH_NORM: return run_batch;
        case CB_OP_BATCH_NORM_STATS: return run_stats;
        case CB_OP_BATCH_NORM_BWD: return run_batch_bwd;
        default: return NULL;
    }
}
