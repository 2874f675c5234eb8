/* far.h: a backend for tests alone, with memory that the host cannot touch.
 *
 * It stands for a device: what it hands out faults when the host reads or writes it, and work that
 * is put on a stream is done when somebody waits for that stream, not before. So a place that still
 * takes a backend's memory for its own, reads a result too early or orders no streams fails in a
 * test on any machine. Its kernels are the cpu backend's.
 *
 * A program that links list.c runs on it unless it names another backend. */
#ifndef CB_TESTS_FAR_H
#define CB_TESTS_FAR_H

#include "exec/backend.h"

extern const cb_backend cb_backend_far;
extern const cb_backend cb_backend_far256; /* buffers aligned to 256 bytes; no optimizers */

/* Any number but 0 names a stream. */
static inline cb_stream *far_stream(uintptr_t number) { return (cb_stream *)number; }

#endif
