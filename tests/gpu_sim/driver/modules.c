/* modules.c: entries for modules, libraries and functions, and for launches. A library is treated
 * as a module and a kernel as a function, since code is loaded at once on one device. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "compile.h"
#include "entries.h"
#include "execute.h"
#include "handles.h"
#include "memory.h"
#include "report.h"

enum { DEFAULT_SHARED = 49152, MOST_SHARED = 232448, ATTRIBUTE_DYNAMIC = 8 };

typedef struct function {
    struct module *module;
    const sim_kernel *kernel; /* NULL: machine code */
    int most_dynamic;         /* bytes of shared memory that a launch may request */
} function;

typedef struct module {
    void *library;
    const sim_kernel *kernels;
    const sim_global *globals;
    uint64_t *addresses;
    function **functions;
    size_t n_kernels, n_globals;
} module;

/* Loading */

static bool is_machine_code(const char *image) {
    return memcmp(image, "\177ELF", 4) == 0 || memcmp(image, "\x50\xed\x55\xba", 4) == 0;
}

static sim_result check_image(const char *image) {
    if (is_machine_code(image)) {
        if (sim_device.takes_machine_code) return 0;
        sim_report("the image is a cubin or fatbin; the stand-in runs PTX");
        return SIM_ERROR_NO_BINARY_FOR_GPU;
    }
    const char *target = strstr(image, ".target sm_");
    if (!strstr(image, ".version") || !target) return SIM_ERROR_INVALID_IMAGE;
    char *end;
    const long capability = strtol(target + strlen(".target sm_"), &end, 10);
    const bool is_exact = *end == 'a'; /* only for this architecture */
    if (capability > sim_device.capability || (is_exact && capability != sim_device.capability))
        return SIM_ERROR_NO_BINARY_FOR_GPU;
    return 0;
}

/* Places each variable of the module in its own memory, then fills in addresses of variables. */
static sim_result place_globals(module *m) {
    for (size_t i = 0; i < m->n_globals; i++) {
        const sim_global *g = &m->globals[i];
        if (g->bytes == 0) continue;
        const uint64_t address = m->addresses[i] = sim_memory_reserve(g->bytes, "variable");
        if (!address) return SIM_ERROR_OUT_OF_MEMORY;
        sim_memory_open(address);
        memset(sim_host(address), 0, g->bytes);
        if (g->data) memcpy(sim_host(address), g->data, g->bytes);
        const int constant = g->is_constant ? SIM_CONSTANT : 0;
        sim_memory_set_states(address, g->bytes,
                              (uint8_t)(SIM_ADDRESSABLE | SIM_WRITTEN | constant));
    }
    for (size_t i = 0; i < m->n_globals; i++)
        for (const sim_pointer *p = m->globals[i].pointers; p && p->at >= 0; p++) {
            const uint64_t value = m->addresses[p->variable] + p->add;
            memcpy(sim_host(m->addresses[i] + (uint64_t)p->at), &value, sizeof value);
        }
    return 0;
}

/* Makes the one function of machine code, which is returned for every name and cannot be
 * launched. */
static sim_result make_unknown(module *m) {
    m->functions = calloc(1, sizeof *m->functions);
    function *f = m->functions ? sim_handle_new(SIM_FUNCTION, sizeof *f) : NULL;
    if (!f) return SIM_ERROR_OUT_OF_MEMORY;
    *f = (function){.module = m};
    m->functions[0] = f;
    return 0;
}

static sim_result make_functions(module *m) {
    for (size_t i = 0; i < m->n_kernels; i++) {
        function *f = m->functions[i] = sim_handle_new(SIM_FUNCTION, sizeof *f);
        if (!f) return SIM_ERROR_OUT_OF_MEMORY;
        *f = (function){m, &m->kernels[i], DEFAULT_SHARED - (int)m->kernels[i].shared_bytes};
    }
    return 0;
}

static void unload(module *m) {
    const size_t n_functions = m->library ? m->n_kernels : 1;
    for (size_t i = 0; m->functions && i < n_functions; i++)
        if (m->functions[i]) sim_handle_end(m->functions[i]);
    for (size_t i = 0; m->addresses && i < m->n_globals; i++)
        if (m->addresses[i]) (void)sim_memory_close(m->addresses[i]);
    free(m->functions);
    free(m->addresses);
    m->functions = NULL;
    m->addresses = NULL;
    if (m->library) dlclose(m->library);
    sim_handle_end(m);
}

static sim_result load(void **out, const char *image) {
    if (!out || !image) return SIM_ERROR_INVALID_VALUE;
    if (!sim_may_interrupt("loading a module")) return SIM_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    sim_result result = check_image(image);
    if (result) return result;
    module *m = sim_handle_new(SIM_MODULE, sizeof *m);
    if (!m) return SIM_ERROR_OUT_OF_MEMORY;
    if (is_machine_code(image)) {
        result = make_unknown(m);
    } else if ((result = sim_compile(image, &m->library)) == 0) {
        m->kernels = dlsym(m->library, "sim_kernels");
        m->globals = dlsym(m->library, "sim_globals");
        while (m->kernels[m->n_kernels].name) m->n_kernels++;
        while (m->globals[m->n_globals].name) m->n_globals++;
        m->addresses = calloc(m->n_globals + 1, sizeof *m->addresses);
        m->functions = calloc(m->n_kernels + 1, sizeof *m->functions);
        result = m->addresses && m->functions ? place_globals(m) : SIM_ERROR_OUT_OF_MEMORY;
    }
    if (!result && m->library) result = make_functions(m);
    if (result) {
        unload(m);
        return result;
    }
    *out = m;
    return 0;
}

static sim_result find_function(void **out, const void *handle, const char *name) {
    const module *m = sim_handle(handle, SIM_MODULE);
    if (!m) return SIM_ERROR_INVALID_HANDLE;
    if (!out || !name) return SIM_ERROR_INVALID_VALUE;
    if (!m->library) return *out = m->functions[0], 0;
    for (size_t i = 0; i < m->n_kernels; i++)
        if (strcmp(m->kernels[i].name, name) == 0) return *out = m->functions[i], 0;
    return SIM_ERROR_NOT_FOUND;
}

static sim_result find_global(CUdeviceptr *address, size_t *bytes, const void *handle,
                              const char *name) {
    const module *m = sim_handle(handle, SIM_MODULE);
    if (!m) return SIM_ERROR_INVALID_HANDLE;
    if (!name) return SIM_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < m->n_globals; i++) {
        if (m->globals[i].bytes == 0 || strcmp(m->globals[i].name, name) != 0) continue;
        if (address) *address = m->addresses[i];
        if (bytes) *bytes = m->globals[i].bytes;
        return 0;
    }
    return SIM_ERROR_NOT_FOUND;
}

static sim_result end_module(const void *handle) {
    module *m = sim_handle(handle, SIM_MODULE);
    if (!m) return SIM_ERROR_INVALID_HANDLE;
    if (!sim_may_interrupt("unloading a module")) return SIM_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    sim_wait_for_all();
    unload(m);
    return 0;
}

CUresult sim_cuModuleLoadData(CUmodule *out, const void *image) {
    return load((void **)out, image);
}
CUresult sim_cuModuleUnload(CUmodule handle) { return end_module(handle); }
CUresult sim_cuModuleGetFunction(CUfunction *out, CUmodule handle, const char *name) {
    return find_function((void **)out, handle, name);
}
CUresult sim_cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUmodule handle,
                                  const char *name) {
    return find_global(address, bytes, handle, name);
}
CUresult sim_cuLibraryLoadData(CUlibrary *out, const void *code, CUjit_option *jit_options,
                               void **jit_values, unsigned n_jit, CUlibraryOption *options,
                               void **values, unsigned n) {
    (void)jit_options, (void)jit_values, (void)n_jit, (void)options, (void)values, (void)n;
    return load((void **)out, code);
}
CUresult sim_cuLibraryUnload(CUlibrary handle) { return end_module(handle); }
CUresult sim_cuLibraryGetKernel(CUkernel *out, CUlibrary handle, const char *name) {
    return find_function((void **)out, handle, name);
}
CUresult sim_cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUlibrary handle,
                                const char *name) {
    return find_global(address, bytes, handle, name);
}
CUresult sim_cuKernelGetFunction(CUfunction *out, CUkernel kernel) {
    if (!sim_handle(kernel, SIM_FUNCTION)) return SIM_ERROR_INVALID_HANDLE;
    if (!out) return SIM_ERROR_INVALID_VALUE;
    *out = (CUfunction)(void *)kernel;
    return 0;
}

/* Functions */

static const function *runnable(CUfunction handle) {
    const function *f = sim_handle(handle, SIM_FUNCTION);
    if (!f || f->kernel) return f;
    sim_report("a function of a cubin or fatbin; the stand-in runs PTX");
    return NULL;
}

CUresult sim_cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle) {
    const function *f = runnable(handle);
    if (!f) return SIM_ERROR_INVALID_HANDLE;
    if (!value) return SIM_ERROR_INVALID_VALUE;
    const int most = f->kernel->max_threads ? (int)f->kernel->max_threads : SIM_MAX_THREADS;
    const int values[] = {most,
                          (int)f->kernel->shared_bytes,
                          0,
                          (int)f->kernel->local_bytes,
                          32,
                          sim_device.capability,
                          sim_device.capability,
                          0,
                          f->most_dynamic};
    if ((int)attribute < 0 || (size_t)attribute >= sizeof values / sizeof *values)
        return SIM_ERROR_INVALID_VALUE;
    *value = values[attribute];
    return 0;
}

CUresult sim_cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
    function *f = sim_handle(handle, SIM_FUNCTION);
    if (!runnable(handle)) return SIM_ERROR_INVALID_HANDLE;
    if ((int)attribute == 9) return 0; /* the share of the cache that is shared memory: a hint */
    if ((int)attribute != ATTRIBUTE_DYNAMIC || value < 0) return SIM_ERROR_INVALID_VALUE;
    if (value > MOST_SHARED - (int)f->kernel->shared_bytes) return SIM_ERROR_INVALID_VALUE;
    f->most_dynamic = value;
    return 0;
}

CUresult sim_cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction handle,
                                                         int threads, size_t shared) {
    const function *f = runnable(handle);
    if (!f) return SIM_ERROR_INVALID_HANDLE;
    if (!blocks || threads < 1 || threads > SIM_MAX_THREADS) return SIM_ERROR_INVALID_VALUE;
    const size_t bytes =
        f->kernel->shared_bytes + shared + 1024; /* the system takes 1 KiB of each block */
    const int by_threads = 2048 / ((threads + 31) / 32 * 32);
    const int by_memory = bytes > 233472 ? 0 : (int)(233472 / bytes);
    *blocks = by_threads < by_memory ? by_threads : by_memory;
    if (*blocks > 32) *blocks = 32;
    return 0;
}

/* Launches */

static bool shape_is_right(const function *f, const uint32_t g[3], const uint32_t b[3],
                           uint32_t shared) {
    const uint64_t threads = (uint64_t)b[0] * b[1] * b[2], most = f->kernel->max_threads;
    if (threads == 0 || threads > SIM_MAX_THREADS || b[2] > 64 || (most && threads > most))
        return false;
    if (g[0] == 0 || g[1] == 0 || g[2] == 0) return false;
    if (g[0] > INT32_MAX || g[1] > 65535 || g[2] > 65535) return false;
    if ((uint64_t)g[0] * g[1] * g[2] > UINT32_MAX)
        return false; /* more than any stand-in will run */
    return shared <= INT32_MAX && (int)shared <= f->most_dynamic;
}

/* Copies the parameters, from separate addresses or from one buffer (extra: {1, buffer, 2, &size,
 * 0}). */
static bool take_params(const sim_kernel *kernel, char *to, void **params, void **extra) {
    for (uint32_t i = 0; params && i < kernel->n_params; i++) {
        if (!params[i]) return false;
        memcpy(to + kernel->offsets[i], params[i], kernel->sizes[i]);
    }
    if (params || kernel->n_params == 0) return true;
    if (!extra) return false;
    const void *buffer = NULL;
    size_t bytes = 0;
    for (size_t i = 0; extra[i]; i += 2) {
        if (extra[i] == (void *)1) buffer = extra[i + 1];
        if (extra[i] == (void *)2) memcpy(&bytes, extra[i + 1], sizeof bytes);
    }
    if (!buffer || bytes < kernel->params_bytes) return false;
    memcpy(to, buffer, kernel->params_bytes);
    return true;
}

static sim_result launch(CUfunction handle, const uint32_t g[3], const uint32_t b[3],
                         uint32_t shared, CUstream stream_handle, void **params, void **extra) {
    const function *f = runnable(handle);
    sim_stream *stream = sim_stream_of(stream_handle);
    if (!f || !sim_is_current(stream)) return SIM_ERROR_INVALID_HANDLE;
    if (!shape_is_right(f, g, b, shared)) return SIM_ERROR_INVALID_VALUE;
    sim_op *op = sim_op_new(SIM_OP_KERNEL);
    if (!op) return SIM_ERROR_OUT_OF_MEMORY;
    op->owned = calloc(1, f->kernel->params_bytes + 1);
    op->launch = (sim_launch){.kernel = f->kernel,
                              .globals = f->module->addresses,
                              .grid = {g[0], g[1], g[2]},
                              .block = {b[0], b[1], b[2]},
                              .dynamic_shared = shared,
                              .params = op->owned};
    if (!op->owned || !take_params(f->kernel, op->owned, params, extra)) {
        const sim_result result = op->owned ? SIM_ERROR_INVALID_VALUE : SIM_ERROR_OUT_OF_MEMORY;
        sim_op_drop(op);
        return result;
    }
    return sim_issue(stream, op);
}

CUresult sim_cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                            unsigned by, unsigned bz, unsigned shared, CUstream stream,
                            void **params, void **extra) {
    const uint32_t grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};
    return launch(f, grid, block, shared, stream, params, extra);
}

/* Refuses attributes that the stand-in does not support: clusters (4) and cooperative grids (2). */
CUresult sim_cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params,
                              void **extra) {
    if (!config) return SIM_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < config->numAttrs; i++)
        if ((int)config->attrs[i].id == 2 || (int)config->attrs[i].id == 4)
            return SIM_ERROR_NOT_SUPPORTED;
    const uint32_t grid[3] = {config->gridDimX, config->gridDimY, config->gridDimZ};
    const uint32_t block[3] = {config->blockDimX, config->blockDimY, config->blockDimZ};
    return launch(f, grid, block, config->sharedMemBytes, config->hStream, params, extra);
}
