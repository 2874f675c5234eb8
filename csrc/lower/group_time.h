/* group_time.h: the time of a program's group by the cost model. Internal. */
#ifndef CB_LOWER_GROUP_TIME_H
#define CB_LOWER_GROUP_TIME_H

#include "../plan/model/cost.h"
#include "program.h"

/* Returns the picoseconds that a group takes if it moves `bytes` bytes: the larger of its
 * arithmetic and its traffic, a part of the smaller, and a launch. `p` is the problem of single
 * ops. */
int64_t cb_group_time_ps(const cb_program *program, const cb_group *group, const cb_problem *p,
                         uint64_t bytes, const cb_device *device);

#endif
