/* prices.h: schedules from minimum cuts under a price for each moment. Internal. */
#ifndef CB_PLAN_PRICES_H
#define CB_PLAN_PRICES_H

#include "trial.h"

typedef struct cb_prices {
    cb_cut *cut;
    cb_trial *trial;
    double
        *price;  /* [n_base] of a byte held while the base op at this position runs, picoseconds */
    double *sum; /* [n_base + 1] running sum of `price` */
    uint64_t
        *first_moment; /* [n_base] most bytes alive at each position when everything is saved */
    double start, lowest, highest; /* first price of a crowded moment, and bounds on all prices */
    double scale;                  /* cut units a picosecond */
    uint32_t *last_forward;        /* [n_storage] position of the last forward use */
    uint32_t *
        earliest; /* [n_storage] first position in the backward that could need it, CB_NONE: none */
    uint32_t *need;       /* [n_storage] first position that needs it in the last schedule */
    bool *unused_forward; /* [n_op] no forward op reads what it makes: running it in the backward
                             costs nothing more */
    cb_pairs pairs;
} cb_prices;

/* After a trial of the save-everything schedule. */
CB_MUST_CHECK cb_status cb_prices_init(cb_prices *z, cb_trial *trial, cb_cut *cut, cb_error *err);
/* `steps` rounds of cut, schedule, and dearer moments where the schedule holds more than `target`
 * bytes. */
CB_MUST_CHECK cb_status cb_prices_aim(cb_prices *z, uint64_t target, int steps, cb_error *err);

#endif
