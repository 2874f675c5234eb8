/* The list of backends, in its own file so that tests can link a different list. */
#include "backend.h"

const cb_backend *const cb_backends[] = {&cb_backend_cpu,  &cb_backend_debug, &cb_backend_ref,
                                         &cb_backend_null, &cb_backend_cuda,  NULL};
_Static_assert(sizeof cb_backends / sizeof cb_backends[0] - 1 <= CB_BACKENDS_MOST,
               "cb_devices must have a slot for every backend");
