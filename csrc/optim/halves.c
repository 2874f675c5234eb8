#include "halves.h"

#include "../base/cpu.h"

extern const cb_half_fns cb_half_fns_baseline;
#if defined(__x86_64__)
extern const cb_half_fns cb_half_fns_avx2, cb_half_fns_avx512;
static const cb_half_fns *const tables[CB_ISA_COUNT] = {&cb_half_fns_baseline, &cb_half_fns_avx2,
                                                        &cb_half_fns_avx512};
#else
static const cb_half_fns *const tables[CB_ISA_COUNT] = {&cb_half_fns_baseline};
#endif

const cb_half_fns *cb_halves_functions(void) { return tables[cb_cpu_kernel_isa()]; }

/* Returns the address of element 0 of an array whose element `at` is at `here`. */
static void *from_element(float *here, int64_t at) {
    return (void *)((uintptr_t)here - (uintptr_t)at * sizeof *here);
}

cb_optim_row cb_halves_open(const cb_half_fns *f, const cb_optim_row *row, int64_t at, int64_t n,
                            cb_halves_room *room) {
    cb_optim_row whole = *row;
    float *weight = row->half == CB_HALF_MASTER ? (float *)row->rest + at : room->param;
    f->open[row->half](row, at, n, weight);
    f->widen(row->dtype, (const uint16_t *)row->grad + at, room->grad, n);
    whole.dtype = CB_F32;
    whole.param = from_element(weight, at);
    whole.grad = from_element(room->grad, at);
    return whole;
}

void cb_halves_close(const cb_half_fns *f, const cb_optim_row *row, const cb_optim_row *whole,
                     int64_t at, int64_t n) {
    const float *weight = (const float *)((uintptr_t)whole->param + (uintptr_t)at * sizeof *weight);
    f->close[row->half](row, at, n, weight);
}
