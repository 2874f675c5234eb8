/* numpy_table.h: NumPy's headers, whose table of functions is one variable of the extension: filled
 * by numpy_bridge.c, which defines CB_PY_NUMPY_TABLE before, and read by the others. */
#ifndef CB_PY_NUMPY_TABLE_H
#define CB_PY_NUMPY_TABLE_H

#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_2_0_API_VERSION
#define PY_ARRAY_UNIQUE_SYMBOL cb_py_numpy_table
#ifndef CB_PY_NUMPY_TABLE
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#endif
