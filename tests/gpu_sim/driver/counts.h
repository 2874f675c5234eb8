/* counts.h: counts the work of launches, to predict their time on a GPU. */
#ifndef SIM_COUNTS_H
#define SIM_COUNTS_H

#include <stdbool.h>
#include <stdint.h>

bool sim_counts(void);
/* Forgets the launches counted so far; counts later ones if `counts`. */
void sim_count_from_now(bool counts);
void sim_count_access(uint64_t address, uint32_t bytes, int access);
/* Called at the end of a launch; `halves` counts half instructions. */
void sim_count_launch(const char *kernel, uint64_t halves);

#endif
