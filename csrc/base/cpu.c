#include "cpu.h"

#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#if defined(__clang__)
#include <cpuid.h>
#endif

/* The check for avx2 also covers the operating system's part, saving the wide registers. clang 14's
 * __builtin_cpu_supports, which caches the processor's answers, does not know f16c. Asking the
 * processor with cpuid takes tens of microseconds on a virtual machine. */
#if defined(__clang__)
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#else
static bool has_f16c(void) { return __builtin_cpu_supports("f16c"); }
#endif

cb_isa cb_cpu_isa(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c())
        return CB_ISA_BASELINE;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        return CB_ISA_AVX512;
    }
    return CB_ISA_AVX2;
}
#else
cb_isa cb_cpu_isa(void) { return CB_ISA_BASELINE; }
#endif

/* CUTBACK_ISA can only lower the instruction set: requesting one that the processor lacks must not
 * end in an illegal instruction. */
cb_isa cb_cpu_kernel_isa(void) {
    const cb_isa best = cb_cpu_isa();
    const char *wish = getenv("CUTBACK_ISA");
    for (int isa = 0; wish && isa < (int)best; isa++)
        if (strcmp(wish, cb_isa_name((cb_isa)isa)) == 0) return (cb_isa)isa;
    return best;
}

bool cb_cpu_multiplies_bf16(void) {
#if defined(__x86_64__)
    return !getenv("CUTBACK_ISA") && cb_cpu_isa() == CB_ISA_AVX512 &&
           __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

const char *cb_isa_name(cb_isa isa) {
    switch (isa) {
        case CB_ISA_BASELINE: return "baseline";
        case CB_ISA_AVX2: return "avx2";
        case CB_ISA_AVX512: return "avx512";
        case CB_ISA_COUNT: break;
    }
    return "unknown";
}
