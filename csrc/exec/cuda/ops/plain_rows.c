/* Softmax, cross-entropy, norms and their gradients: a block for each row, or for each channel. The
 * formulas are those of cpu/kern_softmax_rows.h and cpu/kern_norm_rows.h. */
#include "families.h"

static int64_t columns_of(const cb_operand *o) { return o->shape.dim[o->shape.rank - 1]; }

static int64_t rows_of(const cb_operand *o) {
    int64_t rows = 1;
    for (int32_t k = 0; k < o->shape.rank - 1; k++) rows *= o->shape.dim[k];
    return rows;
}

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

typedef struct sample { /* what has one mean: a row, or a channel of a batch */
    bool is_batch, is_centred;
    int64_t n, size;         /* samples, elements of each */
    int64_t inner, channels; /* batch: behind the channel; elements of weight */
} sample;

static sample sample_of(const cb_cu_op *x, const cb_operand *in) {
    const cb_opcode code = x->instr->code;
    sample s = {.is_batch = code == CB_OP_BATCH_NORM || code == CB_OP_BATCH_NORM_BWD ||
                            code == CB_OP_BATCH_NORM_STATS,
                .is_centred = code != CB_OP_RMS_NORM && code != CB_OP_RMS_NORM_BWD,
                .inner = 1};
    if (!s.is_batch) {
        s.n = rows_of(in);
        s.size = s.channels = columns_of(in);
        return s;
    }
    for (int32_t k = 2; k < in->shape.rank; k++) s.inner *= in->shape.dim[k];
    s.n = s.channels = in->shape.dim[1];
    s.size = in->shape.dim[0] * s.inner;
    return s;
}

/* Where element `k` of sample `stat` is, and which element of weight it has. */
static void add_places(const cb_cu_op *x, const sample *s) {
    cb_cu_code *c = x->code;
    if (s->is_batch) {
        cb_cu_add(c,
                  "const auto place = [](I stat, I k) { return (k / (I)%lld * (I)%lld + stat) * "
                  "(I)%lld + k %% (I)%lld; };\n",
                  (long long)s->inner, (long long)s->channels, (long long)s->inner,
                  (long long)s->inner);
        cb_cu_add(c, "const auto channel = [](I stat, I k) { return stat; };\n");
    } else {
        cb_cu_add(c, "const auto place = [](I stat, I k) { return stat * (I)%lld + k; };\n",
                  (long long)s->size);
        cb_cu_add(c, "const auto channel = [](I stat, I k) { return k; };\n");
    }
}

/* `mean`, `spread` and `rstd` of a sample; results from `first` on get them. */
static void add_stats(const cb_cu_op *x, const sample *s, uint32_t first) {
    cb_cu_code *c = x->code;
    const int p = cb_cu_in_param(x, 0), rstd = cb_cu_out_param(x, x->instr->n_out - 1);
    cb_cu_add(c, "T mean = 0, spread = 0;\n");
    if (s->is_centred) {
        cb_cu_add(c, EACH_COLUMN "mean += widen(p%d[place(row, c)]);\n", p);
        cb_cu_add(c, "mean = block_sum(mean, shared[0]) / (T)COLUMNS;\n");
    }
    cb_cu_add(c,
              EACH_COLUMN "{ const T d = (T)widen(p%d[place(row, c)]) - mean; spread += d * d; }\n",
              p);
    cb_cu_add(c, "spread = block_sum(spread, shared[1]) / (T)COLUMNS;\n");
    cb_cu_add(c, "const T rstd = (T)1 / p_SQRT(spread + (T)%a);\n", x->instr->attrs.f[0]);
    cb_cu_add(c, "if (threadIdx.x == 0) {\nnarrow(&p%d[row], rstd);\n", rstd);
    if (s->is_centred) cb_cu_add(c, "narrow(&p%d[row], mean);\n", cb_cu_out_param(x, first));
    if (s->is_batch) cb_cu_add(c, "narrow(&p%d[row], spread);\n", cb_cu_out_param(x, first + 1));
    cb_cu_add(c, "}\n");
}

static void norm(const cb_cu_op *x) {
    cb_cu_code *c = x->code;
    const cb_operand *in = cb_cu_in(x, 0);
    const sample s = sample_of(x, in);
    const bool gives_y = x->instr->code != CB_OP_BATCH_NORM_STATS;
    if (s.n == 0) return;
    begin_rows(x, s.size, in->dtype);
    add_places(x, &s);
    add_stats(x, &s, gives_y ? 1 : 0);
    if (gives_y) {
        const int p = cb_cu_in_param(x, 0), w = cb_cu_in_param(x, 1), y = cb_cu_out_param(x, 0);
        cb_cu_add(c, EACH_COLUMN "{\nconst T d = (T)widen(p%d[place(row, c)]) - mean;\n", p);
        cb_cu_add(c, "narrow(&p%d[place(row, c)], d * rstd * (T)widen(p%d[channel(row, c)])", y, w);
        if (s.is_centred) cb_cu_add(c, " + (T)widen(p%d[channel(row, c)])", cb_cu_in_param(x, 2));
        cb_cu_add(c, ");\n}\n");
    }
    cb_cu_end_each_row(x, s.n);
}

typedef struct grads { /* parameters of a gradient */
    int g, x, w, mean, rstd;
} grads;

static grads grads_of(const cb_cu_op *x, bool is_centred) {
    grads p = {.g = cb_cu_in_param(x, 0), .x = cb_cu_in_param(x, 1), .w = cb_cu_in_param(x, 2)};
    if (is_centred) p.mean = cb_cu_in_param(x, 3);
    p.rstd = cb_cu_in_param(x, is_centred ? 4 : 3);
    return p;
}

/* g, h = (x - mean) rstd of element k of sample stat. */
static void add_normed(const cb_cu_op *x, const sample *s, const grads *p) {
    cb_cu_add(x->code, "const T g = widen(p%d[place(stat, k)]);\n", p->g);
    cb_cu_add(x->code, "T d = widen(p%d[place(stat, k)]);\n", p->x);
    if (s->is_centred) cb_cu_add(x->code, "d = d - (T)widen(p%d[stat]);\n", p->mean);
    cb_cu_add(x->code, "const T h = d * (T)widen(p%d[stat]);\n", p->rstd);
}

static void norm_dx(const cb_cu_op *x, const sample *s) {
    cb_cu_code *c = x->code;
    begin_rows(x, s->size, cb_cu_in(x, 1)->dtype);
    add_places(x, s);
    const grads p = grads_of(x, s->is_centred);
    cb_cu_add(c,
              "const I stat = row;\nT level = 0, along = 0;\nfor (I k = threadIdx.x; k < COLUMNS; "
              "k += blockDim.x) {\n");
    add_normed(x, s, &p);
    cb_cu_add(c,
              "const T v = g * (T)widen(p%d[channel(stat, k)]);\nlevel += v, along += v * h;\n}\n",
              p.w);
    cb_cu_add(c, "level = block_sum(level, shared[0]) / (T)COLUMNS;\n");
    cb_cu_add(c, "along = block_sum(along, shared[1]) / (T)COLUMNS;\n");
    if (!s->is_centred) cb_cu_add(c, "level = 0;\n");
    cb_cu_add(c, "for (I k = threadIdx.x; k < COLUMNS; k += blockDim.x) {\n");
    add_normed(x, s, &p);
    cb_cu_add(c, "const T v = g * (T)widen(p%d[channel(stat, k)]);\n", p.w);
    cb_cu_add(c,
              "narrow(&p%d[place(stat, k)], (T)widen(p%d[stat]) * (v - level - h * along));\n}\n",
              cb_cu_out_param(x, 0), p.rstd);
    cb_cu_end_each_row(x, s->n);
}

/* Gradients of weight and bias: a block for each channel. */
static void norm_dweight(const cb_cu_op *x, const sample *s) {
    cb_cu_code *c = x->code;
    if (s->channels == 0) return;
    begin_rows(x, s->is_batch ? s->size : s->n, cb_cu_in(x, 1)->dtype);
    add_places(x, s);
    const grads p = grads_of(x, s->is_centred);
    cb_cu_add(c, "T dweight = 0, dbias = 0;\n" EACH_COLUMN "{\n");
    cb_cu_add(c, s->is_batch ? "const I stat = row, k = c;\n" : "const I stat = c, k = row;\n");
    add_normed(x, s, &p);
    cb_cu_add(c, "dweight += g * h, dbias += g;\n}\n");
    cb_cu_add(c,
              "dweight = block_sum(dweight, shared[0]);\ndbias = block_sum(dbias, shared[1]);\n");
    cb_cu_add(c, "if (threadIdx.x == 0) {\nnarrow(&p%d[row], dweight);\n", cb_cu_out_param(x, 1));
    if (x->instr->n_out == 3) cb_cu_add(c, "narrow(&p%d[row], dbias);\n", cb_cu_out_param(x, 2));
    cb_cu_add(c, "}\n");
    cb_cu_end_each_row(x, s->channels);
}

void cb_cu_norm(const cb_cu_op *x) {
    const cb_opcode code = x->instr->code;
    if (code == CB_OP_LAYER_NORM || code == CB_OP_RMS_NORM || code == CB_OP_BATCH_NORM ||
        code == CB_OP_BATCH_NORM_STATS) {
        norm(x);
        return;
    }
    const sample s = sample_of(x, cb_cu_in(x, 1));
    norm_dx(x, &s);
    norm_dweight(x, &s);
}
