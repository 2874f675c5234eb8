/* Gather, scatter and embedding. A separate kernel checks indices first: a run with an index out of
 * range fails and changes none of its inputs. Indices are checked again where they are used, so
 * that no access is out of bounds. Sums are in the order of the index. */
#include "families.h"

typedef struct lines { /* the operand is [outer, rows, inner], the index [outer, n, inner] */
    int64_t rows, n, inner;
} lines;

static lines lines_of(const cb_shape *x, const cb_shape *index, int64_t axis) {
    return (lines){
        .rows = x->dim[axis], .n = index->dim[axis], .inner = cb_numel_of(x, axis + 1, x->rank)};
}

/* Reads one element; the index is checked again. */
static const char read_text[] = "const bool is_there = r >= 0 && r < (int64_t)$(there);\n"
                                "const I from = is_there ? $(where) : 0;\n"
                                "$out[i] = $in[from];\n";

static void gather(const cb_cu_op *x) {
    static const char text[] = "const int64_t r = $index[i];\n"
                               "const I INNER = $inner;\n"
                               "const I outer = i / (INNER * (I)$n);\n"
                               "$(read)";
    const cb_operand *in = cb_cu_in(x, 0), *index = cb_cu_in(x, 1);
    const lines l = lines_of(&in->shape, &index->shape, x->instr->attrs.i[0]);
    const int64_t n = cb_numel(&index->shape);
    cb_cu_check_index(x, 1, l.rows, NULL);
    if (l.rows == 0) return;
    cb_cu_each(x, n);
    cb_cu_op_template(
        x, "index=x1 in=x0 out=y0", text,
        CB_CU_HOLES(CB_CU_HOLE(inner, l.inner), CB_CU_HOLE(n, l.n), CB_CU_HOLE(rows, l.rows),
                    CB_CU_HOLE_TEXT(read, read_text), CB_CU_HOLE_COUNT(there, l.rows),
                    CB_CU_HOLE_TEXT(where, "(outer * (I)$rows + (I)r) * INNER + i % INNER")));
    cb_cu_end_each(x, n);
}

static void embedding(const cb_cu_op *x) {
    static const char text[] = "const int64_t r = $index[i / (I)$columns];\n"
                               "$(read)";
    const int64_t rows = cb_cu_in(x, 0)->shape.dim[0], columns = cb_cu_in(x, 0)->shape.dim[1],
                  n = cb_numel(&cb_cu_out(x, 0)->shape);
    cb_cu_check_index(x, 1, rows, NULL);
    if (rows == 0) return;
    cb_cu_each(x, n);
    cb_cu_op_template(x, "index=x1 in=x0 out=y0", text,
                      CB_CU_HOLES(CB_CU_HOLE(columns, columns), CB_CU_HOLE_TEXT(read, read_text),
                                  CB_CU_HOLE_COUNT(there, rows),
                                  CB_CU_HOLE_TEXT(where, "(I)r * (I)$columns + i % (I)$columns")));
    cb_cu_end_each(x, n);
}

static void scatter_add(const cb_cu_op *x) {
    static const char text[] = "const I INNER = $inner, column = i % INNER;\n"
                               "const int64_t r = i / INNER % (I)$rows;\n"
                               "const I outer = i / (INNER * (I)$rows);\n"
                               "auto sum = widen($base[i]);\n"
                               "for (I k = 0; k < (I)$n; k++) {\n"
                               "const I from = (outer * (I)$n + k) * INNER + column;\n"
                               "if ($index[from] == r) sum += widen($source[from]);\n"
                               "}\n"
                               "narrow(&$out[i], sum);\n";
    const cb_operand *base = cb_cu_in(x, 0), *index = cb_cu_in(x, 1);
    const lines l = lines_of(&base->shape, &index->shape, x->instr->attrs.i[0]);
    const int64_t n = cb_numel(&base->shape);
    cb_cu_check_index(x, 1, l.rows, NULL);
    cb_cu_each(x, n);
    cb_cu_op_template(
        x, "base=x0 index=x1 source=x2 out=y0", text,
        CB_CU_HOLES(CB_CU_HOLE(inner, l.inner), CB_CU_HOLE(rows, l.rows), CB_CU_HOLE(n, l.n)));
    cb_cu_end_each(x, n);
}

/* Uses a block for each row of the result and 128 of its columns. The block's threads search 128
 * indices at a time for the row, and add the matching elements in order. */
static void embedding_bwd(const cb_cu_op *x) {
    static const char text[] =
        "__shared__ bool is_row[$threads];\n"
        "const I column = blockIdx.y * $threads + threadIdx.x;\n"
        "$real sum = 0;\n"
        "const I N = (I)$n;\n"
        "for (I first = 0; first < N; first += $threads) {\n"
        "const I k = first + threadIdx.x;\n"
        "const bool hit = k < N && $index[k] == (int64_t)row;\n"
        "is_row[threadIdx.x] = hit;\n"
        "if (!__syncthreads_or(hit)) continue;\n"
        "for (int j = 0; j < $threads; j++)\n"
        "if (is_row[j] && column < COLUMNS) sum += widen($g[(first + j) * COLUMNS + column]);\n"
        "__syncthreads();\n"
        "}\n"
        "if (column < COLUMNS) narrow(&$out[row * COLUMNS + column], sum);\n";
    const cb_operand *g = cb_cu_in(x, 0);
    const int64_t rows = x->instr->attrs.i[0], columns = g->shape.dim[g->shape.rank - 1],
                  n = cb_numel(&cb_cu_in(x, 1)->shape);
    const uint32_t across = (uint32_t)cb_cu_div_up(columns, CB_CU_ROW_THREADS);
    cb_cu_check_index(x, 1, rows, NULL);
    cb_cu_each_row(x, columns);
    cb_cu_op_template(x, "g=x0 index=x1 out=y0", text,
                      CB_CU_HOLES(CB_CU_HOLE(threads, CB_CU_ROW_THREADS), CB_CU_HOLE_COUNT(n, n),
                                  CB_CU_HOLE_TEXT(real, cb_cu_real(g->dtype))));
    cb_cu_end(x->code, (cb_cu_grid){(uint32_t)rows, across, 1}, CB_CU_ROW_THREADS);
}

void cb_cu_index(const cb_cu_op *x) {
    switch (x->instr->code) {
        case CB_OP_GATHER: gather(x); break;
        case CB_OP_SCATTER_ADD: scatter_add(x); break;
        case CB_OP_EMBEDDING: embedding(x); break;
        default: embedding_bwd(x);
    }
}
