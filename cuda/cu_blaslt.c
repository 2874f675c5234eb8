/* cuBLASLt is column-major. A row-major matrix is the transpose of a column-major one, so the
 * library computes the transposed result, y' x'. Declarations are our own; constants are those of
 * cublasLt.h. Sums are in f32 (f64 for f64), without TF32 or 16-bit accumulation. If parts of the
 * inner axis are summed separately, only the reduction scheme that keeps partial sums in the type
 * of the sum is allowed. */
#include "cu_blaslt.h"

#include <string.h>

enum { TRANSPOSED = 1 };                            /* CUBLAS_OP_T */
enum { COMPUTE_F32 = 68, COMPUTE_F64 = 70 };        /* cublasComputeType_t */
enum { DESC_TRANS_A = 3, DESC_TRANS_B = 4 };        /* cublasLtMatmulDescAttributes_t */
enum { LAYOUT_BATCH = 5, LAYOUT_BATCH_OFFSET = 6 }; /* cublasLtMatrixLayoutAttribute_t */
enum { PREF_ROOM = 1, PREF_REDUCTION = 3, PREF_ALIGNMENT_A = 5, PREF_ALIGNMENT_D = 8 };
enum { REDUCTION_IN_COMPUTE_TYPE = 2 };
enum { OUT_OF_MEMORY = 3, NOT_SUPPORTED = 15 }; /* cublasStatus_t */
enum { EVEN = 16 };                             /* bytes: the widest access */

typedef struct heuristic { /* cublasLtMatmulHeuristicResult_t */
    uint64_t algorithm[8];
    size_t room;
    int state;
    float waves;
    int reserved[4];
} heuristic;

static cb_status failed(const cb_cu_blaslt *lt, const char *call, int code, cb_error *err) {
    const char *name = lt->cublasLtGetStatusName(code);
    return cb_fail(err, code == OUT_OF_MEMORY ? CB_NOMEM : CB_INTERNAL, "%s: %s (%d)", call,
                   name ? name : "an unknown status", code);
}

#define LT(call)                                                            \
    do {                                                                    \
        const int cb_lt_answer = lt->call;                                  \
        if (cb_lt_answer != 0) return failed(lt, #call, cb_lt_answer, err); \
    } while (0)

cb_status cb_cu_blaslt_open(const cb_cu_blaslt *lt, void **handle, cb_error *err) {
    void *made = NULL;
    LT(cublasLtCreate(&made));
    *handle = made;
    return CB_OK;
}

void cb_cu_blaslt_close(const cb_cu_blaslt *lt, void *handle) {
    if (handle) (void)lt->cublasLtDestroy(handle);
}

/* Creates the layout of a matrix of `count` lines of `length` elements. */
static cb_status make_layout(const cb_cu_blaslt *lt, const cb_cu_form *form, int64_t length,
                             int64_t count, int64_t step, int64_t batch_step, void **out,
                             cb_error *err) {
    const int32_t batch = (int32_t)form->batch;
    LT(cublasLtMatrixLayoutCreate(out, (int)form->type, (uint64_t)length, (uint64_t)count, step));
    if (batch == 1) return CB_OK; /* the default */
    LT(cublasLtMatrixLayoutSetAttribute(*out, LAYOUT_BATCH, &batch, sizeof batch));
    LT(cublasLtMatrixLayoutSetAttribute(*out, LAYOUT_BATCH_OFFSET, &batch_step, sizeof batch_step));
    return CB_OK;
}

static cb_status make_parts(const cb_cu_blaslt *lt, const cb_cu_form *f, cb_cu_product *p,
                            cb_error *err) {
    const int compute = p->is_f64 ? COMPUTE_F64 : COMPUTE_F32,
              scale = p->is_f64 ? CB_CU_F64 : CB_CU_F32;
    const int32_t transposed = TRANSPOSED;
    LT(cublasLtMatmulDescCreate(&p->operation, compute, scale));
    if (f->y.turned)
        LT(cublasLtMatmulDescSetAttribute(p->operation, DESC_TRANS_A, &transposed,
                                          sizeof transposed));
    if (f->x.turned)
        LT(cublasLtMatmulDescSetAttribute(p->operation, DESC_TRANS_B, &transposed,
                                          sizeof transposed));
    CB_TRY(make_layout(lt, f, f->y.turned ? f->k : f->m, f->y.turned ? f->m : f->k, f->y.step,
                       f->y.batch_step, &p->y, err));
    CB_TRY(make_layout(lt, f, f->x.turned ? f->n : f->k, f->x.turned ? f->k : f->n, f->x.step,
                       f->x.batch_step, &p->x, err));
    return make_layout(lt, f, f->m, f->n, f->m, f->n * f->m, &p->out, err);
}

/* Chooses algorithm `which`: 0 if all addresses are multiples of 16 bytes, 1 otherwise. */
static cb_status choose(const cb_cu_blaslt *lt, void *handle, const cb_cu_form *form,
                        cb_cu_product *p, void *preference, int which, bool *found, cb_error *err) {
    const uint32_t scheme = REDUCTION_IN_COMPUTE_TYPE,
                   bytes = which == 0 ? (uint32_t)EVEN : (uint32_t)p->element;
    const uint64_t room = form->room;
    heuristic best = {0};
    int n = 0;
    LT(cublasLtMatmulPreferenceSetAttribute(preference, PREF_ROOM, &room, sizeof room));
    LT(cublasLtMatmulPreferenceSetAttribute(preference, PREF_REDUCTION, &scheme, sizeof scheme));
    for (int k = PREF_ALIGNMENT_A; k <= PREF_ALIGNMENT_D; k++)
        LT(cublasLtMatmulPreferenceSetAttribute(preference, k, &bytes, sizeof bytes));
    const int code = lt->cublasLtMatmulAlgoGetHeuristic(handle, p->operation, p->y, p->x, p->out,
                                                        p->out, preference, 1, &best, &n);
    if (code != 0 && code != NOT_SUPPORTED)
        return failed(lt, "cublasLtMatmulAlgoGetHeuristic", code, err);
    *found = code == 0 && n > 0 && best.state == 0 && best.room <= form->room;
    memcpy(p->algorithm[which].data, best.algorithm, sizeof best.algorithm);
    p->algorithm[which].room = best.room;
    return CB_OK;
}

static cb_status choose_both(const cb_cu_blaslt *lt, void *handle, const cb_cu_form *form,
                             cb_cu_product *p, bool *found, cb_error *err) {
    void *preference = NULL;
    LT(cublasLtMatmulPreferenceCreate(&preference));
    *found = true;
    cb_status status = CB_OK;
    for (int which = 0; which < 2 && status == CB_OK && *found; which++)
        status = choose(lt, handle, form, p, preference, which, found, err);
    (void)lt->cublasLtMatmulPreferenceDestroy(preference);
    return status;
}

cb_status cb_cu_product_make(const cb_cu_blaslt *lt, void *handle, const cb_cu_form *form,
                             cb_cu_product *out, bool *found, cb_error *err) {
    const bool is_f64 = form->type == CB_CU_F64;
    cb_cu_product p = {.is_f64 = is_f64, .element = is_f64 ? 8 : form->type == CB_CU_F32 ? 4 : 2};
    *found = false;
    cb_status status = make_parts(lt, form, &p, err);
    if (status == CB_OK) status = choose_both(lt, handle, form, &p, found, err);
    if (status == CB_OK && *found) *out = p;
    else cb_cu_product_release(lt, &p);
    return status;
}

void cb_cu_product_release(const cb_cu_blaslt *lt, const cb_cu_product *p) {
    if (p->operation) (void)lt->cublasLtMatmulDescDestroy(p->operation);
    void *const layouts[] = {p->x, p->y, p->out};
    for (int k = 0; k < 3; k++)
        if (layouts[k]) (void)lt->cublasLtMatrixLayoutDestroy(layouts[k]);
}

cb_status cb_cu_product_put(const cb_cu_blaslt *lt, void *handle, const cb_cu_product *p,
                            uint64_t x, uint64_t y, uint64_t out, uint64_t room, void *stream,
                            cb_error *err) {
    static const float one = 1, zero = 0;
    static const double one_wide = 1, zero_wide = 0;
    const int which = (x | y | out) % EVEN != 0;
    const void *const alpha = p->is_f64 ? (const void *)&one_wide : &one,
                      *const beta = p->is_f64 ? (const void *)&zero_wide : &zero;
    void *const to = (void *)(uintptr_t)out;
    LT(cublasLtMatmul(handle, p->operation, alpha, (const void *)(uintptr_t)y, p->y,
                      (const void *)(uintptr_t)x, p->x, beta, to, p->out, to, p->out,
                      p->algorithm[which].data, (void *)(uintptr_t)room, p->algorithm[which].room,
                      stream));
    return CB_OK;
}
