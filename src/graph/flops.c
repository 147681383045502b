/* flops.c - model FLOPs by formula (docs/numerics.md), from counts of what was real.
 *
 * Stands alone because it must not follow from how the work is done: a plan that
 * recomputes or pads claims no more than one that does not. */
#include "graph/flops.h"

#include "graph/graph.h"

/* A product of `forward` FLOPs, its backward by what needs a gradient. */
static double product(double forward, bool input, bool weight)
{
    return forward * (1 + input + weight);
}

static double core(double forward, bool gradient)
{
    return forward * (gradient ? 3 : 1);
}

static double vision_flops(const struct vision_config *v, const struct flops_count *n,
                           bool vision, bool projector)
{
    double D = v->width, F = v->hidden, M = (double)v->merge * v->merge * D;
    double embed =
        product(2.0 * vision_patch_values(v) * D * n->patches, false, vision);
    double block = product((8 * D * D + 4 * D * F) * n->patches, vision, vision) +
                   core(4 * D * n->attention_image, vision);
    /* A trainable merger has its norm before its products: they need input gradients.
     */
    double merger = product((2 * M * M + 2 * M * v->out) * n->merged,
                            vision || projector, projector);
    return embed + v->depth * block + (1 + v->taps) * merger;
}

double image_flops(const struct model_config *c, double patches, unsigned frozen)
{
    double cell = c->vision.merge * c->vision.merge;
    struct flops_count n = {.patches = patches, .attention_image = patches * patches,
                            .merged = patches / cell};
    return vision_flops(&c->vision, &n, !(frozen >> PART_VISION & 1),
                        !(frozen >> PART_PROJECTOR & 1));
}

double model_flops(const struct model_config *c, const struct flops_count *n,
                   unsigned frozen)
{
    const struct decoder_config *d = &c->decoder;
    bool trains[PARTS];
    for (int p = 0; p < PARTS; p++)
        trains[p] = !(frozen >> p & 1);
    double sum = 0;
    bool stream = trains[PART_EMBEDDINGS];      /* does the residual stream want one? */
    if (c->has_vision) {
        sum += vision_flops(&c->vision, n, trains[PART_VISION], trains[PART_PROJECTOR]);
        stream |= trains[PART_VISION] || trains[PART_PROJECTOR];
    }
    double D = d->width, H = d->heads, G = d->groups, K = d->head_width;
    bool decoder = trains[PART_DECODER];
    for (int l = 0; l < d->layers; l++) {
        stream |= decoder;                      /* the norms before the products */
        sum += product(2 * D * K * (2 * H + 2 * G) * n->tokens, stream, decoder);
        sum += core(4 * H * K * n->attention, stream);
        if (!d->moe[l]) {
            sum += product(6 * D * d->hidden * n->tokens, stream, decoder);
            continue;
        }
        bool router = trains[PART_ROUTER], experts = trains[PART_EXPERTS];
        double F = d->expert_hidden, rows = d->active * n->tokens;
        sum += product(2 * D * d->experts * n->tokens, stream, router);
        sum += product(4 * D * F * rows, stream, experts);
        sum += product(2 * D * F * rows, stream || experts, experts);
        double S = d->shared_hidden, gate = S > 0;
        sum += product((4 * D * S + 2 * D * gate) * n->tokens, stream, experts);
        sum += product(2 * D * S * n->tokens, stream || experts, experts);
        stream |= router || experts;
    }
    bool head = trains[d->tied ? PART_EMBEDDINGS : PART_DECODER];
    return sum +
           product(2 * D * d->vocabulary * n->supervised, stream || decoder, head);
}
