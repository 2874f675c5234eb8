/* graphs.c: capture and replay. While a stream captures, its operations become nodes; other streams
 * join when they wait for a captured event. A replay makes operations of all nodes, each branch in
 * its own slot, after everything the stream waited for and before its next operation. */
#include "graphs.h"

#include <stdlib.h>
#include <string.h>

#include "entries.h"
#include "handles.h"
#include "report.h"

enum { GLOBAL, THREAD_LOCAL, RELAXED };
static _Thread_local CUstreamCaptureMode own_mode;

typedef struct executable {
    sim_graph *graph;
    uint32_t *slot; /* slot of each node's branch */
    sim_op *last;   /* a replay waits for the previous one */
} executable;

static bool add_number(size_t **numbers, size_t *n, size_t number) {
    size_t *more = realloc(*numbers, (*n + 1) * sizeof *more);
    if (!more) return false;
    *numbers = more;
    more[(*n)++] = number;
    return true;
}

void sim_graph_invalidate(sim_graph *graph) { graph->is_invalid = true; }

sim_result sim_graph_add(sim_stream *stream, sim_op *op) {
    sim_graph *graph = stream->capture;
    if (op->kind == SIM_OP_ALLOCATE || op->kind == SIM_OP_FREE) {
        sim_report("memory is allocated or freed during a capture");
        sim_graph_invalidate(graph);
    }
    if (graph->is_invalid) {
        sim_op_drop(op);
        return SIM_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    sim_node *more = realloc(graph->nodes, (graph->n + 1) * sizeof *more);
    if (more) graph->nodes = more;
    size_t *ends = malloc(sizeof *ends);
    if (!more || !ends) {
        free(ends);
        sim_op_drop(op);
        sim_graph_invalidate(graph);
        return SIM_ERROR_OUT_OF_MEMORY;
    }
    op->slot = stream->slot;
    more[graph->n] = (sim_node){op, stream->ends, stream->n_ends};
    ends[0] = graph->n++;
    stream->ends = ends;
    stream->n_ends = 1;
    return 0;
}

sim_result sim_graph_join(sim_stream *stream, sim_graph *graph, size_t node) {
    if (!graph->origin) return SIM_ERROR_CAPTURED_EVENT; /* the event's capture has ended */
    if (stream->capture && stream->capture != graph) return SIM_ERROR_STREAM_CAPTURE_ISOLATION;
    if (sim_is_legacy(stream)) return SIM_ERROR_STREAM_CAPTURE_IMPLICIT;
    stream->capture = graph;
    return add_number(&stream->ends, &stream->n_ends, node) ? 0 : SIM_ERROR_OUT_OF_MEMORY;
}

/* In global mode no thread may make a call that could interrupt a capture; in thread-local mode the
 * capturing thread may not. A thread may exempt itself. */
bool sim_may_interrupt(const char *what) {
    bool may = true;
    for (uint32_t slot = 0; slot < SIM_SLOTS && (int)own_mode != RELAXED; slot++) {
        const sim_stream *stream = sim_stream_at(slot);
        sim_graph *graph = stream ? stream->capture : NULL;
        if (!graph || graph->mode == RELAXED) continue;
        const bool is_own = pthread_equal(graph->thread, pthread_self());
        if (!is_own && (graph->mode == THREAD_LOCAL || (int)own_mode == THREAD_LOCAL)) continue;
        if (may) sim_report("%s during a capture", what);
        sim_graph_invalidate(graph);
        may = false;
    }
    return may;
}

CUresult sim_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    if (!mode || (int)*mode < GLOBAL || (int)*mode > RELAXED) return SIM_ERROR_INVALID_VALUE;
    const CUstreamCaptureMode before = own_mode;
    own_mode = *mode;
    *mode = before;
    return 0;
}

CUresult sim_cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
    sim_stream *stream = sim_stream_of(handle);
    if (!stream) return SIM_ERROR_INVALID_HANDLE;
    if (sim_is_legacy(stream)) return SIM_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture || (int)mode < GLOBAL || (int)mode > RELAXED)
        return SIM_ERROR_INVALID_VALUE;
    sim_graph *graph = sim_handle_new(SIM_GRAPH, sizeof *graph);
    if (!graph) return SIM_ERROR_OUT_OF_MEMORY;
    *graph =
        (sim_graph){.origin = stream, .mode = (int)mode, .thread = pthread_self(), .references = 1};
    stream->capture = graph;
    stream->n_ends = 0;
    return 0;
}

static void drop_graph(sim_graph *graph) {
    if (--graph->references > 0) return;
    for (size_t i = 0; i < graph->n; i++) {
        sim_op_drop(graph->nodes[i].op);
        free(graph->nodes[i].waits);
    }
    free(graph->nodes);
    graph->nodes = NULL;
    graph->n = 0;
}

static void leave(const sim_graph *graph) {
    for (uint32_t slot = 0; slot < SIM_SLOTS; slot++) {
        sim_stream *stream = sim_stream_at(slot);
        if (!stream || stream->capture != graph) continue;
        stream->capture = NULL;
        stream->n_ends = 0;
    }
}

void sim_graph_forget_captures(void) {
    for (uint32_t slot = 0; slot < SIM_SLOTS; slot++) {
        const sim_stream *stream = sim_stream_at(slot);
        sim_graph *graph = stream ? stream->capture : NULL;
        if (!graph) continue;
        leave(graph);
        graph->origin = NULL;
        drop_graph(graph);
        sim_handle_end(graph);
    }
}

/* Checks that every node precedes the end of the stream where the capture began. */
static sim_result joined(const sim_graph *graph) {
    bool *is_before = calloc(graph->n + 1, sizeof *is_before);
    if (!is_before) return SIM_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < graph->origin->n_ends; i++) is_before[graph->origin->ends[i]] = true;
    sim_result result = 0;
    for (size_t i = graph->n; i-- > 0;) {
        if (!is_before[i]) result = SIM_ERROR_STREAM_CAPTURE_UNJOINED;
        for (size_t j = 0; is_before[i] && j < graph->nodes[i].n_waits; j++)
            is_before[graph->nodes[i].waits[j]] = true;
    }
    free(is_before);
    return result;
}

CUresult sim_cuStreamEndCapture(CUstream handle, CUgraph *out) {
    sim_stream *stream = sim_stream_of(handle);
    if (!stream) return SIM_ERROR_INVALID_HANDLE;
    sim_graph *graph = stream->capture;
    if (!out || !graph || graph->origin != stream) return SIM_ERROR_INVALID_VALUE;
    sim_result result = graph->is_invalid ? SIM_ERROR_STREAM_CAPTURE_INVALIDATED : joined(graph);
    leave(graph);
    graph->origin = NULL;
    *out = result ? NULL : (CUgraph)(void *)graph;
    if (result) {
        drop_graph(graph);
        sim_handle_end(graph);
    }
    return result;
}

CUresult sim_cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
    const sim_stream *stream = sim_stream_of(handle);
    if (!stream) return SIM_ERROR_INVALID_HANDLE;
    if (!status) return SIM_ERROR_INVALID_VALUE;
    *status = !stream->capture ? 0 : stream->capture->is_invalid ? 2 : 1;
    return 0;
}

/* Replays */

/* Takes one slot per captured stream. */
static bool take_slots(executable *made) {
    const sim_graph *graph = made->graph;
    for (size_t i = 0; i < graph->n; i++) {
        size_t same = 0;
        while (graph->nodes[same].op->slot != graph->nodes[i].op->slot) same++;
        if (same < i) made->slot[i] = made->slot[same];
        else if (!sim_take_slot(&made->slot[i])) return false;
    }
    return true;
}

CUresult sim_cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph handle,
                                         unsigned long long flags) {
    sim_graph *graph = sim_handle(handle, SIM_GRAPH);
    if (!graph || graph->origin) return SIM_ERROR_INVALID_HANDLE;
    if (!out || flags) return SIM_ERROR_INVALID_VALUE;
    executable *made = sim_handle_new(SIM_GRAPH_EXEC, sizeof *made);
    if (!made) return SIM_ERROR_OUT_OF_MEMORY;
    made->graph = graph;
    made->slot = calloc(graph->n + 1, sizeof *made->slot);
    if (!made->slot || !take_slots(made)) return SIM_ERROR_OUT_OF_MEMORY;
    graph->references++;
    *out = (CUgraphExec)(void *)made;
    return 0;
}

/* Enqueues the operations of all nodes, each after those of the nodes it waits for, or after
 * `begin`; `end` waits for all. */
static sim_result replay(const executable *e, sim_op **ops, sim_op *begin, sim_op *end) {
    for (size_t i = 0; i < e->graph->n; i++) {
        const sim_node *node = &e->graph->nodes[i];
        sim_op *op = ops[i] = sim_op_copy(node->op);
        if (!op) return SIM_ERROR_OUT_OF_MEMORY;
        bool done = node->n_waits > 0 || sim_op_wait_for(op, begin);
        for (size_t j = 0; j < node->n_waits; j++) done &= sim_op_wait_for(op, ops[node->waits[j]]);
        if (!done || sim_enqueue(sim_op_keep(op), e->slot[i])) return SIM_ERROR_OUT_OF_MEMORY;
        if (!sim_op_wait_for(end, op)) return SIM_ERROR_OUT_OF_MEMORY;
    }
    return 0;
}

CUresult sim_cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) {
    executable *e = sim_handle(handle, SIM_GRAPH_EXEC);
    sim_stream *stream = sim_stream_of(stream_handle);
    if (!e || !stream) return SIM_ERROR_INVALID_HANDLE;
    if (stream->capture) {
        sim_graph_invalidate(stream->capture);
        return SIM_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    sim_op *begin = sim_op_new(SIM_OP_JOIN), *end = sim_op_new(SIM_OP_JOIN);
    sim_op **ops = calloc(e->graph->n + 1, sizeof *ops);
    sim_result result = SIM_ERROR_OUT_OF_MEMORY;
    if (begin && end && ops && sim_op_wait_for(begin, e->last)) {
        result = sim_issue(stream, sim_op_keep(begin));
        if (!result) result = replay(e, ops, begin, end);
        if (!result) result = sim_issue(stream, sim_op_keep(end));
    }
    for (size_t i = 0; ops && i < e->graph->n; i++) sim_op_drop(ops[i]);
    free(ops);
    sim_op_drop(begin);
    sim_op_drop(e->last);
    e->last = end;
    return result ? result : sim_device.failed;
}

CUresult sim_cuGraphExecDestroy(CUgraphExec handle) {
    executable *e = sim_handle(handle, SIM_GRAPH_EXEC);
    if (!e) return SIM_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < e->graph->n; i++) sim_release_slot(e->slot[i]);
    sim_op_drop(e->last);
    free(e->slot);
    drop_graph(e->graph);
    sim_handle_end(e);
    return 0;
}

CUresult sim_cuGraphDestroy(CUgraph handle) {
    sim_graph *graph = sim_handle(handle, SIM_GRAPH);
    if (!graph || graph->origin) return SIM_ERROR_INVALID_HANDLE;
    drop_graph(graph);
    sim_handle_end(graph);
    return 0;
}
