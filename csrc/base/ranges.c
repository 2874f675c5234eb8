#include "base/ranges.h"

/* Gaps of a Shell sort, each about 2.25 times the previous one (Tokuda 1992). With halved gaps,
 * even and odd positions would mix only in the last pass, which is then quadratic if parameters and
 * their states alternate. */
static const uint32_t gaps[] = {1,       4,       9,        20,       46,       103,
                                233,     525,     1182,     2660,     5985,     13467,
                                30301,   68178,   153401,   345152,   776591,   1747331,
                                3931496, 8845866, 19903198, 44782196, 100759940};
enum { N_GAPS = sizeof gaps / sizeof *gaps };

/* Sorts in place, because neither a run nor an update may allocate. A pass over ranges
 * that are already sorted takes linear time. */
static void sort(cb_range *at, uint32_t n) {
    for (int g = N_GAPS - 1; g >= 0; g--) {
        const uint32_t gap = gaps[g];
        for (uint32_t i = gap; i < n; i++) {
            uint32_t j = i;
            if (at[j - gap].begin <= at[i].begin) continue;
            const cb_range moved = at[i];
            for (; j >= gap && at[j - gap].begin > moved.begin; j -= gap) at[j] = at[j - gap];
            at[j] = moved;
        }
    }
}

static bool is_known(const cb_known_ranges *known, const cb_range *at, uint32_t n) {
    if (known->n != n) return false;
    for (uint32_t i = 0; i < n; i++) {
        const cb_known_range *k = &known->at[i];
        if (k->begin != at[i].begin || k->end != at[i].end || k->written != at[i].written)
            return false;
    }
    return true;
}

static void remember(cb_known_ranges *known, const cb_range *at, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        known->at[i] = (cb_known_range){at[i].begin, at[i].end, at[i].written};
}

static cb_status check(cb_range *at, uint32_t n, cb_error *err) {
    /* The ranges that extend furthest so far. Ranges that are only read may overlap, so such a
     * range is compared with written ones only. */
    const cb_range *any = NULL, *written = NULL;
    sort(at, n);
    for (uint32_t i = 0; i < n; i++) {
        const cb_range *before = at[i].written ? any : written;
        if (before && before->end > at[i].begin) {
            return cb_fail(err, CB_INVALID,
                           "%s \"%s\" and %s \"%s\" overlap in memory; an array that is written "
                           "must not share memory with another",
                           before->kind, before->name, at[i].kind, at[i].name);
        }
        if (!any || at[i].end > any->end) any = &at[i];
        if (at[i].written && (!written || at[i].end > written->end)) written = &at[i];
    }
    return CB_OK;
}

cb_status cb_ranges_check(cb_range *at, uint32_t n, cb_known_ranges *known, cb_error *err) {
    if (!known) return check(at, n, err);
    if (is_known(known, at, n)) return CB_OK;
    known->n = 0;           /* nothing is known if the check fails */
    remember(known, at, n); /* in the caller's order: check() sorts `at` */
    CB_TRY(check(at, n, err));
    known->n = n;
    return CB_OK;
}
