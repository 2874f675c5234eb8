/* sim_thread.h: declarations shared by translated kernels and the stand-in driver: the layout of
 * device memory, the state of a thread, and the hooks that a thread calls for everything beyond
 * its own registers.
 *
 * Device memory, shared memory, local memory and kernel parameters share one address range, with
 * one byte of state for each byte, so one check works for all of them. The device addresses are
 * mapped without access rights, and the bytes are stored at a fixed offset from them: a host
 * program that dereferences a device pointer faults, as it would with a GPU. Address randomisation
 * does not use these ranges, and AddressSanitizer and ThreadSanitizer treat them as memory of the
 * application. */
#ifndef SIM_THREAD_H
#define SIM_THREAD_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define SIM_ARENA 0x7e8000000000ull /* device addresses */
#define SIM_ARENA_BYTES (1ull << 34)
#define SIM_BYTES_AT 0x1000000000ull /* offset from a device address to its byte */
#define SIM_STATES 0x7e8800000000ull /* one byte of state for each byte */
#define SIM_CELLS 0x7ea000000000ull  /* last readers and writers: 40 bytes for each 2 bytes */

/* Windows at the end of the arena, for the memory of the block that runs. */
#define SIM_LOCAL (SIM_ARENA + SIM_ARENA_BYTES - (1ull << 30)) /* SIM_LOCAL_BYTES per thread */
#define SIM_LOCAL_BYTES (512ull << 10)
#define SIM_PARAMS (SIM_ARENA + SIM_ARENA_BYTES - (2ull << 20))
#define SIM_SHARED (SIM_ARENA + SIM_ARENA_BYTES - (1ull << 20))

enum { SIM_ADDRESSABLE = 1, SIM_WRITTEN = 2, SIM_CONSTANT = 4, SIM_FREED = 128 }; /* states */
enum { SIM_READ = 1, SIM_WRITE = 2, SIM_STRONG = 4 }; /* access; STRONG: volatile or atomic */

typedef enum {
    SIM_FINE,
    SIM_BOUNDS,
    SIM_UNWRITTEN,
    SIM_MISALIGNED,
    SIM_TO_CONSTANT,
    SIM_RACE,
    SIM_DIVERGENCE,
    SIM_HANG,
    SIM_TRAP
} sim_fault;

typedef enum {
    SIM_SYNC,
    SIM_SHUFFLE_IDX,
    SIM_SHUFFLE_UP,
    SIM_SHUFFLE_DOWN,
    SIM_SHUFFLE_BFLY,
    SIM_VOTE_ALL,
    SIM_VOTE_ANY,
    SIM_VOTE_UNI,
    SIM_VOTE_BALLOT,
    SIM_MATCH_ANY,
    SIM_MATCH_ALL,
    SIM_REDUCE_ADD,
    SIM_REDUCE_MIN,
    SIM_REDUCE_MAX,
    SIM_REDUCE_MIN_SIGNED,
    SIM_REDUCE_MAX_SIGNED,
    SIM_REDUCE_AND,
    SIM_REDUCE_OR,
    SIM_REDUCE_XOR,
    SIM_MULTIPLY,
    SIM_LOAD_MATRIX
} sim_warp_op;

typedef enum {
    SIM_BARRIER_SYNC,
    SIM_BARRIER_ARRIVE,
    SIM_BARRIER_POPC,
    SIM_BARRIER_AND,
    SIM_BARRIER_OR
} sim_barrier_kind;

typedef struct sim_product { /* a lane's part of mma.sync */
    enum { SIM_F16, SIM_BF16, SIM_TF32 } type;
    int k;
    const uint32_t *a, *b;
    uint32_t *sum; /* four floats: C, then D */
} sim_product;

typedef struct sim_thread sim_thread;

/* `site` is the line of the PTX; the upper half is the line of the CUDA C source, if known. `fault`
 * does not return, nor does a hook that finds a fault. */
typedef struct sim_hooks {
    void (*fault)(sim_thread *t, uint32_t site, sim_fault kind, uint64_t address, uint32_t bytes);
    void (*access)(sim_thread *t, uint32_t site, uint64_t address, uint32_t bytes, int access);
    void (*fence)(sim_thread *t, uint32_t site);
    void (*out_of_fuel)(sim_thread *t, uint32_t site);
    uint32_t (*warp)(sim_thread *t, uint32_t site, sim_warp_op op, uint32_t mask, uint32_t value,
                     uint32_t b, uint32_t c, bool *predicate);
    uint32_t (*barrier)(sim_thread *t, uint32_t site, uint32_t number, uint32_t threads,
                        sim_barrier_kind kind, bool predicate);
    void (*multiply)(sim_thread *t, uint32_t site, const sim_product *product);
    void (*load_matrix)(sim_thread *t, uint32_t site, uint64_t address, int count, bool transposed,
                        uint32_t out[4]);
    void (*copy)(sim_thread *t, uint32_t site, uint64_t to, uint64_t from, uint32_t bytes,
                 uint32_t given);
    void (*copy_wait)(sim_thread *t, uint32_t site, int keep); /* keep < 0: all, committed or not */
} sim_hooks;

struct sim_thread {
    uint32_t tid[3], ntid[3], ctaid[3], nctaid[3];
    uint32_t id, lane, block; /* index in its block, in its warp; of the block in the grid */
    uint32_t dynamic_shared, total_shared;
    const char *params;
    uint64_t local;
    const uint64_t *globals; /* addresses of the module's variables */
    const sim_hooks *hooks;
    int32_t fuel;    /* backward jumps left until the driver checks whether the kernel hangs */
    uint64_t issued; /* half-instructions executed so far (translate/cost.py) */
    uint32_t copy_group;
    uint32_t approximate; /* 0: approximate operations are correctly rounded */
    bool is_watched;      /* accesses are checked for races */
    bool may_read_unwritten;
};

typedef struct sim_kernel {
    const char *name; /* NULL ends the table */
    void (*run)(sim_thread *t);
    int needs_fibers; /* the kernel has a barrier or a warp operation */
    uint32_t shared_bytes, local_bytes, n_params, params_bytes, max_threads;
    const uint32_t *offsets, *sizes; /* offsets and sizes of parameters */
} sim_kernel;

typedef struct sim_pointer { /* part of a variable that holds the address of another one */
    int32_t at;              /* < 0 ends the list */
    uint32_t variable, add;
} sim_pointer;

typedef struct sim_global {
    const char *name; /* NULL ends the table */
    uint64_t bytes;   /* 0: a variable in shared memory */
    int is_constant;
    const uint8_t *data; /* NULL: zeros */
    const sim_pointer *pointers;
} sim_global;

static inline char *sim_host(uint64_t address) { return (char *)(address + SIM_BYTES_AT); }
static inline uint8_t *sim_state(uint64_t address) {
    return (uint8_t *)(address - SIM_ARENA + SIM_STATES);
}

/* Checks, eight states at a time, that `bytes` may be accessed, and marks written bytes. */
static inline void sim_check(sim_thread *t, uint32_t site, uint64_t address, uint32_t bytes,
                             int access) {
    if (__builtin_expect((address & (bytes - 1)) != 0, 0))
        t->hooks->fault(t, site, SIM_MISALIGNED, address, bytes);
    if (__builtin_expect(address - SIM_ARENA >= SIM_ARENA_BYTES, 0))
        t->hooks->fault(t, site, SIM_BOUNDS, address, bytes);
    const uint32_t step = bytes < 8 ? bytes : 8;
    const uint64_t ones = 0x0101010101010101ull >> (64 - 8 * step);
    uint8_t *at = sim_state(address);
    for (uint32_t i = 0; i < bytes; i += 8) {
        uint64_t states = 0;
        memcpy(&states, at + i, step);
        if (__builtin_expect((states & ones) != ones, 0))
            t->hooks->fault(t, site, SIM_BOUNDS, address, bytes);
        if (access & SIM_READ && !t->may_read_unwritten &&
            __builtin_expect((states & ones * SIM_WRITTEN) != ones * SIM_WRITTEN, 0))
            t->hooks->fault(t, site, SIM_UNWRITTEN, address, bytes);
        if (access & SIM_WRITE) {
            if (__builtin_expect((states & ones * SIM_CONSTANT) != 0, 0))
                t->hooks->fault(t, site, SIM_TO_CONSTANT, address, bytes);
            states |= ones * SIM_WRITTEN;
            memcpy(at + i, &states, step);
        }
    }
    if (__builtin_expect(t->is_watched, 0)) t->hooks->access(t, site, address, bytes, access);
}

/* Called at every backward jump. */
static inline void sim_burn(sim_thread *t, uint32_t site) {
    if (__builtin_expect(--t->fuel < 0, 0)) t->hooks->out_of_fuel(t, site);
}

#define SIM_MEMORY(bits)                                          \
    static inline uint##bits##_t sim_load##bits(const char *at) { \
        uint##bits##_t value;                                     \
        memcpy(&value, at, sizeof value);                         \
        return value;                                             \
    }                                                             \
    static inline void sim_store##bits(char *at, uint##bits##_t v) { memcpy(at, &v, sizeof v); }
SIM_MEMORY(8)
SIM_MEMORY(16)
SIM_MEMORY(32)
SIM_MEMORY(64)

#endif
