/* problem_format.h: definitions shared by the writer and the reader of problem files. Internal. */
#ifndef CB_PLAN_PROBLEM_FORMAT_H
#define CB_PLAN_PROBLEM_FORMAT_H

#define CB_PROBLEM_FORMAT "cutback.problem"
#define CB_PROBLEM_VERSION 3

#endif
