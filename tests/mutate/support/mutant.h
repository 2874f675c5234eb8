/* mutant.h: switches of mutants (tests/mutate). A source with mutants contains
 *
 *     cb_mutant(17) ? (a <= b) : (a < b)
 *
 * in place of a < b. CUTBACK_MUTANT=17 in the environment selects that mutant; it is read once.
 * CUTBACK_MUTANT_REACHED names a file with one byte per mutant, set to 1 when it is reached. */
#ifndef CB_MUTANT_H
#define CB_MUTANT_H

#include "text/text.h"

int cb_mutant(int number);
/* The headers of emitted kernels, changed if the selected mutant is in one of them. */
const cb_cu_header *cb_mutant_headers(void);
/* A template, changed if the selected mutant is in it. */
const char *cb_mutant_template(const char *text);

#endif
