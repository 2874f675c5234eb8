/* optimizers.h: the optimizers that there are. A new one is a constant here and a row in
 * optimizers.c. */
#ifndef CB_OPTIM_OPTIMIZERS_H
#define CB_OPTIM_OPTIMIZERS_H

#include "optimizer.h"

extern const cb_optimizer cb_optimizer_adam, cb_optimizer_adamw; /* m, v, v_max with amsgrad */
extern const cb_optimizer cb_optimizer_sgd;                      /* momentum_buffer with momentum */

#endif
