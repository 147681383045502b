/* test_hf_config.c - config.json to numbers: both spellings, every refusal by name. */
#include "check.h"

#include "base/text.h"
#include "checkpoint/hf.h"
#include "train/model.h"

/* A config in two halves; `text` and `vision` may be changed key by key. */
static const char top_30b[] =
    "\"architectures\":[\"Qwen3VLMoeForConditionalGeneration\"],"
    "\"model_type\":\"qwen3_vl_moe\","
    "\"image_token_id\":151655,\"video_token_id\":151656,"
    "\"vision_start_token_id\":151652,\"vision_end_token_id\":151653,"
    "\"tie_word_embeddings\":false,\"transformers_version\":\"4.57.0.dev0\"";
static const char text_30b[] =
    "\"model_type\":\"qwen3_vl_moe_text\",\"dtype\":\"bfloat16\",\"vocab_size\":151936,"
    "\"hidden_size\":2048,\"num_hidden_layers\":48,\"num_attention_heads\":32,"
    "\"num_key_value_heads\":4,\"head_dim\":128,\"intermediate_size\":6144,"
    "\"moe_intermediate_size\":768,\"num_experts\":128,\"num_experts_per_tok\":8,"
    "\"norm_topk_prob\":true,\"decoder_sparse_step\":1,\"mlp_only_layers\":[],"
    "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-06,\"attention_bias\":false,"
    "\"attention_dropout\":0.0,\"max_position_embeddings\":262144,"
    "\"rope_theta\":5000000,\"rope_scaling\":{\"rope_type\":\"default\","
    "\"mrope_interleaved\":true,\"mrope_section\":[24,20,20]},"
    "\"initializer_range\":0.02,\"bos_token_id\":151643,\"eos_token_id\":151645,"
    "\"use_cache\":true";
static const char vision_30b[] =
    "\"model_type\":\"qwen3_vl_moe\",\"depth\":27,\"hidden_size\":1152,"
    "\"num_heads\":16,"
    "\"intermediate_size\":4304,\"in_channels\":3,\"patch_size\":16,"
    "\"temporal_patch_size\":2,\"spatial_merge_size\":2,"
    "\"hidden_act\":\"gelu_pytorch_tanh\",\"num_position_embeddings\":2304,"
    "\"out_hidden_size\":2048,\"deepstack_visual_indexes\":[8,16,24],"
    "\"initializer_range\":0.02";

static const char *config_text(struct arena *a, const char *top, const char *text,
                               const char *vision)
{
    return arena_text(a, "{%s,\"text_config\":{%s},\"vision_config\":{%s}}", top, text,
                      vision);
}

static bool read(const char *json, struct model_config *out)
{
    return hf_config_parse("config.json", json, (int64_t)strlen(json), out);
}

/* `from` with the first `key` given another value; NULL takes the key out. */
static const char *with(struct arena *a, const char *from, const char *key,
                        const char *value)
{
    const char *at = strstr(from, arena_text(a, "\"%s\":", key));
    if (!at)
        return value ? arena_text(a, "%s,\"%s\":%s", from, key, value) : from;
    const char *end = at + strlen(key) + 3;
    for (int depth = 0; *end && (depth || *end != ','); end++)
        depth += (*end == '[' || *end == '{') - (*end == ']' || *end == '}');
    if (value)
        return arena_text(a, "%.*s\"%s\":%s%s", (int)(at - from), from, key, value,
                          end);
    const char *comma = at > from ? at - 1 : at;
    return arena_text(a, "%.*s%s", (int)(comma - from), from, at > from ? end
                      : end + 1);
}

static const char *with_text(struct arena *a, const char *key, const char *value)
{
    return config_text(a, top_30b, with(a, text_30b, key, value), vision_30b);
}

static const char *with_vision(struct arena *a, const char *key, const char *value)
{
    return config_text(a, top_30b, text_30b, with(a, vision_30b, key, value));
}

static const char *with_top(struct arena *a, const char *key, const char *value)
{
    return config_text(a, with(a, top_30b, key, value), text_30b, vision_30b);
}

/* Parameters of the recorded model, or of its vision tower and projector alone. */
static int64_t parameters(const struct model_config *c, bool vision_only)
{
    struct arena a = arena_make("model");
    struct capacity capacity = {.tokens = 4, .segments = 1, .images = 1};
    capacity.patches = (int64_t)c->vision.merge * c->vision.merge;
    struct model_purpose purpose = purpose_logits();
    struct model m;
    model_record(&a, c, &capacity, &purpose, NULL, 0, &m);
    int64_t sum = 0;
    for (int64_t i = 0; i < m.graph.nparam; i++)
        if (!vision_only || text_starts(m.graph.param[i].name, "model.visual."))
            sum += m.graph.param[i].count;
    arena_free(&a);
    return sum;
}

static void test_30b(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct model_config c;
    assert_ok(read(config_text(&a, top_30b, text_30b, vision_30b), &c));
    assert_true(c.has_vision);
    const struct { int is, want; } number[] = {
        {c.vision.depth, 27}, {c.vision.width, 1152}, {c.vision.heads, 16},
        {c.vision.hidden, 4304}, {c.vision.patch, 16}, {c.vision.frames, 2},
        {c.vision.merge, 2}, {c.vision.channels, 3}, {c.vision.positions, 2304},
        {c.vision.out, 2048}, {c.vision.taps, 3}, {c.vision.tap[0], 8},
        {c.vision.tap[1], 16}, {c.vision.tap[2], 24}, {c.decoder.layers, 48},
        {c.decoder.width, 2048}, {c.decoder.heads, 32}, {c.decoder.groups, 4},
        {c.decoder.head_width, 128}, {c.decoder.hidden, 6144}, {c.decoder.experts, 128},
        {c.decoder.active, 8}, {c.decoder.expert_hidden, 768},
        {c.decoder.vocabulary, 151936}, {c.decoder.section[0], 24},
        {c.decoder.section[1], 20}, {c.decoder.section[2], 20}, {c.decoder.tied, false},
        {c.image_token, 151655}, {c.video_token, 151656}, {c.vision_start, 151652},
        {c.vision_end, 151653}, {c.neos, 1},
        {c.eos[0], 151645}, {c.bos, 151643}, {c.pad, -1},
    };
    for (int i = 0; i < COUNT(number); i++)
        if (number[i].is != number[i].want)
            fail_msg("number %d is %d, expected %d", i, number[i].is, number[i].want);
    assert_true(c.vision.theta == 10000 && c.vision.eps == 1e-6);
    assert_true(c.decoder.theta == 5000000 && c.decoder.eps == 1e-6);
    assert_true(c.decoder.initial == 0.02 && c.decoder.aux_coef == 0.001);
    for (int l = 0; l < 48; l++)
        assert_true(c.decoder.moe[l]);
    assert_int_equal(parameters(&c, false), 31070754032);
    assert_int_equal(parameters(&c, true), 538631408);
    arena_free(&a);
}

static void test_235b(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct model_config c;
    const char *text = text_30b;
    const char *const change[][2] = {
        {"hidden_size", "4096"}, {"num_hidden_layers", "94"},
        {"num_attention_heads", "64"}, {"intermediate_size", "12288"},
        {"moe_intermediate_size", "1536"},
    };
    for (int i = 0; i < COUNT(change); i++)
        text = with(&a, text, change[i][0], change[i][1]);
    assert_ok(read(config_text(&a, top_30b, text,
                               with(&a, vision_30b, "out_hidden_size", "4096")), &c));
    assert_int_equal(parameters(&c, false), 235670022896);
    assert_int_equal(parameters(&c, true), 576388336);
    arena_free(&a);
}

static void test_spellings(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct model_config old, new;
    assert_ok(read(config_text(&a, top_30b, text_30b, vision_30b), &old));
    const char *text = with(&a, text_30b, "rope_theta", NULL);
    text = with(&a, text, "rope_scaling", NULL);
    text = with(&a, text, "rope_parameters",
                "{\"rope_type\":\"default\",\"rope_theta\":5000000.0,"
                "\"mrope_section\":[24,20,20],\"mrope_interleaved\":true}");
    text = with(&a, text, "num_experts", NULL);
    text = with(&a, text, "num_local_experts", "128");
    text = with(&a, text, "pad_token_id", "null");
    const char *vision = with(&a, vision_30b, "rope_parameters",
                              "{\"rope_theta\":10000.0,\"rope_type\":\"axial\"}");
    assert_ok(read(config_text(&a, top_30b, text, vision), &new));
    assert_memory_equal(&old, &new, sizeof old);
    /* a theta inside rope_scaling is the one that counts */
    assert_ok(read(with_text(&a, "rope_scaling", "{\"type\":\"default\","
                             "\"mrope_section\":[24,20,20],\"rope_theta\":7}"), &new));
    assert_true(new.decoder.theta == 7);
    /* a shared expert beside the routed ones, as Qwen2-MoE writes it */
    assert_int_equal(old.decoder.shared_hidden, 0);
    assert_ok(read(with_text(&a, "shared_expert_intermediate_size", "512"), &new));
    assert_int_equal(new.decoder.shared_hidden, 512);
    new.decoder.shared_hidden = 0;
    assert_memory_equal(&old, &new, sizeof old);
    assert_fails(read(with_text(&a, "shared_expert_intermediate_size", "-1"), &new),
                 "text_config.shared_expert_intermediate_size is -1, expected a whole");
    arena_free(&a);
}

static void test_defaults(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct model_config c;
    assert_fails(read(with_text(&a, "head_dim", "null"), &c),         /* 2048 / 32 */
                 "sums to 64, expected half of head_dim 64");
    const char *half = with(&a, text_30b, "head_dim", NULL);
    half = with(&a, half, "rope_scaling", "{\"mrope_section\":[12,10,10]}");
    assert_ok(read(config_text(&a, top_30b, half, vision_30b), &c));
    assert_int_equal(c.decoder.head_width, 64);
    assert_ok(read(with_text(&a, "rope_theta", NULL), &c));
    assert_true(c.decoder.theta == 500000);
    assert_ok(read(with_text(&a, "router_aux_loss_coef", "0.25"), &c));
    assert_true(c.decoder.aux_coef == 0.25);
    assert_ok(read(with_text(&a, "intermediate_size", NULL), &c));
    assert_int_equal(c.decoder.hidden, 5632);
    assert_ok(read(with_vision(&a, "intermediate_size", "null"), &c));
    assert_int_equal(c.vision.hidden, 4304);
    assert_ok(read(with_text(&a, "pad_token_id", "151643"), &c));
    assert_int_equal(c.pad, 151643);
    assert_ok(read(with_text(&a, "eos_token_id", "null"), &c));
    assert_int_equal(c.neos, 0);
    assert_ok(read(with_text(&a, "eos_token_id", "[151645,151643]"), &c));
    assert_true(c.neos == 2 && model_config_ends(&c, 151645));
    assert_true(model_config_ends(&c, 151643) && !model_config_ends(&c, 151644));
    arena_free(&a);
}

static void test_dense(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct model_config c;
    const char *top = with(&a, top_30b, "model_type", "\"qwen3_vl\"");
    top = with(&a, top, "tie_word_embeddings", "true");
    const char *text = "\"vocab_size\":151936,\"hidden_size\":2048,"
                       "\"num_hidden_layers\":28,\"num_attention_heads\":16,"
                       "\"num_key_value_heads\":8,\"intermediate_size\":6144,"
                       "\"num_experts\":9,"     /* no key of this family */
                       "\"rope_theta\":5000000,\"rope_scaling\":{\"mrope_section\":"
                       "[24,20,20],\"mrope_interleaved\":true,"
                       "\"rope_type\":\"default\"}";
    const char *vision = with(&a, vision_30b, "depth", "24");
    vision = with(&a, vision, "hidden_size", "1024");
    vision = with(&a, vision, "intermediate_size", "4096");
    vision = with(&a, vision, "deepstack_visual_indexes", "[5,11,17]");
    assert_ok(read(config_text(&a, top, text, vision), &c));
    assert_int_equal(c.decoder.experts, 0);
    for (int l = 0; l < 28; l++)
        assert_false(c.decoder.moe[l]);
    assert_int_equal(c.decoder.head_width, 128);
    assert_true(c.decoder.tied);
    /* By hand, decoder: 28 (q 2048*2048 + o the same + k, v 2 * 1024*2048 + mlp 3 *
     * 6144*2048 + norms 2*2048 + 2*128) + 151936*2048 + 2048; the head is tied. */
    int64_t decoder = 28 * (2 * 2048 * 2048 + 2 * 1024 * 2048 + 3 * 6144 * 2048 +
                            2 * 2048 + 2 * 128) + (int64_t)151936 * 2048 + 2048;
    assert_int_equal(parameters(&c, false) - parameters(&c, true), decoder);
    text = "\"vocab_size\":151936,\"hidden_size\":4096,\"rope_scaling\":"
           "{\"mrope_section\":[24,20,20]}";
    assert_ok(read(config_text(&a, top, text,
                               with(&a, vision_30b, "out_hidden_size", "4096")), &c));
    assert_int_equal(c.decoder.layers, 32);     /* this family's own defaults */
    assert_int_equal(c.decoder.heads, 32);
    assert_int_equal(c.decoder.groups, 32);
    assert_int_equal(c.decoder.hidden, 22016);
    arena_free(&a);
}

static void test_which_layers_are_moe(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct model_config c;
    assert_ok(read(with_text(&a, "mlp_only_layers", "[0,5,47,200]"), &c));
    for (int l = 0; l < 48; l++)
        assert_int_equal(c.decoder.moe[l], l != 0 && l != 5 && l != 47);
    const char *text = with(&a, text_30b, "decoder_sparse_step", "3");
    text = with(&a, text, "mlp_only_layers", "[2,3]");
    assert_ok(read(config_text(&a, top_30b, text, vision_30b), &c));
    for (int l = 0; l < 48; l++)        /* every third, counting from 1; not layer 2 */
        assert_int_equal(c.decoder.moe[l], l % 3 == 2 && l != 2);
    assert_ok(read(with_text(&a, "num_experts", "0"), &c));
    for (int l = 0; l < 48; l++)
        assert_false(c.decoder.moe[l]);
    arena_free(&a);
}

/* Every refusal names the key, its value and what is supported. */
static void test_refused(void **state)
{
    (void)state;
    enum { TOP, TEXT, VISION };
    static const struct { int where; const char *key, *value, *part; } bad[] = {
        {TOP, "model_type", "\"qwen2_vl\"",
         "model_type is \"qwen2_vl\", expected \"qwen3_vl_moe\" or \"qwen3_vl\""},
        {TOP, "model_type", NULL, "model_type is missing, expected"},
        {TOP, "model_type", "3", "model_type is 3, expected"},
        {TOP, "image_token_id", "\"x\"", "image_token_id is \"x\", expected a whole"},
        {TOP, "image_token_id", "151936",
         "image_token_id is 151936, vocab_size is 151936"},
        {TOP, "tie_word_embeddings", "\"no\"",
         "tie_word_embeddings is \"no\", expected true or false"},
        {TOP, "tie_word_embeddings", "0", "tie_word_embeddings is 0, expected true"},
        {TOP, "quantization_config", "{\"quant_method\":\"fp8\"}",
         "quantization_config is {\"quant_method\":\"fp8\"}, expected none"},
        {TEXT, "hidden_size", NULL, "text_config.hidden_size is missing, expected"},
        {TEXT, "hidden_size", "null", "text_config.hidden_size is null, expected"},
        {TEXT, "hidden_size", "2048.0",
         "hidden_size is 2048.0, expected a whole number"},
        {TEXT, "hidden_size", "-1",
         "hidden_size is -1, expected a whole number in 1.."},
        {TEXT, "hidden_size", "4294969344", "hidden_size is 4294969344, expected"},
        {TEXT, "vocab_size", NULL, "text_config.vocab_size is missing"},
        {TEXT, "num_hidden_layers", "257", "is 257, expected a whole number in 1..256"},
        {TEXT, "num_attention_heads", "0", "num_attention_heads is 0, expected"},
        {TEXT, "num_key_value_heads", "5", "no multiple of num_key_value_heads 5"},
        {TEXT, "head_dim", "127", "head_dim 127 is odd"},
        {TEXT, "hidden_act", "\"gelu\"", "hidden_act is \"gelu\", expected \"silu\""},
        {TEXT, "hidden_act", "true", "hidden_act is true, expected \"silu\""},
        {TEXT, "attention_bias", "true", "attention_bias is true, expected false"},
        {TEXT, "attention_bias", "[]", "attention_bias is [], expected false"},
        {TEXT, "attention_dropout", "0.1", "attention_dropout is 0.1"},
        {TEXT, "rms_norm_eps", "-1",
         "rms_norm_eps is -1, expected a number of at least 0"},
        {TEXT, "rms_norm_eps", "\"1e-6\"",
         "rms_norm_eps is \"1e-6\", expected a number"},
        {TEXT, "rms_norm_eps", "0", "rms_norm_eps 0, expected both above 0"},
        {TEXT, "rope_theta", "0.5",
         "rope_theta is 0.5, expected a number of at least 1"},
        {TEXT, "rope_scaling", NULL, "text_config.rope_scaling is missing"},
        {TEXT, "rope_scaling", "null", "text_config.rope_scaling is null"},
        {TEXT, "rope_scaling", "[1]",
         "text_config.rope_scaling is [1], expected an object"},
        {TEXT, "rope_scaling", "{\"rope_type\":\"yarn\",\"mrope_section\":[24,20,20]}",
         "text_config.rope_scaling.rope_type is \"yarn\", expected \"default\""},
        {TEXT, "rope_scaling", "{\"type\":\"linear\",\"mrope_section\":[24,20,20]}",
         "text_config.rope_scaling.type is \"linear\", expected \"default\""},
        {TEXT, "rope_scaling", "{}",
         "rope_scaling.mrope_section is missing, expected three"},
        {TEXT, "rope_scaling", "{\"mrope_section\":[32,32]}",
         "mrope_section is [32,32], expected three whole numbers"},
        {TEXT, "rope_scaling", "{\"mrope_section\":[24,20,20,0]}", "is [24,20,20,0]"},
        {TEXT, "rope_scaling", "{\"mrope_section\":[24,20,\"20\"]}",
         "is [24,20,\"20\"]"},
        {TEXT, "rope_scaling", "{\"mrope_section\":[24,20,21]}",
         "sums to 65, expected"},
        {TEXT, "rope_scaling",
         "{\"mrope_section\":[24,20,20],\"mrope_interleaved\":false}",
         "mrope_interleaved is false, expected true"},
        {TEXT, "num_experts", "\"128\"", "text_config.num_experts is \"128\""},
        {TEXT, "num_local_experts", "-3", "text_config.num_local_experts is -3"},
        {TEXT, "num_experts_per_tok", "129", "num_experts_per_tok 129 is above"},
        {TEXT, "num_experts_per_tok", "0", "num_experts_per_tok is 0"},
        {TEXT, "decoder_sparse_step", "0", "decoder_sparse_step is 0, expected"},
        {TEXT, "mlp_only_layers", "3", "mlp_only_layers is 3, expected a list"},
        {TEXT, "mlp_only_layers", "[-1]", "mlp_only_layers is [-1], expected a list"},
        {TEXT, "mlp_only_layers", "[0.5]", "mlp_only_layers is [0.5], expected a list"},
        {TEXT, "eos_token_id", "151936",
         "eos_token_id is 151936, vocab_size is 151936"},
        {VISION, "hidden_act", "\"gelu\"",
         "vision_config.hidden_act is \"gelu\", expected \"gelu_pytorch_tanh\""},
        {VISION, "in_channels", "1", "vision_config.in_channels is 1, expected 3"},
        {VISION, "out_hidden_size", NULL, "vision_config.out_hidden_size is missing"},
        {VISION, "out_hidden_size", "3584", "out_hidden_size 3584 differs from"},
        {VISION, "deepstack_visual_indexes", NULL,
         "deepstack_visual_indexes is missing"},
        {VISION, "deepstack_visual_indexes", "[8,8]", "has 8 after 8"},
        {VISION, "deepstack_visual_indexes", "[27]", "has 27, vision depth is 27"},
        {VISION, "num_position_embeddings", "2305", "num_position_embeddings 2305"},
        {VISION, "patch_size", "[16,16]",
         "vision_config.patch_size is [16,16], expected"},
        {VISION, "depth", "true", "vision_config.depth is true, expected"},
    };
    struct arena a = arena_make("test");
    struct model_config c;
    for (int i = 0; i < COUNT(bad); i++) {
        const char *(*change)(struct arena *, const char *, const char *) =
            bad[i].where == TOP ? with_top : bad[i].where == TEXT ? with_text
                : with_vision;
        assert_fails(read(change(&a, bad[i].key, bad[i].value), &c), bad[i].part);
        assert_true(text_starts(fail_message(), "config: config.json"));
        assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
    }
    const char *no_text = arena_text(&a, "{%s,\"vision_config\":{%s}}", top_30b,
                                     vision_30b);
    assert_fails(read(no_text, &c), "text_config is missing, expected an object");
    const char *no_vision = arena_text(&a, "{%s,\"text_config\":{%s}}", top_30b,
                                       text_30b);
    assert_fails(read(no_vision, &c), "vision_config is missing, expected an object");
    const char *list = arena_text(&a, "{%s,\"text_config\":[],\"vision_config\":{%s}}",
                                  top_30b, vision_30b);
    assert_fails(read(list, &c), "text_config is [], expected an object");
    assert_fails(read("", &c), "config.json line");
    assert_fails(read("{\n\"a\":\n}", &c), "config.json line 3");
    assert_fails(read("[]", &c), "no JSON object");
    char *deep = NEW(&a, char, (1 << 20) + 1);
    memset(deep, '[', 1 << 20);
    assert_fails(read(deep, &c), "config.json line");
    arena_free(&a);
}

/* Without any one key the config is read with a default or refused, never misread. */
static void test_any_key_may_be_missing(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    const char *const part[] = {top_30b, text_30b, vision_30b};
    int accepted = 0, refused = 0;
    for (int p = 0; p < COUNT(part); p++)
        for (const char *at = part[p]; (at = strstr(at, "\":")); at++) {
            const char *begin = at;
            while (begin[-1] != '"')
                begin--;
            const char *key = arena_text(&a, "%.*s", (int)(at - begin), begin);
            const char *cut = with(&a, part[p], key, NULL);
            struct model_config c;
            if (strstr("rope_type mrope_interleaved mrope_section", key))
                continue;               /* inside another */
            if (read(config_text(&a, p == 0 ? cut : top_30b, p == 1 ? cut : text_30b,
                                 p == 2 ? cut : vision_30b), &c))
                accepted++;
            else if (strstr(fail_message(), "is missing") ||
                     strstr(fail_message(), "config:"))
                refused++;
            else
                fail_msg("without '%s': %s", key, fail_message());
        }
    assert_true(accepted > 20);
    assert_true(refused >= 5);
    arena_free(&a);
}

/* What folder_text says twice. */
static const char *notes(struct arena *a, const char *text, struct model_config *c)
{
    char *folder = check_folder(a);
    struct text out = text_make(a);
    assert_ok(file_replace(path_join(a, folder, "config.json"), text,
                           (int64_t)strlen(text)));
    assert_ok(hf_config_notes(a, folder, &out));
    assert_ok(hf_config_read(a, folder, c));
    assert_ok(folder_remove(folder));
    return out.at;
}

/* Two spellings that disagree: one rule, and it is said. */
static void test_said_twice(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct model_config c;
    const char *without = with(&a, text_30b, "rope_scaling", NULL);
    without = with(&a, without, "rope_theta", NULL);
    static const struct { const char *older, *newer, *theta; double is; int first;
                          const char *part; } rope[] = {
        {"{\"mrope_section\":[24,20,20]}", NULL, "5000000", 5e6, 24, ""},
        {"{\"mrope_section\":[24,20,20]}",
         "{\"mrope_section\":[24,20,20],\"rope_theta\":5e6}", "5000000", 5e6, 24, ""},
        {"{\"mrope_section\":[24,20,20]}",
         "{\"mrope_section\":[22,21,21],\"rope_theta\":5e6}", "5000000", 5e6, 24,
         "rope_scaling and rope_parameters differ in mrope_section; rope_scaling"},
        {"{\"mrope_section\":[24,20,20]}",
         "{\"mrope_section\":[24,20,20],\"rope_theta\":1e6}", "5000000", 5e6, 24,
         "differ in rope_theta; rope_scaling counts"},
        {"{\"mrope_section\":[24,20,20],\"rope_type\":\"default\"}",
         "{\"mrope_section\":[24,20,20],\"rope_type\":\"yarn\"}", NULL, 5e5, 24,
         "differ in rope_type; rope_scaling counts"},
        {"{}", "{\"mrope_section\":[22,21,21],\"rope_theta\":1e6}", NULL, 1e6, 22, ""},
        {NULL, "{\"mrope_section\":[22,21,21],\"rope_theta\":1e6}", "5000000", 1e6, 22,
         "rope_theta is 5e+06 beside rope_parameters, and 1e+06 within, which counts"},
        {"{\"mrope_section\":[24,20,20],\"rope_theta\":1e6}", NULL, "5000000", 1e6, 24,
         "rope_theta is 5e+06 beside rope_scaling, and 1e+06 within, which counts"},
    };
    for (int i = 0; i < COUNT(rope); i++) {
        const char *text = with(&a, without, "rope_theta", rope[i].theta);
        text = with(&a, text, "rope_scaling", rope[i].older);
        text = with(&a, text, "rope_parameters", rope[i].newer);
        const char *said = notes(&a, config_text(&a, top_30b, text, vision_30b), &c);
        assert_true(c.decoder.theta == rope[i].is);
        assert_int_equal(c.decoder.section[0], rope[i].first);
        if (*rope[i].part ? !strstr(said, rope[i].part) : *said)
            fail_msg("rope %d: '%s'", i, said);
    }
    const char *llama = with(&a, without, "rope_parameters",
                             "{\"rope_type\":\"llama3\",\"mrope_section\":[24,20,20]}");
    assert_fails(read(config_text(&a, top_30b, llama, vision_30b), &c),
                 "text_config.rope_parameters.rope_type is \"llama3\"");
    static const struct { const char *outer, *within; bool is; const char *part; }
    tie[] = {
        {NULL, NULL, false, ""},        {"true", NULL, true, ""},
        {"false", "false", false, ""},  {"true", "true", true, ""},
        {NULL, "false", false, ""},
        {NULL, "true", true, "tie_word_embeddings is true in text_config alone"},
        {"null", "true", true, "tie_word_embeddings is true in text_config alone"},
        {"false", "true", false, "is false, and true in text_config; the first counts"},
        {"true", "false", true, "is true, and false in text_config; the first counts"},
    };
    for (int i = 0; i < COUNT(tie); i++) {
        const char *top = with(&a, top_30b, "tie_word_embeddings", tie[i].outer);
        const char *text = with(&a, text_30b, "tie_word_embeddings", tie[i].within);
        const char *said = notes(&a, config_text(&a, top, text, vision_30b), &c);
        assert_int_equal(c.decoder.tied, tie[i].is);
        if (*tie[i].part ? !strstr(said, tie[i].part) : *said)
            fail_msg("tie %d: '%s'", i, said);
    }
    arena_free(&a);
}

/* What Python writes and jansson does not read, where nobody reads it and where
 * somebody does. */
static void test_wild_numbers(void **state)
{
    (void)state;
    static const char *const wild[] = {
        "NaN", "Infinity", "-Infinity", "1e999", "-1E+999", "123456789012345678901234",
        "[NaN, {\"x\": -Infinity}, 1e400]",
        "1234567890123456789012345678901234567890123456789012345678901234567890",
    };
    struct arena a = arena_make("test");
    struct model_config c;
    for (int i = 0; i < COUNT(wild); i++) {
        assert_ok(read(with_text(&a, "nobody_reads_this", wild[i]), &c));
        assert_fails(read(with_text(&a, "rms_norm_eps", wild[i]), &c),
                     "text_config.rms_norm_eps is ");
        assert_fails(read(with_text(&a, "hidden_size", wild[i]), &c),
                     "text_config.hidden_size is ");
    }
    assert_ok(read(with_text(&a, "NaN", "\"NaN, Infinity: 1e999 \\\" NaN\""), &c));
    assert_ok(read(with_text(&a, "tiny", "1e-999"), &c));
    assert_ok(read(with_text(&a, "most", "9223372036854775807"), &c));
    assert_fails(read(with_text(&a, "x", "NaNs"), &c), "config.json line");
    arena_free(&a);
}

static const struct hf_processor preset = {
    NULL, 65536, 16777216, {0.5f, 0.5f, 0.5f}, {1, 2, 3}, 16, 2, 2};

static void check_untouched(const struct hf_processor *p)
{
    assert_int_equal(p->min_pixels, preset.min_pixels);
    assert_int_equal(p->max_pixels, preset.max_pixels);
    assert_memory_equal(p->mean, preset.mean, sizeof p->mean);
    assert_memory_equal(p->std, preset.std, sizeof p->std);
}

/* What a folder with these files says (NULL: without), onto what `out` is. */
static bool processor(struct arena *a, const char *old, const char *new,
                      struct hf_processor *out)
{
    char *folder = check_folder(a);
    const char *const text[] = {old, new};
    static const char *const name[] = {"preprocessor_config.json",
                                       "processor_config.json"};
    for (int i = 0; i < 2; i++)
        if (text[i])
            assert_ok(file_replace(path_join(a, folder, name[i]), text[i],
                                   (int64_t)strlen(text[i])));
    bool ok = hf_processor_read(a, folder, out);
    struct failure why;
    fail_take(&why);
    assert_ok(folder_remove(folder));
    if (ok)
        return true;
    assert_int_equal(why.fault, FAULT_CHECKPOINT);
    return fail_raise(&why);
}

static void test_processor(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct hf_processor p = preset;
    assert_ok(processor(&a,
                        "{\"size\":{\"longest_edge\":1000000,\"shortest_edge\":4096},"
                            "\"image_mean\":[0.1,0.2,0.3],\"image_std\":[1,2,4],"
                            "\"do_resize\":true,\"rescale_factor\":0.00392156862745098,"
                            "\"resample\":3,\"patch_size\":16}", NULL, &p));
    assert_int_equal(p.min_pixels, 4096);
    assert_int_equal(p.max_pixels, 1000000);
    assert_true(p.mean[2] == 0.3f && p.std[2] == 4);
    assert_true(text_ends(p.file, "/preprocessor_config.json"));
    assert_ok(processor(&a,
                        "{\"size\":{\"longest_edge\":1000000},\"max_pixels\":70000}",
                        NULL, &p));
    assert_int_equal(p.max_pixels, 70000);              /* overrides size */
    p = preset;
    assert_ok(processor(&a, "{}", NULL, &p));
    assert_non_null(p.file);
    check_untouched(&p);
    static const char *const bad[][2] = {
        {"{\"size\":448}", "size is 448, expected an object"},
        {"{\"size\":{\"shortest_edge\":0}}", "size.shortest_edge is 0, expected"},
        {"{\"min_pixels\":\"4\"}", "min_pixels is \"4\", expected a whole number"},
        {"{\"min_pixels\":90,\"max_pixels\":80}",
         "min_pixels 90 is above max_pixels 80"},
        {"{\"image_mean\":0.5}", "image_mean is 0.5, expected three numbers"},
        {"{\"image_mean\":[0.5,0.5]}", "image_mean is [0.5,0.5], expected three"},
        {"{\"image_std\":[0.5,0.5,\"x\"]}", "expected three numbers"},
        {"{\"image_std\":[0.5,0.5,0]}", "image_std is [0.5,0.5,0], expected three"},
        {"{\"do_normalize\":false}", "do_normalize is false, expected true"},
        {"{\"resample\":2}", "resample is 2, expected 3"},
        {"{\"rescale_factor\":1}", "rescale_factor is 1, expected 0.0039"},
        {"{\"patch_size\":14}", "patch_size is 14, expected 16"},
        {"{\"merge_size\":1}", "merge_size is 1, expected 2"},
        {"{\"temporal_patch_size\":1}", "temporal_patch_size is 1, expected 2"},
        {"[]", "no JSON object"}, {"", "line"},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        assert_fails(processor(&a, bad[i][0], NULL, &p), bad[i][1]);
        const char *both = arena_text(&a, "{\"image_processor\":%s}", bad[i][0]);
        assert_fails(processor(&a, NULL, both, &p), "/processor_config.json");
    }
    struct model_config c;
    char *folder = check_folder(&a);
    assert_fails(hf_config_read(&a, folder, &c), "config.json");
    assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

/* transformers 5 writes processor_config.json alone; older ones wrote both, with the
 * numbers in the other file. */
static void test_both_processors(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct bytes theirs;
    struct hf_processor p = preset;
    p.patch = 8;
    assert_ok(file_read(&a, "tests/model/folder/processor_config.json", 1 << 20,
                        &theirs));
    assert_ok(processor(&a, NULL, theirs.at, &p));
    assert_true(text_ends(p.file, "/processor_config.json"));
    assert_int_equal(p.min_pixels, 1024);       /* not the video processor's */
    assert_int_equal(p.max_pixels, 4096);
    assert_true(p.mean[0] == 0.5f && p.std[0] == 0.5f);

    static const char one[] =
        "{\"min_pixels\":100,\"max_pixels\":200,\"image_mean\":[0,0,0],"
        "\"image_std\":[1,1,1]}";
    const char *same = arena_text(&a, "{\"image_processor\":%s}", one);
    p = preset;
    assert_ok(processor(&a, one, same, &p));
    assert_int_equal(p.max_pixels, 200);
    p = preset;
    assert_ok(processor(&a, one, "{\"processor_class\":\"Qwen3VLProcessor\"}", &p));
    assert_int_equal(p.max_pixels, 200);
    assert_true(text_ends(p.file, "/preprocessor_config.json"));
    p = preset;
    assert_ok(processor(&a, NULL, "{\"processor_class\":\"Qwen3VLProcessor\"}", &p));
    assert_null(p.file);
    check_untouched(&p);
    assert_ok(processor(&a, NULL, NULL, &p));
    assert_null(p.file);
    check_untouched(&p);

    static const char *const other[][2] = {
        {"{\"min_pixels\":101,\"max_pixels\":200,\"image_mean\":[0,0,0],"
         "\"image_std\":[1,1,1]}", "differ in the least pixels"},
        {"{\"min_pixels\":100,\"max_pixels\":201,\"image_mean\":[0,0,0],"
         "\"image_std\":[1,1,1]}", "differ in the most pixels"},
        {"{\"min_pixels\":100,\"max_pixels\":200,\"image_mean\":[0,0,1],"
         "\"image_std\":[1,1,1]}", "differ in image_mean"},
        {"{\"min_pixels\":100,\"max_pixels\":200,\"image_mean\":[0,0,0]}",
         "differ in image_std"},        /* what is not said is the family's value */
    };
    for (int i = 0; i < COUNT(other); i++) {
        const char *text = arena_text(&a, "{\"image_processor\":%s}", other[i][0]);
        p = preset;
        p.std[1] = 1, p.std[2] = 2;
        assert_fails(processor(&a, one, text, &p), other[i][1]);
        assert_non_null(strstr(fail_message(), "/preprocessor_config.json and "));
        assert_non_null(strstr(fail_message(), "/processor_config.json differ"));
    }
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_30b),      cmocka_unit_test(test_235b),
        cmocka_unit_test(test_spellings), cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_dense),    cmocka_unit_test(test_which_layers_are_moe),
        cmocka_unit_test(test_refused),  cmocka_unit_test(test_any_key_may_be_missing),
        cmocka_unit_test(test_said_twice), cmocka_unit_test(test_wild_numbers),
        cmocka_unit_test(test_processor), cmocka_unit_test(test_both_processors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
