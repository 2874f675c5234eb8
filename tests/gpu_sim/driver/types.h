/* types.h: the types of the CUDA driver API that the entries use, as in its documentation. With
 * SIM_CUDA_H they come from NVIDIA's own header instead: check_header.c compares the two. */
#ifndef SIM_TYPES_H
#define SIM_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef SIM_CUDA_H
#include <cuda.h>
#else

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef uint64_t cuuint64_t;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUlib_st *CUlibrary;
typedef struct CUkern_st *CUkernel;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUuuid_st {
    char bytes[16];
} CUuuid;
typedef int CUdevice_attribute, CUfunction_attribute, CUpointer_attribute, CUmemPool_attribute;
typedef int CUjit_option, CUlibraryOption;
typedef int CUstreamCaptureMode, CUstreamCaptureStatus, CUdriverProcAddressQueryResult;
typedef void (*CUhostFn)(void *data);
typedef struct CUmemPoolProps_st {
    int allocType, handleTypes;
    struct {
        int type, id;
    } location;
    void *win32SecurityAttributes;
    size_t maxSize;
    unsigned short usage;
    unsigned char reserved[54];
} CUmemPoolProps;
typedef struct CUlaunchAttribute_st {
    int id;
    char pad[4];
    char value[64];
} CUlaunchAttribute;
typedef struct CUlaunchConfig_st {
    unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
    CUstream hStream;
    CUlaunchAttribute *attrs;
    unsigned int numAttrs;
} CUlaunchConfig;

#endif

/* Error codes, by their names in the API: CUDA_ERROR_<name>. */
#define SIM_ERRORS(X)                                                                             \
    X(INVALID_VALUE, 1, "invalid argument")                                                       \
    X(OUT_OF_MEMORY, 2, "out of memory")                                                          \
    X(NOT_INITIALIZED, 3, "initialization error")                                                 \
    X(NO_DEVICE, 100, "no CUDA-capable device is detected")                                       \
    X(INVALID_DEVICE, 101, "invalid device ordinal")                                              \
    X(INVALID_IMAGE, 200, "device kernel image is invalid")                                       \
    X(INVALID_CONTEXT, 201, "invalid device context")                                             \
    X(NO_BINARY_FOR_GPU, 209, "no kernel image is available for execution on the device")         \
    X(INVALID_PTX, 218, "a PTX JIT compilation failed")                                           \
    X(INVALID_HANDLE, 400, "invalid resource handle")                                             \
    X(NOT_FOUND, 500, "named symbol not found")                                                   \
    X(NOT_READY, 600, "device not ready")                                                         \
    X(ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered")                           \
    X(LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested for launch")                    \
    X(LAUNCH_TIMEOUT, 702, "the launch timed out and was terminated")                             \
    X(MISALIGNED_ADDRESS, 716, "misaligned address")                                              \
    X(LAUNCH_FAILED, 719, "unspecified launch failure")                                           \
    X(NOT_PERMITTED, 800, "operation not permitted")                                              \
    X(NOT_SUPPORTED, 801, "operation not supported")                                              \
    X(STREAM_CAPTURE_UNSUPPORTED, 900, "operation not permitted when stream is capturing")        \
    X(STREAM_CAPTURE_INVALIDATED, 901, "operation failed due to a previous error during capture") \
    X(STREAM_CAPTURE_UNJOINED, 904, "capturing stream has unjoined work")                         \
    X(STREAM_CAPTURE_ISOLATION, 905, "dependency created on uncaptured work in another stream")   \
    X(STREAM_CAPTURE_IMPLICIT, 906,                                                               \
      "operation would make the legacy stream depend on a capturing blocking stream")             \
    X(CAPTURED_EVENT, 907,                                                                        \
      "operation not permitted on an event last recorded in a capturing stream")                  \
    X(UNKNOWN, 999, "unknown error")

typedef int sim_result; /* 0 or one of these */
enum {
#define X(name, code, text) SIM_ERROR_##name = code,
    SIM_ERRORS(X)
#undef X
};

#endif
