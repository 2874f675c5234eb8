/* executor.h: runs groups of several instructions in one pass over their rows. Start at record.h.
 *
 * Its memory outside the arena depends on the machine and is not part of the plan: the first run
 * allocates, for each thread, a context and tiles of at most CB_ROW_LONGEST elements; compiling a
 * program allocates one number per leaf for sums over all elements. */
#ifndef CB_EXEC_EXECUTOR_H
#define CB_EXEC_EXECUTOR_H

#include "../../executable.h"

typedef struct cb_executor cb_executor;

/* Creates an executor in x->memory; x must outlive it. Groups that do not fit its tables are left
 * to kernels of single ops, and their entries of x->local are filled in. */
CB_MUST_CHECK cb_status cb_executor_new(cb_executable *x, cb_executor **out, cb_error *err);
uint64_t cb_executor_bytes(const cb_executor *e); /* bytes of the threads' memory, which x->memory
                                                     does not contain */
void cb_executor_free(cb_executor *e);            /* must be called before x is freed; NULL is
                                                     fine */
bool cb_executor_has(const cb_executor *e, uint32_t group);
/* Writes the records of a group as text for people. */
void cb_executor_print(const cb_executor *e, uint32_t group, cb_str *out);
/* Runs a group on the addresses in x->tensor and x->address. */
CB_MUST_CHECK cb_status cb_executor_run(cb_executor *e, uint32_t group, const cb_bindings *bindings,
                                        cb_error *err);

#endif
