/* session.c - opens what a command needs from a recipe: model, plan, machine. */
#include "train/session.h"

#include "base/log.h"
#include "train/choices.h"
#include "train/crew.h"
#include "train/weights.h"

#include <inttypes.h>

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

bool session_leads(const struct session *s)
{
    return !s->rank || s->rank->rank == 0;
}

/* ---- plan ---- */

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
