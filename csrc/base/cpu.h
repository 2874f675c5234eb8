/* cpu.h: which instruction set the kernels may use. */
#ifndef CB_BASE_CPU_H
#define CB_BASE_CPU_H

#include <stdbool.h>
#include <stdint.h>

typedef enum cb_isa { CB_ISA_BASELINE = 0, CB_ISA_AVX2, CB_ISA_AVX512, CB_ISA_COUNT } cb_isa;

cb_isa cb_cpu_isa(void); /* the best this processor and operating system support */
/* Returns the instruction set that kernels are selected for. The environment variable
 * CUTBACK_ISA=baseline|avx2|avx512 lowers it. It is read again at each call, so that a test can
 * compare instruction sets in one process. */
cb_isa cb_cpu_kernel_isa(void);
/* True if the processor has an instruction that multiplies pairs of bf16, and CUTBACK_ISA is not
 * set. Setting it, even to the best instruction set, requests the same results on every machine. */
bool cb_cpu_multiplies_bf16(void);
const char *cb_isa_name(cb_isa isa); /* "baseline", "avx2", "avx512" */

#endif
