/* reads.h: who may read what inside one group: the table at the top of domain.h as functions, for
 * the one who builds groups and the one who checks them. */
#ifndef CB_FUSE_READS_H
#define CB_FUSE_READS_H

#include "domain.h"

/* A value, as the group at hand knows it. */
typedef enum cb_made {
    CB_MADE_OUTSIDE = 0,
    CB_MADE_FULL, /* an element for each of the domain */
    CB_MADE_ROW,  /* one a row */
    CB_MADE_ONE,
    CB_MADE_LATE, /* one, complete when everything else has run */
    CB_MADE_LAST  /* complete with the group: nothing in it reads this */
} cb_made;

/* What this output of an instruction is; `late`: the instruction reads something LATE. */
cb_made cb_made_by(cb_opcode code, cb_part part, uint32_t output, bool late);
/* Whether an instruction may read such a value through such a view. */
bool cb_may_read(cb_opcode code, cb_part part, uint32_t input, cb_made made, cb_view view);

/* What the parts of a group must agree on. Start with zeros. */
typedef struct cb_parts {
    bool total, columns, lines, draws;
    bool wide, narrow; /* f64; other floats */
} cb_parts;
void cb_parts_add(cb_parts *parts, cb_opcode code, cb_part part);
void cb_parts_add_dtype(cb_parts *parts, cb_dtype dtype); /* of an input or output */
/* All compute in f64, or none does. */
static inline bool cb_parts_agree(const cb_parts *parts) { return !parts->wide || !parts->narrow; }
bool cb_parts_fit(const cb_parts *parts, const cb_domain *domain);

#endif
