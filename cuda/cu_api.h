/* cu_api.h: NVIDIA's libraries as tables of functions. No CUDA library is linked. A library is
 * opened by its path (python/cutback/cuda_libraries.py finds it), and each function is looked up
 * once. If a library cannot be used, the error says why and what to do. Libraries are never closed,
 * because drivers do not support that. Calls go through CB_CU, which quotes the call if it fails:
 *
 *     cb_cu_driver driver;
 *     CB_TRY(cb_cu_open_driver(&driver, "libcuda.so.1", err));
 *     CB_CU(&driver, cuDeviceGetCount(&count)); */
#ifndef CB_CUDA_CU_API_H
#define CB_CUDA_CU_API_H

#include "base/status.h"

typedef struct cb_cu_driver {
    int version; /* the newest CUDA version that it supports: 13000 is 13.0 */
#define DRIVER(since, name, parameters) int(*name) parameters;
#include "cu_entries.def"
#undef DRIVER
} cb_cu_driver;

/* Opens the library, looks up all functions and initialises the driver. `path` is a file, or a name
 * for the dynamic loader. */
cb_status cb_cu_open_driver(cb_cu_driver *driver, const char *path, cb_error *err);

/* Calls a driver function; if it fails, returns the error from the calling function, which must
 * return cb_status and have `cb_error *err`. */
#define CB_CU(driver, call)                                                             \
    do {                                                                                \
        const int cb_cu_answer = (driver)->call;                                        \
        if (cb_cu_answer != 0) return cb_cu_failed((driver), #call, cb_cu_answer, err); \
    } while (0)
/* Fails with "cuDeviceGet(&device, 7): CUDA_ERROR_INVALID_DEVICE (101, invalid device ordinal)". */
cb_status cb_cu_failed(const cb_cu_driver *driver, const char *call, int code, cb_error *err);

typedef struct cb_cu_device {
    char name[256];
    int capability; /* 90 for 9.0 */
    uint64_t bytes; /* size of its memory */
} cb_cu_device;
cb_status cb_cu_count_devices(const cb_cu_driver *driver, int *n, cb_error *err);
cb_status cb_cu_describe_device(const cb_cu_driver *driver, int ordinal, cb_cu_device *out,
                                cb_error *err);

typedef struct cb_cu_nvrtc {
    int version;     /* in the driver's format: 13050 is 13.5 */
    int least, most; /* oldest and newest architecture that it compiles for, e.g. 75 and 121 */
#define NVRTC(name, parameters) int(*name) parameters;
#include "cu_entries.def"
#undef NVRTC
} cb_cu_nvrtc;
cb_status cb_cu_open_nvrtc(cb_cu_nvrtc *nvrtc, const char *path, cb_error *err);

typedef struct cb_cu_blaslt {
    size_t version; /* in the library's format, e.g. 130100 */
    size_t (*cublasLtGetVersion)(void);
    const char *(*cublasLtGetStatusName)(int code);
#define BLASLT(name, parameters) int(*name) parameters;
#include "cu_entries.def"
#undef BLASLT
} cb_cu_blaslt;
cb_status cb_cu_open_blaslt(cb_cu_blaslt *blaslt, const char *path, cb_error *err);

#endif
