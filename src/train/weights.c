/* weights.c - fills, gathers and exports what machines hold. */
#include "train/weights.h"

#include "base/random.h"

enum { SHARD_GB = 5 };                  /* of an exported weight file, 10^9 bytes */

void weights_fresh(const struct model *m, struct machine *machine, uint64_t seed)
{
    for (int i = 0; i < m->graph.nparam; i++) {
        const struct param *p = &m->graph.param[i];
        struct stretch part;
        float *at = machine_own(machine, HELD_WEIGHT, i, &part).data;
        uint64_t key = random_key(seed, p->name);
        for (int64_t k = part.from; k < part.to; k++) {
            uint64_t place = (uint64_t)box_global(&p->box, k);
            at[k - part.from] = p->initial == INITIAL_NORMAL
                                    ? (float)(p->deviation * random_normal(key, place))
                                    : p->initial == INITIAL_ONE ? 1.0f : 0.0f;
        }
    }
}

void held_set(const struct model *m, struct machine *machine, enum held what, int param,
              const float *from)
{
    const struct box *box = &m->graph.param[param].box;
    struct stretch part;
    float *at = machine_own(machine, what, param, &part).data;
    for (int64_t k = part.from; k < part.to; k++)
        at[k - part.from] = from[box_global(box, k)];
}

int held_dims(const struct param *p, int64_t dim[3])
{
    dim[0] = p->dim[0];
    dim[1] = p->transposed ? p->dim[2] : param_disk_count(p) / p->dim[0];
    dim[2] = p->transposed ? p->dim[1] : 0;
    return p->nrows;
}

/* Rank 0 looks at the folder first, for all. */
static bool weights_check(const struct model *m, const struct machine *machine,
                          const struct hf_folder *f)
{
    const struct comm *world = machine_world(machine);
    if (world->rank == 0 && !hf_check(f, m->graph.param, m->graph.nparam))
        return false;
    return comm_barrier(world) || fail_kind(FAULT_RANK);
}

bool weights_load(const struct model *m, struct machine *machine, const char *folder)
{
    struct arena a = arena_make("weights");
    struct hf_folder f;
    bool ok = hf_open(&a, folder, &f);
    if (ok) {
        ok = weights_check(m, machine, &f);
        for (int i = 0; i < m->graph.nparam && ok; i++) {
            struct arena_mark mark = arena_mark(&a);
            const struct param *p = &m->graph.param[i];
            float *whole = NEW(&a, float, param_disk_count(p));
            ok = hf_load(&f, p, whole);
            if (ok)
                held_set(m, machine, HELD_WEIGHT, i, whole);
            arena_reset(&a, mark);
        }
        hf_close(&f);
    }
    arena_free(&a);
    return ok;
}

/* ---- whole tensors on rank 0 ---- */

struct wish { int64_t what, param; };           /* param -1: no more */
struct piece { struct box box; struct stretch part; };  /* an empty part: nothing */
enum { WISH = sizeof(struct wish) / sizeof(int64_t) };

static struct tensor piece_own(const struct model *m, const struct machine *machine,
                               const struct wish *w, struct piece *out)
{
    *out = (struct piece){.box = m->graph.param[w->param].box};
    int param = (int)w->param;
    struct tensor t = machine_own(machine, (enum held)w->what, param, &out->part);
    if (!machine_speaks(machine, param))
        out->part = (struct stretch){0, 0};
    return t;
}

static void piece_put(const struct piece *x, const float *from, float *to)
{
    for (int64_t k = x->part.from; k < x->part.to; k++)
        to[box_global(&x->box, k)] = from[k - x->part.from];
}

static bool piece_receive(const struct comm *world, int from, struct arena *a,
                          float *to)
{
    struct piece x;
    if (!comm_recv(world, DTYPE_U8, from, 0, &x, sizeof x))
        return false;
    int64_t count = x.part.to - x.part.from;
    if (count == 0)
        return true;
    float *data = NEW(a, float, count);
    if (!comm_recv(world, DTYPE_F32, from, 1, data, count))
        return false;
    piece_put(&x, data, to);
    return true;
}

bool held_get(const struct model *m, const struct machine *machine, enum held what,
              int param, float *to)
{
    const struct comm *world = machine_world(machine);
    struct arena a = arena_make("pieces");
    struct wish w = {what, param};
    struct piece own;
    const float *data = piece_own(m, machine, &w, &own).data;
    bool ok = comm_broadcast(world, DTYPE_I64, 0, &w, WISH);
    piece_put(&own, data, to);
    for (int r = 1; r < world->size && ok; r++) {
        struct arena_mark mark = arena_mark(&a);
        ok = piece_receive(world, r, &a, to);
        arena_reset(&a, mark);
    }
    arena_free(&a);
    return ok || fail_kind(FAULT_RANK);
}

bool held_end(const struct machine *machine)
{
    struct wish w = {0, -1};
    return comm_broadcast(machine_world(machine), DTYPE_I64, 0, &w, WISH) ||
           fail_kind(FAULT_RANK);
}

bool held_serve(const struct model *m, const struct machine *machine)
{
    const struct comm *world = machine_world(machine);
    for (;;) {
        struct wish w;
        struct piece x;
        if (!comm_broadcast(world, DTYPE_I64, 0, &w, WISH))
            return fail_kind(FAULT_RANK);
        if (w.param < 0)
            return true;
        const float *data = piece_own(m, machine, &w, &x).data;
        int64_t count = x.part.to - x.part.from;
        if (!comm_send(world, DTYPE_U8, 0, 0, &x, sizeof x) ||
            (count > 0 && !comm_send(world, DTYPE_F32, 0, 1, data, count)))
            return fail_kind(FAULT_RANK);
    }
}

/* ---- export ---- */

struct exporter { const struct model *model; const struct machine *machine; };

static bool weight_get(void *arg, int64_t param, float *to)
{
    const struct exporter *x = arg;
    return held_get(x->model, x->machine, HELD_WEIGHT, (int)param, to);
}

bool weights_export(const struct model *m, const struct machine *machine,
                    const char *folder, const char *from, enum dtype dtype)
{
    if (machine_world(machine)->rank > 0)
        return held_serve(m, machine);
    struct exporter x = {m, machine};
    const struct hf_weights weights = {
        .get = weight_get, .arg = &x, .param = m->graph.param, .count = m->graph.nparam,
    };
    return hf_save(folder, from, &weights, dtype, (int64_t)SHARD_GB * 1000000000) &&
           held_end(machine);
}
