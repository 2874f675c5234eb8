/* threading.h: macros for the functions of records in kern_executor.c: their compute type, and the
 * jump from one to the next. */
#ifndef CB_EXEC_THREADING_H
#define CB_EXEC_THREADING_H

#include "record.h"
#include "scalar.h"
#include "vector_wide.h"

/* kern_wide.c includes kern_executor.c with CB_X_WIDE set, for f64. */
#ifdef CB_X_WIDE
#define EX_REAL double
#define EX_KEY int64_t
#define EX_KEY_MAX INT64_MAX
#define EX_KEY_MIN INT64_MIN
#define EX_KEY_INFINITY 0x7FF0000000000000
#define EX_LANES CB_WW
#define EX_VM(name) vd_##name
#define EX_FIELD(name) name##64
#define EX_MATH(name) cb_##name##_f64
#define EX_PUSH cb_x_push64
#define EX_ADD_LANES cb_fold_f64_add
typedef VD VEC;
typedef VDI INT;
typedef VDB BYTES;
#else
#define EX_REAL float
#define EX_KEY int32_t
#define EX_KEY_MAX INT32_MAX
#define EX_KEY_MIN INT32_MIN
#define EX_KEY_INFINITY 0x7F800000
#define EX_LANES CB_VW
#define EX_VM(name) vm_##name
#define EX_FIELD(name) name
#define EX_MATH(name) cb_##name##_f32
#define EX_PUSH cb_x_push
#define EX_ADD_LANES cb_fold_f32_add
typedef V VEC;
typedef VI INT;
typedef VB BYTES;
#endif

#define EX_VECTORS 4 /* vectors in a virtual register */
#define EX_STEP (EX_VECTORS * EX_LANES)
#define EX_SIZE ((int64_t)sizeof(EX_REAL))

/* ---- the calling convention ------------------------------------------------------------------ */

#if !defined(CB_X_CALLS) && (!defined(__x86_64__) || defined(_WIN32) || !defined(__OPTIMIZE__) || \
                             defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) ||     \
                             defined(CB_SANITIZED) || defined(CB_PROFILE))
#define CB_X_CALLS 1
#endif

#ifndef CB_X_CALLS

#define EX_ARGS                                                                                  \
    cb_x_context *c, const cb_record *s, int64_t i, VEC v00, VEC v01, VEC v02, VEC v03, VEC v10, \
        VEC v11, VEC v12, VEC v13
typedef void (*op_fn)(EX_ARGS);
#if defined(__clang__)
#define EX_JUMP __attribute__((musttail)) return
#else
#define EX_JUMP return
#endif
#define EX_GO(record, i) \
    EX_JUMP((op_fn)(record)->fn)(c, (record), (i), v00, v01, v02, v03, v10, v11, v12, v13)
#define EX_TO(function) EX_JUMP function(c, s, i, v00, v01, v02, v03, v10, v11, v12, v13)
#define EX_OP(name) static void name(EX_ARGS)
#define EX_BEGIN
#define EX_NEXT EX_GO(s + 1, i)
#define EX_LOOP_AGAIN EX_GO(c->again, i)
#define EX_FINISH

#else /* the registers are in the context, and each record is a call */

#define EX_ARGS cb_x_context *c, const cb_record *s, int64_t *at
typedef const cb_record *(*op_fn)(EX_ARGS);
#define EX_OP(name) static const cb_record *name(EX_ARGS)
#define EX_REGISTER(d, q) VEC v##d##q = EX_VM(load)(c->EX_FIELD(reg)[d] + q * EX_LANES);
#define EX_KEEP_REGISTER(d, q) EX_VM(store)(c->EX_FIELD(reg)[d] + q * EX_LANES, v##d##q);
/* clang-format off */
#define EX_BEGIN                                                                          \
    int64_t i = *at;                                                                      \
    EX_REGISTER(0, 0) EX_REGISTER(0, 1)                                                   \
    EX_REGISTER(0, 2) EX_REGISTER(0, 3)                                                   \
    EX_REGISTER(1, 0) EX_REGISTER(1, 1)                                                   \
    EX_REGISTER(1, 2) EX_REGISTER(1, 3)                                                   \
    (void)i, (void)v00, (void)v01, (void)v02, (void)v03, (void)v10, (void)v11, (void)v12, \
        (void)v13;
#define EX_LEAVE(record)                                                                  \
    do {                                                                                  \
        EX_KEEP_REGISTER(0, 0) EX_KEEP_REGISTER(0, 1)                                     \
        EX_KEEP_REGISTER(0, 2) EX_KEEP_REGISTER(0, 3)                                     \
        EX_KEEP_REGISTER(1, 0) EX_KEEP_REGISTER(1, 1)                                     \
        EX_KEEP_REGISTER(1, 2) EX_KEEP_REGISTER(1, 3)                                     \
        *at = i;                                                                          \
        return (record);                                                                  \
    } while (0)
/* clang-format on */
#define EX_TO(function) return function(c, s, at)
#define EX_NEXT EX_LEAVE(s + 1)
#define EX_LOOP_AGAIN EX_LEAVE(c->again)
#define EX_FINISH return NULL

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
    cb_record *counted = (cb_record *)(uintptr_t)s; /* the executor owns the records, so they may be
                                                       written */
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
