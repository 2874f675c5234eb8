/* form.h: shared by the text form and the JSON form of a graph: words for enums, and conversion of
 * a parsed op to an op of the graph. */
#ifndef CB_IR_FORM_H
#define CB_IR_FORM_H

#include "graph.h"
#include "infer.h"

#define CB_FORM_NAME "cutback.graph"
#define CB_FORM_VERSION 1

/* A closed set of words; the word of value k is word[k]. */
typedef struct cb_words {
    const char *what; /* name of the set, for errors */
    const char *const *word;
    uint32_t n;
} cb_words;
extern const cb_words cb_role_words;        /* "data" "param" "tangent" "state" */
extern const cb_words cb_phase_words;       /* "forward" "backward" */
extern const cb_words cb_constraint_words;  /* "free" "must_save" ... */
extern const cb_words cb_output_kind_words; /* "result" "state" "grad" */
CB_MUST_CHECK cb_status cb_word_find(const cb_words *set, const char *text, size_t length,
                                     uint32_t *out, cb_error *err);

/* A parsed op. The stated types of outputs must equal the result of the shape rule. */
typedef struct cb_op_form {
    cb_opcode code;
    cb_attrs attrs;
    uint32_t seen; /* bit k: attribute k of the op's row was given */
    uint32_t n_out;
    cb_dtype dtype[CB_MAX_OUTS];
    cb_shape shape[CB_MAX_OUTS];
    uint32_t location, name, region, origin;
    uint32_t phase, constraint;
} cb_op_form;

#define CB_OP_FORM_EMPTY \
    ((cb_op_form){.location = CB_NONE, .name = CB_NONE, .region = CB_NONE, .origin = CB_NONE})

/* Finds attribute `name` and marks it as seen. Unknown and repeated ones are errors. */
CB_MUST_CHECK cb_status cb_form_attr(cb_op_form *form, const char *name, size_t length,
                                     cb_attr_slot *slot, cb_error *err);
/* Ops without inputs take shape and dtype from the type of their output, so these are not written
 * as attributes. */
bool cb_form_is_implied(cb_opcode code, const cb_attr_slot *slot);
/* Appends a parsed op after checking its attributes and the types of its outputs. */
CB_MUST_CHECK cb_status cb_form_append(cb_graph *g, cb_op_form *form, uint32_t n_ins,
                                       const cb_value_id *ins, cb_error *err);
/* Resets the attributes that the last op left for later ops, which are not part of the file. */
void cb_form_reset_current(cb_graph *g);

#endif
