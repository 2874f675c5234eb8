/* The list of backends, alone in its file: a program of the tests that links another list has that
 * one. */
#include "backend.h"

const cb_backend *const cb_backends[] = {&cb_backend_cpu,  &cb_backend_debug, &cb_backend_ref,
                                         &cb_backend_null, &cb_backend_cuda,  NULL};
_Static_assert(sizeof cb_backends / sizeof cb_backends[0] - 1 <= CB_BACKENDS_MOST,
               "every backend has a place in cb_devices");
