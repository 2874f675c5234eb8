/* print.h: prints a group that is ready to run as text for people. */
#ifndef CB_EXEC_PRINT_H
#define CB_EXEC_PRINT_H

#include "prepare.h"

void cb_x_print(const cb_x_fused *f, const cb_program *p, cb_str *out);

#endif
