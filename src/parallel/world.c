/* world.c - threads that are ranks: started together, stopped together. */
#include "parallel/local.h"

#include "base/log.h"
#include "base/queue.h"

struct crowd {                          /* one world_run */
    struct world world;
    struct rank *rank;
    bool (*main)(struct rank *r, void *arg);
    void *arg;
};

static void wake_all(struct world *w)
{
    pthread_mutex_lock(&w->lock);
    for (struct group *g = w->groups; g; g = group_next(g))
        group_wake(g);
    pthread_mutex_unlock(&w->lock);
}

void world_lose(struct world *w, int teller, int lost_rank, const struct failure *why)
{
    pthread_mutex_lock(&w->lock);
    if (!atomic_load(&w->lost)) {
        w->lost_rank = lost_rank;
        w->teller = teller;
        w->failure = *why;
        atomic_store(&w->lost, true);
    }
    pthread_mutex_unlock(&w->lock);
    wake_all(w);
}

void world_leave(const struct rank *r)
{
    struct failure why;
    fail_take(&why);
    world_lose(r->world, r->rank, r->rank, &why);
    fail_raise(&why);
}

static void rank_main(void *arg, int index)
{
    struct crowd *c = arg;
    struct world *w = &c->world;
    log_rank(index);
    fail_clear();
    if (!c->main(&c->rank[index], c->arg))
        world_leave(&c->rank[index]);
    atomic_store(&w->ended[index], true);
    wake_all(w);
}

bool world_run(int ranks, double patience, bool (*main)(struct rank *r, void *arg),
               void *arg)
{
    enum { PATIENCE = 600 };            /* seconds */
    if (ranks < 1 || ranks > MAX_WORLD) {
        fail("world: %d rank(s) on this machine, expected 1 to %d", ranks, MAX_WORLD);
        return fail_kind(FAULT_USAGE);
    }
    struct arena arena = arena_make("world");
    struct crowd *c = NEW(&arena, struct crowd, 1);
    c->main = main;
    c->arg = arg;
    c->rank = NEW(&arena, struct rank, ranks);
    struct world *w = &c->world;
    w->ranks = ranks;
    w->patience = patience > 0 ? patience : PATIENCE;
    w->ended = NEW(&arena, atomic_bool, ranks);
    pthread_mutex_init(&w->lock, NULL);
    for (int r = 0; r < ranks; r++)
        c->rank[r] = (struct rank){w, r, ranks, arena_make("rank")};

    workers_join(workers_start(ranks, rank_main, c));

    bool ok = !atomic_load(&w->lost);
    if (!ok)
        fail_raise(&w->failure);
    for (struct group *g = w->groups; ok && g; g = group_next(g))
        ok = group_quiet(g, &w->teller);
    if (!ok)
        fail_in("rank %d", w->teller);
    for (struct group *g = w->groups, *next; g; g = next) {
        next = group_next(g);
        group_free(g);
    }
    for (int r = 0; r < ranks; r++)
        arena_free(&c->rank[r].arena);
    pthread_mutex_destroy(&w->lock);
    arena_free(&arena);
    return ok;
}

struct comm world_comm(const struct rank *r, const char *name, const int *member,
                       int size, int lane)
{
    struct world *w = r->world;
    pthread_mutex_lock(&w->lock);
    struct group *g = w->groups;
    while (g && !group_is(g, name, member, size, lane))
        g = group_next(g);
    if (!g)
        g = w->groups = group_make(w, name, member, size, lane, w->groups);
    pthread_mutex_unlock(&w->lock);
    return group_comm(g, r->rank);
}
