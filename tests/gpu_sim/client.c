/* client.c: a C program on the stand-in, which it finds as any program finds the driver. Built
 * with the sanitizers that the rest is built with: their memory and the stand-in's must not be in
 * each other's way. */
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
#define CALL(parameters, name) ((int(*) parameters)find(driver, name))
enum { N = 1000 };
static float x[N], y[N];

static entry find(void *driver, const char *name) {
    entry found = NULL;
    int (*look)(const char *, entry *, int, cuuint64_t, int *) = NULL;
    void *symbol = dlsym(driver, "cuGetProcAddress_v2");
    memcpy(&look, &symbol, sizeof look);
    int status;
    if (look(name, &found, 13000, 0, &status) != 0) printf("%s is not there\n", name);
    return found;
}

/* A host program that follows a device pointer dies of it. */
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

static char *read_text(const char *path) {
    FILE *file = fopen(path, "rb");
    static char text[1 << 20];
    if (!file) return NULL;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

int main(int argc, char **argv) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(driver && argc == 2);
    const char *ptx = read_text(argv[1]);
    CUcontext context;
    CUmodule module;
    CUfunction function;
    CUdeviceptr dx, dy, host = (CUdeviceptr)x;
    float factor = 2;
    int n = N;
    CHECK(ptx && CALL((unsigned), "cuInit")(0) == 0);
    CHECK(CALL((CUcontext *, CUdevice), "cuDevicePrimaryCtxRetain")(&context, 0) == 0);
    CHECK(CALL((CUcontext), "cuCtxSetCurrent")(context) == 0);
    CHECK(CALL((CUmodule *, const void *), "cuModuleLoadData")(&module, ptx) == 0);
    CHECK(CALL((CUfunction *, CUmodule, const char *), "cuModuleGetFunction")(&function, module,
                                                                              "scale") == 0);
    for (int i = 0; i < N; i++) x[i] = (float)i;
    CHECK(CALL((CUdeviceptr *, size_t), "cuMemAlloc")(&dx, sizeof x) == 0);
    CHECK(CALL((CUdeviceptr *, size_t), "cuMemAlloc")(&dy, sizeof y) == 0);
    CHECK(CALL((CUdeviceptr, const void *, size_t), "cuMemcpyHtoD")(dx, x, sizeof x) == 0);
    int (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  CUstream, void **, void **);
    const entry found = find(driver, "cuLaunchKernel");
    memcpy(&launch, &found, sizeof launch);
    void *params[] = {&dx, &dy, &factor, &n};
    CHECK(launch(function, 4, 1, 1, 256, 1, 1, 0, NULL, params, NULL) == 0);
    CHECK(CALL((void *, CUdeviceptr, size_t), "cuMemcpyDtoH")(y, dy, sizeof y) == 0);
    for (int i = 0; i < N; i++) CHECK(y[i] == 2 * x[i]);
    CHECK(faults(dx));
    params[0] = &host;
    (void)launch(function, 4, 1, 1, 256, 1, 1, 0, NULL, params, NULL);
    CHECK(CALL((void), "cuCtxSynchronize")() == SIM_ERROR_ILLEGAL_ADDRESS);
    printf("ok\n");
    return 0;
}
