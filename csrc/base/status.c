#include "status.h"

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
        va_start(args, format);
        cb_format_list(err->text, sizeof err->text, format, args);
        va_end(args);
    }
    return status;
}

cb_status cb_no_memory(cb_error *err) { return cb_fail(err, CB_NOMEM, "out of memory"); }
