/* mutant.h: switches of mutants (tests/mutate). A source with mutants reads
 *
 *     cb_mutant(17) ? (a <= b) : (a < b)
 *
 * where it said a < b. CUTBACK_MUTANT=17 in the environment chooses that one; it is read once.
 * CUTBACK_MUTANT_REACHED names a file of one byte per mutant, which becomes 1 where it is
 * reached. */
#ifndef CB_MUTANT_H
#define CB_MUTANT_H

#include "text/text.h"

int cb_mutant(int number);
/* What emitted kernels include, changed where the chosen mutant is of such a text. */
const cb_cu_header *cb_mutant_headers(void);
/* A template, as the chosen mutant has it. */
const char *cb_mutant_template(const char *text);

#endif
