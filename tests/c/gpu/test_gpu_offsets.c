/* Offsets in emitted kernels around 2^31 elements: if one operand's offsets do not fit 32 bits, the
 * kernel must use 64. Nothing is compiled or allocated here: steps run on a backend that runs
 * nothing and groups as the cuda backend does, and only the text of their kernels is made. Also
 * tests the limits of such a text. */
#include "check.h"
#include "exec/cuda/group.h"
#include "ir/builder.h"
#include "pipeline.h"

#define EDGE ((int64_t)1 << 31)

static cb_backend text_only; /* the only backend of this program */
const cb_backend *const cb_backends[] = {&text_only, NULL};

static void make_backend(void) {
    text_only = cb_backend_null;
    text_only.alignment = cb_backend_cuda.alignment;
    text_only.workspace = cb_backend_cuda.workspace;
    text_only.fuses = cb_backend_cuda.fuses;
    text_only.supports = cb_backend_cuda.supports;
}

static cb_context *ctx;

typedef struct model {
    cb_graph *g;
    cb_dtype dtype;
    cb_status status;
} model;

static cb_value_id input(model *m, cb_dtype dtype, cb_shape shape) {
    cb_value_id id = 0;
    if (m->status == CB_OK)
        m->status = cb_graph_append_input(m->g, "x", CB_ROLE_DATA, dtype, &shape, &id, &err);
    return id;
}

static cb_value_id op(model *m, cb_opcode code, uint32_t n, const cb_value_id *ins,
                      const cb_attrs *attrs) {
    cb_value_id outs[4] = {0};
    if (m->status == CB_OK) m->status = cb_build(m->g, code, n, ins, attrs, outs, &err);
    return outs[0];
}
#define OP(code, n, ins, ...) \
    op(m, code, n, (cb_value_id[]){NO_PARENTHESES ins}, &(cb_attrs){__VA_ARGS__})
#define NO_PARENTHESES(...) __VA_ARGS__
#define SHAPE(rank, ...) ((cb_shape){rank, {__VA_ARGS__}})

/* ---- programs with an array of about n elements ---------------------------------------------- */

typedef cb_value_id (*program_fn)(model *m, int64_t n);

static cb_value_id elements(model *m, int64_t n) {
    const cb_value_id x = input(m, m->dtype, SHAPE(1, n)), y = input(m, m->dtype, SHAPE(1, n));
    return OP(CB_OP_ADD, 2, (x, y), .f = {0});
}
static cb_value_id cast(model *m, int64_t n) {
    return OP(CB_OP_CAST, 1, (input(m, CB_I32, SHAPE(1, n))), .dtype = CB_I64);
}
static cb_value_id made(model *m, int64_t n) {
    (void)m;
    return OP(CB_OP_UNIFORM, 0, (0), .dims = SHAPE(1, n), .dtype = CB_F64);
}
static cb_value_id total(model *m, int64_t n) {
    return OP(CB_OP_SUM, 1, (input(m, m->dtype, SHAPE(1, n))), .f = {0});
}
static cb_value_id rows(model *m, int64_t n) {
    return OP(CB_OP_SOFTMAX, 1, (input(m, m->dtype, SHAPE(2, n / 256, 256))), .f = {0});
}
static cb_value_id norms(model *m, int64_t n) {
    const cb_value_id x = input(m, m->dtype, SHAPE(2, n / 256, 256)),
                      w = input(m, m->dtype, SHAPE(1, 256)), b = input(m, m->dtype, SHAPE(1, 256));
    return OP(CB_OP_LAYER_NORM, 3, (x, w, b), .f = {1e-5});
}
static cb_value_id columns(model *m, int64_t n) {
    return OP(CB_OP_SUM, 1, (input(m, m->dtype, SHAPE(2, n / 256, 256))), .dims = SHAPE(1, 0));
}
static cb_value_id pieces(model *m, int64_t n) {
    return OP(CB_OP_SUM, 1, (input(m, m->dtype, SHAPE(2, n / 64, 64))), .dims = SHAPE(1, 1));
}
static cb_value_id largest(model *m, int64_t n) {
    return OP(CB_OP_AMAX, 1, (input(m, m->dtype, SHAPE(2, n / 8, 8))), .dims = SHAPE(1, 1));
}
static cb_value_id turned(model *m, int64_t n) {
    const cb_value_id x = input(m, m->dtype, SHAPE(2, 64, n / 64));
    return OP(CB_OP_CONTIGUOUS, 1, (OP(CB_OP_TRANSPOSE, 1, (x), .dims = SHAPE(2, 1, 0))), .f = {0});
}
static cb_value_id turned_chain(model *m, int64_t n) {
    const cb_value_id x = input(m, m->dtype, SHAPE(2, 64, n / 64));
    return OP(CB_OP_EXP, 1, (OP(CB_OP_TRANSPOSE, 1, (x), .dims = SHAPE(2, 1, 0))), .f = {0});
}
static cb_value_id joined(model *m, int64_t n) {
    const cb_value_id x = input(m, m->dtype, SHAPE(1, n - 8)), y = input(m, m->dtype, SHAPE(1, 8));
    return OP(CB_OP_CONCAT, 2, (x, y), .i = {0});
}
static cb_value_id padded(model *m, int64_t n) {
    return OP(CB_OP_PAD, 1, (input(m, m->dtype, SHAPE(1, n - 8))), .i = {0, 8, 0, 0});
}
static cb_value_id table(model *m, int64_t n) {
    const cb_value_id x = input(m, m->dtype, SHAPE(2, n / 8, 8)), i = input(m, CB_I64, SHAPE(1, 4));
    return OP(CB_OP_EMBEDDING, 2, (x, i), .f = {0});
}
static cb_value_id gathered(model *m, int64_t n) {
    const cb_value_id x = input(m, m->dtype, SHAPE(2, n / 8, 8)),
                      i = input(m, CB_I64, SHAPE(2, 3, 8));
    return OP(CB_OP_GATHER, 2, (x, i), .i = {0});
}
static cb_value_id scattered(model *m, int64_t n) {
    const cb_value_id x = input(m, m->dtype, SHAPE(2, n / 8, 8)),
                      i = input(m, CB_I64, SHAPE(2, 3, 8)), y = input(m, m->dtype, SHAPE(2, 3, 8));
    return OP(CB_OP_SCATTER_ADD, 3, (x, i, y), .i = {0});
}
static cb_value_id table_gradient(model *m, int64_t n) {
    const cb_value_id g = input(m, m->dtype, SHAPE(2, 4, 8)), i = input(m, CB_I64, SHAPE(1, 4));
    return OP(CB_OP_EMBEDDING_BWD, 2, (g, i), .i = {n / 8});
}
static cb_value_id product(model *m, int64_t n) {
    const cb_value_id x = input(m, m->dtype, SHAPE(2, n / 64, 64)),
                      y = input(m, m->dtype, SHAPE(2, 64, 8));
    return OP(CB_OP_MATMUL, 2, (x, y), .f = {0});
}
/* Builds a few elements, as a view of an array of n. */
static cb_value_id few_of_each_row(model *m, int64_t n) {
    const cb_value_id x = input(m, m->dtype, SHAPE(2, 32, n / 32)),
                      y = input(m, m->dtype, SHAPE(2, 32, 4));
    const cb_value_id part = OP(CB_OP_SLICE, 1, (x), .i = {1, 0, 4, 1});
    return OP(CB_OP_ADD, 2, (part, y), .f = {0});
}
/* Builds the same with one element per row, which a group reads once per row. */
static cb_value_id number_of_each_row(model *m, int64_t n) {
    const cb_value_id x = input(m, m->dtype, SHAPE(2, 32, n / 32)),
                      y = input(m, m->dtype, SHAPE(2, 32, 256));
    const cb_value_id part = OP(CB_OP_SLICE, 1, (x), .i = {1, 0, 1, 1});
    return OP(CB_OP_ADD, 2, (y, OP(CB_OP_EXPAND, 1, (part), .dims = SHAPE(2, 32, 256))), .f = {0});
}

/* ---- emitted kernels ------------------------------------------------------------------------- */

/* Counts the program's kernels by their type of offsets. */
static void count_types(const cb_program *p, int *narrow, int *wide) {
    cb_cu_code code;
    cb_arena memory, texts;
    cb_arena_init(&memory, &ctx->alloc);
    cb_arena_init(&texts, &ctx->alloc);
    cb_cu_init(&code, p, &memory, &texts);
    code.capability = 90;
    for (uint32_t g = 0; g < p->n_group; g++) CHECK_OK(cb_cu_group(&code, g, &ctx->alloc, &err));
    CHECK_OK(cb_cu_finish(&code, &err));
    *narrow = *wide = 0;
    for (const char *at = code.source.at; at && (at = strstr(at, "typedef uint")); at++) {
        *narrow += strncmp(at, "typedef uint32_t I;", 19) == 0;
        *wide += strncmp(at, "typedef uint64_t I;", 19) == 0;
    }
    cb_arena_free(&texts);
    cb_arena_free(&memory);
}

static void check(const char *name, program_fn make, cb_dtype dtype, int64_t n, bool is_wide) {
    model at = {.dtype = dtype}, *m = &at;
    cb_step *step = NULL;
    const cb_compile_options options = {0};
    int narrow = 0, wide = 0;
    CHECK_OK(cb_graph_new(ctx, &m->g, &err));
    const cb_value_id y = make(m, n);
    CHECK_OK(m->status);
    CHECK_OK(cb_graph_append_output(m->g, y, "y", CB_OUTPUT_RESULT, CB_NONE, &err));
    CHECK_OK(cb_compile(ctx, m->g, &options, &step, &err));
    if (step) count_types(step->program, &narrow, &wide);
    const bool is_right = is_wide ? wide > 0 && narrow == 0 : narrow > 0 && wide == 0;
    if (!is_right)
        printf("  %s of %s, 2^31 %+d elements: %d kernels with 32-bit offsets, %d with 64-bit\n",
               name, cb_dtype_name(dtype), (int)(n - EDGE), narrow, wide);
    CHECK(is_right);
    cb_step_free(step);
    cb_graph_free(m->g);
}

/* Checks sizes above the limit, and well below it, where 64-bit offsets would only be slower. */
static void check_around(const char *name, program_fn make, cb_dtype dtype) {
    check(name, make, dtype, EDGE / 2, false);
    check(name, make, dtype, EDGE + 256, true);
}

#define CASE(program) {#program, program}
typedef struct named {
    const char *name;
    program_fn make;
} named;

TEST(offsets_of_large_arrays_have_64_bits) {
    static const named programs[] = {
        CASE(elements),       CASE(total),   CASE(rows),         CASE(norms),
        CASE(columns),        CASE(pieces),  CASE(largest),      CASE(turned),
        CASE(joined),         CASE(padded),  CASE(table),        CASE(gathered),
        CASE(table_gradient), CASE(product), CASE(turned_chain), CASE(scattered)};
    static const cb_dtype dtypes[] = {CB_F32, CB_F64, CB_BF16};
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
            check_around(programs[i].name, programs[i].make, dtypes[d]);
    check_around("cast", cast, CB_I64);
    check_around("made", made, CB_F64);
}

/* Tests the last size that fits and the first that does not. */
TEST(the_edge_itself) {
    static const named programs[] = {CASE(elements), CASE(total)};
    static const cb_dtype dtypes[] = {CB_F32, CB_F64};
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            check(programs[i].name, programs[i].make, dtypes[d], EDGE - 2, false);
            check(programs[i].name, programs[i].make, dtypes[d], EDGE, true);
            check(programs[i].name, programs[i].make, dtypes[d], EDGE + 1, true);
        }
}

TEST(views_of_large_arrays) {
    static const named programs[] = {CASE(few_of_each_row), CASE(number_of_each_row)};
    static const cb_dtype dtypes[] = {CB_F32, CB_F64, CB_BF16};
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            check(programs[i].name, programs[i].make, dtypes[d], EDGE / 2, false);
            check(programs[i].name, programs[i].make, dtypes[d], 4 * EDGE, true);
        }
}

/* ---- templates ------------------------------------------------------------------------------- */

static cb_arena texts;

static cb_cu_code begun(void) {
    static const cb_program none;
    cb_cu_code code;
    cb_cu_init(&code, &none, &texts, &texts);
    cb_cu_begin(&code);
    return code;
}

TEST(holes_of_a_template) {
    cb_cu_code c = begun();
    cb_cu_template(&c, "$n, $(part)x $n_more = $times;",
                   CB_CU_HOLES(CB_CU_HOLE(n, 7), CB_CU_HOLE_TEXT(part, "<$n>"),
                               CB_CU_HOLE_PARAM(n_more, 3), CB_CU_HOLE_COUNT(times, 5)));
    CHECK_OK(cb_cu_finish(&c, &err));
    CHECK(strcmp(c.body.at, "7, <7>x p3 = p0;") == 0);
    CHECK(c.n_param == 1 && c.param[0].place == CB_CU_NUMBER && c.param[0].offset == 5);
}

TEST(what_a_text_cannot_hold_is_an_error) {
    cb_cu_code c = begun();
    cb_cu_template(&c, "$first $second", CB_CU_HOLES(CB_CU_HOLE(first_of_all, 1)));
    CHECK_FAIL(cb_cu_finish(&c, &err), CB_INTERNAL, "nothing fills the hole $first");
    c = begun();
    cb_cu_add(&c, "%01100d", 1);
    cb_cu_template(&c, "$first", CB_CU_HOLES(CB_CU_HOLE(second, 1)));
    CHECK_FAIL(cb_cu_finish(&c, &err), CB_INTERNAL, "has 1100 characters; at most 1023 fit");
    c = begun();
    for (int k = 0; k < CB_CU_PARAMS; k++) CHECK(cb_cu_count(&c, k) == k);
    CHECK_OK(cb_cu_finish(&c, &err));
    (void)cb_cu_count(&c, 1);
    CHECK_FAIL(cb_cu_finish(&c, &err), CB_UNSUPPORTED, "more than 192 parameters");
}

int main(void) {
    const cb_context_options options = {.n_threads = 1};
    make_backend();
    CHECK_OK(cb_context_new(&options, &ctx, &err));
    RUN(offsets_of_large_arrays_have_64_bits);
    RUN(the_edge_itself);
    RUN(views_of_large_arrays);
    cb_alloc alloc;
    cb_alloc_init(&alloc);
    cb_arena_init(&texts, &alloc);
    RUN(holes_of_a_template);
    RUN(what_a_text_cannot_hold_is_an_error);
    cb_arena_free(&texts);
    cb_context_free(ctx);
    return check_report();
}
