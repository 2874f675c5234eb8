/* Assigns offsets in the arena. This is dynamic storage allocation, which is NP-hard. A greedy pass
 * takes the lives in some order and gives each the smallest gap that holds it between the lives
 * that it overlaps in time (those placed so far, sorted by offset). Of four orders, the one with
 * the smallest arena wins. If that arena is larger than the peak of live bytes, a search tries to
 * place everything without gaps at the peak (pack.h), and usually succeeds. If it fails, the order
 * is changed repeatedly: a life that ends at the top is moved before one that is in its way (hill
 * climbing, as in compilers for small processors).
 *
 *   offset |  [--- saved ---------------]          long and large lives first: short ones fill
 *          |  [tmp] [tmp]   [tmp] [tmp]            the gaps that are left
 *          +---------------------------- step
 *
 * A pass examines only lives in the same window of time (blocks.h). With PATIENT_LIVES or more
 * there is no search, and further orders are tried only if the first wastes much memory; one of
 * them puts lives at the fullest moment first. With SWEPT_LIVES or more there is a single sweep
 * through time (best_fit.h): each life takes the smallest gap that is free when it begins.
 */
#include "../../base/sort.h"
#include "../pack/blocks.h"
#include "../pack/pack.h"
#include "best_fit.h"
#include "schedule.h"

#define PATIENT_LIVES 6000
#define SWEPT_LIVES 40000
#define LOAD_WEIGHT 1443
#define CLIMB_LOOKS 10000000u /* work limit of climbing, in lives: about ten milliseconds */
#define CLIMB_TRIES 6u        /* limit of orders per life */
#define QUICK_LIVES 1000      /* this many lives are packed in a few milliseconds */
#define MANY_LIVES 2600       /* more than these take tenths of a second */
#define PACK_ROUNDS 6         /* limit of a search, as a multiple of the pairs of lives */
#define LOOSE_ROUNDS 12       /* the same for an attempt with extra capacity */
#define CLOSE_PART 500        /* lives are packed if the arena exceeds its floor by 1/500, */
#define NEAR_PART \
    200             /* many lives if it exceeds it by 1/200; then also with extra
                                 capacity */
#define FAR_PART 50 /* a search within 1/200 is hopeless if the arena exceeds it by 1/50 */
#define POLL_EVERY \
    (1u << 24) /* poll after examining this many lives or gaps: about every ten
                                 milliseconds */

typedef enum order {
    BY_SIZE = 1,
    BY_AREA,
    BY_LENGTH,
    BY_START,
    ORDER_COUNT,
    BY_LOAD = ORDER_COUNT /* by the largest sum of live bytes at a moment of the life, and by size;
                             for many lives */
} order;

typedef struct item {
    uint64_t bytes; /* rounded up to the grain */
    uint64_t key;   /* larger first */
    uint32_t made, last;
    uint32_t id;
} item;

typedef struct placed {
    uint64_t begin, end;
    uint32_t made, last;
} placed;

static int compare_items(const void *a, const void *b) {
    const item *x = a, *y = b;
    if (x->key != y->key) return x->key > y->key ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static uint64_t key_of(const item *it, order by) {
    uint64_t length = (uint64_t)it->last - it->made + 1;
    switch (by) {
        case BY_SIZE: return it->bytes;
        case BY_AREA: return it->bytes > UINT64_MAX / length ? UINT64_MAX : it->bytes * length;
        case BY_LENGTH: return length;
        case BY_START:
        case BY_LOAD: break;
    }
    return UINT64_MAX - it->made;
}

typedef struct placement {
    item *items; /* [n] sorted by each pass in its own order */
    uint32_t n;
    uint64_t *offset; /* [n_instance] result of a pass */
    uint64_t top;     /* likewise: the bytes needed */
    uint64_t *load;   /* [2 n_leaf] a tree over moments: the largest sum of live bytes below each
                         node */
    uint32_t n_leaf;
    cb_poll poll;
    uint64_t looks; /* lives examined since the last poll */
} placement;

static cb_status wait_for(placement *z, uint32_t looks, cb_error *err) {
    z->looks += looks;
    if (z->looks < POLL_EVERY || !z->poll.ask) return CB_OK;
    z->looks = 0;
    if (!cb_poll_cancels(z->poll)) return CB_OK;
    return cb_fail(err, CB_CANCELLED, "plan: cancelled");
}

/* Returns the lowest of the smallest gaps that fit, or the end if none is wide enough. */
static uint64_t find_gap(const item *it, const placed *at, uint32_t n, uint64_t *top) {
    uint64_t end = 0, best = UINT64_MAX, best_width = UINT64_MAX;
    for (uint32_t i = 0; i < n; i++) {
        if (at[i].made > it->last || it->made > at[i].last) continue;
        if (at[i].begin > end && at[i].begin - end >= it->bytes && at[i].begin - end < best_width) {
            best = end;
            best_width = at[i].begin - end;
            if (best_width == it->bytes) break;
        }
        if (at[i].end > end) end = at[i].end;
    }
    uint64_t begin = best == UINT64_MAX ? end : best;
    if (begin + it->bytes > *top) *top = begin + it->bytes;
    return begin;
}

/* Inserts a placed item among the `n` placed so far. */
static void insert(placement *z, const item *it, uint64_t begin, placed *at, uint32_t n) {
    uint32_t low = 0, high = n;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (at[middle].begin <= begin) low = middle + 1;
        else high = middle;
    }
    memmove(at + low + 1, at + low, (n - low) * sizeof *at);
    at[low] = (placed){begin, begin + it->bytes, it->made, it->last};
    z->offset[it->id] = begin;
}

/* Returns the largest sum of live bytes at a moment of the life. Node k has the children 2 k and 2
 * k + 1. */
static uint64_t load_of(const placement *z, const item *it) {
    uint64_t most = 0;
    uint32_t low = it->made + z->n_leaf, high = it->last + 1 + z->n_leaf;
    for (; low < high; low /= 2, high /= 2) {
        if (low % 2 && z->load[low++] > most) most = z->load[low - 1];
        if (high % 2 && z->load[--high] > most) most = z->load[high];
    }
    return most;
}

/* Returns log2 of a positive number in units of 1 / 65536, linear between powers of two. */
static uint64_t log_of(uint64_t bytes) {
    uint64_t whole = 0, part = bytes;
    for (; part >> 1; part >>= 1) whole++;
    part = bytes << (63 - whole) << 1 >> 48; /* the bits after the highest one */
    return (whole << 16) + part;
}

/* Doubling the bytes counts as much as bringing the load nearer to the largest by 1 /
 * LOAD_WEIGHT. */
static uint64_t load_key_of(const placement *z, const item *it) {
    const double share = (double)load_of(z, it) / (double)z->load[1];
    return (uint64_t)(share * LOAD_WEIGHT * 65536) + log_of(it->bytes);
}

static void sort_items(placement *z, order by) {
    for (uint32_t i = 0; i < z->n; i++) {
        item *it = &z->items[i];
        it->key = by == BY_LOAD ? load_key_of(z, it) : key_of(it, by);
    }
    cb_sort(z->items, z->n, sizeof *z->items, compare_items);
}

/* Places all items in one order; `b` is scratch. */
static cb_status place_in_order(placement *z, order by, cb_blocks *b, cb_error *err) {
    z->top = 0;
    cb_blocks_clear(b);
    sort_items(z, by);
    for (uint32_t i = 0; i < z->n; i++) {
        const item *it = &z->items[i];
        const uint64_t looks = b->looks;
        const uint64_t begin = cb_blocks_find_gap(b, it->bytes, it->made, it->last);
        const uint64_t end = begin + it->bytes;
        if (!cb_blocks_put(b, (cb_block){begin, end, it->made, it->last})) return cb_no_memory(err);
        z->offset[it->id] = begin;
        if (end > z->top) z->top = end;
        CB_TRY(wait_for(z, (uint32_t)(b->looks - looks), err));
    }
    return CB_OK;
}

/* ---- climbing -------------------------------------------------------------------------------- */

typedef struct climb {
    placement *z;
    placed *at;             /* [n] scratch */
    const uint64_t *offset; /* [n_instance] offsets of the best order so far */
    uint64_t top;           /* the bytes that this order needs */
    uint64_t chance;
    uint64_t looks; /* number of looks so far */
} climb;

static uint32_t draw(climb *c, uint32_t n) {
    c->chance = c->chance * 6364136223846793005u + 1442695040888963407u; /* Knuth, MMIX */
    return (uint32_t)((c->chance >> 33) % n);
}

/* Picks an item that ends at the top, and an earlier item that is in its way or CB_NONE, each with
 * equal probability. */
static uint32_t draw_top(climb *c) {
    uint32_t found = CB_NONE, n = 0;
    for (uint32_t i = 0; i < c->z->n; i++) {
        const item *it = &c->z->items[i];
        if (c->offset[it->id] + it->bytes == c->top && draw(c, ++n) == 0) found = i;
    }
    return found;
}

static uint32_t draw_before(climb *c, uint32_t i) {
    const item *it = &c->z->items[i];
    uint32_t found = CB_NONE, n = 0;
    for (uint32_t j = 0; j < i; j++) {
        const item *other = &c->z->items[j];
        if (other->made > it->last || it->made > other->last) continue;
        if (draw(c, ++n) == 0) found = j;
    }
    return found;
}

/* Moves item `from` to position `to`, and shifts the items between by one. */
static void move_item(item *items, uint32_t from, uint32_t to) {
    const item it = items[from];
    if (to < from) memmove(items + to + 1, items + to, (from - to) * sizeof *items);
    else memmove(items + from, items + from + 1, (to - from) * sizeof *items);
    items[to] = it;
}

/* Places items again from the first changed one on; gives up as soon as more room is needed. */
static cb_status place_from(climb *c, uint32_t first, cb_error *err) {
    placement *z = c->z;
    z->top = 0;
    for (uint32_t i = 0; i < first; i++) {
        const uint64_t begin = c->offset[z->items[i].id];
        insert(z, &z->items[i], begin, c->at, i);
        if (begin + z->items[i].bytes > z->top) z->top = begin + z->items[i].bytes;
    }
    for (uint32_t i = first; i < z->n && z->top <= c->top; i++) {
        c->looks += i;
        CB_TRY(wait_for(z, i, err));
        const uint64_t begin = find_gap(&z->items[i], c->at, i, &z->top);
        insert(z, &z->items[i], begin, c->at, i);
    }
    return CB_OK;
}

/* `best` [n_instance] has the offsets of z->items in their order, which need `*top`. */
static cb_status climb_from(placement *z, uint64_t floor, placed *at, uint64_t *best,
                            uint32_t n_instance, uint64_t *top, cb_error *err) {
    climb c = {.z = z, .at = at, .offset = best, .top = *top};
    const uint64_t most = (uint64_t)CLIMB_TRIES * z->n;
    for (uint64_t k = 0; k < most && c.top > floor && c.looks < CLIMB_LOOKS; k++) {
        const uint32_t i = draw_top(&c), j = draw_before(&c, i);
        c.looks += z->n;
        if (j == CB_NONE) break;
        move_item(z->items, i, j);
        CB_TRY(place_from(&c, j, err));
        if (z->top > c.top) {
            move_item(z->items, j, i);
            continue;
        }
        c.top = z->top;
        memcpy(best, z->offset, n_instance * sizeof *best);
    }
    *top = c.top;
    return CB_OK;
}

/* ---- packing --------------------------------------------------------------------------------- */

static uint64_t effort_for(uint32_t n, uint32_t rounds) {
    const uint64_t own = (uint64_t)rounds * n * n;
    return own > CB_PACK_EFFORT ? own : CB_PACK_EFFORT;
}

typedef struct packer {
    cb_pack pack;
    cb_pack_life *life; /* [n] lives of the items in their current order */
    uint32_t *id;       /* [n] ids of their instances */
    bool fits;
} packer;

static cb_status packer_init(packer *x, const placement *z, cb_arena *scratch, cb_error *err) {
    CB_TRY_NEW(x->life, scratch, z->n, err);
    CB_TRY_NEW(x->id, scratch, z->n, err);
    for (uint32_t i = 0; i < z->n; i++) {
        const item *it = &z->items[i];
        x->life[i] = (cb_pack_life){.bytes = it->bytes, .made = it->made, .last = it->last};
        x->id[i] = it->id;
    }
    return cb_pack_init(&x->pack, x->life, z->n, scratch, z->poll, &x->fits, err);
}

static void take_packed(const packer *x, uint64_t *best, uint64_t *top) {
    *top = 0;
    for (uint32_t i = 0; i < x->pack.n; i++) {
        const uint64_t end = x->pack.offset[i] + x->life[i].bytes;
        best[x->id[i]] = x->pack.offset[i];
        if (end > *top) *top = end;
    }
}

/* Tries to place everything within `capacity`, which is less than `*top`. */
static cb_status pack_within(packer *x, uint64_t capacity, uint64_t *best, uint64_t *top,
                             cb_error *err) {
    bool found = false;
    if (capacity < *top) CB_TRY(cb_pack_within(&x->pack, capacity, &found, err));
    if (found) take_packed(x, best, top);
    return CB_OK;
}

/* Makes one attempt per rule with as little extra capacity as possible, below `*top`, until the
 * arena is near its floor. */
static cb_status try_rules(packer *x, cb_pack_rule first, cb_pack_rule end, uint64_t floor,
                           uint64_t *best, uint64_t *top, cb_error *err) {
    bool found;
    x->pack.effort = effort_for(x->pack.n, LOOSE_ROUNDS);
    for (cb_pack_rule rule = first; rule < end && *top - floor > floor / NEAR_PART; rule++) {
        if (rule == CB_PACK_SIZE) continue;
        CB_TRY(cb_pack_loosely(&x->pack, floor, *top - 1, rule, &found, err));
        if (found) take_packed(x, best, top);
    }
    return CB_OK;
}

/* Tries to place everything with as little extra capacity as possible, below `*top`: by the quick
 * rules, then, unless there are many lives, by full searches, within NEAR_PART or at a quarter and
 * at half of the initial extra capacity, and by the careful rules. */
static cb_status pack_loosely(packer *x, uint64_t floor, uint64_t *best, uint64_t *top,
                              cb_error *err) {
    const uint64_t room = *top - floor, near = floor / NEAR_PART;
    CB_TRY(try_rules(x, CB_PACK_LENGTH, CB_PACK_CAREFUL, floor, best, top, err));
    if (x->pack.n > MANY_LIVES) return CB_OK;
    if (*top - floor > near && *top - floor <= floor / FAR_PART)
        CB_TRY(pack_within(x, floor + near, best, top, err));
    x->pack.effort = CB_PACK_EFFORT;
    for (uint64_t part = 4; part > 1 && *top - floor > 2 * near; part /= 2)
        CB_TRY(pack_within(x, floor + room / part, best, top, err));
    return try_rules(x, CB_PACK_CAREFUL, CB_PACK_RULES, floor, best, top, err);
}

/* `best` [n_instance] has the offsets of the order `winner`, which needs `*top`. It does not search
 * for small gains in plans with many lives. */
static cb_status improve(placement *z, order winner, uint64_t floor, placed *at, uint64_t *best,
                         uint32_t n_instance, cb_arena *scratch, uint64_t *top, cb_error *err) {
    packer x;
    CB_TRY(packer_init(&x, z, scratch, err));
    x.pack.effort = effort_for(z->n, PACK_ROUNDS);
    const uint64_t part = z->n > MANY_LIVES ? NEAR_PART : CLOSE_PART;
    const bool tries = z->n <= QUICK_LIVES || *top - floor > floor / part;
    if (x.fits && tries) CB_TRY(pack_within(&x, floor, best, top, err));
    if (*top == floor) return CB_OK;
    sort_items(z, winner);
    CB_TRY(climb_from(z, floor, at, best, n_instance, top, err));
    return x.fits ? pack_loosely(&x, floor, best, top, err) : CB_OK;
}

/* ---- the sweep ------------------------------------------------------------------------------- */

/* Sorts `items` by their beginnings; items that begin together come largest first. */
static void sort_for_sweep(placement *z) {
    for (uint32_t i = 0; i < z->n; i++) z->items[i].key = key_of(&z->items[i], BY_START);
    for (uint32_t i = 0, end; i < z->n; i = end) {
        for (end = i + 1; end < z->n && z->items[end].made == z->items[i].made;) end++;
        if (end > i + 1) cb_sort(z->items + i, end - i, sizeof *z->items, compare_items);
    }
}

/* Lists the lives in the order in which they end; `end` [n_moment + 1] is scratch. */
static void list_ends(const placement *z, uint32_t *end, uint32_t n_moment, uint32_t *ending) {
    for (uint32_t i = 0; i < z->n; i++) end[z->items[i].last + 1]++;
    for (uint32_t t = 0; t < n_moment; t++) end[t + 1] += end[t];
    for (uint32_t i = 0; i < z->n; i++) ending[end[z->items[i].last]++] = i;
}

/* Places lives with a best-fit allocator. Until a life ends, its `offset` holds the number of its
 * block. */
static cb_status place_in_sweep(placement *z, uint32_t n_moment, cb_arena *scratch, cb_error *err) {
    uint32_t *ending, *end, n_gone = 0, block;
    cb_fit fit;
    CB_TRY_NEW(ending, scratch, z->n, err);
    CB_TRY_NEW(end, scratch, (size_t)n_moment + 1, err);
    sort_for_sweep(z);
    list_ends(z, end, n_moment, ending);
    cb_fit_init(&fit, scratch);
    for (uint32_t i = 0; i < z->n; i++) {
        for (; z->items[ending[n_gone]].last < z->items[i].made; n_gone++) {
            uint64_t *offset = &z->offset[z->items[ending[n_gone]].id];
            block = (uint32_t)*offset;
            *offset = fit.block.at[block].begin;
            cb_fit_give(&fit, block);
        }
        CB_TRY(wait_for(z, 1, err));
        if (!cb_fit_take(&fit, z->items[i].bytes, &block)) return cb_no_memory(err);
        z->offset[z->items[i].id] = block;
    }
    for (; n_gone < z->n; n_gone++) {
        uint64_t *offset = &z->offset[z->items[ending[n_gone]].id];
        *offset = fit.block.at[*offset].begin;
    }
    z->top = fit.top;
    return CB_OK;
}

/* ---- near what is known ---------------------------------------------------------------------- */

static bool is_free(const item *it, uint64_t begin, const placed *at, uint32_t n) {
    for (uint32_t i = 0; i < n && at[i].begin < begin + it->bytes; i++)
        if (at[i].end > begin && at[i].made <= it->last && it->made <= at[i].last) return false;
    return true;
}

/* Items keep their offsets, the larger and longer ones first; items in their way then take the
 * gaps. `at` [n] is scratch. */
static cb_status place_near(placement *z, placed *at, cb_error *err) {
    item *items = z->items;
    uint32_t n_placed = 0, n_moved = 0;
    z->top = 0;
    for (uint32_t i = 0; i < z->n; i++) items[i].key = key_of(&items[i], BY_AREA);
    cb_sort(items, z->n, sizeof *items, compare_items);
    for (uint32_t i = 0; i < z->n; i++) {
        const item it = items[i];
        const uint64_t begin = z->offset[it.id];
        CB_TRY(wait_for(z, n_placed, err));
        if (!is_free(&it, begin, at, n_placed)) {
            items[n_moved++] = it;
            continue;
        }
        insert(z, &it, begin, at, n_placed++);
        if (begin + it.bytes > z->top) z->top = begin + it.bytes;
    }
    for (uint32_t i = 0; i < n_moved; i++) {
        CB_TRY(wait_for(z, n_placed, err));
        uint64_t begin = find_gap(&items[i], at, n_placed, &z->top);
        insert(z, &items[i], begin, at, n_placed++);
    }
    return CB_OK;
}

/* Sets `load`, and `floor` to the largest sum of live bytes: no arena can be smaller. */
static cb_status sum_up(placement *z, uint32_t n_moment, cb_arena *scratch, uint64_t *floor,
                        cb_error *err) {
    CB_TRY_NEW(z->load, scratch, 2 * (size_t)n_moment, err);
    uint64_t *live = z->load + n_moment;
    z->n_leaf = n_moment;
    *floor = 0;
    for (uint32_t i = 0; i < z->n; i++) {
        live[z->items[i].made] += z->items[i].bytes;
        live[z->items[i].last + 1] -= z->items[i].bytes; /* modulo 2^64 */
    }
    for (uint32_t t = 0; t < n_moment; t++) {
        if (t > 0) live[t] += live[t - 1];
        if (live[t] > *floor) *floor = live[t];
    }
    for (uint32_t k = n_moment; k-- > 1;) {
        const uint64_t a = z->load[2 * k], b = z->load[2 * k + 1];
        z->load[k] = a > b ? a : b;
    }
    return CB_OK;
}

static uint32_t over_of(const cb_lives *lives, uint32_t i) {
    return lives->over ? lives->over[i] : CB_NONE;
}

/* Collects the lives that take bytes; returns their number. A life that takes over the memory of
 * another shares the item of that life, which has the id of the first one. `at` [n_instance] is
 * scratch. */
static uint32_t list_items(const cb_problem *p, const cb_lives *lives, item *items, uint32_t *at) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < lives->n_instance; i++) {
        const cb_instance *life = &lives->instance[i];
        uint64_t bytes = (life->bytes + p->align - 1) & ~(p->align - 1);
        if (bytes == 0) continue;
        if (over_of(lives, i) != CB_NONE) {
            at[i] = at[over_of(lives, i)];
            items[at[i]].last = life->last;
            continue;
        }
        items[n] = (item){.bytes = bytes, .made = life->made, .last = life->last, .id = i};
        at[i] = n++;
    }
    return n;
}

/* Sets the offsets of lives. A life that takes over memory comes after the life it takes it
 * from. */
static void set_offsets(cb_lives *lives, const uint64_t *offset) {
    for (uint32_t i = 0; i < lives->n_instance; i++) {
        uint32_t from = over_of(lives, i);
        lives->instance[i].offset = from == CB_NONE ? offset[i] : lives->instance[from].offset;
    }
}

cb_status cb_place_near(const cb_problem *p, cb_lives *lives, cb_arena *scratch, cb_poll poll,
                        uint64_t *arena_bytes, cb_error *err) {
    item *items = CB_NEW(scratch, item, lives->n_instance);
    placed *at = CB_NEW(scratch, placed, lives->n_instance);
    uint64_t *offset = CB_NEW(scratch, uint64_t, lives->n_instance);
    uint32_t *item_of = CB_NEW(scratch, uint32_t, lives->n_instance);
    if (!items || !at || !offset || !item_of) return cb_no_memory(err);
    for (uint32_t i = 0; i < lives->n_instance; i++)
        if (lives->instance[i].bytes > 0) offset[i] = lives->instance[i].offset;
    placement z = {.items = items, .offset = offset, .poll = poll};
    z.n = list_items(p, lives, items, item_of);
    CB_TRY(place_near(&z, at, err));
    set_offsets(lives, offset);
    *arena_bytes = z.top;
    return CB_OK;
}

/* Places by the best of several orders, then improves that by a search. Sets `z->offset`. */
static cb_status place_by_orders(placement *z, uint64_t floor, uint32_t n_instance,
                                 cb_arena *scratch, cb_error *err) {
    uint64_t *best = z->offset, *offset, smallest = UINT64_MAX;
    placed *at;
    cb_blocks blocks;
    order winner = BY_SIZE;
    const bool many = z->n > PATIENT_LIVES;
    const order end = many ? BY_LOAD + 1 : ORDER_COUNT;
    const uint64_t enough = many ? floor + floor / NEAR_PART : floor;
    CB_TRY_NEW(at, scratch, z->n, err);
    CB_TRY_NEW(offset, scratch, n_instance, err);
    CB_TRY(cb_blocks_init(&blocks, z->n_leaf, scratch, err));
    for (order by = BY_SIZE; by < end && smallest > enough; by++) {
        z->offset = offset;
        CB_TRY(place_in_order(z, by, &blocks, err));
        if (z->top >= smallest) continue;
        smallest = z->top;
        winner = by;
        memcpy(best, offset, n_instance * sizeof *best);
    }
    z->offset = offset;
    if (smallest > floor && !many)
        CB_TRY(improve(z, winner, floor, at, best, n_instance, scratch, &smallest, err));
    z->offset = best;
    z->top = smallest;
    return CB_OK;
}

static uint32_t count_moments(const cb_lives *lives) {
    uint32_t n = 1;
    for (uint32_t i = 0; i < lives->n_instance; i++)
        if (lives->instance[i].last + 2 > n) n = lives->instance[i].last + 2;
    return n;
}

static cb_status place(const cb_problem *p, cb_lives *lives, cb_arena *scratch, cb_poll poll,
                       uint64_t *arena_bytes, cb_error *err) {
    const uint32_t n_moment = count_moments(lives);
    placement z = {.poll = poll};
    uint32_t *item_of;
    uint64_t floor = 0;
    CB_TRY_NEW(z.items, scratch, lives->n_instance, err);
    CB_TRY_NEW(z.offset, scratch, lives->n_instance, err);
    CB_TRY_NEW(item_of, scratch, lives->n_instance, err);
    z.n = list_items(p, lives, z.items, item_of);
    if (z.n > SWEPT_LIVES) {
        CB_TRY(place_in_sweep(&z, n_moment, scratch, err));
    } else {
        CB_TRY(sum_up(&z, n_moment, scratch, &floor, err));
        CB_TRY(place_by_orders(&z, floor, lives->n_instance, scratch, err));
    }
    set_offsets(lives, z.offset);
    *arena_bytes = z.top;
    return CB_OK;
}

cb_status cb_place(const cb_problem *p, cb_lives *lives, cb_arena *scratch, cb_poll poll,
                   uint64_t *arena_bytes, cb_error *err) {
    cb_arena own;
    cb_arena_init(&own, scratch->alloc);
    const cb_status status = place(p, lives, &own, poll, arena_bytes, err);
    cb_arena_free(&own);
    return status;
}
