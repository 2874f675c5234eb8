#include "pack_state.h"

#define NONE_THERE UINT64_MAX

static void spoil(cb_pack *z, uint32_t i) {
    z->block[z->position[i] / CB_PACK_BLOCK].stale = true;
    if (z->first[i] < z->stale_first) z->stale_first = z->first[i];
    if (z->last[i] > z->stale_last) z->stale_last = z->last[i];
}

void cb_pack_sum(cb_pack *z) {
    memset(z->rest, 0, z->n_section * sizeof *z->rest);
    for (uint32_t i = 0; i < z->n; i++)
        for (uint32_t s = z->first[i]; s <= z->last[i]; s++) z->rest[s] += z->life[i].bytes;
}

void cb_pack_clear(cb_pack *z) {
    const uint32_t n = z->n;
    for (uint32_t k = 0; k < n; k++) z->position[z->rank[k].id] = k;
    for (uint32_t b = 0; b < z->n_block; b++) z->block[b].stale = true;
    for (uint32_t s = 0; s < z->n_section; s++) {
        z->top[s] = (cb_pack_top){.owner = CB_NONE};
        z->lowest[s] = CB_NONE;
    }
    for (uint32_t i = 0; i < n; i++) {
        z->offset[i] = 0;
        z->under[i] = CB_NONE;
        z->asleep[i] = 0;
        z->level_of[i] = 0;
    }
    z->choice.len = z->below.len = z->trail.len = z->lift.len = 0;
    z->stale_first = 0;
    z->stale_last = z->n_section - 1;
}

/* ---- unplaced lives -------------------------------------------------------------------------- */

uint32_t cb_pack_find_open(cb_pack *z, uint32_t low, uint32_t high, uint32_t *met) {
    const uint32_t alive = z->alive_begin[low + 1], begun = z->begun_begin[high + 1];
    uint32_t n = 0;
    for (uint32_t k = z->alive_begin[low]; k < alive; k++) {
        met[n] = z->alive[k];
        n += cb_pack_is_open(z, met[n]);
    }
    for (uint32_t k = z->begun_begin[low + 1]; k < begun; k++) {
        met[n] = z->begun[k];
        n += cb_pack_is_open(z, met[n]);
    }
    z->looks += alive - z->alive_begin[low] + begun - z->begun_begin[low + 1];
    return n;
}

const cb_pack_block *cb_pack_look_at(cb_pack *z, uint32_t block) {
    cb_pack_block *b = &z->block[block];
    if (!b->stale) return b;
    const uint32_t begin = block * CB_PACK_BLOCK;
    const uint32_t end = begin + CB_PACK_BLOCK < z->n ? begin + CB_PACK_BLOCK : z->n;
    *b = (cb_pack_block){.low = NONE_THERE, .end = NONE_THERE};
    for (uint32_t k = begin; k < end; k++) {
        const uint32_t i = z->rank[k].id;
        const uint64_t low = cb_pack_is_open(z, i) ? z->offset[i] : NONE_THERE;
        const uint64_t top = cb_pack_is_open(z, i) ? low + z->life[i].bytes : NONE_THERE;
        if (low < b->low) b->low = low;
        if (top < b->end) b->end = top;
    }
    z->looks += CB_PACK_BLOCK;
    return b;
}

/* ---- placing --------------------------------------------------------------------------------- */

/* Returns the lowest offset at which a sleeping life can wake up: on top of another unplaced life.
 * The result is kept until a life is placed or removed. */
static uint64_t wakes_at(cb_pack *z, uint32_t i) {
    if (z->woken_in[i] == z->round) return z->wakes[i];
    const uint32_t n = cb_pack_find_open(z, z->first[i], z->last[i], z->met);
    uint64_t low = z->capacity;
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t j = z->met[k];
        const uint64_t top = z->offset[j] + z->life[j].bytes;
        if (j != i && top < low) low = top;
    }
    z->woken_in[i] = z->round;
    z->wakes[i] = low > z->offset[i] ? low : z->offset[i];
    return z->wakes[i];
}

/* True if the life last found for this section still fits there, below all unplaced lives. */
static bool has_room(const cb_pack *z, uint32_t s) {
    const uint32_t i = z->lowest[s];
    if (z->rest[s] == 0) return true;
    if (i == CB_NONE || z->level_of[i] > 0 || (z->way.lifts && z->asleep[i])) return false;
    return z->offset[i] + z->rest[s] <= z->capacity;
}

/* True if some unplaced life fits in this section, below all other unplaced lives. */
static bool find_room(cb_pack *z, uint32_t s) {
    const uint32_t begin = z->alive_begin[s], end = z->alive_begin[s + 1];
    bool sleeps = false;
    if (has_room(z, s)) return true;
    if (z->rest[s] > z->capacity) return false;
    const uint64_t most = z->capacity - z->rest[s];
    z->looks += 2;
    for (uint32_t k = begin; k < end; k++) {
        const uint32_t i = z->alive[k];
        z->looks++;
        if (!cb_pack_is_open(z, i) || z->offset[i] > most) continue;
        const bool lifts = z->way.lifts && z->asleep[i];
        sleeps |= lifts;
        if (lifts) continue;
        z->lowest[s] = i;
        return true;
    }
    for (uint32_t k = begin; sleeps && k < end; k++) {
        const uint32_t i = z->alive[k];
        z->looks++;
        if (!cb_pack_is_open(z, i) || z->offset[i] > most) continue;
        if (wakes_at(z, i) <= most) return true;
    }
    return false;
}

bool cb_pack_promises(cb_pack *z) {
    const uint32_t low = z->stale_first, high = z->stale_last;
    if (low > high) return true;
    z->looks += (high - low) / 2;
    z->round++;
    z->stale_first = UINT32_MAX;
    z->stale_last = 0;
    for (uint32_t s = high + 1; s-- > low;) {
        if (find_room(z, s)) continue;
        z->full = s;
        return false;
    }
    return true;
}

bool cb_pack_fits_above(cb_pack *z, uint32_t i) {
    for (uint32_t s = z->first[i]; s <= z->last[i]; s++) {
        if (z->offset[i] + z->rest[s] <= z->capacity) continue;
        z->full = s;
        return false;
    }
    return true;
}

bool cb_pack_wake(cb_pack *z, uint32_t i) {
    const cb_pack_sleep slept = {i, z->asleep[i]};
    z->asleep[i] = 0;
    spoil(z, i);
    return CB_PUSH(z->arena, z->trail, slept);
}

/* Lives that overlap `i` in time, which ends at `top`, wake up and move above it. */
static bool raise(cb_pack *z, uint32_t i, uint64_t top) {
    const uint32_t n = cb_pack_find_open(z, z->first[i], z->last[i], z->met);
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t j = z->met[k];
        if (z->asleep[j] && !cb_pack_wake(z, j)) return false;
        if (z->offset[j] >= top) continue;
        if (!CB_PUSH(z->arena, z->lift, (cb_pack_lift){j, z->under[j], z->offset[j]})) return false;
        z->offset[j] = top;
        z->under[j] = i;
        spoil(z, j);
    }
    return true;
}

bool cb_pack_place(cb_pack *z, uint32_t level) {
    const uint32_t i = z->level[level].life;
    const uint64_t bytes = z->life[i].bytes, top = z->offset[i] + bytes;
    const uint32_t length = z->last[i] - z->first[i] + 1;
    if (!CB_RESERVE(z->arena, z->below, length)) return false;
    memcpy(z->below.at + z->below.len, z->top + z->first[i], length * sizeof *z->top);
    z->below.len += length;
    for (uint32_t s = z->first[i]; s <= z->last[i]; s++) {
        z->top[s] = (cb_pack_top){top, i};
        z->rest[s] -= bytes;
    }
    z->level[level].placed = z->trail.len;
    z->level_of[i] = level;
    spoil(z, i);
    z->looks += length;
    return raise(z, i, top);
}

void cb_pack_take_back(cb_pack *z, const cb_pack_level *level) {
    const uint32_t i = level->life, length = z->last[i] - z->first[i] + 1;
    z->below.len = level->below;
    memcpy(z->top + z->first[i], z->below.at + level->below, length * sizeof *z->top);
    for (uint32_t s = z->first[i]; s <= z->last[i]; s++) z->rest[s] += z->life[i].bytes;
    z->level_of[i] = 0;
    while (z->lift.len > level->lifted) { /* these lives rest again on the lives they rested on
                                             before */
        const cb_pack_lift *was = &z->lift.at[--z->lift.len];
        z->offset[was->life] = was->offset;
        z->under[was->life] = was->under;
        spoil(z, was->life);
    }
    cb_pack_wind_back(z, level->placed);
    spoil(z, i);
}

bool cb_pack_put_to_sleep(cb_pack *z, uint32_t level) {
    const uint32_t i = z->level[level].life;
    const cb_pack_sleep awake = {i, z->asleep[i]};
    z->asleep[i] = level;
    spoil(z, i);
    return CB_PUSH(z->arena, z->trail, awake);
}

void cb_pack_wind_back(cb_pack *z, size_t length) {
    while (z->trail.len > length) {
        const cb_pack_sleep *was = &z->trail.at[--z->trail.len];
        z->asleep[was->life] = was->level;
        spoil(z, was->life);
    }
}

/* ---- blame ----------------------------------------------------------------------------------- */

static uint64_t *blamed_by(const cb_pack *z, uint32_t level) {
    return z->blamed + (size_t)level * z->n_word;
}

static bool is_blamed(const cb_pack *z, uint32_t by, uint32_t level) {
    return blamed_by(z, by)[level / 64] >> level % 64 & 1;
}

static void add_blame(cb_pack *z, uint32_t by, uint32_t level) {
    blamed_by(z, by)[level / 64] |= UINT64_C(1) << level % 64;
}

void cb_pack_blame_under(cb_pack *z, uint32_t level, uint32_t i) {
    for (i = z->under[i]; i != CB_NONE; i = z->under[i]) {
        if (is_blamed(z, level, z->level_of[i])) return;
        add_blame(z, level, z->level_of[i]);
    }
}

void cb_pack_blame(cb_pack *z, uint32_t level, uint32_t s, uint32_t depth) {
    for (uint32_t l = 1; l <= depth; l++) {
        const uint32_t i = z->level[l].life;
        if (z->first[i] > s || z->last[i] < s) continue;
        cb_pack_blame_under(z, level, i);
        add_blame(z, level, l);
    }
    const uint32_t n = cb_pack_find_open(z, s, s, z->met);
    for (uint32_t k = 0; k < n; k++) cb_pack_blame_under(z, level, z->met[k]);
    z->looks += depth / 2;
}

void cb_pack_blame_sleep(cb_pack *z, uint32_t level, uint32_t i) {
    const uint32_t slept = z->asleep[i];
    const uint64_t *from = blamed_by(z, slept);
    uint64_t *to = blamed_by(z, level);
    for (uint32_t w = 0; w < slept / 64; w++) to[w] |= from[w];
    to[slept / 64] |= from[slept / 64] & ((UINT64_C(1) << slept % 64) - 1);
}

uint32_t cb_pack_find_blamed(const cb_pack *z, uint32_t level) {
    uint32_t l = level - 1;
    while (l > 0 && !is_blamed(z, level, l)) l--;
    return l;
}

void cb_pack_pass_blame(cb_pack *z, uint32_t from, uint32_t to) {
    const uint64_t *a = blamed_by(z, from);
    uint64_t *b = blamed_by(z, to);
    for (uint32_t w = 0; w <= to / 64; w++) b[w] |= a[w];
}
