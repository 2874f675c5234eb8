/* A stand-in for cuBLASLt: the entries that the backend uses, implemented as a kernel on the
 * stand-in driver, so that order, races and memory are checked as for any kernel. It checks its
 * arguments strictly: sizes of attributes, known attributes, layouts that match each other and the
 * algorithm, promised alignments, workspace size. A violation returns CUBLAS_STATUS_INVALID_VALUE,
 * and `fake_reason` says why. Numbers are those of cublasLt.h of CUDA 13. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, INVALID = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { R_32F = 0, R_64F = 1, R_16F = 2, R_16BF = 14 };

typedef enum kind { HANDLE = 0x4C54, OPERATION, LAYOUT, PREFERENCE } kind;
typedef struct object { /* one object of any kind */
    kind kind;
    int compute, scale, turned[2]; /* OPERATION */
    int type, batch;               /* LAYOUT */
    uint64_t rows, columns;
    int64_t step, offset;
    uint64_t room; /* PREFERENCE */
    uint32_t scheme, alignment[4];
} object;

typedef struct algorithm { /* 64 bytes */
    uint64_t form, alignment[4], room, unused[2];
} algorithm;
typedef struct result {
    algorithm algorithm;
    size_t room;
    int state;
    float waves;
    int reserved[4];
} result;

/* ---- hooks for tests ---- */

static const char *reason = "";
static int alive, n_products, failing, fail_code;
static char fail_entry[64];

EXPORT const char *fake_reason(void) { return reason; }
EXPORT int fake_alive(void) { return alive; }
EXPORT int fake_products(void) { return n_products; }
EXPORT int fake_is_due(void) { return failing > 0; }
/* Makes the n-th call of an entry fail; n = 0 cancels that. An entry "heuristic" finds nothing. */
EXPORT void fake_fail(const char *entry, int nth, int code) {
    snprintf(fail_entry, sizeof fail_entry, "%s", entry);
    failing = nth;
    fail_code = code;
}

static bool is_due(const char *entry) {
    if (failing == 0 || strcmp(entry, fail_entry) != 0) return false;
    return --failing == 0;
}
#define ENTRY \
    if (is_due(__func__)) return fail_code;
#define REFUSE(condition)        \
    do {                         \
        if (condition) {         \
            reason = #condition; \
            return INVALID;      \
        }                        \
    } while (0)

/* ---- objects ---- */

static bool is_a(const void *p, kind of) { return p && ((const object *)p)->kind == of; }
static int make(void **out, object from) {
    object *made = malloc(sizeof *made);
    if (!made) return 3;
    *made = from;
    *out = made;
    alive++;
    return SUCCESS;
}
static int end(void *p, kind of) {
    REFUSE(!is_a(p, of));
    memset(p, 0, sizeof(object));
    free(p);
    alive--;
    return SUCCESS;
}
static int size_of(int type) { return type == R_64F ? 8 : type == R_32F ? 4 : 2; }

EXPORT size_t cublasLtGetVersion(void) { return 130100; }
EXPORT const char *cublasLtGetStatusName(int code) {
    return code == INVALID            ? "CUBLAS_STATUS_INVALID_VALUE"
           : code == EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED"
           : code == 3                ? "CUBLAS_STATUS_ALLOC_FAILED"
                                      : "CUBLAS_STATUS_INTERNAL_ERROR";
}
EXPORT int cublasLtCreate(void **out) { ENTRY return make(out, (object){.kind = HANDLE}); }
EXPORT int cublasLtDestroy(void *p) { ENTRY return end(p, HANDLE); }
EXPORT int cublasLtMatmulDescCreate(void **out, int compute, int scale) {
    ENTRY REFUSE(compute != 68 && compute != 70);
    return make(out, (object){.kind = OPERATION, .compute = compute, .scale = scale});
}
EXPORT int cublasLtMatmulDescDestroy(void *p) { ENTRY return end(p, OPERATION); }
EXPORT int cublasLtMatmulDescSetAttribute(void *p, int attribute, const void *value, size_t n) {
    ENTRY object *o = p;
    REFUSE(!is_a(p, OPERATION));
    REFUSE((attribute != 3 && attribute != 4) || n != sizeof(int32_t));
    memcpy(&o->turned[attribute - 3], value, n);
    REFUSE(o->turned[attribute - 3] != 0 && o->turned[attribute - 3] != 1);
    return SUCCESS;
}
EXPORT int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t columns,
                                      int64_t step) {
    ENTRY REFUSE(type != R_32F && type != R_64F && type != R_16F && type != R_16BF);
    REFUSE(rows == 0 || columns == 0 || step < (int64_t)rows);
    return make(out, (object){.kind = LAYOUT,
                              .type = type,
                              .rows = rows,
                              .columns = columns,
                              .step = step,
                              .batch = 1});
}
EXPORT int cublasLtMatrixLayoutDestroy(void *p) { ENTRY return end(p, LAYOUT); }
EXPORT int cublasLtMatrixLayoutSetAttribute(void *p, int attribute, const void *value, size_t n) {
    ENTRY object *o = p;
    REFUSE(!is_a(p, LAYOUT));
    REFUSE(!(attribute == 5 && n == sizeof o->batch) && !(attribute == 6 && n == sizeof o->offset));
    if (attribute == 5) memcpy(&o->batch, value, n);
    else memcpy(&o->offset, value, n);
    REFUSE(o->batch < 1 || o->offset < 0);
    return SUCCESS;
}
EXPORT int cublasLtMatmulPreferenceCreate(void **out) {
    ENTRY return make(out,
                      (object){.kind = PREFERENCE, .scheme = 7, .alignment = {256, 256, 256, 256}});
}
EXPORT int cublasLtMatmulPreferenceDestroy(void *p) { ENTRY return end(p, PREFERENCE); }
EXPORT int cublasLtMatmulPreferenceSetAttribute(void *p, int attribute, const void *value,
                                                size_t n) {
    ENTRY object *o = p;
    REFUSE(!is_a(p, PREFERENCE));
    if (attribute == 1) {
        REFUSE(n != sizeof o->room);
        memcpy(&o->room, value, n);
        return SUCCESS;
    }
    REFUSE((attribute != 3 && (attribute < 5 || attribute > 8)) || n != sizeof(uint32_t));
    memcpy(attribute == 3 ? &o->scheme : &o->alignment[attribute - 5], value, n);
    return SUCCESS;
}

/* ---- products ---- */

/* A matrix as it enters the product: rows, columns and strides. */
typedef struct matrix {
    uint64_t at, row, column, batch;
} matrix;

static uint64_t height(const object *o, bool turned) { return turned ? o->columns : o->rows; }
static uint64_t width(const object *o, bool turned) { return turned ? o->rows : o->columns; }

static int fits(const object *op, const object *a, const object *b, const object *c,
                const object *d) {
    REFUSE(!is_a(op, OPERATION) || !is_a(a, LAYOUT) || !is_a(b, LAYOUT) || !is_a(c, LAYOUT) ||
           !is_a(d, LAYOUT));
    REFUSE(a->type != d->type || b->type != d->type || c->type != d->type);
    REFUSE((d->type == R_64F) != (op->compute == 70));
    REFUSE(op->scale != (op->compute == 70 ? R_64F : R_32F));
    REFUSE(height(a, op->turned[0]) != d->rows || width(b, op->turned[1]) != d->columns);
    REFUSE(width(a, op->turned[0]) != height(b, op->turned[1]));
    REFUSE(c->rows != d->rows || c->columns != d->columns || c->step != d->step);
    REFUSE(a->batch != d->batch || b->batch != d->batch || c->batch != d->batch);
    REFUSE(d->batch > 1 && d->offset < d->step * (int64_t)d->columns);
    return SUCCESS;
}

static uint64_t form_of(const object *op, const object *a, const object *b, const object *d) {
    const uint64_t words[] = {(uint64_t)op->turned[0],
                              (uint64_t)op->turned[1],
                              a->rows,
                              a->columns,
                              (uint64_t)a->step,
                              b->columns,
                              (uint64_t)b->step,
                              d->rows,
                              d->columns,
                              (uint64_t)d->batch,
                              (uint64_t)d->type};
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        hash = (hash ^ words[i]) * 1099511628211u;
    return hash;
}

EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *op, void *a, void *b, void *c,
                                          void *d, void *preference, int asked, void *results,
                                          int *n) {
    ENTRY const object *p = preference, *of_d = d;
    REFUSE(!is_a(handle, HANDLE) || !is_a(preference, PREFERENCE) || asked < 1);
    const int code = fits(op, a, b, c, d);
    if (code) return code;
    REFUSE(p->scheme & ~2u);
    *n = 0;
    if (is_due("heuristic")) return NOT_SUPPORTED;
    const uint64_t parts = 16 * of_d->rows * of_d->columns * (uint64_t)of_d->batch;
    result *best = results;
    *best =
        (result){.algorithm = {.form = form_of(op, a, b, d), .room = p->room >= parts ? parts : 0}};
    for (int k = 0; k < 4; k++) best->algorithm.alignment[k] = p->alignment[k];
    best->room = best->algorithm.room;
    *n = 1;
    return SUCCESS;
}

typedef struct driver {
    int (*load)(void **library, const void *code, void *, void *, unsigned, void *, void *,
                unsigned);
    int (*kernel)(void **kernel, void *library, const char *name);
    int (*function)(void **function, void *kernel);
    int (*launch)(void *function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  unsigned, void *stream, void **parameters, void **extra);
} driver;

static int start(driver *out, void **function) {
    static const char *const names[] = {"cuLibraryLoadData", "cuLibraryGetKernel",
                                        "cuKernelGetFunction", "cuLaunchKernel"};
    static void *loaded;
    static driver found;
    if (!loaded) {
        void *entries[4], *library = dlopen(FAKE_DRIVER, RTLD_NOW), *of_kernels = NULL, *kernel;
        for (int i = 0; i < 4; i++)
            if (!library || !(entries[i] = dlsym(library, names[i]))) return EXECUTION_FAILED;
        memcpy(&found, entries, sizeof found);
        FILE *file = fopen(FAKE_KERNELS, "rb");
        static char text[1 << 16];
        if (!file || fread(text, 1, sizeof text - 1, file) == 0) return EXECUTION_FAILED;
        fclose(file);
        if (found.load(&of_kernels, text, NULL, NULL, 0, NULL, NULL, 0) != 0 ||
            found.kernel(&kernel, of_kernels, "product") != 0 ||
            found.function(&loaded, kernel) != 0)
            return EXECUTION_FAILED;
    }
    *out = found;
    *function = loaded;
    return SUCCESS;
}

static matrix matrix_of(const object *o, bool turned, const void *at) {
    const uint64_t step = (uint64_t)o->step;
    return (matrix){(uint64_t)(uintptr_t)at, turned ? step : 1, turned ? 1 : step,
                    (uint64_t)o->offset};
}

static bool is_number(const object *op, const void *p, double x) {
    return op->scale == R_64F ? *(const double *)p == x : (double)*(const float *)p == x;
}

EXPORT int cublasLtMatmul(void *handle, void *operation, const void *alpha, const void *a,
                          void *a_layout, const void *b, void *b_layout, const void *beta,
                          const void *c, void *c_layout, void *d, void *d_layout, const void *algo,
                          void *workspace, size_t bytes, void *stream) {
    ENTRY const object *op = operation, *la = a_layout, *lb = b_layout, *ld = d_layout;
    const algorithm *how = algo;
    driver cu;
    void *function;
    REFUSE(!is_a(handle, HANDLE));
    const int code = fits(op, la, lb, c_layout, ld);
    if (code) return code;
    REFUSE(!is_number(op, alpha, 1) || !is_number(op, beta, 0));
    REFUSE(how->form != form_of(op, la, lb, ld));
    const void *const at[] = {a, b, c, d};
    for (int k = 0; k < 4; k++) REFUSE((uintptr_t)at[k] % how->alignment[k] != 0);
    for (int k = 0; k < 4; k++) REFUSE(how->alignment[k] < (uint64_t)size_of(ld->type));
    REFUSE(bytes < how->room || (how->room && (uintptr_t)workspace % 256 != 0));
    if (start(&cu, &function) != SUCCESS) return EXECUTION_FAILED;
    matrix of_a = matrix_of(la, op->turned[0], a), of_b = matrix_of(lb, op->turned[1], b),
           of_d = matrix_of(ld, false, d);
    int type = ld->type, m = (int)ld->rows, n = (int)ld->columns,
        depth = (int)width(la, op->turned[0]);
    uint64_t parts = how->room ? (uint64_t)(uintptr_t)workspace : 0;
    void *parameters[] = {&of_a, &of_b, &of_d, &type, &m, &n, &depth, &parts};
    n_products++;
    return cu.launch(function, (unsigned)(m + 63) / 64, (unsigned)n, (unsigned)ld->batch, 64, 1, 1,
                     0, stream, parameters, NULL)
               ? EXECUTION_FAILED
               : SUCCESS;
}
