/* form.h: the compiled form of an expression. nodes.c checks the caller's expression, compile.c
 * makes records, step.c runs them over a table. */
#ifndef CB_EXEC_EXPRESSION_FORM_H
#define CB_EXEC_EXPRESSION_FORM_H

#include "../../../optim/optimizer.h"
#include "../executor/phase_code.h"
#include "ops.h"

enum {
    CB_E_NODES = 512, /* maximum number in an expression */
    CB_E_PHASES = 4,  /* maximum: three levels of nested sums, and the update */
    CB_E_ARRAYS = 2 + CB_MAX_STATES
};

typedef struct cb_e_node {
    cb_e_op op;
    uint16_t in[3], n_in;
    uint16_t level; /* depth of nested sums below it */
    bool is_vector; /* true: one number per element; false: one per row */
    bool is_needed;
    double value;
} cb_e_node;

typedef struct cb_e_give { /* copies a number of the row to a number of the records */
    uint16_t node;
    int16_t slot;
} cb_e_give;

typedef struct cb_e_sum {
    uint16_t node;
    int16_t acc;
} cb_e_sum;

/* One pass over the elements of a row. Phase k computes the sums of level k, the last phase the new
 * values; values that several phases need are recomputed, from arrays that have not been written
 * yet. */
typedef struct cb_e_phase {
    cb_x_phase code;
    int n_give, n_sum, n_stream;
    cb_e_give give[CB_R_SCALARS];
    cb_e_sum sum[CB_R_ACCS];
    uint8_t array[CB_R_STREAMS]; /* the array of a stream: 0 is the parameter, 1 the gradient, 2 + k
                                    is state k */
} cb_e_phase;

struct cb_expression {
    cb_optimizer base; /* must be the first member: a step casts it to cb_expression */
    cb_arena arena;    /* also holds this struct */
    const cb_x_table *table;
    int n_node, n_phase, n_number;
    bool reads_size;  /* true: numbers depend on the length of the row */
    cb_e_node *node;  /* [n_node] */
    uint16_t *number; /* [n_number] needed nodes that are numbers, in order */
    uint16_t out[1 + CB_MAX_STATES];
    /* [n_phase] each; those of phase[1] also multiply the gradient by the number of node n_node */
    cb_e_phase *phase[2];
};

#endif
