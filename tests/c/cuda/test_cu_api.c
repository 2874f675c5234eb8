/* NVIDIA's libraries as tables of functions, on the stand-in driver (tests/gpu_sim), which can
 * pretend to be old, a stub or without devices, or fail in any call. */
#include "check.h"

#include <dlfcn.h>
#include <unistd.h>

#include "cu_api.h"

enum {
#define DRIVER(since, name, parameters) ENTRY_##name,
#include "cu_entries.def"
#undef DRIVER
    N_ENTRIES
};

static int (*sim_set)(const char *name, long value);
static int (*sim_fail)(const char *entry, int nth, int code);

static void find_hooks(void) {
    void *library = dlopen(CB_STAND_IN, RTLD_NOW | RTLD_LOCAL);
    void *set = dlsym(library, "sim_set"), *fail = dlsym(library, "sim_fail");
    memcpy(&sim_set, &set, sizeof sim_set);
    memcpy(&sim_fail, &fail, sizeof sim_fail);
}

static cb_status open_stand_in(cb_cu_driver *driver) {
    return cb_cu_open_driver(driver, CB_STAND_IN, &err);
}

TEST(what_is_no_driver) {
    cb_cu_driver driver = {.version = 7};
    CHECK_FAIL(cb_cu_open_driver(&driver, "/nowhere/libcuda.so.1", &err), CB_UNSUPPORTED,
               "/nowhere/libcuda.so.1");
    char path[] = "/tmp/cutback-XXXXXX";
    const int file = mkstemp(path);
    CHECK(write(file, "text", 4) == 4 && close(file) == 0);
    CHECK_FAIL(cb_cu_open_driver(&driver, path, &err), CB_UNSUPPORTED, path);
    CHECK(unlink(path) == 0);
    CHECK_FAIL(cb_cu_open_driver(&driver, "libm.so.6", &err), CB_UNSUPPORTED,
               "libm.so.6 has no function cuDriverGetVersion");
    CHECK(driver.version == 7); /* unchanged */
}

TEST(drivers_that_cannot_be_used) {
    cb_cu_driver driver;
    CHECK(sim_set("driver", 11080) == 0);
    CHECK_FAIL(open_stand_in(&driver), CB_UNSUPPORTED, "from CUDA 11.8; CUDA 12.0 or newer");
    CHECK(sim_set("driver", 13000) == 0);
    CHECK(sim_fail("cuInit", 1, 34) == 0);
    CHECK_FAIL(open_stand_in(&driver), CB_UNSUPPORTED, "is the stub");
    CHECK(sim_set("devices", 0) == 0);
    CHECK_FAIL(open_stand_in(&driver), CB_UNSUPPORTED, "sees no device");
    CHECK(sim_set("devices", 2) == 0);
    CHECK(sim_fail("cuInit", 1, 2) == 0);
    CHECK_FAIL(open_stand_in(&driver), CB_NOMEM, "cuInit(0): CUDA_ERROR_OUT_OF_MEMORY");
    CHECK(sim_fail("cuInit", 1, 12345) == 0);
    CHECK_FAIL(open_stand_in(&driver), CB_INTERNAL, "cuInit(0): an unknown error (12345, no text)");
    for (int nth = 1; nth <= N_ENTRIES; nth++) {
        CHECK(sim_fail("cuGetProcAddress_v2", nth, 500) == 0);
        CHECK_FAIL(open_stand_in(&driver), CB_UNSUPPORTED, "has no function cu");
    }
    CHECK_OK(open_stand_in(&driver));
    CHECK(driver.version == 13000);
}

TEST(devices) {
    cb_cu_driver driver;
    cb_cu_device device;
    int n = 0;
    CHECK_OK(open_stand_in(&driver));
    CHECK_OK(cb_cu_count_devices(&driver, &n, &err));
    CHECK(n == 2);
    CHECK_OK(cb_cu_describe_device(&driver, 1, &device, &err));
    CHECK(strcmp(device.name, "stand-in (PTX on the CPU)") == 0);
    CHECK(device.capability == 90 && device.bytes == 8ull << 30);
    CHECK_FAIL(cb_cu_describe_device(&driver, 2, &device, &err), CB_INTERNAL,
               "cuDeviceGet(&device, ordinal): CUDA_ERROR_INVALID_DEVICE (101, ");
}

/* Each call that fails is named in its error. */
TEST(calls_that_fail) {
    static const char *const entries[] = {"cuDeviceGet", "cuDeviceGetName", "cuDeviceTotalMem_v2",
                                          "cuDeviceGetAttribute"};
    cb_cu_driver driver;
    cb_cu_device device = {.capability = 7};
    int n;
    CHECK_OK(open_stand_in(&driver));
    CHECK(sim_fail("cuDeviceGetCount", 1, 999) == 0);
    CHECK_FAIL(cb_cu_count_devices(&driver, &n, &err), CB_INTERNAL,
               "cuDeviceGetCount(n): CUDA_ERROR_UNKNOWN (999, unknown error)");
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        CHECK(sim_fail(entries[i], 1, 2) == 0);
        CHECK_FAIL(cb_cu_describe_device(&driver, 0, &device, &err), CB_NOMEM,
                   "CUDA_ERROR_OUT_OF_MEMORY (2, out of memory)");
        CHECK(strncmp(err.text, entries[i], strcspn(entries[i], "_")) == 0);
    }
    CHECK(sim_fail("cuDeviceGetAttribute", 2, 2) == 0);
    CHECK_FAIL(cb_cu_describe_device(&driver, 0, &device, &err), CB_NOMEM,
               "COMPUTE_CAPABILITY_MINOR");
    CHECK(device.capability == 7);
}

TEST(other_libraries) {
    cb_cu_nvrtc nvrtc;
    cb_cu_blaslt blaslt;
    CHECK_FAIL(cb_cu_open_nvrtc(&nvrtc, "/nowhere/libnvrtc.so", &err), CB_UNSUPPORTED, "/nowhere");
    CHECK_FAIL(cb_cu_open_nvrtc(&nvrtc, "libm.so.6", &err), CB_UNSUPPORTED,
               "libm.so.6 has no function nvrtcVersion");
    CHECK_FAIL(cb_cu_open_blaslt(&blaslt, "/nowhere/libcublasLt.so", &err), CB_UNSUPPORTED,
               "/nowhere");
    CHECK_FAIL(cb_cu_open_blaslt(&blaslt, "libm.so.6", &err), CB_UNSUPPORTED,
               "libm.so.6 has no function cublasLtGetVersion");
}

int main(void) {
    find_hooks();
    RUN(what_is_no_driver);
    RUN(drivers_that_cannot_be_used);
    RUN(devices);
    RUN(calls_that_fail);
    RUN(other_libraries);
    return check_report();
}
