/* train_state.c - names the tensors of a training state and its counters. */
#include "train/train_state.h"

#include "base/text.h"
#include "train/weights.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

/* ---- tensors ---- */

/* Weights (their masters, where they have some) under their own names, moments under
 * "first." and "second.".  `saves`: what this rank alone writes, else all it stores; of
 * every tensor a piece, maybe empty, in the same order on all ranks. */
static int64_t pieces_list(const struct session *s, struct arena *a, bool saves,
                           struct state_piece **out)
{
    static const struct { const char *prefix; enum held what; } kind[] = {
        {"", HELD_MASTER}, {"first.", HELD_FIRST}, {"second.", HELD_SECOND},
    };
    const struct graph *g = &s->model.graph;
    struct state_piece *piece = NEW(a, struct state_piece, COUNT(kind) * g->nparam + 1);
    int64_t n = 0;
    for (int i = 0; i < g->nparam; i++)
        for (int k = 0; k < COUNT(kind); k++) {
            const struct param *p = &g->param[i];
            struct stretch own, part = saves ? param_duty(s->plan, i)
                                             : param_own(s->plan, i);
            if (kind[k].what != HELD_MASTER && !p->trainable)
                continue;
            enum dtype dtype = plan_held_dtype(s->plan, kind[k].what, i);
            piece[n] = (struct state_piece){
                .name = arena_text(a, "%s%s", kind[k].prefix, p->name),
                .dtype = dtype, .box = p->box, .part = part};
            if (s->machine && part.from < part.to) {
                struct tensor t = machine_own(s->machine, kind[k].what, i, &own);
                piece[n].data =
                    (char *)t.data + (part.from - own.from) * dtype_bytes(dtype);
            }
            n++;
        }
    if (s->model.in.router_bias != NONE) {      /* every rank has all of it */
        int64_t count = s->model.decoder.moe_layers;
        count *= s->model.config.decoder.experts;
        piece[n++] = (struct state_piece){
            .name = "router_bias", .dtype = DTYPE_F32, .data = s->router_bias,
            .box = {.ndim = 1, .dim = {count}, .size = {count}},
            .part = {0, saves && !session_leads(s) ? 0 : count}};
    }
    *out = piece;
    return n;
}

int64_t train_state_pieces(const struct session *s, struct arena *a,
                           struct state_piece **out)
{
    int64_t count = pieces_list(s, a, true, out), n = 0;
    for (int64_t i = 0; i < count; i++)
        if ((*out)[i].part.from < (*out)[i].part.to)
            (*out)[n++] = (*out)[i];
    return n;
}

int64_t train_state_bytes(const struct session *s)
{
    struct arena a = arena_make("pieces");
    struct state_piece *piece;
    int64_t count = train_state_pieces(s, &a, &piece), bytes = 0;
    for (int64_t i = 0; i < count; i++)
        bytes += state_piece_bytes(&piece[i]);
    arena_free(&a);
    return bytes;
}

/* ---- counters: one table serves saving and loading ---- */

struct counter { const char *name; size_t at; };
#define AT(field) {#field, offsetof(struct train_state, field)}
static const struct counter whole[] = {
    AT(step), AT(updates), AT(skipped), AT(skipped_in_row), AT(cursor.position),
    AT(cursor.rows), AT(cursor.bad), AT(cursor.too_long), AT(cursor.no_loss),
    AT(cursor.consecutive_bad), AT(cursor.broken_in_row),
    AT(ledger.slots), AT(ledger.supervised),
    AT(ledger.context), AT(ledger.image), AT(ledger.padding), AT(ledger.patch_slots),
    AT(ledger.patches), AT(ledger.patch_padding), AT(ledger.samples), AT(ledger.images),
    AT(ledger.mock), AT(ledger.dropped), AT(ledger.too_long), AT(ledger.bad),
    AT(ledger.no_loss), AT(ledger.lost), AT(ledger.shrunk), AT(ledger.cut),
};
static const struct counter real[] = {AT(ledger.attention), AT(ledger.attention_image)};
#undef AT

char *train_state_meta(const struct session *s, const struct train_state *t,
                       struct arena *a)
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
    json_object_set_new(all, "model", json_string(s->recipe->model_path));
    changes_keep(s, all);
    char *text = json_dumps(all, JSON_COMPACT);
    char *copy = arena_copy(a, text, strlen(text));
    free(text);
    json_decref(all);
    return copy;
}

static bool meta_read(const char *path, json_t *all, struct train_state *t)
{
    json_t *list = json_object_get(all, "cursor.waiting");
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
    for (int i = 0; i < t->cursor.nwaiting; i++) {
        json_t *j = json_array_get(list, (size_t)i);
        if (!json_is_integer(j))
            return fail("checkpoint: %s: 'cursor.waiting' holds something else than "
                        "positions", path);
        t->cursor.waiting[i] = json_integer_value(j);
    }
    return true;
}

/* ---- loading ---- */

static bool load(struct session *s, struct arena *a, const struct state *state,
                 const struct allowed *allowed, struct train_state *t)
{
    const struct manifest *m = &state->manifest;
    struct text changes = text_make(&s->arena);
    struct state_piece *piece;
    int64_t count = pieces_list(s, a, false, &piece);
    json_t *meta = json_loads(m->meta, 0, NULL);
    bool ok = changes_find(s, allowed, state->path, meta, &changes) &&
              meta_read(state->path, meta, t);
    t->changes = changes.size ? changes.at : NULL;
    json_decref(meta);
    if (ok && count != m->tensors)
        ok = fail("checkpoint: %s holds %" PRId64 " tensor(s), this run needs %" PRId64
                  " (was model.freeze or moe.bias_rate changed?)", state->path,
                  m->tensors, count);
    for (int64_t i = 0; i < count && ok; i++)
        ok = state_read(state, &piece[i], piece[i].data);
    if (ok)
        weights_follow(&s->model, s->machine);
    return ok;
}

bool train_state_load(struct session *s, const char *root,
                      const struct allowed *allowed, struct train_state *t, bool *found)
{
    struct arena a = arena_make("checkpoint");
    struct state state;
    int64_t step = -1;
    bool ok = state_newest(machine_world(s->machine), root, &step);
    *found = ok && step >= 0;
    if (*found)
        ok = state_open(&a, root, step, &state) && load(s, &a, &state, allowed, t);
    arena_free(&a);
    return ok || fail_kind(FAULT_CHECKPOINT);
}
