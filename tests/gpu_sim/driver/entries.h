/* entries.h: the implementation of each entry, sim_<name>, called with the driver's lock held and
 * its requirements met; and the functions shared by the parts of the driver. */
#ifndef SIM_ENTRIES_H
#define SIM_ENTRIES_H

#include <pthread.h>
#include <stdbool.h>

#include "types.h"

#define X(needs, name, parameters, arguments) CUresult sim_##name parameters;
#include "entries.def"
#undef X

/* Settings of sim_set (hooks.h), and the state of the device. */
typedef struct sim_state_of_device {
    pthread_mutex_t lock;
    int is_initialised;
    int n_devices, capability, driver_version; /* capability: 90 */
    uint64_t memory;                           /* total bytes */
    uint64_t addresses; /* allocations get consecutive addresses from these */
    sim_result failed;  /* after a kernel has failed, every call returns this */
    unsigned seed;      /* seed of orders; 0: program order */
    int watches_races, may_read_unwritten, is_quiet;
    unsigned approximate; /* seed of errors of approximate operations; 0: exact */
    uint64_t fuel;        /* backward jumps before a launch counts as endless */
    bool takes_machine_code;
    struct {
        char kernel[128];
        uint32_t line; /* line of the PTX; 0: nothing is skipped */
        uint64_t times;
    } left_out;
} sim_state_of_device;
extern sim_state_of_device sim_device;
extern _Thread_local CUcontext sim_current_context;
extern _Thread_local bool sim_in_host_function; /* host functions must not call the driver */

int sim_current_device(void);        /* device of the current context; 0 without a context */
uint64_t sim_random(uint64_t below); /* a number of a sequence that starts with the seed */

#endif
