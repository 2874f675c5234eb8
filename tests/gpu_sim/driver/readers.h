/* readers.h: sets of operations that have read a cell and are not ordered with each other. A cell
 * holds the number of its set. */
#ifndef SIM_READERS_H
#define SIM_READERS_H

#include <stdint.h>

void sim_readers_begin(void); /* called before each operation */
/* Adds a reader and drops those that happened before the running operation, since whatever is
 * ordered after it is ordered after them. 0 is the empty set. */
uint32_t sim_readers_add(uint32_t set, uint32_t stamp);
/* Returns a reader in the set that did not happen before the running operation; 0: none. */
uint32_t sim_readers_unordered(uint32_t set);

#endif
