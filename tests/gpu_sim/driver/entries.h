/* entries.h: the work of each entry, sim_<name>, called with the driver's lock held and what the
 * entry needs there; and what the parts of the driver ask of each other. */
#ifndef SIM_ENTRIES_H
#define SIM_ENTRIES_H

#include <pthread.h>
#include <stdbool.h>

#include "types.h"

#define X(needs, name, parameters, arguments) CUresult sim_##name parameters;
#include "entries.def"
#undef X

/* What tests set through sim_set (hooks.h), and the state of the device. */
typedef struct sim_state_of_device {
    pthread_mutex_t lock;
    int is_initialised;
    int n_devices, capability, driver_version; /* capability: 90 */
    uint64_t memory;                           /* bytes in all */
    uint64_t addresses; /* of which allocations take theirs, one after another */
    sim_result failed;  /* once a kernel has failed, everything fails with this */
    unsigned seed;      /* of orders; 0: the order of the program */
    int watches_races, may_read_unwritten, is_quiet;
    unsigned approximate; /* seed of errors of approximate operations; 0: none */
    uint64_t fuel;        /* jumps backward in a launch before it counts as endless */
    bool takes_machine_code;
    struct {
        char kernel[128];
        uint32_t line; /* of the PTX; 0: nothing is left out */
        uint64_t times;
    } left_out;
} sim_state_of_device;
extern sim_state_of_device sim_device;
extern _Thread_local CUcontext sim_current_context;
extern _Thread_local bool sim_in_host_function; /* which may not call the driver */

int sim_current_device(void);        /* of the current context; 0 without one */
uint64_t sim_random(uint64_t below); /* of a sequence that starts with the seed */

#endif
