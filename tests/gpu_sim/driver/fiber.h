/* fiber.h: stacks that take turns on one system thread. */
#ifndef SIM_FIBER_H
#define SIM_FIBER_H

#include <stddef.h>

/* Saves this stack's pointer in *save and switches to another; returns when somebody switches
 * back. */
void sim_switch(void **save, void *to);
/* Returns the pointer of a new stack of n bytes that begins with `run`; `run` must not return. */
void *sim_stack(char *memory, size_t n, void (*run)(void));

#endif
