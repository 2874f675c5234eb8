/* Lives are placed one by one, each on top of the lives below it, from the bottom to the top.
 * Consider the *pivot*, the unplaced life with the lowest possible top. The next life is always one
 * that the pivot would be in the way of (Giffler and Thompson's active schedules), or any below
 * that top. Every arena can be built in this way. Time is cut into *sections*, the moments at which
 * some life ends after another began. Every life is alive in at least one section. In each section,
 * the least offset of any unplaced life plus the bytes of all of them must fit under the capacity.
 * If the capacity equals the bytes alive at the fullest moment, there may be no gap there, so this
 * check finds a wrong choice at once.
 *
 * Three rules keep the search from repeating failures. A life that failed at its offset *sleeps*
 * until a life that overlaps it in time is placed, so no layout is built twice in another order. A
 * level that fails *blames* the levels that explain the failure, and the search jumps back to the
 * deepest of these, so it does not retry unrelated lives. And an attempt ends after a slowly
 * growing number of dead ends; the next attempt uses other ranks for its choices and another way to
 * search. MiniMalloc (Moffitt, ASPLOS 2023) searches by sections, dominance and canonical order;
 * backjumping comes from constraint solving (Prosser 1993). */
#include "pack.h"

#include "../../base/chance.h"
#include "../../base/sort.h"

#define MOST_CHOICES 48      /* choices of a level; higher lives are not tried there */
#define MOST_SUM 5000000000u /* limit of lives times their sections */
#define POLL_EVERY (1u << 22)
#define FIRST_DEAD_ENDS 200  /* dead ends of the first attempts */
#define MOST_DOUBLINGS 20    /* later attempts have twice as many */
#define PLAIN_ATTEMPTS 4     /* number of attempts that backtrack step by step */
#define LOOSE_DEAD_ENDS 4    /* dead ends before an attempt raises its capacity */
#define CAREFUL_DEAD_ENDS 20 /* the same for an attempt that searches thoroughly */
#define LOOSE_STEPS 32       /* steps from the smallest to the largest capacity */
#define WAYS 3               /* number of ways to search that later attempts use */
#define ROUND_ATTEMPTS 6     /* attempts after which every rank has been combined with every rule */

/* ---- tables ---------------------------------------------------------------------------------- */

/* `section` [n_moment + 1] gets, for each moment, the number of sections before it. */
static void cut_time(cb_pack *z, uint8_t *event, uint32_t n_moment, uint32_t *section) {
    enum { BEGINS = 1, ENDS = 2 };
    bool begun = false;
    for (uint32_t i = 0; i < z->n; i++) {
        event[z->life[i].made] |= BEGINS;
        event[z->life[i].last] |= ENDS;
    }
    section[0] = 0;
    for (uint32_t t = 0; t < n_moment; t++) {
        begun |= event[t] & BEGINS;
        bool cut = begun && event[t] & ENDS;
        section[t + 1] = section[t] + cut;
        if (cut) begun = false;
    }
    z->n_section = section[n_moment];
    for (uint32_t i = 0; i < z->n; i++) {
        z->first[i] = section[z->life[i].made];
        z->last[i] = section[z->life[i].last + 1] - 1;
    }
}

static bool get_tables(cb_pack *z) {
    const uint32_t n = z->n;
    z->n_word = (n + 2) / 64 + 1;
    z->top = CB_NEW(z->arena, cb_pack_top, z->n_section);
    z->rest = CB_NEW(z->arena, uint64_t, z->n_section);
    z->lowest = CB_NEW(z->arena, uint32_t, z->n_section);
    z->offset = CB_NEW(z->arena, uint64_t, n);
    z->under = CB_NEW(z->arena, uint32_t, n);
    z->level_of = CB_NEW(z->arena, uint32_t, n);
    z->asleep = CB_NEW(z->arena, uint32_t, n);
    z->rank = CB_NEW(z->arena, cb_pack_rank, n);
    z->n_block = (n + CB_PACK_BLOCK - 1) / CB_PACK_BLOCK;
    z->block = CB_NEW(z->arena, cb_pack_block, z->n_block);
    z->position = CB_NEW(z->arena, uint32_t, n);
    z->met = CB_NEW(z->arena, uint32_t, (size_t)n + 1);
    z->wakes = CB_NEW(z->arena, uint64_t, n);
    z->woken_in = CB_NEW(z->arena, uint32_t, n);
    z->level = CB_NEW(z->arena, cb_pack_level, (size_t)n + 2);
    z->blamed = CB_NEW(z->arena, uint64_t, ((size_t)n + 2) * z->n_word);
    bool lives = z->offset && z->under && z->level_of && z->asleep && z->wakes && z->woken_in;
    bool order = z->rank && z->block && z->position && z->met && z->level && z->blamed;
    return z->top && z->rest && z->lowest && lives && order;
}

/* Lists the lives of each section, and those that begin there. */
static bool list_lives(cb_pack *z, size_t sum) {
    const size_t n_section = z->n_section;
    uint32_t *alive = CB_NEW(z->arena, uint32_t, n_section + 2);
    uint32_t *begun = CB_NEW(z->arena, uint32_t, n_section + 2);
    z->alive = CB_NEW(z->arena, uint32_t, sum);
    z->begun = CB_NEW(z->arena, uint32_t, z->n);
    if (!alive || !begun || !z->alive || !z->begun) return false;
    for (uint32_t i = 0; i < z->n; i++) {
        begun[z->first[i] + 2]++;
        for (uint32_t s = z->first[i]; s <= z->last[i]; s++) alive[s + 2]++;
    }
    for (size_t s = 2; s < n_section + 2; s++) {
        alive[s] += alive[s - 1];
        begun[s] += begun[s - 1];
    }
    z->alive_begin = alive;
    z->begun_begin = begun;
    for (uint32_t i = 0; i < z->n; i++) {
        z->begun[begun[z->first[i] + 1]++] = i;
        for (uint32_t s = z->first[i]; s <= z->last[i]; s++) z->alive[alive[s + 1]++] = i;
    }
    return true;
}

cb_status cb_pack_init(cb_pack *z, const cb_pack_life *life, uint32_t n, cb_arena *arena,
                       cb_poll poll, bool *fits, cb_error *err) {
    *z = (cb_pack){.life = life, .n = n, .effort = CB_PACK_EFFORT, .arena = arena, .poll = poll};
    uint32_t n_moment = 0;
    for (uint32_t i = 0; i < n; i++)
        if (life[i].last >= n_moment) n_moment = life[i].last + 1;
    uint8_t *event = CB_NEW(arena, uint8_t, n_moment);
    uint32_t *section = CB_NEW(arena, uint32_t, (size_t)n_moment + 1);
    CB_TRY_NEW(z->first, arena, n, err);
    CB_TRY_NEW(z->last, arena, n, err);
    if (!event || !section) return cb_no_memory(err);
    cut_time(z, event, n_moment, section);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += z->last[i] - z->first[i] + 1;
    *fits = n > 0 && sum <= MOST_SUM / n;
    if (!*fits) return CB_OK;
    return get_tables(z) && list_lives(z, (size_t)sum) ? CB_OK : cb_no_memory(err);
}

/* ---- choices --------------------------------------------------------------------------------- */

/* Returns the unplaced life that would end lowest; of several, the one with the best rank. */
static uint32_t find_pivot(cb_pack *z) {
    uint64_t end = UINT64_MAX;
    uint32_t k = 0;
    for (uint32_t b = 0; b < z->n_block; b++) {
        const cb_pack_block *block = cb_pack_look_at(z, b);
        if (block->end >= end) continue;
        end = block->end;
        k = b * CB_PACK_BLOCK;
    }
    for (;; k++) {
        const uint32_t i = z->rank[k].id;
        if (cb_pack_is_open(z, i) && z->offset[i] + z->life[i].bytes == end) return i;
    }
}

/* True if a life with the same sections and bytes has been listed since `begin`, so this one would
 * make no difference. */
static bool is_twin(const cb_pack *z, size_t begin, uint32_t i) {
    for (size_t k = begin; k < z->choice.len; k++) {
        const uint32_t j = z->choice.at[k];
        if (z->first[i] == z->first[j] && z->last[i] == z->last[j] &&
            z->life[i].bytes == z->life[j].bytes)
            return true;
    }
    return false;
}

/* Lists `i` among the choices from `begin` on: the lowest first, then by rank, up to MOST_CHOICES.
 * Returns false if out of memory. */
static bool add_choice(cb_pack *z, size_t begin, uint32_t i) {
    bool full = z->choice.len - begin == MOST_CHOICES;
    z->looks += (z->choice.len - begin) / 4;
    if (full) z->complete = false;
    if (full && z->offset[z->choice.at[z->choice.len - 1]] <= z->offset[i]) return true;
    if (!full && !CB_PUSH(z->arena, z->choice, i)) return false;
    size_t k = z->choice.len - 1;
    for (; k > begin && z->offset[z->choice.at[k - 1]] > z->offset[i]; k--)
        z->choice.at[k] = z->choice.at[k - 1];
    z->choice.at[k] = i;
    return true;
}

/* Begins a level: lists the lives that may come next. Returns false if out of memory. */
static bool open_level(cb_pack *z, uint32_t l) {
    const uint32_t pivot = find_pivot(z);
    const uint64_t top = z->offset[pivot] + z->life[pivot].bytes;
    const size_t begin = z->choice.len;
    cb_pack_level *level = &z->level[l];
    *level = (cb_pack_level){.choice = (uint32_t)begin,
                             .below = z->below.len,
                             .lifted = z->lift.len,
                             .opened = z->trail.len};
    memset(z->blamed + (size_t)l * z->n_word, 0, z->n_word * sizeof *z->blamed);
    for (uint32_t k = 0; k < z->n; k++) {
        const uint32_t i = z->rank[k].id;
        if (k % CB_PACK_BLOCK == 0 && z->block[k / CB_PACK_BLOCK].low >= top) {
            k += CB_PACK_BLOCK - 1;
            continue;
        }
        z->looks++;
        if (!cb_pack_is_open(z, i) || z->offset[i] >= top) continue;
        if (!z->way.lowest && !cb_pack_meet(z, i, pivot)) continue;
        if (z->asleep[i]) cb_pack_blame_sleep(z, l, i);
        else if (!is_twin(z, begin, i) && !add_choice(z, begin, i)) return false;
    }
    level->n_choice = (uint32_t)z->choice.len;
    z->looks += z->n_block;
    return true;
}

/* ---- attempts -------------------------------------------------------------------------------- */

static int compare_ranks(const void *a, const void *b) {
    const cb_pack_rank *x = a, *y = b;
    if (x->rank != y->rank) return x->rank > y->rank ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Returns one criterion of a rank: size, length, or the load of the fullest section. The next
 * criterion of a rule breaks ties. */
static double rank_of(const cb_pack *z, uint32_t i, uint32_t rule, double factor) {
    const double length = z->last[i] - z->first[i] + 1.0, bytes = (double)z->life[i].bytes;
    const double moments = (double)z->life[i].last - z->life[i].made + 1.0;
    double full = 0;
    for (uint32_t s = z->first[i]; s <= z->last[i]; s++)
        if ((double)z->rest[s] > full) full = (double)z->rest[s];
    switch (rule) {
        case 0: return moments * factor + bytes * 0x1p-50;
        case 1: return full * factor + moments * bytes * 0x1p-50;
        case 2: return full * factor + moments * 0x1p-30;
        case 3: return moments * bytes * factor;
        case 4: return bytes * factor;
        case 5: return length * length * bytes * factor;
        case 6: return length * factor;
        default: return length * bytes * factor;
    }
}

static void set_ranks(cb_pack *z, uint32_t rule, bool drawn) {
    const double spread = 1.9 * cb_chance(&z->chance);
    for (uint32_t i = 0; i < z->n; i++) {
        const double factor = drawn ? 1 + spread * (cb_chance(&z->chance) - 0.5) : 1;
        z->rank[i] = (cb_pack_rank){rank_of(z, i, rule, factor), i};
    }
    cb_sort(z->rank, z->n, sizeof *z->rank, compare_ranks);
}

static void begin_attempt(cb_pack *z, uint32_t attempt) {
    static const cb_pack_way way[WAYS] = {{.lowest = true, .lifts = true, .jumps = true},
                                          {.jumps = true},
                                          {.lowest = true, .jumps = true}};
    static const uint32_t plain_rule[PLAIN_ATTEMPTS] = {
        [CB_PACK_LENGTH] = 6, [CB_PACK_SIZE] = 4, [CB_PACK_AREA] = 7, [CB_PACK_LONG_AREA] = 5};
    z->dead_ends = 0;
    z->complete = true;
    cb_pack_sum(z);
    if (attempt < PLAIN_ATTEMPTS) {
        z->way = (cb_pack_way){0};
        z->most_dead_ends = FIRST_DEAD_ENDS;
        set_ranks(z, plain_rule[attempt], false);
    } else {
        const uint32_t k = (attempt - PLAIN_ATTEMPTS) / WAYS, round = k / ROUND_ATTEMPTS;
        z->way = way[(attempt - PLAIN_ATTEMPTS) % WAYS];
        z->chance = k;
        z->most_dead_ends = (uint64_t)FIRST_DEAD_ENDS
                            << (round < MOST_DOUBLINGS ? round : MOST_DOUBLINGS);
        set_ranks(z, k % ROUND_ATTEMPTS, round > 0);
    }
    cb_pack_clear(z);
}

/* ---- the search ------------------------------------------------------------------------------ */

static cb_status wait_for(cb_pack *z, cb_error *err) {
    if (z->looks - z->polled < POLL_EVERY || !z->poll.ask) return CB_OK;
    z->polled = z->looks;
    if (!cb_poll_cancels(z->poll)) return CB_OK;
    return cb_fail(err, CB_CANCELLED, "plan: cancelled");
}

/* Takes the next choice that fits at level depth + 1; returns false if there is none left. */
static bool next_choice(cb_pack *z, uint32_t depth) {
    cb_pack_level *level = &z->level[depth + 1];
    while (level->choice < level->n_choice) {
        const uint32_t i = z->choice.at[level->choice++];
        level->life = i;
        if (cb_pack_fits_above(z, i)) return true;
        if (!z->way.jumps) continue;
        cb_pack_blame(z, depth + 1, z->full, depth);
        cb_pack_blame_under(z, depth + 1, i);
    }
    return false;
}

/* Backtracks, when nothing is left to try at level depth + 1, to a level where a change may help;
 * the life of that level has failed. `depth` receives the number of lives that stay placed; `ended`
 * is true if no life could be removed. Returns false if out of memory. */
static bool go_back(cb_pack *z, uint32_t *depth, bool *ended) {
    const uint32_t failed = *depth + 1;
    const uint32_t to = z->way.jumps ? cb_pack_find_blamed(z, failed) : *depth;
    if (to < *depth) z->complete = false;
    *ended = to == 0;
    if (*ended) return true;
    cb_pack_wind_back(z, z->level[failed].opened);
    for (uint32_t l = *depth; l > to; l--) {
        cb_pack_take_back(z, &z->level[l]);
        cb_pack_wind_back(z, z->level[l].opened);
    }
    if (z->way.jumps) cb_pack_pass_blame(z, failed, to);
    z->choice.len = z->level[to].n_choice;
    cb_pack_take_back(z, &z->level[to]);
    *depth = to - 1;
    return cb_pack_put_to_sleep(z, to);
}

/* Raises the capacity for the lives that are not placed, and tries those that failed again. Returns
 * false if out of memory. */
static bool loosen(cb_pack *z, uint32_t depth) {
    z->capacity += z->step;
    z->dead_ends = 0;
    z->complete = false;
    z->level[depth + 1].choice = depth > 0 ? z->level[depth].n_choice : 0;
    cb_pack_wind_back(z, z->level[depth + 1].opened);
    for (uint32_t i = 0; i < z->n; i++)
        if (z->asleep[i] && cb_pack_is_open(z, i) && !cb_pack_wake(z, i)) return false;
    return true;
}

/* Runs one attempt. `depth` lives are placed, each by the choice of its level before the next one
 * to try. */
static cb_status search(cb_pack *z, bool *found, bool *ended, cb_error *err) {
    uint32_t depth = 0;
    bool enters = true;
    *ended = !cb_pack_promises(z);
    while (!*ended && z->looks < z->most_looks) {
        if (z->dead_ends > z->most_dead_ends) {
            if (z->step == 0 || z->step > z->most - z->capacity) return CB_OK;
            if (!loosen(z, depth)) return cb_no_memory(err);
        }
        CB_TRY(wait_for(z, err));
        if (enters && depth == z->n) {
            *found = true;
            return CB_OK;
        }
        if (enters && !open_level(z, depth + 1)) return cb_no_memory(err);
        enters = false;
        if (next_choice(z, depth)) {
            if (!cb_pack_place(z, depth + 1)) return cb_no_memory(err);
            enters = cb_pack_promises(z);
            if (enters) {
                depth++;
                continue;
            }
            if (z->way.jumps) cb_pack_blame(z, depth + 1, z->full, depth + 1);
            cb_pack_take_back(z, &z->level[depth + 1]);
            if (!cb_pack_put_to_sleep(z, depth + 1)) return cb_no_memory(err);
        } else if (!go_back(z, &depth, ended)) {
            return cb_no_memory(err);
        }
        z->dead_ends++;
    }
    return CB_OK;
}

cb_status cb_pack_within(cb_pack *z, uint64_t capacity, bool *found, cb_error *err) {
    bool ended = false;
    *found = z->proven = false;
    z->capacity = capacity;
    z->step = 0;
    z->most_looks = z->looks + z->effort;
    for (uint32_t i = 0; !*found && !z->proven && z->looks < z->most_looks; i++) {
        begin_attempt(z, i);
        CB_TRY(search(z, found, &ended, err));
        z->proven = ended && z->complete;
    }
    return CB_OK;
}

cb_status cb_pack_loosely(cb_pack *z, uint64_t least, uint64_t most, cb_pack_rule rule, bool *found,
                          cb_error *err) {
    bool ended = false;
    *found = z->proven = false;
    z->capacity = least;
    z->most = most;
    z->step = most > least ? (most - least) / LOOSE_STEPS + 1 : 0;
    z->most_looks = z->looks + z->effort;
    /* the first way to search is the most thorough */
    const bool careful = rule >= CB_PACK_CAREFUL;
    begin_attempt(z, careful ? PLAIN_ATTEMPTS + WAYS * (rule - CB_PACK_CAREFUL) : rule);
    z->most_dead_ends = careful ? CAREFUL_DEAD_ENDS : LOOSE_DEAD_ENDS;
    return search(z, found, &ended, err);
}
