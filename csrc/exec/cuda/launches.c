#include "launches.h"

#include <stdio.h>

#include "../../base/json.h"

typedef struct writing {
    const cb_cu_gpu *d;
    cb_json_writer w;
    cb_error *err;
} writing;

/* Writes the registers and memory that a kernel uses, and how many of its blocks fit on a
 * multiprocessor. */
static cb_status put_resources(writing *x, void *function, uint32_t threads, uint32_t shared) {
    enum { SHARED_SIZE_BYTES = 1 }; /* a value of CUfunction_attribute */
    static const struct {
        const char *name;
        int attribute;
    } asked[] = {{"registers", 4}, {"local_bytes", 3}, {"shared_bytes", SHARED_SIZE_BYTES}};
    cb_error *const err = x->err;
    int value = 0;
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        CB_CU(&x->d->driver, cuFuncGetAttribute(&value, asked[i].attribute, function));
        if (asked[i].attribute == SHARED_SIZE_BYTES) value += (int)shared;
        cb_json_put_int(&x->w, asked[i].name, value);
    }
    CB_CU(&x->d->driver,
          cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, function, (int)threads, shared));
    cb_json_put_int(&x->w, "blocks_per_multiprocessor", value);
    return CB_OK;
}

static cb_status put_kernel(writing *x, const char *name, void *function, uint32_t threads,
                            uint32_t shared) {
    cb_json_put_string(&x->w, "kernel", name);
    cb_json_put_u64(&x->w, "threads", threads);
    return put_resources(x, function, threads, shared);
}

static cb_status put_launch(writing *x, const cb_cu_launch *l, void *const *function) {
    cb_json_begin(&x->w, NULL, '{');
    cb_json_put_u64(&x->w, "group", l->group);
    if (l->call != CB_NONE) {
        cb_json_put_string(&x->w, "call", "cublasLtMatmul");
    } else {
        char name[32];
        (void)snprintf(name, sizeof name, "cb_k%u", l->kernel);
        cb_json_begin(&x->w, "grid", '[');
        cb_json_put_u64(&x->w, NULL, l->grid.x);
        cb_json_put_u64(&x->w, NULL, l->grid.y);
        cb_json_put_u64(&x->w, NULL, l->grid.z);
        cb_json_end(&x->w, ']');
        const cb_status status = put_kernel(x, name, function[l->kernel], l->threads, l->shared);
        if (status != CB_OK) return status;
    }
    cb_json_end(&x->w, '}');
    return CB_OK;
}

static cb_status put_update(writing *x, const cb_cu_update *u) {
    const struct {
        const char *name;
        void *function;
        uint32_t threads;
    } kernel[] = {{"cb_optim_count", u->count, CB_CU_COUNT_THREADS},
                  {"cb_optim_step", u->step, CB_CU_STEP_THREADS}};
    for (size_t i = 0; u->optimizer && i < sizeof kernel / sizeof *kernel; i++) {
        if (!kernel[i].function) continue;
        cb_json_begin(&x->w, NULL, '{');
        const cb_status status =
            put_kernel(x, kernel[i].name, kernel[i].function, kernel[i].threads, 0);
        if (status != CB_OK) return status;
        cb_json_end(&x->w, '}');
    }
    return CB_OK;
}

cb_status cb_cu_launches(const cb_cu_gpu *d, const cb_cu_code *code, void *const *function,
                         const cb_cu_update *update, cb_str *out, cb_error *err) {
    writing x = {.d = d, .w = {.out = out}, .err = err};
    cb_json_begin(&x.w, NULL, '{');
    cb_json_put_string(&x.w, "format", "cutback.launches");
    cb_json_put_u64(&x.w, "version", 1);
    cb_json_begin(&x.w, "launches", '[');
    for (size_t k = 0; k < code->launches.len; k++)
        CB_TRY(put_launch(&x, &code->launches.at[k], function));
    cb_json_end(&x.w, ']');
    cb_json_begin(&x.w, "update", '[');
    CB_TRY(put_update(&x, update));
    cb_json_end(&x.w, ']');
    cb_json_end(&x.w, '}');
    return out->failed ? cb_no_memory(err) : CB_OK;
}
