/* cache.c - keys and values held over steps: what makes an answer's next token cost
 * one place, not the whole row again.
 *
 * The cache of a layer has a row k | v for every place of the answers under way,
 * prompts included; which row a place has is data (inputs cache_row and cache_from).
 * Prompts are a row like any other, which leaves its keys and values behind; then come
 * steps of one place an answer, whose query sees the rows of its own answer alone.
 * With cp every rank of the row has the whole cache: what it needs for any query. */
#include "decoder/parts.h"

#include <math.h>

static int64_t narrow(const struct attention *a)        /* columns of K, or of V */
{
    return (int64_t)a->groups * a->head_width;
}

static struct tensor half(const struct attention *a, struct tensor kv, int i)
{
    return tensor_columns(kv, i * narrow(a), narrow(a));
}

/* ---- cache: in qk v row, out cache; keys are the last columns of qk ---- */

static void cache_forward(struct run *r)
{
    const struct attention *a = r->attr;
    struct tensor qk = r->in[0];
    struct tensor k = tensor_columns(qk, qk.dim[1] - narrow(a), narrow(a));
    r->ops->put(r->stream, r->in[2], k, half(a, r->out[0], 0));
    r->ops->put(r->stream, r->in[2], r->in[1], half(a, r->out[0], 1));
}

static const struct segment cache = {
    .name = "cache", COMPUTE("attention"), .no_grad_in = 7, .no_grad_out = 1,
    .forward = cache_forward,
};

/* ---- the same: in kv row, out cache ---- */

static void cache_kv_forward(struct run *r)
{
    r->ops->put(r->stream, r->in[1], r->in[0], r->out[0]);
}

static const struct segment cache_kv = {
    .name = "cache", COMPUTE("attention"), .no_grad_in = 3, .no_grad_out = 1,
    .forward = cache_kv_forward,
};

static int cache_value(struct graph *g, const struct seen *seen,
                       const struct attention *shape)
{
    int held = graph_value(g, "cache", g->layers - 1, seen->rows, 2 * narrow(shape));
    graph_hold(g, held);
    return held;
}

int cache_record(struct graph *g, int qk, int v, const struct seen *seen,
                 const struct attention *shape)
{
    int held = cache_value(g, seen, shape);
    graph_node(g, &cache, g->layers - 1, LIST(qk, v, seen->row), LIST(held), EMPTY,
               graph_attr(g, shape, sizeof *shape), 0);
    return held;
}

int cache_kv_record(struct graph *g, int kv, const struct seen *seen,
                    const struct attention *shape)
{
    int held = cache_value(g, seen, shape);
    graph_node(g, &cache_kv, g->layers - 1, LIST(kv, seen->row), LIST(held), EMPTY,
               NULL, 0);
    return held;
}

/* ---- core_attn over the cache: in q cache first last, out o; queries are the first
 * columns of q ---- */

static void cached_forward(struct run *r)
{
    const struct attention *a = r->attr;
    struct tensor q = tensor_columns(r->in[0], 0, (int64_t)a->heads * a->head_width);
    r->ops->attention_rows(r->stream, q, half(a, r->in[1], 0), half(a, r->in[1], 1),
                           r->in[2], r->in[3], a->heads, a->groups,
                           (float)(1 / sqrt(a->head_width)), r->out[0]);
}

static const struct segment core_attn = {
    .name = "core_attn", COMPUTE("attention"), .no_grad_in = 15, .no_grad_out = 1,
    .forward = cached_forward,
};

int cached_attention_record(struct graph *g, int q, int held, const struct seen *seen,
                            const struct attention *shape)
{
    int layer = g->layers - 1;
    int o = graph_value(g, "o", layer, g->value[q].dim[0],
                        (int64_t)shape->heads * shape->head_width);
    graph_node(g, &core_attn, layer, LIST(q, held, seen->own_from, seen->own_row),
               LIST(o), EMPTY, graph_attr(g, shape, sizeof *shape), 0);
    return o;
}
