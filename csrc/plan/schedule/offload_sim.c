/* Three passes build a plan as sim.c does. The first finds the steps, fetches among them, and what
 * each reads; the second, which runs are needed; the third, the lives over these runs. Then fetches
 * get their positions, and the copy lanes are simulated.
 *
 *   run          | a | b | c |   ...   | g | h |
 *   out lane         [ a out    ]                   a keeps its memory until the copy has ended
 *   in lane                        [ a in  ]        requested in time for h, which reads it
 *
 * Op ids are below 2^28, so the fetch bit of a pair and the action in `out` are above them. */
#include "offload_sim.h"

static void fill_none(uint32_t *ids, size_t n) {
    for (size_t i = 0; i < n; i++) ids[i] = CB_NONE;
}

cb_status cb_offload_sim_init(cb_offload_sim *m, const cb_facts *f, bool firm, cb_alloc *alloc,
                              cb_error *err) {
    const cb_problem *p = f->p;
    *m = (cb_offload_sim){.f = f};
    cb_arena *a = &m->arena;
    cb_arena_init(a, alloc);
    m->value_step = CB_NEW(a, uint32_t, p->n_value);
    m->value_life = CB_NEW(a, uint32_t, p->n_value);
    m->latest = CB_NEW(a, uint32_t, p->n_storage);
    m->base_step = CB_NEW(a, uint32_t, f->n_base);
    m->first_life = CB_NEW(a, uint32_t, p->n_storage);
    m->marked = CB_NEW(a, uint32_t, p->n_op);
    m->done = CB_NEW(a, uint32_t, p->n_op);
    m->wanted = CB_NEW(a, uint32_t, p->n_op);
    m->brought = CB_NEW(a, uint32_t, p->n_op);
    m->host = CB_NEW(a, uint32_t, p->n_op);
    m->moment = CB_NEW(a, uint64_t, f->n_base);
    cb_carriers c = {0};
    cb_status status = m->base_step && m->first_life && m->value_step && m->value_life &&
                               m->latest && m->marked && m->done && m->wanted && m->brought &&
                               m->host && m->moment
                           ? cb_find_carriers(f, firm, a, &c, err)
                           : cb_no_memory(err);
    m->carrier = c.carrier;
    m->copy_ps = c.copy_ps;
    m->must = c.must;
    if (status != CB_OK) cb_offload_sim_free(m);
    return status;
}

void cb_offload_sim_free(cb_offload_sim *m) {
    cb_arena_free(&m->arena);
    *m = (cb_offload_sim){0};
}

/* ---- building -------------------------------------------------------------------------------- */

static bool hold(cb_offload_sim *m, uint32_t value_step, uint32_t life) {
    return CB_PUSH(&m->arena, m->hold, (cb_sim_read){value_step, life});
}

static bool add_step(cb_offload_sim *m, uint32_t op, uint32_t anchor) {
    uint32_t n_out = m->f->p->out_begin[op + 1] - m->f->p->out_begin[op];
    return CB_PUSH(&m->arena, m->step,
                   (cb_sim_step){op, anchor, (uint32_t)m->read.len, CB_ALL_OUTPUTS}) &&
           CB_RESERVE(&m->arena, m->life, n_out);
}

/* Begins a new life of the storage, unless this step has already begun one. */
static void begin_life(cb_offload_sim *m, uint32_t storage, uint32_t step) {
    uint32_t latest = m->latest[storage];
    if (latest != CB_NONE && m->life.at[latest].made == step) return;
    if (latest == CB_NONE) m->first_life[storage] = (uint32_t)m->life.len;
    m->latest[storage] = (uint32_t)m->life.len;
    m->life.at[m->life.len++] = (cb_sim_life){storage, step, step};
}

static bool run_op(cb_offload_sim *m, uint32_t op, uint32_t anchor) {
    const cb_problem *p = m->f->p;
    uint32_t step = (uint32_t)m->step.len, n_in = p->in_begin[op + 1] - p->in_begin[op];
    if (!add_step(m, op, anchor) || !CB_RESERVE(&m->arena, m->read, n_in)) return false;
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1]; j++) {
        uint32_t v = p->in_value[j];
        m->read.at[m->read.len++] = (cb_sim_read){m->value_step[v], m->value_life[v]};
    }
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        m->value_step[v] = step;
        if (m->f->root[p->value_storage[v]] == op) begin_life(m, p->value_storage[v], step);
    }
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++)
        m->value_life[v] = m->latest[p->value_storage[v]];
    m->done[op] = anchor;
    return true;
}

/* Marks the latest outputs of `op` as offloaded: adds their lives, each once, to `gone`. */
static bool add_departure(cb_offload_sim *m, uint32_t op) {
    const cb_problem *p = m->f->p;
    cb_sim_departure d = {
        .op = op, .source = m->value_step[p->out_begin[op]], .life = (uint32_t)m->gone.len};
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t life = m->value_life[v];
        bool known = life == CB_NONE;
        for (size_t i = d.life; i < m->gone.len && !known; i++) known = m->gone.at[i] == life;
        if (known) continue;
        if (!CB_PUSH(&m->arena, m->gone, life)) return false;
        d.bytes += p->storage_bytes[m->life.at[life].storage];
    }
    d.n_life = (uint32_t)m->gone.len - d.life;
    m->host[op] = (uint32_t)m->departure.len;
    return CB_PUSH(&m->arena, m->departure, d);
}

static bool fetch_op(cb_offload_sim *m, uint32_t op, uint32_t anchor) {
    const cb_problem *p = m->f->p;
    uint32_t step = (uint32_t)m->step.len;
    cb_sim_fetch x = {.op = op, .step = step};
    if (m->host[op] == CB_NONE && !add_departure(m, op)) return false;
    x.departure = m->host[op];
    x.bytes = m->departure.at[x.departure].bytes;
    x.life = (uint32_t)m->life.len;
    if (!add_step(m, op, anchor)) return false;
    for (uint32_t v = p->out_begin[op]; v < p->out_begin[op + 1]; v++) {
        uint32_t s = p->value_storage[v];
        m->value_step[v] = step;
        if (m->carrier[s] != op) continue;
        begin_life(m, s, step);
        m->value_life[v] = m->latest[s];
    }
    x.n_life = (uint32_t)m->life.len - x.life;
    m->brought[op] = anchor;
    return CB_PUSH(&m->arena, m->fetch, x);
}

/* True if the value must be brought back for `anchor` and has not been yet. */
static bool is_expected(const cb_offload_sim *m, uint32_t value, uint32_t anchor) {
    const cb_problem *p = m->f->p;
    uint32_t op = m->carrier[p->value_storage[value]];
    if (op == CB_NONE || p->value_op[value] < op || m->brought[op] == anchor) return false;
    bool first = m->brought[op] == CB_NONE || m->brought[op] < m->f->base_backward;
    bool must = first && m->must[op] && anchor >= m->f->base_backward;
    return (must || m->wanted[op] == anchor) && m->value_step[p->out_begin[op]] != CB_NONE;
}

/* True if the op that makes `value` must run again, or come back, before `anchor` can read it. */
static bool is_due(const cb_offload_sim *m, uint32_t value, uint32_t anchor) {
    const cb_problem *p = m->f->p;
    uint32_t op = p->value_op[value], s = p->value_storage[value], root = m->f->root[s];
    if (root == CB_NONE || (p->op_flags[op] & CB_POP_PLACEHOLDER)) return false;
    if (is_expected(m, value, anchor)) return true;
    bool back = m->carrier[s] != CB_NONE && m->brought[m->carrier[s]] == anchor;
    if (!back && m->marked[root] == anchor && m->done[root] != anchor) return true;
    if (op == root || (back && op == m->carrier[s])) return false;
    return m->value_life[value] != m->latest[s];
}

static bool any_input_due(const cb_offload_sim *m, uint32_t op, uint32_t anchor) {
    const cb_problem *p = m->f->p;
    bool due = false;
    for (uint32_t j = p->in_begin[op]; j < p->in_begin[op + 1] && !due; j++)
        due = is_due(m, p->in_value[j], anchor);
    return due;
}

/* Runs or fetches what the inputs of `top` need, then runs `top`. */
static bool run_with_inputs(cb_offload_sim *m, uint32_t top, uint32_t anchor) {
    const cb_problem *p = m->f->p;
    if (!any_input_due(m, top, anchor)) return run_op(m, top, anchor); /* the common case */
    m->stack.len = 0;
    if (!CB_PUSH(&m->arena, m->stack, top) || !CB_PUSH(&m->arena, m->stack, p->in_begin[top]))
        return false;
    while (m->stack.len > 0) {
        uint32_t op = m->stack.at[m->stack.len - 2], j = m->stack.at[m->stack.len - 1]++;
        if (j == p->in_begin[op + 1]) {
            m->stack.len -= 2;
            if (!run_op(m, op, anchor)) return false;
            continue;
        }
        uint32_t value = p->in_value[j], maker = p->value_op[value];
        if (!is_due(m, value, anchor)) continue;
        m->stack.at[m->stack.len - 1] = j; /* look again when the value exists */
        bool fetches =
            m->carrier[p->value_storage[value]] == maker && is_expected(m, value, anchor);
        if (fetches ? !fetch_op(m, maker, anchor)
                    : !CB_PUSH(&m->arena, m->stack, maker) ||
                          !CB_PUSH(&m->arena, m->stack, p->in_begin[maker]))
            return false;
    }
    return true;
}

/* Runs an early pair (pair.h), for later readers. */
static bool run_early(cb_offload_sim *m, cb_pair pair, uint32_t anchor) {
    uint32_t op = cb_pair_op(pair);
    bool runs = cb_pair_is_early(pair) && !cb_pair_fetches(pair) &&
                cb_pair_anchor(pair) == anchor && m->f->position[op] < anchor &&
                m->done[op] != anchor;
    return !runs || run_with_inputs(m, op, anchor);
}

/* Held values are not offloaded: their first life is that of their op's base run. */
static bool hold_first_value(cb_offload_sim *m, uint32_t value) {
    const cb_facts *f = m->f;
    uint32_t position = f->position[f->p->value_op[value]];
    uint32_t life = m->first_life[f->p->value_storage[value]]; /* for a view, the life of another
                                                                  op's storage */
    if (life != CB_NONE && !hold(m, m->life.at[life].made, life)) return false;
    return position == CB_NONE || hold(m, m->base_step[position], CB_NONE);
}

static bool hold_flagged(cb_offload_sim *m, uint8_t flag) {
    const cb_problem *p = m->f->p;
    for (uint32_t s = 0; s < p->n_storage; s++) {
        uint32_t life = m->first_life[s];
        if (!(p->storage_flags[s] & flag) || life == CB_NONE) continue;
        if (!hold(m, m->life.at[life].made, life)) return false;
    }
    return true;
}

static bool cross_to_backward(cb_offload_sim *m) {
    const cb_problem *p = m->f->p;
    m->crossing = (uint32_t)m->step.len;
    for (uint32_t i = 0; i < p->n_forward_output; i++)
        if (!hold_first_value(m, p->forward_output[i])) return false;
    bool ok = hold_flagged(m, CB_STORE_HOLD_FORWARD);
    m->n_forward_hold = m->hold.len;
    return ok;
}

static bool reach_end(cb_offload_sim *m) {
    const cb_problem *p = m->f->p;
    for (uint32_t i = 0; i < p->n_backward_output; i++) {
        uint32_t v = p->backward_output[i], s = p->value_storage[v];
        bool kept = m->f->root[s] == CB_NONE || cb_stays_to_end(m->f, s);
        if (kept ? !hold_first_value(m, v) : !hold(m, m->value_step[v], m->value_life[v]))
            return false;
    }
    return hold_flagged(m, CB_STORE_HOLD_END);
}

static bool build(cb_offload_sim *m, const cb_pair *pair, size_t n_pair) {
    const cb_facts *f = m->f;
    const uint32_t arrived = cb_arrived(f);
    size_t next = 0;
    for (uint32_t k = 0; k < f->n_base; k++) {
        if (k == f->base_backward && !cross_to_backward(m)) return false;
        size_t first = next;
        for (; next < n_pair && cb_pair_anchor(pair[next]) <= k; next++) {
            if (cb_pair_anchor(pair[next]) != k) continue;
            uint32_t op = cb_pair_op(pair[next]);
            if (cb_pair_fetches(pair[next])) m->wanted[op] = k;
            else m->marked[op] = k;
        }
        bool may_run = k < f->base_backward || k >= arrived;
        for (; may_run && first < next; first++)
            if (!run_early(m, pair[first], k)) return false;
        if (!run_with_inputs(m, f->base[k], k)) return false;
        m->base_step[k] = (uint32_t)m->step.len - 1;
    }
    if (f->base_backward == f->n_base && !cross_to_backward(m)) return false;
    return reach_end(m);
}

/* ---- what is needed -------------------------------------------------------------------------- */

static size_t reads_end(const cb_offload_sim *m, size_t step) {
    return step + 1 < m->step.len ? m->step.at[step + 1].reads : m->read.len;
}

static void mark_kept(cb_offload_sim *m) {
    const cb_facts *f = m->f;
    size_t fetch = m->fetch.len;
    for (size_t t = 0; t < m->step.len; t++) m->keep.at[t] = false;
    for (uint32_t k = 0; k < f->n_base; k++)
        if (f->p->op_flags[f->base[k]] & CB_POP_ACTS) m->keep.at[m->base_step[k]] = true;
    for (size_t i = 0; i < m->fetch.len; i++) m->keep.at[m->fetch.at[i].step] = false;
    for (size_t i = 0; i < m->hold.len; i++)
        if (m->hold.at[i].step != CB_NONE) m->keep.at[m->hold.at[i].step] = true;
    for (size_t t = m->step.len; t-- > 0;) {
        bool fetches = fetch > 0 && m->fetch.at[fetch - 1].step == t;
        fetch -= fetches;
        if (!m->keep.at[t]) continue;
        for (size_t j = m->step.at[t].reads; j < reads_end(m, t); j++)
            if (m->read.at[j].step != CB_NONE) m->keep.at[m->read.at[j].step] = true;
        if (!fetches) continue;
        cb_sim_departure *d = &m->departure.at[m->fetch.at[fetch].departure];
        d->fetches++;
        m->keep.at[d->source] = true;
    }
}

/* Numbers the runs that are kept; a fetch has the number of the run after it. */
static bool number_runs(cb_offload_sim *m) {
    size_t fetch = 0, kept = 0;
    m->run.len = 0;
    for (size_t t = 0; t < m->step.len; t++) {
        m->new_index.at[t] = (uint32_t)m->run.len;
        m->fetch_of.at[t] = CB_NONE;
        bool fetches = fetch < m->fetch.len && m->fetch.at[fetch].step == t;
        if (fetches && m->keep.at[t]) {
            m->fetch_of.at[t] = (uint32_t)kept;
            m->fetch.at[kept] = m->fetch.at[fetch];
            m->fetch.at[kept++].first = CB_NONE;
        }
        fetch += fetches;
        if (!fetches && m->keep.at[t] && !CB_PUSH(&m->arena, m->run, (uint32_t)t)) return false;
    }
    m->new_index.at[m->step.len] = (uint32_t)m->run.len;
    m->fetch.len = kept;
    m->backward = m->new_index.at[m->crossing];
    return true;
}

/* `marked` is reused: it distinguishes first runs from others. */
static void set_scratch(cb_offload_sim *m) {
    const cb_facts *f = m->f;
    if (f->has_again) fill_none(m->marked, f->p->n_op);
    for (size_t r = 0; r < m->run.len; r++) {
        uint32_t op = m->step.at[m->run.at[r]].op;
        bool again = f->has_again && m->marked[op] != CB_NONE;
        m->scratch.at[r] = f->p->op_workspace[op] + (again ? f->again_bytes[op] : 0);
        m->marked[op] = 0;
    }
}

/* Lives of dropped steps have made == CB_NONE; last == CB_NONE means that nothing reads it. */
static void set_lives(cb_offload_sim *m) {
    const cb_problem *p = m->f->p;
    uint32_t n_run = (uint32_t)m->run.len;
    for (size_t i = 0; i < m->life.len; i++) {
        cb_sim_life *life = &m->life.at[i];
        life->made = m->keep.at[life->made] ? m->new_index.at[life->made] : CB_NONE;
        life->last = CB_NONE;
        m->leaves.at[i] = false;
    }
    for (uint32_t r = 0; r < n_run; r++) {
        uint32_t t = m->run.at[r];
        for (size_t j = m->step.at[t].reads; j < reads_end(m, t); j++) {
            const cb_sim_read *read = &m->read.at[j];
            if (read->life != CB_NONE) m->life.at[read->life].last = r;
            uint32_t fetch = read->step == CB_NONE ? CB_NONE : m->fetch_of.at[read->step];
            if (fetch != CB_NONE && m->fetch.at[fetch].first == CB_NONE)
                m->fetch.at[fetch].first = r;
        }
    }
    for (size_t i = 0; i < m->hold.len; i++) {
        if (m->hold.at[i].life == CB_NONE) continue;
        cb_sim_life *life = &m->life.at[m->hold.at[i].life];
        bool end = i >= m->n_forward_hold || (p->storage_flags[life->storage] & CB_STORE_HOLD_END);
        uint32_t until = end ? n_run : m->backward;
        if (life->last == CB_NONE || life->last < until) life->last = until;
    }
}

/* A departure follows the last use of any of its lives. */
static void set_departures(cb_offload_sim *m) {
    fill_none(m->leaving_at.at, m->run.len);
    for (size_t i = m->departure.len; i-- > 0;) {
        cb_sim_departure *d = &m->departure.at[i];
        if (d->fetches == 0) continue;
        d->last = m->new_index.at[d->source];
        for (uint32_t j = d->life; j < d->life + d->n_life; j++) {
            uint32_t last = m->life.at[m->gone.at[j]].last;
            if (last != CB_NONE && last > d->last) d->last = last;
            m->leaves.at[m->gone.at[j]] = true;
        }
        for (uint32_t j = d->life; j < d->life + d->n_life; j++)
            m->life.at[m->gone.at[j]].last = d->last;
        d->next = m->leaving_at.at[d->last];
        m->leaving_at.at[d->last] = (uint32_t)i;
    }
}

static void end_life(const cb_sim_life *life, uint32_t *over) {
    if (life->made == CB_NONE) return;
    uint32_t last = life->last == CB_NONE ? life->made : life->last;
    if (last >= over[life->storage]) over[life->storage] = last + 1;
}

/* A step reads the latest life of a storage. So a fetch must not be requested before an earlier
 * life of its storages begins, or while one is read, because one of the two would replace the
 * other. Dropped lives begin nowhere, so all other lives count, not only the previous one. `latest`
 * is free at this point; here it holds the run by which the earlier lives of a storage have
 * ended. */
static void set_soonest(cb_offload_sim *m) {
    uint32_t life = 0, *over = m->latest;
    memset(over, 0, m->f->p->n_storage * sizeof *over);
    for (size_t i = 0; i < m->fetch.len; i++) {
        cb_sim_fetch *x = &m->fetch.at[i];
        x->soonest = m->departure.at[x->departure].last + 1;
        for (; life < x->life; life++) end_life(&m->life.at[life], over);
        for (uint32_t j = x->life; j < x->life + x->n_life; j++) {
            uint32_t end = over[m->life.at[j].storage];
            if (end > x->soonest) x->soonest = end;
        }
    }
}

/* Checks that a value that comes back has left: no stale view of it may be read later. */
static bool leave_first(const cb_offload_sim *m) {
    bool ok = true;
    for (size_t i = 0; i < m->fetch.len; i++)
        ok &= m->departure.at[m->fetch.at[i].departure].last < m->fetch.at[i].first;
    return ok;
}

static bool reserve(cb_offload_sim *m) {
    size_t n = m->step.len + 1;
    cb_arena *a = &m->arena;
    m->new_index.len = m->keep.len = m->leaves.len = m->fetch_of.len = 0;
    m->scratch.len = m->start.len = m->made.len = m->ends.len = m->room.len = m->leaving_at.len = 0;
    return CB_RESERVE(a, m->new_index, n) && CB_RESERVE(a, m->keep, n) &&
           CB_RESERVE(a, m->leaves, m->life.len + 1) && CB_RESERVE(a, m->fetch_of, n) &&
           CB_RESERVE(a, m->scratch, n) && CB_RESERVE(a, m->start, n) &&
           CB_RESERVE(a, m->made, n) && CB_RESERVE(a, m->ends, n) && CB_RESERVE(a, m->room, n) &&
           CB_RESERVE(a, m->leaving_at, n);
}

cb_status cb_offload_sim_run(cb_offload_sim *m, const cb_pair *pair, size_t n_pair, uint64_t target,
                             cb_error *err) {
    const cb_problem *p = m->f->p;
    m->step.len = m->read.len = m->life.len = m->hold.len = 0;
    m->fetch.len = m->departure.len = m->gone.len = 0;
    fill_none(m->value_step, p->n_value);
    fill_none(m->value_life, p->n_value);
    fill_none(m->latest, p->n_storage);
    fill_none(m->first_life, p->n_storage);
    fill_none(m->marked, p->n_op);
    fill_none(m->done, p->n_op);
    fill_none(m->wanted, p->n_op);
    fill_none(m->brought, p->n_op);
    fill_none(m->host, p->n_op);
    if (!build(m, pair, n_pair) || !reserve(m)) return cb_no_memory(err);
    mark_kept(m);
    if (!number_runs(m)) return cb_no_memory(err);
    set_scratch(m);
    set_lives(m);
    set_departures(m);
    set_soonest(m);
    m->broken = !leave_first(m);
    return cb_offload_sim_play(m, target) ? CB_OK : cb_no_memory(err);
}

cb_status cb_offload_sim_schedule(const cb_offload_sim *m, cb_arena *arena, cb_schedule *out,
                                  cb_error *err) {
    uint32_t n = (uint32_t)m->out.len;
    uint32_t *step = CB_NEW(arena, uint32_t, n);
    uint8_t *action = CB_NEW(arena, uint8_t, n);
    if (!step || !action) return cb_no_memory(err);
    for (uint32_t t = 0; t < n; t++) {
        step[t] = m->out.at[t] & ((UINT32_C(1) << CB_SIM_ACTION) - 1);
        action[t] = (uint8_t)(m->out.at[t] >> CB_SIM_ACTION);
    }
    *out = (cb_schedule){.n_step = n, .step = step, .backward_starts = m->backward_starts};
    if (m->fetch.len > 0) out->action = action;
    return CB_OK;
}
