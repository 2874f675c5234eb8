/* answers.c: device, context and memory. Nothing is computed: kernels do not run, copies to the
 * host give zeros, and an event has the time at which it was recorded. Mistakes that a program can
 * notice only by an error code (null pointers, unknown devices, memory that is not allocated) are
 * errors, as in a real driver; the stand-in looks for all others. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "null.h"

enum { MOST_PUSHED = 64 };

static char context_place, pool_place;
static _Thread_local struct {
    CUcontext current, pushed[MOST_PUSHED];
    int n;
} thread;
static int n_retained;
static struct {
    uint64_t threshold, used, most_used, reserved, most_reserved;
} pool;

#define CONTEXT ((CUcontext)(void *)&context_place)
#define POOL ((CUmemoryPool)(void *)&pool_place)

CUcontext null_context(void) { return CONTEXT; }

/* ---- device and context ---------------------------------------------------------------------- */

CUresult null_cuInit(unsigned flags) { return flags ? SIM_ERROR_INVALID_VALUE : 0; }

CUresult null_cuDriverGetVersion(int *version) {
    if (!version) return SIM_ERROR_INVALID_VALUE;
    *version = (int)null_device.version;
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

static CUresult find_error(CUresult code, const char **out, bool is_name) {
    if (!out) return SIM_ERROR_INVALID_VALUE;
    *out = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == (int)code) *out = is_name ? errors[i].name : errors[i].text;
    return *out ? 0 : SIM_ERROR_INVALID_VALUE;
}

CUresult null_cuGetErrorName(CUresult code, const char **name) {
    return find_error(code, name, true);
}

CUresult null_cuGetErrorString(CUresult code, const char **text) {
    return find_error(code, text, false);
}

/* Returns an empty table, because NVRTC opens the driver and needs one. */
CUresult null_cuGetExportTable(const void **table, const CUuuid *id) {
    static const uint64_t empty[8] = {8};
    (void)id;
    if (!table) return SIM_ERROR_INVALID_VALUE;
    *table = empty;
    return SIM_ERROR_NOT_FOUND;
}

CUresult null_cuDeviceGetCount(int *count) {
    if (!count) return SIM_ERROR_INVALID_VALUE;
    *count = 1;
    return 0;
}

CUresult null_cuDeviceGet(CUdevice *device, int ordinal) {
    if (!device) return SIM_ERROR_INVALID_VALUE;
    *device = ordinal;
    return ordinal ? SIM_ERROR_INVALID_DEVICE : 0;
}

CUresult null_cuDeviceGetName(char *name, int bytes, CUdevice device) {
    if (!name || bytes < 1) return SIM_ERROR_INVALID_VALUE;
    (void)snprintf(name, (size_t)bytes, "null driver (runs nothing)");
    return device ? SIM_ERROR_INVALID_DEVICE : 0;
}

CUresult null_cuDeviceGetUuid_v2(CUuuid *id, CUdevice device) {
    if (!id) return SIM_ERROR_INVALID_VALUE;
    memset(id->bytes, 0, sizeof id->bytes);
    return device ? SIM_ERROR_INVALID_DEVICE : 0;
}

CUresult null_cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    if (!bytes) return SIM_ERROR_INVALID_VALUE;
    *bytes = (size_t)null_device.memory;
    return device ? SIM_ERROR_INVALID_DEVICE : 0;
}

/* Returns an H100's values, by number; attributes that are not in the table are 0. */
CUresult null_cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    static const int known[][2] = {
        {1, NULL_MOST_THREADS},
        {2, 1024},
        {3, 1024},
        {4, 64},
        {5, 0x7fffffff},
        {6, 65535},
        {7, 65535},
        {8, NULL_BLOCK_SHARED},
        {9, 65536},
        {10, 32},
        {12, 65536},
        {13, 1980000},
        {16, 132},
        {31, 1},
        {36, 2619000},
        {37, 5120},
        {38, 50 << 20},
        {39, NULL_THREADS},
        {40, 3},
        {41, 1},
        {81, NULL_SHARED},
        {82, NULL_REGISTERS},
        {95, 1},
        {97, NULL_MOST_BLOCK_SHARED},
        {106, NULL_MOST_BLOCKS},
        {115, 1},
    };
    if (!value || (int)attribute <= 0) return SIM_ERROR_INVALID_VALUE;
    *value = 0;
    if ((int)attribute == 75) *value = (int)null_device.capability / 10;
    if ((int)attribute == 76) *value = (int)null_device.capability % 10;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i][0] == (int)attribute) *value = known[i][1];
    return device ? SIM_ERROR_INVALID_DEVICE : 0;
}

CUresult null_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    if (!context) return SIM_ERROR_INVALID_VALUE;
    if (device) return SIM_ERROR_INVALID_DEVICE;
    n_retained++;
    *context = CONTEXT;
    return 0;
}

CUresult null_cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    if (device) return SIM_ERROR_INVALID_DEVICE;
    if (n_retained == 0) return SIM_ERROR_INVALID_CONTEXT;
    n_retained--;
    return 0;
}

CUresult null_cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    if (!flags || !active) return SIM_ERROR_INVALID_VALUE;
    *flags = 0;
    *active = n_retained > 0;
    return device ? SIM_ERROR_INVALID_DEVICE : 0;
}

CUresult null_cuCtxSetCurrent(CUcontext context) {
    thread.current = context;
    return 0;
}

CUresult null_cuCtxGetCurrent(CUcontext *context) {
    if (!context) return SIM_ERROR_INVALID_VALUE;
    *context = thread.current;
    return 0;
}

CUresult null_cuCtxPushCurrent_v2(CUcontext context) {
    if (context != CONTEXT || thread.n == MOST_PUSHED) return SIM_ERROR_INVALID_CONTEXT;
    thread.pushed[thread.n++] = thread.current;
    thread.current = context;
    return 0;
}

CUresult null_cuCtxPopCurrent_v2(CUcontext *context) {
    if (thread.n == 0) return SIM_ERROR_INVALID_CONTEXT;
    if (context) *context = thread.current;
    thread.current = thread.pushed[--thread.n];
    return 0;
}

CUresult null_cuCtxGetDevice(CUdevice *device) {
    if (!device) return SIM_ERROR_INVALID_VALUE;
    *device = 0;
    return 0;
}

/* Returns bytes above the pool's threshold to the device when the host waits. */
static void trim(uint64_t keep) {
    const uint64_t least = pool.used > keep ? pool.used : keep;
    if (pool.reserved > least) pool.reserved = least;
}

CUresult null_cuCtxSynchronize(void) {
    trim(pool.threshold);
    return 0;
}

CUresult null_cuProfilerStart(void) { return 0; }
CUresult null_cuProfilerStop(void) { return 0; }

/* ---- memory ---------------------------------------------------------------------------------- */

CUresult null_cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    const uint64_t all = (uint64_t)null_device.memory, live = null_live();
    if (!free_bytes || !total) return SIM_ERROR_INVALID_VALUE;
    *free_bytes = (size_t)(live < all ? all - live : 0);
    *total = (size_t)all;
    return 0;
}

CUresult null_cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    uint64_t made = 0;
    null_now.bytes = bytes;
    if (!address) return SIM_ERROR_INVALID_VALUE;
    const int result = null_allocate(&made, bytes);
    if (result == 0) *address = null_now.address = made;
    return (CUresult)result;
}

CUresult null_cuMemFree_v2(CUdeviceptr address) {
    null_now.address = address;
    return (CUresult)null_free(address);
}

CUresult null_cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t bytes, CUmemoryPool from,
                                      CUstream on) {
    null_now.stream = on;
    if (from != POOL) return SIM_ERROR_INVALID_VALUE;
    const CUresult result = null_cuMemAlloc_v2(address, bytes);
    if (result) return result;
    pool.used += bytes;
    if (pool.used > pool.most_used) pool.most_used = pool.used;
    if (pool.used > pool.reserved) pool.reserved = pool.used;
    if (pool.reserved > pool.most_reserved) pool.most_reserved = pool.reserved;
    return 0;
}

CUresult null_cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream on) {
    return null_cuMemAllocFromPoolAsync(address, bytes, POOL, on);
}

CUresult null_cuMemFreeAsync(CUdeviceptr address, CUstream on) {
    null_now.stream = on;
    const CUresult result = null_cuMemFree_v2(address);
    if (result == 0) pool.used -= null_now.bytes < pool.used ? null_now.bytes : pool.used;
    return result;
}

CUresult null_cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device) {
    if (!out) return SIM_ERROR_INVALID_VALUE;
    *out = POOL;
    return device ? SIM_ERROR_INVALID_DEVICE : 0;
}

CUresult null_cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device) {
    return null_cuDeviceGetDefaultMemPool(out, device);
}

CUresult null_cuDeviceSetMemPool(CUdevice device, CUmemoryPool set) {
    if (device) return SIM_ERROR_INVALID_DEVICE;
    return set == POOL ? 0 : SIM_ERROR_INVALID_VALUE;
}

/* Returns the one pool that all pools share. It counts the bytes it has handed out, and has no
 * other state. */
CUresult null_cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *properties) {
    if (!out || !properties) return SIM_ERROR_INVALID_VALUE;
    *out = POOL;
    return 0;
}

CUresult null_cuMemPoolDestroy(CUmemoryPool destroyed) {
    return destroyed == POOL ? 0 : SIM_ERROR_INVALID_VALUE;
}

/* Attribute numbers of the driver API. The first three are switches. */
enum { REUSE_FIRST = 1, REUSE_LAST = 3, THRESHOLD, RESERVED, MOST_RESERVED, USED, MOST_USED };

static uint64_t *attribute_of_pool(int attribute) {
    uint64_t *const at[] = {&pool.threshold, &pool.reserved, &pool.most_reserved, &pool.used,
                            &pool.most_used};
    return attribute >= THRESHOLD && attribute <= MOST_USED ? at[attribute - THRESHOLD] : NULL;
}

CUresult null_cuMemPoolSetAttribute(CUmemoryPool set, CUmemPool_attribute attribute, void *value) {
    if (set != POOL || !value) return SIM_ERROR_INVALID_VALUE;
    if ((int)attribute >= REUSE_FIRST && (int)attribute <= REUSE_LAST) return 0;
    uint64_t *at = attribute_of_pool((int)attribute), new = 0;
    if (!at) return SIM_ERROR_INVALID_VALUE;
    memcpy(&new, value, sizeof new);
    if ((int)attribute == THRESHOLD) pool.threshold = new;
    else if (new) return SIM_ERROR_INVALID_VALUE; /* the others can only be reset */
    else if (at == &pool.most_used) pool.most_used = pool.used;
    else if (at == &pool.most_reserved) pool.most_reserved = pool.reserved;
    return 0;
}

CUresult null_cuMemPoolGetAttribute(CUmemoryPool of, CUmemPool_attribute attribute, void *value) {
    const int is_switch = 1;
    if (of != POOL || !value) return SIM_ERROR_INVALID_VALUE;
    const uint64_t *at = attribute_of_pool((int)attribute);
    if (at) memcpy(value, at, sizeof *at);
    else if ((int)attribute >= REUSE_FIRST && (int)attribute <= REUSE_LAST)
        memcpy(value, &is_switch, sizeof is_switch);
    else return SIM_ERROR_INVALID_VALUE;
    return 0;
}

CUresult null_cuMemPoolTrimTo(CUmemoryPool of, size_t keep) {
    if (of != POOL) return SIM_ERROR_INVALID_VALUE;
    trim(keep);
    return 0;
}

CUresult null_cuMemAllocHost_v2(void **memory, size_t bytes) {
    null_now.bytes = bytes;
    if (!memory || bytes == 0) return SIM_ERROR_INVALID_VALUE;
    *memory = malloc(bytes);
    return *memory ? 0 : SIM_ERROR_OUT_OF_MEMORY;
}

CUresult null_cuMemFreeHost(void *memory) {
    free(memory);
    return memory ? 0 : SIM_ERROR_INVALID_VALUE;
}

CUresult null_cuPointerGetAttribute(void *value, CUpointer_attribute attribute,
                                    CUdeviceptr address) {
    enum { CONTEXT_OF = 1, MEMORY_TYPE, DEVICE_POINTER, ORDINAL = 9, START = 11, BYTES };
    enum { DEVICE_MEMORY = 2 };
    null_block found;
    const unsigned type = DEVICE_MEMORY;
    const int ordinal = 0;
    if (!value || !null_find_block(address, &found)) return SIM_ERROR_INVALID_VALUE;
    switch ((int)attribute) {
        case CONTEXT_OF: memcpy(value, &(CUcontext){CONTEXT}, sizeof(CUcontext)); return 0;
        case MEMORY_TYPE: memcpy(value, &type, sizeof type); return 0;
        case DEVICE_POINTER: memcpy(value, &address, sizeof address); return 0;
        case ORDINAL: memcpy(value, &ordinal, sizeof ordinal); return 0;
        case START: memcpy(value, &found.address, sizeof found.address); return 0;
        case BYTES: memcpy(value, &found.bytes, sizeof found.bytes); return 0;
        default: return SIM_ERROR_INVALID_VALUE;
    }
}

/* ---- copies ---------------------------------------------------------------------------------- */

static bool holds(CUdeviceptr address, size_t bytes) {
    null_block found;
    return null_find_block(address, &found) && bytes <= found.address + found.bytes - address;
}

static CUresult touch(CUdeviceptr address, size_t bytes, CUstream on) {
    null_now.stream = on;
    null_now.address = address;
    null_now.bytes = bytes;
    return bytes == 0 || holds(address, bytes) ? 0 : SIM_ERROR_INVALID_VALUE;
}

CUresult null_cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream on) {
    const CUresult result = touch(to, bytes, on);
    return bytes && !from ? (CUresult)SIM_ERROR_INVALID_VALUE : result;
}

CUresult null_cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream on) {
    const CUresult result = touch(from, bytes, on);
    if (bytes && !to) return SIM_ERROR_INVALID_VALUE;
    if (result == 0 && bytes) memset(to, 0, bytes);
    return result;
}

CUresult null_cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream on) {
    const CUresult result = touch(to, bytes, on);
    return bytes && !holds(from, bytes) ? (CUresult)SIM_ERROR_INVALID_VALUE : result;
}

CUresult null_cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return null_cuMemcpyHtoDAsync_v2(to, from, bytes, NULL);
}

CUresult null_cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return null_cuMemcpyDtoHAsync_v2(to, from, bytes, NULL);
}

CUresult null_cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return null_cuMemcpyDtoDAsync_v2(to, from, bytes, NULL);
}

CUresult null_cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream on) {
    (void)value;
    return touch(to, count, on);
}

CUresult null_cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream on) {
    (void)value;
    return touch(to, 4 * count, on);
}

CUresult null_cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    return null_cuMemsetD8Async(to, value, count, NULL);
}

CUresult null_cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
    return null_cuMemsetD32Async(to, value, count, NULL);
}
