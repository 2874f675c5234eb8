/* count_blocks.c: counts the basic blocks that code compiled with -fsanitize-coverage=trace-pc
 * runs. This file itself is compiled without that option. */
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

static uint64_t n_blocks;

void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) { n_blocks++; }

EXPORT uint64_t counted_blocks(void);
EXPORT uint64_t counted_blocks(void) { return n_blocks; }
