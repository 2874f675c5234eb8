/* pool.h: a caching allocator of device memory (include/cutback.h: cb_block), and marks. */
#ifndef CB_EXEC_CUDA_DEVICE_POOL_H
#define CB_EXEC_CUDA_DEVICE_POOL_H

#include "context.h"

typedef struct cb_cu_pool cb_cu_pool;

CB_MUST_CHECK cb_status cb_cu_pool_new(cb_alloc *alloc, cb_cu_pool **out, cb_error *err);
void cb_cu_pool_free(cb_alloc *alloc, cb_cu_pool *pool); /* call it after a release; NULL is fine */
/* Waits for the device and frees the kept blocks; returns their bytes. */
uint64_t cb_cu_pool_release(const cb_cu_gpu *d);

/* Allocates device memory, and frees the kept blocks if it runs out. Needs a current context. */
CB_MUST_CHECK cb_status cb_cu_take(const cb_cu_gpu *d, uint64_t bytes, uint64_t *out,
                                   cb_error *err);

extern const cb_pooled cb_cu_pooled;

#endif
