/* Graph text -> joint graph -> plan -> program, run by every backend (everywhere.h). The first
 * bytes are options, the rest is the text. Gradients are those of the parameters. */
#include "everywhere.h"

#include "ir/text.h"

static void choose_gradients(const cb_graph *g, asked *a) {
    for (uint32_t i = 0; i < g->inputs.len; i++) {
        const cb_op *op = &g->ops.at[g->inputs.at[i]];
        if (g->attrs.at[op->attrs].i[0] == CB_ROLE_PARAM &&
            cb_dtype_is_float(g->values.at[op->out_begin].dtype))
            a->wrt[a->options.n_wrt++] = i;
    }
    a->options.wrt = a->wrt;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bytes b = {data, size};
    asked a = {0};
    cb_graph *g = NULL;
    const uint64_t before = cb_context_memory(context()).live_bytes;
    take_asked(&b, &a);
    const bool forward_only = take(&b) >= 192;
    char *text = exact_text(&b);
    cb_status status = cb_graph_from_text(context(), text, b.n, &g, &err);
    if (status != CB_OK) {
        expect_refusal(status);
    } else if (is_small(g)) {
        choose_gradients(g, &a);
        if (forward_only) a.options.n_wrt = 0;
        run_everywhere(&a, g);
    }
    cb_graph_free(g);
    EXPECT(cb_context_memory(context()).live_bytes == before);
    free(text);
    return 0;
}
