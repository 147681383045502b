/* team.c - the CPU device's threads: they share one loop at a time.
 *
 * A loop's indices are claimed in chunks from a counter, so which thread runs an index
 * is chance and results may not depend on it.  Nobody waits for a thread that is still
 * asleep: the caller opens the job, works, closes it, and waits only for the threads
 * that joined in between.  So a small loop costs little more than its work. */
#include "core/device.h"

#include "base/arena.h"
#include "base/queue.h"

#include <pthread.h>
#include <stdatomic.h>

enum { OPEN = 1 << 30, SPINS = 4000, CHUNKS = 16 };

struct team {
    struct arena memory;                /* holds the team itself */
    int threads;                        /* with the caller */
    struct workers *workers;            /* threads - 1 */
    pthread_mutex_t turn;               /* held by the caller whose loop it is */

    /* The loop; written before OPEN is set, read by threads that have joined. */
    void (*body)(void *arg, int64_t i);
    void *arg;
    int64_t count, chunk;

    atomic_uint job;                    /* OPEN: threads may join; + threads inside */
    atomic_uint loops;                  /* counts loops; threads wait for a change */
    atomic_int sleeping;                /* threads that need the signal */
    atomic_bool quit;
    pthread_mutex_t lock;               /* for sleeping only */
    pthread_cond_t wake, done;
    _Alignas(64) atomic_llong next;     /* the first unclaimed index */
};

static _Thread_local bool inside;       /* this thread is running a body */

static void pause_briefly(void)
{
#if defined __x86_64__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

static void loop_share(struct team *t)
{
    inside = true;
    for (;;) {
        int64_t from = atomic_fetch_add(&t->next, t->chunk);
        if (from >= t->count)
            break;
        int64_t to = MIN(from + t->chunk, t->count);
        for (int64_t i = from; i < to; i++)
            t->body(t->arg, i);
    }
    inside = false;
}

static bool job_join(struct team *t)
{
    unsigned job = atomic_load(&t->job);
    while (job & OPEN)
        if (atomic_compare_exchange_weak(&t->job, &job, job + 1))
            return true;
    return false;
}

static void job_leave(struct team *t)
{
    if (atomic_fetch_sub(&t->job, 1) != 1)
        return;
    pthread_mutex_lock(&t->lock);       /* the last one out of a closed job */
    pthread_cond_signal(&t->done);
    pthread_mutex_unlock(&t->lock);
}

/* Until a loop newer than `seen` begins or the team ends. */
static void loop_wait(struct team *t, unsigned seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load(&t->loops) != seen)
            return;
        pause_briefly();
    }
    pthread_mutex_lock(&t->lock);
    atomic_fetch_add(&t->sleeping, 1);
    while (atomic_load(&t->loops) == seen)
        pthread_cond_wait(&t->wake, &t->lock);
    atomic_fetch_sub(&t->sleeping, 1);
    pthread_mutex_unlock(&t->lock);
}

static void loop_announce(struct team *t)
{
    atomic_fetch_add(&t->loops, 1);     /* before reading `sleeping`: see loop_wait */
    if (atomic_load(&t->sleeping) == 0)
        return;
    pthread_mutex_lock(&t->lock);
    pthread_cond_broadcast(&t->wake);
    pthread_mutex_unlock(&t->lock);
}

static void team_main(void *arg, int index)
{
    (void)index;
    struct team *t = arg;
    unsigned seen = 0;
    while (!atomic_load(&t->quit)) {
        loop_wait(t, seen);
        seen = atomic_load(&t->loops);  /* or one less: a join then finds no work */
        if (!job_join(t))
            continue;
        loop_share(t);
        job_leave(t);
    }
}

struct team *team_make(int threads)
{
    REQUIRE(threads >= 0);
    struct arena memory = arena_make("team");
    struct team *t = NEW(&memory, struct team, 1);
    t->memory = memory;
    t->threads = threads ? threads : device_cores();
    pthread_mutex_init(&t->turn, NULL);
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->wake, NULL);
    pthread_cond_init(&t->done, NULL);
    t->workers = workers_start(t->threads - 1, team_main, t);
    return t;
}

void team_free(struct team *t)
{
    if (!t)
        return;
    atomic_store(&t->quit, true);
    loop_announce(t);
    workers_join(t->workers);
    pthread_cond_destroy(&t->done);
    pthread_cond_destroy(&t->wake);
    pthread_mutex_destroy(&t->lock);
    pthread_mutex_destroy(&t->turn);
    struct arena memory = t->memory;
    arena_free(&memory);
}

int team_threads(const struct team *t)
{
    return t->threads;
}

void team_for(struct team *t, int64_t count, void (*body)(void *arg, int64_t i),
              void *arg)
{
    if (t->threads == 1 || count <= 1 || inside) {
        for (int64_t i = 0; i < count; i++)
            body(arg, i);
        return;
    }
    pthread_mutex_lock(&t->turn);
    t->body = body;
    t->arg = arg;
    t->count = count;
    t->chunk = MAX(1, count / (CHUNKS * t->threads));
    atomic_store(&t->next, 0);
    atomic_store(&t->job, OPEN);
    loop_announce(t);
    loop_share(t);
    atomic_fetch_and(&t->job, ~(unsigned)OPEN);
    for (int i = 0; i < SPINS && atomic_load(&t->job); i++)
        pause_briefly();
    if (atomic_load(&t->job)) {
        pthread_mutex_lock(&t->lock);
        while (atomic_load(&t->job))
            pthread_cond_wait(&t->done, &t->lock);
        pthread_mutex_unlock(&t->lock);
    }
    pthread_mutex_unlock(&t->turn);
}
