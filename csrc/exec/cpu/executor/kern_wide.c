/* The executor's functions for f64. */
#define CB_X_WIDE 1
#include "kern_executor.c"
