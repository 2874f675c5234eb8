/* names.h: the names of the planner's enum values in files and reports. Internal. */
#ifndef CB_PLAN_NAMES_H
#define CB_PLAN_NAMES_H

#include "problem.h"

extern const char *const cb_op_flag_names[];    /* by bit */
extern const char *const cb_store_flag_names[]; /* by bit */
extern const char *const cb_work_class_names[CB_WORK_CLASS_COUNT];
extern const char *const cb_constraint_names[CB_CONSTRAINT_COUNT];
extern const char *const cb_reruns_names[CB_RERUNS_COUNT];
extern const char *const cb_preset_names[CB_PRESET_COUNT];
extern const char *const cb_measure_names[CB_MEASURE_COUNT];

enum { CB_OP_FLAG_COUNT = 13, CB_STORE_FLAG_COUNT = 3 };

/* Returns why an op must not run again, because of these flags or of later writes. */
const char *cb_why_once(uint32_t op_flags);
/* Finds the index of the string `node` in `names`; the error CB_INVALID lists the names. */
CB_MUST_CHECK cb_status cb_name_index(const cb_json *node, const char *what,
                                      const char *const *names, uint32_t n, uint32_t *out,
                                      cb_error *err);
/* Returns CB_INVALID if the object has a key that is not among the `n` known ones, most likely a
 * typo. */
CB_MUST_CHECK cb_status cb_known_keys(const cb_json *object, const char *what,
                                      const char *const *known, uint32_t n, cb_error *err);
/* Checks that the document is an object with this `format` and a version from 1 to `newest`, and
 * stores it in `version`. */
CB_MUST_CHECK cb_status cb_check_format(const cb_json *root, const char *format, int64_t newest,
                                        int64_t *version, cb_error *err);
/* Like cb_problem_from_json, for text that has been parsed. */
CB_MUST_CHECK cb_status cb_problem_from_document(cb_alloc *alloc, const cb_json *root,
                                                 cb_problem **out, cb_error *err);

/* Reads a long text in little more memory than the problem takes. For invalid text,
 * cb_problem_from_json has the better error. */
CB_MUST_CHECK cb_status cb_problem_from_long_text(cb_alloc *alloc, const char *text, size_t length,
                                                  cb_problem **out, cb_error *err);

#endif
