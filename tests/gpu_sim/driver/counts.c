/* counts.c: counts bytes in sectors of 32 bytes, as a GPU moves them. A sector that is read many
 * times, such as one of a bias, stays in a cache and counts once. A sector that is read a few times
 * may have been evicted in between, so its further reads are counted separately. */
#include "counts.h"

#include <stdio.h>
#include <sys/mman.h>

#include "../runtime/sim_thread.h"
#include "hooks.h"

enum { LAUNCHES = 1024, SECTOR = 32, FEW = 8 /* times that a sector is read */ };

typedef struct sector {
    uint32_t launch;        /* the launch that the bytes belong to */
    uint16_t read, written; /* bytes, at most (FEW + 1) * SECTOR */
} sector;

static struct {
    bool is_on;
    int n;
    uint32_t stamp;
    sector *sectors; /* sectors of all device memory, mapped on first use */
    struct {
        char name[64];
        sim_counts_of_launch counts;
    } launch[LAUNCHES];
} all;

bool sim_counts(void) { return all.is_on && all.n < LAUNCHES; }

void sim_count_from_now(bool counts) {
    const size_t bytes = SIM_ARENA_BYTES / SECTOR * sizeof(sector);
    if (counts && !all.sectors) {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
        all.sectors = at == MAP_FAILED ? NULL : at;
    }
    all.is_on = counts && all.sectors;
    all.n = 0;
    all.stamp++;
    all.launch[0].counts = (sim_counts_of_launch){0};
}

static void count(sector *s, uint32_t bytes, int access) {
    sim_counts_of_launch *c = &all.launch[all.n].counts;
    if (s->launch != all.stamp) *s = (sector){.launch = all.stamp};
    if (access & SIM_WRITE && !s->written) s->written = SECTOR, c->written += SECTOR;
    if (!(access & SIM_READ) || s->read > FEW * SECTOR) return;
    if (!s->read) c->read += SECTOR;
    const uint32_t before = s->read < SECTOR ? SECTOR : s->read, after = s->read + bytes;
    s->read = (uint16_t)after;
    if (after > FEW * SECTOR) c->again -= before - SECTOR;
    else if (after > SECTOR) c->again += after - before;
}

void sim_count_access(uint64_t address, uint32_t bytes, int access) {
    if (address >= SIM_LOCAL) return; /* shared memory, local memory and parameters */
    const uint32_t each = bytes < SECTOR ? bytes : SECTOR;
    for (uint32_t i = 0; i < bytes; i += each)
        count(&all.sectors[(address + i - SIM_ARENA) / SECTOR], each, access);
}

void sim_count_launch(const char *kernel, uint64_t halves) {
    if (!sim_counts()) return;
    all.launch[all.n].counts.instructions = halves / 2;
    (void)snprintf(all.launch[all.n].name, sizeof all.launch->name, "%s", kernel);
    all.n++, all.stamp++;
    if (all.n < LAUNCHES) all.launch[all.n].counts = (sim_counts_of_launch){0};
}

const char *sim_counted(int i, sim_counts_of_launch *counts) {
    if (i < 0 || i >= all.n) return NULL;
    *counts = all.launch[i].counts;
    return all.launch[i].name;
}
