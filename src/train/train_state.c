/* train_state.c - names the tensors of a training state and its counters. */
#include "train/train_state.h"

#include "base/text.h"
#include "checkpoint/state.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

/* Weights under their own names, moments under "first." and "second.". */
static int64_t tensors_list(const struct session *s, struct arena *a,
                            struct disk_tensor **out)
{
    static const char *const prefix[] = {"", "first.", "second."};
    const struct graph *g = &s->model.graph;
    struct disk_tensor *list = *out = NEW(a, struct disk_tensor, 3 * g->nparam + 1);
    int64_t n = 0;
    for (int i = 0; i < g->nparam; i++)
        for (int k = 0; k < COUNT(prefix); k++) {
            struct tensor t = k ? machine_moment(s->machine, i, k - 1)
                                : machine_weight(s->machine, i);
            if (!tensor_is(t))
                continue;
            struct disk_tensor d = {
                .name = arena_text(a, "%s%s", prefix[k], g->param[i].name),
                .dtype = t.dtype, .ndim = t.ndim, .count = tensor_count(t), .data = t.data};
            memcpy(d.dim, t.dim, sizeof *t.dim * (size_t)t.ndim);
            d.bytes = d.count * dtype_bytes(d.dtype);
            list[n++] = d;
        }
    if (s->router_bias) {
        int64_t count = (int64_t)s->model.decoder.moe_layers * s->model.config.decoder.experts;
        list[n++] = (struct disk_tensor){
            .name = "router_bias", .dtype = DTYPE_F32, .ndim = 1, .dim = {count},
            .count = count, .bytes = count * 4, .data = s->router_bias};
    }
    return n;
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
    json_t *seed = json_object_get(all, "seed"), *list = json_object_get(all, "cursor.waiting");
    if (!data || strcmp(data, hash))
        return fail("checkpoint: %s was made with other data (hash %s, now %s); use another "
                    "run.name for other data", path, data ? data : "missing", hash);
    if (json_integer_value(seed) != s->recipe->run_seed)
        return fail("checkpoint: %s was made with run.seed %" JSON_INTEGER_FORMAT ", now %"
                    PRId64, path, json_integer_value(seed), s->recipe->run_seed);
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

bool train_state_save(const struct session *s, const struct train_state *t, const char *root,
                      int keep)
{
    struct arena a = arena_make("checkpoint");
    struct disk_tensor *tensor;
    int64_t count = tensors_list(s, &a, &tensor);
    json_t *meta = meta_json(s, t);
    char *text = json_dumps(meta, JSON_COMPACT);
    bool ok = state_save(root, t->step, tensor, count, text, keep);
    free(text);
    json_decref(meta);
    arena_free(&a);
    return ok;
}

static bool load(struct session *s, struct arena *a, const struct state *state,
                 struct train_state *t)
{
    struct disk_tensor *tensor;
    int64_t count = tensors_list(s, a, &tensor);
    json_t *meta = json_loads(state->meta, 0, NULL);
    bool ok = meta_read(s, state->path, meta, t);
    json_decref(meta);
    if (ok && count != state->file.count)
        ok = fail("checkpoint: %s holds %" PRId64 " tensors, this run needs %" PRId64
                  " (was model.freeze or moe.bias_rate changed?)", state->path,
                  state->file.count, count);
    for (int64_t i = 0; i < count && ok; i++)
        ok = state_read(state, &tensor[i], (void *)tensor[i].data);
    return ok;
}

bool train_state_load(struct session *s, const char *root, struct train_state *t,
                      bool *found)
{
    struct arena a = arena_make("checkpoint");
    struct state state;
    int64_t step;
    bool ok = state_newest(root, &step);
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
