/* Softmax, cross-entropy, norms of rows and their gradients: a block for each row. The formulas are
 * those of cpu/rows/kern_softmax_rows.h and cpu/rows/kern_norm_rows.h. */
#include "families.h"

static int64_t columns_of(const cb_operand *o) { return o->shape.dim[o->shape.rank - 1]; }

static int64_t rows_of(const cb_operand *o) { return cb_numel_of(&o->shape, 0, o->shape.rank - 1); }

#define EACH_COLUMN "for (I c = threadIdx.x; c < COLUMNS; c += blockDim.x) "

static void begin_rows(const cb_cu_op *x, int64_t columns, cb_dtype dtype) {
    const char *real = cb_cu_real(dtype);
    cb_cu_each_row(x, columns);
    cb_cu_add(x->code, "typedef %s T;\n__shared__ T shared[2][%d];\nconst I at = row * COLUMNS;\n",
              real, CB_CU_ROW_THREADS);
}

/* ---- softmax --------------------------------------------------------------------------------- */

/* `largest` and `sum` of e^(x - largest) of the row of parameter p. */
static void add_exp_sum(const cb_cu_op *x, int p) {
    cb_cu_code *c = x->code;
    cb_cu_add(c, "T largest = -INFINITY, sum = 0;\n");
    cb_cu_add(c, EACH_COLUMN "largest = larger(largest, (T)widen(p%d[at + c]));\n", p);
    cb_cu_add(c, "largest = block_larger(largest, shared[0]);\n");
    cb_cu_add(c, EACH_COLUMN "sum += p_EXP((T)widen(p%d[at + c]) - largest);\n", p);
    cb_cu_add(c, "sum = block_sum(sum, shared[1]);\n");
}

static void softmax(const cb_cu_op *x, int64_t rows) {
    cb_cu_code *c = x->code;
    const int in = cb_cu_in_param(x, 0), out = cb_cu_out_param(x, 0);
    add_exp_sum(x, in);
    if (x->instr->code == CB_OP_SOFTMAX) {
        cb_cu_add(c, "const T scale = (T)1 / sum;\n");
        cb_cu_add(c,
                  EACH_COLUMN
                  "narrow(&p%d[at + c], p_EXP((T)widen(p%d[at + c]) - largest) * scale);\n",
                  out, in);
    } else {
        cb_cu_add(c, "const T log_sum = p_LOG(sum);\n");
        cb_cu_add(
            c, EACH_COLUMN "narrow(&p%d[at + c], ((T)widen(p%d[at + c]) - largest) - log_sum);\n",
            out, in);
    }
    cb_cu_end_each_row(x, rows);
}

static void softmax_bwd(const cb_cu_op *x, int64_t rows) {
    cb_cu_code *c = x->code;
    const int g = cb_cu_in_param(x, 0), y = cb_cu_in_param(x, 1), out = cb_cu_out_param(x, 0);
    const bool is_log = x->instr->code == CB_OP_LOG_SOFTMAX_BWD;
    cb_cu_add(c, "T sum = 0;\n");
    if (is_log) cb_cu_add(c, EACH_COLUMN "sum += widen(p%d[at + c]);\n", g);
    else cb_cu_add(c, EACH_COLUMN "sum += widen(p%d[at + c]) * widen(p%d[at + c]);\n", g, y);
    cb_cu_add(c, "sum = block_sum(sum, shared[1]);\n" EACH_COLUMN "{\n");
    cb_cu_add(c, "const T g = widen(p%d[at + c]), y = widen(p%d[at + c]);\n", g, y);
    cb_cu_add(c, "narrow(&p%d[at + c], %s);\n}\n", out,
              is_log ? "g - p_EXP(y) * sum" : "y * (g - sum)");
    cb_cu_end_each_row(x, rows);
}

/* The label of the row; classes outside of the range are an error that is known by now. */
static void add_label(const cb_cu_op *x, uint32_t k, int64_t classes) {
    cb_cu_code *c = x->code;
    cb_cu_add(c, "const int64_t label = p%d[row];\n", cb_cu_in_param(x, k));
    cb_cu_add(c, "const bool counts = label != %lldll && label >= 0 && label < %lldll;\n",
              (long long)x->instr->attrs.i[0], (long long)classes);
}

static void cross_entropy(const cb_cu_op *x, int64_t rows, int64_t classes) {
    cb_cu_code *c = x->code;
    const int in = cb_cu_in_param(x, 0), nll = cb_cu_out_param(x, 0), lse = cb_cu_out_param(x, 1);
    add_label(x, 1, classes);
    add_exp_sum(x, in);
    cb_cu_add(c, "if (threadIdx.x) return;\nconst T whole = largest + p_LOG(sum);\n");
    cb_cu_add(c, "narrow(&p%d[row], whole);\n", lse);
    cb_cu_add(c,
              "narrow(&p%d[row], counts ? whole - (T)widen(p%d[at + (counts ? label : 0)]) : "
              "(T)0);\n",
              nll, in);
    cb_cu_end_each_row(x, rows);
}

/* e^(x - largest) g / sum, and g less at the label */
static void cross_entropy_bwd(const cb_cu_op *x, int64_t rows, int64_t classes) {
    cb_cu_code *c = x->code;
    const int g = cb_cu_in_param(x, 0), in = cb_cu_in_param(x, 1), out = cb_cu_out_param(x, 0);
    add_label(x, 2, classes);
    add_exp_sum(x, in);
    cb_cu_add(c, "const T g = counts ? (T)widen(p%d[row]) : (T)0, scale = g / sum;\n", g);
    cb_cu_add(c, EACH_COLUMN "{\nconst T e = p_EXP((T)widen(p%d[at + c]) - largest) * scale;\n",
              in);
    cb_cu_add(c, "const T y = (int64_t)c == label ? e - g : e;\n");
    cb_cu_add(c, "narrow(&p%d[at + c], counts ? y : (T)0);\n}\n", out);
    cb_cu_end_each_row(x, rows);
}

void cb_cu_softmax(const cb_cu_op *x) {
    const cb_opcode code = x->instr->code;
    const cb_operand *in = cb_cu_in(x, code == CB_OP_CROSS_ENTROPY_BWD ? 1 : 0);
    const int64_t rows = rows_of(in), columns = columns_of(in);
    if (code == CB_OP_CROSS_ENTROPY || code == CB_OP_CROSS_ENTROPY_BWD)
        cb_cu_check_index(x, code == CB_OP_CROSS_ENTROPY ? 1 : 2, columns, &x->instr->attrs.i[0]);
    begin_rows(x, columns, in->dtype);
    switch (code) {
        case CB_OP_SOFTMAX:
        case CB_OP_LOG_SOFTMAX: softmax(x, rows); break;
        case CB_OP_CROSS_ENTROPY: cross_entropy(x, rows, columns); break;
        case CB_OP_CROSS_ENTROPY_BWD: cross_entropy_bwd(x, rows, columns); break;
        default: softmax_bwd(x, rows);
    }
}

/* ---- norms ----------------------------------------------------------------------------------- */

static bool is_centred(const cb_cu_op *x) {
    return x->instr->code == CB_OP_LAYER_NORM || x->instr->code == CB_OP_LAYER_NORM_BWD;
}

static void norm(const cb_cu_op *x) {
    cb_cu_code *c = x->code;
    const cb_operand *in = cb_cu_in(x, 0);
    const bool centred = is_centred(x);
    if (rows_of(in) == 0) return;
    begin_rows(x, columns_of(in), in->dtype);
    const int p = cb_cu_in_param(x, 0), w = cb_cu_in_param(x, 1), y = cb_cu_out_param(x, 0),
              rstd = cb_cu_out_param(x, x->instr->n_out - 1);
    cb_cu_add(c, "T mean = 0, spread = 0;\n");
    if (centred) {
        cb_cu_add(c, EACH_COLUMN "mean += widen(p%d[at + c]);\n", p);
        cb_cu_add(c, "mean = block_sum(mean, shared[0]) / (T)COLUMNS;\n");
    }
    cb_cu_add(c, EACH_COLUMN "{ const T d = (T)widen(p%d[at + c]) - mean; spread += d * d; }\n", p);
    cb_cu_add(c, "spread = block_sum(spread, shared[1]) / (T)COLUMNS;\n");
    cb_cu_add(c, "const T rstd = (T)1 / p_SQRT(spread + (T)%a);\n", x->instr->attrs.f[0]);
    cb_cu_add(c, "if (threadIdx.x == 0) {\nnarrow(&p%d[row], rstd);\n", rstd);
    if (centred) cb_cu_add(c, "narrow(&p%d[row], mean);\n", cb_cu_out_param(x, 1));
    cb_cu_add(c, "}\n");
    cb_cu_add(c, EACH_COLUMN "{\nconst T d = (T)widen(p%d[at + c]) - mean;\n", p);
    cb_cu_add(c, "narrow(&p%d[at + c], d * rstd * (T)widen(p%d[c])", y, w);
    if (centred) cb_cu_add(c, " + (T)widen(p%d[c])", cb_cu_in_param(x, 2));
    cb_cu_add(c, ");\n}\n");
    cb_cu_end_each_row(x, rows_of(in));
}

/* Text: g, and h = (x - mean) rstd, of element `at` in row `stat`; the parameter of rstd. */
static int add_normed(const cb_cu_op *x, const char *at) {
    cb_cu_code *c = x->code;
    const bool centred = is_centred(x);
    const int rstd = cb_cu_in_param(x, centred ? 4 : 3);
    cb_cu_add(c, "const T g = widen(p%d[%s]);\n", cb_cu_in_param(x, 0), at);
    cb_cu_add(c, "T d = widen(p%d[%s]);\n", cb_cu_in_param(x, 1), at);
    if (centred) cb_cu_add(c, "d = d - (T)widen(p%d[stat]);\n", cb_cu_in_param(x, 3));
    cb_cu_add(c, "const T h = d * (T)widen(p%d[stat]);\n", rstd);
    return rstd;
}

static void norm_dx(const cb_cu_op *x, int64_t rows) {
    cb_cu_code *c = x->code;
    const int w = cb_cu_in_param(x, 2);
    cb_cu_add(c, "const I stat = row;\nT level = 0, along = 0;\n" EACH_COLUMN "{\n");
    (void)add_normed(x, "at + c");
    cb_cu_add(c, "const T v = g * (T)widen(p%d[c]);\nlevel += v, along += v * h;\n}\n", w);
    cb_cu_add(c, "level = block_sum(level, shared[0]) / (T)COLUMNS;\n");
    cb_cu_add(c, "along = block_sum(along, shared[1]) / (T)COLUMNS;\n");
    if (!is_centred(x)) cb_cu_add(c, "level = 0;\n");
    cb_cu_add(c, EACH_COLUMN "{\n");
    const int rstd = add_normed(x, "at + c");
    cb_cu_add(c, "const T v = g * (T)widen(p%d[c]);\n", w);
    cb_cu_add(c, "narrow(&p%d[at + c], (T)widen(p%d[stat]) * (v - level - h * along));\n}\n",
              cb_cu_out_param(x, 0), rstd);
    cb_cu_end_each_row(x, rows);
}

/* Gradients of weight and bias: a block for each column. */
static void norm_dweight(const cb_cu_op *x, int64_t columns) {
    cb_cu_code *c = x->code;
    cb_cu_add(c, "T dweight = 0, dbias = 0;\n");
    cb_cu_add(c, "for (I stat = threadIdx.x; stat < COLUMNS; stat += blockDim.x) {\n");
    cb_cu_add(c, "const I place = stat * (I)p%d + row;\n", cb_cu_count(c, columns));
    (void)add_normed(x, "place");
    cb_cu_add(c, "dweight += g * h, dbias += g;\n}\n");
    cb_cu_add(c,
              "dweight = block_sum(dweight, shared[0]);\ndbias = block_sum(dbias, shared[1]);\n");
    cb_cu_add(c, "if (threadIdx.x == 0) {\nnarrow(&p%d[row], dweight);\n", cb_cu_out_param(x, 1));
    if (x->instr->n_out == 3) cb_cu_add(c, "narrow(&p%d[row], dbias);\n", cb_cu_out_param(x, 2));
    cb_cu_add(c, "}\n");
    cb_cu_end_each_row(x, columns);
}

void cb_cu_norm(const cb_cu_op *x) {
    const cb_opcode code = x->instr->code;
    if (code == CB_OP_LAYER_NORM || code == CB_OP_RMS_NORM) {
        norm(x);
        return;
    }
    const cb_operand *in = cb_cu_in(x, 1);
    const int64_t rows = rows_of(in), columns = columns_of(in);
    begin_rows(x, columns, in->dtype);
    norm_dx(x, rows);
    if (columns == 0) return;
    begin_rows(x, rows, in->dtype);
    norm_dweight(x, columns);
}
