/* status.h: how failure travels. Every fallible function returns cb_status, takes `cb_error *err`
 * last (may be NULL) and, having failed, has changed nothing the caller can see.
 *
 * The order of this folder, each above those before it: format, sort, utf8, philox, chance, cpu;
 * status; alloc, dtype, draw; arena, shape, threads; vec, map, bitset; json, json_write. */
#ifndef CB_BASE_STATUS_H
#define CB_BASE_STATUS_H

#include "../include/cutback.h"

/* Fill `err` (if any) and return `status`, so that `return cb_fail(err, CB_INVALID, "...")` reads.
 */
cb_status cb_fail(cb_error *err, cb_status status, const char *format, ...) CB_PRINTF(3, 4);
/* Adds " at model.py:12" to the text of `err`; both may be NULL, and the location empty. */
void cb_add_location(cb_error *err, const char *location);
/* Fills `err` (if any) from a refusal and returns CB_INFEASIBLE. */
cb_status cb_refuse(cb_error *err, const cb_refusal *refusal);
/* The one out-of-memory text; allocates nothing. */
cb_status cb_no_memory(cb_error *err);

#define CB_TRY(expression)                                \
    do {                                                  \
        cb_status cb_try_status = (expression);           \
        if (cb_try_status != CB_OK) return cb_try_status; \
    } while (0)

/* Like CB_TRY, for functions with one exit label: sets `status` and jumps to `done`. */
#define CB_TRY_DONE(expression)         \
    do {                                \
        status = (expression);          \
        if (status != CB_OK) goto done; \
    } while (0)

#endif
