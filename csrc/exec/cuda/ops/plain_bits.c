/* Bools as bits: a thread for each packed byte. */
#include "families.h"

void cb_cu_bits(const cb_cu_op *x) {
    static const char pack[] = "uint8_t byte = 0;\n"
                               "for (int k = 0; k < 8 && i * 8 + k < (I)$n; k++)\n"
                               "if (widen($in[i * 8 + k]) > 0) byte |= (uint8_t)(1 << k);\n"
                               "$out[i] = byte;\n";
    static const char unpack[] = "const uint8_t byte = $in[i];\n"
                                 "for (int k = 0; k < 8 && i * 8 + k < (I)$n; k++)\n"
                                 "$out[i * 8 + k] = byte >> k & 1;\n";
    const bool packs = x->instr->code == CB_OP_PACK_BITS;
    const int64_t n_in = cb_numel(&cb_cu_in(x, 0)->shape),
                  n_out = cb_numel(&cb_cu_out(x, 0)->shape);
    const int64_t n = packs ? n_in : n_out, bytes = packs ? n_out : n_in;
    if (n == 0) return;
    cb_cu_each(x, bytes);
    cb_cu_op_template(x, "in=x0 out=y0", packs ? pack : unpack,
                      CB_CU_HOLES(CB_CU_HOLE_COUNT(n, n)));
    cb_cu_end_each(x, bytes);
}
