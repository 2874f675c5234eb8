/* threading.h: what the functions of records are written in, for kern_executor.c: the type that
 * they compute with, and how one goes on to the next. */
#ifndef CB_EXEC_THREADING_H
#define CB_EXEC_THREADING_H

#include "record.h"
#include "scalar.h"
#include "vector_wide.h"

/* kern_wide.c includes kern_executor.c with CB_X_WIDE set: then it is about f64. */
#ifdef CB_X_WIDE
#define REAL double
#define KEY int64_t
#define KEY_MAX INT64_MAX
#define KEY_MIN INT64_MIN
#define KEY_INFINITY 0x7FF0000000000000
#define LANES CB_WW
#define VM(name) vd_##name
#define FIELD(name) name##64
#define MATH(name) cb_##name##_f64
#define PUSH cb_x_push64
typedef VD VEC;
typedef VDI INT;
typedef VDB BYTES;
#else
#define REAL float
#define KEY int32_t
#define KEY_MAX INT32_MAX
#define KEY_MIN INT32_MIN
#define KEY_INFINITY 0x7F800000
#define LANES CB_VW
#define VM(name) vm_##name
#define FIELD(name) name
#define MATH(name) cb_##name##_f32
#define PUSH cb_x_push
typedef V VEC;
typedef VI INT;
typedef VB BYTES;
#endif

#define NV 4 /* vectors in a virtual register */
#define STEP (NV * LANES)
#define SIZE ((int64_t)sizeof(REAL))

/* ---- the calling convention ------------------------------------------------------------------ */

#if !defined(CB_X_CALLS) && (!defined(__x86_64__) || defined(_WIN32) || !defined(__OPTIMIZE__) || \
                             defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||     \
                             defined(CB_SANITIZED) || defined(CB_PROFILE))
#define CB_X_CALLS 1
#endif

#ifndef CB_X_CALLS

#define ARGS                                                                                     \
    cb_x_context *c, const cb_record *s, int64_t i, VEC v00, VEC v01, VEC v02, VEC v03, VEC v10, \
        VEC v11, VEC v12, VEC v13
typedef void (*op_fn)(ARGS);
#if defined(__clang__)
#define JUMP __attribute__((musttail)) return
#else
#define JUMP return
#endif
#define GO(record, i) \
    JUMP((op_fn)(record)->fn)(c, (record), (i), v00, v01, v02, v03, v10, v11, v12, v13)
#define TO(function) JUMP function(c, s, i, v00, v01, v02, v03, v10, v11, v12, v13)
#define OP(name) static void name(ARGS)
#define BEGIN
#define NEXT GO(s + 1, i)
#define LOOP_AGAIN GO(c->again, i)
#define FINISH

#else /* registers in the context, one call for each record */

#define ARGS cb_x_context *c, const cb_record *s, int64_t *at
typedef const cb_record *(*op_fn)(ARGS);
#define OP(name) static const cb_record *name(ARGS)
#define REGISTER(d, q) VEC v##d##q = VM(load)(c->FIELD(reg)[d] + q * LANES);
#define KEEP_REGISTER(d, q) VM(store)(c->FIELD(reg)[d] + q * LANES, v##d##q);
/* clang-format off */
#define BEGIN                                                                             \
    int64_t i = *at;                                                                      \
    REGISTER(0, 0) REGISTER(0, 1) REGISTER(0, 2) REGISTER(0, 3)                           \
    REGISTER(1, 0) REGISTER(1, 1) REGISTER(1, 2) REGISTER(1, 3)                           \
    (void)i, (void)v00, (void)v01, (void)v02, (void)v03, (void)v10, (void)v11, (void)v12, \
        (void)v13;
#define LEAVE(record)                                                                   \
    do {                                                                                \
        KEEP_REGISTER(0, 0) KEEP_REGISTER(0, 1) KEEP_REGISTER(0, 2) KEEP_REGISTER(0, 3) \
        KEEP_REGISTER(1, 0) KEEP_REGISTER(1, 1) KEEP_REGISTER(1, 2) KEEP_REGISTER(1, 3) \
        *at = i;                                                                        \
        return (record);                                                                \
    } while (0)
/* clang-format on */
#define TO(function) return function(c, s, at)
#define NEXT LEAVE(s + 1)
#define LOOP_AGAIN LEAVE(c->again)
#define FINISH return NULL

#ifdef CB_PROFILE
static uint64_t ticks_now(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#endif
}

static const cb_record *run_one(cb_x_context *c, const cb_record *s, int64_t *i) {
    cb_record *counted = (cb_record *)(uintptr_t)s; /* records lie in memory of the executor */
    const uint64_t begin = ticks_now();
    const cb_record *next = ((op_fn)s->fn)(c, s, i);
    counted->ticks += ticks_now() - begin;
    counted->count++;
    return next;
}
#else
static const cb_record *run_one(cb_x_context *c, const cb_record *s, int64_t *i) {
    return ((op_fn)s->fn)(c, s, i);
}
#endif

#endif

#endif
