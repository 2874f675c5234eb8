/* The table is in device memory: rows with pointers, hyper-parameters of groups, and sets. A set
 * covers all rows of a group with the same number of steps. The first kernel advances the sets and
 * computes their factors, in double as on the CPU. The second kernel steps the rows, with a block
 * for each 4,096 elements. So learning rates, step counts and found_inf are data on the device, and
 * every replay of a captured step reads them. The host tracks their values and copies only what
 * must change: rows if an array has moved, hyper-parameters if one has changed, and counts if the
 * caller has set them or the host no longer knows them. */
#include "update.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "../../optim/elements.h"
#include "../../optim/optimizers.h"
#include "text/text.h"

enum { CHUNK = 4096, HYPERS_MOST = 16 }; /* the values of optim.cuh */

typedef struct device_row { /* this struct and the next two are declared as in optim.cuh */
    uint64_t param, grad, state[CB_MAX_STATES];
    int64_t n, first;
    uint32_t dtype, set;
} device_row;

typedef struct device_set {
    int64_t t; /* steps so far */
    double number[CB_MAX_NUMBERS];
    uint64_t group; /* row of the hyper-parameters */
} device_set;

typedef struct device_words {
    double grad_factor;
    uint32_t found_inf, unused;
} device_words;

typedef struct device_hyper {
    double at[HYPERS_MOST];
} device_hyper;

struct cb_cu_rows {
    uint32_t n, n_set, n_group; /* n_set 0: unknown */
    device_row *row;
    device_set *set;
    device_hyper *hyper;
    uint32_t *group; /* [n_group] the caller's group of each row of `hyper` */
    double grad_factor;
};

/* These return the addresses of the parts of the table, which are contiguous. Each part has at most
 * `room` entries. */
static uint64_t sets_at(const cb_cu_update *u) {
    return u->table + (uint64_t)u->room * sizeof(device_row);
}
static uint64_t hyper_at(const cb_cu_update *u) {
    return sets_at(u) + (uint64_t)u->room * sizeof(device_set);
}
static uint64_t factors_at(const cb_cu_update *u) {
    return hyper_at(u) + (uint64_t)u->room * sizeof(device_hyper);
}
static uint64_t words_at(const cb_cu_update *u) {
    return factors_at(u) + (uint64_t)u->room * CB_MAX_FACTORS * sizeof(double);
}
static uint64_t table_bytes(const cb_cu_update *u) {
    return words_at(u) - u->table + sizeof(device_words);
}

/* ---- setup ----------------------------------------------------------------------------------- */

#define ID_OF(ID, name) #ID,
#define NAME_OF(ID, name) #name,
static const char *const ids[] = {CB_FORMULAS(ID_OF)};
static const char *const names[] = {CB_FORMULAS(NAME_OF)};
enum { N_FORMULA = sizeof names / sizeof names[0] };

static struct cb_cu_rows *new_rows(cb_arena *memory, uint32_t n) {
    struct cb_cu_rows *r = CB_NEW(memory, struct cb_cu_rows, 1);
    if (!r) return NULL;
    *r = (struct cb_cu_rows){.row = CB_NEW(memory, device_row, n),
                             .set = CB_NEW(memory, device_set, n),
                             .hyper = CB_NEW(memory, device_hyper, n),
                             .group = CB_NEW(memory, uint32_t, n)};
    return r->row && r->set && r->hyper && r->group ? r : NULL;
}

cb_status cb_cu_update_init(cb_cu_update *u, const cb_cu_gpu *d, uint32_t rows, bool has_f64,
                            cb_arena *memory, cb_error *err) {
    u->room = rows;
    u->has_f64 = has_f64;
    u->wanted = new_rows(memory, rows);
    u->there = new_rows(memory, rows);
    if (!u->wanted || !u->there) return cb_no_memory(err);
    CB_TRY(cb_cu_matrices_init(&u->matrices, rows, memory, err));
    CB_TRY(cb_cu_take(d, table_bytes(u), &u->table, err));
    CB_CU(&d->driver, cuMemsetD8Async(words_at(u), 0, sizeof(device_words), d->stream));
    CB_CU(&d->driver, cuStreamSynchronize(d->stream));
    return CB_OK;
}

static void unload(cb_cu_update *u, const cb_cu_gpu *d) {
    if (u->library) (void)d->driver.cuLibraryUnload(u->library);
    u->library = u->count = u->step = NULL;
    u->optimizer = NULL;
}

void cb_cu_update_release(cb_cu_update *u, const cb_cu_gpu *d) {
    if (u->table) (void)d->driver.cuMemFree(u->table);
    cb_cu_matrices_release(&u->matrices, d);
    unload(u, d);
}

static cb_status find(const void *update, const cb_cu_gpu *d, const char *name, void **function,
                      cb_error *err) {
    const cb_cu_update *u = update;
    void *kernel;
    CB_CU(&d->driver, cuLibraryGetKernel(&kernel, u->library, name));
    CB_CU(&d->driver, cuKernelGetFunction(function, kernel));
    return CB_OK;
}

static cb_status load(cb_cu_update *u, const cb_cu_gpu *d, const cb_cu_image *image,
                      cb_error *err) {
    CB_CU(&d->driver, cuLibraryLoadData(&u->library, image->code, NULL, NULL, 0, NULL, NULL, 0));
    CB_TRY(find(u, d, "cb_optim_count", &u->count, err));
    if (u->matrices.of) return cb_cu_matrices_load(&u->matrices, d, u->has_f64, find, u, err);
    return find(u, d, "cb_optim_step", &u->step, err);
}

/* Writes the source of an optimizer's kernels, which includes everything else. */
static void write_source(const cb_cu_update *u, const cb_optimizer *o, char *text, size_t room) {
    const char *f32 = u->has_f64 ? "" : "#define CB_F32_ALONE\n", *blocks = "", *by_block = "";
    char counts[64] = "cb_counts_nothing";
    if (u->matrices.of) {
        (void)snprintf(text, room,
                       "%s#include \"optim.cuh\"\nCOUNTER(cb_%s_factors, cb_counts_nothing)\n"
                       "#include \"%s.cuh\"\n",
                       f32, o->name, o == &cb_optimizer_adafactor ? "factored" : "orthogonal");
        return;
    }
    if (o->n_number) (void)snprintf(counts, sizeof counts, "cb_%s_count_on", o->name);
    if (o->formula == CB_FORMULA_ADAMW_8BIT) blocks = "#define CB_BLOCKS\n", by_block = "_block";
    (void)snprintf(text, room,
                   "%s%s#include \"optim.cuh\"\n#include \"%s_factors.h\"\n"
                   "OPTIMIZER(%s, %s%s, cb_%s_factors, %s)\n",
                   f32, blocks, o->name, ids[o->formula], names[o->formula], by_block, o->name,
                   counts);
}

static cb_status compile(cb_cu_update *u, const cb_cu_gpu *d, const cb_optimizer *o,
                         cb_error *err) {
    const cb_cuda_options *options = &d->runtime->cuda;
    char text[400];
    cb_cu_image image;
    u->matrices.of = cb_cu_is_of_matrices(o) ? o : NULL;
    write_source(u, o, text, sizeof text);
    const cb_cu_source source = {.text = text,
                                 .headers = cb_cu_headers,
                                 .n_header = cb_cu_n_header,
                                 .capability = d->capability,
                                 .as_ptx = options->as_ptx,
                                 .is_kept = options->keep_sources};
    CB_TRY(cb_cu_compile(&d->nvrtc, &source, options->cache, d->runtime->alloc, &image, err));
    const cb_status status = load(u, d, &image, err);
    cb_free(d->runtime->alloc, image.code);
    return status;
}

bool cb_cu_update_steps(const cb_optimizer *o) {
    return cb_cu_is_of_matrices(o) || (o->factors && o->formula < N_FORMULA);
}

cb_status cb_cu_update_ready(cb_cu_update *u, const cb_cu_gpu *d, const cb_optimizer *optimizer,
                             cb_error *err) {
    if (!cb_cu_update_steps(optimizer))
        return cb_fail(err, CB_UNSUPPORTED, "%s: the cuda backend does not support this optimizer",
                       optimizer->name);
    if (u->room == 0 || u->optimizer == optimizer) return CB_OK;
    const int mode = cb_cu_begin_aside(d);
    unload(u, d);
    const cb_status status = compile(u, d, optimizer, err);
    cb_cu_end_aside(d, mode);
    if (status != CB_OK) unload(u, d);
    else u->optimizer = optimizer;
    u->there->n_set = 0;
    return status;
}

/* ---- the table ------------------------------------------------------------------------------- */

static uint64_t address_of(const void *p) { return (uint64_t)(uintptr_t)p; }

static uint32_t group_of(struct cb_cu_rows *r, const cb_optim_table *table, uint32_t group) {
    for (uint32_t k = r->n_group; k-- > 0;)
        if (r->group[k] == group) return k;
    device_hyper *hyper = &r->hyper[r->n_group];
    memset(hyper, 0, sizeof *hyper);
    memcpy(hyper->at, table->hyper + (size_t)group * table->n_hyper,
           table->n_hyper * sizeof(double));
    r->group[r->n_group] = group;
    return r->n_group++;
}

/* Finds or adds the set of a row. There are few sets, so only the last ones are compared. */
static uint32_t set_of(struct cb_cu_rows *r, const cb_optim_table *table, const cb_optim_row *row) {
    enum { LAST = 8 };
    device_set set = {.t = row->t - 1, .group = group_of(r, table, row->group)};
    for (uint32_t i = 0; i < table->optimizer->n_number; i++) set.number[i] = row->number[i];
    for (uint32_t back = 1; back <= r->n_set && back <= LAST; back++)
        if (memcmp(&r->set[r->n_set - back], &set, sizeof set) == 0) return r->n_set - back;
    r->set[r->n_set] = set;
    return r->n_set++;
}

/* Fills in the wanted table, without rows that have no elements. Returns the number of chunks. */
static int64_t fill(cb_cu_update *u, const cb_optimizer *o, const cb_optim_table *table) {
    struct cb_cu_rows *const r = u->wanted;
    const bool sorted = cb_cu_is_of_matrices(o);
    int64_t chunks = 0;
    if (sorted) cb_cu_matrices_sort(&u->matrices, table);
    r->n = r->n_set = r->n_group = 0;
    r->grad_factor = table->grad_factor;
    for (uint32_t i = 0; i < table->n_rows; i++) {
        const cb_optim_row *from = &table->rows[sorted ? u->matrices.order[i] : i];
        const double *hyper = table->hyper + (size_t)from->group * table->n_hyper;
        if (from->n == 0) continue;
        device_row *to = &r->row[r->n++];
        *to = (device_row){.param = address_of(from->param),
                           .grad = address_of(from->grad),
                           .n = from->n,
                           .first = chunks,
                           .dtype = (uint32_t)from->dtype,
                           .set = set_of(r, table, from)};
        const uint32_t used = o->n_used ? o->n_used(hyper) : o->n_state;
        for (uint32_t s = 0; s < used; s++) to->state[s] = address_of(from->state[s]);
        chunks += (from->n + CHUNK - 1) / CHUNK;
    }
    return chunks;
}

static bool same(const void *a, uint32_t n, const void *b, uint32_t m, size_t size) {
    return n == m && memcmp(a, b, n * size) == 0;
}

/* Copies the differences to the device. Until all copies are queued, the device's table counts as
 * unknown. */
static cb_status bring(cb_cu_update *u, const cb_cu_gpu *d, void *stream, cb_error *err) {
    struct cb_cu_rows *const to = u->there, *const from = u->wanted;
    if (u->matrices.of) CB_TRY(cb_cu_matrices_make_room(&u->matrices, d, err));
    const size_t rows = from->n * sizeof *from->row, sets = from->n_set * sizeof *from->set,
                 hyper = from->n_group * sizeof *from->hyper;
    const bool same_rows = same(to->row, to->n, from->row, from->n, sizeof *from->row),
               same_sets = same(to->set, to->n_set, from->set, from->n_set, sizeof *from->set),
               same_hyper =
                   same(to->hyper, to->n_group, from->hyper, from->n_group, sizeof *from->hyper),
               same_factor = to->grad_factor == from->grad_factor;
    to->n = to->n_set = to->n_group = 0;
    if (!same_rows) CB_CU(&d->driver, cuMemcpyHtoDAsync(u->table, from->row, rows, stream));
    if (!same_sets) CB_CU(&d->driver, cuMemcpyHtoDAsync(sets_at(u), from->set, sets, stream));
    if (!same_hyper) CB_CU(&d->driver, cuMemcpyHtoDAsync(hyper_at(u), from->hyper, hyper, stream));
    if (!same_factor)
        CB_CU(&d->driver,
              cuMemcpyHtoDAsync(words_at(u), &from->grad_factor, sizeof(double), stream));
    if (!same_rows) memcpy(to->row, from->row, rows);
    if (!same_sets) memcpy(to->set, from->set, sets);
    if (!same_hyper) memcpy(to->hyper, from->hyper, hyper);
    memcpy(to->group, from->group, from->n_group * sizeof *from->group);
    to->grad_factor = from->grad_factor;
    to->n = from->n;
    to->n_set = from->n_set;
    to->n_group = from->n_group;
    return CB_OK;
}

/* Advances the host's copy of the sets to the device's state after the step. */
static void count_on(struct cb_cu_rows *r, const cb_optimizer *o) {
    for (uint32_t i = 0; i < r->n_set; i++) {
        device_set *set = &r->set[i];
        set->t++;
        if (o->n_number) o->count_on(r->hyper[set->group].at, set->t, set->number);
    }
}

/* Replays advance the sets, and schedulers write rates between them, so the next step must copy all
 * numbers. */
static void forget_numbers(cb_cu_update *u) {
    u->there->n_set = u->there->n_group = 0;
    u->there->grad_factor = NAN; /* differs from every factor */
}

/* ---- a step ---------------------------------------------------------------------------------- */

static cb_status put(cb_cu_update *u, const cb_cu_gpu *d, void *stream, uint64_t failed,
                     int64_t chunks, cb_error *err) {
    uint64_t n = u->wanted->n, n_set = u->wanted->n_set, sets = sets_at(u), hyper = hyper_at(u),
             factors = factors_at(u), words = words_at(u);
    void *counted[] = {&sets, &hyper, &factors, &n_set, &failed, &words};
    void *stepped[] = {&u->table, &factors, &n, &failed, &words};
    const unsigned blocks = (unsigned)((n_set + CB_CU_COUNT_THREADS - 1) / CB_CU_COUNT_THREADS);
    CB_CU(&d->driver, cuLaunchKernel(u->count, blocks, 1, 1, CB_CU_COUNT_THREADS, 1, 1, 0, stream,
                                     counted, NULL));
    if (u->matrices.of) {
        const cb_cu_numbers numbers = {u->table, factors, failed, words};
        return cb_cu_matrices_put(&u->matrices, d, stream, &numbers, sizeof(device_row), err);
    }
    CB_CU(&d->driver, cuLaunchKernel(u->step, (unsigned)chunks, 1, 1, CB_CU_STEP_THREADS, 1, 1, 0,
                                     stream, stepped, NULL));
    return CB_OK;
}

static cb_status check_room(const cb_cu_update *u, const cb_optim_table *table, cb_error *err) {
    if (table->n_rows <= u->room && table->n_hyper <= HYPERS_MOST) return CB_OK;
    return cb_fail(err, CB_INTERNAL,
                   "update: %u rows do not fit in a table of %u, or there are too many "
                   "hyper-parameters (%u)",
                   table->n_rows, u->room, table->n_hyper);
}

cb_status cb_cu_update_put(cb_cu_update *u, const cb_cu_gpu *d, void *stream, uint64_t failed,
                           const cb_optimizer *optimizer, const cb_optim_table *table,
                           cb_error *err) {
    bool captured;
    CB_TRY(check_room(u, table, err));
    CB_TRY(cb_cu_is_captured(d, stream, &captured, err));
    if (!captured) CB_TRY(cb_cu_update_ready(u, d, optimizer, err));
    const int64_t chunks = fill(u, optimizer, table);
    if (u->wanted->n == 0) return CB_OK;
    const bool is_there =
        u->optimizer == optimizer &&
        same(u->there->row, u->there->n, u->wanted->row, u->wanted->n, sizeof *u->wanted->row);
    if (captured && !is_there)
        return cb_fail(err, CB_UNSUPPORTED,
                       "%s: the first update of these arrays copies a table to the device, which a "
                       "captured stream does not allow; update once before the capture begins",
                       optimizer->name);
    if (!captured) CB_TRY(bring(u, d, stream, err));
    CB_TRY(put(u, d, stream, failed, chunks, err));
    u->was_captured |= captured;
    if (u->was_captured) forget_numbers(u);
    else count_on(u->there, optimizer);
    return CB_OK;
}

/* ---- a step in a captured graph -------------------------------------------------------------- */

cb_status cb_cu_update_bring(cb_cu_update *u, const cb_cu_gpu *d, void *stream,
                             const cb_optimizer *optimizer, const cb_optim_table *table,
                             cb_error *err) {
    CB_TRY(check_room(u, table, err));
    if (u->wanted->n) CB_TRY(cb_cu_matrices_check(&u->matrices, table, err));
    (void)fill(u, optimizer, table);
    return u->wanted->n ? bring(u, d, stream, err) : CB_OK;
}

bool cb_cu_update_continues(const cb_cu_update *u, int64_t t) {
    if (u->there->n_set == 0) return u->wanted->n == 0;
    for (uint32_t i = 0; i < u->there->n_set; i++)
        if (u->there->set[i].t != t - 1) return false;
    return true;
}

cb_status cb_cu_update_bring_hyper(cb_cu_update *u, const cb_cu_gpu *d, void *stream,
                                   const cb_optim_table *table, cb_error *err) {
    struct cb_cu_rows *const r = u->there;
    CB_TRY(cb_cu_matrices_check(&u->matrices, table, err));
    for (uint32_t k = 0; k < r->n_group; k++) {
        const double *wanted = table->hyper + (size_t)r->group[k] * table->n_hyper;
        const size_t bytes = table->n_hyper * sizeof *wanted;
        if (memcmp(r->hyper[k].at, wanted, bytes) == 0) continue;
        const uint64_t at = hyper_at(u) + k * sizeof *r->hyper;
        CB_CU(&d->driver, cuMemcpyHtoDAsync(at, wanted, bytes, stream));
        memcpy(r->hyper[k].at, wanted, bytes);
    }
    return CB_OK;
}

void cb_cu_update_replayed(cb_cu_update *u) { count_on(u->there, u->optimizer); }

cb_status cb_cu_update_counts(cb_cu_update *u, const cb_cu_gpu *d, void *stream,
                              const cb_optim_table *table, int64_t *t, double *numbers,
                              cb_error *err) {
    struct cb_cu_rows *const r = u->there;
    const uint32_t n_number = u->optimizer->n_number;
    if (r->n_set)
        CB_CU(&d->driver, cuMemcpyDtoHAsync(r->set, sets_at(u), r->n_set * sizeof *r->set, stream));
    CB_CU(&d->driver, cuStreamSynchronize(stream));
    if (r->n_set) *t = r->set[0].t;
    for (uint32_t i = 0, row = 0; r->n_set && i < table->n_rows; i++) {
        if (table->rows[i].n == 0) continue;
        const device_set *set = &r->set[r->row[row++].set];
        for (uint32_t k = 0; k < n_number; k++) numbers[i * n_number + k] = set->number[k];
    }
    return CB_OK;
}

void cb_cu_update_forget(cb_cu_update *u) {
    if (u->there) u->there->n_set = 0;
}

bool cb_cu_update_resident(const cb_cu_update *u, uint32_t group, cb_resident *out) {
    uint32_t row = 0, set = 0;
    const struct cb_cu_rows *r = u->wanted; /* the table of the last step, captured or not */
    while (r && row < r->n_group && r->group[row] != group) row++;
    if (!r || row == r->n_group) return false;
    while (r->set[set].group != row) set++;
    *out = (cb_resident){.hyper = hyper_at(u) + row * sizeof(device_hyper),
                         .t = sets_at(u) + set * sizeof(device_set),
                         .grad_factor = words_at(u),
                         .found_inf = words_at(u) + offsetof(device_words, found_inf)};
    return true;
}
