/* tiles.h: how the kernels that need scratch cut their work. The cut depends only on shapes and
 * dtypes, so results do not depend on the number of threads. Shared by cb_op_workspace (how much
 * scratch) and the kernels (how it is used).
 *
 * Work is divided into tasks. If a task needs scratch, there are `slots` tasks, each with
 * `slot_bytes` of scratch, and each processes every slots-th unit of work. If `slots` is 0, every
 * unit is a task. */
#ifndef CB_EXEC_TILES_H
#define CB_EXEC_TILES_H

#include "../ir/op.h"

#define CB_WORKSPACE_MAX ((uint64_t)4 << 20) /* bytes of scratch an op may have */

/* x[batch,n,k] @ y[batch,k,m]: the output is cut into tiles of rows x columns, and the inner axis
 * is never cut. */
typedef struct cb_matmul_tiles {
    int64_t rows, columns;
    int64_t batches; /* items of the batch in one task */
    int64_t inner;   /* 16-bit types: elements of k that are widened to f32 at a time; otherwise
                        k */
    int64_t slots;
    uint64_t slot_bytes; /* 16-bit types: widened x[rows,inner], y[inner,columns] and the f32 sums
                            [rows,columns] */
} cb_matmul_tiles;
cb_matmul_tiles cb_matmul_tiles_of(int64_t batch, int64_t n, int64_t k, int64_t m, cb_dtype dtype);

/* Convolution as matrix products over im2col. `column` stands for one output pixel of one image. */
typedef struct cb_conv_tiles {
    bool is_direct; /* sums stay in registers over a frame of x (conv/kern_direct.h): `pixels` are
                          whole rows, `window` is whole channels, a unit is a tile and a block of
                          `channels` */
    bool is_pointwise; /* 1x1, stride 1, no padding, large image: x itself is the im2col matrix, no
                          scratch */
    int64_t pixels;    /* output pixels of one image in a tile */
    int64_t images;    /* images in a tile; more than 1 only if `pixels` is a whole image */
    int64_t window;    /* rows of the im2col matrix (elements under a window) at a time */
    int64_t channels;  /* output channels of a group at a time */
    int64_t splits;    /* weight gradient: partial sums over tiles, added in order */
    int64_t slots;
    int64_t frame;         /* direct: elements of a frame, which a slot holds before the sums */
    uint64_t slot_bytes;   /* [window,columns], [channels,columns] and for 16-bit types
                              [channels,window]; direct: a frame and [columns,channels] */
    uint64_t shared_bytes; /* weight gradient: the partial sums, after the slots */
} cb_conv_tiles;
/* Returns the tiles of a convolution. If x, w or y is empty, there are no tiles and no scratch.
 * `code` is CONV2D, CONV2D_DGRAD or CONV2D_WGRAD; x[n,c,h,w], w[o,c/groups,kh,kw], y[n,o,oh,ow]. */
cb_conv_tiles cb_conv2d_tiles(cb_opcode code, const cb_shape *x, const cb_shape *w,
                              const cb_shape *y, const cb_attrs *attrs, cb_dtype dtype);

/* Returns the tiles of the data gradient of stride 1, computed as a convolution of y's gradient
 * with the flipped weights: tiles have pixels of x, `channels` are those of x, the window is over
 * y. If it has no slots, this form does not apply. Kernels may use either cut, so scratch is the
 * larger of the two. */
cb_conv_tiles cb_conv2d_flipped_tiles(const cb_shape *x, const cb_shape *w, const cb_shape *y,
                                      const cb_attrs *attrs, cb_dtype dtype);

/* Limits for the kernels of kern_depthwise.h, for convolutions with one input channel in each group
 * and few outputs. They keep frames on the stack, so they have no tiles and need no scratch. */
#define CB_DEPTHWISE_BYTES ((size_t)64 << 10)
#define CB_DEPTHWISE_SLACK 16 /* elements that may be read beyond a frame or a row */
#define CB_DEPTHWISE_ROW 1024 /* maximum elements of a row */
#define CB_DEPTHWISE_TAPS 128
#define CB_DEPTHWISE_OUTPUTS 4
bool cb_conv2d_is_depthwise(const cb_shape *x, const cb_shape *w, const cb_shape *y,
                            const cb_attrs *attrs, cb_dtype dtype);

/* scatter_add and embedding_bwd add into [outer,rows,inner]; a task owns a block of the
 * destination. */
typedef struct cb_scatter_tiles {
    int64_t outer, rows, inner; /* edges of a block */
    int64_t slots; /* 16-bit types: blocks are summed in f32 in scratch and rounded once */
    uint64_t slot_bytes;
} cb_scatter_tiles;
cb_scatter_tiles cb_scatter_tiles_of(int64_t outer, int64_t rows, int64_t inner, cb_dtype dtype);

/* Return the bytes of scratch for each of the above. */
uint64_t cb_matmul_scratch(const cb_matmul_tiles *t);
uint64_t cb_conv2d_scratch(const cb_conv_tiles *t);
uint64_t cb_scatter_scratch(const cb_scatter_tiles *t);

#endif
