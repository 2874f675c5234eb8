/* readers.c: each distinct set is stored once, because all cells of an array have the same ones,
 * and answers are cached for the running operation. If there are too many sets, all are forgotten:
 * a number includes the generation of its set, and old numbers stand for the empty set. */
#include "readers.h"

#include <stdbool.h>
#include <string.h>

#include "queue.h"

enum { MOST = 7, N_SETS = 1 << 16, N_ANSWERS = 64 };

typedef struct reader_set {
    uint32_t n, stamp[MOST];
} reader_set;

static struct {
    reader_set set[N_SETS];
    uint32_t n, generation;
    struct {
        uint32_t set, stamp, answer;
        bool is_known;
    } answers[N_ANSWERS]; /* cached results of adding (stamp) and of searching (stamp 0) */
} readers = {.n = 1};

void sim_readers_begin(void) { memset(readers.answers, 0, sizeof readers.answers); }

static const reader_set *set_of(uint32_t number) {
    static const reader_set empty;
    return number >> 16 == readers.generation ? &readers.set[number & 0xffff] : &empty;
}

static uint32_t number_of(const reader_set *wanted) {
    if (wanted->n == 0) return 0;
    for (uint32_t i = readers.n; i-- > 1;)
        if (memcmp(&readers.set[i], wanted, sizeof *wanted) == 0)
            return readers.generation << 16 | i;
    if (readers.n == N_SETS) {
        readers.generation++;
        readers.n = 1;
    }
    readers.set[readers.n] = *wanted;
    return readers.generation << 16 | readers.n++;
}

static uint32_t add(uint32_t set, uint32_t stamp) {
    const reader_set *old = set_of(set);
    reader_set made = {0};
    for (uint32_t i = 0; i <= old->n; i++) {
        const uint32_t one = i < old->n ? old->stamp[i] : stamp;
        if (!sim_happened_before(one) && made.n < MOST) made.stamp[made.n++] = one;
    }
    return number_of(&made);
}

static uint32_t unordered(uint32_t set) {
    const reader_set *old = set_of(set);
    for (uint32_t i = 0; i < old->n; i++)
        if (!sim_happened_before(old->stamp[i])) return old->stamp[i];
    return 0;
}

static uint32_t remembered(uint32_t set, uint32_t stamp) {
    const uint32_t i = (set * 31 + stamp) * 2654435761u >> 26;
    if (!readers.answers[i].is_known || readers.answers[i].set != set ||
        readers.answers[i].stamp != stamp) {
        readers.answers[i].answer = stamp ? add(set, stamp) : unordered(set);
        readers.answers[i].set = set;
        readers.answers[i].stamp = stamp;
        readers.answers[i].is_known = true;
    }
    return readers.answers[i].answer;
}

uint32_t sim_readers_add(uint32_t set, uint32_t stamp) { return remembered(set, stamp); }
uint32_t sim_readers_unordered(uint32_t set) { return set ? remembered(set, 0) : 0; }
