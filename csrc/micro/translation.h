/* translation.h: builds the microcode tables of one group. Used by decompose.c, translate.c and
 * phases.c, and by the compiler of expressions.
 *
 * An operand is a reference to a vector value, a stream or a number. A function that emits an
 * operation returns a reference to its result, and reuses an equal operation if there is one. If a
 * table is full, `is_full` is set, and the whole translation must be discarded. */
#ifndef CB_MICRO_TRANSLATION_H
#define CB_MICRO_TRANSLATION_H

#include "microcode.h"
#include "walk.h"

typedef struct cb_t_name { /* maps a buffer made in the group to its reference */
    cb_space space;
    uint32_t buffer;
    cb_x_ref ref;
} cb_t_name;

typedef struct cb_translation {
    const cb_program *p;
    cb_domain domain;
    cb_microcode *m;
    const cb_x_limits *limits;
    cb_t_name names[CB_X_VALUES];
    int n_name;
    int16_t available[CB_X_SCALARS]; /* phase in which a number can be read; -1: before the first */
    uint8_t when[CB_X_SCALARS];
    bool is_constant[CB_X_SCALARS];
    int16_t phase_of[CB_X_VALUES];
    bool is_full; /* a table was too small */
} cb_translation;

#define CB_T_NOTHING ((cb_x_ref){CB_X_NONE, 0})

void cb_t_lay_out(cb_microcode *m, cb_x_room *room); /* points the tables of `m` to `room` */
cb_x_ref cb_t_number_ref(int16_t id);
cb_dtype cb_t_real(const cb_translation *x); /* the dtype of the arithmetic: f32 or f64 */
int16_t cb_t_add(cb_translation *x, int *n, int limit);
int16_t cb_t_new_scalar(cb_translation *x, int16_t available, uint8_t when);
cb_x_ref cb_t_constant(cb_translation *x, double value);
cb_micro *cb_t_emit(cb_translation *x, cb_x_op op, cb_x_ref a, cb_x_ref b, cb_x_ref c);
bool cb_t_same_ref(cb_x_ref a, cb_x_ref b);
cb_x_ref cb_t_value(cb_translation *x, cb_x_op op, cb_x_ref a, cb_x_ref b, cb_x_ref c);
cb_x_ref cb_t_of_pair(cb_translation *x, cb_x_op op, cb_x_ref a, cb_x_ref *second);
cb_x_ref cb_t_of_two(cb_translation *x, cb_x_op op, cb_x_ref a, cb_x_ref b);
cb_x_ref cb_t_of_one(cb_translation *x, cb_x_op op, cb_x_ref a);
cb_x_ref cb_t_number(cb_translation *x, cb_x_op op, cb_x_ref a, cb_x_ref b, cb_x_ref c);
cb_x_ref cb_t_over_row(cb_translation *x, cb_x_op op, cb_x_ref of);
int16_t cb_t_new_stream(cb_translation *x, cb_x_source source, uint32_t tensor, cb_dtype dtype);
const cb_operand *cb_t_operand(const cb_translation *x, uint32_t tensor);
cb_walk cb_t_walk_of(const cb_operand *o);
bool cb_t_is_whole(const cb_operand *o);
void cb_t_give_name(cb_translation *x, uint32_t tensor, cb_x_ref ref);
cb_x_ref cb_t_filled_with(cb_translation *x, const cb_instr *instr);
cb_x_ref cb_t_times(cb_translation *x, cb_x_ref a, cb_x_ref b);
cb_x_ref cb_t_read_full(cb_translation *x, uint32_t tensor);
/* True if a reference is to a number per line, which only vector operations can read. */
bool cb_t_is_of_line(const cb_translation *x, cb_x_ref ref);
cb_x_ref cb_t_read_number(cb_translation *x, uint32_t tensor, bool is_once);
cb_x_ref cb_t_read_index(cb_translation *x, uint32_t instr, uint32_t input, int64_t ignored);
cb_x_ref cb_t_take(cb_translation *x, cb_x_ref of, cb_x_ref at);
cb_x_ref cb_t_read_column(cb_translation *x, uint32_t tensor);
/* Defines output `tensor` as `ref`, rounded to its dtype. `is_exact`: `ref` needs no rounding. */
void cb_t_give_full(cb_translation *x, uint32_t tensor, cb_x_ref ref, bool is_exact);
void cb_t_give_number(cb_translation *x, uint32_t tensor, cb_x_ref ref, bool is_once,
                      bool is_exact);

#endif
