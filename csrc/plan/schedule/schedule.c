/* The evaluator: walks a schedule once, checks every rule and notes who lives when. It is kept
 * plain, as the planner's claims rest on it; tests/reference/evaluate.py says the same in another
 * language.
 *
 *   a value is live from the step that makes it until its op runs again; a step reads the latest
 *   an instance is one life of one storage: it begins where its storage is allocated and ends with
 * the last step that reads any value of it, views included
 *   what is held, and what lies in the caller's memory, belongs to its op's first run; a later run
 * makes a copy for itself, which is counted in its step and lives on only if a step reads it. The
 * caller's memory is written once, and it is what later steps read
 *
 * No list of frees exists anywhere: frees follow from the last reads.
 *
 * Copies to the host and back run beside the steps, on one lane a direction. A step that reads what
 * is still on its way waits. What leaves keeps its room until its copy has ended: its life is
 * prolonged to the step before the first that starts later than that. */
#include "schedule.h"

#include "../../base/sort.h"

const char *const cb_action_names[CB_ACTION_COUNT] = {"run", "out", "wait", "in"};

typedef struct leaver { /* on its way to the host */
    int64_t end;        /* of the copy */
    uint32_t instance, step;
    uint32_t copy; /* CB_NONE: the instance itself; else the instance is held, and this one counts
                      the bytes of the copy */
} leaver;

typedef struct host_copy {
    int64_t from, until; /* held on the host */
    uint64_t bytes;
} host_copy;

/* What moves. Only schedules that move something have any of it. */
typedef struct lanes {
    double link; /* bytes/s */
    int64_t out_free, in_free;
    int64_t *ended;    /* [n_op] end of its last copy out, -1: none */
    int64_t *ready;    /* [n_op] when what it makes is there */
    uint32_t *host;    /* [n_op] its latest entry in `copies` */
    uint32_t *out_at;  /* [n_op] step of its last copy out */
    uint32_t *made_at; /* [n_op] step that made what it makes, CB_NONE: nothing is there */
    uint32_t *written; /* [n_storage] step that last wrote into it, CB_NONE: none */
    uint32_t *left;    /* [n_instance] step of the copy out that took it, CB_NONE: none */
    uint32_t *keeper;  /* [n_instance] step that made the value for which it is held to the end,
                          CB_NONE: none, n_step: several */
    leaver *leaving;   /* in order of their ends */
    uint32_t n_leaving, n_gone;
    host_copy *copies; /* in order of `from` */
    uint32_t n_copy;
} lanes;

typedef struct walker {
    const cb_problem *p;
    const cb_schedule *s;
    const cb_device *device;
    cb_lives *lives;
    uint32_t *value_instance; /* [n_value] instance of the latest run, CB_NONE: none or static */
    bool *have;               /* [n_value] made at all */
    uint32_t *latest;         /* [n_storage] newest instance, CB_NONE: none */
    uint32_t *first;   /* [n_storage] the instance of the first run, which may be brought back
                          from the host; CB_NONE: none */
    uint32_t *seen_at; /* [n_storage] last step that reads or makes it, and the instance it saw */
    uint32_t *seen_instance;
    uint32_t *mutator; /* [n_storage] last op that wrote into it, CB_NONE: none */
    uint32_t *runs;    /* [n_op] */
    int64_t clock;
    lanes *lanes; /* NULL: nothing moves */
    cb_error *err;
} walker;

static bool is_static(const cb_problem *p, uint32_t storage) {
    return p->storage_flags[storage] & CB_STORE_STATIC;
}

static void fill_none(uint32_t *ids, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) ids[i] = CB_NONE;
}

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t after(int64_t a, int64_t ps) { return a > INT64_MAX - ps ? INT64_MAX : a + ps; }

static cb_status check_steps(const cb_problem *p, const cb_schedule *s, uint64_t *n_in,
                             uint64_t *n_out, cb_error *err) {
    *n_in = *n_out = 0;
    for (uint32_t t = 0; t < s->n_step; t++) {
        uint32_t op = s->step[t];
        if (op >= p->n_op) return cb_fail(err, CB_INVALID, "step %u: op %u of %u", t, op, p->n_op);
        if (p->op_flags[op] & CB_POP_PLACEHOLDER) {
            return cb_fail(err, CB_INVALID, "step %u: %s is a placeholder, which is never run", t,
                           p->op_name[op]);
        }
        cb_action action = cb_action_at(s, t);
        if (action == CB_ACTION_RUN) *n_in += p->in_begin[op + 1] - p->in_begin[op];
        if (action != CB_ACTION_WAIT) *n_out += p->out_begin[op + 1] - p->out_begin[op];
    }
    if (s->backward_starts > s->n_step) {
        return cb_fail(err, CB_INVALID, "the backward starts at step %u of %u", s->backward_starts,
                       s->n_step);
    }
    if (*n_in + 2 * *n_out + s->n_step >= CB_NONE)
        return cb_fail(err, CB_INVALID, "a schedule of %u steps is too long", s->n_step);
    return CB_OK;
}

/* `n_instance`, `n_out`: at most so many. */
static cb_status start_lanes(walker *w, cb_arena *scratch, uint64_t n_instance, uint64_t n_out) {
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
    m->ended = CB_NEW(scratch, int64_t, p->n_op);
    m->ready = CB_NEW(scratch, int64_t, p->n_op);
    m->host = CB_NEW(scratch, uint32_t, p->n_op);
    m->out_at = CB_NEW(scratch, uint32_t, p->n_op);
    m->made_at = CB_NEW(scratch, uint32_t, p->n_op);
    m->written = CB_NEW(scratch, uint32_t, p->n_storage);
    m->left = CB_NEW(scratch, uint32_t, n_instance);
    m->keeper = CB_NEW(scratch, uint32_t, n_instance);
    m->leaving = CB_NEW(scratch, leaver, n_out);
    m->copies = CB_NEW(scratch, host_copy, n_copy);
    if (!m->ended || !m->ready || !m->host || !m->out_at || !m->made_at || !m->written ||
        !m->left || !m->keeper || !m->leaving || !m->copies)
        return cb_no_memory(w->err);
    for (uint32_t op = 0; op < p->n_op; op++) m->ended[op] = -1;
    fill_none(m->made_at, p->n_op);
    fill_none(m->written, p->n_storage);
    fill_none(m->left, (uint32_t)n_instance);
    fill_none(m->keeper, (uint32_t)n_instance);
    w->lanes = m;
    return CB_OK;
}

static cb_status start_walk(walker *w, cb_arena *scratch, cb_arena *arena) {
    const cb_problem *p = w->p;
    uint64_t n_in, n_out;
    uint32_t n_step = w->s->n_step;
    CB_TRY(check_steps(p, w->s, &n_in, &n_out, w->err));
    w->value_instance = CB_NEW(scratch, uint32_t, p->n_value);
    w->have = CB_NEW(scratch, bool, p->n_value);
    w->latest = CB_NEW(scratch, uint32_t, p->n_storage);
    w->first = CB_NEW(scratch, uint32_t, p->n_storage);
    w->seen_at = CB_NEW(scratch, uint32_t, p->n_storage);
    w->seen_instance = CB_NEW(scratch, uint32_t, p->n_storage);
    w->mutator = CB_NEW(scratch, uint32_t, p->n_storage);
    w->runs = CB_NEW(scratch, uint32_t, p->n_op);
    cb_lives *lives = w->lives;
    uint64_t n_instance = w->s->action ? 2 * n_out + n_step : n_out + n_step;
    lives->instance = CB_NEW(arena, cb_instance, n_instance);
    lives->value_instance_in = CB_NEW(arena, uint32_t, n_in);
    lives->in_begin = CB_NEW(arena, uint32_t, (size_t)n_step + 1);
    lives->value_instance_out = CB_NEW(arena, uint32_t, n_out);
    lives->out_begin = CB_NEW(arena, uint32_t, (size_t)n_step + 1);
    lives->scratch_instance = CB_NEW(arena, uint32_t, n_step);
    lives->live_bytes = CB_NEW(arena, uint64_t, (size_t)n_step + 1);
    if (!w->value_instance || !w->have || !w->latest || !w->first || !w->seen_at ||
        !w->seen_instance || !w->mutator || !w->runs || !lives->instance ||
        !lives->value_instance_in || !lives->in_begin || !lives->value_instance_out ||
        !lives->out_begin || !lives->scratch_instance || !lives->live_bytes) {
        return cb_no_memory(w->err);
    }
    fill_none(w->value_instance, p->n_value);
    fill_none(w->latest, p->n_storage);
    fill_none(w->first, p->n_storage);
    fill_none(w->seen_at, p->n_storage);
    fill_none(w->mutator, p->n_storage);
    for (uint32_t v = 0; v < p->n_value; v++)
        w->have[v] = p->op_flags[p->value_op[v]] & CB_POP_PLACEHOLDER;
    return w->s->action ? start_lanes(w, scratch, n_instance, n_out) : CB_OK;
}

static uint32_t add_instance(walker *w, uint32_t storage, uint32_t step, uint64_t bytes) {
    uint32_t id = w->lives->n_instance++;
    w->lives->instance[id] =
        (cb_instance){.storage = storage, .made = step, .last = step, .bytes = bytes};
    return id;
}

static void hold(walker *w, uint32_t instance, uint32_t until) {
    if (instance == CB_NONE) return;
    cb_instance *life = &w->lives->instance[instance];
    if (life->last < until) life->last = until;
}

/* Nobody may still need memory that has left with another value. */
static cb_status check_here(const walker *w, uint32_t step, uint32_t value) {
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

static cb_status check_step(const walker *w, uint32_t step, uint32_t op) {
    const cb_problem *p = w->p;
    uint32_t flags = p->op_flags[op];
    if ((flags & CB_POP_BACKWARD) && step < w->s->backward_starts) {
        return cb_fail(w->err, CB_INVALID,
                       "step %u: %s depends on a tangent and runs in the forward", step,
                       p->op_name[op]);
    }
    if ((flags & CB_POP_ONCE) && w->runs[op] > 0) {
        return cb_fail(w->err, CB_INVALID,
                       "step %u: %s may run only once (random, effect, collective, mutation or "
                       "unknown) and runs again",
                       step, p->op_name[op]);
    }
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint32_t v = p->in_value[j], s = p->value_storage[v];
        if (!w->have[v]) {
            return cb_fail(w->err, CB_INVALID,
                           "step %u: %s needs value %u of %s, which has not been made", step,
                           p->op_name[op], v, p->op_name[p->value_op[v]]);
        }
        CB_TRY(check_here(w, step, v));
        if (w->mutator[s] != CB_NONE && w->mutator[s] > op) {
            return cb_fail(w->err, CB_INVALID,
                           "step %u: %s reads storage %u after %s has written into it", step,
                           p->op_name[op], s, p->op_name[w->mutator[s]]);
        }
    }
    return CB_OK;
}

static void read_inputs(walker *w, uint32_t step, uint32_t op) {
    const cb_problem *p = w->p;
    uint32_t *at = w->lives->value_instance_in + w->lives->in_begin[step];
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint32_t v = p->in_value[j], s = p->value_storage[v], instance = w->value_instance[v];
        *at++ = instance;
        hold(w, instance, step);
        w->seen_at[s] = step;
        w->seen_instance[s] = instance;
    }
}

/* Where the first run's has left for the host, what comes next takes its place. */
static void note_newest(walker *w, uint32_t storage) {
    w->latest[storage] = w->seen_instance[storage];
    if (w->first[storage] == CB_NONE) w->first[storage] = w->latest[storage];
}

static void make_outputs(walker *w, uint32_t step, uint32_t op) {
    const cb_problem *p = w->p;
    uint32_t *at = w->lives->value_instance_out + w->lives->out_begin[step];
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v];
        bool alias = w->seen_at[s] == step;
        if (alias && (p->op_flags[op] & CB_POP_MUTATES)) {
            w->mutator[s] = op;
            if (w->lanes) w->lanes->written[s] = step;
        }
        if (!alias) {
            bool given = is_static(p, s) && w->runs[op] == 0;
            w->seen_at[s] = step;
            w->seen_instance[s] = given ? CB_NONE : add_instance(w, s, step, p->storage_bytes[s]);
            if (!is_static(p, s)) note_newest(w, s);
        }
        w->have[v] = true;
        *at++ = w->seen_instance[s];
        w->value_instance[v] = is_static(p, s) ? CB_NONE : w->seen_instance[s];
    }
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* What has reached the host by the start of `step` gives its room back. */
static void free_gone(walker *w, uint32_t step, int64_t clock) {
    lanes *m = w->lanes;
    for (; m->n_gone < m->n_leaving && m->leaving[m->n_gone].end <= clock; m->n_gone++) {
        const leaver *x = &m->leaving[m->n_gone];
        cb_instance *life = &w->lives->instance[x->copy == CB_NONE ? x->instance : x->copy];
        if (step <= life->made) life->bytes = 0; /* the copy of a held value, gone at once */
        else if (life->last < step - 1) life->last = step - 1;
        if (step == w->s->backward_starts) w->lives->saved_bytes += life->bytes;
    }
}

/* Waits for what `op` made to be there. */
static void stall_until(walker *w, int64_t when) {
    if (when <= w->clock) return;
    w->lives->stall_ps = after(w->lives->stall_ps, when - w->clock);
    w->clock = when;
}

/* One storage of the op starts to leave. */
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
    hold(w, instance, step);
    m->left[instance] = step;
    leaver *x = &m->leaving[m->n_leaving++];
    *x = (leaver){.instance = instance, .step = step, .copy = CB_NONE};
    if (held && step + 1 < w->s->n_step)
        x->copy = add_instance(w, life->storage, step + 1, life->bytes);
    if (!held && w->latest[life->storage] == instance) w->latest[life->storage] = CB_NONE;
    if (!held && w->first[life->storage] == instance) w->first[life->storage] = CB_NONE;
    return CB_OK;
}

static cb_status time_copy(const walker *w, uint32_t step, uint32_t op, uint64_t bytes,
                           int64_t *copy_ps) {
    *copy_ps = cb_copy_time_ps(bytes, w->lanes->link);
    if (*copy_ps >= 0) return CB_OK;
    return cb_fail(w->err, CB_INVALID,
                   "step %u: copying the %llu bytes of %s over a link of %g bytes a second takes "
                   "1,000 s or more",
                   step, (unsigned long long)bytes, w->p->op_name[op], w->lanes->link);
}

static cb_status copy_out(walker *w, uint32_t step, uint32_t op) {
    const cb_problem *p = w->p;
    lanes *m = w->lanes;
    uint32_t first = m->n_leaving;
    uint64_t bytes = 0;
    if (m->made_at[op] == CB_NONE) {
        return cb_fail(w->err, CB_INVALID, "step %u: cannot offload %s, it is not live", step,
                       p->op_name[op]);
    }
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v], instance = w->value_instance[v];
        w->have[v] &= is_static(p, s); /* the caller's memory stays */
        if (instance == CB_NONE || w->seen_at[s] == step) continue;
        w->seen_at[s] = step;
        CB_TRY(check_here(w, step, v));
        bytes += p->storage_bytes[s];
        CB_TRY(send_away(w, step, op, instance));
    }
    int64_t copy_ps;
    CB_TRY(time_copy(w, step, op, bytes, &copy_ps));
    m->out_free = after(later(m->out_free, w->clock), copy_ps);
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
        if (!is_static(p, s) && w->seen_at[s] != step) {
            bytes += p->storage_bytes[s];
            w->seen_instance[s] = add_instance(w, s, step, p->storage_bytes[s]);
            note_newest(w, s);
        }
        if (is_static(p, s)) w->seen_instance[s] = CB_NONE;
        w->seen_at[s] = step;
        w->have[v] = true;
        w->value_instance[v] = *at++ = w->seen_instance[s];
    }
    int64_t copy_ps;
    CB_TRY(time_copy(w, step, op, bytes, &copy_ps));
    m->in_free = after(later(later(m->in_free, m->ended[op]), w->clock), copy_ps);
    m->ready[op] = m->in_free;
    m->made_at[op] = step;
    host_copy *copy = &m->copies[m->host[op]];
    copy->until = later(copy->until, m->in_free);
    w->lives->in_bytes += bytes;
    return CB_OK;
}

static cb_status copy_step(walker *w, uint32_t step, uint32_t op, cb_action action) {
    lanes *m = w->lanes;
    if (action != CB_ACTION_OUT && m->ended[op] < 0) {
        return cb_fail(w->err, CB_INVALID, "step %u: %s was never offloaded", step,
                       w->p->op_name[op]);
    }
    if (action == CB_ACTION_WAIT) stall_until(w, m->ended[op]);
    free_gone(w, step, w->clock);
    if (action == CB_ACTION_OUT) CB_TRY(copy_out(w, step, op));
    if (action == CB_ACTION_IN) CB_TRY(copy_in(w, step, op));
    return CB_OK;
}

static int compare_ends(const void *a, const void *b) {
    const host_copy *x = a, *y = b;
    return x->until < y->until ? -1 : x->until > y->until;
}

/* A value is held on the host from the start of its copy out until the last copy back has ended. */
static cb_status measure_host(walker *w, cb_arena *scratch) {
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

/* ---- steps ----------------------------------------------------------------------------------- */

static cb_status run_op(walker *w, uint32_t step, uint32_t op) {
    const cb_problem *p = w->p;
    cb_lives *lives = w->lives;
    lanes *m = w->lanes;
    int64_t time = cb_op_time_ps(p, op, w->device);
    CB_TRY(check_step(w, step, op));
    if (m) free_gone(w, step, w->clock);
    read_inputs(w, step, op);
    for (uint32_t j = p->in_begin[op]; m && j < p->in_begin[op + 1]; j++) {
        uint32_t v = p->in_value[j];
        if (w->value_instance[v] != CB_NONE) stall_until(w, m->ready[p->value_op[v]]);
    }
    make_outputs(w, step, op);
    if (m) {
        m->made_at[op] = step;
        m->ready[op] = 0;
    }
    if (p->op_workspace[op] > 0)
        lives->scratch_instance[step] = add_instance(w, CB_NONE, step, p->op_workspace[op]);
    w->clock = after(w->clock, time);
    if (w->runs[op]++ == 0) lives->once_ps += time;
    else lives->n_recomputed++;
    return CB_OK;
}

static cb_status take_step(walker *w, uint32_t step) {
    const cb_problem *p = w->p;
    cb_lives *lives = w->lives;
    uint32_t op = w->s->step[step];
    cb_action action = cb_action_at(w->s, step);
    bool runs = action == CB_ACTION_RUN, makes = runs || action == CB_ACTION_IN;
    lives->scratch_instance[step] = CB_NONE;
    CB_TRY(runs ? run_op(w, step, op) : copy_step(w, step, op, action));
    uint32_t n_in = p->in_begin[op + 1] - p->in_begin[op],
             n_out = p->out_begin[op + 1] - p->out_begin[op];
    lives->in_begin[step + 1] = lives->in_begin[step] + (runs ? n_in : 0);
    lives->out_begin[step + 1] = lives->out_begin[step] + (makes ? n_out : 0);
    return CB_OK;
}

/* Held to the end on behalf of a value. */
static void keep(walker *w, uint32_t value, uint32_t instance) {
    lanes *m = w->lanes;
    if (!m || instance == CB_NONE) return;
    uint32_t made = m->made_at[w->p->value_op[value]];
    bool first = m->keeper[instance] == CB_NONE || m->keeper[instance] == made;
    m->keeper[instance] = first ? made : w->s->n_step;
}

/* The instance that is held for a value. */
static uint32_t held_for(const walker *w, uint32_t value) {
    uint32_t first = w->first[w->p->value_storage[value]];
    return first == CB_NONE ? w->value_instance[value] : first;
}

/* Between forward and backward: what the caller of the forward receives must exist. */
static cb_status enter_backward(walker *w) {
    const cb_problem *p = w->p;
    uint32_t starts = w->s->backward_starts;
    for (uint32_t i = 0; i < p->n_forward_output; i++) {
        uint32_t v = p->forward_output[i];
        if (!w->have[v]) {
            return cb_fail(w->err, CB_INVALID,
                           "forward output %u of %s does not exist when the backward starts", i,
                           p->op_name[p->value_op[v]]);
        }
        bool end = p->storage_flags[p->value_storage[v]] & CB_STORE_HOLD_END;
        CB_TRY(check_here(w, starts, v));
        if (end) keep(w, v, held_for(w, v));
        hold(w, held_for(w, v), end ? w->s->n_step : starts);
    }
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (!(p->storage_flags[s] & CB_STORE_HOLD_FORWARD) || is_static(p, s)) continue;
        if (w->first[s] == CB_NONE)
            return cb_fail(w->err, CB_INVALID,
                           "storage %u must be alive when the backward starts, but is not", s);
        hold(w, w->first[s], starts);
    }
    return CB_OK;
}

static cb_status end_walk(walker *w) {
    const cb_problem *p = w->p;
    for (uint32_t i = 0; i < p->n_backward_output; i++) {
        uint32_t v = p->backward_output[i];
        if (!w->have[v]) {
            return cb_fail(w->err, CB_INVALID, "backward output %u of %s does not exist at the end",
                           i, p->op_name[p->value_op[v]]);
        }
        CB_TRY(check_here(w, w->s->n_step, v));
        bool first = p->storage_flags[p->value_storage[v]] & CB_STORE_HOLD_END;
        hold(w, first ? held_for(w, v) : w->value_instance[v], w->s->n_step);
    }
    for (uint32_t s = 0; s < p->n_storage; s++) {
        if (!(p->storage_flags[s] & CB_STORE_HOLD_END) || is_static(p, s)) continue;
        if (w->first[s] == CB_NONE)
            return cb_fail(w->err, CB_INVALID, "storage %u must be alive at the end, but is not",
                           s);
        hold(w, w->first[s], w->s->n_step);
    }
    for (uint32_t op = 0; op < p->n_op; op++) {
        if ((p->op_flags[op] & (CB_POP_ONCE & ~CB_POP_UNKNOWN)) && w->runs[op] == 0 &&
            !(p->op_flags[op] & CB_POP_PLACEHOLDER)) {
            return cb_fail(w->err, CB_INVALID, "%s must run once and does not run", p->op_name[op]);
        }
    }
    return CB_OK;
}

/* live_bytes first holds what begins and ends at each step (as differences modulo 2^64), then their
 * sum. */
static void measure(walker *w) {
    cb_lives *lives = w->lives;
    uint32_t n_step = w->s->n_step, starts = w->s->backward_starts;
    for (uint32_t i = 0; i < lives->n_instance; i++) {
        const cb_instance *life = &lives->instance[i];
        lives->live_bytes[life->made] += life->bytes;
        if (life->last < n_step) lives->live_bytes[life->last + 1] -= life->bytes;
        if (life->made < starts && life->last >= starts) lives->saved_bytes += life->bytes;
    }
    for (uint32_t t = 0; t < n_step; t++) {
        if (t > 0) lives->live_bytes[t] += lives->live_bytes[t - 1];
        if (lives->live_bytes[t] <= lives->peak_bytes) continue;
        lives->peak_bytes = lives->live_bytes[t];
        lives->peak_step = t;
    }
}

static cb_status walk(walker *w, cb_arena *scratch, cb_arena *arena) {
    CB_TRY(start_walk(w, scratch, arena));
    for (uint32_t t = 0; t < w->s->n_step; t++) {
        if (t == w->s->backward_starts) CB_TRY(enter_backward(w));
        CB_TRY(take_step(w, t));
    }
    if (w->s->backward_starts == w->s->n_step) CB_TRY(enter_backward(w));
    CB_TRY(end_walk(w));
    w->lives->time_ps = w->clock;
    if (w->lanes) {
        free_gone(w, w->s->n_step, INT64_MAX);
        CB_TRY(measure_host(w, scratch));
    }
    measure(w);
    return CB_OK;
}

cb_status cb_schedule_copy(const cb_schedule *s, cb_arena *arena, cb_schedule *out, cb_error *err) {
    uint32_t *step = CB_NEW(arena, uint32_t, s->n_step);
    uint8_t *action = s->action ? CB_NEW(arena, uint8_t, s->n_step) : NULL;
    if (!step || (s->action && !action)) return cb_no_memory(err);
    if (s->n_step > 0) memcpy(step, s->step, s->n_step * sizeof *step);
    if (s->n_step > 0 && action) memcpy(action, s->action, s->n_step);
    *out = *s;
    out->step = step;
    out->action = action;
    return CB_OK;
}

cb_status cb_schedule_walk(const cb_problem *p, const cb_schedule *s, const cb_device *device,
                           cb_arena *arena, cb_lives *out, cb_error *err) {
    cb_arena scratch;
    cb_arena_init(&scratch, arena->alloc);
    cb_lives lives = {0};
    walker w = {.p = p, .s = s, .device = device, .lives = &lives, .err = err};
    cb_status status = walk(&w, &scratch, arena);
    cb_arena_free(&scratch);
    if (status == CB_OK) *out = lives;
    return status;
}
