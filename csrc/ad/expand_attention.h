/* expand_attention.h: attention and its gradient as primitives. */
#ifndef CB_AD_EXPAND_ATTENTION_H
#define CB_AD_EXPAND_ATTENTION_H

#include "vjp.h"

/* `code` is CB_OP_ATTENTION or CB_OP_ATTENTION_BWD; `outs` has room for three values. */
void cb_expand_attention(cb_emit *e, cb_opcode code, const cb_attrs *attrs, uint32_t n_ins,
                         const cb_value_id *ins, cb_value_id *outs);

#endif
