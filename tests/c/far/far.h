/* far.h: a test-only backend whose memory the host cannot touch.
 *
 * It imitates a device: its blocks fault when the host reads or writes them, and work queued on a
 * stream runs only when somebody waits for that stream. Code that treats a backend's memory as its
 * own, reads a result too early or does not order streams therefore fails on any machine. Its
 * kernels are the cpu backend's.
 *
 * A program that links list.c runs on it unless it names another backend. */
#ifndef CB_TESTS_FAR_H
#define CB_TESTS_FAR_H

#include "exec/backend.h"

extern const cb_backend cb_backend_far;
extern const cb_backend cb_backend_far256; /* aligns buffers to 256 bytes; has no optimizers */

/* Any non-zero number names a stream. */
static inline cb_stream *far_stream(uintptr_t number) { return (cb_stream *)number; }

#endif
