/* Lives are placed one by one, each on top of what lies below it, from the bottom to the top. The
 * next is always one of those that the lowest possible top, of the *pivot*, would be in the way of
 * (Giffler and Thompson's active schedules): whatever arena exists can be built so. Time is cut
 * into *sections*, the moments at which something ends after something began; what is alive
 * between is alive at one of them.
 *
 *   offset |            +-------+        floor: top of what lies there
 *          |  +---------+.......|        ....   a gap for good: whatever comes next lies above
 *          |  |    +----+       |        rest:  bytes of what is to come
 *          +--+----+------------+---- section
 *
 * In each section, the least offset of any life that is to come and the bytes of all of them must
 * fit under the capacity. Where the capacity is what lives at the fullest moment no gap may be left
 * there, so this tells at once which choice was wrong; a few hundred dead ends decide whether
 * the ranks, by which the choices are tried, were good: then others are drawn. */
#include "pack.h"

#include "../../base/chance.h"
#include "../../base/sort.h"

#define MOST_DEAD_ENDS 200
#define MOST_CHOICES 48      /* of a level: what lies higher is not tried there */
#define MOST_ATTEMPTS 60     /* each with ranks of its own */
#define MOST_LOOKS 24000000u /* of a search within one capacity: some ten milliseconds */
#define MOST_SUM 1000000000u /* lives times their sections: placing takes a fortieth in looks */
#define POLL_EVERY (1u << 22)
#define NONE_THERE UINT64_MAX

/* ---- tables ---------------------------------------------------------------------------------- */

/* `section` [n_moment + 1] gets, for each moment, how many sections lie before it. */
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

cb_status cb_pack_init(cb_pack *z, const cb_pack_life *life, uint32_t n, cb_arena *arena,
                       cb_poll poll, bool *fits, cb_error *err) {
    *z = (cb_pack){.life = life, .n = n, .arena = arena, .poll = poll};
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
    z->floor = CB_NEW(arena, uint64_t, z->n_section);
    z->rest = CB_NEW(arena, uint64_t, z->n_section);
    z->least = CB_NEW(arena, uint64_t, z->n_section);
    z->offset = CB_NEW(arena, uint64_t, n);
    z->rank = CB_NEW(arena, cb_pack_rank, n);
    z->next = CB_NEW(arena, uint32_t, (size_t)n + 1);
    z->prev = CB_NEW(arena, uint32_t, (size_t)n + 1);
    z->level = CB_NEW(arena, cb_pack_level, (size_t)n + 1);
    bool all =
        z->floor && z->rest && z->least && z->offset && z->rank && z->next && z->prev && z->level;
    return all ? CB_OK : cb_no_memory(err);
}

/* ---- placing --------------------------------------------------------------------------------- */

static inline bool meet(const cb_pack *z, uint32_t i, uint32_t j) {
    return z->first[i] <= z->last[j] && z->first[j] <= z->last[i];
}

static void spoil(cb_pack *z, uint32_t i) {
    if (z->first[i] < z->stale_first) z->stale_first = z->first[i];
    if (z->last[i] > z->stale_last) z->stale_last = z->last[i];
}

/* Brings `least` up to date. False: in some section no order of what is to come fits. */
static bool is_promising(cb_pack *z) {
    const uint32_t low = z->stale_first, high = z->stale_last;
    if (low > high) return true;
    for (uint32_t s = low; s <= high; s++) z->least[s] = NONE_THERE;
    for (uint32_t i = z->next[z->n]; i != z->n; i = z->next[i]) {
        const uint32_t begin = z->first[i] > low ? z->first[i] : low;
        const uint32_t end = z->last[i] < high ? z->last[i] : high;
        const uint64_t offset = z->offset[i];
        for (uint32_t s = begin; s <= end && begin <= end; s++)
            z->least[s] = offset < z->least[s] ? offset : z->least[s];
        z->looks += begin <= end ? 2 + (end - begin) / 4 : 1;
    }
    bool fits = true;
    for (uint32_t s = low; s <= high; s++)
        fits &= z->least[s] == NONE_THERE || z->least[s] + z->rest[s] <= z->capacity;
    z->looks += high - low;
    z->stale_first = UINT32_MAX;
    z->stale_last = 0;
    return fits;
}

static bool fits_above(const cb_pack *z, uint32_t i) {
    const uint64_t top = z->offset[i] + z->life[i].bytes;
    for (uint32_t s = z->first[i]; s <= z->last[i]; s++)
        if (top + z->rest[s] - z->life[i].bytes > z->capacity) return false;
    return true;
}

/* False: no memory. */
static bool place(cb_pack *z, uint32_t i) {
    const uint64_t bytes = z->life[i].bytes, top = z->offset[i] + bytes;
    const uint32_t length = z->last[i] - z->first[i] + 1;
    if (!CB_RESERVE(z->arena, z->before, length)) return false;
    memcpy(z->before.at + z->before.len, z->floor + z->first[i], length * sizeof *z->floor);
    z->before.len += length;
    for (uint32_t s = z->first[i]; s <= z->last[i]; s++) {
        z->floor[s] = top;
        z->rest[s] -= bytes;
    }
    z->next[z->prev[i]] = z->next[i];
    z->prev[z->next[i]] = z->prev[i];
    spoil(z, i);
    for (uint32_t j = z->next[z->n]; j != z->n; j = z->next[j]) {
        if (z->offset[j] >= top || !meet(z, i, j)) continue;
        z->offset[j] = top;
        spoil(z, j);
    }
    z->looks += length + z->n / 4;
    return true;
}

/* The last that was placed, `i`, no longer is. */
static void take_back(cb_pack *z, uint32_t i, size_t floor) {
    z->before.len = floor;
    for (uint32_t s = z->first[i]; s <= z->last[i]; s++) {
        z->floor[s] = z->before.at[floor + s - z->first[i]];
        z->rest[s] += z->life[i].bytes;
    }
    z->next[z->prev[i]] = z->prev[z->next[i]] = i;
    for (uint32_t j = z->next[z->n]; j != z->n; j = z->next[j]) {
        if (!meet(z, i, j)) continue;
        uint64_t offset = 0;
        for (uint32_t s = z->first[j]; s <= z->last[j]; s++)
            if (z->floor[s] > offset) offset = z->floor[s];
        z->looks += 1 + (z->last[j] - z->first[j]) / 4;
        if (offset != z->offset[j]) spoil(z, j);
        z->offset[j] = offset;
    }
    spoil(z, i);
}

/* ---- choices --------------------------------------------------------------------------------- */

/* The life that would end lowest, of those that would the one that ranks first. */
static uint32_t find_pivot(const cb_pack *z) {
    uint32_t pivot = z->next[z->n];
    for (uint32_t i = pivot; i != z->n; i = z->next[i])
        if (z->offset[i] + z->life[i].bytes < z->offset[pivot] + z->life[pivot].bytes) pivot = i;
    return pivot;
}

/* A life of the same sections and bytes has been listed since `begin`: it makes no difference. */
static bool is_twin(const cb_pack *z, size_t begin, uint32_t i) {
    for (size_t k = begin; k < z->choice.len; k++) {
        const uint32_t j = z->choice.at[k];
        if (z->first[i] == z->first[j] && z->last[i] == z->last[j] &&
            z->life[i].bytes == z->life[j].bytes)
            return true;
    }
    return false;
}

/* Those that may come next, the lowest first, then by rank, so many at most. False: no memory. */
static bool list_choices(cb_pack *z, cb_pack_level *level) {
    const uint32_t pivot = find_pivot(z);
    const uint64_t top = z->offset[pivot] + z->life[pivot].bytes;
    const size_t begin = z->choice.len;
    *level = (cb_pack_level){.choice = (uint32_t)begin, .floor = z->before.len};
    for (uint32_t i = z->next[z->n]; i != z->n; i = z->next[i]) {
        if (z->offset[i] >= top || !meet(z, i, pivot) || is_twin(z, begin, i)) continue;
        z->looks += (z->choice.len - begin) / 4;
        bool full = z->choice.len - begin == MOST_CHOICES;
        if (full && z->offset[z->choice.at[z->choice.len - 1]] <= z->offset[i]) continue;
        if (!full && !CB_PUSH(z->arena, z->choice, i)) return false;
        size_t k = z->choice.len - 1;
        for (; k > begin && z->offset[z->choice.at[k - 1]] > z->offset[i]; k--)
            z->choice.at[k] = z->choice.at[k - 1];
        z->choice.at[k] = i;
    }
    level->n_choice = (uint32_t)z->choice.len;
    z->looks += z->n / 2;
    return true;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static int compare_ranks(const void *a, const void *b) {
    const cb_pack_rank *x = a, *y = b;
    if (x->rank != y->rank) return x->rank > y->rank ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* By length, by bytes, and two ways between; from the fifth attempt on with more or less chance. */
static double rank_of(cb_pack *z, uint32_t i, uint32_t attempt, double spread) {
    const double length = z->last[i] - z->first[i] + 1.0, bytes = (double)z->life[i].bytes;
    const double factor = attempt < 4 ? 1 : 1 + spread * (cb_chance(&z->chance) - 0.5);
    switch (attempt % 4) {
        case 0: return length * factor;
        case 1: return bytes * factor;
        case 2: return length * bytes * factor;
        default: return length * length * bytes * factor;
    }
}

static void begin_attempt(cb_pack *z, uint32_t attempt) {
    const uint32_t n = z->n;
    z->chance = attempt;
    const double spread = 1.9 * cb_chance(&z->chance);
    for (uint32_t i = 0; i < n; i++) z->rank[i] = (cb_pack_rank){rank_of(z, i, attempt, spread), i};
    cb_sort(z->rank, n, sizeof *z->rank, compare_ranks);
    for (uint32_t k = 0, last = n; k <= n; k++) {
        const uint32_t i = k < n ? z->rank[k].id : n;
        z->next[last] = i;
        z->prev[i] = last;
        last = i;
    }
    memset(z->floor, 0, z->n_section * sizeof *z->floor);
    memset(z->rest, 0, z->n_section * sizeof *z->rest);
    memset(z->offset, 0, n * sizeof *z->offset);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t s = z->first[i]; s <= z->last[i]; s++) z->rest[s] += z->life[i].bytes;
    z->choice.len = z->before.len = 0;
    z->dead_ends = 0;
    z->stale_first = 0;
    z->stale_last = z->n_section - 1;
}

/* ---- the search ------------------------------------------------------------------------------ */

static cb_status wait_for(cb_pack *z, cb_error *err) {
    if (z->looks - z->polled < POLL_EVERY || !z->poll.ask) return CB_OK;
    z->polled = z->looks;
    if (!cb_poll_cancels(z->poll)) return CB_OK;
    return cb_fail(err, CB_CANCELLED, "plan: cancelled");
}

/* `depth` lives are placed, level k's by its choice before the next one to try. */
static cb_status search(cb_pack *z, bool *found, cb_error *err) {
    uint32_t depth = 0;
    bool enters = is_promising(z);
    if (!enters) return CB_OK;
    while (depth < z->n && z->looks < z->most_looks) {
        cb_pack_level *level = &z->level[depth];
        CB_TRY(wait_for(z, err));
        if (enters && !list_choices(z, level)) return cb_no_memory(err);
        uint32_t k = level->choice;
        while (k < level->n_choice && !fits_above(z, z->choice.at[k])) k++;
        enters = false;
        if (k < level->n_choice) {
            level->choice = k + 1;
            if (!place(z, z->choice.at[k])) return cb_no_memory(err);
            enters = is_promising(z);
            if (enters) depth++;
            else take_back(z, z->choice.at[k], level->floor);
        } else if (depth > 0) {
            z->choice.len = level > z->level ? (level - 1)->n_choice : 0;
            level--;
            depth--;
            take_back(z, z->choice.at[level->choice - 1], level->floor);
        } else {
            return CB_OK;
        }
        if (!enters && ++z->dead_ends > MOST_DEAD_ENDS) return CB_OK;
    }
    *found = depth == z->n;
    return CB_OK;
}

cb_status cb_pack_within(cb_pack *z, uint64_t capacity, bool *found, cb_error *err) {
    *found = false;
    z->capacity = capacity;
    z->most_looks = z->looks + MOST_LOOKS;
    for (uint32_t i = 0; i < MOST_ATTEMPTS && !*found && z->looks < z->most_looks; i++) {
        begin_attempt(z, i);
        CB_TRY(search(z, found, err));
    }
    return CB_OK;
}
