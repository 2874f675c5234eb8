#include "dimacs.h"

cb_status cb_dimacs_write(cb_str *out, uint32_t n_node, uint32_t n_arc, const uint32_t *from,
                          const uint32_t *to, const int64_t *capacity, uint32_t source,
                          uint32_t sink, cb_error *err) {
    int64_t sum = 0;
    for (uint32_t i = 0; i < n_arc; i++) {
        if (capacity[i] == CB_FLOW_INF) continue;
        if (capacity[i] < 0 || capacity[i] >= CB_FLOW_MOST - sum) {
            return cb_fail(err, CB_INVALID, "network: capacity %lld of arc %u is out of range",
                           (long long)capacity[i], i);
        }
        sum += capacity[i];
    }
    int64_t infinite = sum + 1;
    cb_str_addf(out, "c minimum cut; a capacity of %lld means no limit\n", (long long)infinite);
    cb_str_addf(out, "p max %u %u\nn %u s\nn %u t\n", n_node, n_arc, source + 1, sink + 1);
    for (uint32_t i = 0; i < n_arc; i++) {
        int64_t limit = capacity[i] == CB_FLOW_INF ? infinite : capacity[i];
        cb_str_addf(out, "a %u %u %lld\n", from[i] + 1, to[i] + 1, (long long)limit);
    }
    return out->failed ? cb_no_memory(err) : CB_OK;
}
