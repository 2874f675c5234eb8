/* null.h: shared by the files of the null driver. Everything here is used under its lock. */
#ifndef NULL_H
#define NULL_H

#include <stdbool.h>

#include "../driver/types.h"
#include "hooks.h"

/* One recorded call. */
typedef struct null_call {
    uint64_t begin_ns, took_ns; /* CLOCK_MONOTONIC, and the time spent in this library */
    const char *entry, *kernel; /* kernel: "" unless this is a launch */
    unsigned grid[3], block[3], shared;
    const void *stream;
    uint64_t address, bytes; /* memory that is allocated, freed, copied or set */
    int result;
} null_call;

/* The call that is running; entries add their details to it. */
extern null_call null_now;
/* Settings that null_set changes. */
typedef struct null_settings {
    int64_t log, memory, capability, version, registers;
} null_settings;
extern null_settings null_device;

/* Limits of the device. */
enum { NULL_MOST_THREADS = 1024, NULL_MOST_BLOCKS = 32 }; /* per block; per multiprocessor */
enum { NULL_THREADS = 2048, NULL_REGISTERS = 65536, NULL_SHARED = 233472 }; /* per multiprocessor */
enum { NULL_BLOCK_SHARED = 49152, NULL_MOST_BLOCK_SHARED = 232448, NULL_SYSTEM_SHARED = 1024 };

/* The primary context, the only one. */
CUcontext null_context(void);

/* answers.c and order.c: the work of each entry. */
#define X(needs, name, parameters, arguments) CUresult null_##name parameters;
#include "../driver/entries.def"
#include "more_entries.def"
#undef X

/* memory.c: addresses without memory behind them. Freed blocks are reused by size. */
typedef struct null_block {
    uint64_t address, bytes;
} null_block;
int null_allocate(uint64_t *address, size_t bytes);
int null_free(uint64_t address);
/* Finds the live block that holds an address; false: none does. */
bool null_find_block(uint64_t address, null_block *out);
uint64_t null_live(void);
uint64_t null_peak(void);
void null_reset_peak(void);

#endif
