/* decoder.c - the decoder from tokens to the head: embedding, placing, layers.
 *
 *     x = table[input];  x[place] += feature
 *     for each layer:  x = x + attention(norm(x));  x = x + ffn(norm(x))
 *                      x[place] += tap        in the first layers (deepstack)
 *     head(norm(x))
 */
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

static int place_record(struct graph *g, const struct segment *kind, int x, int rows,
                        int feature, int feature_token)
{
    int layer = g->layers - 1;
    int y = graph_value(g, "x", layer, g->value[x].dim[0], g->value[x].dim[1]);
    graph_keep(g, y);
    graph_node(g, kind, layer, LIST(x, rows, feature, feature_token), LIST(y), EMPTY,
               NULL, 0);
    return y;
}

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

void decoder_record(struct graph *g, const struct decoder_config *c,
                    const struct capacity *cap, const struct vision_graph *vision,
                    const struct decoder_options *o, struct decoder_graph *out)
{
    int64_t T = cap->tokens, D = c->width;
    *out = (struct decoder_graph){NONE, NONE, NONE, NONE, NONE, .logits = NONE,
                                  .best = NONE, .best_logit = NONE};
    for (int l = 0; l < c->layers; l++)
        out->moe_layers += c->moe[l];
    g->tower = "decoder";
    int layer = graph_layer(g);
    int tokens = input(g, "input", T);
    int position = graph_input(g, "position", DTYPE_I32, 2, (int64_t[]){T, 3});
    int segment = input(g, "segment", cap->segments + 1);
    int feature = vision ? input(g, "feature", T) : NONE;
    int feature_token =
        vision ? input(g, "feature_token", g->value[vision->feature].dim[0]) : NONE;
    int live = out->moe_layers ? input(g, "live", 1) : NONE;
    int bias = out->moe_layers && o->bias
                   ? graph_input(g, "router_bias", DTYPE_F32, 2,
                                 (int64_t[]){out->moe_layers, c->experts})
                   : NONE;

    struct rotary t = rope_table_record(g, &rope_table, position, &(struct rope_shape){
        .theta = c->theta, .heads_width = c->head_width,
        .section = {c->section[0], c->section[1], c->section[2]},
    });
    struct scope s = {
        g, graph_unit(g, "embedding", layer, PART_EMBEDDINGS, 0, false),
        "model.language_model", c->initial,
    };
    int table = param_matrix(&s, "embed_tokens.weight", c->vocabulary, D, 0);
    int x = graph_value(g, "embedded", layer, T, D);
    graph_keep(g, x);
    graph_node(g, &embedding, layer, LIST(tokens), LIST(x), LIST(table), NULL, 0);
    if (vision)
        x = place_record(g, &place, x, vision->feature, feature, feature_token);

    struct router_sums sums = {NONE, NONE, NONE, NONE,
                               o->aux_coef != 0 || o->z_coef != 0};
    int moe = 0;
    for (int l = 0; l < c->layers; l++) {
        layer = graph_layer(g);
        struct decoder_layer d = {c, l, {
            g, graph_unit(g, "dense", layer, PART_DECODER, 0, false),
            arena_text(g->arena, "model.language_model.layers.%d", l), c->initial,
        }};
        int h = decoder_attention(&d, x, segment, t);
        int w =
            param_vector(&d.scope, "post_attention_layernorm.weight", D, INITIAL_ONE);
        int m = rmsnorm_record(g, &mlp_norm, "m", h, w, c->eps);
        int f = c->moe[l] ? decoder_experts(&d, moe, m, live, bias, &sums)
                          : decoder_mlp(&d, m);
        if (c->moe[l])
            out->chosen[moe++] = sums.chosen;
        x = residual_record(g, &residual, "x", h, f);
        if (vision && l < vision->taps)
            x = place_record(g, &deepstack, x, vision->tap[l], feature, feature_token);
    }

    layer = graph_layer(g);
    s.unit = graph_unit(g, "head", layer, PART_DECODER, 0, false);
    int w_norm = param_vector(&s, "norm.weight", D, INITIAL_ONE);
    int w_head = c->tied ? table : graph_param(g, s.unit, (struct param){
        .name = "lm_head.weight", .ndim = 2, .dim = {c->vocabulary, D},
        .initial = INITIAL_NORMAL, .deviation = c->initial, .decay = true,
    });
    if (o->loss && moe > 0) {
        int share = graph_input(g, "share", DTYPE_F32, 2, (int64_t[]){1, 1});
        decoder_router_loss(g, &sums, share, o, out);
    }
    int n = rmsnorm_record(g, &final_norm, "n", x, w_norm, c->eps);
    decoder_head(g, c, n, w_head, o, out);
}
