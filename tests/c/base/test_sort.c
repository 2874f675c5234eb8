#include "base/sort.h"

#include "check.h"

static int compare(const void *a, const void *b) {
    const int *x = a, *y = b;
    return x[0] != y[0] ? (x[0] > y[0]) - (x[0] < y[0]) : (x[1] > y[1]) - (x[1] < y[1]);
}

TEST(sorts_every_length) {
    for (int n = 0; n < 60; n++) {
        int item[60][2], sum = 0;
        for (int i = 0; i < n; i++) {
            item[i][0] = i * 37 % 11;
            item[i][1] = i;
            sum += item[i][0];
        }
        cb_sort(item, (size_t)n, sizeof *item, compare);
        for (int i = 0; i < n; i++) {
            if (i > 0) CHECK(compare(item[i - 1], item[i]) < 0);
            CHECK(item[i][0] == item[i][1] * 37 % 11); /* items move as a whole */
            sum -= item[i][0];
        }
        CHECK(sum == 0);
    }
}

int main(void) {
    RUN(sorts_every_length);
    return check_report();
}
