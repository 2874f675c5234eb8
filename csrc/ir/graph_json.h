/* graph_json.h: the JSON form of a graph: the same content as the text form. Input is untrusted. */
#ifndef CB_IR_GRAPH_JSON_H
#define CB_IR_GRAPH_JSON_H

#include "graph.h"

CB_MUST_CHECK cb_status cb_graph_to_json(const cb_graph *g, cb_str *out, cb_error *err);
CB_MUST_CHECK cb_status cb_graph_from_json(cb_alloc *alloc, const char *text, size_t length,
                                           cb_graph **out, cb_error *err);

#endif
