/* Measures the peak rate of a core: independent fused multiply-adds on registers. bench_products.py
 * builds it with cc -O2 -march=native -shared -fPIC peak.c */
#include <stdint.h>

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
#define CHAINS 12 /* at least latency times throughput, and few enough for 16 registers */

typedef float vector __attribute__((vector_size(4 * LANES)));

/* Runs `turns` iterations and returns the number of floating-point operations. */
double run_peak(int64_t turns) {
    vector sum[CHAINS], x = {0}, y = {0};
#pragma GCC unroll 12
    for (int j = 0; j < CHAINS; j++)
        sum[j] = x + (float)j; /* different, as equal chains would be merged */
    for (int64_t i = 0; i < turns; i++) {
        __asm__ volatile("" : "+m"(x), "+m"(y)); /* opaque, so the loop is not optimized away */
        vector a = x, b = y;
#pragma GCC unroll 12
        for (int j = 0; j < CHAINS; j++) sum[j] = sum[j] * a + b;
#pragma GCC unroll 12
        for (int j = 0; j < CHAINS; j++) sum[j] = sum[j] * b + a;
    }
#pragma GCC unroll 12 /* otherwise gcc keeps the sums in memory, which halves the rate */
    for (int j = 1; j < CHAINS; j++) sum[0] += sum[j];
    volatile float sink = sum[0][0];
    (void)sink;
    return 4.0 * CHAINS * LANES * (double)turns;
}
