/* domain.h: the common domain of the instructions of one group. A group runs over `count` elements
 * in row-major order; if one of its instructions reduces rows or columns, the elements are count /
 * columns rows of `columns` each.
 *
 *     part        shape of its results      what it does in the group
 *     MAP         count elements            element i from element i of each input; unpack_bits,
 *                                           from bit i
 *     ROW_WISE    count elements            softmax, norms and their gradients: a row from a row;
 *                                           also the gradients of ROWS that take an index
 *     ROWS        one per row               sum, mean, amax, amin over the columns; cross-entropy;
 *                                           gather of one element of each row
 *     ROW_MAP     one per row               pointwise on values with one per row
 *     COLUMNS     one per column            sum, mean over the rows
 *     TOTAL       one                       sum, mean over everything
 *     ONE         one                       pointwise on single values
 *     BITS        one byte for each eight   pack_bits: bit i from element i
 *     PIECES      one per piece of row      sum, mean over even pieces of each row, of whole
 *                                           lanes and at most one leaf (micro/sums.h)
 *     ODD_PIECES  one per piece of row      sum, mean over other even pieces
 *     ACROSS      one per row               sum, mean, amax, amin over strided rows
 *     LINES       one per line              sum, mean over adjacent strided rows
 *
 * Members of a group read its values in the order in which they were made: SAME if a value has
 * count elements, ROW if it has one per row (repeated along the row, or by a ROW_MAP), ONE if it is
 * a single element. COLUMNS and TOTAL are complete only when the group is. ONE instructions may
 * read a total, and then run after all others. No other instruction reads COLUMNS, TOTAL, BITS,
 * PIECES, ODD_PIECES or LINES.
 *
 * Rows are strided if the group reduces an inner axis. Then `inner` rows are adjacent in memory, so
 * that element c of row r is element (r / inner * columns + c) * inner + r % inner of the domain,
 * and only MAP, ACROSS, ROW_MAP, LINES, TOTAL and ONE are parts. A line is the `inner` elements at
 * one c. Inputs from outside are read in any way. There are at least two rows, so that a value with
 * one element per row differs from a single element.
 *
 * Nothing here depends on the machine that runs the group. */
#ifndef CB_FUSE_DOMAIN_H
#define CB_FUSE_DOMAIN_H

#include "../ir/op.h"

/* Rows shorter than CB_ROW_MIN cost more than they save. Sums over rows longer than CB_ROW_MAX are
 * cut into segments, which are separate tasks; CB_ROWS_ENOUGH rows are enough tasks, so they may be
 * longer. Ops that index into rows join only rows of at least CB_ROW_INDEXED elements, because such
 * rows run one by one. */
#define CB_ROW_MIN 4
#define CB_ROW_INDEXED 32
#define CB_ROW_MAX ((int64_t)1 << 16)
#define CB_ROWS_ENOUGH 16
#define CB_ROW_LONGEST ((int64_t)1 << 18)
/* A separate kernel sums shorter pieces of rows faster. Pieces within these limits whose length is
 * a power of two are whole lanes of one leaf. */
#define CB_PIECE_MIN 16
#define CB_PIECE_WHOLE 64
#define CB_PIECE_MAX 1024
/* Strided rows are computed in parallel, as the lanes of vectors; the tiles of that many lanes
 * limit their length. A sum of all elements or of lines takes whole lines, whose tiles have at most
 * CB_LINES_MAX elements. */
#define CB_INNER_MIN 4
#define CB_INNER_WIDE 24 /* fewer rows must have at least CB_ACROSS_LEAST elements together */
#define CB_ACROSS_LEAST 512
#define CB_ACROSS_MIN 4
#define CB_ACROSS_MAX 4096
#define CB_LINES_MAX ((int64_t)1 << 18)

typedef struct cb_domain {
    int64_t count;
    int64_t columns; /* 0: no part has rows */
    int64_t inner;   /* number of adjacent strided rows; 0: rows are contiguous */
} cb_domain;

typedef enum cb_part {
    CB_PART_NONE = 0, /* the op does not belong in a group of this domain */
    CB_PART_MAP,
    CB_PART_ROW_WISE,
    CB_PART_ROWS,
    CB_PART_ROW_MAP,
    CB_PART_COLUMNS,
    CB_PART_TOTAL,
    CB_PART_ONE,
    CB_PART_PIECES,
    CB_PART_ODD_PIECES,
    CB_PART_ACROSS,
    CB_PART_LINES,
    CB_PART_BITS
} cb_part;

/* How an operand maps to a domain. */
typedef enum cb_view {
    CB_VIEW_OTHER = 0, /* any strides */
    CB_VIEW_SAME,      /* element i of the domain is element i of the operand */
    CB_VIEW_ROW,       /* one per row */
    CB_VIEW_COLUMN,    /* one per column, the same in each row */
    CB_VIEW_ONE        /* one element everywhere */
} cb_view;

typedef struct cb_shaped { /* an op and its operands; NULL: no such input */
    cb_opcode code;
    const cb_attrs *attrs;
    const cb_shape *in0, *in1, *out0;
    bool has_one_result; /* no op reads the outputs after the first */
} cb_shaped;

/* Returns the part of an op in this domain. */
cb_part cb_part_of(const cb_shaped *op, const cb_domain *domain);

/* True if an op can join a group with this domain, which it may widen (from single elements) or
 * give rows: then the domain is updated. An empty group has the domain {0, 0}. */
bool cb_domain_join(cb_domain *domain, const cb_shaped *op);

cb_view cb_view_of(const cb_shape *shape, const int64_t *stride, const cb_domain *domain);

#endif
