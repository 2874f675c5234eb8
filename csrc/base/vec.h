/* vec.h: growable arrays in an arena. Growth gives a large old block back to the arena and leaves a
 * small one behind, so an array uses at most twice its final size.
 *
 *     CB_VEC(uint32_t) ids = {0};
 *     if (!CB_PUSH(&arena, ids, 7)) return cb_no_memory(err);
 *     for (size_t i = 0; i < ids.len; i++) use(ids.at[i]);
 */
#ifndef CB_BASE_VEC_H
#define CB_BASE_VEC_H

#include "arena.h"

#define CB_VEC(type) \
    struct {         \
        type *at;    \
        size_t len;  \
        size_t cap;  \
    }

/* Makes room for `extra` more items; false: out of memory. Pointers to items become invalid. */
#define CB_RESERVE(arena, vec, extra)                                                    \
    ((vec).cap - (vec).len >= (size_t)(extra) ||                                         \
     cb_vec_reserve((arena), (void **)&(vec).at, (vec).len, &(vec).cap, (size_t)(extra), \
                    sizeof *(vec).at))

#define CB_PUSH(arena, vec, ...) \
    (CB_RESERVE(arena, vec, 1) ? ((vec).at[(vec).len++] = __VA_ARGS__, true) : false)

bool cb_vec_reserve(cb_arena *arena, void **data, size_t len, size_t *cap, size_t extra,
                    size_t size);

/* A growable string; 0-terminated once something was added. */
typedef struct cb_str {
    cb_arena *arena;
    char *at;
    size_t len;
    size_t cap;
    bool failed; /* set when memory runs out; later additions do nothing. Check it once, at the
                    end */
} cb_str;
void cb_str_init(cb_str *s, cb_arena *arena);
void cb_str_add(cb_str *s, const char *text, size_t length);
void cb_str_addf(cb_str *s, const char *format, ...) CB_PRINTF(2, 3);
/* Copies the text into a block of `alloc` for the caller. */
CB_MUST_CHECK cb_status cb_text_give(cb_alloc *alloc, const cb_str *text, char **out,
                                     cb_error *err);

#endif
