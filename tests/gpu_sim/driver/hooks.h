/* hooks.h: what the stand-in exports beside the driver API, for tests. */
#ifndef SIM_HOOKS_H
#define SIM_HOOKS_H

#include <stddef.h>

#define SIM_EXPORT __attribute__((visibility("default")))

/* Before cuInit: devices, capability, driver. At any time: memory, addresses, races, unwritten,
 * quiet, approximate, fuel, counts (of launches), failed (the code of a lost context), machine_code
 * (a cubin loads, and its kernels are found; launching them is an error). 0, or -1: there is no
 * such setting. */
SIM_EXPORT int sim_set(const char *name, long value);
/* Waits for all work, and starts another order of operations, blocks and threads: 0 in the order of
 * the program, 1 as late as possible and backward, others at random. */
SIM_EXPORT void sim_seed(unsigned seed);
/* Lets the n-th call of an entry from now on fail with a code, once; n = 0 withdraws it. -1: no
 * such entry. */
SIM_EXPORT int sim_fail(const char *entry, int nth, int code);
/* Lets it answer 0 and do nothing: what a program does without that call. */
SIM_EXPORT int sim_skip(const char *entry, int nth);
/* Whether what was ordered last for the entry has not happened yet. */
SIM_EXPORT int sim_is_due(const char *entry);
/* From now on threads do not meet, wait or fence in this line of a kernel's PTX: a barrier, fence,
 * wait for copies, or warp operation, which gives the thread its own value. Line 0 ends that. How
 * often the one before was left out. */
SIM_EXPORT unsigned long sim_leave_out(const char *kernel, unsigned line);
/* What the i-th launch since "counts" was set to 1, which forgets those before, has done. The name
 * of its kernel; NULL: there were fewer. */
typedef struct sim_counts_of_launch {
    unsigned long long instructions;  /* of sm_90, about, that its threads have issued together */
    unsigned long long read, written; /* bytes of device memory, in sectors, each counted once */
    unsigned long long again;         /* bytes of sectors that were read a few times more */
} sim_counts_of_launch;
SIM_EXPORT const char *sim_counted(int i, sim_counts_of_launch *counts);
/* Takes what was reported since the last call: a line for each fault. The length, which may exceed
 * n. */
SIM_EXPORT size_t sim_reports(char *text, size_t n);
/* Forgets a failed context, work that did not run, and captures. */
SIM_EXPORT void sim_recover(void);
/* Bytes of device memory that are allocated now. */
SIM_EXPORT size_t sim_allocated(void);
/* The name of the i-th entry; NULL at the end. */
SIM_EXPORT const char *sim_entry(int i);

#endif
