/* hooks.h: functions that the null driver exports in addition to the driver API. */
#ifndef NULL_HOOKS_H
#define NULL_HOOKS_H

#include <stdint.h>

#define NULL_EXPORT __attribute__((visibility("default")))

/* Changes a setting: "log" (1: calls are recorded, 0: only counted), "memory" (bytes of the
 * device), "capability" (90), "version" (of CUDA, 13000), "registers" (of every kernel). Returns -1
 * if there is no such setting. */
NULL_EXPORT int null_set(const char *name, int64_t value);
/* Returns the name of the i-th entry of the API; NULL at the end. */
NULL_EXPORT const char *null_entry(int i);
/* Returns the calls of an entry since null_clear, under its exported name ("cuMemAlloc_v2"). -1: no
 * such entry. */
NULL_EXPORT int64_t null_calls(const char *entry);
/* Returns the nanoseconds that calls spent in this library since null_clear; counted while the log
 * is on. */
NULL_EXPORT uint64_t null_nanoseconds(void);
NULL_EXPORT uint64_t null_live_bytes(void);
/* Returns the largest number of live bytes since null_clear. */
NULL_EXPORT uint64_t null_peak_bytes(void);
/* Empties the log, sets all counts to zero and the peak to the bytes that are live. */
NULL_EXPORT void null_clear(void);
/* Writes the log: a header, then one tab-separated line per call. Returns -1 if the file cannot be
 * written. */
NULL_EXPORT int null_dump(const char *path);

#endif
