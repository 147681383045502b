/* parts.h - what the decoder's files share: a layer's two halves. */
#ifndef DECODER_PARTS_H
#define DECODER_PARTS_H

#include "decoder/decoder.h"

/* Running sums of the router losses: values, NONE before the first MoE layer. */
struct router_sums {
    int chosen, sum, z2, rows;
    bool trained;                       /* a coefficient is not 0 */
    int overflow;                       /* not a loss: layers without room for rows */
};

/* Which keys the queries of a row see: those of their sample, or rows of the cache. */
struct seen {
    int segment;                        /* bounds of the samples */
    int64_t rows;                       /* of the cache; 0: there is none */
    int row;                            /* [T] row of this place in it */
    int own_row, own_from;              /* of own places: the last row seen and the
                                         * first; NONE: they see their sample */
};

/* The layer being recorded. */
struct decoder_layer {
    const struct decoder_config *config;
    int index;                          /* of the decoder's layers */
    struct scope scope;                 /* its unit "dense" */
    struct scope divided;               /* its params that tp divides */
    const struct decoder_options *options;
};

/* How tokens came to the experts of this rank, for the way back. */
struct dispatch {
    int rows, bound;                    /* [R,D] by own expert; i32 [own experts + 1] */
    int index, weight;                  /* [T,A]: the choices that are sorted here */
    int place, source, slot;            /* of the sorting */
    int leave, arrive, order, undo;     /* alltoall: between ranks, see ops.meet_rows */
    enum { ALONE, ALLGATHER, ALLTOALL } way;
    unsigned along;                     /* axes whose tokens were gathered, */
    int gathers;                        /* over so many ranks */
    /* Nodes, for what runs beside them: the first of all, and where rows go to other
     * ranks and come back; NONE: they stay. */
    int begin, go, back;
};

/* A gated MLP: its segments (those that talk: with tp) and the names of its values. */
struct mlp {
    const struct segment *gather, *up, *act, *down, *scatter;
    const char *gu, *hidden, *out;
};
#define MLP_UP                                                                         \
    .no_grad_in = 2, .back_in = 2, .weight_in = 3, .forward = mlp_up_forward,          \
    .backward = mlp_up_backward, .weight = mlp_up_weight
void mlp_up_forward(struct run *r);
void mlp_up_backward(struct run *r);
void mlp_up_weight(struct run *r);
/* m [T,D] -> [T,D] through F hidden columns; its params are under `s`, which tp may
 * divide. */
int mlp_record(const struct scope *s, const struct mlp *kind, int64_t F, int m);

/* x + attention(norm(x)) */
int decoder_attention(const struct decoder_layer *l, int x, const struct seen *seen,
                      struct rotary t);
/* The core of it over cp ranks: qk, v and o at own places, segment of the whole row. */
int decoder_context_attention(struct graph *g, int qk, int v, const struct seen *seen,
                              const struct attention *shape, bool ring);
/* Keys and values of the row (qk and v, or kv of the whole row) into the cache, which
 * is returned; then the core of attention for queries that see it: q [t,..] -> o. */
int cache_record(struct graph *g, int qk, int v, const struct seen *seen,
                 const struct attention *shape);
int cache_kv_record(struct graph *g, int kv, const struct seen *seen,
                    const struct attention *shape);
int cached_attention_record(struct graph *g, int q, int cache, const struct seen *seen,
                            const struct attention *shape);
/* The MLP of a dense layer: m [T,D] -> [T,D]. */
int decoder_mlp(const struct decoder_layer *l, int m);
/* Router and experts of MoE layer number `moe`; adds its part to the running sums. */
int decoder_experts(const struct decoder_layer *l, int moe, int m, int live, int bias,
                    struct router_sums *sums);
/* What the routed experts made of m, and what the shared expert does, which may work
 * while rows are on their way. */
int decoder_shared(const struct decoder_layer *l, const struct dispatch *d, int m,
                   int routed);
/* Tokens m [T,D] to the experts chosen for them (`overflow` stays NONE without ep), and
 * back: what these made of the rows, y [R,D], weighed and summed a token. */
struct dispatch decoder_dispatch(const struct decoder_layer *l, int m, int index,
                                 int weight, int *overflow);
int decoder_combine(const struct decoder_layer *l, struct dispatch *d, int y);
/* The sums of all ranks that have tokens of the row: before router_loss. */
void decoder_sums(struct graph *g, struct router_sums *sums);
/* The cross entropy of the whole row, from that of own places; to be reported. */
int decoder_loss_sum(struct graph *g, int loss);
/* aux, z and their weighted sum, from the sums over all layers. */
void decoder_router_loss(struct graph *g, const struct router_sums *sums, int share,
                         const struct decoder_options *o, struct decoder_graph *out);
/* The final norm's rows (own places of a row of T) to what the options ask for;
 * router_loss must be there. */
void decoder_head(struct graph *g, const struct decoder_config *c, int64_t T, int x,
                  int w, const struct decoder_options *o, struct decoder_graph *out);

#endif
