/* train_state.c - names the tensors of a training state and its counters. */
#include "train/train_state.h"

#include "base/text.h"
#include "checkpoint/state.h"
#include "train/weights.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

struct tensors {
    const struct session *s;
    int64_t count;
    struct disk_tensor *tensor;         /* whole, in memory layout */
    struct place {                      /* param NONE: the router bias */
        enum held what;
        int param;
    } *place;
};

/* Weights under their own names, moments under "first." and "second.". */
static struct tensors tensors_list(const struct session *s, struct arena *a)
{
    static const struct { const char *prefix; enum held what; } kind[] = {
        {"", HELD_WEIGHT}, {"first.", HELD_FIRST}, {"second.", HELD_SECOND},
    };
    const struct graph *g = &s->model.graph;
    int64_t most = COUNT(kind) * g->nparam + 1;
    struct tensors t = {.s = s, .tensor = NEW(a, struct disk_tensor, most),
                        .place = NEW(a, struct place, most)};
    for (int i = 0; i < g->nparam; i++)
        for (int k = 0; k < COUNT(kind); k++) {
            const struct param *p = &g->param[i];
            if (kind[k].what != HELD_WEIGHT && !p->trainable)
                continue;
            struct disk_tensor *d = &t.tensor[t.count];
            *d = (struct disk_tensor){
                .name = arena_text(a, "%s%s", kind[k].prefix, p->name),
                .dtype = DTYPE_F32, .count = param_disk_count(p)};
            d->ndim = held_dims(p, d->dim);
            d->bytes = d->count * dtype_bytes(d->dtype);
            t.place[t.count++] = (struct place){kind[k].what, i};
        }
    if (s->router_bias) {
        int64_t count = s->model.config.decoder.experts;
        count *= s->model.decoder.moe_layers;
        t.tensor[t.count] = (struct disk_tensor){
            .name = "router_bias", .dtype = DTYPE_F32, .ndim = 1, .dim = {count},
            .count = count, .bytes = count * 4};
        t.place[t.count++] = (struct place){HELD_WEIGHT, NONE};
    }
    return t;
}

static bool tensor_get(void *arg, int64_t i, void *to)
{
    const struct tensors *t = arg;
    const struct place *p = &t->place[i];
    if (p->param != NONE)
        return held_get(&t->s->model, t->s->machine, p->what, p->param, to);
    memcpy(to, t->s->router_bias, (size_t)t->tensor[i].bytes);
    return true;
}

/* ---- counters: one table serves saving and loading ---- */

struct counter { const char *name; size_t at; };
#define AT(field) {#field, offsetof(struct train_state, field)}
static const struct counter whole[] = {
    AT(step), AT(updates), AT(skipped), AT(skipped_in_row), AT(cursor.position),
    AT(cursor.rows), AT(cursor.bad), AT(cursor.too_long), AT(cursor.no_loss),
    AT(cursor.consecutive_bad), AT(ledger.slots), AT(ledger.supervised),
    AT(ledger.context), AT(ledger.image), AT(ledger.padding), AT(ledger.patch_slots),
    AT(ledger.patches), AT(ledger.patch_padding), AT(ledger.samples), AT(ledger.images),
    AT(ledger.mock), AT(ledger.dropped), AT(ledger.too_long), AT(ledger.bad),
    AT(ledger.no_loss), AT(ledger.shrunk),
};
static const struct counter real[] = {AT(ledger.attention), AT(ledger.attention_image)};
#undef AT

static json_t *meta_json(const struct session *s, const struct train_state *t)
{
    json_t *all = json_object(), *waiting = json_array();
    for (int i = 0; i < COUNT(whole); i++)
        json_object_set_new(all, whole[i].name,
            json_integer(*(const int64_t *)((const char *)t + whole[i].at)));
    for (int i = 0; i < COUNT(real); i++)
        json_object_set_new(all, real[i].name,
            json_real(*(const double *)((const char *)t + real[i].at)));
    for (int i = 0; i < t->cursor.nwaiting; i++)
        json_array_append_new(waiting, json_integer(t->cursor.waiting[i]));
    json_object_set_new(all, "cursor.waiting", waiting);
    json_object_set_new(all, "seed", json_integer(s->recipe->run_seed));
    json_object_set_new(all, "model", json_string(s->recipe->model_path));
    json_object_set_new(all, "data", json_sprintf("%016" PRIx64, s->data_hash));
    return all;
}

static bool meta_read(const struct session *s, const char *path, json_t *all,
                      struct train_state *t)
{
    char hash[17];
    snprintf(hash, sizeof hash, "%016" PRIx64, s->data_hash);
    const char *data = json_string_value(json_object_get(all, "data"));
    json_t *seed = json_object_get(all, "seed");
    json_t *list = json_object_get(all, "cursor.waiting");
    if (session_leads(s) && (!data || strcmp(data, hash)))
        return fail("checkpoint: %s was made with other data (hash %s, now %s); use "
                    "another run.name for other data",
                    path, data ? data : "missing", hash);
    if (json_integer_value(seed) != s->recipe->run_seed)
        return fail("checkpoint: %s was made with run.seed %" JSON_INTEGER_FORMAT
                    ", now %" PRId64,
                    path, json_integer_value(seed), s->recipe->run_seed);
    for (int i = 0; i < COUNT(whole); i++) {
        json_t *j = json_object_get(all, whole[i].name);
        if (!json_is_integer(j))
            return fail("checkpoint: %s: the manifest lacks '%s'", path, whole[i].name);
        *(int64_t *)((char *)t + whole[i].at) = json_integer_value(j);
    }
    for (int i = 0; i < COUNT(real); i++)
        *(double *)((char *)t + real[i].at) =
            json_number_value(json_object_get(all, real[i].name));
    if (!json_is_array(list) || json_array_size(list) > COUNT(t->cursor.waiting))
        return fail("checkpoint: %s: the manifest lacks 'cursor.waiting'", path);
    t->cursor.nwaiting = (int)json_array_size(list);
    for (int i = 0; i < t->cursor.nwaiting; i++)
        t->cursor.waiting[i] = json_integer_value(json_array_get(list, (size_t)i));
    return true;
}

bool train_state_save(const struct session *s, const struct train_state *t,
                      const char *root, int keep)
{
    if (!session_leads(s))
        return held_serve(&s->model, s->machine);
    struct arena a = arena_make("checkpoint");
    struct tensors all = tensors_list(s, &a);
    json_t *meta = meta_json(s, t);
    char *text = json_dumps(meta, JSON_COMPACT);
    const struct state_source source = {.tensor = all.tensor, .count = all.count,
                                        .get = tensor_get, .arg = &all};
    bool ok = state_save(root, t->step, &source, text, keep) && held_end(s->machine);
    free(text);
    json_decref(meta);
    arena_free(&a);
    return ok;
}

static bool load(struct session *s, struct arena *a, const struct state *state,
                 struct train_state *t)
{
    struct tensors all = tensors_list(s, a);
    json_t *meta = json_loads(state->meta, 0, NULL);
    bool ok = meta_read(s, state->path, meta, t);
    json_decref(meta);
    if (ok && all.count != state->file.count)
        ok = fail("checkpoint: %s holds %" PRId64 " tensors, this run needs %" PRId64
                  " (was model.freeze or moe.bias_rate changed?)", state->path,
                  state->file.count, all.count);
    for (int64_t i = 0; i < all.count && ok; i++) {
        struct arena_mark mark = arena_mark(a);
        const struct place *p = &all.place[i];
        float *data = NEW(a, float, all.tensor[i].count);
        ok = state_read(state, &all.tensor[i], data);
        if (ok && p->param != NONE)
            held_set(&s->model, s->machine, p->what, p->param, data);
        else if (ok)
            memcpy(s->router_bias, data, (size_t)all.tensor[i].bytes);
        arena_reset(a, mark);
    }
    return ok;
}

/* The newest complete step, as rank 0 sees it. */
static bool step_find(const struct session *s, const char *root, int64_t *step)
{
    if (session_leads(s) && !state_newest(root, step))
        return false;
    return comm_broadcast(machine_world(s->machine), DTYPE_I64, 0, step, 1) ||
           fail_kind(FAULT_RANK);
}

bool train_state_load(struct session *s, const char *root, struct train_state *t,
                      bool *found)
{
    struct arena a = arena_make("checkpoint");
    struct state state;
    int64_t step = -1;
    bool ok = step_find(s, root, &step);
    *found = ok && step >= 0;
    if (*found) {
        ok = state_open(&a, root, step, &state);
        if (ok) {
            ok = load(s, &a, &state, t);
            state_close(&state);
        }
    }
    arena_free(&a);
    return ok || fail_kind(FAULT_CHECKPOINT);
}
