/* test_executor.c for f64. */
#define CB_X_WIDE 1
#include "test_executor.c"
