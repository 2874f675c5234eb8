/* team.h: runs regions of the pools on the threads of another library in this process. If two pools
 * take turns, each slows the other down: the threads of one still spin while those of the other
 * work. */
#ifndef CB_BASE_TEAM_H
#define CB_BASE_TEAM_H

/* The entry points of a library with OpenMP's binary interface. */
typedef struct cb_team {
    /* Runs fn(data) on the caller and on the library's threads, and returns when all are done.
     * `n_threads` and `flags` are 0: as many threads as the library is set to. */
    void (*parallel)(void (*fn)(void *), void *data, unsigned n_threads, unsigned flags);
    int (*number)(void); /* returns the number of the calling thread in the team; that of the caller
                            is 0 */
} cb_team;

/* From now on regions of all pools run on the threads of `team`, which must outlive them. NULL:
 * regions run on the pools' own threads, as they always do in a child of fork() at first. */
void cb_threads_use(const cb_team *team);

#endif
