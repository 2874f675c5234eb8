#include "reads.h"

#include "../ir/work.h"

cb_made cb_made_by(cb_opcode code, cb_part part, uint32_t output, bool late) {
    switch (part) {
        case CB_PART_NONE: break;
        case CB_PART_MAP: return CB_MADE_FULL;
        case CB_PART_ROW_WISE:
            if (output == 0) return CB_MADE_FULL;
            return code == CB_OP_LAYER_NORM || code == CB_OP_RMS_NORM ? CB_MADE_ROW : CB_MADE_LAST;
        case CB_PART_ROWS:
        case CB_PART_ACROSS:
        case CB_PART_ROW_MAP: return CB_MADE_ROW;
        case CB_PART_COLUMNS:
        case CB_PART_PIECES:
        case CB_PART_ODD_PIECES:
        case CB_PART_LINES:
        case CB_PART_BITS: return CB_MADE_LAST;
        case CB_PART_TOTAL: return CB_MADE_LATE;
        case CB_PART_ONE: return late ? CB_MADE_LATE : CB_MADE_ONE;
    }
    return CB_MADE_LAST;
}

/* True for a weight or a bias, which has one element per column. */
static bool is_weight(cb_opcode code, uint32_t input) {
    switch (code) {
        case CB_OP_LAYER_NORM:
        case CB_OP_RMS_NORM: return input >= 1;
        case CB_OP_LAYER_NORM_BWD:
        case CB_OP_RMS_NORM_BWD: return input == 2;
        default: return false;
    }
}

bool cb_may_read(cb_opcode code, cb_part part, uint32_t input, cb_made made, cb_view view) {
    if (made == CB_MADE_OUTSIDE) return true;
    if (is_weight(code, input)) return false;
    switch (made) {
        case CB_MADE_FULL: return view == CB_VIEW_SAME;
        case CB_MADE_ROW: return view == CB_VIEW_ROW;
        case CB_MADE_ONE: return view == CB_VIEW_ONE;
        case CB_MADE_LATE: return view == CB_VIEW_ONE && part == CB_PART_ONE;
        case CB_MADE_OUTSIDE:
        case CB_MADE_LAST: break;
    }
    return false;
}

void cb_parts_add(cb_parts *parts, cb_opcode code, cb_part part) {
    parts->total |= part == CB_PART_TOTAL;
    parts->lines |= part == CB_PART_LINES;
    parts->columns |=
        part == CB_PART_COLUMNS || code == CB_OP_LAYER_NORM_BWD || code == CB_OP_RMS_NORM_BWD;
    parts->eights |= code == CB_OP_DROPOUT || code == CB_OP_UNIFORM || part == CB_PART_BITS;
}

void cb_parts_add_dtype(cb_parts *parts, cb_dtype dtype) {
    parts->wide |= dtype == CB_F64;
    parts->narrow |= cb_dtype_is_float(dtype) && dtype != CB_F64;
}

/* A sum of all elements adds leaves of a fixed number of elements in a fixed number of lanes
 * (micro/sums.h). A generator draws eight numbers at a time, and eight bits are packed in a byte,
 * which rows must not cut. Rows that cut lanes leave the summed values in memory; then at most two
 * blocks of rows may share a leaf. Otherwise blocks must not cut leaves. */
#define LEAF 1024
#define LANES 64
#define EIGHT 8

/* A sum of all elements needs whole lines of the inner axis at a time, so that leaves are added in
 * order. */
static bool fit_across(const cb_parts *parts, const cb_domain *domain) {
    if (parts->eights && domain->inner % EIGHT) return false;
    if (!parts->total && !parts->lines) return true;
    return domain->columns * domain->inner <= CB_LINES_MAX;
}

bool cb_parts_fit(const cb_parts *parts, const cb_domain *domain) {
    if (domain->columns == 0) return true;
    if (domain->inner) return fit_across(parts, domain);
    if (parts->eights && domain->columns % EIGHT) return false;
    if (!parts->total) return true;
    const int64_t rows = domain->count / domain->columns,
                  blocks = parts->columns ? cb_row_blocks(rows, domain->columns) : 1;
    const int64_t in_block = (rows + blocks - 1) / blocks * domain->columns;
    return blocks == 1 || (domain->columns % LANES ? in_block >= LEAF : in_block % LEAF == 0);
}
