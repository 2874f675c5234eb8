/* check_header.c: compiled but not run if NVIDIA's header is available: it checks that every entry
 * has the header's type and every error its number. */
#define SIM_CUDA_H
#include "types.h"
#if __has_include(<cudaProfiler.h>)
#include <cudaProfiler.h>
#else
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);
#endif

#define X(needs, name, parameters, arguments)                                               \
    _Static_assert(__builtin_types_compatible_p(__typeof__(&name), CUresult(*) parameters), \
                   #name " has another type");
#include "../null/more_entries.def"
#include "entries.def"
#undef X

#define X(name, code, text) _Static_assert(CUDA_ERROR_##name == code, #name " has another number");
SIM_ERRORS(X)
#undef X
