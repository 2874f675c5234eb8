/* decompose.h: a group of a program becomes microcode. */
#ifndef CB_MICRO_DECOMPOSE_H
#define CB_MICRO_DECOMPOSE_H

#include "microcode.h"

/* Its tables are in `room`. CB_UNSUPPORTED: the group is too large for them, or for
 * the backend's `limits`; its ops run one by one. */
CB_MUST_CHECK cb_status cb_microcode_of(const cb_program *program, uint32_t group,
                                        const cb_x_limits *limits, cb_x_room *room,
                                        cb_microcode *out, cb_error *err);
/* Moves what a run needs into `memory`. */
CB_MUST_CHECK cb_status cb_microcode_keep(cb_microcode *m, cb_arena *memory, cb_error *err);

#endif
