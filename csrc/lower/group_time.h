/* group_time.h: what a group of a program takes by the cost model. Internal. */
#ifndef CB_LOWER_GROUP_TIME_H
#define CB_LOWER_GROUP_TIME_H

#include "../plan/model/cost.h"
#include "program.h"

/* Picoseconds of the group, which moves so many bytes: what its arithmetic or its traffic takes,
 * whichever is more, a part of the other, and a launch. The problem is that of single ops. */
int64_t cb_group_time_ps(const cb_program *program, const cb_group *group, const cb_problem *p,
                         uint64_t bytes, const cb_device *device);

#endif
