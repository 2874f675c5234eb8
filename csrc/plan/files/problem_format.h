/* problem_format.h: what writer and reader of problem files agree on. Internal. */
#ifndef CB_PLAN_PROBLEM_FORMAT_H
#define CB_PLAN_PROBLEM_FORMAT_H

#define CB_PROBLEM_FORMAT "cutback.problem"
#define CB_PROBLEM_VERSION 3

#endif
