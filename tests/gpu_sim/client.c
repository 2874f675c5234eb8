/* client.c: a C program on the stand-in, which it finds as any program finds the driver. It is
 * built with the same sanitizers as everything else, whose memory must not collide with the
 * stand-in's. */
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                  \
    do {                                                                  \
        if (!(condition)) {                                               \
            printf("%s:%d: CHECK(%s)\n", __FILE__, __LINE__, #condition); \
            return 1;                                                     \
        }                                                                 \
    } while (0)

#include "driver/types.h"

typedef void (*entry)(void);
#define CALL(parameters, name) ((int(*) parameters)find(name))
enum { N = 1024 };
static float x[N], y[N];
static void *driver;

static entry find(const char *name) {
    entry found = NULL;
    int (*look)(const char *, entry *, int, cuuint64_t, int *) = NULL;
    void *symbol = dlsym(driver, "cuGetProcAddress_v2");
    memcpy(&look, &symbol, sizeof look);
    int status;
    if (look(name, &found, 13000, 0, &status) != 0) printf("%s is not there\n", name);
    return found;
}

/* True if a host program that dereferences a device pointer dies. */
static bool faults(unsigned long long address) {
    const pid_t child = fork();
    if (child == 0) {
        (void)signal(SIGSEGV, SIG_DFL);
        volatile const char *at = (const char *)address;
        _exit(*at);
    }
    int status = 0;
    (void)waitpid(child, &status, 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
}

static CUfunction load(const char *path, const char *name) {
    static char text[1 << 20];
    CUmodule module = NULL;
    CUfunction function = NULL;
    FILE *file = fopen(path, "rb");
    if (!file) return NULL;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    (void)CALL((CUmodule *, const void *), "cuModuleLoadData")(&module, text);
    (void)CALL((CUfunction *, CUmodule, const char *), "cuModuleGetFunction")(&function, module,
                                                                              name);
    return function;
}

static int launch(CUfunction function, unsigned grid, unsigned block, void **params) {
    int (*call)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                CUstream, void **, void **);
    const entry found = find("cuLaunchKernel");
    memcpy(&call, &found, sizeof call);
    return call(function, grid, 1, 1, block, 1, 1, 0, NULL, params, NULL);
}

/* Runs a kernel whose threads run one after another. */
static int pointwise(const char *path, CUdeviceptr dx, CUdeviceptr dy) {
    CUfunction function = load(path, "scale");
    float factor = 2;
    int n = N;
    void *params[] = {&dx, &dy, &factor, &n};
    CHECK(function && launch(function, 4, 256, params) == 0);
    CHECK(CALL((void *, CUdeviceptr, size_t), "cuMemcpyDtoH")(y, dy, sizeof y) == 0);
    for (int i = 0; i < N; i++) CHECK(y[i] == 2 * x[i]);
    return 0;
}

/* Runs a kernel with shuffles and barriers, on fibers. */
static int sum(const char *path, CUdeviceptr dx, CUdeviceptr parts) {
    CUfunction function = load(path, "total");
    CUdeviceptr count = parts + 512, out = parts + 1024;
    float total = 0;
    void *params[] = {&dx, &parts, &count, &out};
    CHECK(function && CALL((CUdeviceptr, unsigned, size_t), "cuMemsetD32")(count, 0, 1) == 0);
    CHECK(launch(function, 16, 64, params) == 0);
    CHECK(CALL((void *, CUdeviceptr, size_t), "cuMemcpyDtoH")(&total, out, sizeof total) == 0);
    CHECK(total == (float)N * (N - 1) / 2);
    return 0;
}

int main(int argc, char **argv) {
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(driver && argc == 3);
    CUcontext context;
    CUdeviceptr dx, dy, host = (CUdeviceptr)x;
    CHECK(CALL((unsigned), "cuInit")(0) == 0);
    CHECK(CALL((CUcontext *, CUdevice), "cuDevicePrimaryCtxRetain")(&context, 0) == 0);
    CHECK(CALL((CUcontext), "cuCtxSetCurrent")(context) == 0);
    for (int i = 0; i < N; i++) x[i] = (float)i;
    CHECK(CALL((CUdeviceptr *, size_t), "cuMemAlloc")(&dx, sizeof x) == 0);
    CHECK(CALL((CUdeviceptr *, size_t), "cuMemAlloc")(&dy, sizeof y) == 0);
    CHECK(CALL((CUdeviceptr, const void *, size_t), "cuMemcpyHtoD")(dx, x, sizeof x) == 0);
    CHECK(pointwise(argv[1], dx, dy) == 0 && sum(argv[2], dx, dy) == 0);
    CHECK(faults(dx));
    CUfunction function = load(argv[1], "scale");
    float factor = 2;
    int n = N;
    void *params[] = {&host, &dy, &factor, &n};
    (void)launch(function, 4, 256, params);
    CHECK(CALL((void), "cuCtxSynchronize")() == SIM_ERROR_ILLEGAL_ADDRESS);
    printf("ok\n");
    return 0;
}
