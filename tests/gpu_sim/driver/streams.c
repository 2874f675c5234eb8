/* streams.c: entries for streams and events. An event refers to the operation recorded last, or to
 * a node of a capture. */
#include <stdlib.h>

#include "entries.h"
#include "graphs.h"
#include "handles.h"
#include "report.h"

typedef struct event {
    sim_op *op; /* NULL: nothing was recorded */
    sim_graph *graph;
    size_t node;
    bool has_time;
} event;

CUresult sim_cuStreamCreate(CUstream *out, unsigned flags) {
    if (!out || flags > 1) return SIM_ERROR_INVALID_VALUE;
    sim_stream *made = sim_stream_new(flags == 0);
    if (made) made->context = sim_current_context;
    *out = (CUstream)(void *)made;
    return made ? 0 : SIM_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
    (void)priority;
    return sim_cuStreamCreate(out, flags);
}

/* Destroys a stream; its pending work still runs. */
CUresult sim_cuStreamDestroy_v2(CUstream handle) {
    sim_stream *stream = (uintptr_t)handle > 2 ? sim_stream_of(handle) : NULL;
    if (!stream) return SIM_ERROR_INVALID_HANDLE;
    if (stream->capture) return SIM_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    sim_stream_end(stream);
    return 0;
}

CUresult sim_cuStreamGetCtx(CUstream handle, CUcontext *context) {
    const sim_stream *stream = sim_stream_of(handle);
    if (!stream) return SIM_ERROR_INVALID_HANDLE;
    if (!context) return SIM_ERROR_INVALID_VALUE;
    *context = stream->context ? stream->context : sim_current_context;
    return 0;
}

static sim_result interrupted(sim_stream *stream) {
    if (!stream) return SIM_ERROR_INVALID_HANDLE;
    if (!stream->capture) return 0;
    sim_report("the host waits for a stream during its capture");
    sim_graph_invalidate(stream->capture);
    return SIM_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

/* Makes the host wait for an extra operation after everything in the stream. */
CUresult sim_cuStreamSynchronize(CUstream handle) {
    sim_stream *stream = sim_stream_of(handle);
    sim_result result = interrupted(stream);
    if (result) return result;
    sim_op *end = sim_op_new(SIM_OP_JOIN);
    if (!end) return SIM_ERROR_OUT_OF_MEMORY;
    result = sim_issue(stream, end);
    if (result == 0) sim_wait_for(stream->tail);
    return result ? result : sim_device.failed;
}

CUresult sim_cuStreamQuery(CUstream handle) {
    sim_stream *stream = sim_stream_of(handle);
    const sim_result result = interrupted(stream);
    if (result) return result;
    sim_run_some();
    if (stream->tail && !stream->tail->is_done) return SIM_ERROR_NOT_READY;
    sim_wait_for(stream->tail);
    return sim_device.failed;
}

CUresult sim_cuStreamWaitEvent(CUstream stream_handle, CUevent event_handle, unsigned flags) {
    sim_stream *stream = sim_stream_of(stream_handle);
    event *e = sim_handle(event_handle, SIM_EVENT);
    if (!stream || !e) return SIM_ERROR_INVALID_HANDLE;
    if (flags > 1) return SIM_ERROR_INVALID_VALUE;
    if (e->graph) return sim_graph_join(stream, e->graph, e->node);
    if (!e->op) return 0;
    if (stream->capture) {
        sim_graph_invalidate(stream->capture);
        return SIM_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    sim_op **more = realloc(stream->waits, (stream->n_waits + 1) * sizeof(sim_op *));
    if (!more) return SIM_ERROR_OUT_OF_MEMORY;
    stream->waits = more;
    more[stream->n_waits++] = sim_op_keep(e->op);
    return 0;
}

CUresult sim_cuEventCreate(CUevent *out, unsigned flags) {
    if (!out || flags > 7) return SIM_ERROR_INVALID_VALUE;
    event *made = sim_handle_new(SIM_EVENT, sizeof *made);
    if (!made) return SIM_ERROR_OUT_OF_MEMORY;
    made->has_time = !(flags & 2);
    *out = (CUevent)(void *)made;
    return 0;
}

CUresult sim_cuEventDestroy_v2(CUevent handle) {
    event *e = sim_handle(handle, SIM_EVENT);
    if (!e) return SIM_ERROR_INVALID_HANDLE;
    sim_op_drop(e->op);
    e->op = NULL;
    sim_handle_end(e);
    return 0;
}

CUresult sim_cuEventRecord(CUevent event_handle, CUstream stream_handle) {
    event *e = sim_handle(event_handle, SIM_EVENT);
    sim_stream *stream = sim_stream_of(stream_handle);
    if (!sim_is_current(stream) || !e) return SIM_ERROR_INVALID_HANDLE;
    sim_op *op = sim_op_new(SIM_OP_EVENT);
    if (!op) return SIM_ERROR_OUT_OF_MEMORY;
    const sim_result result = sim_issue(stream, sim_op_keep(op));
    sim_op_drop(e->op);
    e->op = stream->capture ? NULL : sim_op_keep(op);
    e->graph = stream->capture;
    e->node = stream->capture && !result ? stream->ends[0] : 0;
    sim_op_drop(op);
    return result;
}

CUresult sim_cuEventQuery(CUevent handle) {
    event *e = sim_handle(handle, SIM_EVENT);
    if (!e) return SIM_ERROR_INVALID_HANDLE;
    if (e->graph) return SIM_ERROR_CAPTURED_EVENT;
    sim_run_some();
    if (e->op && !e->op->is_done) return SIM_ERROR_NOT_READY;
    sim_wait_for(e->op);
    return sim_device.failed;
}

CUresult sim_cuEventSynchronize(CUevent handle) {
    event *e = sim_handle(handle, SIM_EVENT);
    if (!e) return SIM_ERROR_INVALID_HANDLE;
    if (e->graph) return SIM_ERROR_CAPTURED_EVENT;
    sim_wait_for(e->op);
    return sim_device.failed;
}

CUresult sim_cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
    const event *begin = sim_handle(from, SIM_EVENT), *end = sim_handle(to, SIM_EVENT);
    if (!begin || !end || !begin->op || !end->op) return SIM_ERROR_INVALID_HANDLE;
    if (!milliseconds) return SIM_ERROR_INVALID_VALUE;
    if (!begin->has_time || !end->has_time) return SIM_ERROR_INVALID_HANDLE;
    if (!begin->op->is_done || !end->op->is_done) return SIM_ERROR_NOT_READY;
    *milliseconds = (float)(end->op->ends - begin->op->ends);
    return 0;
}

CUresult sim_cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
    sim_stream *stream = sim_stream_of(handle);
    if (!stream) return SIM_ERROR_INVALID_HANDLE;
    if (!function) return SIM_ERROR_INVALID_VALUE;
    sim_op *op = sim_op_new(SIM_OP_CALL);
    if (!op) return SIM_ERROR_OUT_OF_MEMORY;
    op->call = function;
    op->data = data;
    return sim_issue(stream, op);
}
