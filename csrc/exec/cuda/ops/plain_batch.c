/* Batch norms and their gradients. There are few channels, so each is cut into pieces, with a block
 * for each piece. A block for each channel combines the results of its pieces. Pieces depend only
 * on the shape, and so does the order of every sum. */
#include "families.h"

enum {
    PIECE = 2048,       /* minimum elements of a piece; few enough that a second pass finds them in
                     cache */
    PIECES_MOST = 32768 /* maximum number of pieces of a channel */
};

typedef struct batch {
    int64_t channels, inner;     /* inner: elements of a sample's channel */
    int64_t size, piece, pieces; /* elements of a channel; elements of a piece; pieces of a
                                    channel */
    const char *type;
    cb_cu_param partial, whole; /* [channel][piece][2], [channel][2] */
} batch;

static batch batch_of(const cb_cu_op *x, const cb_operand *in) {
    batch b = {.channels = in->shape.dim[1], .type = cb_cu_real(in->dtype)};
    b.inner = cb_numel_of(&in->shape, 2, in->shape.rank);
    b.size = in->shape.dim[0] * b.inner;
    b.piece = cb_cu_div_up(b.size, PIECES_MOST);
    if (b.piece < PIECE) b.piece = PIECE;
    b.pieces = b.size > b.piece ? cb_cu_div_up(b.size, b.piece) : 1;
    const uint64_t two = 2 * (in->dtype == CB_F64 ? sizeof(double) : sizeof(float));
    b.partial = (cb_cu_param){CB_CU_EXTRA, 0,
                              cb_cu_extra(x->code, (uint64_t)(b.channels * b.pieces) * two)};
    b.whole = (cb_cu_param){CB_CU_EXTRA, 0, cb_cu_extra(x->code, (uint64_t)b.channels * two)};
    return b;
}

#define EACH_ELEMENT                                                                             \
    "#pragma unroll 8\nfor (I k = begin + threadIdx.x; k < end; k += blockDim.x) {\nconst I at " \
    "= place(k);\n"
#define EACH_PIECE "for (I piece = threadIdx.x; piece < (I)p%d; piece += blockDim.x) "

/* Begins a kernel with a block for each piece: elements k = begin..end of `channel` are at
 * place(k). */
static void begin_pieces(const cb_cu_op *x, const batch *b) {
    cb_cu_code *c = x->code;
    cb_cu_begin_op(x);
    const int size = cb_cu_count(c, b->size), piece = cb_cu_count(c, b->piece),
              pieces = cb_cu_count(c, b->pieces);
    cb_cu_add(c, "typedef %s T;\n__shared__ T shared[2][%d];\n", b->type, CB_CU_ROW_THREADS);
    cb_cu_add(c, "const I channel = blockIdx.x, begin = blockIdx.y * (I)p%d;\n", piece);
    cb_cu_add(c, "const I end = (I)p%d - begin < (I)p%d ? (I)p%d : begin + (I)p%d;\n", size, piece,
              size, piece);
    cb_cu_add(c,
              "const auto place = [=](I k) { return (k / (I)%lld * (I)%lld + channel) * (I)%lld + "
              "k %% (I)%lld; };\n",
              (long long)b->inner, (long long)b->channels, (long long)b->inner,
              (long long)b->inner);
    cb_cu_add(c, "const I mine = (channel * (I)p%d + blockIdx.y) * 2;\n", pieces);
}

static void end_pieces(const cb_cu_op *x, const batch *b, const char *first, const char *second) {
    cb_cu_code *c = x->code;
    const int p = cb_cu_param_of(c, b->partial, b->type, true);
    cb_cu_add(c, "if (threadIdx.x) return;\np%d[mine] = %s, p%d[mine + 1] = %s;\n", p, first, p,
              second);
    cb_cu_end(c, (cb_cu_grid){(uint32_t)b->channels, (uint32_t)b->pieces, 1}, CB_CU_ROW_THREADS);
}

/* Begins a kernel with a block for each channel. Returns parameter p; the results of its piece
 * `piece` are at p[from + 2 * piece]. */
static int begin_channels(const cb_cu_op *x, const batch *b) {
    cb_cu_code *c = x->code;
    cb_cu_begin_op(x);
    cb_cu_add(c, "typedef %s T;\n__shared__ T shared[2][%d];\nconst I channel = blockIdx.x;\n",
              b->type, CB_CU_ROW_THREADS);
    cb_cu_add(c, "const T size = (T)p%d;\n", cb_cu_count(c, b->size));
    cb_cu_add(c, "const I from = channel * (I)p%d * 2;\n", cb_cu_count(c, b->pieces));
    return cb_cu_param_of(c, b->partial, b->type, false);
}

static void end_channels(const cb_cu_op *x, const batch *b) {
    cb_cu_end(x->code, (cb_cu_grid){(uint32_t)b->channels, 1, 1}, CB_CU_ROW_THREADS);
}

/* Computes mean and sum of squared deviations for each piece, about its own mean, then combines
 * them for each channel (Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm
 * for computing sample variances"). */
static void statistics(const cb_cu_op *x, const batch *b, uint32_t first_out) {
    cb_cu_code *c = x->code;
    begin_pieces(x, b);
    const int in = cb_cu_in_param(x, 0);
    cb_cu_add(c, "T mean = 0, spread = 0;\n" EACH_ELEMENT "mean += widen(p%d[at]);\n}\n", in);
    cb_cu_add(c, "mean = block_sum(mean, shared[0]) / (T)(end - begin);\n");
    cb_cu_add(c, EACH_ELEMENT "const T d = (T)widen(p%d[at]) - mean;\nspread += d * d;\n}\n", in);
    cb_cu_add(c, "spread = block_sum(spread, shared[1]);\n");
    end_pieces(x, b, "mean", "spread");

    const int p = begin_channels(x, b), n = cb_cu_count(c, b->pieces),
              piece = cb_cu_count(c, b->piece);
    const int out_mean = cb_cu_out_param(x, first_out), out_var = cb_cu_out_param(x, first_out + 1),
              out_rstd = cb_cu_out_param(x, first_out + 2);
    cb_cu_add(c,
              "const auto count = [=](I piece) { return piece + 1 < (I)p%d ? (T)p%d : size - "
              "(T)piece * (T)p%d; };\n",
              n, piece, piece);
    cb_cu_add(c, "T mean = 0, spread = 0;\n");
    cb_cu_add(c, EACH_PIECE "mean += p%d[from + 2 * piece] * count(piece);\n", n, p);
    cb_cu_add(c, "mean = block_sum(mean, shared[0]) / size;\n" EACH_PIECE "{\n", n);
    cb_cu_add(c, "const T d = p%d[from + 2 * piece] - mean;\n", p);
    cb_cu_add(c, "spread += p%d[from + 2 * piece + 1] + count(piece) * (d * d);\n}\n", p);
    cb_cu_add(c, "spread = block_sum(spread, shared[1]) / size;\nif (threadIdx.x) return;\n");
    cb_cu_add(c, "narrow(&p%d[channel], mean);\nnarrow(&p%d[channel], spread);\n", out_mean,
              out_var);
    cb_cu_add(c, "const T rstd = (T)1 / p_SQRT(spread + (T)%a);\nnarrow(&p%d[channel], rstd);\n",
              x->instr->attrs.f[0], out_rstd);
    const int whole = cb_cu_param_of(c, b->whole, b->type, true);
    cb_cu_add(c, "p%d[2 * channel] = mean, p%d[2 * channel + 1] = rstd;\n", whole, whole);
    end_channels(x, b);
}

/* Begins a kernel with a thread for each element `i`, of `channel`. */
static void each_element(const cb_cu_op *x, const batch *b) {
    cb_cu_each(x, b->size * b->channels);
    cb_cu_add(x->code, "typedef %s T;\nconst I channel = i / (I)%lld %% (I)%lld;\n", b->type,
              (long long)b->inner, (long long)b->channels);
}

static void normed(const cb_cu_op *x, const batch *b) {
    cb_cu_code *c = x->code;
    if (b->size * b->channels == 0) return;
    each_element(x, b);
    const int in = cb_cu_in_param(x, 0), w = cb_cu_in_param(x, 1), bias = cb_cu_in_param(x, 2),
              y = cb_cu_out_param(x, 0), whole = cb_cu_param_of(c, b->whole, b->type, false);
    cb_cu_add(c, "const T d = (T)widen(p%d[i]) - p%d[2 * channel];\n", in, whole);
    cb_cu_add(c,
              "narrow(&p%d[i], d * p%d[2 * channel + 1] * (T)widen(p%d[channel]) + "
              "(T)widen(p%d[channel]));\n",
              y, whole, w, bias);
    cb_cu_end_each(x, b->size * b->channels);
}

/* Writes g and h = (x - mean) rstd of element `at`. */
static void add_normed(const cb_cu_op *x, const char *at) {
    cb_cu_add(x->code, "const T g = widen(p%d[%s]);\n", cb_cu_in_param(x, 0), at);
    cb_cu_add(x->code,
              "const T h = ((T)widen(p%d[%s]) - (T)widen(p%d[channel])) * (T)widen(p%d[channel]);"
              "\n",
              cb_cu_in_param(x, 1), at, cb_cu_in_param(x, 3), cb_cu_in_param(x, 4));
}

/* Writes the gradients. The sums of g and g h are those of bias and weight; dx subtracts their
 * means. */
static void gradients(const cb_cu_op *x, const batch *b) {
    cb_cu_code *c = x->code;
    begin_pieces(x, b);
    cb_cu_add(c, "T level = 0, along = 0;\n" EACH_ELEMENT);
    add_normed(x, "at");
    cb_cu_add(c, "level += g, along += g * h;\n}\n");
    cb_cu_add(c, "level = block_sum(level, shared[0]), along = block_sum(along, shared[1]);\n");
    end_pieces(x, b, "level", "along");

    const int p = begin_channels(x, b), n = cb_cu_count(c, b->pieces), w = cb_cu_in_param(x, 2),
              whole = cb_cu_param_of(c, b->whole, b->type, true), dweight = cb_cu_out_param(x, 1),
              dbias = cb_cu_out_param(x, 2);
    cb_cu_add(c, "T level = 0, along = 0;\n" EACH_PIECE, n);
    cb_cu_add(c, "level += p%d[from + 2 * piece], along += p%d[from + 2 * piece + 1];\n", p, p);
    cb_cu_add(c, "level = block_sum(level, shared[0]), along = block_sum(along, shared[1]);\n");
    cb_cu_add(c, "if (threadIdx.x) return;\n");
    cb_cu_add(c, "narrow(&p%d[channel], along);\nnarrow(&p%d[channel], level);\n", dweight, dbias);
    cb_cu_add(c, "const T w = widen(p%d[channel]);\n", w);
    cb_cu_add(c, "p%d[2 * channel] = w * level / size, p%d[2 * channel + 1] = w * along / size;\n",
              whole, whole);
    end_channels(x, b);

    if (b->size * b->channels == 0) return;
    each_element(x, b);
    add_normed(x, "i");
    const int means = cb_cu_param_of(c, b->whole, b->type, false), weight = cb_cu_in_param(x, 2);
    cb_cu_add(c, "const T v = g * (T)widen(p%d[channel]);\n", weight);
    cb_cu_add(
        c,
        "narrow(&p%d[i], (T)widen(p%d[channel]) * (v - p%d[2 * channel] - h * p%d[2 * channel "
        "+ 1]));\n",
        cb_cu_out_param(x, 0), cb_cu_in_param(x, 4), means, means);
    cb_cu_end_each(x, b->size * b->channels);
}

void cb_cu_batch_norm(const cb_cu_op *x) {
    const cb_opcode code = x->instr->code;
    const batch b = batch_of(x, cb_cu_in(x, code == CB_OP_BATCH_NORM_BWD ? 1 : 0));
    if (b.channels == 0) return;
    if (code == CB_OP_BATCH_NORM_BWD) {
        gradients(x, &b);
        return;
    }
    statistics(x, &b, code == CB_OP_BATCH_NORM ? 1 : 0);
    if (code == CB_OP_BATCH_NORM) normed(x, &b);
}
