/* traced.h: reads joint graphs written by a PyTorch tracer (docs/problem.md, "Traced graphs") into
 * problems. Op ids are node ids, so steps of a plan are node ids of the file. */
#ifndef CB_PLAN_TRACED_H
#define CB_PLAN_TRACED_H

#include "../model/problem.h"

/* Reads a text that is a problem or a traced graph. Its content is not trusted. */
CB_MUST_CHECK cb_status cb_problem_read(cb_alloc *alloc, const char *text, size_t length,
                                        cb_problem **out, cb_error *err);

#endif
