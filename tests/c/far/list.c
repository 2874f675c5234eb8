/* The list of backends (csrc/exec/builtin.c) of programs that test with memory the host cannot
 * touch. */
#include "far.h"

const cb_backend *const cb_backends[] = {&cb_backend_far,
                                         &cb_backend_far256,
                                         &cb_backend_cpu,
                                         &cb_backend_debug,
                                         &cb_backend_ref,
                                         &cb_backend_null,
                                         NULL};
