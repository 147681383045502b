/* toy.h - a small model with all that a planner must get right: two towers, a boundary
 * in every layer, tied weights, a fused head, index inputs, scratch, dead segments.
 *
 *     vision   x = pixels W';             x = x + down(swiglu(up(norm(x))))  many times
 *     decoder  x = table[ids] + vision x; x = x + ...                        many times
 *     loss = head(x, table) */
#ifndef TESTS_PLAN_TOY_H
#define TESTS_PLAN_TOY_H

#include "base/random.h"
#include "layers/layers.h"

enum { TOY_WORK = 1 << 15 };    /* the head's scratch, whatever it needs today */

struct toy_shape {
    int64_t rows, width, hidden, words;
    int vision_blocks, decoder_blocks;
    bool dead;                          /* also a segment that nothing reads */
};
static const struct toy_shape toy_small = {8, 16, 24, 40, 2, 3, false};

struct toy {
    struct toy_shape shape;
    struct graph graph;
    int pixels, ids, target, scale;     /* inputs */
    int loss, last;                     /* outputs: [1,1] and the last rows */
};

static const struct segment toy_patch = {
    .name = "patch", COMPUTE("vision"), .no_grad_in = 1, .forward = linear_forward,
    .weight = linear_weight, .weight_in = 1,
};
static const struct segment toy_norm = {.name = "norm", COMPUTE("mlp"), RMSNORM};
static const struct segment toy_up = {.name = "up", COMPUTE("mlp"), LINEAR};
static const struct segment toy_act = {.name = "act", COMPUTE("mlp"), SWIGLU};
static const struct segment toy_down = {.name = "down", COMPUTE("mlp"), LINEAR};
static const struct segment toy_add = {.name = "add", COMPUTE("mlp"), RESIDUAL};

static void toy_embed_forward(struct run *r)
{
    r->ops->embed(r->stream, r->in[0], r->w[0], r->out[0]);
}

static void toy_embed_weight(struct run *r)
{
    r->ops->embed_weight(r->stream, r->in[0], r->dout[0], r->beta_w[0], r->dw[0]);
}

static const struct segment toy_embed = {
    .name = "embed", COMPUTE("embedding"), .no_grad_in = 1, .weight_in = 1,
    .forward = toy_embed_forward, .weight = toy_embed_weight,
};

static void toy_head_forward(struct run *r)
{
    r->ops->head_loss(r->stream, r->in[0], r->w[0], r->in[1], r->in[2], r->work,
                      r->out[0], r->out[1]);
}

static void toy_head_backward(struct run *r)
{
    r->ops->head_loss_back(r->stream, r->in[0], r->w[0], r->in[1], r->in[2], r->out[1],
                           r->dout[0], r->work, r->beta[0], r->din[0], r->beta_w[0],
                           r->dw[0]);
}

static const struct segment toy_head = {
    .name = "head", COMPUTE("head"), .fused = true, .no_grad_in = 6, .no_grad_out = 2,
    .back_in = 7, .back_out = 2, .forward = toy_head_forward,
    .backward = toy_head_backward,
};

static int toy_block(struct graph *g, enum part part, const char *prefix, int x,
                     int64_t hidden)
{
    int layer = graph_layer(g);
    int64_t D = g->value[x].dim[1];
    struct scope s = {g, graph_unit(g, "block", layer, part, 0, false), prefix, 0.3};
    int w_norm = param_vector(&s, "norm", D, INITIAL_ONE);
    int w_up = param_matrix(&s, "up", 2 * hidden, D, 0);
    int w_down = param_matrix(&s, "down", D, hidden, 1);
    int n = rmsnorm_record(g, &toy_norm, "n", x, w_norm, 1e-6);
    int u = linear_record(g, &toy_up, "u", n, w_up, NONE);
    int a = swiglu_record(g, &toy_act, "a", u);
    int d = linear_record(g, &toy_down, "d", a, w_down, NONE);
    return residual_record(g, &toy_add, "x", x, d);
}

/* `skips`: every decoder block also adds what the first one read. */
static inline struct toy toy_record_skips(struct arena *a, struct toy_shape shape,
                                          bool skips)
{
    struct toy t = {.shape = shape, .graph = graph_make(a)};
    struct graph *g = &t.graph;
    int64_t T = shape.rows, D = shape.width;

    g->tower = "vision";
    int layer = graph_layer(g);
    t.pixels = graph_input(g, "pixels", DTYPE_F32, 2, (int64_t[]){T, D});
    struct scope s = {g, graph_unit(g, "patch", layer, PART_VISION, 0, false), "vision",
                      0.3};
    int w = param_matrix(&s, "patch", D, D, 0);
    int rows = linear_record(g, &toy_patch, "rows", t.pixels, w, NONE);
    for (int i = 0; i < shape.vision_blocks; i++)
        rows = toy_block(g, PART_VISION, arena_text(a, "vision.%d", i), rows,
                         shape.hidden);

    g->tower = "decoder";
    layer = graph_layer(g);
    t.ids = graph_input(g, "ids", DTYPE_I32, 1, (int64_t[]){T});
    s = (struct scope){g, graph_unit(g, "table", layer, PART_EMBEDDINGS, 0, false),
                       "decoder", 0.3};
    int table = param_matrix(&s, "table", shape.words, D, 0);
    int x = graph_value(g, "e", layer, T, D);
    graph_node(g, &toy_embed, layer, LIST(t.ids), LIST(x), LIST(table), NULL, 0);
    x = residual_record(g, &toy_add, "x", x, rows);
    for (int i = 0, first = x; i < shape.decoder_blocks; i++) {
        x = toy_block(g, PART_DECODER, arena_text(a, "decoder.%d", i), x, shape.hidden);
        x = skips ? residual_record(g, &toy_add, "x", x, first) : x;
    }

    layer = graph_layer(g);
    s = (struct scope){g, graph_unit(g, "dead", layer, PART_PROJECTOR, 0, false),
                       "dead", 0.3};
    if (shape.dead)
        linear_record(g, &toy_up, "u", x, param_matrix(&s, "dead", D, D, 0), NONE);
    t.target = graph_input(g, "target", DTYPE_I32, 1, (int64_t[]){T});
    t.scale = graph_input(g, "scale", DTYPE_F32, 2, (int64_t[]){1, 1});
    t.loss = graph_value(g, "loss", layer, 1, 1);
    t.last = x;
    graph_loss(g, t.loss);
    graph_node(g, &toy_head, layer, LIST(x, t.target, t.scale),
               LIST(t.loss, graph_value(g, "lse", layer, T, 1)), LIST(table), NULL,
               TOY_WORK);
    REQUIRE(head_work(T, D, shape.words) <= TOY_WORK);
    graph_check(g);
    return t;
}

static inline struct toy toy_record(struct arena *a, struct toy_shape shape)
{
    return toy_record_skips(a, shape, false);
}

/* Number i of a parameter, the same in every test. */
static inline float toy_weight(const struct param *p, int64_t i)
{
    float noise = (float)random_normal(random_key(7, p->name), (uint64_t)i);
    return p->initial == INITIAL_ONE ? 1 + 0.1f * noise : (float)p->deviation * noise;
}

/* Number i of an input of a microbatch. */
static inline void toy_input(const struct toy *t, int value, int mb, void *to)
{
    const struct value *v = &t->graph.value[value];
    uint64_t key = random_key(100 + (uint64_t)mb, v->name);
    for (int64_t i = 0; i < value_count(v); i++) {
        if (value == t->scale)
            ((float *)to)[i] = 1.0f / 16;
        else if (v->dtype == DTYPE_F32)
            ((float *)to)[i] = (float)random_normal(key, (uint64_t)i);
        else
            ((int32_t *)to)[i] =
                (int32_t)(random_bits(key, (uint64_t)i) % (uint64_t)t->shape.words);
        if (value == t->target && i % 3 == 0)
            ((int32_t *)to)[i] = IGNORE;
    }
}

#endif
