/* order.c: streams, events, captures and kernels. Everything runs at once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "null.h"

typedef struct stream {
    bool is_capturing;
} stream;

typedef struct event {
    uint64_t ns; /* 0: never recorded */
} event;

typedef struct kernel {
    struct kernel *before;
    int dynamic_shared;
    char name[128];
} kernel;

static kernel *kernels; /* kept until the process ends, because the log refers to their names */
static char graph_place;

/* ---- streams --------------------------------------------------------------------------------- */

/* Returns NULL for the legacy stream and for a thread's own, whose handles are small numbers. */
static stream *stream_of(CUstream handle) {
    null_now.stream = handle;
    return (uintptr_t)handle <= 2 ? NULL : (stream *)(void *)handle;
}

CUresult null_cuStreamCreate(CUstream *out, unsigned flags) {
    if (!out || flags > 1) return SIM_ERROR_INVALID_VALUE;
    *out = (CUstream)calloc(1, sizeof(stream));
    null_now.stream = *out;
    return *out ? 0 : SIM_ERROR_OUT_OF_MEMORY;
}

CUresult null_cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority) {
    (void)priority;
    return null_cuStreamCreate(out, flags);
}

CUresult null_cuStreamDestroy_v2(CUstream handle) {
    stream *destroyed = stream_of(handle);
    free(destroyed);
    return destroyed ? 0 : SIM_ERROR_INVALID_HANDLE;
}

CUresult null_cuStreamGetCtx(CUstream handle, CUcontext *context) {
    null_now.stream = handle;
    if (!context) return SIM_ERROR_INVALID_VALUE;
    *context = null_context();
    return 0;
}

CUresult null_cuStreamSynchronize(CUstream handle) {
    const stream *waited = stream_of(handle);
    return waited && waited->is_capturing ? SIM_ERROR_STREAM_CAPTURE_UNSUPPORTED : 0;
}

CUresult null_cuStreamQuery(CUstream handle) { return null_cuStreamSynchronize(handle); }

CUresult null_cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
    (void)data;
    (void)stream_of(handle);
    return function ? 0 : SIM_ERROR_INVALID_VALUE;
}

/* ---- events ---------------------------------------------------------------------------------- */

CUresult null_cuEventCreate(CUevent *out, unsigned flags) {
    (void)flags;
    if (!out) return SIM_ERROR_INVALID_VALUE;
    *out = (CUevent)calloc(1, sizeof(event));
    return *out ? 0 : SIM_ERROR_OUT_OF_MEMORY;
}

CUresult null_cuEventDestroy_v2(CUevent handle) {
    free(handle);
    return handle ? 0 : SIM_ERROR_INVALID_HANDLE;
}

CUresult null_cuEventRecord(CUevent handle, CUstream on) {
    event *recorded = (event *)(void *)handle;
    struct timespec now;
    null_now.stream = on;
    if (!recorded) return SIM_ERROR_INVALID_HANDLE;
    clock_gettime(CLOCK_MONOTONIC, &now);
    recorded->ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    return 0;
}

CUresult null_cuEventQuery(CUevent handle) { return handle ? 0 : SIM_ERROR_INVALID_HANDLE; }
CUresult null_cuEventSynchronize(CUevent handle) { return handle ? 0 : SIM_ERROR_INVALID_HANDLE; }

CUresult null_cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
    const event *first = (event *)(void *)from, *last = (event *)(void *)to;
    if (!milliseconds) return SIM_ERROR_INVALID_VALUE;
    if (!first || !last || !first->ns || !last->ns) return SIM_ERROR_INVALID_HANDLE;
    *milliseconds = (float)(1e-6 * ((double)last->ns - (double)first->ns));
    return 0;
}

CUresult null_cuStreamWaitEvent(CUstream handle, CUevent waited, unsigned flags) {
    (void)flags;
    (void)stream_of(handle);
    return waited ? 0 : SIM_ERROR_INVALID_HANDLE;
}

/* ---- captures --------------------------------------------------------------------------------
 * A graph has no contents, and launching it is one line of the log. */

CUresult null_cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
    stream *captured = stream_of(handle);
    (void)mode;
    if (!captured || captured->is_capturing) return SIM_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    captured->is_capturing = true;
    return 0;
}

CUresult null_cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    stream *captured = stream_of(handle);
    if (!graph || !captured || !captured->is_capturing) return SIM_ERROR_INVALID_VALUE;
    captured->is_capturing = false;
    *graph = (CUgraph)(void *)&graph_place;
    return 0;
}

CUresult null_cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
    const stream *asked = stream_of(handle);
    if (!status) return SIM_ERROR_INVALID_VALUE;
    *status = asked && asked->is_capturing;
    return 0;
}

CUresult null_cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    static _Thread_local CUstreamCaptureMode current;
    if (!mode) return SIM_ERROR_INVALID_VALUE;
    const CUstreamCaptureMode before = current;
    current = *mode;
    *mode = before;
    return 0;
}

CUresult null_cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph,
                                          unsigned long long flags) {
    (void)flags;
    if (!executable || !graph) return SIM_ERROR_INVALID_VALUE;
    *executable = (CUgraphExec)(void *)&graph_place;
    return 0;
}

CUresult null_cuGraphLaunch(CUgraphExec executable, CUstream on) {
    (void)stream_of(on);
    return executable ? 0 : SIM_ERROR_INVALID_VALUE;
}

CUresult null_cuGraphExecDestroy(CUgraphExec executable) {
    return executable ? 0 : SIM_ERROR_INVALID_VALUE;
}

CUresult null_cuGraphDestroy(CUgraph graph) { return graph ? 0 : SIM_ERROR_INVALID_VALUE; }

/* ---- libraries and kernels --------------------------------------------------------------------
 * Any code loads, and has a kernel of any name. */

static CUresult load(void **out, const void *code) {
    if (!out || !code) return SIM_ERROR_INVALID_VALUE;
    *out = malloc(1);
    return *out ? 0 : SIM_ERROR_OUT_OF_MEMORY;
}

static CUresult unload(void *loaded) {
    free(loaded);
    return loaded ? 0 : SIM_ERROR_INVALID_HANDLE;
}

static CUresult find_kernel(void **out, const void *loaded, const char *name) {
    if (!out || !loaded || !name) return SIM_ERROR_INVALID_VALUE;
    kernel *found = calloc(1, sizeof *found);
    if (!found) return SIM_ERROR_OUT_OF_MEMORY;
    found->before = kernels;
    found->dynamic_shared = NULL_BLOCK_SHARED;
    (void)snprintf(found->name, sizeof found->name, "%s", name);
    *out = kernels = found;
    return 0;
}

CUresult null_cuModuleLoadData(CUmodule *module, const void *image) {
    return load((void **)module, image);
}

CUresult null_cuModuleUnload(CUmodule module) { return unload(module); }

CUresult null_cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    return find_kernel((void **)function, module, name);
}

/* Finds no globals: kernels do not run, so the contents of their globals do not matter. */
CUresult null_cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule module,
                                   const char *name) {
    (void)address;
    (void)bytes;
    return module && name ? SIM_ERROR_NOT_FOUND : SIM_ERROR_INVALID_VALUE;
}

CUresult null_cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options,
                                void **jit_values, unsigned n_jit, CUlibraryOption *options,
                                void **values, unsigned n) {
    (void)jit_options;
    (void)jit_values;
    (void)n_jit;
    (void)options;
    (void)values;
    (void)n;
    return load((void **)library, code);
}

CUresult null_cuLibraryUnload(CUlibrary library) { return unload(library); }

CUresult null_cuLibraryGetKernel(CUkernel *found, CUlibrary library, const char *name) {
    return find_kernel((void **)found, library, name);
}

CUresult null_cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary library,
                                 const char *name) {
    (void)address;
    (void)bytes;
    return library && name ? SIM_ERROR_NOT_FOUND : SIM_ERROR_INVALID_VALUE;
}

CUresult null_cuKernelGetFunction(CUfunction *function, CUkernel of) {
    if (!function || !of) return SIM_ERROR_INVALID_VALUE;
    *function = (CUfunction)(void *)of;
    return 0;
}

/* Returns an attribute without reading the code: every kernel has the registers set by null_set,
 * and no shared or local memory. */
CUresult null_cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle) {
    const kernel *of = (kernel *)(void *)handle;
    if (!of) return SIM_ERROR_INVALID_HANDLE;
    const int capability = (int)null_device.capability;
    const int values[] = {[0] = NULL_MOST_THREADS, /* threads per block */
                          [4] = (int)null_device.registers,
                          [5] = capability, /* of the PTX, and of the machine code */
                          [6] = capability,
                          [8] = of->dynamic_shared};
    if (!value || (int)attribute < 0 || (size_t)attribute >= sizeof values / sizeof *values)
        return SIM_ERROR_INVALID_VALUE;
    *value = values[attribute];
    return 0;
}

CUresult null_cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
    enum { DYNAMIC_SHARED = 8, CARVEOUT };
    kernel *of = (kernel *)(void *)handle;
    if (!of) return SIM_ERROR_INVALID_HANDLE;
    if ((int)attribute == CARVEOUT) return 0;
    if ((int)attribute != DYNAMIC_SHARED || value < 0 || value > NULL_MOST_BLOCK_SHARED)
        return SIM_ERROR_INVALID_VALUE;
    of->dynamic_shared = value;
    return 0;
}

/* Counts whole warps; a warp gets registers in units of 256. */
CUresult null_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction handle,
                                                          int threads, size_t shared) {
    if (!handle) return SIM_ERROR_INVALID_HANDLE;
    if (!blocks || threads < 1 || threads > NULL_MOST_THREADS) return SIM_ERROR_INVALID_VALUE;
    const int warps = (threads + 31) / 32;
    const int registers = ((int)null_device.registers * 32 + 255) / 256 * 256 * warps;
    const int by_threads = NULL_THREADS / (32 * warps);
    const int by_registers = registers ? NULL_REGISTERS / registers : NULL_MOST_BLOCKS;
    const size_t by_shared = NULL_SHARED / (shared + NULL_SYSTEM_SHARED);
    int most = by_threads < NULL_MOST_BLOCKS ? by_threads : NULL_MOST_BLOCKS;
    if (by_registers < most) most = by_registers;
    *blocks = by_shared < (size_t)most ? (int)by_shared : most;
    return 0;
}

CUresult null_cuLaunchKernel(CUfunction handle, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                             unsigned by, unsigned bz, unsigned shared, CUstream on, void **params,
                             void **extra) {
    const kernel *launched = (kernel *)(void *)handle;
    (void)params;
    (void)extra;
    null_now.stream = on;
    null_now.shared = shared;
    const unsigned shape[] = {gx, gy, gz, bx, by, bz};
    memcpy(null_now.grid, shape, sizeof null_now.grid);
    memcpy(null_now.block, shape + 3, sizeof null_now.block);
    if (!launched) return SIM_ERROR_INVALID_HANDLE;
    null_now.kernel = launched->name;
    const uint64_t threads = (uint64_t)bx * by * bz;
    if (!gx || !gy || !gz || !threads || threads > NULL_MOST_THREADS)
        return SIM_ERROR_INVALID_VALUE;
    if (gx > INT32_MAX || gy > UINT16_MAX || gz > UINT16_MAX) return SIM_ERROR_INVALID_VALUE;
    return shared <= (unsigned)launched->dynamic_shared ? 0 : SIM_ERROR_INVALID_VALUE;
}

CUresult null_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params,
                               void **extra) {
    if (!config) return SIM_ERROR_INVALID_VALUE;
    return null_cuLaunchKernel(f, config->gridDimX, config->gridDimY, config->gridDimZ,
                               config->blockDimX, config->blockDimY, config->blockDimZ,
                               config->sharedMemBytes, config->hStream, params, extra);
}
