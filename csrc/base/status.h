/* status.h: error handling. Every function that can fail returns cb_status and takes `cb_error
 * *err` last (may be NULL). A failed call has changed nothing that the caller can see.
 *
 * The files of this folder in order, each using only earlier ones: format, sort, utf8, philox,
 * chance, cpu; status; alloc, dtype, draw; arena, shape, threads; vec, map, bitset; json,
 * json_write. */
#ifndef CB_BASE_STATUS_H
#define CB_BASE_STATUS_H

#include "../include/cutback.h"

/* Fills `err` (may be NULL) and returns `status`: `return cb_fail(err, CB_INVALID, "...");`. */
cb_status cb_fail(cb_error *err, cb_status status, const char *format, ...) CB_PRINTF(3, 4);
/* Appends " at model.py:12" to the text of `err`. Does nothing if either is NULL or `location` is
 * empty. */
void cb_add_location(cb_error *err, const char *location);
/* Fills `err` (may be NULL) from a refusal and returns CB_INFEASIBLE. */
cb_status cb_refuse(cb_error *err, const cb_refusal *refusal);
/* Reports that memory ran out; allocates nothing. */
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
