/* The list of backends (csrc/exec/builtin.c) of programs that test on a GPU: the first is cuda,
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

/* A copy of the backend's constant table that differs only in how it opens. */
static cb_backend gpu;

/* Ends the program before its tests if kernels cannot be compiled. Done here rather than in each
 * main, because some of these programs also run without this list and know nothing about GPUs. */
static void need_nvrtc(void) {
    const char *path = gpu_nvrtc();
    if (!path) {
        printf("skipped: no NVRTC (pip install nvidia-cuda-nvrtc, or CUTBACK_NVRTC=libnvrtc.so)\n");
        exit(0);
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library || !dlsym(library, "nvrtcCompileProgram")) {
        printf("failed: NVRTC cannot be used: %s\n", dlerror());
        exit(1);
    }
}

__attribute__((constructor)) static void make_list(void) {
    need_nvrtc();
    gpu = cb_backend_cuda;
    gpu.open = open_stand_in;
}

const cb_backend *const cb_backends[] = {&gpu, &cb_backend_cpu, &cb_backend_ref, NULL};
