/* Bools as bits: a thread for each packed byte. */
#include "families.h"

static void pack(const cb_cu_op *x) {
    static const char text[] = "uint8_t byte = 0;\n"
                               "for (int k = 0; k < 8 && i * 8 + k < (I)$n; k++)\n"
                               "if (widen($in[i * 8 + k]) > 0) byte |= (uint8_t)(1 << k);\n"
                               "$out[i] = byte;\n";
    const int64_t n = cb_numel(&cb_cu_in(x, 0)->shape), bytes = cb_numel(&cb_cu_out(x, 0)->shape);
    if (n == 0) return;
    cb_cu_each(x, bytes);
    cb_cu_op_template(x, "in=x0 out=y0", text, CB_CU_HOLES(CB_CU_HOLE_COUNT(n, n)));
    cb_cu_end_each(x, bytes);
}

static void unpack(const cb_cu_op *x) {
    static const char text[] = "const uint8_t byte = $in[i];\n"
                               "for (int k = 0; k < 8 && i * 8 + k < (I)$n; k++)\n"
                               "$out[i * 8 + k] = byte >> k & 1;\n";
    const int64_t n = cb_numel(&cb_cu_out(x, 0)->shape), bytes = cb_numel(&cb_cu_in(x, 0)->shape);
    if (n == 0) return;
    cb_cu_each(x, bytes);
    cb_cu_op_template(x, "in=x0 out=y0", text, CB_CU_HOLES(CB_CU_HOLE_COUNT(n, n)));
    cb_cu_end_each(x, bytes);
}

void cb_cu_bits(const cb_cu_op *x) {
    if (x->instr->code == CB_OP_PACK_BITS) pack(x);
    else unpack(x);
}
