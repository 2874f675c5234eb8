/* verify_updates.h: checks a program whose updates come inside its runs. */
#ifndef CB_LOWER_VERIFY_UPDATES_H
#define CB_LOWER_VERIFY_UPDATES_H

#include "program.h"

/* Checks that nothing reads a parameter after its update, and that nothing can fail after the first
 * update. */
CB_MUST_CHECK cb_status cb_verify_inner_updates(const cb_program *p, cb_error *err);

#endif
