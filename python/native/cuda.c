/* cuda.c: opens NVIDIA's libraries and queries their versions. Opening one may take a second, so it
 * is done without the GIL. */
#include "state.h"

#include "cu_api.h"

/* Converts a path (str, bytes or a path object) to the file system's encoding. */
static PyObject *path_bytes(PyObject *path) {
    PyObject *bytes = NULL;
    return PyUnicode_FSConverter(path, &bytes) ? bytes : NULL;
}

static PyObject *device_row(cb_py_state *state, const cb_cu_driver *driver, int ordinal) {
    cb_error err;
    cb_cu_device device;
    cb_status status;
    Py_BEGIN_ALLOW_THREADS status = cb_cu_describe_device(driver, ordinal, &device, &err);
    Py_END_ALLOW_THREADS if (status != CB_OK) return cb_py_raise(state, &err, NULL);
    return Py_BuildValue("(siK)", device.name, device.capability, (unsigned long long)device.bytes);
}

PyObject *cb_py_cuda_driver(PyObject *module, PyObject *path) {
    cb_py_state *state = cb_py_state_of(module);
    cb_error err;
    cb_cu_driver driver;
    cb_status status;
    int n = 0;
    PyObject *bytes = path_bytes(path);
    if (!bytes) return NULL;
    Py_BEGIN_ALLOW_THREADS status = cb_cu_open_driver(&driver, PyBytes_AS_STRING(bytes), &err);
    if (status == CB_OK) status = cb_cu_count_devices(&driver, &n, &err);
    Py_END_ALLOW_THREADS Py_DECREF(bytes);
    if (status != CB_OK) return cb_py_raise(state, &err, NULL);
    PyObject *devices = PyList_New(0);
    for (int i = 0; devices && i < n; i++) {
        PyObject *row = device_row(state, &driver, i);
        if (!row || PyList_Append(devices, row) < 0) Py_CLEAR(devices);
        Py_XDECREF(row);
    }
    return devices ? Py_BuildValue("(iN)", driver.version, devices) : NULL;
}

PyObject *cb_py_cuda_nvrtc(PyObject *module, PyObject *path) {
    cb_error err;
    cb_cu_nvrtc nvrtc;
    cb_status status;
    PyObject *bytes = path_bytes(path);
    if (!bytes) return NULL;
    Py_BEGIN_ALLOW_THREADS status = cb_cu_open_nvrtc(&nvrtc, PyBytes_AS_STRING(bytes), &err);
    Py_END_ALLOW_THREADS Py_DECREF(bytes);
    if (status != CB_OK) return cb_py_raise(cb_py_state_of(module), &err, NULL);
    return Py_BuildValue("(iii)", nvrtc.version, nvrtc.least, nvrtc.most);
}

PyObject *cb_py_cuda_blaslt(PyObject *module, PyObject *path) {
    cb_error err;
    cb_cu_blaslt blaslt;
    cb_status status;
    PyObject *bytes = path_bytes(path);
    if (!bytes) return NULL;
    Py_BEGIN_ALLOW_THREADS status = cb_cu_open_blaslt(&blaslt, PyBytes_AS_STRING(bytes), &err);
    Py_END_ALLOW_THREADS Py_DECREF(bytes);
    if (status != CB_OK) return cb_py_raise(cb_py_state_of(module), &err, NULL);
    return PyLong_FromSize_t(blaslt.version);
}

PyObject *cb_py_set_cuda(PyObject *module, PyObject *args) {
    cb_py_state *state = cb_py_state_of(module);
    cb_cuda_options options = {0};
    cb_error err;
    int as_ptx, keep_sources;
    if (!PyArg_ParseTuple(args, "sszzipp:set_cuda", &options.driver, &options.nvrtc,
                          &options.blaslt, &options.cache, &options.device, &as_ptx, &keep_sources))
        return NULL;
    options.as_ptx = as_ptx;
    options.keep_sources = keep_sources;
    cb_py_context *context = cb_py_context_get(state);
    if (!context) return NULL;
    if (cb_context_set_cuda(context->core, &options, &err) != CB_OK)
        return cb_py_raise(state, &err, NULL);
    Py_RETURN_NONE;
}
