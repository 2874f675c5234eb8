/* gpu.h: runs the cuda backend in tests on the stand-in driver (tests/gpu_sim), with the NVRTC that
 * the Python tests install. list.c gives both to each context, so tests of steps need no
 * changes. */
#ifndef CB_TESTS_GPU_H
#define CB_TESTS_GPU_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/backend.h"

/* Returns the path of NVRTC, which the test's environment sets or CMake has found. NULL: there is
 * none. */
static inline const char *gpu_nvrtc(void) {
    const char *named = getenv("CUTBACK_NVRTC");
    return named && named[0] ? named : CB_NVRTC[0] ? CB_NVRTC : NULL;
}

typedef struct gpu_hooks { /* hooks of the stand-in (tests/gpu_sim/driver/hooks.h) */
    int (*set)(const char *name, long value);
    void (*seed)(unsigned seed);
    int (*fail)(const char *entry, int nth, int code);
    size_t (*reports)(char *text, size_t n);
    void (*recover)(void);
    size_t (*allocated)(void);
    const char *(*entry)(int i);
} gpu_hooks;

static inline gpu_hooks gpu_hooks_of(void) {
    gpu_hooks h;
    void *library = dlopen(CB_STAND_IN, RTLD_NOW | RTLD_LOCAL);
    static const char *const names[] = {"sim_set",     "sim_seed",      "sim_fail", "sim_reports",
                                        "sim_recover", "sim_allocated", "sim_entry"};
    void *found[sizeof names / sizeof *names];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) found[i] = dlsym(library, names[i]);
    memcpy(&h, found, sizeof h);
    return h;
}

#endif
