/* Work is numbered in the order it is queued, so an event is a stream and a number, and waiting for
 * it means running that stream's work up to the number. A wait only recurses into work queued
 * before it, so the recursion ends. */
#include "queue.h"

#include <string.h>

#include "exec/host.h"

static far_work *at(far_queue *q, uint64_t number) { return &q->work[number % FAR_WORK_MOST]; }

static void do_until(far_queue *q, const cb_stream *stream, uint64_t last);

static void do_one(far_queue *q, far_work *w) {
    w->number = 0;
    switch (w->kind) {
        case FAR_COPY: memcpy(w->to, w->from, w->bytes); break;
        case FAR_RECORD: w->event->at = cb_host_clock(); break;
        case FAR_WAIT: do_until(q, w->until_stream, w->until); break;
        case FAR_RUN: w->run(w->executable, w->slot); break;
    }
}

static void do_until(far_queue *q, const cb_stream *stream, uint64_t last) {
    for (uint64_t n = q->done + 1; n <= last && n <= q->put; n++) {
        far_work *w = at(q, n);
        if (w->number == n && w->stream == stream) do_one(q, w);
    }
}

static void forget_done(far_queue *q) {
    while (q->done < q->put && at(q, q->done + 1)->number == 0) q->done++;
}

void far_do(far_queue *q, const cb_stream *stream) {
    do_until(q, stream, q->put);
    forget_done(q);
}

void far_do_all(far_queue *q) {
    for (uint64_t n = q->done + 1; n <= q->put; n++) {
        if (at(q, n)->number == n) do_one(q, at(q, n));
    }
    forget_done(q);
}

void far_put(far_queue *q, far_work work) {
    if (q->put - q->done == FAR_WORK_MOST) far_do_all(q);
    work.number = ++q->put;
    *at(q, work.number) = work;
    if (work.kind == FAR_RECORD) {
        work.event->stream = work.stream;
        work.event->number = work.number;
    }
}
