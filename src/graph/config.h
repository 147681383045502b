/* config.h - a vision-language model in numbers: what its config.json says.
 *
 * Plain data shared by those who read it from a checkpoint and those who record the
 * model, so that neither needs to know the other. */
#ifndef GRAPH_CONFIG_H
#define GRAPH_CONFIG_H

#include "base/base.h"

enum { MAX_LAYERS = 256, MAX_TAPS = 16, MAX_EOS = 16 };

struct vision_config {
    int depth, width, heads, hidden;    /* blocks, Hv, Nh, Iv */
    int patch, frames, merge;           /* pixels, temporal patch, spatial merge */
    int channels;                       /* 3 */
    int positions;                      /* G * G rows of the position table */
    int out;                            /* projector's width = decoder's */
    int taps, tap[MAX_TAPS];            /* deepstack: after these blocks (0-based) */
    double theta;                       /* 10000 */
    double eps;                         /* 1e-6 */
};

struct decoder_config {
    int layers, width, heads, groups, head_width;       /* L, D, H, G, K */
    int hidden;                         /* F of dense layers */
    int experts, active, expert_hidden; /* E, A, F of one expert; experts 0: none */
    int shared_hidden;                  /* F of an MoE layer's shared expert; 0: none */
    bool moe[MAX_LAYERS];               /* is layer l a mixture of experts? */
    int vocabulary;
    int positions;                      /* it was made for; 0: not said */
    double theta, eps;
    int section[3];                     /* M-RoPE: t, y, x */
    bool tied;                          /* head = embedding table */
    double initial;                     /* deviation of fresh weights, 0.02 */
    double aux_coef;                    /* router_aux_loss_coef, 0.001 */
};

struct model_config {
    bool has_vision;
    struct vision_config vision;
    struct decoder_config decoder;
    int image_token, video_token, vision_start, vision_end;
    int neos, eos[MAX_EOS];             /* any of them ends an answer */
    int bos, pad;                       /* -1: none */
};

/* Values of one patch (channels * frames * patch * patch). */
int vision_patch_values(const struct vision_config *v);
/* Is it one of eos? */
bool model_config_ends(const struct model_config *c, int id);
/* Do the numbers fit together?  Fails with the two that do not. */
MUST_USE bool model_config_check(const struct model_config *c);

#endif
