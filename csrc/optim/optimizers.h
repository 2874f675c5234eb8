/* optimizers.h: the built-in optimizers, with their states and numbers. To add one, declare its
 * constant here and list it in optimizers.c. */
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
extern const cb_optimizer cb_optimizer_lion;          /* m */
extern const cb_optimizer cb_optimizer_adamw_8bit;    /* m, v, m_scale, v_scale */
extern const cb_optimizer cb_optimizer_nadam;         /* m, v; mu_product */
extern const cb_optimizer cb_optimizer_ademamix;      /* m, l, v */
extern const cb_optimizer cb_optimizer_adopt;         /* m, v */
extern const cb_optimizer cb_optimizer_asgd;          /* ax; eta, mu */
extern const cb_optimizer cb_optimizer_rprop;         /* prev, step_size */
extern const cb_optimizer cb_optimizer_schedule_free; /* z, v; weight_sum, lr_max */
extern const cb_optimizer cb_optimizer_muon,
    cb_optimizer_normuon;                   /* m; normuon also has v by rows */
extern const cb_optimizer cb_optimizer_sgd; /* momentum_buffer with momentum */
/* row_var and col_var, or variance for parameters without matrices */
extern const cb_optimizer cb_optimizer_adafactor;
extern const cb_optimizer cb_optimizer_soap; /* m, v; left and right, two square matrices each */

#endif
