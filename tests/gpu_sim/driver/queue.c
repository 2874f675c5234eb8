/* queue.c: each operation has a vector clock. It is the maximum of the clocks of what the operation
 * waits for and of what the host knew when it issued the operation; its own entry is its position
 * in its slot. */
#include "queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "entries.h"
#include "execute.h"
#include "handles.h"

enum { SEQUENCE_BITS = 25, N_NAMES = 4096 };

static struct {
    uint32_t sequence[SIM_SLOTS], host_clock[SIM_SLOTS];
    enum { FREE, USED, RELEASED } state[SIM_SLOTS];
    sim_stream *stream[SIM_SLOTS];
    sim_op **pending;
    size_t n_pending, cap_pending;
    const sim_op *current;
    struct {
        uint32_t stamp;
        char name[60];
    } names[N_NAMES]; /* names of the latest operations */
    uint64_t random;
} queue = {.state = {[SIM_HOST_SLOT] = USED}};

static const char *const kind_names[] = {
    [SIM_OP_KERNEL] = "kernel",
    [SIM_OP_COPY_IN] = "copy to the device",
    [SIM_OP_COPY_OUT] = "copy to the host",
    [SIM_OP_COPY] = "copy on the device",
    [SIM_OP_FILL] = "fill",
    [SIM_OP_ALLOCATE] = "allocation",
    [SIM_OP_FREE] = "free",
    [SIM_OP_EVENT] = "event",
    [SIM_OP_CALL] = "host function",
    [SIM_OP_JOIN] = "join",
};

uint64_t sim_random(uint64_t below) {
    if (!queue.random) queue.random = 0x9e3779b97f4a7c15ull * (sim_device.seed + 1);
    queue.random ^= queue.random << 13;
    queue.random ^= queue.random >> 7;
    queue.random ^= queue.random << 17;
    return below ? (queue.random >> 11) % below : 0;
}
void sim_restart_random(void) { queue.random = 0; }

/* References */

sim_op *sim_op_new(sim_op_kind kind) {
    sim_op *op = calloc(1, sizeof *op);
    if (op) *op = (sim_op){.kind = kind, .references = 1};
    return op;
}

sim_op *sim_op_keep(sim_op *op) {
    if (op) op->references++;
    return op;
}

/* Drops a reference. An operation that has run has dropped its waits, so freeing never follows a
 * long chain. */
void sim_op_drop(sim_op *op) {
    if (!op || --op->references > 0) return;
    for (size_t i = 0; i < op->n_waits; i++) sim_op_drop(op->waits[i]);
    free(op->waits);
    free(op->owned);
    free(op);
}

bool sim_op_wait_for(sim_op *op, sim_op *other) {
    if (!other || other == op) return true;
    sim_op **more = realloc(op->waits, (op->n_waits + 1) * sizeof(sim_op *));
    if (!more) return false;
    op->waits = more;
    op->waits[op->n_waits++] = sim_op_keep(other);
    return true;
}

sim_op *sim_op_copy(const sim_op *op) {
    sim_op *made = sim_op_new(op->kind);
    if (!made) return NULL;
    *made = *op;
    made->references = 1;
    made->waits = NULL;
    made->n_waits = 0;
    if (op->kind != SIM_OP_KERNEL) return made;
    const size_t bytes = op->launch.kernel->params_bytes + 1;
    made->launch.params = made->owned = malloc(bytes);
    if (made->owned) return memcpy(made->owned, op->owned, bytes), made;
    sim_op_drop(made);
    return NULL;
}

/* Order */

static uint32_t stamp_of(const sim_op *op) { return op->slot << SEQUENCE_BITS | op->sequence; }

bool sim_happened_before(uint32_t stamp) {
    return queue.current->clock[stamp >> SEQUENCE_BITS] >= (stamp & ((1u << SEQUENCE_BITS) - 1));
}

static size_t name_place(uint32_t stamp) { return stamp * 2654435761u % N_NAMES; }

const char *sim_operation_name(uint32_t stamp) {
    const size_t i = name_place(stamp);
    return queue.names[i].stamp == stamp ? queue.names[i].name : "an operation";
}

static void note_name(const sim_op *op) {
    const size_t i = name_place(stamp_of(op));
    const char *kernel = op->kind == SIM_OP_KERNEL ? op->launch.kernel->name : "";
    queue.names[i].stamp = stamp_of(op);
    snprintf(queue.names[i].name, sizeof queue.names[i].name, "%s%s%s of stream %u",
             kind_names[op->kind], *kernel ? " " : "", kernel, op->slot);
}

static void run(sim_op *op) {
    op->is_done = true;
    double begins = 0;
    for (size_t i = 0; i < op->n_waits; i++)
        if (op->waits[i]->ends > begins) begins = op->waits[i]->ends;
    op->ends = begins + sim_imagined_time(op);
    if (!sim_device.failed) {
        const sim_op *before = queue.current;
        const uint32_t *g = op->launch.grid;
        queue.current = op;
        sim_device.failed =
            sim_execute(op, stamp_of(op), op->kind == SIM_OP_KERNEL ? g[0] * g[1] * g[2] : 1);
        queue.current = before;
    }
    /* Its past is no longer needed, so the chain of waits ends here. */
    for (size_t i = 0; i < op->n_waits; i++) sim_op_drop(op->waits[i]);
    op->n_waits = 0;
}

static sim_op *first_wait(const sim_op *op) {
    const size_t start = sim_device.seed > 1 ? sim_random(op->n_waits) : 0;
    for (size_t i = 0; i < op->n_waits; i++) {
        sim_op *other = op->waits[(i + start) % op->n_waits];
        if (!other->is_done) return other;
    }
    return NULL;
}

static void forget_done(void) {
    size_t left = 0;
    for (size_t i = 0; i < queue.n_pending; i++) {
        if (queue.pending[i]->is_done) sim_op_drop(queue.pending[i]);
        else queue.pending[left++] = queue.pending[i];
    }
    queue.n_pending = left;
}

/* Runs one ready operation that `op` depends on. */
static void step_toward(sim_op *op) {
    for (sim_op *other = first_wait(op); other; other = first_wait(op)) op = other;
    run(op);
}

static void run_up_to(sim_op *op) {
    sim_op_keep(op);
    while (!op->is_done) step_toward(op);
    sim_op_drop(op);
    forget_done();
}

void sim_run_some(void) {
    if (sim_device.seed <= 1 || queue.n_pending == 0) return;
    step_toward(queue.pending[sim_random(queue.n_pending)]);
    forget_done();
}

void sim_run_eagerly(sim_op *op) {
    if (sim_device.seed == 0) run_up_to(op);
}

void sim_wait_for(sim_op *op) {
    if (!op) return;
    sim_op_keep(op);
    while (sim_device.seed > 1 && !op->is_done && sim_random(3) != 0) sim_run_some();
    run_up_to(op);
    for (size_t i = 0; i < SIM_SLOTS; i++)
        if (op->clock[i] > queue.host_clock[i]) queue.host_clock[i] = op->clock[i];
    sim_op_drop(op);
}

static void know_all(void) { memcpy(queue.host_clock, queue.sequence, sizeof queue.host_clock); }

void sim_wait_for_all(void) {
    for (size_t i = 0; i < SIM_SLOTS; i++)
        if (queue.stream[i]) sim_wait_for(queue.stream[i]->tail);
    while (queue.n_pending) sim_wait_for(queue.pending[queue.n_pending - 1]);
    know_all(); /* including those of destroyed streams */
}

void sim_forget_pending(void) {
    for (size_t i = 0; i < queue.n_pending; i++) queue.pending[i]->is_done = true;
    forget_done();
    know_all();
}

static void set_clock(sim_op *op, uint32_t slot) {
    op->slot = slot;
    memcpy(op->clock, queue.host_clock, sizeof op->clock);
    for (size_t i = 0; i < op->n_waits; i++)
        for (size_t j = 0; j < SIM_SLOTS; j++)
            if (op->waits[i]->clock[j] > op->clock[j]) op->clock[j] = op->waits[i]->clock[j];
    op->sequence = op->clock[slot] = ++queue.sequence[slot];
    note_name(op);
}

sim_result sim_enqueue(sim_op *op, uint32_t slot) {
    if (queue.n_pending == queue.cap_pending) {
        const size_t cap = queue.cap_pending ? 2 * queue.cap_pending : 256;
        sim_op **more = realloc(queue.pending, cap * sizeof(sim_op *));
        if (!more) return SIM_ERROR_OUT_OF_MEMORY;
        queue.pending = more;
        queue.cap_pending = cap;
    }
    queue.pending[queue.n_pending++] = op;
    set_clock(op, slot);
    return 0;
}

void sim_run_host(sim_op *op) {
    set_clock(op, SIM_HOST_SLOT);
    queue.host_clock[SIM_HOST_SLOT] = op->sequence;
    run(op);
    sim_op_drop(op);
}

/* Streams */

bool sim_take_slot(uint32_t *slot) {
    for (uint32_t i = 1; i < SIM_SLOTS; i++) {
        const bool is_known = queue.host_clock[i] >= queue.sequence[i];
        if (queue.state[i] == USED || (queue.state[i] == RELEASED && !is_known)) continue;
        queue.state[i] = USED;
        *slot = i;
        return true;
    }
    return false;
}

void sim_release_slot(uint32_t slot) { queue.state[slot] = RELEASED; }

sim_stream *sim_stream_new(bool is_blocking) {
    uint32_t slot;
    if (!sim_take_slot(&slot)) return NULL;
    sim_stream *made = sim_handle_new(SIM_STREAM, sizeof *made);
    if (!made) return NULL;
    made->slot = slot;
    made->is_blocking = is_blocking;
    queue.stream[slot] = made;
    return made;
}

void sim_stream_end(sim_stream *stream) {
    queue.stream[stream->slot] = NULL;
    sim_release_slot(stream->slot);
    sim_op_drop(stream->tail);
    for (size_t i = 0; i < stream->n_waits; i++) sim_op_drop(stream->waits[i]);
    free(stream->waits);
    free(stream->ends);
    stream->tail = NULL;
    stream->waits = NULL;
    stream->ends = NULL;
    sim_handle_end(stream);
}

sim_stream *sim_stream_at(uint32_t slot) { return queue.stream[slot]; }

static sim_stream *standing[2]; /* legacy, of the thread */

sim_stream *sim_stream_of(CUstream handle) {
    if ((uintptr_t)handle > 2) return sim_handle(handle, SIM_STREAM);
    const int which = (uintptr_t)handle == 2;
    if (!standing[which]) standing[which] = sim_stream_new(true);
    return standing[which];
}

bool sim_is_legacy(const sim_stream *stream) { return stream == standing[0]; }

bool sim_is_current(const sim_stream *stream) {
    return stream && (!stream->context || stream->context == sim_current_context);
}

/* Adds the waits of a stream's next operation. The legacy stream and all streams not created as
 * non-blocking wait for each other. */
bool sim_wait_before(sim_op *op, const sim_stream *stream) {
    bool done = sim_op_wait_for(op, stream->tail);
    for (size_t i = 0; i < stream->n_waits; i++) done &= sim_op_wait_for(op, stream->waits[i]);
    for (size_t i = 0; stream->is_blocking && i < SIM_SLOTS; i++) {
        const sim_stream *other = queue.stream[i];
        if (!other || !other->is_blocking || other == stream) continue;
        if (sim_is_legacy(stream) || sim_is_legacy(other)) done &= sim_op_wait_for(op, other->tail);
    }
    return done;
}

static bool legacy_meets_capture(const sim_stream *stream) {
    for (size_t i = 0; sim_is_legacy(stream) && i < SIM_SLOTS; i++)
        if (queue.stream[i] && queue.stream[i]->is_blocking && queue.stream[i]->capture)
            return sim_graph_invalidate(queue.stream[i]->capture), true;
    return false;
}

sim_result sim_issue(sim_stream *stream, sim_op *op) {
    if (stream->capture) return sim_graph_add(stream, op);
    sim_result result = SIM_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (!legacy_meets_capture(stream)) {
        result =
            sim_wait_before(op, stream) ? sim_enqueue(op, stream->slot) : SIM_ERROR_OUT_OF_MEMORY;
    }
    if (result) {
        sim_op_drop(op);
        return result;
    }
    for (size_t i = 0; i < stream->n_waits; i++) sim_op_drop(stream->waits[i]);
    stream->n_waits = 0;
    sim_op_drop(stream->tail);
    stream->tail = sim_op_keep(op);
    sim_run_eagerly(op);
    if (sim_random(4) == 0) sim_run_some();
    return sim_device.failed;
}
