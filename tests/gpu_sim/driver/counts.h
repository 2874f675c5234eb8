/* counts.h: what launches do, for predictions of their time on a GPU. */
#ifndef SIM_COUNTS_H
#define SIM_COUNTS_H

#include <stdbool.h>
#include <stdint.h>

bool sim_counts(void);
/* Forgets the launches that were counted, and counts others or does not. */
void sim_count_from_now(bool counts);
void sim_count_access(uint64_t address, uint32_t bytes, int access);
void sim_count_launch(const char *kernel, uint64_t halves); /* at its end; half instructions */

#endif
