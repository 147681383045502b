/* session.c - builds what a command needs from a recipe, in three steps. */
#include "train/session.h"

#include "base/log.h"
#include "train/choices.h"
#include "train/image_shape.h"
#include "train/template.h"
#include "train/weights.h"

#include <inttypes.h>
#include <unistd.h>
#include <xxhash.h>

/* `automatic`: what auto is here. */
static enum dtype compute_of(enum precision_compute c, enum dtype automatic)
{
    switch (c) {
    case precision_compute_auto: return automatic;
    case precision_compute_f32: return DTYPE_F32;
    case precision_compute_bf16: return DTYPE_BF16;
    }
    BUG("precision_compute %d", (int)c);
}

static const char *or_null(const char *text)
{
    return *text ? text : NULL;
}

bool session_leads(const struct session *s)
{
    return !s->rank || s->rank->rank == 0;
}

/* ---- layout ---- */

int session_ranks(const struct recipe *r)
{
    enum { MOST = 1 << 24 };            /* more is refused by the mesh */
    const int64_t ways[] = {r->parallel_pp, MAX(r->parallel_dp, 1), r->parallel_cp,
                            r->parallel_tp};
    int64_t ranks = r->parallel_ranks ? r->parallel_ranks : 1;
    for (int i = 0; i < COUNT(ways) && !r->parallel_ranks; i++)
        ranks = MIN(ranks * ways[i], MOST + 1);
    return (int)ranks;
}

static bool layout_make(const struct recipe *r, const struct mesh_limits *limits,
                        struct mesh *out)
{
    const struct layout l = {
        .world = session_ranks(r), .pp = (int)r->parallel_pp, .dp = (int)r->parallel_dp,
        .cp = (int)r->parallel_cp, .tp = (int)r->parallel_tp, .ep = (int)r->parallel_ep,
        .etp = (int)r->parallel_etp, .replicate = (int)r->parallel_replicate,
    };
    if (!mesh_make(&l, limits, out))
        return fail_more("parallel.ranks (--ranks N) says how many ranks there are") ||
               fail_in("recipe: parallel");
    int dp = out->layout.dp;
    int64_t rows = r->batch_rows;
    if (rows % dp)
        return fail("recipe: batch.rows %" PRId64 " does not divide over %d "
                    "data-parallel rank(s); nearest is %" PRId64, rows, dp,
                    MAX((rows + dp / 2) / dp, 1) * dp);
    int stage = out->layout.world / out->layout.pp;
    return !limits->features || !balances(r->vision_balance) ||
           stage <= MAX_MEMBERS ||
           fail("recipe: vision.balance images: %d rank(s) of a stage would exchange "
                "rows, at most %d can; set it to none", stage, MAX_MEMBERS);
}

/* What is about experts means nothing to a model that has none. */
static bool experts_there(const struct recipe *r, const struct model_config *c)
{
    struct arena a = arena_make("experts");
    const struct recipe_field *f;
    bool there = false;
    for (int l = 0; l < c->decoder.layers; l++)
        there |= c->decoder.moe[l];
    int n = there ? 0 : recipe_fields(&f);
    bool ok = !r->moe_overlap_shared || c->decoder.shared_hidden > 0 ||
              fail("recipe: moe.overlap_shared = true, but the model has no shared "
                   "expert");
    for (int i = 0; i < n && ok; i++) {
        bool about = !strcmp(f[i].section, "moe") || !strcmp(f[i].key, "ep") ||
                     !strcmp(f[i].key, "etp");
        char *key = arena_text(&a, "%s.%s", f[i].section, f[i].key);
        if (about && recipe_changed(r, &a, key))
            ok = fail("recipe: %s = %s, but the model has no experts", key,
                      recipe_get(r, &a, key));
    }
    arena_free(&a);
    return ok;
}

bool session_layout(const struct recipe *r, struct mesh *out)
{
    struct arena a = arena_make("layout");
    struct model_config config;
    bool ok = hf_config_read(&a, r->model_path, &config);
    if (ok) {
        struct capacity capacity = capacity_of(r, &config);
        struct mesh_limits limits = limits_of(&config, &capacity);
        limits.chunks = (int)r->parallel_chunks;
        ok = (experts_there(r, &config) && layout_make(r, &limits, out)) ||
             fail_kind(FAULT_USAGE);
    }
    arena_free(&a);
    return ok;
}

static struct sharding sharding_of(const struct recipe *r)
{
    struct sharding s = {.prefetch = (int)r->parallel_prefetch};
    switch (r->parallel_shard) {        /* each with all before it */
    case parallel_shard_parameters: s.weights = true; /* fall through */
    case parallel_shard_gradients:
        s.each = reduces_each(r->parallel_reduce); /* fall through */
    case parallel_shard_optimizer: s.state = true; /* fall through */
    case parallel_shard_none: break;
    }
    return s;
}

/* The stages of a pipeline, all ranks the same, and the same for the whole session:
 * the room for experts changes what is equal work, but not where weights are. */
static bool stages_open(struct session *s)
{
    const struct recipe *r = s->recipe;
    const struct mesh *m = s->model.graph.mesh;
    if (s->stages || !m || m->layout.pp * r->parallel_chunks == 1)
        return true;
    struct stages *stages = NEW(&s->arena, struct stages, 1);
    s->stages = stages;
    s->stage = view_at(&m->dense, s->model.graph.rank, AXIS_PP);
    return stages_make(&s->arena, &s->model.graph, m->layout.pp,
                       (int)r->parallel_chunks, r->parallel_stages, NULL, stages) ||
           fail_in("recipe: parallel.stages");
}

static struct order order_of(struct session *s, struct arena *a, bool trains, int mbs)
{
    int ranks = s->stages ? s->stages->ranks : 1;
    int chunks = s->stages ? s->stages->chunks : 1;
    if (!trains)
        return order_forward_only(a, ranks, chunks, mbs);
    if (s->recipe->parallel_zero_bubble)
        return order_zero_bubble(a, s->stage, ranks, chunks, mbs);
    return chunks > 1 ? order_interleaved(a, s->stage, ranks, chunks, mbs)
                      : order_1f1b(a, s->stage, ranks, mbs);
}

/* `state`: of the plan it takes over from, or NULL. */
static bool plan_make(struct session *s, bool trains, const struct plan *state)
{
    const struct recipe *r = s->recipe;
    struct policy *policy = NEW(&s->arena, struct policy, 1);
    struct order *order = NEW(&s->arena, struct order, 1);
    int *output = NEW(&s->arena, int, 5 + MAX_LAYERS), outputs = 0;
    const struct decoder_graph *d = &s->model.decoder;
    *policy = policy_plain();
    if (!policy_parse(policy, &s->arena, &s->model.graph, r->memory_recompute,
                      r->memory_offload))
        return fail_in("recipe: memory") || fail_kind(FAULT_USAGE);
    policy->slack = r->memory_slack;
    policy->keep_weights = r->parallel_keep_weights;
    policy->weave = r->parallel_weave;
    policy->delay = r->parallel_delay_weights;
    policy->overlap = r->moe_overlap_shared;
    const struct sharding sharding = sharding_of(r);
    int dp = s->crew ? s->crew->mesh.layout.dp : 1;
    if (!stages_open(s))
        return false;
    *order = order_of(s, &s->arena, trains, trains ? (int)r->batch_rows / dp : 1);
    output[outputs++] = d->cross_entropy;
    output[outputs++] = d->loss;
    if (d->moe_layers) {
        output[outputs++] = d->aux;
        output[outputs++] = d->z_loss;
    }
    for (int i = 0; i < d->moe_layers; i++)
        output[outputs++] = d->chosen[i];
    if (session_may_grow(s))
        output[outputs++] = d->overflow;
    s->plan = plan_build(&s->arena, &s->model.graph, &(struct plan_options){
        .stages = s->stages, .stage = s->stage, .order = order, .policy = policy,
        .moments = trains ? 2 : 0, .sharding = &sharding, .precision = s->precision,
        .wire = dtype_of_wire(r->parallel_gradient_dtype),
        .output = output, .outputs = outputs, .state = state});
    return true;
}

static bool session_make(struct session *s, bool trains)
{
    const struct recipe *recipe = s->recipe;
    struct model_config config;
    unsigned frozen, all = (1u << PARTS) - 1;
    if (!parts_parse(recipe->model_freeze, &frozen) ||
        !hf_config_read(&s->arena, recipe->model_path, &config))
        return false;
    struct capacity capacity = capacity_of(recipe, &config);
    struct model_purpose purpose =
        purpose_train(recipe, &config, trains ? frozen : all);
    s->compute = compute_of(recipe->precision_compute, s->compute);
    purpose.dtype = s->compute;
    s->precision = (struct precision){
        dtype_of_gradients(recipe->precision_gradients),
        dtype_of_moments(recipe->precision_moments), recipe->precision_masters};
    model_record(&s->arena, &config, &capacity, &purpose,
                 s->crew ? &s->crew->mesh : NULL, s->rank ? s->rank->rank : 0,
                 &s->model);
    if (trains && model_parameters(&s->model, true) == 0) {
        fail("recipe: model.freeze '%s' freezes everything; nothing would train",
             recipe->model_freeze);
        return fail_kind(FAULT_USAGE);
    }
    s->room = recipe->moe_capacity;
    s->image_room = recipe->vision_capacity;
    return plan_make(s, trains, NULL);
}

bool session_look(const struct recipe *r, bool exports)
{
    return hf_look(r->model_path, exports);
}

bool session_open(struct session *s, const struct recipe *recipe, bool trains)
{
    *s = (struct session){.recipe = recipe};
    return session_look(recipe, false) &&
           session_join(s, recipe, trains, NULL, NULL);
}

bool session_join(struct session *s, const struct recipe *recipe, bool trains,
                  const struct rank *rank, struct crew *crew)
{
    *s = (struct session){.arena = arena_make("session"), .recipe = recipe,
                          .rank = rank, .crew = crew};
    return session_make(s, trains);
}

bool session_preview(struct session *s, const struct recipe *recipe,
                     enum dtype compute, const struct rank *rank, struct crew *crew)
{
    *s = (struct session){.arena = arena_make("session"), .recipe = recipe,
                          .rank = rank, .crew = crew, .compute = compute};
    return session_make(s, true);
}

bool session_may_grow(const struct session *s)
{
    return s->room > 0 && s->model.decoder.overflow != NONE;
}

/* The training plan again, with other room. */
static bool plan_again(struct session *s)
{
    struct model was = s->model;
    struct model_purpose purpose = purpose_train(s->recipe, &was.config, was.frozen);
    purpose.dtype = s->compute;
    purpose.decoder.capacity = s->room;
    purpose.vision.capacity = s->image_room;
    model_record(&s->arena, &was.config, &was.capacity, &purpose, was.graph.mesh,
                 was.graph.rank, &s->model);
    return plan_make(s, true, s->plan) && machine_use(s->machine, s->plan);
}

bool session_grow(struct session *s)
{
    s->room = MAX(2 * s->room, 1);      /* less is no room even for equal shares */
    return plan_again(s);
}

bool session_grow_images(struct session *s)
{
    REQUIRE(s->model.encodes < s->model.capacity.patches);
    s->image_room *= 2;
    return plan_again(s);
}

/* ---- data ---- */

static bool sources_open(struct session *s, struct mix_part *part)
{
    const struct recipe *r = s->recipe;
    uint64_t hash[MAX_SOURCES];
    for (int i = 0; i < r->nsource; i++) {
        const struct recipe_source *x = &r->source[i];
        const struct source_options o = {
            .path = x->path,
            .format = recipe_word("data.sources.N.format", (int)x->format),
            .images = or_null(x->images),
            .prompt = or_null(x->prompt), .match = or_null(x->match), .limit = x->limit,
            .ignore = or_null(x->ignore),
        };
        if (!source_open(&s->arena, &o, &s->source[i]))
            return false;
        s->nsource++;
        hash[i] = source_hash(s->source[i]);
        part[i] =
            (struct mix_part){s->source[i], x->weight, *x->name ? x->name : x->path};
        log_info("data", "%s: %" PRId64 " sample(s) (%s)", part[i].name,
                 source_count(s->source[i]), source_format(s->source[i]));
    }
    s->data_hash = XXH3_64bits(hash, sizeof *hash * (size_t)r->nsource);
    return true;
}

static bool shape_read(struct session *s, struct image_shape *shape)
{
    const struct recipe *r = s->recipe;
    const struct vision_config *v = &s->model.config.vision;
    const struct image_limits_given given = {r->data_min_pixels, r->data_max_pixels};
    const char *from;
    if (!image_shape_read(&s->arena, r->model_path, v, given, shape, &from))
        return false;
    shape->rule = resize_of(r->data_resize_rule);
    int cell = v->patch * v->merge;
    log_info("data", "images are resized to %" PRId64 " to %" PRId64 " pixel(s) (%s), "
             "about %" PRId64 " to %" PRId64 " token(s) (sides are whole multiples of "
             "%d); a row holds %" PRId64 " token(s) and %" PRId64 " patch(es)",
             shape->min_pixels, shape->max_pixels, from,
             shape->min_pixels / cell / cell, shape->max_pixels / cell / cell, cell,
             s->model.capacity.tokens, s->model.capacity.patches);
    return true;
}

static bool tokenizer_fits(const struct session *s)
{
    const struct model_config *c = &s->model.config;
    const char *path = s->recipe->model_path;
    if (tokenizer_size(s->tokenizer) > c->decoder.vocabulary)
        return fail(
            "tokenizer: %s/tokenizer.json has ids up to %d, the model's vocabulary "
            "holds %d",
            path, tokenizer_size(s->tokenizer) - 1, c->decoder.vocabulary);
    if (s->chat.image_pad != c->image_token)
        return fail(
            "tokenizer: <|image_pad|> is id %d in %s/tokenizer.json, image_token_id "
            "in its config.json is %d",
            s->chat.image_pad, path, c->image_token);
    return true;
}

struct loader_options session_rows_ahead(const struct session *s)
{
    const struct recipe *r = s->recipe;
    return (struct loader_options){
        .shape = row_shape_of(&s->model.capacity, &s->model.config),
        .window = (int)r->data_window, .workers = (int)r->data_workers,
        .ahead = (int)r->data_ahead, .hold = (int)r->batch_rows,
    };
}

/* Of config, tokenizer and processor as they are on disk; weights are the state's. */
static bool model_hash_make(struct session *s)
{
    static const char *const name[] = {"config.json", "tokenizer.json",
                                       "preprocessor_config.json",
                                       "processor_config.json"};
    uint64_t hash[COUNT(name)] = {0};
    for (int i = 0; i < COUNT(name); i++) {
        struct bytes file;
        const char *path = path_join(&s->arena, s->recipe->model_path, name[i]);
        if (!file_exists(path))
            continue;
        if (!file_map(path, &file))
            return false;
        hash[i] = XXH3_64bits(file.at, (size_t)file.size);
        file_unmap(&file);
    }
    s->model_hash = XXH3_64bits(hash, sizeof hash);
    return true;
}

static bool text_open(struct session *s)
{
    const struct recipe *r = s->recipe;
    struct image_shape shape;
    char *path = path_join(&s->arena, r->model_path, "tokenizer.json");
    if (!tokenizer_open(&s->arena, path, &s->tokenizer) ||
        !chat_make(s->tokenizer, &s->chat) || !tokenizer_fits(s) ||
        !template_check(&s->arena, r->model_path, template_of(r->model_template)) ||
        !shape_read(s, &shape) || !model_hash_make(s))
        return false;
    s->chat.special = special_of(r->data_special);
    const struct loader_options rows = session_rows_ahead(s);
    s->loader = (struct loader_options){
        .chat = &s->chat,
        .shape = rows.shape, .image = shape,
        .limits = {r->data_pixel_limit, r->data_decode_bytes, (int)r->data_scan_limit},
        .rules = {exif_of(r->data_exif), alpha_of(r->data_alpha)},
        .too_long = long_of(r->data_too_long),
        .bad = bad_of(r->data_bad),
        .bad_limit = (int)r->data_bad_limit, .window = rows.window,
        .workers = rows.workers, .ahead = rows.ahead, .hold = rows.hold,
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
    return !hold_out || mix_make(&s->arena, part, s->nsource, (uint64_t)r->run_seed,
                                 false, hold_out, true, &s->held);
}

bool session_data(struct session *s)
{
    return session_text(s) && (mixes_make(s) || fail_kind(FAULT_DATA));
}

/* ---- machine ---- */

/* Load the folder's weights, or make fresh ones? */
static bool weights_choose(const struct recipe *r, bool *load)
{
    bool there = hf_has_weights(r->model_path);
    *load = false;
    switch (r->model_weights) {
    case model_weights_auto: *load = there; break;
    case model_weights_load: *load = true; break;
    case model_weights_fresh: break;
    }
    if (there || r->model_weights == model_weights_fresh ||
        !hf_has_torch_weights(r->model_path))
        return true;
    fail("model: %s has weights in pytorch_model*.bin alone, which are not read here; "
         "write them as safetensors (in Python: from_pretrained(...).save_pretrained("
         "FOLDER) of transformers), or set model.weights=fresh to begin from nothing",
         r->model_path);
    return fail_kind(FAULT_CHECKPOINT);
}

/* Threads of this rank; 0: one per core. */
static int threads_of(const struct session *s)
{
    enum { MANY = 4 };                  /* times the cores */
    int64_t wanted = s->recipe->device_threads, ranks = s->rank ? s->rank->ranks : 1;
    int cores = device_cores();
    if (wanted * ranks > MANY * cores && session_leads(s))
        log_warn("device", "device.threads %" PRId64 " for each of %" PRId64 " rank(s) "
                 "are %" PRId64 " thread(s) on %d core(s); 0 takes one per core",
                 wanted, ranks, wanted * ranks, cores);
    return ranks > 1 && !wanted ? MAX(cores / (int)ranks, 1) : (int)wanted;
}

bool session_machine(struct session *s)
{
    const struct recipe *r = s->recipe;
    bool load;
    if (!weights_choose(r, &load))
        return false;
    switch (r->device_kind) {
    case device_kind_cpu: s->ops = &ops_cpu; break;
    }
    s->team = team_make(threads_of(s));
    s->stream = (struct stream){.team = s->team};
    if (!machine_make(&s->arena, s->plan, &(struct machine_options){
            .ops = s->ops, .rank = s->rank, .team = s->team,
            .lanes = !r->device_single_lane}, &s->machine))
        return fail_in("recipe: lower batch.tokens %" PRId64 " or batch.patches %"
                       PRId64 ", set memory.recompute, or allow more memory",
                       r->batch_tokens, r->batch_patches);
    machine_check(s->machine, r->device_check);
    if (load && !weights_load(&s->model, s->machine, r->model_path))
        return hf_has_weights(r->model_path) ? false :
               fail_more("the folder holds no weights, the model is untrained "
                         "(model.weights: fresh begins from nothing)");
    if (!load)
        weights_fresh(&s->model, s->machine, (uint64_t)r->run_seed);
    if (s->model.in.router_bias != NONE)
        s->router_bias =
            NEW(&s->arena, float,
                s->model.decoder.moe_layers * s->model.config.decoder.experts);
    log_info("model", "%s, %" PRId64 " parameter(s), %" PRId64 " trained; weights %s",
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

struct view_of_model *session_view(struct session *s, struct arena *a,
                                   const struct model_purpose *purpose,
                                   const struct capacity *capacity)
{
    struct view_of_model *v = NEW(a, struct view_of_model, 1);
    struct order *order = NEW(a, struct order, 1);
    struct model_purpose same = *purpose;
    same.dtype = s->compute;
    same.frozen = s->model.frozen;      /* state is laid out by what trains */
    same.vision.balance = false;        /* balance_feed is training's */
    same.decoder.capacity = 0;          /* nobody runs a row of it again */
    model_record(a, &s->model.config, capacity, &same, s->model.graph.mesh,
                 s->model.graph.rank, &v->model);
    const struct decoder_graph *d = &v->model.decoder;
    const int wanted[] = {d->loss, d->cross_entropy, d->logits, d->best, d->best_logit};
    int *output = NEW(a, int, COUNT(wanted)), outputs = 0;
    for (int i = 0; i < COUNT(wanted); i++)
        if (wanted[i] != NONE)
            output[outputs++] = wanted[i];
    *order = order_of(s, a, false, 1);
    v->plan = plan_build(a, &v->model.graph, &(struct plan_options){
        .stages = s->stages, .stage = s->stage, .order = order,
        .moments = s->plan->moments, .output = output, .outputs = outputs,
        .state = s->plan});
    v->feed = feed_make(a, &v->model);
    if (d->best != NONE) {
        v->best = NEW(a, int32_t, capacity->tokens * session_ways(s));
        v->key = NEW(a, int64_t, capacity->tokens * session_ways(s));
    }
    return v;
}
