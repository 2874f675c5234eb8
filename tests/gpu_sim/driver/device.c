/* device.c: initialisation, devices, the primary context that each thread selects, error names, and
 * test settings. */
#include <stdio.h>
#include <string.h>

#include "counts.h"
#include "entries.h"
#include "execute.h"
#include "hooks.h"
#include "memory.h"
#include "report.h"

sim_state_of_device sim_device = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .n_devices = 1,
    .capability = 90,
    .driver_version = 13000,
    .memory = 8ull << 30,
    .addresses = SIM_LOCAL - SIM_ARENA,
    .fuel = 1ull << 36,
};
_Thread_local CUcontext sim_current_context;

enum { MAX_DEVICES = 4, MAX_PUSHED = 16 };
static char contexts[MAX_DEVICES]; /* their addresses are the handles */
static int n_retained[MAX_DEVICES];
static _Thread_local CUcontext pushed[MAX_PUSHED];
static _Thread_local int n_pushed;

/* Test settings */

int sim_set(const char *name, long value) {
    int found = 0;
    pthread_mutex_lock(&sim_device.lock);
    if (strcmp(name, "devices") == 0 && value <= MAX_DEVICES) sim_device.n_devices = (int)value;
    else if (strcmp(name, "capability") == 0) sim_device.capability = (int)value;
    else if (strcmp(name, "driver") == 0) sim_device.driver_version = (int)value;
    else if (strcmp(name, "memory") == 0) sim_device.memory = (uint64_t)value;
    else if (strcmp(name, "addresses") == 0 && (uint64_t)value <= SIM_LOCAL - SIM_ARENA)
        sim_device.addresses = (uint64_t)value;
    else if (strcmp(name, "races") == 0) sim_device.watches_races = value != 0;
    else if (strcmp(name, "unwritten") == 0) sim_device.may_read_unwritten = value == 0;
    else if (strcmp(name, "quiet") == 0) sim_device.is_quiet = value != 0;
    else if (strcmp(name, "approximate") == 0) sim_device.approximate = (unsigned)value;
    else if (strcmp(name, "failed") == 0) sim_device.failed = (sim_result)value;
    else if (strcmp(name, "machine_code") == 0) sim_device.takes_machine_code = value != 0;
    else if (strcmp(name, "counts") == 0) sim_count_from_now(value != 0);
    else if (strcmp(name, "fuel") == 0) sim_device.fuel = (uint64_t)value;
    else found = -1;
    pthread_mutex_unlock(&sim_device.lock);
    return found;
}

void sim_seed(unsigned seed) {
    pthread_mutex_lock(&sim_device.lock);
    sim_wait_for_all();
    sim_device.seed = seed;
    sim_restart_random();
    pthread_mutex_unlock(&sim_device.lock);
}

unsigned long sim_leave_out(const char *kernel, unsigned line) {
    pthread_mutex_lock(&sim_device.lock);
    sim_wait_for_all();
    const unsigned long times = sim_device.left_out.times;
    snprintf(sim_device.left_out.kernel, sizeof sim_device.left_out.kernel, "%s", kernel);
    sim_device.left_out.line = line;
    sim_device.left_out.times = 0;
    pthread_mutex_unlock(&sim_device.lock);
    return times;
}

void sim_recover(void) {
    pthread_mutex_lock(&sim_device.lock);
    sim_device.failed = 0;
    sim_forget_pending();
    sim_graph_forget_captures();
    pthread_mutex_unlock(&sim_device.lock);
}

size_t sim_allocated(void) {
    pthread_mutex_lock(&sim_device.lock);
    const size_t bytes = sim_memory_in_use();
    pthread_mutex_unlock(&sim_device.lock);
    return bytes;
}

/* Entries */

CUresult sim_cuInit(unsigned flags) {
    if (flags) return SIM_ERROR_INVALID_VALUE;
    if (sim_device.is_initialised) return 0;
    if (sim_device.n_devices == 0) return SIM_ERROR_NO_DEVICE;
    if (!sim_memory_map()) {
        sim_report("the addresses from %#llx on are taken", SIM_ARENA);
        return SIM_ERROR_OUT_OF_MEMORY;
    }
    sim_device.is_initialised = 1;
    return 0;
}

/* Refuses private tables, for which NVRTC asks. It accepts the refusal if there is a table that
 * contains only its own size; otherwise it crashes. */
CUresult sim_cuGetExportTable(const void **table, const CUuuid *id) {
    static const uint64_t empty[8] = {8};
    (void)id;
    if (!table) return SIM_ERROR_INVALID_VALUE;
    *table = empty;
    return SIM_ERROR_NOT_FOUND;
}

CUresult sim_cuDriverGetVersion(int *version) {
    if (!version) return SIM_ERROR_INVALID_VALUE;
    *version = sim_device.driver_version;
    return 0;
}

static const struct {
    int code;
    const char *name, *text;
} errors[] = {{0, "CUDA_SUCCESS", "no error"},
#define X(name, code, text) {code, "CUDA_ERROR_" #name, text},
              SIM_ERRORS(X)
#undef X
};
enum { N_ERRORS = sizeof errors / sizeof *errors };

CUresult sim_cuGetErrorName(CUresult code, const char **name) {
    if (!name) return SIM_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < N_ERRORS; i++)
        if (errors[i].code == (int)code) return *name = errors[i].name, 0;
    *name = NULL;
    return SIM_ERROR_INVALID_VALUE;
}

CUresult sim_cuGetErrorString(CUresult code, const char **text) {
    if (!text) return SIM_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < N_ERRORS; i++)
        if (errors[i].code == (int)code) return *text = errors[i].text, 0;
    *text = NULL;
    return SIM_ERROR_INVALID_VALUE;
}

static bool is_device(CUdevice device) { return device >= 0 && device < sim_device.n_devices; }

CUresult sim_cuDeviceGetCount(int *count) {
    if (!count) return SIM_ERROR_INVALID_VALUE;
    *count = sim_device.n_devices;
    return 0;
}

CUresult sim_cuDeviceGet(CUdevice *device, int ordinal) {
    if (!device) return SIM_ERROR_INVALID_VALUE;
    if (!is_device(ordinal)) return SIM_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return 0;
}

CUresult sim_cuDeviceGetName(char *name, int bytes, CUdevice device) {
    if (!name || bytes < 1) return SIM_ERROR_INVALID_VALUE;
    if (!is_device(device)) return SIM_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)bytes, "stand-in (PTX on the CPU)");
    return 0;
}

CUresult sim_cuDeviceGetUuid_v2(CUuuid *id, CUdevice device) {
    if (!id) return SIM_ERROR_INVALID_VALUE;
    if (!is_device(device)) return SIM_ERROR_INVALID_DEVICE;
    memset(id->bytes, 0x5a, sizeof id->bytes);
    id->bytes[15] = (char)device;
    return 0;
}

CUresult sim_cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    if (!bytes) return SIM_ERROR_INVALID_VALUE;
    if (!is_device(device)) return SIM_ERROR_INVALID_DEVICE;
    *bytes = sim_device.memory;
    return 0;
}

/* Returns an H100's values, by attribute number; all others are 0. */
CUresult sim_cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    static const int known[][2] = {
        {1, 1024},    {2, 1024},       {3, 1024},
        {4, 64},      {5, 0x7fffffff}, /* threads, block, grid */
        {6, 65535},   {7, 65535},      {8, 49152},
        {9, 65536},   {10, 32}, /* shared and constant memory, warp */
        {12, 65536},  {13, 1980000},   {16, 132},
        {31, 1},      {36, 2619000}, /* registers, clocks, processors */
        {37, 5120},   {38, 50 << 20},  {39, 2048},
        {40, 3},      {41, 1}, /* bus, L2, threads, copies, unified */
        {81, 233472}, {82, 65536},     {95, 1},
        {97, 232448}, {106, 32},       {115, 1}, /* shared memory, pools */
    };
    if (!value || (int)attribute <= 0) return SIM_ERROR_INVALID_VALUE;
    if (!is_device(device)) return SIM_ERROR_INVALID_DEVICE;
    *value = 0;
    if ((int)attribute == 75) *value = sim_device.capability / 10;
    if ((int)attribute == 76) *value = sim_device.capability % 10;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i][0] == (int)attribute) *value = known[i][1];
    return 0;
}

CUresult sim_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    if (!context) return SIM_ERROR_INVALID_VALUE;
    if (!is_device(device)) return SIM_ERROR_INVALID_DEVICE;
    n_retained[device]++;
    *context = (CUcontext)(void *)&contexts[device];
    return 0;
}

/* Releases the context; the last release ends it and clears its failure. */
CUresult sim_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    if (!is_device(device)) return SIM_ERROR_INVALID_DEVICE;
    if (n_retained[device] == 0) return SIM_ERROR_INVALID_CONTEXT;
    if (--n_retained[device] == 0) {
        sim_wait_for_all();
        sim_device.failed = 0;
    }
    return 0;
}

CUresult sim_cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    if (!flags || !active) return SIM_ERROR_INVALID_VALUE;
    if (!is_device(device)) return SIM_ERROR_INVALID_DEVICE;
    *flags = 0;
    *active = n_retained[device] > 0;
    return 0;
}

int sim_current_device(void) {
    return sim_current_context ? (int)((const char *)(void *)sim_current_context - contexts) : 0;
}

static bool is_context(CUcontext context) {
    const char *at = (const char *)(void *)context;
    return at >= contexts && at < contexts + MAX_DEVICES && n_retained[at - contexts] > 0;
}

CUresult sim_cuCtxSetCurrent(CUcontext context) {
    if (context && !is_context(context)) return SIM_ERROR_INVALID_CONTEXT;
    sim_current_context = context;
    return 0;
}

CUresult sim_cuCtxGetCurrent(CUcontext *context) {
    if (!context) return SIM_ERROR_INVALID_VALUE;
    *context = sim_current_context;
    return 0;
}

CUresult sim_cuCtxPushCurrent_v2(CUcontext context) {
    if (!is_context(context) || n_pushed == MAX_PUSHED) return SIM_ERROR_INVALID_CONTEXT;
    pushed[n_pushed++] = sim_current_context;
    sim_current_context = context;
    return 0;
}

CUresult sim_cuCtxPopCurrent_v2(CUcontext *context) {
    if (n_pushed == 0) return SIM_ERROR_INVALID_CONTEXT;
    if (context) *context = sim_current_context;
    sim_current_context = pushed[--n_pushed];
    return 0;
}

CUresult sim_cuCtxGetDevice(CUdevice *device) {
    if (!device) return SIM_ERROR_INVALID_VALUE;
    *device = sim_current_device();
    return 0;
}

CUresult sim_cuCtxSynchronize(void) {
    if (!sim_may_interrupt("cuCtxSynchronize")) return SIM_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    sim_wait_for_all();
    return sim_device.failed;
}
