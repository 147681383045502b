/* parts.h - what the decoder's files share: a layer's two halves. */
#ifndef DECODER_PARTS_H
#define DECODER_PARTS_H

#include "decoder/decoder.h"

/* Running sums of the router losses: values, NONE before the first MoE layer. */
struct router_sums {
    int chosen, sum, z2, rows;
    bool trained;                       /* a coefficient is not 0 */
};

/* The layer being recorded. */
struct decoder_layer {
    const struct decoder_config *config;
    int index;                          /* of the decoder's layers */
    struct scope scope;                 /* its unit "dense" */
};

/* x + attention(norm(x)) */
int decoder_attention(const struct decoder_layer *l, int x, int segment,
                      struct rotary t);
/* The MLP of a dense layer: m [T,D] -> [T,D]. */
int decoder_mlp(const struct decoder_layer *l, int m);
/* Router and experts of MoE layer number `moe`; adds its part to the running sums. */
int decoder_experts(const struct decoder_layer *l, int moe, int m, int live, int bias,
                    struct router_sums *sums);
/* aux, z and their weighted sum, from the sums over all layers. */
void decoder_router_loss(struct graph *g, const struct router_sums *sums, int share,
                         const struct decoder_options *o, struct decoder_graph *out);
/* The final norm's rows to what the options ask for; router_loss must be there. */
void decoder_head(struct graph *g, const struct decoder_config *c, int x, int w,
                  const struct decoder_options *o, struct decoder_graph *out);

#endif
