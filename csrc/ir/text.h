/* text.h: the text form of a graph, for people, golden tests and files. It parses back to the same
 * graph.
 *
 *     cutback.graph 1
 *     region 0 "block0" parent=none limit=none
 *     %0 = input {role=param, name="w"} : f32[16,32]
 *     %4, %5 = rms_norm(%3, %1) {eps=1e-05} : f32[8,32], f32[8] @"model.py:12" region=0
 *     --- backward
 *     %9 = mul(%8, %7) : f32[8,32] phase=backward constraint=must_save
 *     output "loss" %8 result
 *     output "w" %12 grad input=0
 *
 * Numbers after % are value ids and must count up. Types are stated and checked against the
 * inferred ones. They may be followed by a location, phase, region, constraint and origin. Blank
 * lines and lines that begin with # are skipped. Input is untrusted: every mistake is an error with
 * its line. */
#ifndef CB_IR_TEXT_H
#define CB_IR_TEXT_H

#include "graph.h"

/* Appends to `out`, which the caller has initialised. */
CB_MUST_CHECK cb_status cb_graph_print(const cb_graph *g, cb_str *out, cb_error *err);
CB_MUST_CHECK cb_status cb_graph_parse(cb_alloc *alloc, const char *text, size_t length,
                                       cb_graph **out, cb_error *err);

#endif
