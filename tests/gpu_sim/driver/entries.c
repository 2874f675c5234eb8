/* entries.c: the exported functions. Each takes the driver's lock, returns the failure that a test
 * ordered, checks its requirements, and calls sim_<name>. All three are generated from entries.def,
 * so every entry has them. */
#include "entries.h"

#include <string.h>

#include "hooks.h"
#include "report.h"

enum { NOTHING, INIT, CONTEXT };
enum { SKIPPED = -1 };
#define X(needs, name, parameters, arguments) ENTRY_##name,
enum {
#include "entries.def"
    N_ENTRIES
};
#undef X

static struct {
    int left, code; /* calls until the failure; 0: none ordered. SKIPPED: the entry does nothing */
} ordered[N_ENTRIES];

static CUresult enter(int entry, int needs) {
    pthread_mutex_lock(&sim_device.lock);
    if (ordered[entry].left > 0 && --ordered[entry].left == 0) return (CUresult)ordered[entry].code;
    if (sim_in_host_function) return (CUresult)SIM_ERROR_NOT_PERMITTED;
    if (needs >= INIT && !sim_device.is_initialised) return (CUresult)SIM_ERROR_NOT_INITIALIZED;
    if (needs < CONTEXT) return (CUresult)0;
    if (!sim_current_context) return (CUresult)SIM_ERROR_INVALID_CONTEXT;
    return (CUresult)sim_device.failed;
}

#define X(needs, name, parameters, arguments)                      \
    SIM_EXPORT CUresult name parameters;                           \
    SIM_EXPORT CUresult name parameters {                          \
        CUresult result = enter(ENTRY_##name, needs);              \
        if (result == (CUresult)0) result = sim_##name arguments;  \
        pthread_mutex_unlock(&sim_device.lock);                    \
        return result == (CUresult)SKIPPED ? (CUresult)0 : result; \
    }
#include "entries.def"
#undef X

static const struct {
    const char *name;
    void (*function)(void);
} table[] = {
#define X(needs, name, parameters, arguments) {#name, (void (*)(void))name},
#include "entries.def"
#undef X
};

const char *sim_entry(int i) { return i >= 0 && i < N_ENTRIES ? table[i].name : NULL; }

static int entry_of(const char *name) {
    for (int i = 0; i < N_ENTRIES; i++)
        if (strcmp(table[i].name, name) == 0) return i;
    return -1;
}

int sim_skip(const char *entry, int nth) { return sim_fail(entry, nth, SKIPPED); }

int sim_is_due(const char *entry) {
    pthread_mutex_lock(&sim_device.lock);
    const int i = entry_of(entry), due = i >= 0 && ordered[i].left > 0;
    pthread_mutex_unlock(&sim_device.lock);
    return due;
}

int sim_fail(const char *entry, int nth, int code) {
    pthread_mutex_lock(&sim_device.lock);
    const int i = entry_of(entry);
    if (i >= 0) {
        ordered[i].left = nth;
        ordered[i].code = code;
    }
    pthread_mutex_unlock(&sim_device.lock);
    return i >= 0 ? 0 : -1;
}

/* Finds an entry. A name without a version means the newest one; every entry exists from CUDA 12
 * on. */
CUresult sim_cuGetProcAddress_v2(const char *name, void **function, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *found) {
    (void)flags;
    if (!name || !function) return SIM_ERROR_INVALID_VALUE;
    *function = NULL;
    const size_t length = strlen(name);
    for (int i = 0; i < N_ENTRIES && version <= sim_device.driver_version; i++) {
        const char *rest = table[i].name + length;
        if (strncmp(table[i].name, name, length) != 0) continue;
        if (*rest == '\0' || strcmp(rest, "_v2") == 0 || strcmp(rest, "WithFlags") == 0)
            memcpy(function, &table[i].function, sizeof *function);
    }
    /* 0: found; 1: no such name; 2: the driver is too old */
    if (found) *found = *function ? 0 : version <= sim_device.driver_version ? 1 : 2;
    return *function ? 0 : SIM_ERROR_NOT_FOUND;
}
