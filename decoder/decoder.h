/* decoder.h - the decoder: tokens and image features in, loss (or logits) out.
 *
 * Inputs it declares (T token places, padding last):
 *     input          i32 [T]              token ids; -1 where an image feature goes
 *     position       i32 [T,3]            t, y, x
 *     segment        i32 [segments + 1]   bounds of the samples, the last repeated
 *   with vision:
 *     feature        i32 [T]              feature row of this place, or -1
 *     feature_token  i32 [P / merge^2]    place of this feature row, or -1
 *                                         (vision->placed: both of own places alone, in
 *                                         local numbers, [T / (cp tp)] and a number for
 *                                         each row of vision->feature)
 *   with MoE layers:
 *     live           i32 [1]              token places in use
 *     router_bias    f32 [MoE layers, E]  added when choosing (options.bias)
 *     share          f32 [1,1]            live / the global batch's (options.loss)
 *   options.loss:
 *     target         i32 [T]              next token, or IGNORE
 *     scale          f32 [1,1]            1 / supervised tokens of the global batch
 *   options.best:
 *     want           i32 [T]              not 0: choose a token here
 *   options.cache_rows:
 *     cache_row      i32 [T]              where the cache holds this place, or -1
 *   and options.answers:
 *     cache_from     i32 [T]              its sample's first row there; a place sees
 *                                         cache_from .. cache_row and no other place
 * Placing is an addition, so `input` must be -1 (a zero row) where `feature` is not.
 *
 * Inputs are those of the whole row on every tp and cp rank; each takes its own part.
 * Between blocks a rank holds T / (cp tp) rows (src/layers/places.c), its gradients are
 * its part of the sum over holders, and the loss values below are the whole row's on
 * every tp and cp rank: to report a batch, sum them over dp alone. */
#ifndef DECODER_DECODER_H
#define DECODER_DECODER_H

#include "graph/config.h"
#include "layers/layers.h"
#include "vision/vision.h"

/* How tokens reach the ranks that own their experts.  No choice is ever dropped, and
 * results differ by rounding only.
 *  - alltoall: each choice is a row that goes to its expert's owner and comes back.
 *  - allgather: every rank of the ep group gets all tokens and takes the rows of its
 *    own experts; partial sums are added on the way back.  For small groups, or many
 *    experts per token. */
enum dispatcher { DISPATCHER_ALLTOALL, DISPATCHER_ALLGATHER, DISPATCHERS };
extern const char *const dispatcher_name[DISPATCHERS];

struct decoder_options {
    double aux_coef, z_coef;            /* router losses; 0: reported, not trained on */
    bool bias;                          /* choose experts with router_bias */
    bool loss, logits, best;            /* what to make of the last layer */
    bool cp_ring; /* with cp: K and V go round, else are gathered; for a cache always */
    /* Keys and values are held over steps in a cache of so many rows a layer (0: they
     * are not), where the row's own go. */
    int64_t cache_rows;
    bool answers;                       /* places see what the cache holds, not their
                                         * row: one more token for each of T samples */
    enum dispatcher dispatcher;         /* with ep or etp */
    /* Rows a rank has room for, over what it gets when all experts are chosen equally
     * often; 0: room for the worst case, when all tokens choose its experts. */
    double capacity;
};

struct decoder_graph {                  /* values; NONE where not asked for */
    int loss;                           /* [1,1] cross_entropy + router_loss */
    int cross_entropy;                  /* [1,1] summed, times scale */
    int router_loss;                    /* [1,1] share (aux_coef aux + z_coef z_loss) */
    int aux, z_loss;                    /* [1,1] of this row, without coefficients */
    int moe_layers;
    int chosen[MAX_LAYERS];             /* [1,E] choices of MoE layers 0..i, summed; of
                                         * this rank's tokens alone */
    /* [1,1] MoE layers that had no room for their rows (options.capacity); NONE without
     * ep.  Where it is not 0 on any rank, losses and gradients of all ranks are finite
     * but mean nothing: the caller sums it over all ranks, leaves the weights alone and
     * does the step again with more room. */
    int overflow;
    int logits;                         /* [T,V] */
    /* i32 [T/cp] and [T/cp,1]: at own places (places_of_row) the best of the words that
     * this tp rank has, numbered from its first, best_first. */
    int best, best_logit, best_first;
};

/* `vision` NULL: text only.  Fills `out`. */
void decoder_record(struct graph *g, const struct decoder_config *c,
                    const struct capacity *cap, const struct vision_graph *vision,
                    const struct decoder_options *options, struct decoder_graph *out);

#endif
