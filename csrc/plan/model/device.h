/* device.h: rows of the cost model as text, including rows that are not in its table. Internal.
 *
 * A row is a name of the table ("a100"), that name for a machine that fuses ("a100+fused"), or an
 * object with its numbers:
 *
 *   {"name": "mine", "flops_per_s": {"f32": 1e13}, "bytes_per_s": 1e12, "launch_s": 5e-6,
 *    "link_bytes_per_s": 1e10, "fused": true, "point_per_s": {"f32": 1e10}}
 *
 * Missing classes of work are as fast as f32; the last three keys are optional. A plan carries the
 * numbers of such a row, so it gives the same figures on every machine. */
#ifndef CB_PLAN_DEVICE_H
#define CB_PLAN_DEVICE_H

#include "../../base/json.h"
#include "cost.h"

/* Reads a name, or the JSON text of an object; the row is allocated in `arena`. NULL gives NULL. */
CB_MUST_CHECK cb_status cb_device_parse(const char *text, cb_arena *arena, const cb_device **out,
                                        cb_error *err);
CB_MUST_CHECK cb_status cb_device_from_json(const cb_json *node, cb_arena *arena,
                                            const cb_device **out, cb_error *err);
CB_MUST_CHECK cb_status cb_device_copy(const cb_device *device, cb_arena *arena,
                                       const cb_device **out, cb_error *err);
/* Writes its name if that denotes exactly this row, otherwise the object. */
void cb_device_put(cb_json_writer *w, const char *key, const cb_device *device);

#endif
