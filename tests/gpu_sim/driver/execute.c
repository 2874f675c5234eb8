/* execute.c: executes one operation, and turns faults into error codes. */
#include "execute.h"

#include <string.h>

#include "entries.h"
#include "memory.h"
#include "races.h"
#include "report.h"

_Thread_local bool sim_in_host_function;

/* Returns the driver's code of a fault; one that no GPU would notice is a failed launch. */
static sim_result code_of(sim_fault fault) {
    switch (fault) {
        case SIM_FINE: return 0;
        case SIM_BOUNDS:
        case SIM_TO_CONSTANT: return SIM_ERROR_ILLEGAL_ADDRESS;
        case SIM_MISALIGNED: return SIM_ERROR_MISALIGNED_ADDRESS;
        case SIM_HANG: return SIM_ERROR_LAUNCH_TIMEOUT;
        default: return SIM_ERROR_LAUNCH_FAILED;
    }
}

static sim_fault touch(uint64_t address, uint64_t bytes, int access, const char *what) {
    const sim_fault fault = sim_memory_access(address, bytes, access, what);
    return fault != SIM_FINE ? fault : sim_races_range(address, bytes, access, what);
}

static sim_fault copy(const sim_op *op, const char *what) {
    sim_fault fault = SIM_FINE;
    const bool is_in = op->kind == SIM_OP_COPY_IN, is_out = op->kind == SIM_OP_COPY_OUT;
    if (!is_in) fault = touch(op->from, op->bytes, SIM_READ, what);
    if (fault == SIM_FINE && !is_out) fault = touch(op->to, op->bytes, SIM_WRITE, what);
    if (fault != SIM_FINE) return fault;
    const void *from = op->owned ? op->owned : (const void *)op->from;
    memmove(is_out ? (void *)op->to : sim_host(op->to), is_in ? from : sim_host(op->from),
            op->bytes);
    return SIM_FINE;
}

static sim_fault fill(const sim_op *op, const char *what) {
    const sim_fault fault = touch(op->to, op->bytes, SIM_WRITE, what);
    for (uint64_t i = 0; fault == SIM_FINE && i < op->bytes; i += op->element)
        memcpy(sim_host(op->to + i), &op->value, op->element); /* little-endian */
    return fault;
}

static sim_fault release(const sim_op *op, const char *what) {
    const sim_fault fault = sim_races_range(op->to, op->bytes, SIM_WRITE, what);
    if (fault != SIM_FINE || sim_memory_close(op->to)) return fault;
    sim_report("%s: memory that is not allocated", what);
    return SIM_BOUNDS;
}

static void call_host(const sim_op *op) {
    sim_in_host_function = true;
    pthread_mutex_unlock(&sim_device.lock);
    op->call(op->data);
    pthread_mutex_lock(&sim_device.lock);
    sim_in_host_function = false;
}

sim_result sim_execute(const sim_op *op, uint32_t stamp, uint32_t n_blocks) {
    const char *name = sim_operation_name(stamp);
    sim_races_begin(stamp, n_blocks);
    switch (op->kind) {
        case SIM_OP_KERNEL: return code_of(sim_run_grid(&op->launch));
        case SIM_OP_COPY_IN:
        case SIM_OP_COPY_OUT:
        case SIM_OP_COPY: return code_of(copy(op, name));
        case SIM_OP_FILL: return code_of(fill(op, name));
        case SIM_OP_ALLOCATE: sim_memory_open(op->to); return 0;
        case SIM_OP_FREE: return code_of(release(op, name));
        case SIM_OP_CALL: call_host(op); return 0;
        default: return 0;
    }
}

double sim_imagined_time(const sim_op *op) {
    const uint32_t *g = op->launch.grid;
    if (op->kind == SIM_OP_KERNEL) return 2e-3 + 1e-6 * g[0] * g[1] * g[2];
    return op->kind <= SIM_OP_FILL ? 2e-3 + 1e-9 * (double)op->bytes : 0;
}
