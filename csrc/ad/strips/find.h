/* find.h: finds strips. A strip is a chain of ops that are independent along rows. It runs piece by
 * piece, so that the wide values between its narrow ends never exist whole:
 *
 *     logits = matmul(h, w)              h_i = slice(h, rows of piece i)
 *     nll, lse = cross_entropy(logits)   logits_i = matmul(h_i, w)      for each piece i
 *                                        nll_i, lse_i = cross_entropy(logits_i)
 *                                        nll = concat(nll_i ..)
 *
 * A strip ends with a cross entropy, or with a product whose result is at most half as wide as its
 * rows; it begins with the products that make them wide. Between them are pointwise ops, norms and
 * reductions of rows. Where pieces begin depends only on the number of rows: at multiples of
 * CB_PIECE_ROWS, at which our own product may be cut along its inner axis without changing bits
 * (exec/cpu/gemm/kern_matmul.c). The order of all sums is therefore the same under every budget.
 *
 * The pieces are in reverse order, last rows first. So the backward visits the first rows first,
 * and sums of gradients start with them, as in a whole product. */
#ifndef CB_AD_STRIPS_FIND_H
#define CB_AD_STRIPS_FIND_H

#include "../../base/bitset.h"
#include "../../ir/graph.h"

enum { CB_PIECE_ROWS = 256, CB_MAX_PIECES = 8 };

typedef struct cb_strip {
    cb_op_id end;  /* the op whose outputs leave the strip; in the given graph */
    cb_bitset ops; /* ops of the given graph, with `end` */
    int64_t rows;
    uint32_t n_pieces;
    /* In the new graph, piece k consists of the ops first[k] .. first[k + 1] - 1. */
    cb_op_id first[CB_MAX_PIECES + 1];
} cb_strip;

/* A cross entropy or a narrowing product of the given graph that stays whole. */
typedef struct cb_whole {
    cb_op_id op;
    const char *reason;
} cb_whole;

typedef struct cb_strips {
    CB_VEC(cb_strip) strips; /* by `end` */
    CB_VEC(cb_whole) wholes; /* by `op` */
} cb_strips;

/* Finds the strips of a forward graph. */
CB_MUST_CHECK cb_status cb_strips_find(const cb_graph *g, cb_arena *arena, cb_strips *out,
                                       cb_error *err);
/* Returns the first row of a piece; for piece n_pieces, `rows`. */
int64_t cb_piece_begins(int64_t rows, uint32_t n_pieces, uint32_t piece);

/* Returns the number of leading axes whose product is `rows`; -1: there are none. */
int32_t cb_leading_axes(const cb_shape *s, int64_t rows);
/* False for an input that every row needs, such as the right side of a product. */
bool cb_reads_rows(cb_opcode code, uint32_t input);

#endif
