/* saver.c - the snapshot of a training state and the thread that writes it. */
#include "train/saver.h"

#include "base/queue.h"
#include "run/slab.h"

#include <stdatomic.h>

struct saver {
    const struct session *session;
    const char *root;
    struct comm world;                  /* the writers' own: training talks meanwhile */
    struct slab snapshot;
    struct workers *writer;             /* NULL: no save is under way */
    atomic_bool done;                   /* two below are the writer's until then */
    bool ok;
    struct failure why;
    struct arena arena;                 /* of the save under way, as what follows */
    struct state_piece *piece;
    int64_t count, step;
    const char *meta;
};

/* All ranks the same, even one that has nothing to write. */
static bool beside(const struct recipe *r)
{
    return r->checkpoint_async && r->checkpoint_every > 0 &&
           (r->train_epochs > 0 || r->checkpoint_every < r->train_steps);
}

int64_t saver_snapshot(const struct session *s)
{
    return beside(s->recipe) ? train_state_bytes(s) : 0;
}

static struct comm writers_comm(const struct session *s, struct arena *a)
{
    int ranks = s->rank ? s->rank->ranks : 1;
    int *member = NEW(a, int, ranks);
    for (int i = 0; i < ranks; i++)
        member[i] = i;
    return s->rank ? world_comm(s->rank, "checkpoint", member, ranks, LANE_COMPUTE)
                   : comm_self("checkpoint", member);
}

bool saver_make(struct session *s, const char *root, struct saver **out)
{
    struct saver *v = *out = NEW(&s->arena, struct saver, 1);
    *v = (struct saver){.session = s, .root = root, .arena = arena_make("saver"),
                        .world = writers_comm(s, &s->arena)};
    if (!slab_make("checkpoint snapshot", saver_snapshot(s), &v->snapshot))
        return fail_more("or set checkpoint.async to false");
    if (v->snapshot.bytes > 0)          /* touched now, not at the first save */
        memset(v->snapshot.at, 0, (size_t)v->snapshot.bytes);
    return true;
}

static bool state_write(const struct saver *v)
{
    return state_save(&v->world, v->root, v->step, v->piece, v->count, v->meta,
                      (int)v->session->recipe->checkpoint_keep);
}

static void writer_main(void *arg, int index)
{
    (void)index;
    struct saver *v = arg;
    v->ok = state_write(v);
    if (!v->ok)
        fail_take(&v->why);
    atomic_store(&v->done, true);
}

/* The state as it is now, which training may then change. */
static void snapshot_take(struct saver *v)
{
    int64_t at = 0;
    for (int64_t i = 0; i < v->count; i++) {
        int64_t bytes = state_piece_bytes(&v->piece[i]);
        REQUIRE(at + bytes <= v->snapshot.bytes);
        v->piece[i].data = memcpy(v->snapshot.at + at, v->piece[i].data, (size_t)bytes);
        at += bytes;
    }
}

bool saver_save(struct saver *v, const struct train_state *t, bool last)
{
    if (!saver_wait(v))
        return false;
    arena_free(&v->arena);
    v->step = t->step;
    v->count = train_state_pieces(v->session, &v->arena, &v->piece);
    v->meta = train_state_meta(v->session, t, &v->arena);
    if (last || !beside(v->session->recipe))
        return state_write(v);
    snapshot_take(v);
    atomic_store(&v->done, false);
    v->writer = workers_start(1, writer_main, v);
    return true;
}

bool saver_wait(struct saver *v)
{
    if (!v->writer)
        return true;
    workers_join(v->writer);
    v->writer = NULL;
    return v->ok || fail_raise(&v->why);
}

bool saver_check(struct saver *v)
{
    return !v->writer || !atomic_load(&v->done) || v->ok || saver_wait(v);
}

bool saver_end(struct saver *v)
{
    bool ok = saver_wait(v);
    slab_free(&v->snapshot);
    arena_free(&v->arena);
    return ok;
}
