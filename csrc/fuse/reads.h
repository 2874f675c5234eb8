/* reads.h: tells which reads are allowed inside one group. It implements the table at the top of
 * domain.h, both for building groups and for checking them. */
#ifndef CB_FUSE_READS_H
#define CB_FUSE_READS_H

#include "domain.h"

/* The kinds of values that an instruction of a group may read. */
typedef enum cb_made {
    CB_MADE_OUTSIDE = 0,
    CB_MADE_FULL, /* one element for each element of the domain */
    CB_MADE_ROW,  /* one per row */
    CB_MADE_ONE,
    CB_MADE_LATE, /* a single value, complete when everything else has run */
    CB_MADE_LAST  /* complete only at the end of the group; no member reads it */
} cb_made;

/* Returns the kind of this output of an instruction; `late`: the instruction reads something
 * LATE. */
cb_made cb_made_by(cb_opcode code, cb_part part, uint32_t output, bool late);
/* True if an instruction may read a value of kind `made` through this view. */
bool cb_may_read(cb_opcode code, cb_part part, uint32_t input, cb_made made, cb_view view);

/* Properties that the parts of a group must share. Start with zeros. */
typedef struct cb_parts {
    bool total, columns, lines;
    bool eights;       /* some op draws random numbers or packs bits, eight at a time */
    bool wide, narrow; /* true if some op computes in f64; true if some op computes in other
                          floats */
} cb_parts;
void cb_parts_add(cb_parts *parts, cb_opcode code, cb_part part);
void cb_parts_add_dtype(cb_parts *parts, cb_dtype dtype); /* adds the dtype of an input or output */
/* True if either all members compute in f64 or none does. */
static inline bool cb_parts_agree(const cb_parts *parts) { return !parts->wide || !parts->narrow; }
bool cb_parts_fit(const cb_parts *parts, const cb_domain *domain);

#endif
