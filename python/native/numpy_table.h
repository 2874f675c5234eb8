/* numpy_table.h: NumPy's headers. All files share one function table: numpy_bridge.c defines
 * CB_PY_NUMPY_TABLE and fills it. */
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
