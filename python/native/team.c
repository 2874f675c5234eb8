/* team.c: runs our parallel regions on the threads of the OpenMP library that another library in
 * this process uses. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* for RTLD_NOLOAD */
#endif
#include <dlfcn.h>

#include "state.h"

#include "base/team.h"

/* Finds the two entry points through a library that is open. */
static bool find_team(const char *path, cb_team *out) {
    void *library =
        dlopen(path, RTLD_NOW | RTLD_NOLOAD); /* never closed: the pointers stay valid */
    if (!library) return false;
    void *parallel = dlsym(library, "GOMP_parallel");
    void *number = dlsym(library, "omp_get_thread_num");
    if (!parallel || !number) return false;
    memcpy(&out->parallel, &parallel, sizeof parallel);
    memcpy(&out->number, &number, sizeof number);
    return true;
}

PyObject *cb_py_join_team(PyObject *Py_UNUSED(module), PyObject *library) {
    static cb_team team; /* the process has one such library; written under the GIL */
    if (library == Py_None) {
        cb_threads_use(NULL);
        Py_RETURN_TRUE;
    }
    const char *path = PyUnicode_AsUTF8(library);
    if (!path) return NULL;
    cb_team found;
    if (!find_team(path, &found)) Py_RETURN_FALSE;
    if (!team.parallel) team = found;
    cb_threads_use(&team);
    Py_RETURN_TRUE;
}
