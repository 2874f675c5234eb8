/* fiber.h: stacks that take turns on one thread of the system. */
#ifndef SIM_FIBER_H
#define SIM_FIBER_H

#include <stddef.h>

/* Leaves this stack, whose pointer it puts into *save, for another; returns when somebody switches
 * back. */
void sim_switch(void **save, void *to);
/* The pointer of a fresh stack of n bytes, which begins with `run`; `run` must not return. */
void *sim_stack(char *memory, size_t n, void (*run)(void));

#endif
