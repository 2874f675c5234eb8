/* compile.h: compiles PTX to a shared object that the system can load. */
#ifndef SIM_COMPILE_H
#define SIM_COMPILE_H

#include "types.h"

/* Translates and compiles, unless it is cached. Opens the result into *library (dlopen). */
sim_result sim_compile(const char *ptx, void **library);

#endif
