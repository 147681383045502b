/* context.c - attention of a row whose places are shared by cp ranks.
 *
 * A rank has queries at its own places (two chunks of the row: src/layers/places.c) and
 * needs the keys and values of all places before them.  Two ways, equal up to rounding:
 *  - all-gather: K and V of the whole row come to every rank (a segment of its own,
 *    which a policy may run again instead of keeping it); then a call for each chunk.
 *  - ring: blocks of K and V go round; what a block adds is merged by its lse.  Nothing
 *    grows with the whole row.  It is math that talks in between: of the compute lane.
 * What is before a query is decided by places in the whole row, so segments (samples)
 * may begin and end anywhere. */
#include "decoder/parts.h"

#include <math.h>

struct context {
    struct attention shape;
    int ranks, at;                      /* cp, and which of them this is */
    int64_t chunk;                      /* places of a chunk, of which a rank has two */
};

/* Where chunk i (0, 1) of a rank begins in the row. */
static int64_t chunk_from(const struct context *c, int rank, int i)
{
    return (i == 0 ? rank : 2 * c->ranks - 1 - rank) * c->chunk;
}

static struct tensor chunk_rows(const struct context *c, struct tensor own, int i)
{
    return tensor_rows(own, i * c->chunk, c->chunk);
}

static int64_t narrow(const struct context *c)          /* columns of K, or of V */
{
    return (int64_t)c->shape.groups * c->shape.head_width;
}

static struct tensor queries(const struct context *c, struct tensor qk)
{
    return tensor_columns(qk, 0, qk.dim[1] - narrow(c));
}

static struct tensor keys(const struct context *c, struct tensor qk)
{
    return tensor_columns(qk, qk.dim[1] - narrow(c), narrow(c));
}

/* Halves of kv = k | v. */
static struct tensor half(const struct context *c, struct tensor kv, int i)
{
    return tensor_columns(kv, i * narrow(c), narrow(c));
}

/* Block number `index` of [own rows, 2 n] in the scratch, of K's type (of its
 * gradient's where K is not there). */
static struct tensor block(const struct run *r, const struct context *c, int64_t index,
                           int64_t blocks)
{
    enum dtype d = tensor_is(r->in[1]) ? r->in[1].dtype : r->dout[1].dtype;
    int64_t rows = 2 * c->chunk, bytes = rows * 2 * narrow(c) * dtype_bytes(d);
    REQUIRE(r->work.dtype == DTYPE_U8);
    REQUIRE((index + blocks) * bytes <= tensor_count(r->work));
    char *at = r->work.data;
    return tensor_2d(at ? at + index * bytes : NULL, d, blocks * rows, 2 * narrow(c));
}

static void pack(const struct run *r, const struct context *c, struct tensor qk,
                 struct tensor v, struct tensor kv)
{
    r->ops->copy(r->stream, keys(c, qk), half(c, kv, 0));
    r->ops->copy(r->stream, v, half(c, kv, 1));
}

/* One chunk of queries against keys from place `from` on. */
static void attend(struct run *r, const struct context *c, struct tensor q, int i,
                   struct tensor kv, int64_t from, struct tensor bound, float beta)
{
    const struct attention *a = &c->shape;
    r->ops->attention_part(r->stream, chunk_rows(c, q, i), half(c, kv, 0),
                           half(c, kv, 1), bound, chunk_from(c, c->at, i), from,
                           a->heads, a->groups, true,
                           (float)(1 / sqrt(a->head_width)), beta,
                           chunk_rows(c, r->out[0], i), chunk_rows(c, r->out[1], i));
}

static void attend_back(struct run *r, const struct context *c, struct tensor q, int i,
                        struct tensor kv, int64_t from, struct tensor bound,
                        float beta_q, struct tensor dq, float beta_kv,
                        struct tensor dkv)
{
    const struct attention *a = &c->shape;
    r->ops->attention_part_back(
        r->stream, chunk_rows(c, q, i), half(c, kv, 0), half(c, kv, 1), bound,
        chunk_from(c, c->at, i), from, chunk_rows(c, r->out[0], i),
        chunk_rows(c, r->out[1], i), chunk_rows(c, r->dout[0], i), a->heads, a->groups,
        true, (float)(1 / sqrt(a->head_width)), beta_q, chunk_rows(c, dq, i), beta_kv,
        half(c, dkv, 0), half(c, dkv, 1));
}

/* ---- kv_gather: in qk v, out q and kv = k | v of the whole row, in its order ---- */

/* Rows as ranks send them, and as the row has them. */
static void reorder(struct run *r, const struct context *c, struct tensor by_rank,
                    struct tensor by_place, bool back)
{
    for (int k = 0; k < 2 * c->ranks; k++) {
        struct tensor a = tensor_rows(by_rank, k * c->chunk, c->chunk);
        struct tensor b =
            tensor_rows(by_place, chunk_from(c, k / 2, k % 2), c->chunk);
        r->ops->copy(r->stream, back ? b : a, back ? a : b);
    }
}

static void kv_gather_forward(struct run *r)
{
    const struct context *c = r->attr;
    struct tensor own = block(r, c, 0, 1), all = block(r, c, 1, c->ranks);
    r->ops->copy(r->stream, queries(c, r->in[0]), r->out[0]);
    pack(r, c, r->in[0], r->in[1], own);
    comm_all_gather(r->comm, own.dtype, own.data, all.data, tensor_count(own));
    reorder(r, c, all, r->out[1], false);
}

static void kv_gather_backward(struct run *r)
{
    const struct context *c = r->attr;
    struct tensor own = block(r, c, 0, 1), all = block(r, c, 1, c->ranks);
    /* q, k and v come from one layer's product: wanted together. */
    REQUIRE(tensor_is(r->din[0]) && tensor_is(r->din[1]));
    reorder(r, c, all, r->dout[1], true);
    comm_reduce_scatter(r->comm, own.dtype, all.data, 0, own.data, tensor_count(own));
    r->ops->axpby(r->stream, 1, r->dout[0], r->beta[0], queries(c, r->din[0]));
    r->ops->axpby(r->stream, 1, half(c, own, 0), r->beta[0], keys(c, r->din[0]));
    r->ops->axpby(r->stream, 1, half(c, own, 1), r->beta[1], r->din[1]);
}

static const struct segment kv_gather = {
    .name = "kv_gather", .lane = LANE_LAYER, .component = "attention",
    .forward = kv_gather_forward, .backward = kv_gather_backward,
};

/* ---- core_attn: in q kv segment, out o lse ---- */

static void core_forward(struct run *r)
{
    const struct context *c = r->attr;
    for (int i = 0; i < 2; i++)
        attend(r, c, r->in[0], i,
               tensor_rows(r->in[1], 0, chunk_from(c, c->at, i) + c->chunk), 0,
               r->in[2], 0);
}

static void core_backward(struct run *r)
{
    const struct context *c = r->attr;
    REQUIRE(tensor_is(r->din[0]) && tensor_is(r->din[1]));
    attend_back(r, c, r->in[0], 1, r->in[1], 0, r->in[2], r->beta[0], r->din[0],
                r->beta[1], r->din[1]);
    int64_t seen = chunk_from(c, c->at, 0) + c->chunk;
    attend_back(r, c, r->in[0], 0, tensor_rows(r->in[1], 0, seen), 0, r->in[2],
                r->beta[0], r->din[0], 1, tensor_rows(r->din[1], 0, seen));
}

static const struct segment core_attn = {
    .name = "core_attn", COMPUTE("attention"), .back_in = 7, .back_out = 3,
    .no_grad_in = 4, .no_grad_out = 2, .wide_out = 2, .forward = core_forward,
    .backward = core_backward,
};

/* ---- core_attn as a ring: in qk v segment, out o lse.  At step s a rank has the block
 * of the rank s before it. ---- */

static int before(const struct context *c, int steps)
{
    return (c->at - steps + c->ranks) % c->ranks;
}

/* Blocks move on by one rank. */
static void pass_on(struct run *r, const struct context *c, struct tensor *now,
                    struct tensor *next)
{
    comm_exchange(r->comm, now->dtype, before(c, -1), now->data, before(c, 1),
                  next->data, tensor_count(*now));
    struct tensor t = *now;
    *now = *next;
    *next = t;
}

static void ring_forward(struct run *r)
{
    const struct context *c = r->attr;
    struct tensor kv = block(r, c, 0, 1), next = block(r, c, 1, 1);
    float beta[2] = {0, 0};             /* 1: the chunk has met its first keys */
    pack(r, c, r->in[0], r->in[1], kv);
    for (int step = 0; step < c->ranks; step++) {
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 2; j++) {
                int64_t from = chunk_from(c, before(c, step), j);
                if (from > chunk_from(c, c->at, i))
                    continue;           /* all after the queries */
                attend(r, c, queries(c, r->in[0]), i, chunk_rows(c, kv, j), from,
                       r->in[2], beta[i]);
                beta[i] = 1;
            }
        if (step + 1 < c->ranks)
            pass_on(r, c, &kv, &next);
    }
}

/* Gradients of a block travel with it, one move more than the block: home. */
static void ring_backward(struct run *r)
{
    const struct context *c = r->attr;
    struct tensor kv = block(r, c, 0, 1), next = block(r, c, 1, 1);
    struct tensor dkv = block(r, c, 2, 1), dnext = block(r, c, 3, 1);
    float beta[2] = {0, 0};
    REQUIRE(tensor_is(r->din[0]) && tensor_is(r->din[1]));
    REQUIRE(r->beta[0] == 0 && r->beta[1] == 0);        /* their only reader */
    pack(r, c, r->in[0], r->in[1], kv);
    r->ops->axpby(r->stream, 0, dkv, 0, dkv);
    for (int step = 0; step < c->ranks; step++) {
        for (int i = 0; i < 2; i++)
            for (int j = 0; j < 2; j++) {
                int64_t from = chunk_from(c, before(c, step), j);
                if (from > chunk_from(c, c->at, i))
                    continue;
                attend_back(r, c, queries(c, r->in[0]), i, chunk_rows(c, kv, j), from,
                            r->in[2], beta[i], queries(c, r->din[0]), 1,
                            chunk_rows(c, dkv, j));
                beta[i] = 1;
            }
        if (step + 1 < c->ranks)
            pass_on(r, c, &kv, &next);
        pass_on(r, c, &dkv, &dnext);
    }
    r->ops->copy(r->stream, half(c, dkv, 0), keys(c, r->din[0]));
    r->ops->copy(r->stream, half(c, dkv, 1), r->din[1]);
}

static const struct segment ring_attn = {
    .name = "core_attn", COMPUTE("attention"), .back_in = 7, .back_out = 3,
    .no_grad_in = 4, .no_grad_out = 2, .wide_out = 2, .forward = ring_forward,
    .backward = ring_backward,
};

int decoder_context_attention(struct graph *g, int qk, int v, const struct seen *seen,
                              const struct attention *shape, bool ring)
{
    int layer = g->layers - 1;
    int64_t T = g->value[qk].dim[0], wide = (int64_t)shape->heads * shape->head_width;
    struct context c = {*shape, graph_ways(g, false, AXIS_CP),
                        graph_at(g, false, AXIS_CP), T / 2};
    const void *attr = graph_attr(g, &c, sizeof c);
    int64_t bytes = T * 2 * narrow(&c) * dtype_bytes(g->dtype);
    if (ring && !seen->rows) {          /* the cache needs all of K and V anyway */
        int o = graph_value(g, "o", layer, T, wide);
        int lse = graph_value(g, "lse", layer, T, shape->heads);
        graph_node(g, &ring_attn, layer, LIST(qk, v, seen->segment), LIST(o, lse),
                   EMPTY, attr, 4 * bytes);
        graph_group(g, false, ON(AXIS_CP));
        return o;
    }
    int q = graph_value(g, "q", layer, T, wide);
    int kv = graph_value(g, "kv", layer, T * c.ranks, 2 * narrow(&c));
    graph_node(g, &kv_gather, layer, LIST(qk, v), LIST(q, kv), EMPTY, attr,
               (1 + c.ranks) * bytes);
    graph_group(g, false, ON(AXIS_CP));
    int cache = seen->rows ? cache_kv_record(g, kv, seen, shape) : NONE;
    if (seen->own_from != NONE)
        return cached_attention_record(g, q, cache, seen, shape);
    int o = graph_value(g, "o", layer, T, wide);
    int lse = graph_value(g, "lse", layer, T, shape->heads);
    graph_node(g, &core_attn, layer, LIST(q, kv, seen->segment), LIST(o, lse), EMPTY,
               attr, 0);
    return o;
}
