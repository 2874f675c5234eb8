/* decompose.h: turns a group of a program into microcode. */
#ifndef CB_MICRO_DECOMPOSE_H
#define CB_MICRO_DECOMPOSE_H

#include "microcode.h"

/* Makes the microcode of a group; its tables are in `room`. CB_UNSUPPORTED: the group is too large
 * for the tables or the backend's `limits`, so its ops must run one by one. */
CB_MUST_CHECK cb_status cb_microcode_of(const cb_program *program, uint32_t group,
                                        const cb_x_limits *limits, cb_x_room *room,
                                        cb_microcode *out, cb_error *err);
/* Copies the tables that a run needs into `memory`. Operations (`micro`) are not kept. */
CB_MUST_CHECK cb_status cb_microcode_keep(cb_microcode *m, cb_arena *memory, cb_error *err);

#endif
