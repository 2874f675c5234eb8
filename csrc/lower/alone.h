/* alone.h: the part of an instruction in a group of one. A program stores neither domain nor part
 * for these; a backend may run them like larger groups. */
#ifndef CB_LOWER_ALONE_H
#define CB_LOWER_ALONE_H

#include "program.h"

typedef struct cb_alone {
    cb_domain domain;
    cb_part part; /* NONE: the instruction cannot run as a group */
} cb_alone;

/* Converts an instruction to the form that domain.h uses. */
cb_shaped cb_shaped_instr(const cb_program *program, const cb_instr *instr);

cb_alone cb_alone_of(const cb_program *program, const cb_instr *instr, cb_fuses_fn fuses);

#endif
