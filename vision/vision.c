/* vision.c - the tower from pixels to features: embedding, blocks, mergers in place.
 *
 *     x = pixels W' + b                       [P,Hv]
 *     x = x + position table at each patch    [P,Hv]
 *     x = block(x)                            depth times; after a tap: its merger
 *     feature = merger(x)                     [P / merge^2, out]
 */
#include "vision/parts.h"

/* From here to the mergers a tp rank holds P / tp rows; of an input that is whole they
 * begin at row `from`. */
struct first { int64_t from; };

static struct tensor own_rows(const struct run *r, struct tensor whole, int64_t count)
{
    return tensor_rows(whole, ((const struct first *)r->attr)->from, count);
}

/* ---- patch embedding: a product, as patches do not overlap.  In pixels bound, out
 * x ---- */

static void patch_forward(struct run *r)
{
    r->ops->linear(r->stream, own_rows(r, r->in[0], r->out[0].dim[0]), r->w[0], r->w[1],
                   0, tensor_live(r->out[0], r->in[1], 1));
}

static void patch_weight(struct run *r)
{
    REQUIRE(r->beta_w[0] == r->beta_w[1]);      /* one unit, written together */
    r->ops->linear_weight(r->stream, tensor_live(r->dout[0], r->in[1], 1),
                          own_rows(r, r->in[0], r->dout[0].dim[0]), r->beta_w[0],
                          r->dw[0], r->dw[1]);
}

static const struct segment patch_embed = {
    .name = "patch_embed", COMPUTE("vision"), .no_grad_in = 3, .weight_in = 3,
    .forward = patch_forward, .weight = patch_weight,
};

/* ---- position: in x patch, out y, weight table ---- */

static void position_forward(struct run *r)
{
    r->ops->interpolate(r->stream, r->in[0], own_rows(r, r->in[1], r->in[0].dim[0]),
                        r->w[0], r->out[0]);
}

static void position_backward(struct run *r)
{
    r->ops->axpby(r->stream, 1, r->dout[0], r->beta[0], r->din[0]);
}

static void position_weight(struct run *r)
{
    r->ops->interpolate_weight(r->stream, r->dout[0],
                               own_rows(r, r->in[1], r->dout[0].dim[0]), r->beta_w[0],
                               r->dw[0]);
}

static const struct segment position = {
    .name = "position", COMPUTE("vision"), .no_grad_in = 2, .weight_in = 2,
    .forward = position_forward, .backward = position_backward,
    .weight = position_weight,
};

static const struct segment rope_table = {
    .name = "rope_table", COMPUTE("vision"), ROPE_TABLE,
};

static int embed_record(struct graph *g, const struct vision_config *c, int pixels,
                        int patch)
{
    int layer = g->layers - 1;
    int unit = graph_unit(g, "embed", layer, PART_VISION, 0, false);
    struct scope s = {g, unit, "model.visual", VISION_DEVIATION};
    int64_t D = c->width;
    int w = graph_param(g, unit, (struct param){
        .name = "model.visual.patch_embed.proj.weight", .ndim = 5,
        .dim = {D, c->channels, c->frames, c->patch, c->patch},
        .initial = INITIAL_NORMAL, .deviation = VISION_DEVIATION, .decay = true,
    });
    int b = param_vector(&s, "patch_embed.proj.bias", D, INITIAL_ZERO);
    int table = param_matrix(&s, "pos_embed.weight", c->positions, D, -1);

    int64_t P = g->value[patch].dim[0] / graph_ways(g, false, AXIS_TP);
    struct first own = {P * graph_at(g, false, AXIS_TP)};
    struct first given = {g->value[pixels].dim[0] == P ? 0 : own.from};
    const void *attr = graph_attr(g, &own, sizeof own);
    int x = graph_value(g, "patches", layer, P, D);
    graph_node(g, &patch_embed, layer, LIST(pixels, graph_live_of(g, x)), LIST(x),
               LIST(w, b), graph_attr(g, &given, sizeof given), 0);
    int y = graph_value(g, "x", layer, P, D);
    graph_keep(g, y);
    graph_node(g, &position, layer, LIST(x, patch), LIST(y), LIST(table), attr, 0);
    return y;
}

/* A merger's rows, at the places of their tokens where there are lists. */
static int features_record(struct graph *g, const struct vision_config *c, int tap,
                           int x, const struct feature_lists *lists)
{
    int feature = vision_merger(g, c, tap, x);
    if (lists) {
        g->tower = "projector";
        feature = vision_features(g, lists, feature);
        g->tower = "vision";
    }
    return feature;
}

void vision_record(struct graph *g, const struct vision_config *c,
                   const struct capacity *cap, const struct vision_options *o,
                   struct vision_graph *out)
{
    int64_t P = cap->patches, room = vision_room(g, c, cap, o);
    int64_t values = vision_patch_values(c), cell = (int64_t)c->merge * c->merge;
    struct feature_lists lists;
    *out = (struct vision_graph){.taps = c->taps, .placed = vision_balances(g, o)};
    g->tower = "vision";
    graph_layer(g);
    int pixels = graph_input(g, "pixels", g->dtype, 2, (int64_t[]){P, values});
    int patch = graph_input(g, "patch", DTYPE_I32, 2, (int64_t[]){room, 4});
    int image = graph_input(g, "image", DTYPE_I32, 1, (int64_t[]){cap->images + 1});
    if (out->placed) {
        pixels = vision_pixels(g, pixels, room);
        lists = vision_feature_lists(g, P / cell, room / cell, cap->tokens);
    }
    const struct feature_lists *ways = out->placed ? &lists : NULL;

    graph_live(g, (struct live){image, room, 1});
    struct rotary t = rope_table_record(g, &rope_table, patch, &(struct rope_shape){
        .theta = c->theta, .heads_width = c->width / c->heads, .axial = true,
    });
    int x = embed_record(g, c, pixels, patch);
    for (int block = 0, tap = 0; block < c->depth; block++) {
        x = vision_block(g, c, block, x, image, t);
        if (tap < c->taps && c->tap[tap] == block) {
            out->tap[tap] = features_record(g, c, tap, x, ways);
            tap++;
        }
    }
    out->feature = features_record(g, c, -1, x, ways);
    graph_live(g, (struct live){NONE, 0, 1});
    g->tower = "decoder";
}
