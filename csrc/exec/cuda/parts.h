/* parts.h: compiles the code of a program to functions of a device. Its kernels are divided among a
 * few sources, which are compiled concurrently. */
#ifndef CB_EXEC_CUDA_PARTS_H
#define CB_EXEC_CUDA_PARTS_H

#include "device/device.h"
#include "text/code.h"

enum { CB_CU_PARTS = 4 };

typedef struct cb_cu_parts {
    void *library[CB_CU_PARTS]; /* NULL: none */
} cb_cu_parts;

/* Must be called in the context. `function`: [kernels of the code]. `texts` holds temporary data.
 * After an error, some libraries may be loaded; release them. */
CB_MUST_CHECK cb_status cb_cu_parts_make(cb_cu_parts *p, const cb_cu_code *code, const cb_cu_gpu *d,
                                         cb_arena *texts, void **function, cb_error *err);
void cb_cu_parts_release(cb_cu_parts *p, const cb_cu_gpu *d);

#endif
