/* hooks.h: functions for tests that the stand-in exports in addition to the driver API. */
#ifndef SIM_HOOKS_H
#define SIM_HOOKS_H

#include <stddef.h>

#define SIM_EXPORT __attribute__((visibility("default")))

/* Changes a setting. Before cuInit: devices, capability, driver. At any time: memory, addresses,
 * races, unwritten, quiet, approximate, fuel, counts (of launches), failed (the code of a lost
 * context), machine_code (a cubin loads, and its kernels are found; launching them is an error).
 * Returns 0, or -1 if there is no such setting. */
SIM_EXPORT int sim_set(const char *name, long value);
/* Waits for all work, then selects another order of operations, blocks and threads: 0 is program
 * order, 1 is as late as possible and backward, others are random. */
SIM_EXPORT void sim_seed(unsigned seed);
/* Makes the n-th call of an entry from now fail once with a code; n = 0 cancels that. Returns -1 if
 * there is no such entry. */
SIM_EXPORT int sim_fail(const char *entry, int nth, int code);
/* Makes that call return 0 without doing anything, to see what a program does without it. */
SIM_EXPORT int sim_skip(const char *entry, int nth);
/* True if the last failure or skip ordered for the entry has not happened yet. */
SIM_EXPORT int sim_is_due(const char *entry);
/* Makes threads skip, from now on, the barrier, wait, fence or warp operation in this line of a
 * kernel's PTX; a skipped warp operation returns the thread's own value. Line 0 ends that. Returns
 * how often the previous line was skipped. */
SIM_EXPORT unsigned long sim_leave_out(const char *kernel, unsigned line);
/* The work of one launch. sim_counted returns that of the i-th launch since "counts" was set to 1,
 * which clears earlier ones, and the name of its kernel; NULL: there were fewer. */
typedef struct sim_counts_of_launch {
    unsigned long long instructions;  /* issued by all threads, estimated for sm_90 */
    unsigned long long read, written; /* bytes of device memory, in sectors, each counted once */
    unsigned long long again;         /* bytes of sectors that were read again a few times */
} sim_counts_of_launch;
SIM_EXPORT const char *sim_counted(int i, sim_counts_of_launch *counts);
/* Returns and clears the reports since the last call, one line per fault. The length may exceed
 * n. */
SIM_EXPORT size_t sim_reports(char *text, size_t n);
/* Clears a failed context, work that has not run, and captures. */
SIM_EXPORT void sim_recover(void);
/* Returns the bytes of device memory that are allocated now. */
SIM_EXPORT size_t sim_allocated(void);
/* Returns the name of the i-th entry; NULL at the end. */
SIM_EXPORT const char *sim_entry(int i);

#endif
