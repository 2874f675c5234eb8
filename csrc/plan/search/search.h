/* search.h: the fastest schedule found that keeps a budget. Internal. */
#ifndef CB_PLAN_SEARCH_H
#define CB_PLAN_SEARCH_H

#include "../../base/threads.h"
#include "../../include/cutback.h"
#include "../cut/mincut.h"
#include "../schedule/goal.h"

/* What a search works with; all of it stays the caller's, and is changed. */
typedef struct cb_search_tools {
    const cb_facts *f;
    cb_cut *cut;
    cb_sim *sim;
    cb_threads *threads; /* may be NULL: then it takes more time and finds the same */
} cb_search_tools;

typedef struct cb_searcher cb_searcher; /* lies in an arena */

/* A search for any number of goals, all on saved bytes or all on peaks: what one goal has found out
 * the next need not, and each gets the answer that it would get alone. cb_searcher_free does no
 * harm to what was found. */
CB_MUST_CHECK cb_status cb_searcher_new(const cb_search_tools *tools, cb_arena *arena,
                                        cb_searcher **out, cb_error *err);
/* The goals that will be asked, in this order; they stay the caller's. The first to be asked does
 * the work for all of them at once. */
void cb_searcher_expect(cb_searcher *s, const cb_goal *goal, uint32_t n);
/* Of a search for peaks that has answered: answers that cost no more than this share of time are
 * no slower than position 0. */
double cb_searcher_little_extra(const cb_searcher *s);
/* The answers of `rival`, of a smaller class of plans, are considered as well, and asked for first:
 * targets at which it comes close to the bound need no search. */
void cb_searcher_set_rival(cb_searcher *s, cb_searcher *rival);
/* Of a search for peaks with a rival: are all its plans slower than cb_searcher_little_extra of the
 * rival? */
bool cb_searcher_follows(const cb_searcher *s);
void cb_searcher_free(cb_searcher *s); /* NULL is fine */
/* The answer into `out`, whose arena is given. CB_INFEASIBLE: err->refusal has the smallest plan
 * found and the op at its peak. */
CB_MUST_CHECK cb_status cb_searcher_ask(cb_searcher *s, const cb_goal *goal, cb_found *out,
                                        cb_error *err);
/* A bound on the time of the plans of this search that meet the goal, into `found`, which is the
 * best answer known, by whatever search. After cb_searcher_ask. There is none if the caller ends
 * it. */
CB_MUST_CHECK cb_status cb_searcher_prove(cb_searcher *s, const cb_goal *goal, cb_found *found,
                                          cb_error *err);

#endif
