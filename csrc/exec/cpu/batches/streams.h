/* streams.h: the memory of a running group's streams: the tiles of a thread, and the data that is
 * copied to them before rows are run. Shared by the functions that run rows one by one, in batches
 * (together.h) and side by side. */
#ifndef CB_EXEC_STREAMS_H
#define CB_EXEC_STREAMS_H

#include "../executor/prepare.h"

typedef struct cb_executor {
    cb_executable *x;
    cb_x_fused **group;    /* [n_group] NULL: run by kernels of single ops */
    cb_x_context *context; /* [n_thread] */
    char *tile;            /* [n_thread][thread_bytes] */
    size_t thread_bytes;
    int n_thread; /* threads that have memory */
    /* the following fields describe the running group */
    const cb_x_fused *f;
    cb_philox random;
    cb_x_context *shared; /* numbers that are the same for all rows */
} cb_executor;

char *cb_x_tile(const cb_executor *e, int thread, int32_t tile);
/* Copies elements at..at+n of the domain to `out`, for a stream that is not in an array. */
void cb_x_fill(cb_executor *e, const cb_x_stream *s, int k, int64_t at, int64_t n, void *out);
/* Packs elements at..at+n of the domain, which begin with element `first` of the row or batch that
 * has been run, for streams of bits. `at` is a multiple of eight. */
void cb_x_pack(const cb_executor *e, const cb_x_context *c, int64_t at, int64_t first, int64_t n);
/* Gathers n strided rows, from row `row` on, into rows that are `pitch` elements apart. */
void cb_x_gather_across(cb_executor *e, int k, int64_t row, int64_t n, char *to, int64_t pitch);
/* Returns where a block's column sums are: in the scratch, or, with a single block, in the result
 * if its dtype can hold them. */
char *cb_x_sums_of_block(const cb_executor *e, const cb_x_stream *s, int64_t block);
void cb_x_clear_sums(cb_executor *e, int64_t block, int thread);
/* Adds the sums of a run of rows to those of their block. */
void cb_x_end_run(cb_executor *e, int64_t block, int thread);

#endif
