/* optimizers.h: the optimizers that there are. A new one is a constant here and a row in
 * optimizers.c. */
#ifndef CB_OPTIM_OPTIMIZERS_H
#define CB_OPTIM_OPTIMIZERS_H

#include "optimizer.h"

extern const cb_optimizer cb_optimizer_adam, cb_optimizer_adamw; /* m, v, v_max with amsgrad */
extern const cb_optimizer cb_optimizer_radam;                    /* m, v */
extern const cb_optimizer cb_optimizer_adamax;                   /* m, u */
extern const cb_optimizer cb_optimizer_adagrad;                  /* sum */
extern const cb_optimizer cb_optimizer_adadelta;                 /* square_avg, acc_delta */
/* square_avg, centered grad_avg, and momentum_buffer with momentum */
extern const cb_optimizer cb_optimizer_rmsprop, cb_optimizer_rmsprop_centered;
extern const cb_optimizer cb_optimizer_lion;                       /* m */
extern const cb_optimizer cb_optimizer_adamw_8bit;                 /* m, v, m_scale, v_scale */
extern const cb_optimizer cb_optimizer_nadam;                      /* m, v; mu_product */
extern const cb_optimizer cb_optimizer_ademamix;                   /* m, l, v */
extern const cb_optimizer cb_optimizer_adopt;                      /* m, v */
extern const cb_optimizer cb_optimizer_asgd;                       /* ax; eta, mu */
extern const cb_optimizer cb_optimizer_rprop;                      /* prev, step_size */
extern const cb_optimizer cb_optimizer_schedule_free;              /* z, v; weight_sum, lr_max */
extern const cb_optimizer cb_optimizer_muon, cb_optimizer_normuon; /* m; v, one for each row */
extern const cb_optimizer cb_optimizer_sgd; /* momentum_buffer with momentum */
/* row_var and col_var, or variance */
extern const cb_optimizer cb_optimizer_adafactor;
extern const cb_optimizer cb_optimizer_soap; /* m, v; left and right, two squares each */

#endif
