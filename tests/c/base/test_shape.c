#include "base/shape.h"

#include "base/philox.h"
#include "check.h"

#define SHAPE(...)                                                               \
    cb_shape_make((int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
                  (const int64_t[]){__VA_ARGS__})
static const cb_shape scalar = {0};

static const char *text_of(cb_shape s) {
    static char buffer[CB_SHAPE_TEXT];
    return cb_shape_text(&s, buffer);
}

TEST(text) {
    CHECK(strcmp(text_of(scalar), "()") == 0);
    CHECK(strcmp(text_of(SHAPE(4)), "(4,)") == 0);
    CHECK(strcmp(text_of(SHAPE(4, 3)), "(4,3)") == 0);
    cb_shape wide = {.rank = 8};
    for (int i = 0; i < 8; i++) wide.dim[i] = INT64_MIN;
    CHECK(strlen(text_of(wide)) == 8 * 20 + 9);
    wide.rank = 99;
    CHECK(strlen(text_of(wide)) == 8 * 20 + 9);
    wide.rank = -1;
    CHECK(strcmp(text_of(wide), "()") == 0);
}

TEST(sizes) {
    int64_t numel = -1;
    uint64_t bytes = 0;
    cb_shape s = SHAPE(3, 4, 5);
    CHECK_OK(cb_shape_numel(&s, &numel, &err));
    CHECK_OK(cb_shape_bytes(&s, CB_F64, &bytes, &err));
    CHECK(numel == 60 && bytes == 480 && cb_numel(&s) == 60);
    CHECK_OK(cb_shape_numel(&scalar, &numel, &err));
    CHECK(numel == 1);
    s = SHAPE(3, 0);
    CHECK_OK(cb_shape_bytes(&s, CB_F32, &bytes, &err));
    CHECK(bytes == 0 && cb_numel(&s) == 0);
}

TEST(absurd_sizes) {
    int64_t numel = 7;
    uint64_t bytes = 7;
    const int64_t big = INT64_C(1) << 31;
    cb_shape s = SHAPE(big, big);
    CHECK_OK(cb_shape_bytes(&s, CB_U8, &bytes, &err));
    CHECK(bytes == UINT64_C(1) << 62);
    CHECK_FAIL(cb_shape_bytes(&s, CB_F16, &bytes, &err), CB_INVALID,
               "of f16 takes more than 2^62 bytes");
    CHECK(bytes == UINT64_C(1) << 62);
    s = SHAPE(big, big, 2);
    CHECK_FAIL(cb_shape_numel(&s, &numel, &err), CB_INVALID, "(2147483648,2147483648,2)");
    s = SHAPE(big, big, 0, big); /* the strides would overflow although the tensor is empty */
    CHECK_FAIL(cb_shape_numel(&s, &numel, &err), CB_INVALID, "2^62 elements");
    s = SHAPE(INT64_MAX, INT64_MAX, INT64_MAX);
    CHECK_FAIL(cb_shape_numel(&s, &numel, &err), CB_INVALID, "2^62 elements");
    s = SHAPE(2, -1);
    CHECK_FAIL(cb_shape_numel(&s, &numel, &err), CB_INVALID, "dimension 1 of (2,-1) is negative");
    s = (cb_shape){.rank = 9};
    CHECK_FAIL(cb_shape_numel(&s, &numel, &err), CB_INVALID, "rank 9 is not in 0..8");
    s = (cb_shape){.rank = -1};
    CHECK_FAIL(cb_shape_numel(&s, &numel, &err), CB_INVALID, "rank -1");
    CHECK_FAIL(cb_shape_bytes(&scalar, (cb_dtype)50, &bytes, &err), CB_TYPE, "element type 50");
    CHECK(numel == 7);
}

static void check_broadcast(cb_shape a, cb_shape b, cb_shape want) {
    cb_shape got = {.rank = 99};
    CHECK_OK(cb_shape_broadcast(&a, &b, &got, &err));
    CHECK(cb_shape_equal(&got, &want));
    CHECK_OK(cb_shape_broadcast(&b, &a, &got, &err));
    CHECK(cb_shape_equal(&got, &want));
}

TEST(broadcast) {
    check_broadcast(SHAPE(4, 3), SHAPE(3), SHAPE(4, 3));
    check_broadcast(SHAPE(4, 1), SHAPE(3), SHAPE(4, 3));
    check_broadcast(SHAPE(2, 3), scalar, SHAPE(2, 3));
    check_broadcast(SHAPE(1), SHAPE(0), SHAPE(0));
    check_broadcast(SHAPE(5, 1, 0), SHAPE(4, 1), SHAPE(5, 4, 0));
    cb_shape a = SHAPE(4, 3), b = SHAPE(5, 3), out = {.rank = 99};
    CHECK_FAIL(cb_shape_broadcast(&a, &b, &out, &err), CB_INVALID,
               "cannot broadcast (4,3) with (5,3)");
    a = SHAPE(0), b = SHAPE(2);
    CHECK_FAIL(cb_shape_broadcast(&a, &b, &out, &err), CB_INVALID,
               "cannot broadcast (0,) with (2,)");
    a = SHAPE(INT64_C(1) << 40, 1), b = SHAPE(INT64_C(1) << 40);
    CHECK_FAIL(cb_shape_broadcast(&a, &b, &out, &err), CB_INVALID, "2^62");
    CHECK(out.rank == 99);
}

TEST(strides) {
    int64_t strides[CB_MAX_RANK];
    cb_shape s = SHAPE(2, 3, 4);
    cb_shape_strides(&s, strides);
    CHECK(strides[0] == 12 && strides[1] == 4 && strides[2] == 1);
    CHECK(cb_is_contiguous(&s, strides));
    strides[0] = 13;
    CHECK(!cb_is_contiguous(&s, strides));
    s.dim[0] = 1;
    CHECK(cb_is_contiguous(&s, strides));
    s = SHAPE(2, 0, 4);
    CHECK(cb_is_contiguous(&s, (const int64_t[]){9, 9, 9}));
    CHECK(cb_is_contiguous(&scalar, strides));
    s = SHAPE(3);
    CHECK(!cb_is_contiguous(&s, (const int64_t[]){0}));
}

/* Returns the offset of element number `index` in row-major order. */
static int64_t place_of(const cb_shape *s, const int64_t *strides, int64_t index) {
    int64_t place = 0;
    for (int32_t i = s->rank - 1; i >= 0; i--) {
        place += index % s->dim[i] * strides[i];
        index /= s->dim[i];
    }
    return place;
}

static bool same_elements(const cb_shape *a, const int64_t *sa, const cb_shape *b,
                          const int64_t *sb) {
    for (int64_t i = 0; i < cb_numel(a); i++) {
        if (place_of(a, sa, i) != place_of(b, sb, i)) return false;
    }
    return true;
}

TEST(views) {
    int64_t out[CB_MAX_RANK];
    cb_shape from = SHAPE(4, 6, 5), to = SHAPE(4, 2, 15);
    CHECK(cb_view_strides(&from, (const int64_t[]){100, 5, 1}, &to, out));
    CHECK(out[0] == 100 && out[1] == 15 && out[2] == 1);
    to = SHAPE(24, 5);
    CHECK(!cb_view_strides(&from, (const int64_t[]){100, 5, 1}, &to, out));
    from = SHAPE(3, 2), to = SHAPE(6);
    CHECK(!cb_view_strides(&from, (const int64_t[]){1, 3}, &to, out)); /* a transpose */
    CHECK(cb_view_strides(&from, (const int64_t[]){0, 0}, &to, out) && out[0] == 0);
    to = SHAPE(5);
    CHECK(!cb_view_strides(&from, (const int64_t[]){2, 1}, &to, out)); /* another size */
    from = SHAPE(0, 3), to = SHAPE(7, 0);
    CHECK(cb_view_strides(&from, (const int64_t[]){9, 9}, &to, out));
    from = SHAPE(1, 1), to = scalar;
    CHECK(cb_view_strides(&from, (const int64_t[]){9, 9}, &to, out));
    CHECK(cb_view_strides(&to, NULL, &from, out) && out[0] == 1 && out[1] == 1);
}

static uint32_t draw(uint64_t *counter, uint32_t below) {
    cb_philox random = {.seed = 5};
    return cb_philox_u16(&random, (*counter)++) % below;
}

/* Returns a random shape with `numel` = 2^4 * 3 elements. */
static cb_shape random_shape(uint64_t *counter) {
    static const int64_t factors[] = {2, 2, 2, 2, 3};
    cb_shape s = {.rank = 1 + (int32_t)draw(counter, 6)};
    for (int32_t i = 0; i < s.rank; i++) s.dim[i] = 1;
    for (size_t f = 0; f < 5; f++) s.dim[draw(counter, (uint32_t)s.rank)] *= factors[f];
    return s;
}

/* A view has the same elements. If a view is refused, no strides exist for it. To show this, the
 * test solves for the strides, one dimension at a time, from the offsets of the elements with one
 * index of 1. */
TEST(random_views) {
    uint64_t counter = 0;
    int n_views = 0, n_copies = 0;
    for (int round = 0; round < 20000; round++) {
        cb_shape from = random_shape(&counter), to = random_shape(&counter);
        int64_t strides[CB_MAX_RANK], out[CB_MAX_RANK] = {0}, row[CB_MAX_RANK];
        cb_shape_strides(&from, strides);
        for (int swap = 0; swap < 2 && draw(&counter, 2); swap++) { /* transpose two dimensions */
            uint32_t i = draw(&counter, (uint32_t)from.rank),
                     j = draw(&counter, (uint32_t)from.rank);
            int64_t dim = from.dim[i], stride = strides[i];
            from.dim[i] = from.dim[j], strides[i] = strides[j];
            from.dim[j] = dim, strides[j] = stride;
        }
        if (!draw(&counter, 8)) strides[draw(&counter, (uint32_t)from.rank)] = 0;
        bool view = cb_view_strides(&from, strides, &to, out);
        if (!view) {
            cb_shape_strides(&to, row);
            for (int32_t i = 0; i < to.rank; i++) {
                out[i] = to.dim[i] > 1 ? place_of(&from, strides, row[i]) : 0;
            }
        }
        CHECK(same_elements(&from, strides, &to, out) == view);
        n_views += view;
        n_copies += !view;
    }
    CHECK(n_views > 1000 && n_copies > 1000);
}

int main(void) {
    RUN(text);
    RUN(sizes);
    RUN(absurd_sizes);
    RUN(broadcast);
    RUN(strides);
    RUN(views);
    RUN(random_views);
    return check_report();
}
