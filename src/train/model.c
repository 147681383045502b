/* model.c - records models for their purposes and feeds them packed rows. */
#include "train/model.h"

#include "base/text.h"
#include "train/choices.h"

struct model_purpose purpose_train(const struct recipe *r, const struct model_config *c,
                                   unsigned frozen)
{
    return (struct model_purpose){
        .frozen = frozen,
        .vision = {balances(r->vision_balance), r->vision_capacity},
        .decoder = {
            .aux_coef = r->moe_aux_coef < 0 ? c->decoder.aux_coef : r->moe_aux_coef,
            .z_coef = r->moe_z_coef,
            .bias = r->moe_bias_rate > 0 && c->decoder.experts > 0,
            .loss = true,
            .capacity = r->moe_capacity,
            .cp_ring = r->parallel_cp_ring,
            .dispatcher = dispatcher_of(r->moe_dispatcher),
        },
    };
}

struct model_purpose purpose_answers(const struct recipe *r, int64_t cache_rows,
                                     bool answers)
{
    return (struct model_purpose){
        .decoder = {.bias = r->moe_bias_rate > 0, .best = true,
                    .dispatcher = dispatcher_of(r->moe_dispatcher),
                    .cache_rows = cache_rows,
                    .answers = answers},
    };
}

struct model_purpose purpose_logits(void)
{
    return (struct model_purpose){.decoder = {.logits = true}};
}

void model_record(struct arena *a, const struct model_config *config,
                  const struct capacity *capacity, const struct model_purpose *purpose,
                  const struct mesh *mesh, int rank, struct model *out)
{
    *out = (struct model){.config = *config, .capacity = *capacity,
                          .frozen = purpose->frozen, .graph = graph_make(a)};
    struct graph *g = &out->graph;
    g->dtype = purpose->dtype;
    struct vision_graph vision = {0};
    g->mesh = mesh;
    g->rank = rank;
    if (config->has_vision)
        vision_record(g, &config->vision, capacity, &purpose->vision, &vision);
    out->balanced = vision.placed;
    bool images = config->has_vision && !purpose->decoder.answers;
    decoder_record(g, &config->decoder, capacity, images ? &vision : NULL,
                   &purpose->decoder, &out->decoder);
    graph_freeze(g, purpose->frozen);
    graph_check(g);
    const struct { const char *name; int *to;
    } input[] = {
        {"input", &out->in.input},
        {"target", &out->in.target},
        {"position", &out->in.position},
        {"segment", &out->in.segment},
        {"feature", &out->in.feature},
        {"feature_token", &out->in.feature_token},
        {"pixels", &out->in.pixels},
        {"patch", &out->in.patch},
        {"image", &out->in.image},
        {"live", &out->in.live},
        {"scale", &out->in.scale},
        {"share", &out->in.share},
        {"router_bias", &out->in.router_bias},
        {"want", &out->in.want},
        {"cache_row", &out->in.cache_row},
        {"cache_from", &out->in.cache_from},
        {"pixel_row", &out->in.pixel_row},
        {"pixel_leave", &out->in.pixel_leave},
        {"pixel_arrive", &out->in.pixel_arrive},
        {"feature_order", &out->in.feature_order},
        {"feature_undo", &out->in.feature_undo},
        {"feature_leave", &out->in.feature_leave},
        {"feature_arrive", &out->in.feature_arrive},
    };
    for (int i = 0; i < COUNT(input); i++)
        *input[i].to = graph_find(g, input[i].name);
    out->encodes = config->has_vision ? g->value[out->in.patch].dim[0] : 0;
}

struct mesh_limits limits_of(const struct model_config *c,
                             const struct capacity *capacity)
{
    const struct decoder_config *d = &c->decoder;
    const struct vision_config *v = &c->vision;
    struct mesh_limits m = {
        .heads = d->heads, .groups = d->groups, .vocabulary = d->vocabulary,
        .experts = d->experts, .expert_hidden = d->experts ? d->expert_hidden : 0,
        .shared_hidden = d->experts ? d->shared_hidden : 0,
        .tokens = capacity->tokens,
        .pieces = d->layers + 2,        /* embedding and head; as src/plan/cut.c */
    };
    for (int i = 0; i < d->layers; i++)
        if (!d->moe[i])
            m.hidden = d->hidden;
    if (c->has_vision) {
        int cell = v->merge * v->merge;
        m.pieces += v->depth;
        m.vision_heads = v->heads;
        m.vision_hidden = v->hidden;
        m.merger_hidden = v->width * cell;
        m.features = (int)(capacity->patches / cell);
    }
    return m;
}

struct capacity capacity_of(const struct recipe *r, const struct model_config *c)
{
    int64_t cell = (int64_t)c->vision.merge * c->vision.merge;
    return (struct capacity){
        .tokens = r->batch_tokens,
        .patches = MAX(r->batch_patches / cell * cell, cell),
        .segments = r->batch_samples,
        .images = r->batch_images,
    };
}

struct row_shape row_shape_of(const struct capacity *c, const struct model_config *m)
{
    return (struct row_shape){
        .tokens = (int)c->tokens, .patches = (int)c->patches,
        .segments = (int)c->segments, .images = (int)c->images,
        .values = vision_patch_values(&m->vision), .merge = m->vision.merge,
        .pad = MAX(m->pad, 0), .image_token = m->image_token,
    };
}

bool parts_parse(const char *list, unsigned *parts)
{
    struct arena a = arena_make("parts");
    char **word;
    bool ok = true;
    int n = text_split(&a, list, " ,", &word);
    *parts = 0;
    for (int i = 0; i < n && ok; i++) {
        int p = 0;
        while (p < PARTS && strcmp(part_name[p], word[i]))
            p++;
        if (p < PARTS)
            *parts |= 1u << p;
        else
            ok = fail(
                "recipe: model.freeze: no part '%s'; nearest is '%s' (parts: vision "
                "projector embeddings decoder router experts)",
                word[i], text_nearest(word[i], part_name, PARTS));
    }
    arena_free(&a);
    return ok || fail_kind(FAULT_USAGE);
}

int64_t model_parameters(const struct model *m, bool trainable_only)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < m->graph.nparam; i++)
        if (!trainable_only || m->graph.param[i].trainable)
            sum += param_disk_count(&m->graph.param[i]);
    return sum;
}

void model_table(const struct model *m, struct text *t)
{
    int64_t all[PARTS] = {0}, trains[PARTS] = {0};
    for (int64_t i = 0; i < m->graph.nparam; i++) {
        const struct param *p = &m->graph.param[i];
        all[p->part] += param_disk_count(p);
        trains[p->part] += p->trainable ? param_disk_count(p) : 0;
    }
    text_add(t, "%-12s%16s%16s\n", "part", "parameters", "trained");
    for (int p = 0; p < PARTS; p++)
        if (all[p])
            text_add(t, "%-12s%16lld%16lld%s\n", part_name[p], (long long)all[p],
                     (long long)trains[p], trains[p] ? "" : "  frozen");
    text_add(t, "%-12s%16lld%16lld\n", "all", (long long)model_parameters(m, false),
             (long long)model_parameters(m, true));
}

struct feed feed_make(struct arena *a, const struct model *m)
{
    struct feed f = {.input = NEW(a, int32_t, m->capacity.tokens)};
    int pixels = m->in.pixels;
    if (pixels != NONE && m->graph.value[pixels].dtype != DTYPE_F32)
        f.pixels = arena_room(a, (size_t)value_bytes(&m->graph.value[pixels]));
    return f;
}

static void bind(struct machine *machine, int value, int mb, const void *data)
{
    if (value != NONE)
        machine_bind(machine, value, mb, data);
}

void feed_row(struct feed *f, struct machine *machine, const struct model *m, int mb,
              const struct row *row, double supervised, double live,
              const float *router_bias, const struct ask *ask)
{
    for (int64_t t = 0; t < m->capacity.tokens; t++)
        f->input[t] = row->feature[t] >= 0 ? -1 : row->input[t];
    f->scale = supervised > 0 ? (float)(1 / supervised) : 0;
    f->share = live > 0 ? (float)(row->live / live) : 0;
    bind(machine, m->in.input, mb, f->input);
    bind(machine, m->in.target, mb, row->target);
    bind(machine, m->in.position, mb, row->position);
    bind(machine, m->in.segment, mb, row->segment);
    const void *pixels = row->pixels;   /* NULL: nobody reads them */
    if (f->pixels && pixels) {
        const struct value *v = &m->graph.value[m->in.pixels];
        dtype_from_f32(v->dtype, row->pixels, f->pixels, value_count(v));
        pixels = f->pixels;
    }
    bind(machine, m->in.pixels, mb, pixels);
    bind(machine, m->in.live, mb, &row->live);
    bind(machine, m->in.scale, mb, &f->scale);
    bind(machine, m->in.share, mb, &f->share);
    bind(machine, m->in.router_bias, mb, router_bias);
    if (ask) {
        bind(machine, m->in.want, mb, ask->want);
        bind(machine, m->in.cache_row, mb, ask->cache_row);
        bind(machine, m->in.cache_from, mb, ask->cache_from);
    }
    if (m->balanced)
        return;
    bind(machine, m->in.feature, mb, row->feature);
    bind(machine, m->in.feature_token, mb, row->feature_token);
    bind(machine, m->in.patch, mb, row->patch);
    bind(machine, m->in.image, mb, row->image);
}

struct flops_count flops_count_of(const struct ledger *l, const struct model *m)
{
    double cell = m->config.vision.merge * m->config.vision.merge;
    return (struct flops_count){
        .tokens = (double)ledger_useful(l), .supervised = (double)l->supervised,
        .attention = l->attention, .patches = (double)l->patches,
        .attention_image = l->attention_image, .merged = (double)l->patches / cell,
    };
}
