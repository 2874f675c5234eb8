/* cu_api.h: NVIDIA's libraries as tables of functions. Nothing of CUDA is linked: a library is
 * opened by its path (python/cutback/cuda_libraries.py finds it), each function is looked up once,
 * and what cannot be used is one error that says why and what to do. Libraries are never closed: a
 * driver does not bear it. Calls go through CB_CU, which quotes itself where one fails:
 *
 *     cb_cu_driver driver;
 *     CB_TRY(cb_cu_open_driver(&driver, "libcuda.so.1", err));
 *     CB_CU(&driver, cuDeviceGetCount(&count));
 * */
#ifndef CB_CUDA_CU_API_H
#define CB_CUDA_CU_API_H

#include "base/status.h"

typedef struct cb_cu_driver {
    int version; /* 13000: the newest CUDA it serves is 13.0 */
#define DRIVER(since, name, parameters) int(*name) parameters;
#include "cu_entries.def"
#undef DRIVER
} cb_cu_driver;

/* Opens, looks everything up and initialises. `path`: a file, or a name for the system's loader. */
cb_status cb_cu_open_driver(cb_cu_driver *driver, const char *path, cb_error *err);

/* In functions that return cb_status and have `cb_error *err`. */
#define CB_CU(driver, call)                                                             \
    do {                                                                                \
        const int cb_cu_answer = (driver)->call;                                        \
        if (cb_cu_answer != 0) return cb_cu_failed((driver), #call, cb_cu_answer, err); \
    } while (0)
/* "cuDeviceGet(&device, 7): CUDA_ERROR_INVALID_DEVICE (invalid device ordinal)". */
cb_status cb_cu_failed(const cb_cu_driver *driver, const char *call, int code, cb_error *err);

typedef struct cb_cu_device {
    char name[256];
    int capability; /* 90 for 9.0 */
    uint64_t bytes; /* of its memory */
} cb_cu_device;
cb_status cb_cu_count_devices(const cb_cu_driver *driver, int *n, cb_error *err);
cb_status cb_cu_describe_device(const cb_cu_driver *driver, int ordinal, cb_cu_device *out,
                                cb_error *err);

typedef struct cb_cu_nvrtc {
    int version;     /* 13050: 13.5, as the driver counts */
    int least, most; /* architectures that it compiles for: 75, 121 */
#define NVRTC(name, parameters) int(*name) parameters;
#include "cu_entries.def"
#undef NVRTC
} cb_cu_nvrtc;
cb_status cb_cu_open_nvrtc(cb_cu_nvrtc *nvrtc, const char *path, cb_error *err);

typedef struct cb_cu_blaslt {
    size_t version; /* as the library counts: 130100 */
    size_t (*cublasLtGetVersion)(void);
    const char *(*cublasLtGetStatusName)(int code);
#define BLASLT(name, parameters) int(*name) parameters;
#include "cu_entries.def"
#undef BLASLT
} cb_cu_blaslt;
cb_status cb_cu_open_blaslt(cb_cu_blaslt *blaslt, const char *path, cb_error *err);

#endif
