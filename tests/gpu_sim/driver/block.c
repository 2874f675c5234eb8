/* block.c: the scheduler. A thread runs until it has to wait; then the next ready one runs. The
 * seed determines the order in which threads begin and continue after a barrier. If no thread is
 * ready and some are waiting, the block has diverged. */
#include "block.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "counts.h"
#include "entries.h"
#include "fiber.h"
#include "memory.h"
#include "races.h"
#include "report.h"

enum { STACK = 256 << 10, FUEL = 4096, N_BARRIERS = 16 };

sim_fiber sim_fibers[SIM_MAX_THREADS];
sim_running sim_now;

static struct {
    char *stacks;
    void *main_stack;
    sim_fiber *current;
    uint16_t order[SIM_MAX_THREADS];
    uint16_t ready[SIM_MAX_THREADS + 1]; /* a ring */
    uint32_t first, last;
    struct {
        uint32_t arrived, expected; /* expected 0: all live threads */
        uint16_t clock;             /* the latest of the arrived threads */
    } barrier[N_BARRIERS];
    uint64_t burnt, issued;
} run;

static sim_fiber *of(sim_thread *t) { return (sim_fiber *)t; }

/* Descriptions of events */

void sim_where(const sim_fiber *f, uint32_t site, char *text, size_t n) {
    const sim_thread *t = &f->thread;
    const int length = snprintf(text, n, "%s block (%u,%u,%u) thread (%u,%u,%u) PTX line %u",
                                sim_now.launch->kernel->name, t->ctaid[0], t->ctaid[1], t->ctaid[2],
                                t->tid[0], t->tid[1], t->tid[2], site & 0xffff);
    if (site >> 16 && length > 0 && (size_t)length < n)
        snprintf(text + length, n - (size_t)length, ", source line %u", site >> 16);
}

void sim_fail_block(sim_fault fault) {
    sim_now.fault = fault;
    void *never;
    sim_switch(&never, run.main_stack);
}

static void on_fault(sim_thread *t, uint32_t site, sim_fault fault, uint64_t address,
                     uint32_t bytes) {
    static const char *const words[] = {
        [SIM_BOUNDS] = "out of bounds",
        [SIM_UNWRITTEN] = "read of unwritten memory",
        [SIM_MISALIGNED] = "misaligned",
        [SIM_TO_CONSTANT] = "write to constant memory",
        [SIM_TRAP] = "trap",
    };
    char where[256], place[200] = "";
    const char *word = words[fault];
    sim_where(of(t), site, where, sizeof where);
    if (fault == SIM_TRAP) {
        sim_report("%s: trap", where);
        sim_fail_block(fault);
    }
    sim_memory_describe(address, place, sizeof place);
    if (fault == SIM_BOUNDS && address - SIM_ARENA < SIM_ARENA_BYTES &&
        *sim_state(address) & SIM_FREED)
        word = "use after free";
    sim_report("%s: %s: %u bytes at %s", where, word, bytes, place);
    sim_fail_block(fault);
}

static void report_divergence(void) {
    char text[600] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < sim_now.n_threads && n + 120 < sizeof text; i++) {
        const sim_fiber *f = &sim_fibers[i];
        uint32_t same = 0;
        bool is_first = f->state == IN_WARP_OP || f->state == AT_BARRIER;
        for (uint32_t j = 0; j < sim_now.n_threads; j++) {
            const bool is_same = sim_fibers[j].state == f->state && sim_fibers[j].site == f->site;
            if (is_same && j < i) is_first = false;
            same += is_same;
        }
        if (!is_first) continue;
        const char *what = f->state == AT_BARRIER ? "a barrier" : "a warp operation";
        n += (size_t)snprintf(text + n, sizeof text - n,
                              "%s%u threads (the first is %u) wait at %s in PTX line %u",
                              n ? "; " : "", same, i, what, f->site & 0xffff);
    }
    const sim_thread *t = &sim_fibers[0].thread;
    sim_report("%s block (%u,%u,%u): divergence: %s; %u have ended", sim_now.launch->kernel->name,
               t->ctaid[0], t->ctaid[1], t->ctaid[2], text, sim_now.n_threads - sim_now.n_alive);
}

/* Turns */

void sim_wake(sim_fiber *f) {
    f->state = READY;
    run.ready[run.last] = (uint16_t)f->thread.id;
    run.last = (run.last + 1) % (SIM_MAX_THREADS + 1);
}

static sim_fiber *take_ready(void) {
    const uint16_t id = run.ready[run.first];
    run.first = (run.first + 1) % (SIM_MAX_THREADS + 1);
    return &sim_fibers[id];
}

/* Runs others; f continues when it is READY and its turn comes. */
static void next(sim_fiber *f) {
    if (run.first == run.last) {
        if (sim_now.n_alive == 0) {
            sim_switch(&f->stack, run.main_stack);
            return;
        }
        report_divergence();
        sim_fail_block(SIM_DIVERGENCE);
    }
    sim_fiber *other = run.current = take_ready();
    if (other != f) sim_switch(&f->stack, other->stack);
}

void sim_wait(sim_fiber *f) {
    if (f->state != READY) next(f);
}

static void on_out_of_fuel(sim_thread *t, uint32_t site) {
    t->fuel = FUEL;
    run.burnt += FUEL;
    if (run.burnt > sim_device.fuel) {
        char where[256];
        sim_where(of(t), site, where, sizeof where);
        sim_report("%s: no end after %llu jumps backward", where, (unsigned long long)run.burnt);
        sim_fail_block(SIM_HANG);
    }
    if (sim_now.launch->kernel->needs_fibers && run.first != run.last) {
        sim_wake(of(t));
        next(of(t));
    }
}

bool sim_is_left_out(uint32_t site) {
    if (sim_now.left_out == 0 || (site & 0xffff) != sim_now.left_out) return false;
    sim_device.left_out.times++;
    return true;
}

static void on_fence(sim_thread *t, uint32_t site) {
    if (sim_device.watches_races && !sim_is_left_out(site)) sim_races_fence(of(t));
}

/* Barriers of the block */

static void complete_barrier(uint32_t number) {
    const uint32_t expected =
        run.barrier[number].expected ? run.barrier[number].expected : sim_now.n_alive;
    if (run.barrier[number].arrived == 0 || run.barrier[number].arrived < expected) return;
    uint32_t n_true = 0, site = 0, n = 0;
    uint16_t clock = run.barrier[number].clock;
    for (uint32_t i = 0; i < sim_now.n_threads; i++) {
        const sim_fiber *f = &sim_fibers[i];
        if (f->state != AT_BARRIER || f->barrier != number) continue;
        if (n++ && f->site != site) {
            const sim_thread *t = &f->thread;
            sim_report(
                "%s block (%u,%u,%u): divergence: one barrier has threads from PTX lines %u and %u",
                sim_now.launch->kernel->name, t->ctaid[0], t->ctaid[1], t->ctaid[2], site & 0xffff,
                f->site & 0xffff);
            sim_fail_block(SIM_DIVERGENCE);
        }
        site = f->site;
        n_true += f->predicate;
        if (f->barriers > clock) clock = f->barriers;
    }
    run.barrier[number].arrived = run.barrier[number].clock = 0;
    sim_races_barrier(n);
    for (uint32_t k = 0; k < sim_now.n_threads; k++) {
        sim_fiber *f = &sim_fibers[run.order[k]];
        if (f->state != AT_BARRIER || f->barrier != number) continue;
        f->barriers = clock + 1;
        f->result = f->kind == SIM_BARRIER_AND  ? n_true == n
                    : f->kind == SIM_BARRIER_OR ? n_true > 0
                                                : n_true;
        sim_wake(f);
    }
}

static uint32_t on_barrier(sim_thread *t, uint32_t site, uint32_t number, uint32_t threads,
                           sim_barrier_kind kind, bool predicate) {
    sim_fiber *f = of(t);
    if (sim_is_left_out(site)) return predicate;
    number %= N_BARRIERS;
    run.barrier[number].arrived++;
    run.barrier[number].expected = threads;
    f->site = site;
    if (kind == SIM_BARRIER_ARRIVE) {
        if (f->barriers > run.barrier[number].clock) run.barrier[number].clock = f->barriers;
        complete_barrier(number);
        return 0;
    }
    f->barrier = number;
    f->kind = kind;
    f->predicate = predicate;
    f->state = AT_BARRIER;
    complete_barrier(number);
    next(f);
    return f->result;
}

/* Completes a cp.async. The bytes arrive only when the thread waits for them, so a thread that does
 * not wait reads unwritten memory; both moments count as writes. */
static void arrive(sim_fiber *f, uint32_t site, const sim_copy *copy) {
    memset(sim_host(copy->to), 0, copy->bytes);
    memcpy(sim_host(copy->to), sim_host(copy->from), copy->given);
    sim_check(&f->thread, site, copy->to, copy->bytes, SIM_WRITE);
}

static void on_copy_wait(sim_thread *t, uint32_t site, int keep) {
    sim_fiber *f = of(t);
    int left = 0;
    if (site && sim_is_left_out(site)) return;
    for (int i = 0; i < f->n_copies; i++) {
        const sim_copy copy = f->copies[i];
        const int behind = (int)(t->copy_group - copy.group); /* groups begun since then */
        if (keep < 0 || behind > keep) arrive(f, site, &copy);
        else f->copies[left++] = copy;
    }
    f->n_copies = left;
}

static void on_copy(sim_thread *t, uint32_t site, uint64_t to, uint64_t from, uint32_t bytes,
                    uint32_t given) {
    sim_fiber *f = of(t);
    sim_check(t, site, to, bytes, SIM_WRITE);
    if (given > bytes) on_fault(t, site, SIM_BOUNDS, from, given);
    if (from % bytes != 0) on_fault(t, site, SIM_MISALIGNED, from, bytes);
    for (uint32_t i = 0; i < given && given < bytes; i++) sim_check(t, site, from + i, 1, SIM_READ);
    if (given == bytes) sim_check(t, site, from, bytes, SIM_READ);
    sim_memory_set_states(to, bytes, SIM_ADDRESSABLE);
    if (f->n_copies == SIM_COPIES) {
        char where[256];
        sim_where(f, site, where, sizeof where);
        sim_report("%s: more than %d copies that nobody waits for", where, SIM_COPIES);
        sim_fail_block(SIM_HANG);
    }
    f->copies[f->n_copies++] = (sim_copy){to, from, bytes, given, t->copy_group};
}

/* Running a block */

/* Ends a thread, which is then no longer counted: others may have been waiting only for it. */
static void end_thread(sim_fiber *f) {
    on_copy_wait(&f->thread, 0, -1);
    f->state = DONE;
    run.issued += f->thread.issued;
    sim_now.n_alive--;
    const uint32_t warp = f->thread.id / SIM_WARP;
    sim_now.gone[warp] |= 1u << f->thread.lane;
    for (uint32_t lane = 0; lane < SIM_WARP; lane++)
        if (sim_now.arrived[warp] >> lane & 1)
            sim_finish_warp(&sim_fibers[warp * SIM_WARP + lane], NULL);
    for (uint32_t number = 0; number < N_BARRIERS; number++)
        if (run.barrier[number].expected == 0) complete_barrier(number);
}

static void fiber_main(void) {
    sim_fiber *f = run.current;
    sim_now.launch->kernel->run(&f->thread);
    end_thread(f);
    next(f);
}

/* Runs all threads, one after another, on one stack, if there are no barriers and warp
 * operations. */
static void all_threads(void) {
    for (uint32_t k = 0; k < sim_now.n_threads; k++) {
        sim_fiber *f = run.current = &sim_fibers[run.order[k]];
        sim_now.launch->kernel->run(&f->thread);
        end_thread(f);
    }
    void *never;
    sim_switch(&never, run.main_stack);
}

static void on_access(sim_thread *t, uint32_t site, uint64_t address, uint32_t bytes, int access) {
    if (sim_counts()) sim_count_access(address, bytes, access);
    if (sim_device.watches_races) sim_races_access(t, site, address, bytes, access);
}

static sim_hooks hooks = {
    .fault = on_fault,
    .access = on_access,
    .fence = on_fence,
    .out_of_fuel = on_out_of_fuel,
    .barrier = on_barrier,
    .copy = on_copy,
    .copy_wait = on_copy_wait,
};

static void set_up_thread(uint32_t id, uint32_t block) {
    const sim_launch *launch = sim_now.launch;
    const uint32_t *g = launch->grid, *b = launch->block;
    const uint32_t shared = launch->kernel->shared_bytes + launch->dynamic_shared;
    sim_fiber *f = &sim_fibers[id];
    memset(f, 0, offsetof(sim_fiber, copies));
    f->thread = (sim_thread){
        .tid = {id % b[0], id / b[0] % b[1], id / b[0] / b[1]},
        .ntid = {b[0], b[1], b[2]},
        .ctaid = {block % g[0], block / g[0] % g[1], block / g[0] / g[1]},
        .nctaid = {g[0], g[1], g[2]},
        .id = id,
        .lane = id % SIM_WARP,
        .block = block,
        .dynamic_shared = launch->dynamic_shared,
        .total_shared = shared,
        .params = launch->params,
        .local = SIM_LOCAL + id * SIM_LOCAL_BYTES,
        .globals = launch->globals,
        .hooks = &hooks,
        .fuel = FUEL,
        .approximate = sim_device.approximate,
        .is_watched = sim_device.watches_races || sim_counts(),
        .may_read_unwritten = sim_device.may_read_unwritten,
    };
    sim_now.gone[id / SIM_WARP] &= ~(1u << id % SIM_WARP);
    if (launch->kernel->local_bytes) {
        sim_memory_set_states(f->thread.local, launch->kernel->local_bytes, SIM_ADDRESSABLE);
        memset(sim_host(f->thread.local), 0xff, launch->kernel->local_bytes);
    }
}

static void run_block(uint32_t block) {
    const sim_kernel *kernel = sim_now.launch->kernel;
    const uint32_t shared = kernel->shared_bytes + sim_now.launch->dynamic_shared;
    sim_memory_set_states(SIM_SHARED, shared, SIM_ADDRESSABLE);
    memset(sim_host(SIM_SHARED), 0xff, shared);
    memset(sim_now.arrived, 0, sizeof sim_now.arrived);
    memset(sim_now.gone, 0xff, sizeof sim_now.gone);
    memset(run.barrier, 0, sizeof run.barrier);
    sim_now.n_alive = sim_now.n_threads;
    run.first = run.last = 0;
    sim_races_block(block);
    for (uint32_t id = 0; id < sim_now.n_threads; id++) set_up_thread(id, block);
    sim_fiber *first = &sim_fibers[run.order[0]];
    if (kernel->needs_fibers) {
        for (uint32_t k = 0; k < sim_now.n_threads; k++) {
            sim_fiber *f = &sim_fibers[run.order[k]];
            f->stack = sim_stack(run.stacks + f->thread.id * (size_t)STACK, STACK, fiber_main);
            sim_wake(f);
        }
        (void)take_ready(); /* the first thread */
    } else {
        first->stack = sim_stack(run.stacks, STACK, all_threads);
    }
    run.current = first;
    sim_switch(&run.main_stack, first->stack);
}

/* Returns number i of the numbers below n, permuted by the seed. */
static uint32_t place_in_order(uint32_t i, uint32_t n, uint32_t factor, uint32_t start) {
    if (sim_device.seed == 0) return i;
    if (sim_device.seed == 1) return n - 1 - i;
    return (uint32_t)(((uint64_t)i * factor + start) % n);
}

static uint32_t common_divisor(uint32_t a, uint32_t b) {
    while (b) {
        const uint32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

sim_fault sim_run_grid(const sim_launch *launch) {
    const sim_kernel *kernel = launch->kernel;
    const size_t all_stacks = (size_t)SIM_MAX_THREADS * STACK;
    if (!run.stacks) {
        const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        char *stacks = mmap(NULL, all_stacks, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (stacks == MAP_FAILED) return SIM_HANG;
        run.stacks = stacks;
    }
    sim_now = (sim_running){.launch = launch};
    if (strcmp(sim_device.left_out.kernel, kernel->name) == 0)
        sim_now.left_out = sim_device.left_out.line;
    sim_now.n_threads = launch->block[0] * launch->block[1] * launch->block[2];
    sim_now.n_blocks = launch->grid[0] * launch->grid[1] * launch->grid[2];
    run.burnt = run.issued = 0;
    hooks.warp = sim_warp_hooks.warp;
    hooks.multiply = sim_warp_hooks.multiply;
    hooks.load_matrix = sim_warp_hooks.load_matrix;
    for (uint32_t i = 0; i < sim_now.n_threads; i++)
        run.order[i] = (uint16_t)(sim_device.seed == 1 ? sim_now.n_threads - 1 - i : i);
    for (uint32_t i = sim_now.n_threads; sim_device.seed > 1 && i > 1; i--) {
        const uint64_t j = sim_random(i);
        const uint16_t held = run.order[i - 1];
        run.order[i - 1] = run.order[j];
        run.order[j] = held;
    }
    const uint32_t n = sim_now.n_blocks;
    uint32_t factor = 1 + (uint32_t)sim_random(n), start = (uint32_t)sim_random(n);
    while (common_divisor(factor, n) != 1) factor++;
    sim_memory_set_states(SIM_PARAMS, kernel->params_bytes,
                          SIM_ADDRESSABLE | SIM_WRITTEN | SIM_CONSTANT);
    memcpy(sim_host(SIM_PARAMS), launch->params, kernel->params_bytes);
    for (uint32_t i = 0; i < n && sim_now.fault == SIM_FINE; i++)
        run_block(place_in_order(i, n, factor, start));
    const uint32_t shared = kernel->shared_bytes + launch->dynamic_shared;
    sim_memory_set_states(SIM_SHARED, shared, 0);
    sim_memory_set_states(SIM_PARAMS, kernel->params_bytes, 0);
    for (uint32_t id = 0; kernel->local_bytes && id < sim_now.n_threads; id++)
        sim_memory_set_states(SIM_LOCAL + id * SIM_LOCAL_BYTES, kernel->local_bytes, 0);
    sim_count_launch(kernel->name, run.issued);
    return sim_now.fault;
}
