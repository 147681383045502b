/* config.c - do a model's numbers fit together?
 *
 * Stands alone because a config comes from outside (config.json, a recipe) and is
 * checked once, before anything is recorded from it. */
#include "graph/config.h"

int vision_patch_values(const struct vision_config *v)
{
    return v->channels * v->frames * v->patch * v->patch;
}

struct least { const char *name; int value, least; };

static bool check_least(const char *of, const struct least *at, int count)
{
    for (int i = 0; i < count; i++)
        if (at[i].value < at[i].least)
            return fail("config: %s %s is %d, expected at least %d", of, at[i].name,
                        at[i].value, at[i].least);
    return true;
}

static bool check_vision(const struct vision_config *v)
{
    const struct least at[] = {
        {"depth", v->depth, 1}, {"hidden_size", v->width, 1},
        {"num_heads", v->heads, 1}, {"intermediate_size", v->hidden, 1},
        {"patch_size", v->patch, 1},
        {"temporal_patch_size", v->frames, 1}, {"spatial_merge_size", v->merge, 1},
        {"in_channels", v->channels, 1}, {"num_position_embeddings", v->positions, 1},
        {"out_hidden_size", v->out, 1},
    };
    if (!check_least("vision", at, COUNT(at)))
        return false;
    if (v->width % v->heads != 0)
        return fail("config: vision hidden_size %d is no multiple of num_heads %d",
                    v->width, v->heads);
    if (v->width / v->heads % 4 != 0)
        return fail(
            "config: vision head width %d (hidden_size %d / num_heads %d) is no "
            "multiple of 4, which two rotary axes need",
            v->width / v->heads, v->width, v->heads);
    int64_t side = 1;
    while (side * side < v->positions)
        side++;
    if (side * side != v->positions)
        return fail("config: num_position_embeddings %d is no square", v->positions);
    if (v->taps < 0 || v->taps > MAX_TAPS)
        return fail("config: %d deepstack_visual_indexes, expected at most %d", v->taps,
                    MAX_TAPS);
    for (int i = 0; i < v->taps; i++) {
        if (v->tap[i] < 0 || v->tap[i] >= v->depth)
            return fail("config: deepstack_visual_indexes has %d, vision depth is %d",
                        v->tap[i], v->depth);
        if (i > 0 && v->tap[i] <= v->tap[i - 1])
            return fail(
                "config: deepstack_visual_indexes has %d after %d, expected rising "
                "numbers",
                v->tap[i], v->tap[i - 1]);
    }
    if (!(v->theta > 0) || !(v->eps > 0))
        return fail(
            "config: vision rope theta %g and norm eps %g, expected both above 0",
            v->theta, v->eps);
    return true;
}

static bool check_experts(const struct decoder_config *d)
{
    int moe = 0;
    for (int l = 0; l < d->layers; l++)
        moe += d->moe[l];
    if (moe < d->layers && d->hidden < 1)
        return fail("config: intermediate_size is %d, and %d layer(s) dense",
                    d->hidden, d->layers - moe);
    if (moe == 0)
        return true;
    const struct least at[] = {
        {"num_experts", d->experts, 1},
        {"num_experts_per_tok", d->active, 1},
        {"moe_intermediate_size", d->expert_hidden, 1},
    };
    if (!check_least("decoder", at, COUNT(at)))
        return false;
    if (d->active > d->experts)
        return fail("config: num_experts_per_tok %d is above num_experts %d", d->active,
                    d->experts);
    if (d->shared_hidden < 0)
        return fail("config: shared_expert_intermediate_size is %d, expected 0 (none) "
                    "or more", d->shared_hidden);
    return true;
}

static bool check_decoder(const struct decoder_config *d)
{
    const struct least at[] = {
        {"num_hidden_layers", d->layers, 1}, {"hidden_size", d->width, 1},
        {"num_attention_heads", d->heads, 1}, {"num_key_value_heads", d->groups, 1},
        {"head_dim", d->head_width, 1}, {"vocab_size", d->vocabulary, 1},
    };
    if (!check_least("decoder", at, COUNT(at)))
        return false;
    if (d->layers > MAX_LAYERS)
        return fail("config: num_hidden_layers %d, this program holds at most %d",
                    d->layers, MAX_LAYERS);
    if (d->heads % d->groups != 0)
        return fail(
            "config: num_attention_heads %d is no multiple of num_key_value_heads %d",
            d->heads, d->groups);
    if (d->head_width % 2 != 0)
        return fail("config: head_dim %d is odd, rotary positions need pairs",
                    d->head_width);
    int64_t sum = 0;
    for (int i = 0; i < 3; i++) {
        if (d->section[i] < 0)
            return fail("config: mrope_section has %d", d->section[i]);
        sum += d->section[i];
    }
    if (sum != d->head_width / 2)
        return fail("config: mrope_section sums to %lld, expected half of head_dim %d",
                    (long long)sum, d->head_width);
    if (!(d->theta > 0) || !(d->eps > 0))
        return fail("config: rope_theta %g and rms_norm_eps %g, expected both above 0",
                    d->theta, d->eps);
    if (!(d->initial >= 0) || !(d->aux_coef >= 0))
        return fail(
            "config: initializer_range %g and router_aux_loss_coef %g, expected none "
            "below 0",
            d->initial, d->aux_coef);
    return check_experts(d);
}

static bool check_token(const char *name, int id, int least, int vocabulary)
{
    if (id < least || id >= vocabulary)
        return fail("config: %s is %d, vocab_size is %d", name, id, vocabulary);
    return true;
}

bool model_config_ends(const struct model_config *c, int id)
{
    int i = 0;
    while (i < c->neos && c->eos[i] != id)
        i++;
    return i < c->neos;
}

bool model_config_check(const struct model_config *c)
{
    int V = c->decoder.vocabulary;
    if (!check_decoder(&c->decoder))
        return false;
    if (!check_token("bos_token_id", c->bos, -1, V) ||
        !check_token("pad_token_id", c->pad, -1, V))
        return false;
    for (int i = 0; i < c->neos; i++)
        if (!check_token("eos_token_id", c->eos[i], 0, V))
            return false;
    if (!c->has_vision)
        return true;
    if (!check_vision(&c->vision))
        return false;
    if (c->vision.out != c->decoder.width)
        return fail(
            "config: vision out_hidden_size %d differs from the decoder's hidden_size "
            "%d",
            c->vision.out, c->decoder.width);
    if (c->vision.taps > c->decoder.layers)
        return fail(
            "config: %d deepstack_visual_indexes, but only num_hidden_layers %d",
            c->vision.taps, c->decoder.layers);
    return check_token("image_token_id", c->image_token, 0, V) &&
           check_token("video_token_id", c->video_token, -1, V) &&
           check_token("vision_start_token_id", c->vision_start, -1, V) &&
           check_token("vision_end_token_id", c->vision_end, -1, V);
}
