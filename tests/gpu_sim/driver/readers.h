/* readers.h: sets of operations that have read a cell and are in no order with each other. A cell
 * holds a number for its set. */
#ifndef SIM_READERS_H
#define SIM_READERS_H

#include <stdint.h>

void sim_readers_begin(void); /* before each operation */
/* The set with a further reader, and without those that happened before the operation that runs:
 * who comes in order after that one comes in order after them. 0 is the empty set. */
uint32_t sim_readers_add(uint32_t set, uint32_t stamp);
/* A reader in the set that did not happen before the operation that runs; 0: there is none. */
uint32_t sim_readers_unordered(uint32_t set);

#endif
