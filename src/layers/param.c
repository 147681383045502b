/* param.c - params under a prefix: the two kinds there are, and what each implies. */
#include "layers/layers.h"

static const char *full_name(const struct scope *s, const char *name)
{
    return arena_text(s->g->arena, "%s.%s", s->prefix, name);
}

int param_matrix(const struct scope *s, const char *name, int64_t rows, int64_t cols,
                 int split)
{
    unsigned axes = s->g->unit[s->unit].split;
    return graph_param(s->g, s->unit,
                       (struct param){.name = full_name(s, name),
                                      .ndim = 2,
                                      .dim = {rows, cols},
                                      .on = {split == 0 ? axes : 0, split == 1 ? axes : 0},
                                      .decay = true,
                                      .initial = INITIAL_NORMAL,
                                      .deviation = s->deviation});
}

int param_vector(const struct scope *s, const char *name, int64_t n,
                 enum initial initial)
{
    return graph_param(s->g, s->unit,
                       (struct param){.name = full_name(s, name), .ndim = 1, .dim = {n},
                                      .initial = initial});
}
