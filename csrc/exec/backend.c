#include "backend.h"

#include <string.h>

const cb_backend *cb_backend_find(const char *name) {
    static const cb_backend *const all[] = {&cb_backend_cpu, &cb_backend_debug, &cb_backend_ref,
                                            &cb_backend_null};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(all[i]->name, name) == 0) return all[i];
    }
    return NULL;
}
