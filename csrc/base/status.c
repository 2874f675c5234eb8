#include "status.h"

#include <string.h>

#include "format.h"

const char *cb_status_name(cb_status status) {
    switch (status) {
        case CB_OK: return "ok";
        case CB_INVALID: return "invalid value";
        case CB_TYPE: return "wrong type";
        case CB_NOMEM: return "out of memory";
        case CB_INFEASIBLE: return "budget cannot be met";
        case CB_UNSUPPORTED: return "not supported";
        case CB_CANCELLED: return "cancelled";
        case CB_INTERNAL: return "internal error";
    }
    return "unknown status";
}

cb_status cb_fail(cb_error *err, cb_status status, const char *format, ...) {
    if (err) {
        va_list args;
        err->status = status;
        err->has_location = false;
        va_start(args, format);
        cb_format_list(err->text, sizeof err->text, format, args);
        va_end(args);
        if (status == CB_INFEASIBLE) err->refusal = (cb_refusal){.budget_bytes = UINT64_MAX};
    }
    return status;
}

void cb_add_location(cb_error *err, const char *location) {
    if (!err || !location || !location[0]) return;
    const size_t length = strlen(err->text);
    cb_format(err->text + length, sizeof err->text - length, " at %s", location);
    err->has_location = true;
}

static const char *const refusal_texts[CB_REFUSED_COUNT] = {
    [CB_REFUSED_OTHER] = "there is no plan, not even \"min\"",
    [CB_REFUSED_BUDGET] = "no plan fits the budget; \"min\" (CB_BUDGET_MIN) is the smallest plan",
    [CB_REFUSED_TIME] =
        "every plan found takes more time than allowed; \"min\" allows more without max_extra",
    [CB_REFUSED_CONSTRAINTS] = "no plan satisfies all constraints, not even \"min\"",
    [CB_REFUSED_REGION] = "a region must save more than its limit allows, even with \"min\"",
    [CB_REFUSED_PINNED] =
        "values that must be offloaded exceed the limit on host memory, even with \"min\"",
    [CB_REFUSED_STOPPED] =
        "the search was stopped before it found a plan; \"min\" needs a search too",
};

cb_status cb_refuse(cb_error *err, const cb_refusal *refusal) {
    (void)cb_fail(err, CB_INFEASIBLE, "%s", refusal_texts[refusal->reason]);
    if (err) err->refusal = *refusal;
    return CB_INFEASIBLE;
}

cb_status cb_no_memory(cb_error *err) { return cb_fail(err, CB_NOMEM, "out of memory"); }
