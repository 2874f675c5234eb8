/* Softmax, cross-entropy, norms of rows and their gradients, with a block for each row. The
 * formulas are those of cpu/rows/kern_softmax_rows.h and cpu/rows/kern_norm_rows.h. */
#include "families.h"

#include <stdio.h>

static int64_t columns_of(const cb_operand *o) { return o->shape.dim[o->shape.rank - 1]; }

static int64_t rows_of(const cb_operand *o) { return cb_numel_of(&o->shape, 0, o->shape.rank - 1); }

#define EACH_COLUMN_HOLE \
    CB_CU_HOLE_TEXT(each_column, "for (I c = threadIdx.x; c < COLUMNS; c += blockDim.x) ")

static void begin_rows(const cb_cu_op *x, int64_t columns, cb_dtype dtype) {
    cb_cu_each_row(x, columns);
    cb_cu_add(x->code, "typedef %s T;\n__shared__ T shared[2][%d];\nconst I at = row * COLUMNS;\n",
              cb_cu_real(dtype), CB_CU_ROW_THREADS);
}

/* ---- softmax --------------------------------------------------------------------------------- */

/* Computes `largest`, and `sum` of e^(x - largest). */
static const char exp_sum_text[] =
    "T largest = -INFINITY, sum = 0;\n"
    "$(each_column)largest = larger(largest, (T)widen($in[at + c]));\n"
    "largest = block_larger(largest, shared[0]);\n"
    "$(each_column)sum += p_EXP((T)widen($in[at + c]) - largest);\n"
    "sum = block_sum(sum, shared[1]);\n";

/* Rows with a label out of range are ignored here: an earlier kernel has reported the error. */
static const char label_text[] =
    "const int64_t label = $target[row];\n"
    "const bool counts = label != $(ignored)ll && label >= 0 && label < $(classes)ll;\n";

static const char softmax_text[] =
    "$(exp_sum)"
    "const T scale = (T)1 / sum;\n"
    "$(each_column)narrow(&$out[at + c], p_EXP((T)widen($in[at + c]) - largest) * scale);\n";

static const char log_softmax_text[] =
    "$(exp_sum)"
    "const T log_sum = p_LOG(sum);\n"
    "$(each_column)narrow(&$out[at + c], ((T)widen($in[at + c]) - largest) - log_sum);\n";

static const char softmax_bwd_text[] =
    "T sum = 0;\n"
    "$(each_column)sum += widen($g[at + c]) * widen($y[at + c]);\n"
    "sum = block_sum(sum, shared[1]);\n"
    "$(each_column){\n"
    "const T g = widen($g[at + c]), y = widen($y[at + c]);\n"
    "narrow(&$out[at + c], y * (g - sum));\n"
    "}\n";

static const char log_softmax_bwd_text[] = "T sum = 0;\n"
                                           "$(each_column)sum += widen($g[at + c]);\n"
                                           "sum = block_sum(sum, shared[1]);\n"
                                           "$(each_column){\n"
                                           "const T g = widen($g[at + c]), y = widen($y[at + c]);\n"
                                           "narrow(&$out[at + c], g - p_EXP(y) * sum);\n"
                                           "}\n";

static const char cross_entropy_text[] =
    "$(label)$(exp_sum)"
    "if (threadIdx.x) return;\n"
    "const T whole = largest + p_LOG(sum);\n"
    "narrow(&$lse[row], whole);\n"
    "narrow(&$out[row], counts ? whole - (T)widen($in[at + (counts ? label : 0)]) : (T)0);\n";

/* e^(x - largest) g / sum, minus g at the label */
static const char cross_entropy_bwd_text[] =
    "$(label)$(exp_sum)"
    "const T g = counts ? (T)widen($g[row]) : (T)0, scale = g / sum;\n"
    "$(each_column){\n"
    "const T e = p_EXP((T)widen($in[at + c]) - largest) * scale;\n"
    "const T y = (int64_t)c == label ? e - g : e;\n"
    "narrow(&$out[at + c], counts ? y : (T)0);\n"
    "}\n";

static const struct {
    const char *text, *operands;
} softmax_kernels[CB_OP_COUNT] = {
    [CB_OP_SOFTMAX] = {softmax_text, "in=x0 out=y0"},
    [CB_OP_SOFTMAX_BWD] = {softmax_bwd_text, "g=x0 y=x1 out=y0"},
    [CB_OP_LOG_SOFTMAX] = {log_softmax_text, "in=x0 out=y0"},
    [CB_OP_LOG_SOFTMAX_BWD] = {log_softmax_bwd_text, "g=x0 y=x1 out=y0"},
    [CB_OP_CROSS_ENTROPY] = {cross_entropy_text, "in=x0 out=y0 lse=y1 target=x1"},
    [CB_OP_CROSS_ENTROPY_BWD] = {cross_entropy_bwd_text, "g=x0 in=x1 out=y0 target=x2"},
};

void cb_cu_softmax(const cb_cu_op *x) {
    const cb_opcode code = x->instr->code;
    const cb_operand *in = cb_cu_in(x, code == CB_OP_CROSS_ENTROPY_BWD ? 1 : 0);
    const int64_t columns = columns_of(in), ignored = x->instr->attrs.i[0];
    if (code == CB_OP_CROSS_ENTROPY || code == CB_OP_CROSS_ENTROPY_BWD)
        cb_cu_check_index(x, x->instr->n_in - 1, columns, &ignored);
    begin_rows(x, columns, in->dtype);
    cb_cu_op_template(x, softmax_kernels[code].operands, softmax_kernels[code].text,
                      CB_CU_HOLES(EACH_COLUMN_HOLE, CB_CU_HOLE_TEXT(exp_sum, exp_sum_text),
                                  CB_CU_HOLE_TEXT(label, label_text), CB_CU_HOLE(ignored, ignored),
                                  CB_CU_HOLE(classes, columns)));
    cb_cu_end_each_row(x, rows_of(in));
}

/* ---- norms ----------------------------------------------------------------------------------- */

static bool is_centred(const cb_cu_op *x) {
    return x->instr->code == CB_OP_LAYER_NORM || x->instr->code == CB_OP_LAYER_NORM_BWD;
}

static void norm(const cb_cu_op *x) {
    static const char text[] =
        "T mean = 0, spread = 0;\n"
        "$(find_mean)"
        "$(each_column){ const T d = (T)widen($in[at + c]) - mean; spread += d * d; }\n"
        "spread = block_sum(spread, shared[1]) / (T)COLUMNS;\n"
        "const T rstd = (T)1 / p_SQRT(spread + (T)$eps);\n"
        "if (threadIdx.x == 0) {\n"
        "narrow(&$rstd[row], rstd);\n"
        "$(keep_mean)}\n"
        "$(each_column){\n"
        "const T d = (T)widen($in[at + c]) - mean;\n"
        "narrow(&$out[at + c], d * rstd * (T)widen($weight[c])$(add_bias));\n"
        "}\n";
    static const char mean_text[] = "$(each_column)mean += widen($in[at + c]);\n"
                                    "mean = block_sum(mean, shared[0]) / (T)COLUMNS;\n";
    const cb_operand *in = cb_cu_in(x, 0);
    const bool centred = is_centred(x);
    char eps[32];
    (void)snprintf(eps, sizeof eps, "%a", x->instr->attrs.f[0]);
    begin_rows(x, columns_of(in), in->dtype);
    cb_cu_op_template(
        x,
        centred ? "in=x0 weight=x1 out=y0 rstd=y2 mean=y1 bias=x2"
                : "in=x0 weight=x1 out=y0 rstd=y1",
        text,
        CB_CU_HOLES(EACH_COLUMN_HOLE, CB_CU_HOLE_TEXT(find_mean, centred ? mean_text : ""),
                    CB_CU_HOLE_TEXT(eps, eps),
                    CB_CU_HOLE_TEXT(keep_mean, centred ? "narrow(&$mean[row], mean);\n" : ""),
                    CB_CU_HOLE_TEXT(add_bias, centred ? " + (T)widen($bias[c])" : "")));
    cb_cu_end_each_row(x, rows_of(in));
}

/* Computes g and h = (x - mean) rstd of an element in row `stat`. */
static const char normed_text[] = "const T g = widen($g[$element]);\n"
                                  "T d = widen($in[$element]);\n"
                                  "$(centre)"
                                  "const T h = d * (T)widen($rstd[stat]);\n";

static const char norm_dx_text[] =
    "const I stat = row;\n"
    "T level = 0, along = 0;\n"
    "$(each_column){\n"
    "$(normed)"
    "const T v = g * (T)widen($weight[c]);\n"
    "level += v, along += v * h;\n"
    "}\n"
    "level = block_sum(level, shared[0]) / (T)COLUMNS;\n"
    "along = block_sum(along, shared[1]) / (T)COLUMNS;\n"
    "$(level)"
    "$(each_column){\n"
    "$(normed)"
    "const T v = g * (T)widen($weight[c]);\n"
    "narrow(&$out[at + c], (T)widen($rstd[stat]) * (v - level - h * along));\n"
    "}\n";

/* Computes gradients of weight and bias, with a block for each column. */
static const char norm_dweight_text[] =
    "T dweight = 0, dbias = 0;\n"
    "for (I stat = threadIdx.x; stat < COLUMNS; stat += blockDim.x) {\n"
    "const I place = stat * (I)$columns + row;\n"
    "$(normed)"
    "dweight += g * h, dbias += g;\n"
    "}\n"
    "dweight = block_sum(dweight, shared[0]);\n"
    "dbias = block_sum(dbias, shared[1]);\n"
    "if (threadIdx.x == 0) {\n"
    "narrow(&$dweight[row], dweight);\n"
    "$(store_dbias)}\n";

#define NORMED_HOLES(x)                                     \
    EACH_COLUMN_HOLE, CB_CU_HOLE_TEXT(normed, normed_text), \
        CB_CU_HOLE_TEXT(centre, is_centred(x) ? "d = d - (T)widen($mean[stat]);\n" : "")

static void norm_dx(const cb_cu_op *x, int64_t rows) {
    cb_cu_op_template(x,
                      is_centred(x) ? "weight=x2 rstd=x4 g=x0 in=x1 mean=x3 out=y0"
                                    : "weight=x2 rstd=x3 g=x0 in=x1 out=y0",
                      norm_dx_text,
                      CB_CU_HOLES(NORMED_HOLES(x), CB_CU_HOLE_TEXT(element, "at + c"),
                                  CB_CU_HOLE_TEXT(level, is_centred(x) ? "" : "level = 0;\n")));
    cb_cu_end_each_row(x, rows);
}

static void norm_dweight(const cb_cu_op *x, int64_t columns) {
    const int count = cb_cu_count(x->code, columns);
    cb_cu_op_template(
        x,
        is_centred(x) ? "rstd=x4 g=x0 in=x1 mean=x3 dweight=y1 dbias=y2"
                      : "rstd=x3 g=x0 in=x1 dweight=y1",
        norm_dweight_text,
        CB_CU_HOLES(
            NORMED_HOLES(x), CB_CU_HOLE_TEXT(element, "place"), CB_CU_HOLE_PARAM(columns, count),
            CB_CU_HOLE_TEXT(store_dbias, is_centred(x) ? "narrow(&$dbias[row], dbias);\n" : "")));
    cb_cu_end_each_row(x, columns);
}

void cb_cu_norm(const cb_cu_op *x) {
    const cb_opcode code = x->instr->code;
    if (code == CB_OP_LAYER_NORM || code == CB_OP_RMS_NORM) {
        norm(x);
        return;
    }
    const cb_operand *in = cb_cu_in(x, 1);
    begin_rows(x, columns_of(in), in->dtype);
    norm_dx(x, rows_of(in));
    begin_rows(x, rows_of(in), in->dtype);
    norm_dweight(x, columns_of(in));
}
