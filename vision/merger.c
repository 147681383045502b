/* merger.c - the projector: merge^2 neighbouring patches to one row of the decoder.
 *
 *     final:      fc2(gelu(fc1(join(LN(x)))))     LN over each patch, [P,Hv]
 *     deepstack:  fc2(gelu(fc1(LN(join(x)))))     LN over joined rows, [P/m^2, m^2 Hv]
 *
 * Joining moves nothing: neighbours are consecutive rows (merge order). */
#include "vision/parts.h"

static const struct segment gather = {
    .name = "gather", .component = "projector", GATHER,
};

static const struct segment scatter = {
    .name = "scatter", .component = "projector", SCATTER,
};

static const struct segment bias = {
    .name = "bias", COMPUTE("projector"), BIAS,
};

static const struct segment merge_norm = {
    .name = "merge_norm", COMPUTE("projector"), LAYERNORM,
};

static const struct segment merge_up = {
    .name = "merge_up", COMPUTE("projector"), LINEAR,
};

static const struct segment merge_act = {
    .name = "merge_act", COMPUTE("projector"), GELU,
};

static const struct segment merge_down = {
    .name = "merge_down", COMPUTE("projector"), LINEAR,
};

int vision_merger(struct graph *g, const struct vision_config *c, int tap, int x)
{
    int64_t joined = (int64_t)c->merge * c->merge * c->width;
    int64_t width = tap < 0 ? c->width : joined;        /* of the norm */
    const char *before = g->tower;
    g->tower = "projector";
    int layer = graph_layer(g);
    struct scope s = {
        g, graph_unit(g, "merger", layer, PART_PROJECTOR, 0, false),
        tap < 0 ? "model.visual.merger"
                : arena_text(g->arena, "model.visual.deepstack_merger_list.%d", tap),
        VISION_DEVIATION,
    };
    struct scope d = scope_divided(&s);
    int w_norm = param_vector(&s, "norm.weight", width, INITIAL_ONE);
    int b_norm = param_vector(&s, "norm.bias", width, INITIAL_ZERO);
    int w_up = param_matrix(&d, "linear_fc1.weight", joined, joined, 0);
    int b_up = param_vector(&d, "linear_fc1.bias", joined, INITIAL_ZERO);
    int w_down = param_matrix(&d, "linear_fc2.weight", c->out, joined, 1);
    int b_down = param_vector(&s, "linear_fc2.bias", c->out, INITIAL_ZERO);

    struct live live = g->live;
    if (live.bound != NONE) {           /* its rows, joined */
        live.per = (int64_t)c->merge * c->merge;
        live.rows /= live.per;
    }
    struct live patches = graph_live(g, live);
    int n = layernorm_record(g, &merge_norm, "n", x, joined, w_norm, b_norm, c->eps);
    n = gather_record(g, &gather, n);
    int up = linear_record(g, &merge_up, "up", n, w_up, b_up);
    int hidden = gelu_record(g, &merge_act, "act", up, true);
    int feature = linear_scatter_record(g, &merge_down, &scatter, &bias,
                                        tap < 0 ? "merged" : "tap", hidden, w_down,
                                        b_down);
    graph_keep(g, feature);
    graph_live(g, patches);
    g->tower = before;
    return feature;
}
