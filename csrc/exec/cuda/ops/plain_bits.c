/* Bools as bits: a thread for each packed byte. Indices as bytes: a thread for each index. */
#include "families.h"

void cb_cu_bits(const cb_cu_op *x) {
    static const char pack[] = "uint8_t byte = 0;\n"
                               "for (int k = 0; k < 8 && i * 8 + k < (I)$n; k++)\n"
                               "if (!(widen($in[i * 8 + k]) <= 0)) byte |= (uint8_t)(1 << k);\n"
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

/* An index is written from an unsigned number that may have wrapped around. */
void cb_cu_packed_index(const cb_cu_op *x) {
    static const char window[] = "const I place = i % ($oh * $ow);\n"
                                 "const uint32_t row = (uint32_t)(place / $ow * $sh - $ph);\n"
                                 "const uint32_t column = (uint32_t)(place % $ow * $sw - $pw);\n";
    static const char none[] = "const uint32_t row = 0, column = 0;\n";
    static const char pack[] =
        "$(window)const uint32_t index = (uint32_t)$in[i], at = index / $width;\n"
        "const uint32_t number = (at - row) * $kernel + (index - at * $width) - column;\n"
        "for (int k = 0; k < $size; k++) $out[i * $size + k] = (uint8_t)(number >> 8 * k);\n";
    static const char unpack[] =
        "$(window)uint32_t number = 0;\n"
        "for (int k = 0; k < $size; k++) number |= (uint32_t)$in[i * $size + k] << 8 * k;\n"
        "const uint32_t down = number / $kernel;\n"
        "$out[i] = (row + down) * $width + column + (number - down * $kernel);\n";
    const bool packs = x->instr->code == CB_OP_PACK_INDEX;
    const int64_t *a = x->instr->attrs.i;
    const cb_shape *shape = packs ? &cb_cu_in(x, 0)->shape : &cb_cu_out(x, 0)->shape;
    const int64_t n = cb_numel(shape);
    if (n == 0) return;
    cb_cu_each(x, n);
    cb_cu_op_template(x, "in=x0 out=y0", packs ? pack : unpack,
                      CB_CU_HOLES(CB_CU_HOLE_TEXT(window, a[0] ? window : none),
                                  CB_CU_HOLE(oh, a[0] ? shape->dim[2] : 1),
                                  CB_CU_HOLE(ow, a[0] ? shape->dim[3] : 1), CB_CU_HOLE(sh, a[2]),
                                  CB_CU_HOLE(sw, a[3]), CB_CU_HOLE(ph, a[4]), CB_CU_HOLE(pw, a[5]),
                                  CB_CU_HOLE(kernel, a[0] ? a[1] : 1),
                                  CB_CU_HOLE(width, a[0] ? a[6] : 1),
                                  CB_CU_HOLE(size, cb_packed_index_bytes(&x->instr->attrs))));
    cb_cu_end_each(x, n);
}
