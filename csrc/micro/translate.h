/* translate.h: translates an instruction and adds it to the tables. */
#ifndef CB_MICRO_TRANSLATE_H
#define CB_MICRO_TRANSLATE_H

#include "translation.h"

void cb_t_instruction(cb_translation *x, uint32_t at, cb_part part);

#endif
