/* The list of backends (csrc/exec/builtin.c) for programs that test on a GPU: its first is cuda,
 * opened on the stand-in driver. */
#include "gpu.h"

static cb_status open_stand_in(const cb_runtime *runtime, void **device, cb_error *err) {
    cb_cuda_options *cuda = &((cb_runtime *)runtime)->cuda;
    const char *kernels = getenv("CUTBACK_TEST_KERNELS");
    if (!cuda->driver) {
        *cuda = (cb_cuda_options){.driver = CB_STAND_IN,
                                  .nvrtc = gpu_nvrtc(),
                                  .cache = kernels ? kernels : CB_CACHE,
                                  .device = cuda->device,
                                  .as_ptx = true};
    }
    return cb_backend_cuda.open(runtime, device, err);
}

/* A constant table is all that differs; what it calls is what is tested. */
static cb_backend gpu;

__attribute__((constructor)) static void make_list(void) {
    gpu = cb_backend_cuda;
    gpu.open = open_stand_in;
}

const cb_backend *const cb_backends[] = {&gpu, &cb_backend_cpu, &cb_backend_ref, NULL};
