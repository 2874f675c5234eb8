/* The table lies on the device: rows with pointers, and sets of factors, worked out in double as on
 * the CPU, one for all rows that have the same. So learning rates, groups and counts of steps are
 * data, and any number of tensors is one launch: a block for each 4,096 elements. Rows change when
 * an array is another one; of an optimizer that counts its steps one set changes with each, which
 * is 128 bytes. */
#include "update.h"

#include <string.h>

#include "../../optim/elements.h"
#include "text.h"

enum { CHUNK = 4096 }; /* elements of a block, as in optim.cuh */

typedef struct device_row { /* likewise */
    uint64_t param, grad, state[CB_MAX_STATES];
    int64_t n, first;
    uint32_t dtype, set;
} device_row;

typedef struct factor_set {
    double at[CB_MAX_FACTORS];
} factor_set;

struct cb_cu_rows {
    uint32_t n, n_set;
    device_row *row;
    factor_set *set;
};

static uint64_t sets_at(const cb_cu_update *u) {
    return u->table + (uint64_t)u->room * sizeof(device_row);
}

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

static struct cb_cu_rows *new_rows(cb_arena *memory, uint32_t n) {
    struct cb_cu_rows *r = CB_NEW(memory, struct cb_cu_rows, 1);
    if (!r) return NULL;
    *r = (struct cb_cu_rows){.row = CB_NEW(memory, device_row, n),
                             .set = CB_NEW(memory, factor_set, n)};
    return r->row && r->set ? r : NULL;
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
    u->function = CB_NEW(memory, void *, N_FORMULA);
    u->wanted = new_rows(memory, rows);
    u->there = new_rows(memory, rows);
    if (!u->wanted || !u->there || !u->function) return cb_no_memory(err);
    CB_TRY(cb_cu_compile(&d->nvrtc, &source, o->cache, d->runtime->alloc, &image, err));
    const cb_status status = load(u, d, &image, err);
    cb_free(d->runtime->alloc, image.code);
    if (status != CB_OK) return status;
    return cb_cu_take(d, rows * (sizeof(device_row) + sizeof(factor_set)), &u->table, err);
}

void cb_cu_update_release(cb_cu_update *u, const cb_cu_gpu *d) {
    if (u->table) (void)d->driver.cuMemFree(u->table);
    if (u->library) (void)d->driver.cuLibraryUnload(u->library);
}

static uint64_t address_of(const void *p) { return (uint64_t)(uintptr_t)p; }

/* The set of these factors, of which there are few: it is one of the last, or a new one. */
static uint32_t set_of(struct cb_cu_rows *r, const factor_set *factors) {
    enum { LAST = 8 };
    for (uint32_t back = 1; back <= r->n_set && back <= LAST; back++)
        if (memcmp(&r->set[r->n_set - back], factors, sizeof *factors) == 0) return r->n_set - back;
    r->set[r->n_set] = *factors;
    return r->n_set++;
}

/* Rows without elements take no part. The number of chunks of all. */
static int64_t fill(struct cb_cu_rows *r, const cb_optimizer *o, const cb_optim_table *table) {
    int64_t chunks = 0;
    r->n = r->n_set = 0;
    for (uint32_t i = 0; i < table->n_rows; i++) {
        const cb_optim_row *from = &table->rows[i];
        const double *hyper = table->hyper + (size_t)from->group * table->n_hyper;
        factor_set factors;
        if (from->n == 0) continue;
        cb_factors_of(table, from, factors.at);
        device_row *to = &r->row[r->n++];
        *to = (device_row){.param = address_of(from->param),
                           .grad = address_of(from->grad),
                           .n = from->n,
                           .first = chunks,
                           .dtype = (uint32_t)from->dtype,
                           .set = set_of(r, &factors)};
        const uint32_t used = o->n_used ? o->n_used(hyper) : o->n_state;
        for (uint32_t s = 0; s < used; s++) to->state[s] = address_of(from->state[s]);
        chunks += (from->n + CHUNK - 1) / CHUNK;
    }
    return chunks;
}

/* Copies what differs. What was there counts for nothing until the copies are put. */
static cb_status bring(cb_cu_update *u, const cb_cu_gpu *d, void *stream, cb_error *err) {
    struct cb_cu_rows *const to = u->there, *const from = u->wanted;
    const size_t rows = from->n * sizeof(device_row), sets = from->n_set * sizeof(factor_set);
    const bool same_rows = to->n == from->n && memcmp(to->row, from->row, rows) == 0,
               same_sets = to->n_set == from->n_set && memcmp(to->set, from->set, sets) == 0;
    to->n = to->n_set = 0;
    if (!same_rows) CB_CU(&d->driver, cuMemcpyHtoDAsync(u->table, from->row, rows, stream));
    if (!same_sets) CB_CU(&d->driver, cuMemcpyHtoDAsync(sets_at(u), from->set, sets, stream));
    if (!same_rows) memcpy(to->row, from->row, rows);
    if (!same_sets) memcpy(to->set, from->set, sets);
    to->n = from->n;
    to->n_set = from->n_set;
    return CB_OK;
}

cb_status cb_cu_update_put(cb_cu_update *u, const cb_cu_gpu *d, void *stream, uint64_t failed,
                           const cb_optimizer *optimizer, const cb_optim_table *table,
                           cb_error *err) {
    if (!optimizer->factors || optimizer->formula >= N_FORMULA)
        return cb_fail(err, CB_UNSUPPORTED, "%s: the cuda backend has no step for it",
                       optimizer->name);
    if (table->n_rows > u->room)
        return cb_fail(err, CB_INTERNAL, "update: %u rows in a table of %u", table->n_rows,
                       u->room);
    const int64_t chunks = fill(u->wanted, optimizer, table);
    uint64_t n = u->wanted->n, sets = sets_at(u);
    if (n == 0) return CB_OK;
    CB_TRY(bring(u, d, stream, err));
    void *parameters[] = {&u->table, &sets, &n, &failed};
    CB_CU(&d->driver, cuLaunchKernel(u->function[optimizer->formula], (unsigned)chunks, 1, 1, 256,
                                     1, 1, 0, stream, parameters, NULL));
    return CB_OK;
}
