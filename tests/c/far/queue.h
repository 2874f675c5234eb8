/* queue.h: work queued on streams. Nothing runs until somebody waits for a stream, and then only
 * the work that this stream needs. Work on another stream that no event orders before it therefore
 * always comes too late. */
#ifndef CB_TESTS_FAR_QUEUE_H
#define CB_TESTS_FAR_QUEUE_H

#include "far.h"

typedef struct far_event {
    const cb_stream *stream; /* where it was last recorded */
    uint64_t number;         /* number of the last work before it; 0: never recorded */
    double at;               /* when it was reached */
} far_event;

typedef enum far_kind { FAR_COPY = 0, FAR_RECORD, FAR_WAIT, FAR_RUN } far_kind;

typedef struct far_work {
    far_kind kind;
    const cb_stream *stream;
    uint64_t number; /* 1, 2, ... in the order of queueing; 0: done */
    /* FAR_COPY */
    void *to;
    const void *from;
    size_t bytes;
    /* FAR_RECORD; FAR_WAIT: the event's position when the wait was queued */
    far_event *event;
    const cb_stream *until_stream;
    uint64_t until;
    /* FAR_RUN */
    void (*run)(void *executable, uint32_t slot);
    void *executable;
    uint32_t slot;
} far_work;

#define FAR_WORK_MOST 256

typedef struct far_queue {
    far_work work[FAR_WORK_MOST]; /* a ring with the work numbered done + 1 .. put */
    uint64_t done, put;
} far_queue;

/* If the queue is full, all waiting work runs first. The caller sets every field but the number. */
void far_put(far_queue *q, far_work work);
void far_do(far_queue *q,
            const cb_stream *stream); /* also does the work that the stream waits for */
void far_do_all(far_queue *q);

#endif
