/* late.h: the search for a budget when ops of the backward may run late or again. Internal.
 *
 * Two searchers answer: one reruns only ops of the forward, the other also those of the backward
 * (facts.h: `all`), and the better plan is the answer. Neither is enough, because more choices make
 * a search of fixed effort worse where they do not help. Each chooses from a set of plans that does
 * not depend on the budget, and so do both together: a larger budget never gives a slower plan, a
 * smaller one never a larger plan (ladder.h). */
#ifndef CB_PLAN_LATE_H
#define CB_PLAN_LATE_H

#include "../search/search.h"

typedef struct cb_late cb_late; /* allocated in an arena */

/* Forbids delaying the ops of the backward whose values the final effects read (cb_problem_tail),
 * because a late op could run after such an effect. */
void cb_late_keep_ends(cb_facts *f);

/* `forward` reruns only ops of the forward, and is borrowed. `tools` are those of the searcher for
 * all ops. */
CB_MUST_CHECK cb_status cb_late_new(const cb_search_tools *tools, cb_searcher *forward,
                                    cb_arena *arena, cb_late **out, cb_error *err);
void cb_late_free(cb_late *s); /* NULL is fine */
/* Like cb_searcher_expect, for both searchers. */
void cb_late_expect(cb_late *s, const cb_goal *goal, uint32_t n);
/* Like cb_searcher_ask. The bound holds for plans of both searchers. */
CB_MUST_CHECK cb_status cb_late_ask(cb_late *s, const cb_goal *goal, cb_found *out, cb_error *err);
/* Like cb_searcher_prove_moves, for plans of either searcher. */
CB_MUST_CHECK cb_status cb_late_prove_moves(cb_late *s, const cb_goal *goal, cb_found *found,
                                            cb_error *err);

#endif
