/* search.h: searches for the fastest schedule that keeps a budget. Internal. */
#ifndef CB_PLAN_SEARCH_H
#define CB_PLAN_SEARCH_H

#include "../../base/threads.h"
#include "../../include/cutback.h"
#include "../cut/mincut.h"
#include "../schedule/goal.h"
#include "candidates/placings.h"

/* The tools of a search; the caller owns them, and the search changes them. */
typedef struct cb_search_tools {
    const cb_facts *f;
    cb_cut *cut;
    cb_sim *sim;
    cb_placings *placings; /* offsets known so far, which searches add to */
    cb_threads *threads;   /* may be NULL: the search then takes longer, with the same result */
} cb_search_tools;

typedef struct cb_searcher cb_searcher; /* allocated in an arena */

/* A search for any number of goals, all on saved bytes or all on peaks. Goals share intermediate
 * results, and each gets the answer that it would get on its own. Answers remain valid after
 * cb_searcher_free. */
CB_MUST_CHECK cb_status cb_searcher_new(const cb_search_tools *tools, cb_arena *arena,
                                        cb_searcher **out, cb_error *err);
/* Announces goals in the order in which they will be asked; they are borrowed. The first one asked
 * does the work for all of them. */
void cb_searcher_expect(cb_searcher *s, const cb_goal *goal, uint32_t n);
/* Must be called after a search for peaks has answered. Answers that take at most this share of
 * extra time are no slower than position 0. */
double cb_searcher_little_extra(const cb_searcher *s);
/* Also considers the answers of `rival`, a search of a smaller class of plans, and asks for them
 * first: targets at which it comes close to the bound need no search. */
void cb_searcher_set_rival(cb_searcher *s, cb_searcher *rival);
/* True for a search for peaks with a rival if all its plans are slower than
 * cb_searcher_little_extra of the rival. */
bool cb_searcher_follows(const cb_searcher *s);
void cb_searcher_free(cb_searcher *s); /* NULL is fine */
/* Writes the answer to `out`, whose arena is set. CB_INFEASIBLE: err->refusal has the smallest plan
 * found and the op at its peak. */
CB_MUST_CHECK cb_status cb_searcher_ask(cb_searcher *s, const cb_goal *goal, cb_found *out,
                                        cb_error *err);
/* Writes a bound on the time of this search's plans that meet the goal to `found`, which is the
 * best known answer of any search. Call after cb_searcher_ask. There is no bound if the caller ends
 * the search. */
CB_MUST_CHECK cb_status cb_searcher_prove(cb_searcher *s, const cb_goal *goal, cb_found *found,
                                          cb_error *err);
/* Does the same for plans that may also move values to the host. */
CB_MUST_CHECK cb_status cb_searcher_prove_moves(cb_searcher *s, const cb_goal *goal,
                                                cb_found *found, cb_error *err);

#endif
