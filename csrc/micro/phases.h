/* phases.h: assigns translated operations to phases and drops dead ones. */
#ifndef CB_MICRO_PHASES_H
#define CB_MICRO_PHASES_H

#include "translation.h"

void cb_t_arrange(cb_translation *x);

#endif
