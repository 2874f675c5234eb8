/* Finds the fastest schedule of a small step within a budget, by best-first search; best_first.py
 * compiles and runs it. It shares no code with the library.
 *
 *     best_first BUDGET BELOW_PS MOST_STATES < STEP
 *
 * A state is a position in the given order and the set of storages in memory. From a state the op
 * at the position runs, or is left out if it may run late, or any earlier op that may move runs.
 * Values stay in memory until there is no room; then each minimal set of values that makes enough
 * room gives a new state. The estimate of the remaining time assumes unlimited memory, so it is
 * never too high. Storages with 0 bytes are never dropped.
 *
 * STEP: counts of ops and storages, the position where the backward starts; for each storage bytes,
 * and whether it is returned, an output, and held; for each op picoseconds, whether it may run
 * again, whether it may be left out, scratch, and its inputs and outputs as counted lists. Prints
 * "found", picoseconds and the positions of the ops in the order in which they run; or "none"; or
 * "open" and picoseconds that no schedule beats. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OPS = 128, MOST_STORAGES = 128 };
typedef struct set {
    uint64_t w[2];
} set;

typedef struct op {
    int64_t ps, scratch;
    int again, late;
    set in, out;
} op;

typedef struct state {
    set held;
    int64_t ps, left;
    int32_t from;
    int16_t at, ran; /* ran: -1 if the op was left out */
} state;

typedef struct entry {
    int64_t ps;
    int32_t at, id;
} entry;

static int n_op, n_storage, starts;
static op ops[MOST_OPS];
static int64_t bytes_of[MOST_STORAGES], budget, below;
static set returned, ends, held, small;
static state *states;
static int32_t n_state, most_states, *table;
static uint32_t mask;
static entry *heap;
static size_t n_heap, room_heap;

static set both(set a, set b) { return (set){{a.w[0] & b.w[0], a.w[1] & b.w[1]}}; }
static set any(set a, set b) { return (set){{a.w[0] | b.w[0], a.w[1] | b.w[1]}}; }
static set minus(set a, set b) { return (set){{a.w[0] & ~b.w[0], a.w[1] & ~b.w[1]}}; }
static bool empty(set a) { return !(a.w[0] | a.w[1]); }
static bool equal(set a, set b) { return a.w[0] == b.w[0] && a.w[1] == b.w[1]; }
static set one(int s) { return (set){{s < 64 ? 1ull << s : 0, s < 64 ? 0 : 1ull << (s - 64)}}; }

static int64_t bytes(set a) {
    int64_t sum = 0;
    for (int half = 0; half < 2; half++)
        for (uint64_t w = a.w[half]; w; w &= w - 1) sum += bytes_of[64 * half + __builtin_ctzll(w)];
    return sum;
}

/* Picoseconds of the ops that must still run if memory had no limit; -1: no schedule is left. */
static int64_t left_of(int at, set here) {
    set want = minus(ends, here);
    int64_t sum = 0;
    for (int i = n_op - 1; i >= 0; i--) {
        bool wanted = !empty(both(ops[i].out, want));
        if (i < at && wanted && !ops[i].again) return -1;
        if (!wanted && (i < at || ops[i].late)) continue;
        sum += ops[i].ps;
        want = any(want, minus(ops[i].in, here));
    }
    return sum;
}

/* Returns the storages that an op may still read, or that must stay. */
static set useful(int at, set here) {
    set use = any(ends, small);
    for (int i = n_op - 1; i >= 0; i--) {
        set made = both(ops[i].out, minus(use, both(held, here)));
        if (i >= at || (ops[i].again && !empty(made))) use = any(use, ops[i].in);
    }
    return at <= starts ? any(use, returned) : use;
}

static void fail(const char *why) {
    fprintf(stderr, "%s\n", why);
    exit(2);
}

static void push_heap(entry e) {
    if (n_heap == room_heap) {
        room_heap = room_heap ? 2 * room_heap : 1024;
        heap = realloc(heap, room_heap * sizeof *heap);
        if (!heap) fail("out of memory");
    }
    size_t i = n_heap++;
    for (; i > 0; i = (i - 1) / 2) {
        const entry *up = &heap[(i - 1) / 2];
        if (up->ps < e.ps || (up->ps == e.ps && up->at >= e.at)) break;
        heap[i] = *up;
    }
    heap[i] = e;
}

static entry pop_heap(void) {
    entry top = heap[0], e = heap[--n_heap];
    size_t i = 0;
    for (size_t k; (k = 2 * i + 1) < n_heap; i = k) {
        const entry *a = &heap[k], *b = &heap[k + 1];
        if (k + 1 < n_heap && (b->ps < a->ps || (b->ps == a->ps && b->at > a->at))) k++;
        if (e.ps < heap[k].ps || (e.ps == heap[k].ps && e.at >= heap[k].at)) break;
        heap[i] = heap[k];
    }
    heap[i] = e;
    return top;
}

/* Returns the entry of a state in the table: its index, or -1 if it is not there. */
static int32_t *find(int at, set here) {
    uint64_t h = here.w[0] * 0x9E3779B97F4A7C15u ^ (here.w[1] + (uint64_t)at) * 0xC2B2AE3D27D4EB4Fu;
    h = (h ^ h >> 29) * 0xBF58476D1CE4E5B9u;
    for (uint32_t i = (uint32_t)(h >> 32) & mask;; i = (i + 1) & mask) {
        int32_t id = table[i];
        if (id < 0 || (states[id].at == at && equal(states[id].held, here))) return &table[i];
    }
}

static void reach(int at, set here, int64_t ps, int32_t from, int ran) {
    here = both(here, any(useful(at, here), held));
    int64_t left = left_of(at, here);
    if (left < 0 || ps + left >= below || n_state == most_states) return;
    int32_t *place = find(at, here);
    if (*place >= 0 && states[*place].ps <= ps) return;
    if (*place < 0) *place = n_state++;
    states[*place] = (state){here, ps, left, from, (int16_t)at, (int16_t)ran};
    push_heap((entry){ps + left, at, *place});
}

typedef struct run {
    const state *from;
    int32_t id;
    int op, next;
    int droppable[MOST_STORAGES], n;
    int64_t after[MOST_STORAGES + 1]; /* bytes of those from here on */
} run;

/* Drops each minimal set of values, the largest first, that gives `lacks` bytes. */
static void drop(const run *r, int k, set kept, int64_t lacks) {
    if (lacks <= 0) {
        const op *o = &ops[r->op];
        reach(r->next, any(kept, o->out), r->from->ps + o->ps, r->id, r->op);
    } else if (r->after[k] >= lacks) {
        int s = r->droppable[k];
        drop(r, k + 1, minus(kept, one(s)), lacks - bytes_of[s]);
        drop(r, k + 1, kept, lacks);
    }
}

static void try_run(const state *from, int32_t id, int i, int next) {
    const op *o = &ops[i];
    run r = {.from = from, .id = id, .op = i, .next = next};
    if (!empty(minus(o->in, from->held))) return;
    set fixed = any(any(o->in, o->out), any(held, small));
    if (from->at <= starts) fixed = any(fixed, returned);
    set may = minus(from->held, fixed);
    for (int s = 0; s < n_storage; s++) {
        if (empty(both(may, one(s)))) continue;
        int k = r.n++;
        for (; k > 0 && bytes_of[r.droppable[k - 1]] < bytes_of[s]; k--)
            r.droppable[k] = r.droppable[k - 1];
        r.droppable[k] = s;
    }
    for (int k = r.n; k-- > 0;) r.after[k] = r.after[k + 1] + bytes_of[r.droppable[k]];
    int64_t room = bytes(from->held) + bytes(minus(o->out, from->held)) + o->scratch;
    room += bytes(both(both(o->out, from->held), held)); /* a second copy */
    drop(&r, 0, from->held, room - budget);
}

static void expand(int32_t id) {
    const state from = states[id];
    if (from.at < n_op) try_run(&from, id, from.at, from.at + 1);
    if (from.at < n_op && ops[from.at].late) reach(from.at + 1, from.held, from.ps, id, -1);
    for (int i = 0; i < from.at; i++) {
        bool misses = !empty(minus(ops[i].out, from.held));
        if (ops[i].again && misses) try_run(&from, id, i, from.at);
    }
}

static long long number(void) {
    long long x;
    if (scanf("%lld", &x) != 1) fail("bad input");
    return x;
}

static set list(void) {
    set made = {{0, 0}};
    for (long long n = number(); n > 0; n--) made = any(made, one((int)number()));
    return made;
}

static void read_step(void) {
    n_op = (int)number();
    n_storage = (int)number();
    starts = (int)number();
    if (n_op > MOST_OPS || n_storage > MOST_STORAGES) fail("too large");
    for (int s = 0; s < n_storage; s++) {
        bytes_of[s] = number();
        if (number()) returned = any(returned, one(s));
        if (number()) ends = any(ends, one(s));
        if (number()) held = any(held, one(s));
        if (bytes_of[s] == 0) small = any(small, one(s));
    }
    for (int i = 0; i < n_op; i++) {
        op *o = &ops[i];
        o->ps = number();
        o->again = (int)number();
        o->late = (int)number();
        o->scratch = number();
        o->in = list();
        o->out = list();
    }
}

static void print_runs(int32_t id) {
    if (id < 0) return;
    int32_t chain[4096], n = 0;
    for (; id >= 0 && n < 4096; id = states[id].from) chain[n++] = id;
    while (n-- > 0)
        if (states[chain[n]].ran >= 0) printf(" %d", states[chain[n]].ran);
}

int main(int argc, char **argv) {
    if (argc != 4) fail("usage: best_first BUDGET BELOW_PS MOST_STATES < STEP");
    budget = atoll(argv[1]);
    below = atoll(argv[2]);
    most_states = atoi(argv[3]);
    read_step();
    for (mask = 1; mask < 2u * (uint32_t)most_states;) mask *= 2;
    states = malloc((size_t)most_states * sizeof *states);
    table = malloc((size_t)mask * sizeof *table);
    if (!states || !table) fail("out of memory");
    memset(table, 0xff, (size_t)mask * sizeof *table);
    mask--;
    reach(0, (set){{0, 0}}, 0, -1, -1);
    for (int64_t proven = 0; n_heap > 0;) {
        entry e = pop_heap();
        const state *s = &states[e.id];
        if (e.ps > s->ps + s->left) continue; /* reached faster since */
        if (n_state == most_states) {
            printf("open %lld\n", (long long)proven);
            return 0;
        }
        if (s->at == n_op && empty(minus(ends, s->held))) {
            printf("found %lld", (long long)s->ps);
            print_runs(e.id);
            printf("\n");
            return 0;
        }
        proven = e.ps;
        expand(e.id);
    }
    printf("none\n");
    return 0;
}
