/* soap.h: Adam's step in a basis that each matrix has of its own. */
#ifndef CB_OPTIM_SOAP_H
#define CB_OPTIM_SOAP_H

#include "optimizer.h"

typedef struct cb_soap { /* what a row asks for, made of its hyper-parameters and t */
    double beta1, beta2, beta, eps, keep, rate;
    bool refreshes; /* the bases, after the step */
} cb_soap;

typedef cb_soap (*cb_soap_fn)(const double *hyper, const cb_optim_row *row);

/* The step of an optimizer with the states m, v, left and right. The latter are two matrices each:
 * the mean of products, and the basis, its vectors the rows. */
void cb_step_soap(const cb_optim_table *table, cb_threads *pool, cb_soap_fn of);
size_t cb_soap_scratch(const cb_optimizer *o, const double *hyper, const cb_optim_row *rows,
                       uint32_t n_rows);

#endif
