/* alone.h: what an instruction is by itself. Groups of one have neither domain nor part in a
 * program; a backend may run them as it runs groups. */
#ifndef CB_LOWER_ALONE_H
#define CB_LOWER_ALONE_H

#include "program.h"

typedef struct cb_alone {
    cb_domain domain;
    cb_part part; /* NONE: it cannot run as a group */
} cb_alone;

/* An instruction as domains see it. */
cb_shaped cb_shaped_instr(const cb_program *program, const cb_instr *instr);

cb_alone cb_alone_of(const cb_program *program, const cb_instr *instr, cb_fuses_fn fuses);

#endif
