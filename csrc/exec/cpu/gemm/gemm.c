/* Sets the BLAS's thread count. OpenBLAS built on its own threads keeps one setting for the
 * process, and its "local" call changes that too; OpenBLAS on OpenMP and MKL keep one setting per
 * thread. The code supports both:
 *
 *   - the thread that opens a region sets one thread and remembers the old number; every task sets
 *     it again for its own thread;
 *   - regions of two contexts may overlap. Then the second one reads 1, which the first one set and
 *     which must not be restored; the last one to leave restores the number that the first one
 *     found. If the second one reads another number, settings are per thread and each restores its
 *     own.
 *
 * The guard is process-wide because the setting may be. A forked child has none of the threads that
 * had regions open: it starts with no open region, and its first region restores the number that
 * theirs would have restored. */
#include "gemm.h"

#include <pthread.h>
#include <string.h>

#include "../../../base/cpu.h"
#include "../../../base/ints.h"

static struct {
    pthread_mutex_t lock;
    int n_open;
    int threads_before; /* the number that the first region found */
    bool is_local;      /* settings are known to be per thread */
    bool is_orphaned;   /* forked while a region was open: the setting is still that region's */
    pthread_once_t once;
    int vector_bits; /* the widest vectors of this processor */
    bool has_fma;    /* this processor has fused multiply-adds, so our own kernel uses them */
} guard = {.lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

static void before_fork(void) { pthread_mutex_lock(&guard.lock); }
static void after_fork_in_parent(void) { pthread_mutex_unlock(&guard.lock); }
static void after_fork_in_child(void) {
    guard.is_orphaned |= guard.n_open > 0 && !guard.is_local;
    guard.n_open = 0;
    pthread_mutex_init(&guard.lock, NULL);
}
static void set_up(void) {
    static const int bits[CB_ISA_COUNT] = {128, 256, 512};
    guard.vector_bits = bits[cb_cpu_isa()];
#if defined(__aarch64__)
    guard.has_fma = true;
#else
    guard.has_fma = cb_cpu_isa() != CB_ISA_BASELINE;
#endif
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

typedef int (*exchange_fn)(int);
typedef void (*set_fn)(int);
typedef int (*get_fn)(void);

static bool can_set_threads(const cb_blas *b) {
    return b && (b->set_threads_local || (b->set_threads && b->get_threads));
}

/* Sets the number of threads and returns the old number. */
static int exchange_threads(const cb_blas *b, int n) {
    if (b->set_threads_local) return ((exchange_fn)b->set_threads_local)(n);
    int before = ((get_fn)b->get_threads)();
    if (before != n) ((set_fn)b->set_threads)(n);
    return before;
}

/* True if the BLAS does not know this processor and falls back to kernels for an older one. Our
 * kernels, with wider vectors, are then faster: 190 against 124 Gflop/s on one core of a Zen 5,
 * where OpenBLAS 0.3.31 uses its Haswell kernels. The processor decides, not the instruction set
 * that CUTBACK_ISA allows our kernels: the choice does not change bits, and the BLAS ignores
 * CUTBACK_ISA. */
static bool is_outdated(const cb_blas *blas) {
    return blas && blas->vector_bits != 0 && blas->vector_bits < guard.vector_bits;
}

void cb_gemm_begin(cb_gemm_region *region, const cb_blas *blas, const cb_gemm_kernel *own) {
    pthread_once(&guard.once, set_up);
    *region = (cb_gemm_region){.blas = is_outdated(blas) ? NULL : blas, .own = own};
    if (!can_set_threads(region->blas)) return;
    pthread_mutex_lock(&guard.lock);
    region->is_first = guard.n_open++ == 0;
    region->threads_before = exchange_threads(blas, 1);
    if (region->is_first && guard.is_orphaned) {
        if (region->threads_before == 1) region->threads_before = guard.threads_before;
        guard.is_orphaned = false;
    }
    if (region->is_first) {
        guard.threads_before = region->threads_before;
        guard.is_local = false;
    } else if (region->threads_before != 1) {
        guard.is_local = true;
    }
    pthread_mutex_unlock(&guard.lock);
}

void cb_gemm_end(cb_gemm_region *region) {
    if (!can_set_threads(region->blas)) return;
    pthread_mutex_lock(&guard.lock);
    bool is_last = --guard.n_open == 0;
    if (guard.is_local || (is_last && region->is_first)) {
        exchange_threads(region->blas, region->threads_before);
    } else if (is_last) {
        exchange_threads(region->blas, guard.threads_before);
    }
    pthread_mutex_unlock(&guard.lock);
}

/* Sets one thread for a task. Only a per-thread setting needs this; a process-wide setting is 1
 * already. */
void cb_gemm_enter_task(const cb_gemm_region *region) {
    if (region->blas && region->blas->set_threads_local) exchange_threads(region->blas, 1);
}

/* ---- our own kernel -------------------------------------------------------------------------- */

#define SMALLEST_INNER 32  /* below this, a product is mostly reading and writing */
#define LARGEST_FLOPS 1e9  /* above this, a BLAS that packs both sides is faster */
#define NARROW 16          /* rows or columns that a BLAS pads to whole blocks */
#define NARROW_INNER 16384 /* beyond this, a transposed side has too many lines */
#define TASK_FLOPS 5e5     /* ten times the cost of starting a task, on one core */
#define TASKS_PER_THREAD 4 /* more than one, so that threads finish at about the same time */
#define GRAIN_ROWS 12      /* rows whose sums are in registers: gemm_fma.h */
#define GRAIN_COLUMNS 32

/* The limits were measured on a Zen 3 and a Zen 4 against OpenBLAS 0.3.31
 * (benchmarks/cpu/bench_products.py). */
bool cb_gemm_own_is_faster(cb_dtype dtype, int64_t m, int64_t n, int64_t k) {
    pthread_once(&guard.once, set_up);
    double flops = 2.0 * (double)m * (double)n * (double)k;
    bool is_narrow = min_i64(m, n) <= NARROW && k <= NARROW_INNER, has_vector = m == 1 || n == 1;
    return guard.has_fma && dtype != CB_F64 && k >= SMALLEST_INNER &&
           (flops <= LARGEST_FLOPS || is_narrow || has_vector);
}

/* Divides columns first: tasks with the same columns would each pack the same panels. */
cb_gemm_cut cb_gemm_cut_of(int64_t batch, int64_t m, int64_t n, int64_t k, int threads) {
    if (batch <= 0 || m <= 0 || n <= 0) return (cb_gemm_cut){1, 1, 1};
    double worth = 2.0 * (double)batch * (double)m * (double)n * (double)k / TASK_FLOPS;
    int64_t most = threads > 1 ? (int64_t)threads * TASKS_PER_THREAD : 1;
    int64_t tasks = worth < (double)most ? max_i64((int64_t)worth, 1) : most;
    cb_gemm_cut cut = {.rows = m, .columns = n, .batches = 1};
    if (batch >= tasks) {
        cut.batches = batch / tasks;
        return cut;
    }
    int64_t parts = div_up(tasks, batch), across = min_i64(parts, div_up(n, GRAIN_COLUMNS));
    if (across > 1) cut.columns = max_i64(n / across / GRAIN_COLUMNS, 1) * GRAIN_COLUMNS;
    int64_t down = min_i64(div_up(parts, div_up(n, cut.columns)), div_up(m, GRAIN_ROWS));
    cut.rows = div_up(m, down);
    return cut;
}

/* ---- one product ----------------------------------------------------------------------------- */

enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 }; /* CBLAS */

#define DEFINE_CALL(name, real, integer)                                                        \
    static void name(void *fn, const cb_gemm *g) {                                              \
        typedef void (*gemm_fn)(int, int, int, integer, integer, integer, real, const real *,   \
                                integer, const real *, integer, real, real *, integer);         \
        ((gemm_fn)fn)(ROW_MAJOR, g->a_transposed ? TRANSPOSE : NO_TRANSPOSE,                    \
                      g->b_transposed ? TRANSPOSE : NO_TRANSPOSE, (integer)g->m, (integer)g->n, \
                      (integer)g->k, (real)1, g->a, (integer)g->lda, g->b, (integer)g->ldb,     \
                      g->add ? (real)1 : (real)0, g->c, (integer)g->ldc);                       \
    }

DEFINE_CALL(call_s32, float, int32_t)
DEFINE_CALL(call_s64, float, int64_t)
DEFINE_CALL(call_d32, double, int32_t)
DEFINE_CALL(call_d64, double, int64_t)

static bool fits_int32(const cb_gemm *g) {
    const int64_t most = INT32_MAX;
    return g->m <= most && g->n <= most && g->k <= most && g->lda <= most && g->ldb <= most &&
           g->ldc <= most;
}

static void write_zeros(const cb_gemm *g) {
    size_t size = g->dtype == CB_F64 ? sizeof(double) : sizeof(float);
    for (int64_t i = 0; i < g->m; i++)
        memset((char *)g->c + (size_t)(i * g->ldc) * size, 0, (size_t)g->n * size);
}

bool cb_gemm_is_own(const cb_gemm_region *region, cb_dtype dtype) {
    if (!region->blas) return true;
    return !(dtype == CB_F64 ? region->blas->dgemm : region->blas->sgemm);
}

void cb_gemm_run(const cb_gemm_region *region, const cb_gemm *g) {
    if (g->m <= 0 || g->n <= 0) return;
    if (g->k <= 0) {
        if (!g->add) write_zeros(g);
        return;
    }
    bool is_double = g->dtype == CB_F64;
    void *fn = NULL;
    if (region->blas) fn = is_double ? region->blas->dgemm : region->blas->sgemm;
    bool is_wide = region->blas && region->blas->int_bits == 64;
    if (!fn || (!is_wide && !fits_int32(g))) {
        region->own->multiply(g);
    } else if (is_double) {
        is_wide ? call_d64(fn, g) : call_d32(fn, g);
    } else {
        is_wide ? call_s64(fn, g) : call_s32(fn, g);
    }
}
