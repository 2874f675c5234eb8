/* cu_api.c: looks up the driver's functions with cuGetProcAddress and the version whose signature
 * is declared, because a plain name gives the oldest version. Everything that commonly goes wrong
 * on a user's machine has its own error: a missing file, a file of another kind, the stub that a
 * toolkit links with, a driver that is too old, no device. */
#include "cu_api.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum {
    OLDEST = 12000, /* the first version of driver and NVRTC with the declared signatures */
    STUB_LIBRARY = 34,
    NO_DEVICE = 100,
    OUT_OF_MEMORY = 2,
    COMPUTE_CAPABILITY_MAJOR = 75, /* an attribute of a device */
    COMPUTE_CAPABILITY_MINOR = 76,
    MOST_ARCHITECTURES = 64
};

typedef int (*get_entry_fn)(const char *name, void **entry, int version, uint64_t flags,
                            int *found);

/* Opens a library. The error is the loader's message, which names the file. */
static cb_status open_library(void **out, const char *path, int flags, cb_error *err) {
    *out = dlopen(path, flags | RTLD_LOCAL);
    if (*out) return CB_OK;
    const char *reason = dlerror();
    return cb_fail(err, CB_UNSUPPORTED, "%s", reason ? reason : path);
}

/* Looks up a function. dlsym returns a data pointer. POSIX allows converting it to a function
 * pointer, but ISO C does not, so its bytes are copied. */
static cb_status look_up(void *out, size_t n, void *library, const char *name, const char *path,
                         cb_error *err) {
    void *entry = dlsym(library, name);
    if (!entry) return cb_fail(err, CB_UNSUPPORTED, "%s has no function %s", path, name);
    memcpy(out, &entry, n);
    return CB_OK;
}

static cb_status too_old(int version, const char *path, cb_error *err) {
    return cb_fail(err, CB_UNSUPPORTED,
                   "%s is from CUDA %d.%d; CUDA 12.0 or newer is needed: update the NVIDIA driver",
                   path, version / 1000, version % 1000 / 10);
}

/* Finds the driver's function that looks up functions by CUDA version. A driver without it is too
 * old, and is asked for its version for the error. */
static cb_status find_get_entry(get_entry_fn *out, void *library, const char *path, cb_error *err) {
    if (look_up(out, sizeof *out, library, "cuGetProcAddress_v2", path, NULL) == CB_OK)
        return CB_OK;
    int (*get_version)(int *version) = NULL, version = 0; /* available before CUDA 12 */
    CB_TRY(look_up(&get_version, sizeof get_version, library, "cuDriverGetVersion", path, err));
    (void)get_version(&version);
    return too_old(version, path, err);
}

static cb_status get_entry(void *out, size_t n, get_entry_fn get, const char *name, int since,
                           const char *path, cb_error *err) {
    void *entry = NULL;
    const int code = get(name, &entry, since, 0, NULL);
    if (code != 0 || !entry)
        return cb_fail(err, CB_UNSUPPORTED,
                       "%s has no function %s of CUDA %d.%d (cuGetProcAddress: %d)", path, name,
                       since / 1000, since % 1000 / 10, code);
    memcpy(out, &entry, n);
    return CB_OK;
}

static cb_status initialise(const cb_cu_driver *driver, const char *path, cb_error *err) {
    const int code = driver->cuInit(0);
    if (code == STUB_LIBRARY)
        return cb_fail(
            err, CB_UNSUPPORTED,
            "%s is the stub that a CUDA toolkit provides for linking, not a driver: install the "
            "NVIDIA driver",
            path);
    if (code == NO_DEVICE)
        return cb_fail(err, CB_UNSUPPORTED,
                       "%s: the driver sees no device (CUDA_VISIBLE_DEVICES may hide it)", path);
    return code ? cb_cu_failed(driver, "cuInit(0)", code, err) : CB_OK;
}

cb_status cb_cu_open_driver(cb_cu_driver *driver, const char *path, cb_error *err) {
    void *library;
    get_entry_fn get = NULL;
    cb_cu_driver made;
    CB_TRY(open_library(&library, path, RTLD_NOW, err));
    CB_TRY(find_get_entry(&get, library, path, err));
    /* The version is checked first: an old driver lacks functions, and the error should say that it
     * is old. */
    CB_TRY(look_up(&made.cuDriverGetVersion, sizeof made.cuDriverGetVersion, library,
                   "cuDriverGetVersion", path, err));
    if (made.cuDriverGetVersion(&made.version) != 0) made.version = 0;
    if (made.version < OLDEST) return too_old(made.version, path, err);
#define DRIVER(since, name, parameters) \
    CB_TRY(get_entry(&made.name, sizeof made.name, get, #name, since, path, err));
#include "cu_entries.def"
#undef DRIVER
    CB_TRY(initialise(&made, path, err));
    *driver = made;
    return CB_OK;
}

/* True for errors after which every call of the context fails. An error of a kernel may be reported
 * by any later call. */
static bool is_lost(int code) {
    enum { ECC = 214, ILLEGAL_ADDRESS = 700, LAUNCH_TIMEOUT = 702, DESTROYED = 709, ASSERT = 710 };
    enum { STACK = 714, LAUNCH_FAILED = 719 };
    return code == ECC || code == ILLEGAL_ADDRESS || code == LAUNCH_TIMEOUT || code == DESTROYED ||
           code == ASSERT || (code >= STACK && code <= LAUNCH_FAILED);
}

cb_status cb_cu_failed(const cb_cu_driver *driver, const char *call, int code, cb_error *err) {
    const char *name = NULL, *text = NULL;
    if (driver->cuGetErrorName(code, &name) != 0 || !name) name = "an unknown error";
    if (driver->cuGetErrorString(code, &text) != 0 || !text) text = "no text";
    const char *more =
        is_lost(code)
            ? ": the device's context is lost with all data on the device; start the process "
              "again and continue from a checkpoint"
            : "";
    return cb_fail(err, code == OUT_OF_MEMORY ? CB_NOMEM : CB_INTERNAL, "%s: %s (%d, %s)%s", call,
                   name, code, text, more);
}

cb_status cb_cu_count_devices(const cb_cu_driver *driver, int *n, cb_error *err) {
    CB_CU(driver, cuDeviceGetCount(n));
    return CB_OK;
}

cb_status cb_cu_describe_device(const cb_cu_driver *driver, int ordinal, cb_cu_device *out,
                                cb_error *err) {
    cb_cu_device made;
    int device, major, minor;
    size_t bytes;
    CB_CU(driver, cuDeviceGet(&device, ordinal));
    CB_CU(driver, cuDeviceGetName(made.name, sizeof made.name, device));
    CB_CU(driver, cuDeviceTotalMem(&bytes, device));
    CB_CU(driver, cuDeviceGetAttribute(&major, COMPUTE_CAPABILITY_MAJOR, device));
    CB_CU(driver, cuDeviceGetAttribute(&minor, COMPUTE_CAPABILITY_MINOR, device));
    made.capability = 10 * major + minor;
    made.bytes = bytes;
    *out = made;
    return CB_OK;
}

/* Opens the builtins library, which NVRTC loads by name in its first compilation. The wheel of CUDA
 * 13.0 has no RPATH, so the loader does not search NVRTC's own folder. Therefore the library is
 * loaded from there in advance, in the exact version that NVRTC requests. If it is not there, the
 * loader searches for it. */
static cb_status open_builtins(const cb_cu_nvrtc *nvrtc, int major, int minor, cb_error *err) {
    char name[64], beside[4096];
    Dl_info where;
    void *function;
    memcpy(&function, &nvrtc->nvrtcVersion, sizeof function);
    snprintf(name, sizeof name, "libnvrtc-builtins.so.%d.%d", major, minor);
    const char *file = dladdr(function, &where) && where.dli_fname ? where.dli_fname : "";
    const char *slash = strrchr(file, '/');
    const int folder = slash ? (int)(slash - file) + 1 : 0;
    const int n = snprintf(beside, sizeof beside, "%.*s%s", folder, file, name);
    if (n > 0 && (size_t)n < sizeof beside && dlopen(beside, RTLD_NOW | RTLD_LOCAL)) return CB_OK;
    if (dlopen(name, RTLD_NOW | RTLD_LOCAL)) return CB_OK;
    return cb_fail(err, CB_UNSUPPORTED,
                   "%.400s needs %s, which is neither in its folder nor known to the loader: "
                   "reinstall the package that NVRTC comes from",
                   file, name);
}

cb_status cb_cu_open_nvrtc(cb_cu_nvrtc *nvrtc, const char *path, cb_error *err) {
    void *library;
    cb_cu_nvrtc made;
    int major, minor, n, all[MOST_ARCHITECTURES];
    CB_TRY(open_library(&library, path, RTLD_NOW, err));
#define NVRTC(name, parameters) \
    CB_TRY(look_up(&made.name, sizeof made.name, library, #name, path, err));
#include "cu_entries.def"
#undef NVRTC
    if (made.nvrtcVersion(&major, &minor) != 0 || made.nvrtcGetNumSupportedArchs(&n) != 0 ||
        n < 1 || n > MOST_ARCHITECTURES || made.nvrtcGetSupportedArchs(all) != 0)
        return cb_fail(err, CB_UNSUPPORTED, "%s does not return its version and architectures",
                       path);
    made.version = 1000 * major + 10 * minor;
    if (made.version < OLDEST)
        return cb_fail(err, CB_UNSUPPORTED, "%s is from CUDA %d.%d; CUDA 12.0 or newer is needed",
                       path, major, minor);
    CB_TRY(open_builtins(&made, major, minor, err));
    made.least = all[0]; /* the list is in ascending order */
    made.most = all[n - 1];
    *nvrtc = made;
    return CB_OK;
}

/* Opens cuBLASLt. The library is half a gigabyte, mostly kernels, so functions are bound lazily. */
cb_status cb_cu_open_blaslt(cb_cu_blaslt *blaslt, const char *path, cb_error *err) {
    void *library;
    cb_cu_blaslt made;
    CB_TRY(open_library(&library, path, RTLD_LAZY, err));
    CB_TRY(look_up(&made.cublasLtGetVersion, sizeof made.cublasLtGetVersion, library,
                   "cublasLtGetVersion", path, err));
    CB_TRY(look_up(&made.cublasLtGetStatusName, sizeof made.cublasLtGetStatusName, library,
                   "cublasLtGetStatusName", path, err));
#define BLASLT(name, parameters) \
    CB_TRY(look_up(&made.name, sizeof made.name, library, #name, path, err));
#include "cu_entries.def"
#undef BLASLT
    made.version = made.cublasLtGetVersion();
    *blaslt = made;
    return CB_OK;
}
