#include "over.h"
#include "inside.h"
#include "updates.h"

void cb_mark_kept(const cb_problem *p, bool *out) {
    for (uint32_t s = 0; s < p->n_storage; s++)
        out[s] = p->storage_flags[s] != 0 || cb_is_updating(p, s);
    for (uint32_t i = 0; i < p->n_forward_output; i++)
        out[p->value_storage[p->forward_output[i]]] = true;
    for (uint32_t i = 0; i < p->n_backward_output; i++)
        out[p->value_storage[p->backward_output[i]]] = true;
}

const char *cb_over_refusal(const cb_problem *p, const bool *kept, uint32_t op, uint32_t at) {
    uint32_t n_in = p->in_begin[op + 1] - p->in_begin[op], value = p->out_begin[op];
    if (at >= n_in) return "the op has no such input";
    if (p->out_begin[op + 1] - value != 1) return "the op does not have exactly one output";
    if (cb_has_inside(p, op)) return "the op has an inside";
    if (p->op_flags[op] & (CB_POP_VIEW | CB_POP_MUTATES))
        return "the op is a view, or writes into an input";
    uint32_t to = p->value_storage[value], read = p->in_value[p->in_begin[op] + at];
    uint32_t from = p->value_storage[read];
    if (p->storage_flags[to] & CB_STORE_STATIC) return "the output is in the caller's memory";
    if (p->storage_flags[from] & CB_STORE_STATIC) return "the input is in the caller's memory";
    if (kept[from]) return "the input's memory is held or returned";
    if (p->storage_bytes[from] != p->storage_bytes[to])
        return "the memory of the input and that of the output differ in size";
    if (cb_value_bytes(p, read) != p->storage_bytes[from] ||
        cb_value_bytes(p, value) != p->storage_bytes[to])
        return "the input or the output does not fill its storage";
    for (uint32_t j = 0; j < n_in; j++) {
        bool same = p->value_storage[p->in_value[p->in_begin[op] + j]] == from;
        if (same && j != at) return "another input of the op shares its memory";
    }
    return NULL;
}

/* Fills the lists if they are allocated, otherwise counts. */
static uint32_t list(const cb_problem *p, const bool *kept, cb_may_be_over may, const void *context,
                     uint32_t *begin, uint32_t *over) {
    uint32_t n = 0;
    for (uint32_t op = 0; op < p->n_op; op++) {
        uint32_t n_in = p->in_begin[op + 1] - p->in_begin[op];
        for (uint32_t at = 0; at < n_in; at++) {
            if (cb_over_refusal(p, kept, op, at) || !may(context, p, op, at)) continue;
            if (over) over[n] = at;
            n++;
        }
        if (begin) begin[op + 1] = n;
    }
    return n;
}

cb_status cb_list_over(cb_problem *p, cb_may_be_over may, const void *context, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, p->arena.alloc);
    bool *kept = CB_NEW(&scratch, bool, p->n_storage);
    cb_status status = kept ? CB_OK : cb_no_memory(err);
    p->over_begin = p->over = NULL;
    if (kept) cb_mark_kept(p, kept);
    uint32_t n = kept ? list(p, kept, may, context, NULL, NULL) : 0;
    if (n > 0) {
        uint32_t *begin = CB_NEW(&p->arena, uint32_t, (size_t)p->n_op + 1);
        uint32_t *over = CB_NEW(&p->arena, uint32_t, n);
        if (begin && over) {
            list(p, kept, may, context, begin, over);
            p->over_begin = begin;
            p->over = over;
        } else {
            status = cb_no_memory(err);
        }
    }
    cb_arena_free(&scratch);
    return status;
}

static cb_status verify_list(const cb_problem *p, const bool *kept, uint32_t op, cb_error *err) {
    const uint32_t *over = cb_over_of(p, op), n = cb_count_over(p, op);
    for (uint32_t i = 0; i < n; i++) {
        const char *refusal = cb_over_refusal(p, kept, op, over[i]);
        for (uint32_t j = 0; j < i && !refusal; j++)
            if (over[j] == over[i]) refusal = "it is listed twice";
        if (refusal)
            return cb_fail(err, CB_INVALID,
                           "op %u (%s): its output may not take over the memory of input %u: %s",
                           op, p->op_name[op], over[i], refusal);
    }
    return CB_OK;
}

cb_status cb_verify_over(const cb_problem *p, cb_error *err) {
    if (!p->over_begin) return CB_OK;
    cb_arena scratch;
    cb_arena_init(&scratch, p->arena.alloc);
    bool *kept = CB_NEW(&scratch, bool, p->n_storage);
    cb_status status = kept ? CB_OK : cb_no_memory(err);
    if (kept) cb_mark_kept(p, kept);
    for (uint32_t op = 0; op < p->n_op && status == CB_OK; op++)
        status = verify_list(p, kept, op, err);
    cb_arena_free(&scratch);
    return status;
}
