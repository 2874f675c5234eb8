/* The table goes to the device with each step: pointers, and the factors of each row, worked out in
 * double as on the CPU. So learning rates, groups and counts of steps are data, and any number of
 * tensors is one launch: a block for each 4,096 elements. */
#include "update.h"

#include <stdio.h>

#include "../../optim/elements.h"
#include "text.h"

enum { CHUNK = 4096 }; /* elements of a block, as in optim.cuh */

typedef struct device_row { /* likewise */
    uint64_t param, grad, state[CB_MAX_STATES];
    int64_t n, first;
    uint32_t dtype, unused;
    double factor[CB_MAX_FACTORS];
} device_row;

#define NAME_OF(ID, name) "cb_optim_" #name,
static const char *const names[] = {CB_ELEMENT_FORMULAS(NAME_OF)};
enum { N_FORMULA = sizeof names / sizeof names[0] };

static cb_status load(cb_cu_update *u, const cb_cu_gpu *d, const cb_cu_image *image,
                      cb_error *err) {
    CB_CU(&d->driver, cuLibraryLoadData(&u->library, image->code, NULL, NULL, 0, NULL, NULL, 0));
    for (int k = 0; k < N_FORMULA; k++) {
        void *kernel;
        CB_CU(&d->driver, cuLibraryGetKernel(&kernel, u->library, names[k]));
        CB_CU(&d->driver, cuKernelGetFunction(&u->function[k], kernel));
    }
    return CB_OK;
}

cb_status cb_cu_update_init(cb_cu_update *u, const cb_cu_gpu *d, uint32_t rows, bool has_f64,
                            cb_arena *memory, cb_error *err) {
    const cb_cuda_options *o = &d->runtime->cuda;
    const cb_cu_source source = {.text = has_f64 ? "#define CB_WITH_F64\n#include \"optim.cuh\"\n"
                                                 : "#include \"optim.cuh\"\n",
                                 .headers = cb_cu_headers,
                                 .n_header = cb_cu_n_header,
                                 .capability = d->capability,
                                 .as_ptx = o->as_ptx};
    cb_cu_image image;
    u->room = rows;
    u->rows = CB_NEW(memory, device_row, rows);
    u->function = CB_NEW(memory, void *, N_FORMULA);
    if (!u->rows || !u->function) return cb_no_memory(err);
    CB_TRY(cb_cu_compile(&d->nvrtc, &source, o->cache, d->runtime->alloc, &image, err));
    const cb_status status = load(u, d, &image, err);
    cb_free(d->runtime->alloc, image.code);
    if (status != CB_OK) return status;
    return cb_cu_take(d, rows * sizeof(device_row), &u->table, err);
}

void cb_cu_update_release(cb_cu_update *u, const cb_cu_gpu *d) {
    if (u->table) (void)d->driver.cuMemFree(u->table);
    if (u->library) (void)d->driver.cuLibraryUnload(u->library);
}

static uint64_t address_of(const void *p) { return (uint64_t)(uintptr_t)p; }

/* Rows without elements take no part. `chunks`: of all. */
static uint32_t fill(cb_cu_update *u, const cb_optimizer *o, const cb_optim_table *table,
                     int64_t *chunks) {
    device_row *rows = u->rows;
    uint32_t n = 0;
    *chunks = 0;
    for (uint32_t i = 0; i < table->n_rows; i++) {
        const cb_optim_row *from = &table->rows[i];
        const double *hyper = table->hyper + (size_t)from->group * table->n_hyper;
        if (from->n == 0) continue;
        device_row *to = &rows[n++];
        *to = (device_row){.param = address_of(from->param),
                           .grad = address_of(from->grad),
                           .n = from->n,
                           .first = *chunks,
                           .dtype = (uint32_t)from->dtype};
        const uint32_t used = o->n_used ? o->n_used(hyper) : o->n_state;
        for (uint32_t s = 0; s < used; s++) to->state[s] = address_of(from->state[s]);
        cb_factors_of(table, from, to->factor);
        *chunks += (from->n + CHUNK - 1) / CHUNK;
    }
    return n;
}

cb_status cb_cu_update_put(cb_cu_update *u, const cb_cu_gpu *d, void *stream, uint64_t failed,
                           const cb_optimizer *optimizer, const cb_optim_table *table,
                           cb_error *err) {
    int64_t chunks;
    if (!optimizer->factors || optimizer->formula >= N_FORMULA)
        return cb_fail(err, CB_UNSUPPORTED, "%s: the cuda backend has no step for it",
                       optimizer->name);
    if (table->n_rows > u->room)
        return cb_fail(err, CB_INTERNAL, "update: %u rows in a table of %u", table->n_rows,
                       u->room);
    uint64_t n = fill(u, optimizer, table, &chunks);
    if (n == 0) return CB_OK;
    void *parameters[] = {&u->table, &n, &failed};
    CB_CU(&d->driver, cuMemcpyHtoDAsync(u->table, u->rows, n * sizeof(device_row), stream));
    CB_CU(&d->driver, cuLaunchKernel(u->function[optimizer->formula], (unsigned)chunks, 1, 1, 256,
                                     1, 1, 0, stream, parameters, NULL));
    return CB_OK;
}
