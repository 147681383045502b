/* weights.c - fills and exports what machines hold. */
#include "train/weights.h"

#include "base/random.h"

static const int64_t file_bytes = 5000000000;   /* of an exported weight file */

/* ---- what a machine holds of a param, as f32: there itself, or beside it ---- */

struct filling {
    struct arena arena;                 /* of the copy beside it */
    struct tensor own;
    struct stretch part;
    float *at;                          /* [part] to be filled */
};

static struct filling filling_begin(struct machine *machine, int param)
{
    struct filling f = {.arena = arena_make("weights")};
    f.own = machine_own(machine, HELD_MASTER, param, &f.part);
    f.at = f.own.dtype == DTYPE_F32
               ? f.own.data
               : arena_room(&f.arena, sizeof(float) * (size_t)tensor_count(f.own));
    return f;
}

static void filling_end(struct filling *f)
{
    if (f->own.dtype != DTYPE_F32)
        dtype_from_f32(f->own.dtype, f->at, f->own.data, tensor_count(f->own));
    arena_free(&f->arena);
}

void weights_follow(const struct model *m, struct machine *machine)
{
    for (int i = 0; i < m->graph.nparam; i++) {
        struct stretch part;
        struct tensor master = machine_own(machine, HELD_MASTER, i, &part);
        struct tensor weight = machine_own(machine, HELD_WEIGHT, i, &part);
        if (tensor_is(weight) && master.data != weight.data)
            dtype_from_f32(weight.dtype, master.data, weight.data,
                           tensor_count(weight));
    }
}

/* ---- made and loaded ---- */

void weights_fresh(const struct model *m, struct machine *machine, uint64_t seed)
{
    for (int i = 0; i < m->graph.nparam; i++) {
        const struct param *p = &m->graph.param[i];
        struct filling f = filling_begin(machine, i);
        struct stretch part = f.part;
        float *at = f.at;
        uint64_t key = random_key(seed, p->name);
        for (int64_t k = part.from; k < part.to; k++) {
            uint64_t place = (uint64_t)box_global(&p->box, k);
            at[k - part.from] = p->initial == INITIAL_NORMAL
                                    ? (float)(p->deviation * random_normal(key, place))
                                    : p->initial == INITIAL_ONE ? 1.0f : 0.0f;
        }
        filling_end(&f);
    }
    weights_follow(m, machine);
}

/* Rank 0 looks at the folder first, for all. */
static bool weights_check(const struct model *m, const struct machine *machine,
                          const struct hf_folder *f)
{
    const struct comm *world = machine_world(machine);
    return comm_agree(world, world->rank > 0 ||
                                 hf_check(f, m->graph.param, m->graph.nparam));
}

bool weights_load(const struct model *m, struct machine *machine, const char *folder)
{
    struct arena a = arena_make("weights");
    struct hf_folder f;
    bool ok = hf_open(&a, folder, m->graph.param, m->graph.nparam, &f);
    if (ok) {
        ok = weights_check(m, machine, &f);
        for (int i = 0; i < m->graph.nparam && ok; i++) {
            struct filling own = filling_begin(machine, i);
            ok = hf_load(&f, &m->graph.param[i], own.part, own.at);
            filling_end(&own);
        }
        hf_close(&f);
        weights_follow(m, machine);
    }
    arena_free(&a);
    return ok;
}

/* ---- export ---- */

struct exporter { const struct model *model; const struct machine *machine; };

static bool weight_get(void *arg, int64_t param, struct stretch part, float *to)
{
    const struct exporter *x = arg;
    struct stretch own;
    struct tensor t = machine_own(x->machine, HELD_MASTER, (int)param, &own);
    const char *at = t.data;
    dtype_to_f32(t.dtype, at + (part.from - own.from) * dtype_bytes(t.dtype), to,
                 part.to - part.from);
    return true;
}

bool weights_export(const struct model *m, const struct machine *machine,
                    const char *folder, const char *from, enum dtype dtype,
                    enum expert_layout experts)
{
    struct arena a = arena_make("export");
    struct exporter x = {m, machine};
    struct stretch *part = NEW(&a, struct stretch, m->graph.nparam);
    for (int i = 0; i < m->graph.nparam; i++)
        part[i] = param_duty(machine_plan(machine), i);
    const struct hf_weights weights = {
        .get = weight_get, .arg = &x, .param = m->graph.param, .part = part,
        .count = m->graph.nparam, .experts = experts,
    };
    bool ok =
        hf_save(machine_world(machine), folder, from, &weights, dtype, file_bytes);
    arena_free(&a);
    return ok;
}

struct hf_outline weights_outline(const struct model *m, enum dtype dtype)
{
    return hf_outline(m->graph.param, m->graph.nparam, dtype, file_bytes);
}
