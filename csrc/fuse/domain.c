#include "domain.h"

#include "../ir/work.h"

/* Sums of few rows are not cut into blocks that could be tasks, so they join a group only if they
 * are small. */
#define COLUMN_BLOCKS_MIN 4
#define COLUMN_COUNT_SMALL 32768
/* For narrower columns a separate kernel is faster. */
#define COLUMNS_MIN 128

static bool lies_across(const cb_domain *domain) {
    return domain->inner >= CB_INNER_MIN && domain->columns >= CB_ACROSS_MIN &&
           domain->columns <= CB_ACROSS_MAX &&
           (domain->inner >= CB_INNER_WIDE || domain->columns * domain->inner >= CB_ACROSS_LEAST) &&
           domain->count % (domain->columns * domain->inner) == 0;
}

static bool has_rows(const cb_domain *domain) {
    if (domain->inner) return lies_across(domain);
    if (domain->columns < CB_ROW_MIN || domain->count % domain->columns) return false;
    const int64_t rows = domain->count / domain->columns;
    return rows >= 2 && domain->columns <= (rows >= CB_ROWS_ENOUGH ? CB_ROW_LONGEST : CB_ROW_MAX);
}

static bool sums_columns(const cb_domain *domain) {
    return domain->count <= COLUMN_COUNT_SMALL ||
           cb_row_blocks(domain->count / domain->columns, domain->columns) >= COLUMN_BLOCKS_MIN;
}

/* ---- what an op is, and its own domain ------------------------------------------------------- */

/* Returns the kind of a reduction, by the axes longer than 1 that it reduces: all, the trailing
 * ones, the leading ones, those between two kept axes, or others. */
static cb_part reduction_of(const cb_attrs *attrs, const cb_shape *in, cb_domain *own) {
    const cb_shape *axes = &attrs->dims;
    int64_t reduced = 1, kept = 1, behind = 1; /* behind: elements of the kept axes after the last
                                                  reduced one */
    int32_t next = 0, turns = 0;
    bool was = false, first = false, any = false;
    for (int32_t k = 0; k < in->rank; k++) {
        bool reduces = axes->rank == 0 || (next < axes->rank && axes->dim[next] == k);
        next += reduces;
        if (in->dim[k] == 1) continue;
        *(reduces ? &reduced : &kept) *= in->dim[k];
        behind = reduces ? 1 : behind * in->dim[k];
        if (!any) first = reduces;
        else turns += reduces != was;
        was = reduces;
        any = true;
    }
    *own = (cb_domain){.count = reduced * kept};
    const bool is_between = turns == 2 && !first;
    if (reduced <= 1 || (turns > 1 && !is_between)) return CB_PART_NONE;
    if (turns == 0) return CB_PART_TOTAL;
    if (is_between) {
        own->columns = reduced;
        own->inner = behind;
        return CB_PART_ACROSS;
    }
    own->columns = first ? kept : reduced;
    return first ? CB_PART_COLUMNS : CB_PART_ROWS;
}

static bool is_sum(cb_opcode code) { return code == CB_OP_SUM || code == CB_OP_MEAN; }

/* Returns the part of a sum over pieces of rows. */
static cb_part pieces_of(const cb_domain *domain, int64_t length) {
    const bool has = has_rows(domain) && length >= CB_PIECE_MIN && domain->columns % length == 0;
    const bool is_whole =
        length >= CB_PIECE_WHOLE && length <= CB_PIECE_MAX && (length & (length - 1)) == 0;
    if (!has) return CB_PART_NONE;
    return is_whole ? CB_PART_PIECES : CB_PART_ODD_PIECES;
}

/* Handles ops whose rows are the last axis. */
static cb_part last_axis(cb_part part, const cb_shape *full, cb_domain *own) {
    if (full->rank == 0) return CB_PART_NONE;
    *own = (cb_domain){.count = cb_numel(full), .columns = full->dim[full->rank - 1]};
    return part;
}

/* Handles ops that read or write one position of each row. Rows must be long enough for a group. */
static cb_part indexed_axis(cb_part part, const cb_shape *full, cb_domain *own) {
    part = last_axis(part, full, own);
    return own->columns < CB_ROW_INDEXED ? CB_PART_NONE : part;
}

/* True if the op takes one index per row, along the row. */
static bool indexes_rows(const cb_shaped *op) {
    const int32_t last = op->in1->rank - 1;
    return op->attrs->i[0] == last && op->in1->dim[last] == 1;
}

/* Returns the part of an op in its own domain, or NONE. */
static cb_part own_part(const cb_shaped *op, cb_domain *own) {
    cb_part part = CB_PART_NONE;
    *own = (cb_domain){0};
    switch (op->code) {
        case CB_OP_SUM:
        case CB_OP_MEAN:
        case CB_OP_AMAX:
        case CB_OP_AMIN:
            part = reduction_of(op->attrs, op->in0, own);
            if (part == CB_PART_ROWS || part == CB_PART_ACROSS) return part;
            return is_sum(op->code) ? part : CB_PART_NONE;
        case CB_OP_SOFTMAX:
        case CB_OP_SOFTMAX_BWD:
        case CB_OP_LOG_SOFTMAX:
        case CB_OP_LOG_SOFTMAX_BWD:
        case CB_OP_LAYER_NORM:
        case CB_OP_LAYER_NORM_BWD:
        case CB_OP_RMS_NORM:
        case CB_OP_RMS_NORM_BWD: return last_axis(CB_PART_ROW_WISE, op->out0, own);
        case CB_OP_CROSS_ENTROPY_BWD: return indexed_axis(CB_PART_ROW_WISE, op->out0, own);
        case CB_OP_SCATTER_ADD:
            if (!indexes_rows(op)) return CB_PART_NONE;
            return indexed_axis(CB_PART_ROW_WISE, op->out0, own);
        case CB_OP_CROSS_ENTROPY: return indexed_axis(CB_PART_ROWS, op->in0, own);
        case CB_OP_GATHER:
            return indexes_rows(op) ? indexed_axis(CB_PART_ROWS, op->in0, own) : CB_PART_NONE;
        case CB_OP_PACK_BITS: own->count = cb_numel(op->in0); return CB_PART_BITS;
        case CB_OP_UNPACK_BITS: own->count = cb_numel(op->out0); return CB_PART_MAP;
        default: break;
    }
    if (!(cb_op_def_of(op->code)->flags & CB_OPF_POINTWISE)) return CB_PART_NONE;
    own->count = cb_numel(op->out0);
    return CB_PART_MAP;
}

/* True for the gradient of a norm. Its gradients of weights, if an op reads them, are sums of
 * columns. */
static bool is_norm_gradient(const cb_shaped *op) {
    return (op->code == CB_OP_LAYER_NORM_BWD || op->code == CB_OP_RMS_NORM_BWD) &&
           !op->has_one_result;
}

/* True if an op sums adjacent elements. */
static bool sums_lines(const cb_shaped *op, cb_part part, const cb_domain *own,
                       const cb_domain *domain) {
    return domain->inner && part == CB_PART_ROWS && is_sum(op->code) &&
           own->columns == domain->inner;
}

cb_part cb_part_of(const cb_shaped *op, const cb_domain *domain) {
    cb_domain own;
    cb_part part = own_part(op, &own);
    if (part == CB_PART_NONE || own.count <= 0 || domain->count <= 0) return CB_PART_NONE;
    if (domain->columns && !has_rows(domain)) return CB_PART_NONE;
    if (part == CB_PART_MAP) {
        if (own.count == domain->count) return CB_PART_MAP;
        if (domain->columns && own.count == domain->count / domain->columns) return CB_PART_ROW_MAP;
        return own.count == 1 ? CB_PART_ONE : CB_PART_NONE;
    }
    if (own.count != domain->count) return CB_PART_NONE;
    if (part == CB_PART_TOTAL) return part;
    if (part == CB_PART_BITS) return domain->inner ? CB_PART_NONE : part;
    if (sums_lines(op, part, &own, domain)) return CB_PART_LINES;
    if (own.inner != domain->inner) return CB_PART_NONE;
    if (part == CB_PART_ROWS && is_sum(op->code) && own.columns < domain->columns)
        return pieces_of(domain, own.columns);
    if (own.columns != domain->columns || !has_rows(&own)) return CB_PART_NONE;
    bool columns = part == CB_PART_COLUMNS || is_norm_gradient(op);
    if (part == CB_PART_COLUMNS && own.columns < COLUMNS_MIN) return CB_PART_NONE;
    return columns && !sums_columns(domain) ? CB_PART_NONE : part;
}

bool cb_domain_join(cb_domain *domain, const cb_shaped *op) {
    cb_domain own, joined = *domain;
    if (own_part(op, &own) == CB_PART_NONE) return false;
    if (domain->count <= 1 && own.count > domain->count) joined = own;
    else if (own.count == domain->count && domain->columns == 0)
        joined.columns = own.columns, joined.inner = own.inner;
    if (cb_part_of(op, &joined) == CB_PART_NONE) return false;
    *domain = joined;
    return true;
}

/* ---- views ----------------------------------------------------------------------------------- */

typedef struct axes {
    int rank;
    int64_t count, dim[CB_MAX_RANK], stride[CB_MAX_RANK];
} axes;

/* Drops axes of size 1 and merges neighbouring axes with a common stride. */
static axes merged(const cb_shape *shape, const int64_t *stride) {
    axes w = {.count = 1};
    for (int32_t k = 0; k < shape->rank; k++) {
        w.count *= shape->dim[k];
        if (shape->dim[k] == 1) continue;
        bool joins = w.rank > 0 && w.stride[w.rank - 1] == stride[k] * shape->dim[k];
        int at = joins ? w.rank - 1 : w.rank++;
        w.dim[at] = joins ? w.dim[at] * shape->dim[k] : shape->dim[k];
        w.stride[at] = stride[k];
    }
    return w;
}

/* Returns CB_VIEW_ROW if the value is the same for each element of a strided row, that is, if its
 * strides along the row are 0. */
static cb_view view_across(const axes *w, const cb_domain *domain) {
    const int outer = w->rank - 3; /* the axis along the strided rows */
    if (w->count != domain->count || w->rank < 2 || outer > 0) return CB_VIEW_OTHER;
    const bool is_inner = w->dim[outer + 2] == domain->inner && w->stride[outer + 2] == 1,
               is_same = w->dim[outer + 1] == domain->columns && w->stride[outer + 1] == 0,
               follows = outer < 0 || w->stride[outer] == domain->inner;
    return is_inner && is_same && follows ? CB_VIEW_ROW : CB_VIEW_OTHER;
}

cb_view cb_view_of(const cb_shape *shape, const int64_t *stride, const cb_domain *domain) {
    const axes w = merged(shape, stride);
    if (w.count == 0) return CB_VIEW_OTHER;
    bool contiguous = w.rank == 0 || (w.rank == 1 && w.stride[0] == 1);
    if (contiguous && w.count == domain->count) return CB_VIEW_SAME;
    if (w.rank == 0 || (w.rank == 1 && w.stride[0] == 0)) return CB_VIEW_ONE;
    if (domain->columns == 0) return CB_VIEW_OTHER;
    const int64_t rows = domain->count / domain->columns;
    if (contiguous && w.count == rows) return CB_VIEW_ROW;
    if (domain->inner) return view_across(&w, domain);
    if (w.rank != 2 || w.dim[0] != rows || w.dim[1] != domain->columns) return CB_VIEW_OTHER;
    if (w.stride[0] == 1 && w.stride[1] == 0) return CB_VIEW_ROW;
    return w.stride[0] == 0 && w.stride[1] == 1 ? CB_VIEW_COLUMN : CB_VIEW_OTHER;
}
