/* text.h: the text form, for reading, golden tests and files; it parses back to the same graph.
 *
 *     cutback.graph 1
 *     region 0 "block0" parent=none limit=none
 *     %0 = input {role=param, name="w"} : f32[16,32]
 *     %4, %5, %6 = layer_norm(%3, %1, %2) {eps=1e-05} : f32[8,32], f32[8], f32[8] @"model.py:12"
 * region=0 constraint=must_save
 *     --- backward
 *     %9 = mul(%8, %7) : f32[8,32] phase=backward
 *     output "loss" %8 result
 *     output "w" %12 grad input=0
 *
 * Numbers after % are value ids and must count up. Types are stated and checked against the
 * inferred ones. Input is untrusted: every mistake is an error with its line. */
#ifndef CB_IR_TEXT_H
#define CB_IR_TEXT_H

#include "graph.h"

CB_MUST_CHECK cb_status cb_graph_print(const cb_graph *g, cb_str *out, cb_error *err);
CB_MUST_CHECK cb_status cb_graph_parse(cb_alloc *alloc, const char *text, size_t length,
                                       cb_graph **out, cb_error *err);

#endif
