/* phases.h: puts what was translated into phases, and drops what nobody reads. */
#ifndef CB_MICRO_PHASES_H
#define CB_MICRO_PHASES_H

#include "translation.h"

void cb_t_arrange(cb_translation *x);

#endif
