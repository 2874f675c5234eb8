/* Graphs as text: see graph_forms.h. */
#include "graph_forms.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    return try_graph(cb_graph_parse, data, size);
}
