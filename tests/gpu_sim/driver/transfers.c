/* transfers.c: entries for memory: immediate and stream-ordered allocation, copies, fills. It is
 * stricter than a GPU: cuMemFree does not wait for work that uses the memory. */
#include <stdlib.h>
#include <string.h>

#include "entries.h"
#include "execute.h"
#include "handles.h"
#include "memory.h"
#include "report.h"

static uint64_t reserved; /* bytes of all blocks that have an address, open or not */
static char default_pool; /* its address is the handle */

static bool is_device_address(uint64_t address) { return address - SIM_ARENA < SIM_ARENA_BYTES; }

static sim_result reserve(uint64_t *address, uint64_t bytes) {
    if (bytes == 0) return SIM_ERROR_INVALID_VALUE;
    if (bytes > sim_device.memory - reserved) return SIM_ERROR_OUT_OF_MEMORY;
    *address = sim_memory_reserve(bytes, "memory");
    if (!*address) return SIM_ERROR_OUT_OF_MEMORY;
    reserved += bytes;
    return 0;
}

/* Returns an operation that allocates or releases the block at an address. */
static sim_op *block_op(sim_op_kind kind, uint64_t address) {
    const sim_block_of_memory *b = sim_memory_find(address);
    sim_op *op = sim_op_new(kind);
    if (!op) return NULL;
    op->to = address;
    op->bytes = b->bytes;
    return op;
}

static bool is_block(uint64_t address) {
    const sim_block_of_memory *b = sim_memory_find(address);
    return b && b->address == address && b->state != SIM_CLOSED && strcmp(b->what, "memory") == 0;
}

CUresult sim_cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    if (!free_bytes || !total) return SIM_ERROR_INVALID_VALUE;
    *free_bytes = sim_device.memory - reserved;
    *total = sim_device.memory;
    return 0;
}

CUresult sim_cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    uint64_t made;
    if (!address) return SIM_ERROR_INVALID_VALUE;
    if (!sim_may_interrupt("cuMemAlloc")) return SIM_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const sim_result result = reserve(&made, bytes);
    if (result) return result;
    sim_memory_open(made);
    *address = made;
    return 0;
}

CUresult sim_cuMemFree_v2(CUdeviceptr address) {
    if (!address) return 0;
    if (!is_block(address)) return SIM_ERROR_INVALID_VALUE;
    if (!sim_may_interrupt("cuMemFree")) return SIM_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    sim_op *op = block_op(SIM_OP_FREE, address);
    if (!op) return SIM_ERROR_OUT_OF_MEMORY;
    reserved -= op->bytes;
    sim_run_host(op);
    return sim_device.failed;
}

CUresult sim_cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream handle) {
    uint64_t made;
    sim_stream *stream = sim_stream_of(handle);
    if (!stream) return SIM_ERROR_INVALID_HANDLE;
    if (!address) return SIM_ERROR_INVALID_VALUE;
    const sim_result result = reserve(&made, bytes);
    if (result) return result;
    sim_op *op = block_op(SIM_OP_ALLOCATE, made);
    if (!op) return SIM_ERROR_OUT_OF_MEMORY;
    *address = made;
    return sim_issue(stream, op);
}

CUresult sim_cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool pool,
                                     CUstream stream) {
    if ((void *)pool != &default_pool && !sim_handle(pool, SIM_POOL))
        return SIM_ERROR_INVALID_HANDLE;
    return sim_cuMemAllocAsync(address, bytes, stream);
}

CUresult sim_cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
    sim_stream *stream = sim_stream_of(handle);
    if (!stream) return SIM_ERROR_INVALID_HANDLE;
    if (!is_block(address)) return SIM_ERROR_INVALID_VALUE;
    sim_op *op = block_op(SIM_OP_FREE, address);
    if (!op) return SIM_ERROR_OUT_OF_MEMORY;
    if (!stream->capture) reserved -= op->bytes;
    return sim_issue(stream, op);
}

CUresult sim_cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    if (!pool) return SIM_ERROR_INVALID_VALUE;
    if (device < 0 || device >= sim_device.n_devices) return SIM_ERROR_INVALID_DEVICE;
    *pool = (CUmemoryPool)(void *)&default_pool;
    return 0;
}

CUresult sim_cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    if (!pool || !properties) return SIM_ERROR_INVALID_VALUE;
    if ((int)properties->allocType != 1) return SIM_ERROR_INVALID_VALUE; /* pinned on the device */
    *pool = sim_handle_new(SIM_POOL, 1);
    return *pool ? 0 : SIM_ERROR_OUT_OF_MEMORY;
}

CUresult sim_cuMemPoolDestroy(CUmemoryPool pool) {
    if (!sim_handle(pool, SIM_POOL)) return SIM_ERROR_INVALID_HANDLE;
    sim_handle_end(pool);
    return 0;
}

CUresult sim_cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
    if ((void *)pool != &default_pool && !sim_handle(pool, SIM_POOL))
        return SIM_ERROR_INVALID_HANDLE;
    return value && (int)attribute >= 1 && (int)attribute <= 4 ? 0 : SIM_ERROR_INVALID_VALUE;
}

CUresult sim_cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    (void)keep;
    if ((void *)pool != &default_pool && !sim_handle(pool, SIM_POOL))
        return SIM_ERROR_INVALID_HANDLE;
    return 0;
}

/* Pinned host memory: an asynchronous copy accesses it when it runs. For other memory, a copy in
 * takes the bytes at the call, and a copy out is waited for. */

typedef struct pinned_block {
    struct pinned_block *next;
    char *memory;
    size_t bytes;
} pinned_block;
static pinned_block *pinned;

CUresult sim_cuMemAllocHost_v2(void **memory, size_t bytes) {
    if (!memory || bytes == 0) return SIM_ERROR_INVALID_VALUE;
    if (!sim_may_interrupt("cuMemAllocHost")) return SIM_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    pinned_block *made = malloc(sizeof *made);
    char *bytes_of = malloc(bytes);
    if (!made || !bytes_of) {
        free(made);
        free(bytes_of);
        return SIM_ERROR_OUT_OF_MEMORY;
    }
    *made = (pinned_block){pinned, bytes_of, bytes};
    pinned = made;
    *memory = bytes_of;
    return 0;
}

CUresult sim_cuMemFreeHost(void *memory) {
    for (pinned_block **at = &pinned; *at; at = &(*at)->next) {
        pinned_block *found = *at;
        if (found->memory != memory) continue;
        if (!sim_may_interrupt("cuMemFreeHost")) return SIM_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        sim_wait_for_all();
        *at = found->next;
        free(found->memory);
        free(found);
        return 0;
    }
    return SIM_ERROR_INVALID_VALUE;
}

static bool is_pinned(const void *memory, size_t bytes) {
    const uintptr_t at = (uintptr_t)memory;
    for (const pinned_block *p = pinned; p; p = p->next) {
        const uintptr_t begin = (uintptr_t)p->memory;
        if (at >= begin && at + bytes <= begin + p->bytes) return true;
    }
    return false;
}

/* Supports the attributes by which libraries recognize each other's memory: context, memory type,
 * device. */
CUresult sim_cuPointerGetAttribute(void *value, CUpointer_attribute attribute,
                                   CUdeviceptr address) {
    const sim_block_of_memory *b = is_device_address(address) ? sim_memory_find(address) : NULL;
    const bool is_device = b && b->state == SIM_OPEN && address < b->address + b->bytes;
    if (!value || (!is_device && !is_pinned((const void *)address, 1)))
        return SIM_ERROR_INVALID_VALUE;
    switch ((int)attribute) {
        case 1: *(CUcontext *)value = sim_current_context; return 0;
        case 2: *(int *)value = is_device ? 2 : 1; return 0;
        case 9: *(int *)value = is_device ? b->device : sim_current_device(); return 0;
        default: return SIM_ERROR_INVALID_VALUE;
    }
}

/* Copies and fills */

/* Checks that both addresses are on the right sides; their exact bounds are checked when the copy
 * runs. */
static bool sides_are_right(sim_op_kind kind, uint64_t to, uint64_t from) {
    return is_device_address(to) == (kind != SIM_OP_COPY_OUT) &&
           is_device_address(from) == (kind != SIM_OP_COPY_IN);
}

static sim_result copy(sim_stream *stream, sim_op_kind kind, uint64_t to, uint64_t from,
                       size_t bytes, bool is_waited_for) {
    if (!stream) return SIM_ERROR_INVALID_HANDLE;
    if (bytes == 0) return 0;
    if (!sides_are_right(kind, to, from)) return SIM_ERROR_INVALID_VALUE;
    if (is_waited_for && !sim_may_interrupt("a copy that waits"))
        return SIM_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const void *host = (const void *)(kind == SIM_OP_COPY_IN ? from : to);
    const bool is_pageable = kind != SIM_OP_COPY && !is_pinned(host, bytes);
    if (kind == SIM_OP_COPY_OUT && is_pageable && stream->capture) {
        sim_report("a copy to memory that is not pinned was captured");
        sim_graph_invalidate(stream->capture);
        return SIM_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    sim_op *op = sim_op_new(kind);
    if (!op) return SIM_ERROR_OUT_OF_MEMORY;
    op->to = to;
    op->from = from;
    op->bytes = bytes;
    if (kind == SIM_OP_COPY_IN && is_pageable && !stream->capture) {
        op->owned = malloc(bytes);
        if (!op->owned) return sim_op_drop(op), SIM_ERROR_OUT_OF_MEMORY;
        memcpy(op->owned, host, bytes);
    }
    const bool waits = is_waited_for || (kind == SIM_OP_COPY_OUT && is_pageable);
    const sim_result result = sim_issue(stream, op);
    if (result == 0 && waits) sim_wait_for(stream->tail);
    return result ? result : sim_device.failed;
}

CUresult sim_cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return copy(sim_stream_of(NULL), SIM_OP_COPY_IN, to, (uint64_t)from, bytes, true);
}
CUresult sim_cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return copy(sim_stream_of(NULL), SIM_OP_COPY_OUT, (uint64_t)to, from, bytes, true);
}
CUresult sim_cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return copy(sim_stream_of(NULL), SIM_OP_COPY, to, from, bytes, false);
}
CUresult sim_cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return copy(sim_stream_of(stream), SIM_OP_COPY_IN, to, (uint64_t)from, bytes, false);
}
CUresult sim_cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(sim_stream_of(stream), SIM_OP_COPY_OUT, (uint64_t)to, from, bytes, false);
}
CUresult sim_cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return copy(sim_stream_of(stream), SIM_OP_COPY, to, from, bytes, false);
}

static sim_result fill(sim_stream *stream, uint64_t to, uint32_t value, size_t count,
                       uint32_t element) {
    if (!stream) return SIM_ERROR_INVALID_HANDLE;
    if (!is_device_address(to) || to % element || count > SIM_ARENA_BYTES)
        return SIM_ERROR_INVALID_VALUE;
    sim_op *op = count ? sim_op_new(SIM_OP_FILL) : NULL;
    if (!op) return count ? SIM_ERROR_OUT_OF_MEMORY : 0;
    op->to = to;
    op->value = value;
    op->element = element;
    op->bytes = count * element;
    return sim_issue(stream, op);
}

CUresult sim_cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    return fill(sim_stream_of(NULL), to, value, count, 1);
}
CUresult sim_cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
    return fill(sim_stream_of(NULL), to, value, count, 4);
}
CUresult sim_cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    return fill(sim_stream_of(stream), to, value, count, 1);
}
CUresult sim_cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    return fill(sim_stream_of(stream), to, value, count, 4);
}
