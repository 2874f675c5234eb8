/* One table of formulas for each instruction set. All of them give bitwise equal results. */
#include "formulas.h"

#include "../base/cpu.h"

typedef cb_formula_fn formula_table[CB_FORMULA_COUNT];

extern const formula_table cb_formulas_baseline;
#if defined(__x86_64__)
extern const formula_table cb_formulas_avx2, cb_formulas_avx512;
static const formula_table *const tables[CB_ISA_COUNT] = {&cb_formulas_baseline, &cb_formulas_avx2,
                                                          &cb_formulas_avx512};
#else
static const formula_table *const tables[CB_ISA_COUNT] = {&cb_formulas_baseline};
#endif

cb_formula_fn cb_formula_of(cb_formula formula) { return (*tables[cb_cpu_kernel_isa()])[formula]; }
