/* attention_tiles.h: how attention is divided into tiles. Depends on shapes and dtypes only. Used
 * by the kernels and to size their scratch (workspace.c).
 *
 * A tile pairs a block of queries with a block of keys. Blocks start at multiples of their size.
 * Each thread that works on tiles has a slot of scratch. */
#ifndef CB_EXEC_ATTENTION_TILES_H
#define CB_EXEC_ATTENTION_TILES_H

#include "../base/shape.h"
#include "../ir/op.h"

#define CB_ATTENTION_QUERIES 96
#define CB_ATTENTION_KEYS 96
#define CB_ATTENTION_HEAD 256 /* the largest head size (ir/infer_nn.c) */

/* Elements of the compute type in each part of a slot; parts start at multiples of 16 elements. */
typedef struct cb_attention_tiles {
    int64_t items, kv_items; /* total number of heads of q, and of k and v */
    int64_t heads, kv_heads; /* heads per entry of the leading axes */
    int64_t l, s, e, d;      /* queries, keys, head size of q and k, head size of v */
    int64_t queries, keys;   /* queries and keys of a tile */
    int64_t line;            /* elements from one key of a tile to the next */
    int64_t wide_e, wide_d;  /* e and d, rounded up to whole vectors */
    int64_t scores, columns_e,
        columns_d; /* elements of a tile, and of its transposed rows of q and of g */
    int64_t queries_e, queries_d, keys_e, keys_d; /* elements of the copies of rows */
    int64_t slot;                                 /* elements of a slot */
    int64_t slots;
    uint64_t shared_bytes; /* backward: sum(g * y) of each query, before the slots */
    uint64_t bytes;        /* bytes of all scratch */
} cb_attention_tiles;

cb_attention_tiles cb_attention_tiles_of(cb_opcode code, const cb_shape *q, const cb_shape *v,
                                         cb_dtype dtype, bool has_mask, bool drops);

#endif
