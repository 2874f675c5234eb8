/* queue.h: work that waits on streams. Nothing is done before somebody waits for it, and then only
 * what the stream that is waited for needs: what is put on another one without an event between
 * them comes too late, every time. */
#ifndef CB_TESTS_FAR_QUEUE_H
#define CB_TESTS_FAR_QUEUE_H

#include "far.h"

typedef struct far_event {
    const cb_stream *stream; /* where it was recorded last */
    uint64_t number;         /* of the work that reaches it; 0: never recorded */
    double at;               /* when it was reached */
} far_event;

typedef enum far_kind { FAR_COPY = 0, FAR_RECORD, FAR_WAIT, FAR_RUN } far_kind;

typedef struct far_work {
    far_kind kind;
    const cb_stream *stream;
    uint64_t number; /* 1, 2, ...: the order in which work was put; 0: done */
    /* FAR_COPY */
    void *to;
    const void *from;
    size_t bytes;
    /* FAR_RECORD; FAR_WAIT: where the event was when the wait was put */
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
    far_work work[FAR_WORK_MOST]; /* a ring: those of numbers done + 1 .. put */
    uint64_t done, put;
} far_queue;

/* Where there is no room, all that waits is done first. Fields but the number are the caller's. */
void far_put(far_queue *q, far_work work);
void far_do(far_queue *q, const cb_stream *stream); /* and what that waits for */
void far_do_all(far_queue *q);

#endif
