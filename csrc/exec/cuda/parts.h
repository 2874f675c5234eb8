/* parts.h: the code of a program becomes functions of a device. Its kernels are shared out among a
 * few sources, which are compiled at once. */
#ifndef CB_EXEC_CUDA_PARTS_H
#define CB_EXEC_CUDA_PARTS_H

#include "device/device.h"
#include "text/code.h"

enum { CB_CU_PARTS = 4 };

typedef struct cb_cu_parts {
    void *library[CB_CU_PARTS]; /* NULL: there is none */
} cb_cu_parts;

/* In the context. `function`: [kernels of the code]. `texts` holds what is thrown away. After an
 * error there may be libraries. */
CB_MUST_CHECK cb_status cb_cu_parts_make(cb_cu_parts *p, const cb_cu_code *code, const cb_cu_gpu *d,
                                         cb_arena *texts, void **function, cb_error *err);
void cb_cu_parts_release(cb_cu_parts *p, const cb_cu_gpu *d);

#endif
