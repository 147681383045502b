/* test_model_config.c - numbers that do not fit together are named, both of them. */
#include "check.h"

#include "tests/model/case.h"

#define BROKEN(change, part)                                                           \
    do {                                                                               \
        struct model_config c = case_config();                                         \
        assert_ok(model_config_check(&c));                                             \
        change;                                                                        \
        assert_fails(model_config_check(&c), part);                                    \
    } while (0)

static void test_decoder(void **state)
{
    (void)state;
    BROKEN(c.decoder.layers = 0, "num_hidden_layers is 0");
    BROKEN(c.decoder.layers = MAX_LAYERS + 1, "257");
    BROKEN(c.decoder.groups = 3,
           "num_attention_heads 4 is no multiple of num_key_value_heads 3");
    BROKEN(c.decoder.head_width = 15, "head_dim 15 is odd");
    BROKEN(c.decoder.section[1] = 3, "sums to 9, expected half of head_dim 16");
    BROKEN((c.decoder.section[0] = 9, c.decoder.section[1] = -3),
           "mrope_section has -3");
    BROKEN(c.decoder.active = 7, "num_experts_per_tok 7 is above num_experts 6");
    BROKEN(c.decoder.expert_hidden = 0, "moe_intermediate_size is 0");
    BROKEN(c.decoder.shared_hidden = -1, "shared_expert_intermediate_size is -1");
    BROKEN(c.decoder.hidden = 0, "intermediate_size is 0, and 1 layer dense");
    BROKEN(c.decoder.theta = 0, "rope_theta 0");
    BROKEN(c.decoder.eps = -1, "rms_norm_eps -1");
    BROKEN(c.decoder.theta = NAN, "rope_theta");
    BROKEN(c.eos[c.neos++] = 64, "eos_token_id is 64, vocab_size is 64");
    BROKEN(c.image_token = -1, "image_token_id is -1");
}

static void test_vision(void **state)
{
    (void)state;
    BROKEN(c.vision.heads = 5, "hidden_size 32 is no multiple of num_heads 5");
    BROKEN(c.vision.heads = 16, "head width 2");
    BROKEN(c.vision.positions = 37, "num_position_embeddings 37 is no square");
    BROKEN(c.vision.tap[1] = 5, "has 5, vision depth is 5");
    BROKEN(c.vision.tap[1] = 1, "has 1 after 1");
    BROKEN(c.vision.taps = MAX_TAPS + 1, "17 deepstack_visual_indexes");
    BROKEN(c.vision.out = 32,
           "out_hidden_size 32 differs from the decoder's hidden_size 24");
    BROKEN(c.decoder.layers = 1,
           "2 deepstack_visual_indexes, but only num_hidden_layers 1");
    BROKEN(c.vision.merge = 0, "spatial_merge_size is 0");
    BROKEN(c.vision.eps = 0, "eps 0");
}

static void test_text_only_needs_no_vision(void **state)
{
    (void)state;
    struct model_config c = case_config();
    c.has_vision = false;
    c.vision = (struct vision_config){0};
    assert_ok(model_config_check(&c));
    c = case_config();
    assert_int_equal(vision_patch_values(&c.vision), 96);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decoder),
        cmocka_unit_test(test_vision),
        cmocka_unit_test(test_text_only_needs_no_vision),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
