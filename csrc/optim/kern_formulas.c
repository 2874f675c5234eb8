/* The formulas of formulas.h as loops, in f32 and f64, compiled for each instruction set
 * (cmake/kernels.cmake). Everything but the table is static: a function shared between builds would
 * carry the instructions of one build into another. Each product and sum is rounded separately, and
 * roots and quotients are correctly rounded, so all builds give bitwise equal results. */
#include "formulas.h"

#include <math.h>

#define CB_INLINE static inline __attribute__((always_inline))

/* A call handles whole blocks, so nothing is combined across threads. */
#define CB_BLOCK_ROOM CB_STATE_BLOCK
#define CB_MOST_ACROSS(x) (x)
#define CB_LEAST_ACROSS(x) (x)
#define CB_WRITES_SCALES true

#include "blocks_8bit.h"

#define CB_IMPL "formulas_impl.h"
#include "both_reals.h"

#define CB_FORMULA_OF_ROW(NAME_, x)                                                       \
    static void x(const double *factor, const cb_optim_row *row, int64_t at, int64_t n) { \
        CB_OF_TYPE(row->dtype, x, factor, row, at, n);                                    \
    }
CB_FORMULAS(CB_FORMULA_OF_ROW)

#define CB_TABLE_PASTE(isa) cb_formulas_##isa
#define CB_TABLE_OF(isa) CB_TABLE_PASTE(isa)
#define CB_TABLE_ENTRY(NAME_, x) [CB_FORMULA_##NAME_] = x,
extern const cb_formula_fn CB_TABLE_OF(CB_KERN_ISA)[CB_FORMULA_COUNT];
const cb_formula_fn CB_TABLE_OF(CB_KERN_ISA)[CB_FORMULA_COUNT] = {CB_FORMULAS(CB_TABLE_ENTRY)};
