/* hf_config.c - config.json to numbers. */
#include "checkpoint/hf_parts.h"
#include "checkpoint/hf_json.h"

enum { WIDEST = 1 << 20 };

static void vision_read(struct reader *r, struct vision_config *v)
{
    v->depth = read_int(r, "depth", 27, 1, MAX_LAYERS);
    v->width = read_int(r, "hidden_size", 1152, 1, WIDEST);
    v->heads = read_int(r, "num_heads", 16, 1, WIDEST);
    v->hidden = read_int(r, "intermediate_size", 4304, 1, WIDEST);
    v->channels = read_int(r, "in_channels", 3, 3, 3);
    v->patch = read_int(r, "patch_size", 16, 1, 1024);
    v->frames = read_int(r, "temporal_patch_size", 2, 1, 16);
    v->merge = read_int(r, "spatial_merge_size", 2, 1, 16);
    v->positions = read_int(r, "num_position_embeddings", 2304, 1, WIDEST * 16);
    v->out = read_int(r, "out_hidden_size", NEEDED, 1, WIDEST);
    if (!field(r, "deepstack_visual_indexes"))
        wrong(r, "deepstack_visual_indexes", "a list of whole numbers, [] for none");
    v->taps = read_list(r, "deepstack_visual_indexes", v->tap, MAX_TAPS,
                        MAX_LAYERS - 1);
    v->theta = 10000;
    v->eps = 1e-6;
    only_text(r, "hidden_act", "gelu_pytorch_tanh");
    json_t *rope = field(r, "rope_parameters");
    if (rope) {
        struct reader p = *r;
        p.section = "vision_config.rope_parameters.";
        p.object = rope;
        v->theta = read_real(&p, "rope_theta", v->theta, 1);
        r->ok = p.ok;
    }
}

/* Equal, numbers by their value. */
static bool same_value(const json_t *x, const json_t *y)
{
    if (!json_is_array(x) || !json_is_array(y) ||
        json_array_size(x) != json_array_size(y))
        return json_is_number(x) && json_is_number(y)
                   ? json_number_value(x) == json_number_value(y)
                   : json_equal(x, y);
    size_t i = 0;
    while (i < json_array_size(x) &&
           same_value(json_array_get(x, i), json_array_get(y, i)))
        i++;
    return i == json_array_size(x);
}

/* Both spellings are there: the older one counts, as in transformers. */
static void rope_compare(struct reader *r, json_t *older, json_t *newer)
{
    const char *key;
    json_t *value;
    json_object_foreach(newer, key, value) {
        const json_t *other = json_object_get(older, key);
        if (!other && !strcmp(key, "rope_theta"))
            other = json_object_get(r->object, key);
        if (other && !same_value(other, value))
            note(r, "rope_scaling and rope_parameters differ in %s; rope_scaling "
                    "counts", key);
    }
}

static void rope_read(struct reader *r, struct decoder_config *d)
{
    json_t *older = field(r, "rope_scaling"), *newer = field(r, "rope_parameters");
    bool old = json_object_size(older) > 0 || !newer;
    struct reader p =
        old ? section(r, "rope_scaling", "text_config.rope_scaling.")
            : section(r, "rope_parameters", "text_config.rope_parameters.");
    if (!p.object)
        return;
    if (old && newer)
        rope_compare(r, older, newer);
    d->theta = read_real(r, "rope_theta", 500000, 1);
    double beside = d->theta;
    p.ok = r->ok;
    d->theta = read_real(&p, "rope_theta", d->theta, 1);
    if (field(r, "rope_theta") && beside != d->theta)
        note(r, "rope_theta is %g beside %s, and %g within, which counts", beside,
             old ? "rope_scaling" : "rope_parameters", d->theta);
    only_text(&p, "rope_type", "default");
    only_text(&p, "type", "default");
    only_bool(&p, "mrope_interleaved", true);
    only_real(&p, "partial_rotary_factor", 1);
    if (read_list(&p, "mrope_section", d->section, 3, WIDEST) != 3)
        wrong(&p, "mrope_section", "three whole numbers");
    r->ok = p.ok;
}

static void experts_read(struct reader *r, struct decoder_config *d)
{
    const char *key =
        field(r, "num_local_experts") ? "num_local_experts" : "num_experts";
    int mlp_only[MAX_LAYERS];
    int nmlp = read_list(r, "mlp_only_layers", mlp_only, MAX_LAYERS, MAX_LAYERS - 1);
    d->experts = read_int(r, key, 60, 0, 4096);
    d->active = read_int(r, "num_experts_per_tok", 4, 0, 256);
    d->expert_hidden = read_int(r, "moe_intermediate_size", 1408, 1, WIDEST);
    d->shared_hidden = read_int(r, "shared_expert_intermediate_size", 0, 0, WIDEST);
    d->aux_coef = read_real(r, "router_aux_loss_coef", 0.001, 0);
    int every = read_int(r, "decoder_sparse_step", 1, 1, MAX_LAYERS);
    for (int l = 0; l < d->layers; l++) {
        d->moe[l] = d->experts > 0 && (l + 1) % every == 0;
        for (int i = 0; i < nmlp; i++)
            d->moe[l] &= mlp_only[i] != l;
    }
}

/* Absent keys have the defaults of the family's reference class. */
static void decoder_read(struct reader *r, bool moe, struct decoder_config *d)
{
    d->layers = read_int(r, "num_hidden_layers", moe ? 24 : 32, 1, MAX_LAYERS);
    d->width = read_int(r, "hidden_size", NEEDED, 1, WIDEST);
    d->heads = read_int(r, "num_attention_heads", moe ? 16 : 32, 1, WIDEST);
    d->groups = read_int(r, "num_key_value_heads", moe ? 16 : 32, 1, WIDEST);
    d->head_width = read_int(r, "head_dim", moe ? d->width / d->heads : 128, 1, WIDEST);
    d->hidden = read_int(r, "intermediate_size", moe ? 5632 : 22016, 1, WIDEST);
    d->vocabulary = read_int(r, "vocab_size", NEEDED, 1, 1 << 24);
    d->positions = read_int(r, "max_position_embeddings", 0, 1, 1 << 30);
    d->eps = read_real(r, "rms_norm_eps", 1e-6, 0);
    d->initial = read_real(r, "initializer_range", 0.02, 0);
    only_text(r, "hidden_act", "silu");
    only_bool(r, "attention_bias", false);
    only_real(r, "attention_dropout", 0);
    rope_read(r, d);
    if (moe)
        experts_read(r, d);
}

/* The model's own word counts, the text part's where it says nothing. */
static bool tied_read(struct reader *top, struct reader *text)
{
    static const char key[] = "tie_word_embeddings";
    bool within = read_bool(text, key, false), outer = read_bool(top, key, within);
    if (field(text, key) && field(top, key) && outer != within)
        note(top, "%s is %s, and %s in text_config; the first counts", key,
             outer ? "true" : "false", within ? "true" : "false");
    else if (within && !field(top, key))
        note(top, "%s is true in text_config alone; it counts", key);
    return outer;
}

/* One id, or a list of them. */
static void eos_read(struct reader *r, struct model_config *out)
{
    static const char key[] = "eos_token_id";
    if (json_is_array(field(r, key))) {
        out->neos = read_list(r, key, out->eos, MAX_EOS, 1 << 24);
        return;
    }
    out->eos[0] = read_int(r, key, -1, 0, 1 << 24);
    out->neos = out->eos[0] >= 0;
}

static bool config_read(struct reader *r, struct model_config *out)
{
    const char *type = json_string_value(json_object_get(r->object, "model_type"));
    bool moe = type && !strcmp(type, "qwen3_vl_moe");
    *out = (struct model_config){.has_vision = true};
    if (!moe && !(type && !strcmp(type, "qwen3_vl")))
        wrong(r, "model_type", "\"qwen3_vl_moe\" or \"qwen3_vl\"");
    if (field(r, "quantization_config"))
        wrong(r, "quantization_config", "none: weights in f32, bf16 or f16");
    out->image_token = read_int(r, "image_token_id", 151655, 0, 1 << 24);
    out->video_token = read_int(r, "video_token_id", 151656, 0, 1 << 24);
    out->vision_start = read_int(r, "vision_start_token_id", 151652, 0, 1 << 24);
    out->vision_end = read_int(r, "vision_end_token_id", 151653, 0, 1 << 24);
    struct reader vision = section(r, "vision_config", "vision_config.");
    if (vision.object)
        vision_read(&vision, &out->vision);
    struct reader text = section(r, "text_config", "text_config.");
    text.ok = vision.ok;
    if (text.object) {
        decoder_read(&text, moe, &out->decoder);
        out->decoder.tied = tied_read(r, &text);
        eos_read(&text, out);
        out->bos = read_int(&text, "bos_token_id", -1, 0, 1 << 24);
        out->pad = read_int(&text, "pad_token_id", -1, 0, 1 << 24);
    }
    return r->ok && text.ok;
}

static bool config_parse(const char *name, const char *json, int64_t size,
                         struct text *notes, struct model_config *out)
{
    json_t *all;
    bool ok = json_read(name, json, size, &all);
    if (ok) {
        struct reader r = {name, "", all, true, notes};
        ok = config_read(&r, out);
        json_decref(all);
    }
    ok = ok && (model_config_check(out) || fail_in("config: %s", name));
    return ok || fail_kind(FAULT_CHECKPOINT);
}

bool hf_config_parse(const char *name, const char *json, int64_t size,
                     struct model_config *out)
{
    return config_parse(name, json, size, NULL, out);
}

static bool eos_same(const struct model_config *x, const struct model_config *y)
{
    int same = 0;
    for (int i = 0; i < x->neos; i++)
        same += model_config_ends(y, x->eos[i]);
    for (int i = 0; i < y->neos; i++)
        same += model_config_ends(x, y->eos[i]);
    return same == x->neos + y->neos;
}

/* What ends an answer is said by generation_config.json, where it says something: what
 * transformers' generate does. */
static bool generation_read(struct arena *a, const char *folder, struct text *notes,
                            struct model_config *out)
{
    static const char name[] = "generation_config.json", key[] = "eos_token_id";
    const struct model_config was = *out;
    char *path = path_join(a, folder, name);
    struct bytes text;
    json_t *all;
    if (!file_exists(path))
        return true;
    if (!file_read(a, path, CONFIG_MOST, &text) ||
        !json_read(path, text.at, text.size, &all))
        return fail_kind(FAULT_CHECKPOINT);
    struct reader r = {path, "", all, true, notes};
    if (field(&r, key))
        eos_read(&r, out);
    if (r.ok && was.neos && !eos_same(&was, out))
        note(&r, "%s is not the same in %s and %s; the latter counts", key, config_name,
             name);
    json_decref(all);
    return (r.ok && (model_config_check(out) || fail_in("config: %s", path))) ||
           fail_kind(FAULT_CHECKPOINT);
}

static bool folder_read(struct arena *a, const char *folder, struct text *notes,
                        struct model_config *out)
{
    struct bytes text;
    char *path = path_join(a, folder, config_name);
    return ((hf_file_look(a, folder, config_name) &&
             file_read(a, path, CONFIG_MOST, &text)) || fail_kind(FAULT_CHECKPOINT)) &&
           config_parse(path, text.at, text.size, notes, out) &&
           generation_read(a, folder, notes, out);
}

bool hf_config_read(struct arena *a, const char *folder, struct model_config *out)
{
    return folder_read(a, folder, NULL, out);
}

bool hf_config_notes(struct arena *a, const char *folder, struct text *notes)
{
    struct model_config c;
    return folder_read(a, folder, notes, &c);
}
