/* param.c - params under a prefix: the kinds there are, and what each implies. */
#include "layers/layers.h"

static const char *full_name(const struct scope *s, const char *name)
{
    return arena_text(s->g->arena, "%s.%s", s->prefix, name);
}

static unsigned axes_of(const struct scope *s)
{
    return s->g->unit[s->unit].split;
}

static int param_2d(const struct scope *s, const char *name, int64_t rows, int64_t cols,
                    int split, int blocks)
{
    unsigned axes = axes_of(s);
    return graph_param(s->g, s->unit, (struct param){
        .name = full_name(s, name), .ndim = 2, .dim = {rows, cols},
        .on = {split == 0 ? axes : 0, split == 1 ? axes : 0}, .fused = {blocks},
        .decay = true, .initial = INITIAL_NORMAL, .deviation = s->deviation,
    });
}

int param_matrix(const struct scope *s, const char *name, int64_t rows, int64_t cols,
                 int split)
{
    return param_2d(s, name, rows, cols, split, 1);
}

int param_blocks(const struct scope *s, const char *name, int blocks, int64_t rows,
                 int64_t cols)
{
    return param_2d(s, name, rows, cols, 0, blocks);
}

int param_vector_blocks(const struct scope *s, const char *name, int blocks, int64_t n,
                        enum initial initial)
{
    return graph_param(s->g, s->unit, (struct param){
        .name = full_name(s, name), .ndim = 1, .dim = {n}, .on = {axes_of(s)},
        .fused = {blocks}, .initial = initial,
    });
}

int param_vector(const struct scope *s, const char *name, int64_t n,
                 enum initial initial)
{
    return param_vector_blocks(s, name, 1, n, initial);
}

struct scope scope_divided(const struct scope *s)
{
    struct scope d = *s;
    const struct unit u = s->g->unit[s->unit];
    if (graph_ways(s->g, false, AXIS_TP) > 1)
        d.unit = graph_unit(s->g, arena_text(s->g->arena, "%s_tp", u.name), u.layer,
                            u.part, ON(AXIS_TP), false);
    return d;
}
