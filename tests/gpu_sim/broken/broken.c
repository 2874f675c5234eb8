/* broken.c: a driver that forwards to another one but breaks one thing, selected by environment
 * variables, so that programs which start other programs can be tested as a whole:
 *
 * CUTBACK_BROKEN "hang": kernels do not end, and processes that wait for them ignore SIGTERM
 *                      "fault": waiting for a kernel fails with CUDA_ERROR_ILLEGAL_ADDRESS
 *                      "exclusive": another process has the card, whose mode is exclusive
 * CUTBACK_BROKEN_ITEM  only in processes whose CUTBACK_GPU_ITEM is this
 *
 * It is linked with the driver behind it, which provides all other symbols. */
#include <dlfcn.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define EXCLUSIVE_PROCESS 3
#define COMPUTE_MODE 20
#define DEVICE_UNAVAILABLE 46
#define ILLEGAL_ADDRESS 700

typedef void (*any_function)(void);
typedef int (*get_address)(const char *, void **, int, unsigned long long, int *);

static int has_launched;

static int is_broken(const char *how) {
    const char *asked = getenv("CUTBACK_BROKEN"), *item = getenv("CUTBACK_BROKEN_ITEM");
    const char *here = getenv("CUTBACK_GPU_ITEM");
    if (!asked || strcmp(asked, how)) return 0;
    return !item || (here && strcmp(item, here) == 0);
}

/* Returns an entry of the driver behind this one. */
static any_function behind(const char *name) {
    static void *driver;
    if (!driver) driver = dlopen(BEHIND, RTLD_NOW | RTLD_LOCAL);
    any_function found = NULL;
    void *address = driver ? dlsym(driver, name) : NULL;
    memcpy(&found, &address, sizeof found);
    return found;
}

/* Returns the result of waiting for the device, once the work has ended. */
static int waited(int result) {
    if (!has_launched) return result;
    if (is_broken("hang")) {
        sigset_t all;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, NULL);
        for (;;) pause();
    }
    return is_broken("fault") ? ILLEGAL_ADDRESS : result;
}

EXPORT int cuStreamSynchronize(void *stream);
EXPORT int cuStreamSynchronize(void *stream) {
    return waited(((int (*)(void *))behind("cuStreamSynchronize"))(stream));
}

EXPORT int cuEventSynchronize(void *event);
EXPORT int cuEventSynchronize(void *event) {
    return waited(((int (*)(void *))behind("cuEventSynchronize"))(event));
}

EXPORT int cuCtxSynchronize(void);
EXPORT int cuCtxSynchronize(void) { return waited(((int (*)(void))behind("cuCtxSynchronize"))()); }

#define LAUNCH                                                                                     \
    (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
     unsigned shared, void *stream, void **arguments, void **extra)
EXPORT int cuLaunchKernel LAUNCH;
EXPORT int cuLaunchKernel LAUNCH {
    has_launched = 1;
    return ((int(*) LAUNCH)behind("cuLaunchKernel"))(function, gx, gy, gz, bx, by, bz, shared,
                                                     stream, arguments, extra);
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device);
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    if (attribute == COMPUTE_MODE && is_broken("exclusive")) return *value = EXCLUSIVE_PROCESS, 0;
    return ((int (*)(int *, int, int))behind("cuDeviceGetAttribute"))(value, attribute, device);
}

EXPORT int cuDevicePrimaryCtxRetain(void **context, int device);
EXPORT int cuDevicePrimaryCtxRetain(void **context, int device) {
    if (is_broken("exclusive")) return DEVICE_UNAVAILABLE;
    return ((int (*)(void **, int))behind("cuDevicePrimaryCtxRetain"))(context, device);
}

#define NAMED(entry) {#entry, (any_function)entry}
static const struct {
    const char *name;
    any_function function;
} replaced[] = {NAMED(cuStreamSynchronize),  NAMED(cuEventSynchronize),
                NAMED(cuCtxSynchronize),     NAMED(cuLaunchKernel),
                NAMED(cuDeviceGetAttribute), NAMED(cuDevicePrimaryCtxRetain)};

EXPORT int cuGetProcAddress_v2(const char *name, void **entry, int version,
                               unsigned long long flags, int *found);
EXPORT int cuGetProcAddress_v2(const char *name, void **entry, int version,
                               unsigned long long flags, int *found) {
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced; i++)
        if (strcmp(name, replaced[i].name) == 0) {
            memcpy(entry, &replaced[i].function, sizeof *entry);
            if (found) *found = 0;
            return 0;
        }
    return ((get_address)behind("cuGetProcAddress_v2"))(name, entry, version, flags, found);
}
