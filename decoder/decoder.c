/* decoder.c - the decoder from tokens to the head: embedding, placing, layers.
 *
 *     x = table[input];  x[place] += feature
 *     for each layer:  x = x + attention(norm(x));  x = x + ffn(norm(x))
 *                      x[place] += tap        in the first layers (deepstack)
 *     head(norm(x))
 *
 * Inputs are whole rows; between blocks x has the rows of this rank's own places. */
#include "decoder/parts.h"

/* ---- embedding: in input, out x, weight table ---- */

static void embed_forward(struct run *r)
{
    r->ops->embed(r->stream, r->in[0], r->w[0], r->out[0]);
}

static void embed_weight(struct run *r)
{
    r->ops->embed_weight(r->stream, r->in[0], r->dout[0], r->beta_w[0], r->dw[0]);
}

static const struct segment embedding = {
    .name = "embedding", COMPUTE("embedding"), .no_grad_in = 1, .weight_in = 1,
    .forward = embed_forward, .weight = embed_weight,
};

/* ---- place: in x rows feature feature_token, out y = x + rows at their places ---- */

static void place_forward(struct run *r)
{
    r->ops->axpby(r->stream, 1, r->in[0], 0, r->out[0]);
    r->ops->take(r->stream, r->in[2], r->in[1], 1, r->out[0]);
}

static void place_backward(struct run *r)
{
    if (tensor_is(r->din[0]))
        r->ops->axpby(r->stream, 1, r->dout[0], r->beta[0], r->din[0]);
    if (tensor_is(r->din[1]))
        r->ops->take(r->stream, r->in[3], r->dout[0], r->beta[1], r->din[1]);
}

#define PLACE                                                                          \
    .forward = place_forward, .backward = place_backward, .no_grad_in = 12, .back_in = 8

static const struct segment place = {
    .name = "place", COMPUTE("embedding"), PLACE,
};

static const struct segment deepstack = {
    .name = "deepstack", COMPUTE("embedding"), PLACE,
};

/* Features are shared by tp ranks as the mergers leave them; each places those of its
 * own tokens, so they are gathered first and their gradients added up.  Balanced ones
 * came to the ranks of their tokens already. */
static const struct segment feature_gather = {
    .name = "gather", .component = "embedding", GATHER,
};

static int place_record(struct graph *g, const struct segment *kind, int x, int rows,
                        bool placed, int feature, int feature_token)
{
    int layer = g->layers - 1;
    rows = placed ? rows : gather_record(g, &feature_gather, rows);
    int y = graph_value(g, "x", layer, g->value[x].dim[0], g->value[x].dim[1]);
    graph_keep(g, y);
    graph_node(g, kind, layer, LIST(x, rows, feature, feature_token), LIST(y), EMPTY,
               NULL, 0);
    return y;
}

static const struct segment own = {
    .name = "own", COMPUTE("embedding"), OWN,
};

static const struct segment locate = {
    .name = "locate", COMPUTE("embedding"), LOCATE,
};

static const struct segment own_live = {
    .name = "live", COMPUTE("router"), LIVE,
};

static const struct segment scatter = {
    .name = "scatter", .component = "embedding", SCATTER,
};

static const struct segment rope_table = {
    .name = "rope_table", COMPUTE("attention"), ROPE_TABLE,
};

static const struct segment mlp_norm = {
    .name = "mlp_norm", COMPUTE("mlp"), RMSNORM,
};

static const struct segment residual = {
    .name = "residual", COMPUTE("mlp"), RESIDUAL,
};

static const struct segment final_norm = {
    .name = "final_norm", COMPUTE("head"), RMSNORM,
};

static int input(struct graph *g, const char *name, int64_t rows)
{
    return graph_input(g, name, DTYPE_I32, 1, (int64_t[]){rows});
}

/* x = table[tokens].  tp ranks share the vocabulary: words of others are zero rows, and
 * the sum over ranks has each row once. */
static int embed_record(struct graph *g, const struct decoder_config *c, int tokens,
                        int *table)
{
    int layer = g->layers - 1, ways = graph_ways(g, false, AXIS_TP);
    struct scope s = {
        g, graph_unit(g, "embedding", layer, PART_EMBEDDINGS,
                      ways > 1 ? ON(AXIS_TP) : 0, false),
        "model.language_model", c->initial,
    };
    *table = param_matrix(&s, "embed_tokens.weight", c->vocabulary, c->width, 0);
    int64_t V = c->vocabulary / ways, first = V * graph_at(g, false, AXIS_TP);
    struct places words = {{first, first + V}, {V, 0}};
    tokens = locate_record(g, &locate, tokens, &words, c->vocabulary);
    int x = graph_value(g, ways > 1 ? "embedded_part" : "embedded", layer,
                        g->value[tokens].dim[0], c->width);
    graph_node(g, &embedding, layer, LIST(tokens), LIST(x), LIST(*table), NULL, 0);
    x = scatter_record(g, &scatter, "embedded", x);
    graph_keep(g, x);
    return x;
}

static struct decoder_layer layer_record(struct graph *g,
                                         const struct decoder_config *c,
                                         const struct decoder_options *o, int index)
{
    struct decoder_layer l = {.config = c, .index = index, .options = o};
    int layer = graph_layer(g);
    l.scope = (struct scope){
        g, graph_unit(g, "dense", layer, PART_DECODER, 0, false),
        arena_text(g->arena, "model.language_model.layers.%d", index), c->initial,
    };
    l.divided = scope_divided(&l.scope);
    return l;
}

/* The last layer: norm, router losses, head. */
static void end_record(struct graph *g, const struct decoder_config *c, int64_t T,
                       int x, int table, struct router_sums *sums,
                       const struct decoder_options *o, struct decoder_graph *out)
{
    int layer = graph_layer(g);
    struct scope s = {
        g, graph_unit(g, "head", layer, PART_DECODER, 0, false), "model.language_model",
        c->initial,
    };
    int w_norm = param_vector(&s, "norm.weight", c->width, INITIAL_ONE);
    struct scope d = c->tied ? s : scope_divided(&s);
    int w_head = c->tied ? table : graph_param(g, d.unit, (struct param){
        .name = "lm_head.weight", .ndim = 2, .dim = {c->vocabulary, c->width},
        .on = {g->unit[d.unit].split}, .initial = INITIAL_NORMAL,
        .deviation = c->initial, .decay = true,
    });
    if (o->loss && out->moe_layers > 0) {
        int share = graph_input(g, "share", DTYPE_F32, 2, (int64_t[]){1, 1});
        decoder_sums(g, sums);
        decoder_router_loss(g, sums, share, o, out);
    }
    int n = rmsnorm_record(g, &final_norm, "n", x, w_norm, c->eps);
    decoder_head(g, c, T, n, w_head, o, out);
}

static struct seen seen_record(struct graph *g, const struct capacity *cap,
                               const struct decoder_options *o,
                               const struct places *row)
{
    struct seen s = {input(g, "segment", cap->segments + 1), o->cache_rows, NONE, NONE,
                     NONE};
    if (!o->cache_rows)
        return s;
    s.row = input(g, "cache_row", cap->tokens);
    if (!o->answers)
        return s;
    s.own_row = own_record(g, &own, s.row, row);
    s.own_from = own_record(g, &own, input(g, "cache_from", cap->tokens), row);
    return s;
}

void decoder_record(struct graph *g, const struct decoder_config *c,
                    const struct capacity *cap, const struct vision_graph *vision,
                    const struct decoder_options *o, struct decoder_graph *out)
{
    int64_t T = cap->tokens, D = c->width, ways = graph_ways(g, false, AXIS_TP);
    *out = (struct decoder_graph){NONE, NONE, NONE, NONE, NONE, .overflow = NONE,
                                  .logits = NONE, .best = NONE, .best_logit = NONE};
    for (int l = 0; l < c->layers; l++)
        out->moe_layers += c->moe[l];
    g->tower = "decoder";
    graph_layer(g);
    int tokens = input(g, "input", T);
    int position = graph_input(g, "position", DTYPE_I32, 2, (int64_t[]){T, 3});
    struct places row = places_of_row(g, T), rank = places_of_rank(g, T);
    struct seen seen = seen_record(g, cap, o, &row);
    bool placed = vision && vision->placed;
    int64_t rows = vision ? g->value[vision->feature].dim[0] : 0;
    int feature =
        vision ? input(g, "feature", placed ? places_count(&rank) : T) : NONE;
    int feature_token =
        vision ? input(g, "feature_token", placed ? rows : rows * ways) : NONE;
    int live = out->moe_layers ? input(g, "live", 1) : NONE;
    int bias = out->moe_layers && o->bias
                   ? graph_input(g, "router_bias", DTYPE_F32, 2,
                                 (int64_t[]){out->moe_layers, c->experts})
                   : NONE;
    tokens = own_record(g, &own, tokens, &row);
    position = own_record(g, &own, position, &row);
    if (!placed) {
        feature = own_record(g, &own, feature, &rank);
        feature_token = locate_record(g, &locate, feature_token, &rank, T);
    }
    live = live_record(g, &own_live, live, &rank, T);

    struct rotary t = rope_table_record(g, &rope_table, position, &(struct rope_shape){
        .theta = c->theta, .heads_width = c->head_width,
        .section = {c->section[0], c->section[1], c->section[2]},
    });
    int table, x = embed_record(g, c, tokens, &table);
    if (vision)
        x = place_record(g, &place, x, vision->feature, placed, feature, feature_token);

    if (places_count(&row) == T && !o->answers)
        graph_live(g, (struct live){seen.segment, T, 1});
    struct router_sums sums = {NONE, NONE, NONE, NONE,
                               o->aux_coef != 0 || o->z_coef != 0, NONE};
    int moe = 0;
    for (int l = 0; l < c->layers; l++) {
        struct decoder_layer d = layer_record(g, c, o, l);
        int h = decoder_attention(&d, x, &seen, t);
        int w =
            param_vector(&d.scope, "post_attention_layernorm.weight", D, INITIAL_ONE);
        int m = rmsnorm_record(g, &mlp_norm, "m", h, w, c->eps);
        int f = c->moe[l] ? decoder_experts(&d, moe, m, live, bias, &sums)
                          : decoder_mlp(&d, m);
        if (c->moe[l])
            out->chosen[moe++] = sums.chosen;
        x = residual_record(g, &residual, "x", h, f);
        if (vision && l < vision->taps)
            x = place_record(g, &deepstack, x, vision->tap[l], placed, feature,
                             feature_token);
    }
    out->overflow = sums.overflow;
    graph_live(g, (struct live){NONE, 0, 1});
    end_record(g, c, T, x, table, &sums, o, out);
}
