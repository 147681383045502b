/* json.c - an outlook, and what came of a search, for programs: a JSON object.
 *
 * Stands alone because its keys are a promise (docs/plan.md) that the text is not. */
#include "outlook/search.h"

#include <jansson.h>

static void number(json_t *o, const char *key, double value)
{
    json_object_set_new(o, key, json_real(value));
}

static void count(json_t *o, const char *key, int64_t value)
{
    json_object_set_new(o, key, json_integer(value));
}

static void text(json_t *o, const char *key, const char *value)
{
    json_object_set_new(o, key, json_string(value));
}

static void flag(json_t *o, const char *key, bool value)
{
    json_object_set_new(o, key, json_boolean(value));
}

static json_t *parts_json(const struct outlook *o, const struct outlook_stage *s)
{
    struct arena a = arena_make("parts");
    struct outlook_part *part;
    int64_t n = outlook_parts(o, s, &a, &part);
    json_t *list = json_array();
    for (int64_t i = 0; i < n; i++) {
        json_t *x = json_object();
        text(x, "component", part[i].name);
        number(x, "flops", part[i].flops);
        number(x, "compute_ms", 1e3 * part[i].compute);
        number(x, "communication_ms", 1e3 * part[i].talk);
        number(x, "bytes_in_node", part[i].inside);
        number(x, "bytes_across", part[i].across);
        if (part[i].compute > 0)
            number(x, "share_of_peak",
                   part[i].flops / part[i].compute / o->hardware.peak);
        json_array_append_new(list, x);
    }
    arena_free(&a);
    return list;
}

static json_t *stage_json(const struct outlook *o, const struct outlook_stage *s)
{
    const struct plan *p = s->session.plan;
    const struct forecast *f = &s->forecast;
    json_t *x = json_object();
    count(x, "rank", s->rank.rank);
    count(x, "need_bytes", s->need);
    count(x, "device_bytes", p->bytes);
    count(x, "state_bytes", p->state_bytes);
    count(x, "host_bytes", p->host_bytes);
    number(x, "compute_ms", 1e3 * f->compute);
    number(x, "communication_ms", 1e3 * f->communication);
    number(x, "exposed_ms", 1e3 * f->exposed);
    number(x, "idle_ms", 1e3 * f->idle);
    number(x, "update_ms", 1e3 * f->update);
    number(x, "hardware_flops", s->flops);
    json_object_set_new(x, "components", parts_json(o, s));
    return x;
}

static void put(json_t *o, struct text *t)
{
    char *s = json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(12));
    if (!s)
        BUG("plan: no memory for JSON");
    text_add(t, "%s\n", s);
    free(s);
    json_decref(o);
}

void outlook_json(const struct outlook *o, struct text *t)
{
    const struct layout *l = &o->crew.mesh.layout;
    const struct {
        const char *key;
        int value;
    } axis[] = {{"pp", l->pp}, {"dp", l->dp}, {"cp", l->cp}, {"tp", l->tp},
                {"ep", l->ep}, {"etp", l->etp}, {"replicate", l->replicate},
                {"ranks", l->world}, {"node", l->node}};
    json_t *x = json_object(), *list = json_array(), *layout = json_object();
    text(x, "hardware", o->hardware.name);
    text(x, "source", o->hardware.source);
    for (int i = 0; i < COUNT(axis); i++)
        count(layout, axis[i].key, axis[i].value);
    json_object_set_new(x, "layout", layout);
    flag(x, "fits", outlook_fits(o));
    count(x, "have_bytes", o->have);
    number(x, "step_ms", 1e3 * o->seconds);
    number(x, "tokens", o->tokens);
    number(x, "tokens_per_s_per_rank", o->tokens / o->seconds / l->world);
    number(x, "model_flops", o->flops);
    number(x, "model_flops_per_s_per_rank", o->flops / o->seconds / l->world);
    number(x, "bubble", o->bubble);
    number(x, "rows_per_expert", o->rows);
    for (int i = 0; i < o->stages; i++)
        json_array_append_new(list, stage_json(o, &o->stage[i]));
    json_object_set_new(x, "stages", list);
    put(x, t);
}

/* ---- a search ---- */

static const char *const fate_name[] = {
    [FATE_FITS] = "fits", [FATE_SLOWER] = "slower", [FATE_MEMORY] = "does not fit",
    [FATE_STATE] = "state does not fit", [FATE_SKIPPED] = "skipped",
    [FATE_REFUSED] = "refused",
};

static json_t *candidate_json(const struct candidate *c)
{
    json_t *x = json_object();
    const struct {
        const char *key;
        int value;
    } axis[] = {{"pp", c->pp}, {"dp", c->dp}, {"cp", c->cp}, {"tp", c->tp},
                {"ep", c->ep}, {"etp", c->etp}, {"replicate", c->replicate},
                {"chunks", c->chunks}};
    for (int i = 0; i < COUNT(axis); i++)
        count(x, axis[i].key, axis[i].value);
    flag(x, "zero_bubble", c->zero_bubble);
    flag(x, "delay_weights", c->delay);
    flag(x, "weave", c->weave);
    text(x, "dispatcher",
         recipe_word("moe.dispatcher", c->allgather ? moe_dispatcher_allgather
                                                    : moe_dispatcher_alltoall));
    text(x, "shard", recipe_word("parallel.shard", (int)division_shard(c->division)));
    text(x, "reduce",
         recipe_word("parallel.reduce", division_last(c->division)
                                            ? parallel_reduce_last
                                            : parallel_reduce_each));
    text(x, "recompute", recompute_name[c->recompute]);
    count(x, "tokens", c->tokens);
    text(x, "fate", fate_name[c->fate]);
    if (c->why)
        text(x, "why", c->why);
    if (c->need > 0)
        count(x, "need_bytes", c->need);
    if (c->fate <= FATE_SLOWER)
        number(x, c->fate == FATE_FITS ? "tokens_per_s_per_rank"
                                       : "most_tokens_per_s_per_rank", c->speed);
    if (c->fate == FATE_FITS)
        flag(x, "whole", c->whole);
    return x;
}

void search_json(const struct search *s, struct text *t)
{
    json_t *x = json_object(), *list = json_array();
    text(x, "hardware", s->hardware.name);
    count(x, "ranks", s->world);
    count(x, "have_bytes", s->have);
    flag(x, "every_setting", s->all);
    flag(x, "stopped", search_stopped(s));
    if (s->best) {
        json_t *best = candidate_json(s->best), *take = json_array();
        char **word;
        int words = search_take(s, s->best, t->arena, &word);
        for (int i = 0; i < words; i++)
            json_array_append_new(take, json_string(word[i]));
        json_object_set_new(best, "take", take);
        json_object_set_new(x, "best", best);
    }
    for (int64_t i = 0; i < s->count; i++)
        json_array_append_new(list, candidate_json(s->at[i]));
    json_object_set_new(x, "candidates", list);
    put(x, t);
}
