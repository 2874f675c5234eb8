/* soap.h: Adam steps in a separate basis for each matrix. */
#ifndef CB_OPTIM_SOAP_H
#define CB_OPTIM_SOAP_H

#include "optimizer.h"

typedef struct cb_soap { /* constants of a row's step, computed from its hyper-parameters and t */
    double beta1, beta2, beta, eps, keep, rate;
    bool refreshes; /* the bases are refreshed after the step */
} cb_soap;

typedef cb_soap (*cb_soap_fn)(const double *hyper, const cb_optim_row *row);

/* Makes the step of an optimizer with the states m, v, left and right. The last two consist of two
 * matrices each: the moving average of G G^T or G^T G, and the basis, whose vectors are the
 * rows. */
void cb_step_soap(const cb_optim_table *table, cb_threads *pool, cb_soap_fn of);
size_t cb_soap_scratch(const cb_optimizer *o, const double *hyper, const cb_optim_row *rows,
                       uint32_t n_rows);

#endif
