/* session.c - builds what a command needs from a recipe, in three steps. */
#include "train/session.h"

#include "base/log.h"
#include "train/weights.h"

#include <inttypes.h>
#include <xxhash.h>

static const char *or_null(const char *text)
{
    return *text ? text : NULL;
}

static int choice_of(const char *value, const char *const *names)
{
    int i = 0;
    while (strcmp(names[i], value))
        i++;
    return i;
}

static bool plan_make(struct session *s, bool trains)
{
    const struct recipe *r = s->recipe;
    struct policy *policy = NEW(&s->arena, struct policy, 1);
    struct order *order = NEW(&s->arena, struct order, 1);
    int *output = NEW(&s->arena, int, 4 + MAX_LAYERS), outputs = 0;
    const struct decoder_graph *d = &s->model.decoder;
    *policy = policy_plain();
    if (!policy_parse(policy, &s->arena, &s->model.graph, r->memory_recompute,
                      r->memory_offload))
        return fail_in("recipe: memory") || fail_kind(FAULT_USAGE);
    policy->slack = r->memory_slack;
    *order = trains ? order_1f1b(&s->arena, 0, 1, (int)r->batch_rows)
                    : order_forward(&s->arena, 1);
    output[outputs++] = d->cross_entropy;
    output[outputs++] = d->loss;
    if (d->moe_layers) {
        output[outputs++] = d->aux;
        output[outputs++] = d->z_loss;
    }
    for (int i = 0; i < d->moe_layers; i++)
        output[outputs++] = d->chosen[i];
    s->plan = plan_build(&s->arena, &s->model.graph, &(struct plan_options){
        .order = order, .policy = policy, .moments = trains ? 2 : 0,
        .output = output, .outputs = outputs});
    return true;
}

bool session_open(struct session *s, const struct recipe *recipe, bool trains)
{
    struct model_config config;
    unsigned frozen, all = (1u << PARTS) - 1;
    *s = (struct session){.arena = arena_make("session"), .recipe = recipe};
    if (!parts_parse(recipe->model_freeze, &frozen) ||
        !hf_config_read(&s->arena, recipe->model_path, &config))
        return false;
    struct capacity capacity = capacity_of(recipe, &config);
    struct model_purpose purpose = purpose_train(recipe, &config, trains ? frozen : all);
    model_record(&s->arena, &config, &capacity, &purpose, &s->model);
    if (trains && model_parameters(&s->model, true) == 0) {
        fail("recipe: model.freeze '%s' freezes everything; nothing would train",
             recipe->model_freeze);
        return fail_kind(FAULT_USAGE);
    }
    return plan_make(s, trains);
}

/* ---- data ---- */

static bool sources_open(struct session *s, struct mix_part *part)
{
    const struct recipe *r = s->recipe;
    uint64_t hash[MAX_SOURCES];
    for (int i = 0; i < r->nsource; i++) {
        const struct recipe_source *x = &r->source[i];
        const struct source_options o = {
            .path = x->path, .format = x->format, .images = or_null(x->images),
            .prompt = or_null(x->prompt), .match = or_null(x->match), .limit = x->limit,
        };
        if (!source_open(&s->arena, &o, &s->source[i]))
            return false;
        s->nsource++;
        hash[i] = source_hash(s->source[i]);
        part[i] = (struct mix_part){s->source[i], x->weight, *x->name ? x->name : x->path};
        log_info("data", "%s: %" PRId64 " samples (%s)", part[i].name,
                 source_count(s->source[i]), source_format(s->source[i]));
    }
    s->data_hash = XXH3_64bits(hash, sizeof *hash * (size_t)r->nsource);
    return true;
}

static bool image_shape_read(struct session *s, struct image_shape *shape)
{
    const struct recipe *r = s->recipe;
    const struct vision_config *v = &s->model.config.vision;
    *shape = image_shape_default;
    struct hf_processor p = {.min_pixels = shape->min_pixels,
                             .max_pixels = shape->max_pixels};
    bool found;
    memcpy(p.mean, shape->mean, sizeof p.mean);
    memcpy(p.std, shape->std, sizeof p.std);
    if (!hf_processor_read(&s->arena, r->model_path, &p, &found))
        return false;
    shape->patch = v->patch;
    shape->frames = v->frames;
    shape->merge = v->merge;
    shape->min_pixels = r->data_min_pixels ? r->data_min_pixels : p.min_pixels;
    shape->max_pixels = r->data_max_pixels ? r->data_max_pixels : p.max_pixels;
    memcpy(shape->mean, p.mean, sizeof p.mean);
    memcpy(shape->std, p.std, sizeof p.std);
    shape->rule = (enum resize_rule)choice_of(r->data_resize_rule, resize_rule_name);
    int cell = v->patch * v->merge;
    log_info("data", "images of %" PRId64 "..%" PRId64 " pixels become %" PRId64 "..%" PRId64
             " tokens; a row holds %" PRId64 " tokens and %" PRId64 " patches",
             shape->min_pixels, shape->max_pixels, shape->min_pixels / cell / cell,
             shape->max_pixels / cell / cell, s->model.capacity.tokens,
             s->model.capacity.patches);
    return true;
}

static bool tokenizer_fits(const struct session *s)
{
    const struct model_config *c = &s->model.config;
    const char *path = s->recipe->model_path;
    if (tokenizer_size(s->tokenizer) > c->decoder.vocabulary)
        return fail("tokenizer: %s/tokenizer.json has ids up to %d, the model's vocabulary "
                    "holds %d", path, tokenizer_size(s->tokenizer) - 1,
                    c->decoder.vocabulary);
    if (s->chat.image_pad != c->image_token)
        return fail("tokenizer: <|image_pad|> is id %d in %s/tokenizer.json, image_token_id "
                    "in its config.json is %d", s->chat.image_pad, path, c->image_token);
    return true;
}

static bool text_open(struct session *s)
{
    const struct recipe *r = s->recipe;
    struct image_shape shape;
    char *path = path_join(&s->arena, r->model_path, "tokenizer.json");
    if (!tokenizer_open(&s->arena, path, &s->tokenizer) ||
        !chat_make(s->tokenizer, &s->chat) || !tokenizer_fits(s) ||
        !image_shape_read(s, &shape))
        return false;
    s->loader = (struct loader_options){
        .chat = &s->chat,
        .shape = row_shape_of(&s->model.capacity, &s->model.config), .image = shape,
        .limits = {r->data_pixel_limit, r->data_decode_bytes, (int)r->data_scan_limit},
        .exif = (enum exif_rule)choice_of(r->data_exif, exif_rule_name),
        .too_long = (enum long_policy)choice_of(r->data_too_long, long_policy_name),
        .bad = (enum bad_policy)choice_of(r->data_bad, bad_policy_name),
        .bad_limit = (int)r->data_bad_limit, .window = (int)r->data_window,
        .workers = (int)r->data_workers, .ahead = (int)r->data_ahead,
        .hold = (int)r->batch_rows,
    };
    return true;
}

bool session_text(struct session *s)
{
    return text_open(s) || fail_kind(FAULT_DATA);
}

static bool mixes_make(struct session *s)
{
    const struct recipe *r = s->recipe;
    struct mix_part part[MAX_SOURCES];
    int hold_out = (int)r->data_hold_out;
    if (!sources_open(s, part) ||
        !mix_make(&s->arena, part, s->nsource, (uint64_t)r->run_seed, r->data_shuffle,
                  hold_out, false, &s->mix))
        return false;
    s->loader.mix = s->mix;
    return !hold_out || mix_make(&s->arena, part, s->nsource, (uint64_t)r->run_seed, false,
                                 hold_out, true, &s->held);
}

bool session_data(struct session *s)
{
    return session_text(s) && (mixes_make(s) || fail_kind(FAULT_DATA));
}

/* ---- machine ---- */

bool session_machine(struct session *s)
{
    const struct recipe *r = s->recipe;
    bool load = !strcmp(r->model_weights, "load") ||
                (!strcmp(r->model_weights, "auto") && hf_has_weights(r->model_path));
    s->ops = &ops_cpu;
    s->team = team_make((int)r->device_threads);
    s->stream = (struct stream){.team = s->team};
    if (!machine_make(&s->arena, s->plan, &(struct machine_options){
            .ops = s->ops, .team = s->team, .lanes = !r->device_single_lane}, &s->machine))
        return fail_in("recipe: lower batch.tokens %" PRId64 " or batch.patches %"
                       PRId64 ", set memory.recompute, or allow more memory",
                       r->batch_tokens, r->batch_patches);
    machine_check(s->machine, r->device_check);
    if (load && !weights_load(&s->model, s->machine, r->model_path))
        return false;
    if (!load)
        weights_fresh(&s->model, s->machine, (uint64_t)r->run_seed);
    if (s->model.in.router_bias != NONE)
        s->router_bias = NEW(&s->arena, float,
                             s->model.decoder.moe_layers * s->model.config.decoder.experts);
    log_info("model", "%s, %" PRId64 " parameters, %" PRId64 " trained; weights %s",
             r->model_path, model_parameters(&s->model, false),
             model_parameters(&s->model, true), load ? "loaded" : "fresh");
    return true;
}

void session_close(struct session *s)
{
    if (s->machine)
        machine_free(s->machine);
    if (s->team)
        team_free(s->team);
    if (s->tokenizer)
        tokenizer_close(s->tokenizer);
    for (int i = 0; i < s->nsource; i++)
        source_close(s->source[i]);
    arena_free(&s->arena);
}

struct view_of_model *session_view(struct session *s, const struct model_purpose *purpose,
                                   const struct capacity *capacity)
{
    struct view_of_model *v = NEW(&s->arena, struct view_of_model, 1);
    struct order *order = NEW(&s->arena, struct order, 1);
    struct model_purpose same = *purpose;
    same.frozen = s->model.frozen;      /* state is laid out by what trains */
    model_record(&s->arena, &s->model.config, capacity, &same, &v->model);
    const struct decoder_graph *d = &v->model.decoder;
    const int wanted[] = {d->loss, d->cross_entropy, d->logits, d->best};
    int *output = NEW(&s->arena, int, COUNT(wanted)), outputs = 0;
    for (int i = 0; i < COUNT(wanted); i++)
        if (wanted[i] != NONE)
            output[outputs++] = wanted[i];
    *order = order_forward(&s->arena, 1);
    v->plan = plan_build(&s->arena, &v->model.graph, &(struct plan_options){
        .order = order, .moments = s->plan->moments, .output = output, .outputs = outputs,
        .state = s->plan});
    v->feed = feed_make(&s->arena, &v->model);
    return v;
}
