/* queue.c - a ring of pointers under one lock, and threads started as a group. */
#include "base/queue.h"
#include "base/arena.h"
#include "base/log.h"

#include <pthread.h>
#include <stdlib.h>

struct queue {
    struct arena memory;            /* holds the queue itself */
    pthread_mutex_t lock;
    pthread_cond_t pushed, popped;
    void **item;
    int room, first, count;
    bool closed;
};

struct queue *queue_make(int room)
{
    REQUIRE(room > 0);
    struct arena memory = arena_make("queue");
    struct queue *q = NEW(&memory, struct queue, 1);
    q->item = NEW(&memory, void *, room);
    q->room = room;
    q->memory = memory;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->pushed, NULL);
    pthread_cond_init(&q->popped, NULL);
    return q;
}

void queue_free(struct queue *q)
{
    if (!q)
        return;
    pthread_cond_destroy(&q->popped);
    pthread_cond_destroy(&q->pushed);
    pthread_mutex_destroy(&q->lock);
    struct arena memory = q->memory;
    arena_free(&memory);
}

bool queue_push(struct queue *q, void *item)
{
    REQUIRE(item);                  /* NULL is how queue_pop says `closed` */
    pthread_mutex_lock(&q->lock);
    while (q->count == q->room && !q->closed)
        pthread_cond_wait(&q->popped, &q->lock);
    bool open = !q->closed;
    if (open) {
        q->item[(q->first + q->count++) % q->room] = item;
        pthread_cond_signal(&q->pushed);
    }
    pthread_mutex_unlock(&q->lock);
    return open;
}

void *queue_pop(struct queue *q)
{
    void *item = NULL;
    pthread_mutex_lock(&q->lock);
    while (q->count == 0 && !q->closed)
        pthread_cond_wait(&q->pushed, &q->lock);
    if (q->count > 0) {
        item = q->item[q->first];
        q->first = (q->first + 1) % q->room;
        q->count--;
        pthread_cond_signal(&q->popped);
    }
    pthread_mutex_unlock(&q->lock);
    return item;
}

void queue_close(struct queue *q)
{
    pthread_mutex_lock(&q->lock);
    q->closed = true;
    pthread_cond_broadcast(&q->pushed);
    pthread_cond_broadcast(&q->popped);
    pthread_mutex_unlock(&q->lock);
}

struct worker {
    pthread_t thread;
    void (*main)(void *arg, int index);
    void *arg;
    int index, rank;                /* rank: whom to log as */
};

struct workers {
    struct arena memory;            /* holds the workers themselves */
    struct worker *at;
    int count;
};

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    log_rank(w->rank);
    w->main(w->arg, w->index);
    return NULL;
}

struct workers *workers_start(int n, void (*main)(void *arg, int index), void *arg)
{
    struct arena memory = arena_make("workers");
    struct workers *w = NEW(&memory, struct workers, 1);
    w->at = NEW(&memory, struct worker, n);
    w->count = n;
    w->memory = memory;
    int rank = log_rank(-1);
    log_rank(rank);
    for (int i = 0; i < n; i++) {
        w->at[i] = (struct worker){.main = main, .arg = arg, .index = i, .rank = rank};
        int error = pthread_create(&w->at[i].thread, NULL, worker_main, &w->at[i]);
        if (error) {                /* like memory in arena.c: nobody can go on */
            fprintf(stderr, "vlmoe: threads: start %d of %d: %s; use fewer workers or "
                    "ranks\n", i + 1, n, strerror(error));
            _Exit(FAULT_MEMORY);
        }
    }
    return w;
}

void workers_join(struct workers *w)
{
    if (!w)
        return;
    for (int i = 0; i < w->count; i++)
        pthread_join(w->at[i].thread, NULL);
    struct arena memory = w->memory;
    arena_free(&memory);
}
