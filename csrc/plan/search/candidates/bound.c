#include "bound.h"

#include <math.h>

double cb_tangents_bound(const cb_tangents *t, size_t n, double bytes) {
    double best = 0;
    for (size_t i = 0; i < n; i++) best = fmax(best, cb_tangent_at(t->at[i], bytes));
    return best;
}
