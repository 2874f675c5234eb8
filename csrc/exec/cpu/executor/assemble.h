/* assemble.h: converts microcode to records. */
#ifndef CB_EXEC_ASSEMBLE_H
#define CB_EXEC_ASSEMBLE_H

#include "record.h"

typedef struct cb_x_store { /* the destination of a record's store; stream -1: none */
    int16_t stream;
    int reg;
} cb_x_store;

typedef struct cb_x_code {
    int n, room, n_prefetch; /* prefetches come first */
    cb_record *record;
    cb_x_store *store; /* [room] */
    bool is_full;
} cb_x_code;

/* Appends the records of one phase, its loop and the end. `masked`: for the last elements of a row,
 * of which only those with a set mask count. */
void cb_assemble_phase(const cb_microcode *m, int phase, bool masked, const cb_x_table *table,
                       cb_x_code *code);

/* Returns the accumulators of a kind in a phase: first .. first + n. */
void cb_sums_of(const cb_microcode *m, int phase, cb_x_acc_kind kind, int16_t *first, int16_t *n);

#endif
