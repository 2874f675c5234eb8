/* Reading and adding by index. Indices are checked by a kernel before (a run with a wrong one
 * fails, and changes none of its inputs), and once more where they are used, so that none leads
 * out of an array. Sums are in the order of the index. */
#include <stdio.h>

#include "families.h"

typedef struct lines { /* [outer, rows, inner], and [outer, n, inner] of the index */
    int64_t rows, n, inner;
} lines;

static lines lines_of(const cb_shape *x, const cb_shape *index, int64_t axis) {
    return (lines){
        .rows = x->dim[axis], .n = index->dim[axis], .inner = cb_numel_of(x, axis + 1, x->rank)};
}

static void add_read(const cb_cu_op *x, int64_t n, int64_t rows, const char *where) {
    if (n == 0) return;
    const int in = cb_cu_in_param(x, 0), out = cb_cu_out_param(x, 0);
    cb_cu_add(x->code, "const bool is_there = r >= 0 && r < (int64_t)p%d;\n",
              cb_cu_count(x->code, rows));
    cb_cu_add(x->code, "const I from = is_there ? %s : 0;\np%d[i] = p%d[from];\n", where, out, in);
    cb_cu_end_each(x, n);
}

static void gather(const cb_cu_op *x) {
    const cb_operand *in = cb_cu_in(x, 0), *index = cb_cu_in(x, 1);
    const lines l = lines_of(&in->shape, &index->shape, x->instr->attrs.i[0]);
    const int64_t n = cb_numel(&index->shape);
    cb_cu_check_index(x, 1, l.rows, NULL);
    if (n == 0 || l.rows == 0) return;
    cb_cu_each(x, n);
    cb_cu_add(x->code, "const int64_t r = p%d[i];\nconst I INNER = %lld;\n", cb_cu_in_param(x, 1),
              (long long)l.inner);
    cb_cu_add(x->code, "const I outer = i / (INNER * (I)%lld);\n", (long long)l.n);
    char where[96];
    (void)snprintf(where, sizeof where, "(outer * (I)%lld + (I)r) * INNER + i %% INNER",
                   (long long)l.rows);
    add_read(x, n, l.rows, where);
}

static void embedding(const cb_cu_op *x) {
    const int64_t rows = cb_cu_in(x, 0)->shape.dim[0], columns = cb_cu_in(x, 0)->shape.dim[1],
                  n = cb_numel(&cb_cu_out(x, 0)->shape);
    cb_cu_check_index(x, 1, rows, NULL);
    if (n == 0 || rows == 0) return;
    cb_cu_each(x, n);
    cb_cu_add(x->code, "const int64_t r = p%d[i / (I)%lld];\n", cb_cu_in_param(x, 1),
              (long long)columns);
    char where[96];
    (void)snprintf(where, sizeof where, "(I)r * (I)%lld + i %% (I)%lld", (long long)columns,
                   (long long)columns);
    add_read(x, n, rows, where);
}

static void scatter_add(const cb_cu_op *x) {
    cb_cu_code *c = x->code;
    const cb_operand *base = cb_cu_in(x, 0), *index = cb_cu_in(x, 1);
    const lines l = lines_of(&base->shape, &index->shape, x->instr->attrs.i[0]);
    const int64_t n = cb_numel(&base->shape);
    cb_cu_check_index(x, 1, l.rows, NULL);
    if (n == 0) return;
    cb_cu_each(x, n);
    const int b = cb_cu_in_param(x, 0), at = cb_cu_in_param(x, 1), src = cb_cu_in_param(x, 2);
    cb_cu_add(c, "const I INNER = %lld, column = i %% INNER;\n", (long long)l.inner);
    cb_cu_add(c,
              "const int64_t r = i / INNER %% (I)%lld;\nconst I outer = i / (INNER * (I)%lld);\n",
              (long long)l.rows, (long long)l.rows);
    cb_cu_add(c, "auto sum = widen(p%d[i]);\nfor (I k = 0; k < (I)%lld; k++) {\n", b,
              (long long)l.n);
    cb_cu_add(c, "const I from = (outer * (I)%lld + k) * INNER + column;\n", (long long)l.n);
    cb_cu_add(c, "if (p%d[from] == r) sum += widen(p%d[from]);\n}\nnarrow(&p%d[i], sum);\n", at,
              src, cb_cu_out_param(x, 0));
    cb_cu_end_each(x, n);
}

/* A block for each row of the result and 128 of its columns: its threads look for the row in 128
 * indices at a time, and add what they have found in order. */
static void embedding_bwd(const cb_cu_op *x) {
    cb_cu_code *c = x->code;
    const cb_operand *g = cb_cu_in(x, 0);
    const int64_t rows = x->instr->attrs.i[0], columns = g->shape.dim[g->shape.rank - 1],
                  n = cb_numel(&cb_cu_in(x, 1)->shape);
    cb_cu_check_index(x, 1, rows, NULL);
    if (rows == 0 || columns == 0) return;
    cb_cu_each_row(x, columns);
    const int from = cb_cu_in_param(x, 0), index = cb_cu_in_param(x, 1),
              out = cb_cu_out_param(x, 0);
    cb_cu_add(c, "__shared__ bool is_row[%d];\nconst I column = blockIdx.y * %d + threadIdx.x;\n",
              CB_CU_ROW_THREADS, CB_CU_ROW_THREADS);
    cb_cu_add(c, "%s sum = 0;\nconst I N = (I)p%d;\n", cb_cu_real(g->dtype), cb_cu_count(c, n));
    cb_cu_add(c, "for (I first = 0; first < N; first += %d) {\n", CB_CU_ROW_THREADS);
    cb_cu_add(
        c, "const I k = first + threadIdx.x;\nconst bool hit = k < N && p%d[k] == (int64_t)row;\n",
        index);
    cb_cu_add(c, "is_row[threadIdx.x] = hit;\nif (!__syncthreads_or(hit)) continue;\n");
    cb_cu_add(c,
              "for (int j = 0; j < %d; j++)\nif (is_row[j] && column < COLUMNS) sum += "
              "widen(p%d[(first + j) * COLUMNS + column]);\n__syncthreads();\n}\n",
              CB_CU_ROW_THREADS, from);
    cb_cu_add(c, "if (column < COLUMNS) narrow(&p%d[row * COLUMNS + column], sum);\n", out);
    cb_cu_end(c,
              (cb_cu_grid){(uint32_t)rows, (uint32_t)cb_cu_div_up(columns, CB_CU_ROW_THREADS), 1},
              CB_CU_ROW_THREADS);
}

void cb_cu_index(const cb_cu_op *x) {
    switch (x->instr->code) {
        case CB_OP_GATHER: gather(x); break;
        case CB_OP_SCATTER_ADD: scatter_add(x); break;
        case CB_OP_EMBEDDING: embedding(x); break;
        default: embedding_bwd(x);
    }
}
