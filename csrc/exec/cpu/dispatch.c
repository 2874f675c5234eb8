/* One row of finders for each instruction set; each finder returns the kernels of one file. The
 * search runs when a program is compiled, never when it runs, so a walk over a dozen functions is
 * fast enough. */
#include "../../base/cpu.h"
#include "executor/record.h"
#include "kern.h"

typedef cb_kernel_fn (*finder)(cb_opcode code, cb_dtype dtype);

#define KERN_ENTRY(file, isa) cb_kern_##file##_##isa,
#define KERN_ROW(isa) CB_KERN_FILES(KERN_ENTRY, isa) CB_KERN_PLAIN(KERN_ENTRY)
#if defined(__x86_64__)
static const finder baseline[] = {KERN_ROW(baseline)};
static const finder avx2[] = {KERN_ROW(avx2)};
static const finder avx512[] = {KERN_ROW(avx512)};
static const finder *const finders[CB_ISA_COUNT] = {baseline, avx2, avx512};
extern const cb_x_table cb_x_table_baseline, cb_x_table_avx2, cb_x_table_avx512;
extern const cb_x_table cb_x_wide_baseline, cb_x_wide_avx2, cb_x_wide_avx512;
static const cb_x_table *const tables[2][CB_ISA_COUNT] = {
    {&cb_x_table_baseline, &cb_x_table_avx2, &cb_x_table_avx512},
    {&cb_x_wide_baseline, &cb_x_wide_avx2, &cb_x_wide_avx512}};
#else
static const finder baseline[] = {KERN_ROW(baseline)};
static const finder *const finders[CB_ISA_COUNT] = {baseline};
extern const cb_x_table cb_x_table_baseline, cb_x_wide_baseline;
static const cb_x_table *const tables[2][CB_ISA_COUNT] = {{&cb_x_table_baseline},
                                                          {&cb_x_wide_baseline}};
#endif
#define N_FILES (sizeof baseline / sizeof baseline[0])

cb_kernel_fn cb_cpu_kernel(cb_opcode code, cb_dtype dtype) {
    const finder *row = finders[cb_cpu_kernel_isa()];
    for (size_t i = 0; i < N_FILES; i++) {
        cb_kernel_fn kernel = row[i](code, dtype);
        if (kernel) return kernel;
    }
    return NULL;
}

const cb_x_table *cb_x_table_of(bool is_wide) { return tables[is_wide][cb_cpu_kernel_isa()]; }
