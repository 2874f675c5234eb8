/* Copies to the host and back. */
#include "../../base/sort.h"
#include "schedule_parts.h"

cb_status cb_walk_start_copies(walker *w, cb_arena *scratch, uint64_t n_instance, uint64_t n_out) {
    const cb_problem *p = w->p;
    uint32_t n_copy = 0, first = CB_NONE;
    for (uint32_t t = w->s->n_step; t-- > 0;) {
        if (cb_action_at(w->s, t) != CB_ACTION_RUN) first = t;
        n_copy += cb_action_at(w->s, t) == CB_ACTION_OUT;
    }
    if (first == CB_NONE) return CB_OK;
    double link = cb_link_bytes_per_s(p, w->device);
    if (!(link > 0)) {
        return cb_fail(w->err, CB_UNSUPPORTED,
                       "step %u: copies over the link to the host, but device %s has none; choose "
                       "another device or give the problem link_bytes_per_s",
                       first, w->device->name);
    }
    lanes *m = CB_NEW(scratch, lanes, 1);
    if (!m) return cb_no_memory(w->err);
    m->link = link;
    CB_TRY_NEW(m->ended, scratch, p->n_op, w->err);
    CB_TRY_NEW(m->ready, scratch, p->n_op, w->err);
    CB_TRY_NEW(m->host, scratch, p->n_op, w->err);
    CB_TRY_NEW(m->out_at, scratch, p->n_op, w->err);
    CB_TRY_NEW(m->made_at, scratch, p->n_op, w->err);
    CB_TRY_NEW(m->written, scratch, p->n_storage, w->err);
    CB_TRY_NEW(m->left, scratch, n_instance, w->err);
    CB_TRY_NEW(m->keeper, scratch, n_instance, w->err);
    CB_TRY_NEW(m->leaving, scratch, n_out, w->err);
    CB_TRY_NEW(m->copies, scratch, n_copy, w->err);
    for (uint32_t op = 0; op < p->n_op; op++) m->ended[op] = -1;
    cb_fill_none(m->made_at, p->n_op);
    cb_fill_none(m->written, p->n_storage);
    cb_fill_none(m->left, (uint32_t)n_instance);
    cb_fill_none(m->keeper, (uint32_t)n_instance);
    w->lanes = m;
    return CB_OK;
}

cb_status cb_walk_check_here(const walker *w, uint32_t step, uint32_t value) {
    const lanes *m = w->lanes;
    uint32_t instance = w->value_instance[value];
    if (!m || instance == CB_NONE || m->left[instance] == CB_NONE) return CB_OK;
    uint32_t left = m->left[instance];
    return cb_fail(w->err, CB_INVALID,
                   "step %u: %s is offloaded while another value shares its storage %u: value %u "
                   "of %s, which is needed at step %u",
                   left, w->p->op_name[w->s->step[left]], w->lives->instance[instance].storage,
                   value, w->p->op_name[w->p->value_op[value]], step);
}

void cb_walk_free_gone(walker *w, uint32_t step, int64_t clock) {
    lanes *m = w->lanes;
    for (; m->n_gone < m->n_leaving && m->leaving[m->n_gone].end <= clock; m->n_gone++) {
        const leaver *x = &m->leaving[m->n_gone];
        cb_instance *life = &w->lives->instance[x->copy == CB_NONE ? x->instance : x->copy];
        if (step <= life->made) life->bytes = 0; /* the copy of a held value is freed at once */
        else if (life->last < step - 1) life->last = step - 1;
        if (step == w->s->backward_starts) w->lives->saved_bytes += life->bytes;
    }
}

void cb_walk_stall_until(walker *w, int64_t when) {
    if (when <= w->clock) return;
    w->lives->stall_ps = cb_after(w->lives->stall_ps, when - w->clock);
    w->clock = when;
}

/* Starts copying one storage of the op out. */
static cb_status send_away(walker *w, uint32_t step, uint32_t op, uint32_t instance) {
    lanes *m = w->lanes;
    cb_instance *life = &w->lives->instance[instance];
    bool held = life->last == w->s->n_step;
    if (m->keeper[instance] != CB_NONE && m->keeper[instance] != m->made_at[op]) {
        return cb_fail(w->err, CB_INVALID,
                       "step %u: %s is offloaded while another value shares its storage %u, which "
                       "is alive at the end",
                       step, w->p->op_name[op], life->storage);
    }
    cb_walk_hold(w, instance, step);
    m->left[instance] = step;
    leaver *x = &m->leaving[m->n_leaving++];
    *x = (leaver){.instance = instance, .step = step, .copy = CB_NONE};
    if (held && step + 1 < w->s->n_step)
        x->copy = cb_walk_add_instance(w, life->storage, step + 1, life->bytes);
    if (!held && w->latest[life->storage] == instance) w->latest[life->storage] = CB_NONE;
    if (!held && w->first[life->storage] == instance) w->first[life->storage] = CB_NONE;
    return CB_OK;
}

static cb_status time_copy(const walker *w, uint32_t step, uint32_t op, uint64_t bytes,
                           int64_t *copy_ps) {
    *copy_ps = cb_copy_time_ps(bytes, w->lanes->link);
    if (*copy_ps >= 0) return CB_OK;
    return cb_fail(w->err, CB_INVALID,
                   "step %u: copying the %llu bytes of %s over a link of %g bytes per second takes "
                   "1,000 s or more",
                   step, (unsigned long long)bytes, w->p->op_name[op], w->lanes->link);
}

static cb_status copy_out(walker *w, uint32_t step, uint32_t op) {
    const cb_problem *p = w->p;
    lanes *m = w->lanes;
    uint32_t first = m->n_leaving;
    uint64_t bytes = 0;
    if (m->made_at[op] == CB_NONE) {
        return cb_fail(w->err, CB_INVALID, "step %u: cannot offload %s, because it is not alive",
                       step, p->op_name[op]);
    }
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v], instance = w->value_instance[v];
        w->have[v] &= cb_is_static(p, s); /* the caller's memory stays */
        if (instance == CB_NONE || w->seen_at[s] == step) continue;
        w->seen_at[s] = step;
        CB_TRY(cb_walk_check_here(w, step, v));
        bytes += p->storage_bytes[s];
        CB_TRY(send_away(w, step, op, instance));
    }
    int64_t copy_ps;
    CB_TRY(time_copy(w, step, op, bytes, &copy_ps));
    m->out_free = cb_after(cb_later(m->out_free, w->clock), copy_ps);
    for (uint32_t i = first; i < m->n_leaving; i++) m->leaving[i].end = m->out_free;
    m->ended[op] = m->out_free;
    m->out_at[op] = step;
    m->made_at[op] = CB_NONE;
    m->host[op] = m->n_copy;
    m->copies[m->n_copy++] = (host_copy){w->clock, m->out_free, bytes};
    w->lives->out_bytes += bytes;
    return CB_OK;
}

static cb_status copy_in(walker *w, uint32_t step, uint32_t op) {
    const cb_problem *p = w->p;
    lanes *m = w->lanes;
    uint32_t *at = w->lives->value_instance_out + w->lives->out_begin[step];
    uint64_t bytes = 0;
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v];
        if (m->written[s] != CB_NONE && m->written[s] > m->out_at[op]) {
            return cb_fail(w->err, CB_INVALID,
                           "step %u: brings back storage %u of %s, but step %u has written into it "
                           "since it left",
                           step, s, p->op_name[op], m->written[s]);
        }
        if (!cb_is_static(p, s) && w->seen_at[s] != step) {
            bytes += p->storage_bytes[s];
            w->seen_instance[s] = cb_walk_add_instance(w, s, step, p->storage_bytes[s]);
            cb_walk_note_newest(w, s);
        }
        if (cb_is_static(p, s)) w->seen_instance[s] = CB_NONE;
        w->seen_at[s] = step;
        w->have[v] = true;
        w->value_instance[v] = *at++ = w->seen_instance[s];
    }
    int64_t copy_ps;
    CB_TRY(time_copy(w, step, op, bytes, &copy_ps));
    m->in_free = cb_after(cb_later(cb_later(m->in_free, m->ended[op]), w->clock), copy_ps);
    m->ready[op] = m->in_free;
    m->made_at[op] = step;
    host_copy *copy = &m->copies[m->host[op]];
    copy->until = cb_later(copy->until, m->in_free);
    w->lives->in_bytes += bytes;
    return CB_OK;
}

cb_status cb_walk_copy(walker *w, uint32_t step, uint32_t op, cb_action action) {
    lanes *m = w->lanes;
    if (action != CB_ACTION_OUT && m->ended[op] < 0) {
        return cb_fail(w->err, CB_INVALID, "step %u: %s was never offloaded", step,
                       w->p->op_name[op]);
    }
    if (action == CB_ACTION_WAIT) cb_walk_stall_until(w, m->ended[op]);
    cb_walk_free_gone(w, step, w->clock);
    if (action == CB_ACTION_OUT) CB_TRY(copy_out(w, step, op));
    if (action == CB_ACTION_IN) CB_TRY(copy_in(w, step, op));
    return CB_OK;
}

static int compare_ends(const void *a, const void *b) {
    const host_copy *x = a, *y = b;
    return x->until < y->until ? -1 : x->until > y->until;
}

/* A value is held on the host from the start of its copy out until the last copy back has ended. */
cb_status cb_walk_measure_host(walker *w, cb_arena *scratch) {
    const lanes *m = w->lanes;
    uint64_t held = 0;
    host_copy *by_end = CB_NEW(scratch, host_copy, m->n_copy);
    if (!by_end) return cb_no_memory(w->err);
    if (m->n_copy == 0) return CB_OK;
    memcpy(by_end, m->copies, m->n_copy * sizeof *by_end);
    cb_sort(by_end, m->n_copy, sizeof *by_end, compare_ends);
    for (uint32_t i = 0, gone = 0; i < m->n_copy; i++) {
        for (; by_end[gone].until <= m->copies[i].from && gone < i; gone++)
            held -= by_end[gone].bytes;
        held += m->copies[i].bytes;
        if (held > w->lives->host_bytes) w->lives->host_bytes = held;
    }
    return CB_OK;
}
