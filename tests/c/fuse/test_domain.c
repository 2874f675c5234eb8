/* The role of an op in a domain, which domains can be joined, and how operands map to them. Each
 * rule is tested with an op that satisfies it and one that does not. */
#include "base/shape.h"
#include "fuse/domain.h"

#include "check.h"

#define SHAPE(...) \
    cb_shape_make(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__})
#define AXES(...) ((cb_attrs){.dims = SHAPE(__VA_ARGS__)})

static const cb_attrs nothing = {0};
static const cb_shape scalar = {0};

static cb_part part_in(cb_opcode code, cb_attrs attrs, cb_shape in0, cb_shape out0, int64_t count,
                       int64_t columns) {
    const cb_domain domain = {.count = count, .columns = columns};
    const cb_shaped op = {.code = code, .attrs = &attrs, .in0 = &in0, .in1 = &in0, .out0 = &out0};
    return cb_part_of(&op, &domain);
}

TEST(pointwise) {
    const cb_shape full = SHAPE(8, 64), rows = SHAPE(8, 1), columns = SHAPE(64);
    CHECK(part_in(CB_OP_GELU, nothing, full, full, 512, 0) == CB_PART_MAP);
    CHECK(part_in(CB_OP_GELU, nothing, full, full, 512, 64) == CB_PART_MAP);
    CHECK(part_in(CB_OP_GELU, nothing, full, full, 1024, 64) == CB_PART_NONE);
    CHECK(part_in(CB_OP_RSQRT, nothing, rows, rows, 512, 64) == CB_PART_ROW_MAP);
    CHECK(part_in(CB_OP_RSQRT, nothing, rows, rows, 512, 0) == CB_PART_NONE);
    CHECK(part_in(CB_OP_RSQRT, nothing, columns, columns, 512, 64) == CB_PART_NONE);
    CHECK(part_in(CB_OP_MUL, nothing, scalar, scalar, 512, 64) == CB_PART_ONE);
    CHECK(part_in(CB_OP_MUL, nothing, scalar, scalar, 1, 0) == CB_PART_MAP);
    CHECK(part_in(CB_OP_FULL, nothing, scalar, full, 512, 0) == CB_PART_MAP);
    CHECK(part_in(CB_OP_MATMUL, nothing, full, full, 512, 64) == CB_PART_NONE);
    CHECK(part_in(CB_OP_GELU, nothing, SHAPE(0, 64), SHAPE(0, 64), 0, 0) == CB_PART_NONE);
}

TEST(reductions) {
    const cb_shape in = SHAPE(4, 1, 8, 64);
    CHECK(part_in(CB_OP_SUM, AXES(3), in, SHAPE(4, 1, 8), 2048, 64) == CB_PART_ROWS);
    CHECK(part_in(CB_OP_AMAX, AXES(2, 3), in, SHAPE(4, 1), 2048, 512) == CB_PART_ROWS);
    CHECK(part_in(CB_OP_AMAX, AXES(1, 2, 3), in, SHAPE(4), 2048, 512) == CB_PART_ROWS);
    CHECK(part_in(CB_OP_SUM, AXES(2, 3), in, SHAPE(4, 1), 2048, 64) == CB_PART_NONE);
    const cb_shape wide = SHAPE(4, 1, 8, 128);
    CHECK(part_in(CB_OP_SUM, AXES(0, 2), wide, SHAPE(1, 128), 4096, 128) == CB_PART_COLUMNS);
    CHECK(part_in(CB_OP_MEAN, AXES(0, 1, 2), wide, SHAPE(128), 4096, 128) == CB_PART_COLUMNS);
    CHECK(part_in(CB_OP_SUM, AXES(0, 2), in, SHAPE(1, 64), 2048, 64) == CB_PART_NONE); /* narrow */
    CHECK(part_in(CB_OP_AMAX, AXES(0, 2), in, SHAPE(1, 64), 2048, 64) == CB_PART_NONE);
    CHECK(part_in(CB_OP_SUM, AXES(0), in, SHAPE(1, 8, 64), 2048, 64) == CB_PART_NONE);
    CHECK(part_in(CB_OP_SUM, AXES(2), in, SHAPE(4, 1, 64), 2048, 64) == CB_PART_NONE);
    CHECK(part_in(CB_OP_SUM, AXES(0, 3), in, SHAPE(1, 8), 2048, 64) == CB_PART_NONE);
    CHECK(part_in(CB_OP_SUM, AXES(1), in, SHAPE(4, 8, 64), 2048, 64) == CB_PART_NONE);
    CHECK(part_in(CB_OP_MEAN, nothing, in, scalar, 2048, 64) == CB_PART_TOTAL);
    CHECK(part_in(CB_OP_SUM, AXES(0, 2, 3), in, SHAPE(1), 2048, 0) == CB_PART_TOTAL);
    CHECK(part_in(CB_OP_AMAX, nothing, in, scalar, 2048, 64) == CB_PART_NONE);
    CHECK(part_in(CB_OP_SUM, nothing, SHAPE(1, 1), scalar, 1, 0) == CB_PART_NONE);
}

/* Bits are in a domain with an element for each of them; strided rows would cut bytes. */
TEST(packed_bits) {
    const cb_shape in = SHAPE(4, 64), bytes = SHAPE(32);
    CHECK(part_in(CB_OP_PACK_BITS, nothing, in, bytes, 256, 0) == CB_PART_BITS);
    CHECK(part_in(CB_OP_PACK_BITS, nothing, in, bytes, 256, 64) == CB_PART_BITS);
    CHECK(part_in(CB_OP_PACK_BITS, nothing, in, bytes, 32, 0) == CB_PART_NONE);
    CHECK(part_in(CB_OP_UNPACK_BITS, nothing, bytes, in, 256, 64) == CB_PART_MAP);
    CHECK(part_in(CB_OP_UNPACK_BITS, nothing, bytes, in, 32, 0) == CB_PART_NONE);
    const cb_shaped pack = {.code = CB_OP_PACK_BITS, .attrs = &nothing, .in0 = &in, .out0 = &bytes};
    CHECK(cb_part_of(&pack, &(cb_domain){.count = 256, .columns = 4, .inner = 32}) == CB_PART_NONE);
}

TEST(rows_of_a_size) {
    const struct {
        int64_t rows, columns;
        cb_part part;
    } cases[] = {{4, CB_ROW_MIN, CB_PART_ROWS},
                 {4, CB_ROW_MIN - 1, CB_PART_NONE},
                 {4, CB_ROW_MAX, CB_PART_ROWS},
                 {15, CB_ROW_MAX + 1, CB_PART_NONE},
                 {16, CB_ROW_MAX + 1, CB_PART_ROWS},
                 {16, CB_ROW_LONGEST + 1, CB_PART_NONE},
                 {2, 64, CB_PART_ROWS},
                 {1, 64, CB_PART_NONE}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const cb_shape in = SHAPE(cases[i].rows, 1, cases[i].columns), out = SHAPE(cases[i].rows);
        const int64_t count = cases[i].rows * cases[i].columns, columns = cases[i].columns;
        CHECK(part_in(CB_OP_AMIN, AXES(2), in, out, count, columns) == cases[i].part);
        CHECK((part_in(CB_OP_SOFTMAX, nothing, in, in, count, columns) == CB_PART_ROW_WISE) ==
              (cases[i].part == CB_PART_ROWS));
    }
    /* too few rows for blocks, and too many elements for one block */
    CHECK(part_in(CB_OP_SUM, AXES(0), SHAPE(32, 1024), SHAPE(1024), 32768, 1024) ==
          CB_PART_COLUMNS);
    CHECK(part_in(CB_OP_SUM, AXES(0), SHAPE(33, 1024), SHAPE(1024), 33792, 1024) == CB_PART_NONE);
    CHECK(part_in(CB_OP_SUM, AXES(0), SHAPE(64, 1024), SHAPE(1024), 65536, 1024) ==
          CB_PART_COLUMNS);
    CHECK(part_in(CB_OP_LAYER_NORM_BWD, nothing, SHAPE(33, 1024), SHAPE(33, 1024), 33792, 1024) ==
          CB_PART_NONE);
    CHECK(part_in(CB_OP_LAYER_NORM, nothing, SHAPE(33, 1024), SHAPE(33, 1024), 33792, 1024) ==
          CB_PART_ROW_WISE);
    const cb_shape few = SHAPE(33, 1024);
    const cb_shaped unread = {.code = CB_OP_LAYER_NORM_BWD,
                              .attrs = &nothing,
                              .in0 = &few,
                              .in1 = &few,
                              .out0 = &few,
                              .has_one_result = true};
    CHECK(cb_part_of(&unread, &(cb_domain){.count = 33792, .columns = 1024}) == CB_PART_ROW_WISE);
}

/* Tests sums of equal pieces of the domain's rows: of 64 to 1024 elements and a power of two, or
 * odd. */
TEST(pieces_of_rows) {
    const struct {
        int64_t pieces, length;
        cb_part part;
    } cases[] = {{8, 64, CB_PART_PIECES},
                 {2, 1024, CB_PART_PIECES},
                 {2, 2048, CB_PART_ODD_PIECES},
                 {16, 32, CB_PART_ODD_PIECES},
                 {4, 192, CB_PART_ODD_PIECES},
                 {3, CB_PIECE_MIN, CB_PART_ODD_PIECES},
                 {16, CB_PIECE_MIN - 1, CB_PART_NONE},
                 {1, 256, CB_PART_ROWS}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int64_t n = cases[i].pieces, length = cases[i].length, columns = n * length;
        const cb_shape in = SHAPE(4, n, length), out = SHAPE(4, n);
        CHECK(part_in(CB_OP_SUM, AXES(2), in, out, 4 * columns, columns) == cases[i].part);
        CHECK(part_in(CB_OP_MEAN, AXES(2), in, out, 4 * columns, columns) == cases[i].part);
        CHECK(n == 1 ||
              part_in(CB_OP_AMAX, AXES(2), in, out, 4 * columns, columns) == CB_PART_NONE);
        CHECK(part_in(CB_OP_SUM, AXES(2), in, out, 4 * columns, 0) == CB_PART_NONE);
    }
    /* pieces that cross rows */
    CHECK(part_in(CB_OP_SUM, AXES(1), SHAPE(6, 64), SHAPE(6), 384, 96) == CB_PART_NONE);
}

/* Rows of an inner axis are strided in memory, next to each other. */
TEST(rows_across) {
    const cb_shape full = SHAPE(2, 8, 64), kept = SHAPE(2, 1, 64), wide = SHAPE(2, 4, 2, 64);
    const cb_shaped sum = {.code = CB_OP_AMAX, .attrs = &AXES(1), .in0 = &full, .out0 = &kept};
    const cb_shaped two = {.code = CB_OP_SUM, .attrs = &AXES(1, 2), .in0 = &wide, .out0 = &kept};
    cb_domain domain = {0};
    CHECK(cb_domain_join(&domain, &sum));
    CHECK(domain.count == 1024 && domain.columns == 8 && domain.inner == 64);
    CHECK(cb_part_of(&sum, &domain) == CB_PART_ACROSS);
    CHECK(cb_part_of(&two, &domain) == CB_PART_ACROSS);
    const cb_shape lines = SHAPE(2, 8);
    cb_shaped line = {.code = CB_OP_MEAN, .attrs = &AXES(2), .in0 = &full, .out0 = &lines};
    CHECK(cb_part_of(&line, &domain) == CB_PART_LINES);
    line.code = CB_OP_AMAX;
    CHECK(cb_part_of(&line, &domain) == CB_PART_NONE);
    domain.inner = 0;
    CHECK(cb_part_of(&sum, &domain) == CB_PART_NONE);
    domain = (cb_domain){.count = 1024, .columns = 8, .inner = 64};
    const int64_t row[] = {64, 0, 1}, column[] = {0, 1, 0}, whole[] = {512, 64, 1};
    CHECK(cb_view_of(&full, row, &domain) == CB_VIEW_ROW);
    CHECK(cb_view_of(&full, column, &domain) == CB_VIEW_OTHER);
    CHECK(cb_view_of(&full, whole, &domain) == CB_VIEW_SAME);
    const cb_shape narrow = SHAPE(2, 8, 23), few = SHAPE(2, 23);
    const cb_shaped thin = {.code = CB_OP_AMAX, .attrs = &AXES(1), .in0 = &narrow, .out0 = &few};
    domain = (cb_domain){0};
    CHECK(!cb_domain_join(&domain, &thin)); /* too few for vectors */
}

static cb_part part_of_index(cb_opcode code, int64_t axis, cb_shape in0, cb_shape in1,
                             cb_shape out0, int64_t columns) {
    const cb_attrs attrs = {.i = {axis}};
    const cb_shaped op = {.code = code, .attrs = &attrs, .in0 = &in0, .in1 = &in1, .out0 = &out0};
    return cb_part_of(&op, &(cb_domain){.count = 512, .columns = columns});
}

/* One index per row. */
TEST(indexed_rows) {
    const cb_shape full = SHAPE(2, 4, 64), one = SHAPE(2, 4, 1), rows = SHAPE(2, 4);
    CHECK(part_of_index(CB_OP_CROSS_ENTROPY, -100, full, rows, rows, 64) == CB_PART_ROWS);
    CHECK(part_of_index(CB_OP_CROSS_ENTROPY, -100, full, rows, rows, 128) == CB_PART_NONE);
    CHECK(part_of_index(CB_OP_CROSS_ENTROPY_BWD, -100, rows, full, full, 64) == CB_PART_ROW_WISE);
    CHECK(part_of_index(CB_OP_GATHER, 2, full, one, one, 64) == CB_PART_ROWS);
    CHECK(part_of_index(CB_OP_GATHER, 2, full, one, one, 32) == CB_PART_NONE);
    CHECK(part_of_index(CB_OP_SCATTER_ADD, 2, full, one, full, 64) == CB_PART_ROW_WISE);
    CHECK(part_of_index(CB_OP_GATHER, 2, full, SHAPE(2, 4, 2), SHAPE(2, 4, 2), 64) == CB_PART_NONE);
    CHECK(part_of_index(CB_OP_SCATTER_ADD, 2, full, SHAPE(2, 4, 2), full, 64) == CB_PART_NONE);
    CHECK(part_of_index(CB_OP_GATHER, 1, full, SHAPE(2, 1, 64), SHAPE(2, 1, 64), 64) ==
          CB_PART_NONE);
}

static bool joins(cb_domain *domain, cb_opcode code, cb_attrs attrs, cb_shape in0, cb_shape out0) {
    const cb_shaped op = {.code = code, .attrs = &attrs, .in0 = &in0, .in1 = &in0, .out0 = &out0};
    return cb_domain_join(domain, &op);
}

TEST(domains_join) {
    const cb_shape full = SHAPE(8, 64), rows = SHAPE(8, 1), other = SHAPE(8, 65);
    cb_domain d = {0};
    CHECK(!joins(&d, CB_OP_MATMUL, nothing, full, full) && d.count == 0);
    CHECK(joins(&d, CB_OP_MUL, nothing, scalar, scalar) && d.count == 1 && d.columns == 0);
    CHECK(joins(&d, CB_OP_GELU, nothing, full, full) && d.count == 512 && d.columns == 0);
    CHECK(!joins(&d, CB_OP_GELU, nothing, other, other) && d.count == 512);
    CHECK(!joins(&d, CB_OP_RSQRT, nothing, rows, rows) && d.columns == 0);
    CHECK(!joins(&d, CB_OP_SUM, AXES(1), SHAPE(256, 2), SHAPE(256)) && d.columns == 0);
    CHECK(joins(&d, CB_OP_SUM, AXES(1), full, rows) && d.count == 512 && d.columns == 64);
    CHECK(joins(&d, CB_OP_RSQRT, nothing, rows, rows) && d.columns == 64);
    CHECK(joins(&d, CB_OP_SUM, nothing, full, scalar) && d.columns == 64);
    CHECK(!joins(&d, CB_OP_SOFTMAX, nothing, SHAPE(4, 128), SHAPE(4, 128)) && d.columns == 64);
    CHECK(joins(&d, CB_OP_NEG, nothing, SHAPE(4, 128), SHAPE(4, 128)) && d.columns == 64);
    cb_domain whole = {0};
    CHECK(joins(&whole, CB_OP_LAYER_NORM, nothing, full, full) && whole.columns == 64);
}

static cb_view view(cb_shape shape, const int64_t *stride) {
    const cb_domain domain = {.count = 512, .columns = 64};
    return cb_view_of(&shape, stride, &domain);
}
#define VIEW(shape, ...) view((shape), (int64_t[CB_MAX_RANK]){__VA_ARGS__})

TEST(views) {
    CHECK(VIEW(SHAPE(8, 64), 64, 1) == CB_VIEW_SAME);
    CHECK(VIEW(SHAPE(2, 4, 1, 64), 256, 64, 7, 1) == CB_VIEW_SAME);
    CHECK(VIEW(SHAPE(512), 1) == CB_VIEW_SAME);
    CHECK(VIEW(SHAPE(8, 64), 1, 8) == CB_VIEW_OTHER);
    CHECK(VIEW(SHAPE(8, 64), 65, 1) == CB_VIEW_OTHER);
    CHECK(VIEW(SHAPE(8, 64), 1, 0) == CB_VIEW_ROW);
    CHECK(VIEW(SHAPE(2, 4, 8, 8), 4, 1, 0, 0) == CB_VIEW_ROW);
    CHECK(VIEW(SHAPE(8), 1) == CB_VIEW_ROW);
    CHECK(VIEW(SHAPE(8, 1), 1, 1) == CB_VIEW_ROW);
    CHECK(VIEW(SHAPE(8), 2) == CB_VIEW_OTHER);
    CHECK(VIEW(SHAPE(4, 128), 1, 0) == CB_VIEW_OTHER);
    CHECK(VIEW(SHAPE(8, 64), 0, 1) == CB_VIEW_COLUMN);
    CHECK(VIEW(SHAPE(2, 4, 8, 8), 0, 0, 8, 1) == CB_VIEW_COLUMN);
    CHECK(VIEW(SHAPE(8, 64), 0, 0) == CB_VIEW_ONE);
    CHECK(VIEW(scalar, 0) == CB_VIEW_ONE);
    CHECK(VIEW(SHAPE(1, 1), 5, 7) == CB_VIEW_ONE);
    CHECK(VIEW(SHAPE(64), 1) == CB_VIEW_OTHER);
    const cb_domain flat = {.count = 512}, one = {.count = 1};
    const int64_t row[CB_MAX_RANK] = {1, 0}, nowhere[CB_MAX_RANK] = {0};
    const cb_shape full = SHAPE(8, 64);
    CHECK(cb_view_of(&full, row, &flat) == CB_VIEW_OTHER);
    CHECK(cb_view_of(&scalar, nowhere, &one) == CB_VIEW_SAME);
}

int main(void) {
    RUN(pointwise);
    RUN(reductions);
    RUN(packed_bits);
    RUN(rows_of_a_size);
    RUN(pieces_of_rows);
    RUN(indexed_rows);
    RUN(rows_across);
    RUN(domains_join);
    RUN(views);
    return check_report();
}
