/* Makes the timeline of a plan that has been built (offload_sim.c): the positions of fetches, and
 * the clock.
 *
 * First each fetch gets its latest start, last reader first: its copy ends when its reader starts,
 * or when the next copy on the lane begins. Then, first reader first, it must not begin before
 * there is room for it until it is read. Departures do not count there, because only the clock
 * knows how long their copies take; if necessary, a wait makes room. */
#include "offload_timeline.h"

#include "../model/over.h"

static const cb_sim_step *step_of(const cb_offload_sim *m, uint32_t run) {
    return &m->step.at[m->run.at[run]];
}

/* ---- memory taken over ----------------------------------------------------------------------- */

/* Returns the bytes that the run's output takes over from an input. Values that leave for the host
 * keep their memory. With keep_saved, so do lives that begin before the backward and are read in
 * it. */
static uint64_t taken_bytes(const cb_offload_sim *m, uint32_t run) {
    const cb_problem *p = m->f->p;
    const cb_sim_step *step = step_of(m, run);
    uint32_t n = cb_count_over(p, step->op);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = m->read.at[step->reads + cb_over_of(p, step->op)[i]].life;
        const cb_sim_life *life = at == CB_NONE ? NULL : &m->life.at[at];
        if (!life || life->last != run || m->leaves.at[at]) continue;
        if (p->keep_saved && run >= m->backward && life->made < m->backward) continue;
        return cb_over_bytes(p, step->op);
    }
    return 0;
}

/* These bytes count once: they are subtracted from scratch, modulo 2^64. */
static void take_over(cb_offload_sim *m) {
    for (uint32_t r = 0; m->f->p->over_begin && r < m->run.len; r++)
        m->scratch.at[r] -= taken_bytes(m, r);
}

/* Requests the fetch before `run`. If that is in the forward, keep_saved prevents outputs in the
 * backward from taking over its memory, so its last readers take more bytes. Returns the largest
 * sum of bytes at one of those readers; 0 if there are none. */
static uint64_t begin_fetch(cb_offload_sim *m, const cb_sim_fetch *x, uint32_t run) {
    const cb_problem *p = m->f->p;
    uint64_t most = 0;
    if (!p->keep_saved || !p->over_begin) return 0;
    for (uint32_t i = x->life; i < x->life + x->n_life; i++) {
        cb_sim_life *life = &m->life.at[i];
        uint32_t last = life->last;
        if (last == CB_NONE || last < m->backward || last >= m->run.len) continue;
        uint64_t taken = taken_bytes(m, last);
        /* The backward begins with a run, not with a fetch. */
        life->made = run <= m->backward ? m->backward - 1 : run;
        taken -= taken_bytes(m, last);
        m->scratch.at[last] += taken;
        m->room.at[last] += taken;
        if (m->room.at[last] > most) most = m->room.at[last];
    }
    return most;
}

/* ---- when fetches are requested -------------------------------------------------------------- */

static uint64_t read_bytes(const cb_offload_sim *m, const cb_sim_fetch *x) {
    uint64_t bytes = 0;
    for (uint32_t i = x->life; i < x->life + x->n_life; i++)
        if (m->life.at[i].last != CB_NONE) bytes += m->f->p->storage_bytes[m->life.at[i].storage];
    return bytes;
}

/* Computes the bytes that begin and end with each run, without fetches and departures; and the
 * bytes alive if fetches begin when they are read and departures are freed at once. */
static void set_profile(cb_offload_sim *m) {
    const cb_facts *f = m->f;
    uint32_t n = (uint32_t)m->run.len;
    uint64_t now = 0, *made = m->made.at, *ends = m->ends.at, *room = m->room.at;
    memset(made, 0, ((size_t)n + 1) * sizeof *made);
    memset(ends, 0, ((size_t)n + 1) * sizeof *ends);
    memset(room, 0, ((size_t)n + 1) * sizeof *room);
    for (size_t i = 0; i < m->life.len; i++) {
        const cb_sim_life *life = &m->life.at[i];
        if (life->made == CB_NONE) continue;
        made[life->made] += f->p->storage_bytes[life->storage];
        if (!m->leaves.at[i])
            ends[life->last == CB_NONE ? life->made : life->last] +=
                f->p->storage_bytes[life->storage];
    }
    for (size_t i = 0; i < m->fetch.len; i++) { /* those lives begin elsewhere */
        const cb_sim_fetch *x = &m->fetch.at[i];
        for (uint32_t j = x->life; j < x->life + x->n_life; j++) {
            uint64_t bytes = f->p->storage_bytes[m->life.at[j].storage];
            made[m->life.at[j].made] -= bytes;
            if (m->life.at[j].last == CB_NONE) ends[m->life.at[j].made] -= bytes;
        }
        room[x->first] += read_bytes(m, x);
    }
    for (uint32_t r = 0; r < n; r++) {
        now += made[r] + room[r];
        room[r] = now + m->scratch.at[r];
        now -= ends[r];
        for (uint32_t d = m->leaving_at.at[r]; d != CB_NONE; d = m->departure.at[d].next)
            now -= m->departure.at[d].bytes;
    }
}

/* Returns the last run in [low, high] that starts by `when`; `low` if none does. */
static uint32_t find_run(const cb_offload_sim *m, uint32_t low, uint32_t high, int64_t when) {
    while (low < high) {
        uint32_t middle = low + (high - low + 1) / 2;
        if (m->start.at[middle] <= when) low = middle;
        else high = middle - 1;
    }
    return low;
}

/* Sorts fetches by their readers. They were built nearly in that order. */
static void sort_fetches(cb_offload_sim *m) {
    for (size_t i = 1; i < m->fetch.len; i++) {
        cb_sim_fetch x = m->fetch.at[i];
        size_t j = i;
        for (; j > 0 && m->fetch.at[j - 1].first > x.first; j--)
            m->fetch.at[j] = m->fetch.at[j - 1];
        m->fetch.at[j] = x;
    }
}

static void set_latest_starts(cb_offload_sim *m) {
    int64_t next = INT64_MAX;
    m->start.at[0] = 0;
    for (uint32_t r = 0; r < m->run.len; r++)
        m->start.at[r + 1] = m->start.at[r] + m->f->time_ps[step_of(m, r)->op];
    for (size_t i = m->fetch.len; i-- > 0;) {
        cb_sim_fetch *x = &m->fetch.at[i];
        int64_t end = m->start.at[x->first] < next ? m->start.at[x->first] : next;
        next = end - m->copy_ps[x->op];
        x->at = find_run(m, 0, x->first, next);
    }
}

static void find_room(cb_offload_sim *m, uint64_t target) {
    uint32_t before = 0;
    for (size_t i = 0; i < m->fetch.len; i++) {
        cb_sim_fetch *x = &m->fetch.at[i];
        uint64_t bytes = read_bytes(m, x);
        uint32_t low = x->soonest; /* must not begin before the value has left */
        if (low < before) low = before;
        if (low < x->at) low = x->at;
        x->at = x->first;
        begin_fetch(m, x, x->at);
        for (uint32_t r = x->first; r > low && m->room.at[r - 1] + bytes <= target; r--) {
            if (r - 1 == m->backward && begin_fetch(m, x, r - 1) > target) {
                begin_fetch(m, x, r);
                break;
            }
            m->room.at[r - 1] += bytes;
            x->at = r - 1;
        }
        before = x->at;
    }
}

/* ---- the clock ------------------------------------------------------------------------------- */

typedef struct player {
    cb_offload_sim *m;
    uint64_t target, live, held;
    int64_t clock, out_free, in_free;
    size_t n_gone, n_back, next, due; /* `next`: to be requested; `due`: to be read */
    bool failed;
} player;

static void emit(player *z, uint32_t op, cb_action action) {
    cb_offload_sim *m = z->m;
    if (!CB_PUSH(&m->arena, m->out, op | (uint32_t)action << CB_SIM_ACTION)) z->failed = true;
}

static void free_gone(player *z) {
    cb_offload_sim *m = z->m;
    for (; z->n_gone < m->leaving.len && m->leaving.at[z->n_gone].end <= z->clock; z->n_gone++)
        z->live -= m->leaving.at[z->n_gone].bytes;
}

static void count(player *z, uint32_t run, uint64_t bytes) {
    cb_offload_sim *m = z->m;
    uint64_t *moment = run < m->run.len ? &m->moment[step_of(m, run)->anchor] : NULL;
    if (moment && bytes > *moment) *moment = bytes;
    if (bytes > m->peak) m->peak = bytes;
}

static void stall_until(player *z, int64_t when) {
    if (when <= z->clock) return;
    z->m->stall_ps += when - z->clock;
    z->clock = when;
}

/* Waits for outgoing copies until there is room for `bytes` more. */
static void make_room(player *z, uint64_t bytes) {
    cb_offload_sim *m = z->m;
    while (z->live + bytes > z->target && z->n_gone < m->leaving.len) {
        emit(z, m->leaving.at[z->n_gone].op, CB_ACTION_WAIT);
        stall_until(z, m->leaving.at[z->n_gone].end);
        free_gone(z);
    }
}

/* Starts fetching a value, if there is room or no time left. */
static bool send_for(player *z, cb_sim_fetch *x, uint32_t run) {
    cb_offload_sim *m = z->m;
    uint64_t read = read_bytes(m, x);
    free_gone(z);
    uint64_t step = m->made.at[run] + m->scratch.at[run];
    if (x->first > run && z->live + step + x->bytes > z->target) return false;
    make_room(z, x->bytes);
    begin_fetch(m, x, run);
    emit(z, x->op, CB_ACTION_IN);
    count(z, run, z->live + x->bytes);
    z->live += read;
    cb_sim_departure *d = &m->departure.at[x->departure];
    z->in_free = cb_later(cb_later(z->in_free, d->end), z->clock) + m->copy_ps[x->op];
    x->at = (uint32_t)(m->held.len); /* from here on the bytes are those of the copy */
    cb_sim_copy copy = {.end = z->in_free, .op = x->op};
    if (--d->fetches == 0) copy.bytes = d->bytes; /* the host no longer needs the value */
    if (!CB_PUSH(&m->arena, m->held, copy)) z->failed = true;
    return true;
}

static void send_away(player *z, cb_sim_departure *d) {
    cb_offload_sim *m = z->m;
    free_gone(z);
    for (; z->n_back < m->held.len && m->held.at[z->n_back].end <= z->clock; z->n_back++)
        z->held -= m->held.at[z->n_back].bytes;
    z->held += d->bytes;
    if (z->held > m->host_bytes) m->host_bytes = z->held;
    m->moved_bytes += d->bytes;
    z->out_free = d->end = cb_later(z->out_free, z->clock) + m->copy_ps[d->op];
    emit(z, d->op, CB_ACTION_OUT);
    if (!CB_PUSH(&m->arena, m->leaving, (cb_sim_copy){d->end, d->bytes, d->op})) z->failed = true;
}

static void play_run(player *z, uint32_t r) {
    cb_offload_sim *m = z->m;
    const cb_facts *f = m->f;
    uint32_t op = step_of(m, r)->op;
    uint64_t scratch = m->scratch.at[r];
    free_gone(z);
    make_room(z, m->made.at[r] + scratch);
    if (r == m->backward) m->backward_starts = (uint32_t)m->out.len;
    emit(z, op, CB_ACTION_RUN);
    z->live += m->made.at[r];
    count(z, r, z->live + scratch);
    for (; z->due < z->next && m->fetch.at[z->due].first == r; z->due++)
        stall_until(z, m->held.at[m->fetch.at[z->due].at].end);
    z->clock += f->time_ps[op];
    z->live -= m->ends.at[r];
    for (uint32_t d = m->leaving_at.at[r]; d != CB_NONE; d = m->departure.at[d].next)
        send_away(z, &m->departure.at[d]);
}

bool cb_offload_sim_play(cb_offload_sim *m, uint64_t target) {
    player z = {.m = m, .target = target};
    uint32_t n_run = (uint32_t)m->run.len;
    m->peak = m->moved_bytes = m->host_bytes = 0;
    m->stall_ps = 0;
    m->out.len = m->leaving.len = m->held.len = 0;
    memset(m->moment, 0, m->f->n_base * sizeof *m->moment);
    take_over(m);
    sort_fetches(m);
    set_profile(m);
    set_latest_starts(m);
    find_room(m, target);
    for (uint32_t r = 0; r < n_run; r++) {
        while (z.next < m->fetch.len && m->fetch.at[z.next].at <= r &&
               send_for(&z, &m->fetch.at[z.next], r))
            z.next++;
        play_run(&z, r);
    }
    if (m->backward >= n_run) m->backward_starts = (uint32_t)m->out.len;
    m->time_ps = z.clock;
    return !z.failed;
}
