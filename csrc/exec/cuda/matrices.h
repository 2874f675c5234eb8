/* matrices.h: the steps of Muon, NorMuon and Adafactor on a GPU. Rows of one shape, dtype and group
 * follow each other in the table of update.h and are stepped in batches. */
#ifndef CB_EXEC_CUDA_MATRICES_H
#define CB_EXEC_CUDA_MATRICES_H

#include "device/device.h"

enum { CB_CU_MATRIX_KERNELS = 7 };

typedef struct cb_cu_batch {
    uint32_t first, n, group; /* rows of the table; the caller's group */
    bool is_f64;
    int64_t size, height, width; /* elements of a row; sides of its matrices, or 0 */
    int turns;                   /* iterations */
} cb_cu_batch;

typedef struct cb_cu_matrices {
    const cb_optimizer *of; /* the current optimizer if it is one of the three, else NULL */
    void *function[2][CB_CU_MATRIX_KERNELS]; /* f32, f64 */
    uint32_t *order;                         /* [room] the caller's rows in the table's order */
    cb_cu_batch *batch;                      /* [room] */
    uint32_t n_batch;
    uint64_t room, bytes; /* device memory of a batch, and its size */
} cb_cu_matrices;

typedef struct cb_cu_numbers { /* device addresses that all kernels of a step take */
    uint64_t rows, factors, failed, words;
} cb_cu_numbers;

bool cb_cu_is_of_matrices(const cb_optimizer *optimizer);
/* The functions below must be called in the context. `rows` is the largest number of rows. */
CB_MUST_CHECK cb_status cb_cu_matrices_init(cb_cu_matrices *m, uint32_t rows, cb_arena *memory,
                                            cb_error *err);
/* Finds the kernels in a loaded library; `find` returns one by its name. */
typedef cb_status (*cb_cu_find_fn)(const void *user, const cb_cu_gpu *d, const char *name,
                                   void **function, cb_error *err);
CB_MUST_CHECK cb_status cb_cu_matrices_load(cb_cu_matrices *m, const cb_cu_gpu *d, bool has_f64,
                                            cb_cu_find_fn find, const void *user, cb_error *err);
/* Sorts the rows of a table and divides them into batches. */
void cb_cu_matrices_sort(cb_cu_matrices *m, const cb_optim_table *table);
/* Allocates the memory that a batch needs; not while the stream is being captured. */
CB_MUST_CHECK cb_status cb_cu_matrices_make_room(cb_cu_matrices *m, const cb_cu_gpu *d,
                                                 cb_error *err);
/* Launches the kernels; `row_bytes` is the size of a row of the table. */
CB_MUST_CHECK cb_status cb_cu_matrices_put(const cb_cu_matrices *m, const cb_cu_gpu *d,
                                           void *stream, const cb_cu_numbers *numbers,
                                           size_t row_bytes, cb_error *err);
/* Checks that a replay makes the iterations that were captured. */
CB_MUST_CHECK cb_status cb_cu_matrices_check(const cb_cu_matrices *m, const cb_optim_table *table,
                                             cb_error *err);
void cb_cu_matrices_release(cb_cu_matrices *m, const cb_cu_gpu *d);

#endif
