/* entries.c: the exported entries. Each takes the lock, counts the call, calls null_<name>, and
 * records it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "null.h"

#define X(needs, name, parameters, arguments) ENTRY_##name,
enum {
#include "../driver/entries.def"
#include "more_entries.def"
    N_ENTRIES
};
#undef X

null_call null_now;
null_settings null_device = {
    .log = 1, .memory = (int64_t)80 << 30, .capability = 90, .version = 13000, .registers = 32};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t calls[N_ENTRIES];
static uint64_t nanoseconds;
static struct {
    null_call *call;
    size_t n, room;
    bool is_cut; /* the log ended because memory ran out */
} recorded;

static uint64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void begin(int entry, const char *name) {
    pthread_mutex_lock(&lock);
    calls[entry]++;
    null_now = (null_call){.entry = name, .kernel = ""};
    if (null_device.log) null_now.begin_ns = clock_ns();
}

static void record(void) {
    if (recorded.n == recorded.room) {
        const size_t room = recorded.room ? 2 * recorded.room : 4096;
        null_call *larger = realloc(recorded.call, room * sizeof *larger);
        recorded.is_cut = !larger;
        if (!larger) return;
        recorded.call = larger;
        recorded.room = room;
    }
    recorded.call[recorded.n++] = null_now;
}

static CUresult end(CUresult result) {
    null_now.result = (int)result;
    if (null_device.log) {
        null_now.took_ns = clock_ns() - null_now.begin_ns;
        nanoseconds += null_now.took_ns;
        record();
    }
    pthread_mutex_unlock(&lock);
    return result;
}

#define X(needs, name, parameters, arguments) \
    NULL_EXPORT CUresult name parameters;     \
    NULL_EXPORT CUresult name parameters {    \
        begin(ENTRY_##name, #name);           \
        return end(null_##name arguments);    \
    }
#include "../driver/entries.def"
#include "more_entries.def"
#undef X

static const struct {
    const char *name;
    void (*function)(void);
} table[] = {
#define X(needs, name, parameters, arguments) {#name, (void (*)(void))name},
#include "../driver/entries.def"
#include "more_entries.def"
#undef X
};

/* Finds an entry. As in the real driver, a name without a version means the newest version. */
CUresult null_cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *found) {
    (void)flags;
    if (!name || !function) return SIM_ERROR_INVALID_VALUE;
    *function = NULL;
    const size_t length = strlen(name);
    for (int i = 0; i < N_ENTRIES && version <= (int)null_device.version; i++) {
        const char *rest = table[i].name + length;
        if (strncmp(table[i].name, name, length) != 0) continue;
        if (*rest == '\0' || strcmp(rest, "_v2") == 0 || strcmp(rest, "WithFlags") == 0)
            memcpy(function, &table[i].function, sizeof *function);
    }
    if (found) *found = *function ? 0 : version <= (int)null_device.version ? 1 : 2;
    return *function ? 0 : SIM_ERROR_NOT_FOUND;
}

const char *null_entry(int i) { return i >= 0 && i < N_ENTRIES ? table[i].name : NULL; }

int null_set(const char *name, int64_t value) {
    const struct {
        const char *name;
        int64_t *at;
    } settings[] = {{"log", &null_device.log},
                    {"memory", &null_device.memory},
                    {"capability", &null_device.capability},
                    {"version", &null_device.version},
                    {"registers", &null_device.registers}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        if (strcmp(settings[i].name, name) != 0) continue;
        pthread_mutex_lock(&lock);
        *settings[i].at = value;
        pthread_mutex_unlock(&lock);
        return 0;
    }
    return -1;
}

int64_t null_calls(const char *entry) {
    int64_t n = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < N_ENTRIES; i++)
        if (strcmp(table[i].name, entry) == 0) n = calls[i];
    pthread_mutex_unlock(&lock);
    return n;
}

static uint64_t locked(uint64_t (*read)(void)) {
    pthread_mutex_lock(&lock);
    const uint64_t value = read();
    pthread_mutex_unlock(&lock);
    return value;
}

static uint64_t spent(void) { return nanoseconds; }
uint64_t null_nanoseconds(void) { return locked(spent); }
uint64_t null_live_bytes(void) { return locked(null_live); }
uint64_t null_peak_bytes(void) { return locked(null_peak); }

void null_clear(void) {
    pthread_mutex_lock(&lock);
    memset(calls, 0, sizeof calls);
    nanoseconds = 0;
    recorded.n = 0;
    recorded.is_cut = false;
    null_reset_peak();
    pthread_mutex_unlock(&lock);
}

static void write_call(FILE *file, const null_call *c) {
    fprintf(file, "%llu\t%llu\t%s\t%s\t%u\t%u\t%u\t%u\t%u\t%u\t%u\t%llu\t%llu\t%llu\t%d\n",
            (unsigned long long)c->begin_ns, (unsigned long long)c->took_ns, c->entry, c->kernel,
            c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared,
            (unsigned long long)(uintptr_t)c->stream, (unsigned long long)c->address,
            (unsigned long long)c->bytes, c->result);
}

int null_dump(const char *path) {
    FILE *file = fopen(path, "w");
    if (!file) return -1;
    pthread_mutex_lock(&lock);
    fputs("begin_ns\ttook_ns\tentry\tkernel\tgrid_x\tgrid_y\tgrid_z\tblock_x\tblock_y\tblock_z\t"
          "shared\tstream\taddress\tbytes\tresult\n",
          file);
    for (size_t i = 0; i < recorded.n; i++) write_call(file, &recorded.call[i]);
    const bool is_whole = !recorded.is_cut && !ferror(file);
    pthread_mutex_unlock(&lock);
    return fclose(file) == 0 && is_whole ? 0 : -1;
}
