/* The executor's functions once more, for f64. */
#define CB_X_WIDE 1
#include "kern_executor.c"
