/* choices.c - switches without default: the compiler asks for what is left out. */
#include "train/choices.h"

enum dtype dtype_of_moments(enum precision_moments c)
{
    switch (c) {
    case precision_moments_f32: return DTYPE_F32;
    case precision_moments_bf16: return DTYPE_BF16;
    }
    BUG("precision_moments %d", (int)c);
}

enum dtype dtype_of_gradients(enum precision_gradients c)
{
    switch (c) {
    case precision_gradients_f32: return DTYPE_F32;
    case precision_gradients_bf16: return DTYPE_BF16;
    }
    BUG("precision_gradients %d", (int)c);
}

enum dtype dtype_of_wire(enum parallel_gradient_dtype c)
{
    switch (c) {
    case parallel_gradient_dtype_f32: return DTYPE_F32;
    case parallel_gradient_dtype_bf16: return DTYPE_BF16;
    }
    BUG("parallel_gradient_dtype %d", (int)c);
}

enum dtype dtype_of_export(enum checkpoint_dtype c)
{
    switch (c) {
    case checkpoint_dtype_f32: return DTYPE_F32;
    case checkpoint_dtype_bf16: return DTYPE_BF16;
    }
    BUG("checkpoint_dtype %d", (int)c);
}

enum expert_layout experts_of(enum checkpoint_experts c)
{
    switch (c) {
    case checkpoint_experts_auto: return EXPERTS_AUTO;
    case checkpoint_experts_released: return EXPERTS_RELEASED;
    case checkpoint_experts_transformers: return EXPERTS_TRANSFORMERS;
    }
    BUG("checkpoint_experts %d", (int)c);
}

enum dispatcher dispatcher_of(enum moe_dispatcher c)
{
    switch (c) {
    case moe_dispatcher_alltoall: return DISPATCHER_ALLTOALL;
    case moe_dispatcher_allgather: return DISPATCHER_ALLGATHER;
    }
    BUG("moe_dispatcher %d", (int)c);
}

enum template_choice template_of(enum model_template c)
{
    switch (c) {
    case model_template_auto: return TEMPLATE_AUTO;
    case model_template_qwen3_vl: return TEMPLATE_OURS;
    case model_template_folder: return TEMPLATE_FOLDER;
    }
    BUG("model_template %d", (int)c);
}

enum special special_of(enum data_special c)
{
    switch (c) {
    case data_special_keep: return SPECIAL_KEEP;
    case data_special_text: return SPECIAL_TEXT;
    }
    BUG("data_special %d", (int)c);
}

enum long_policy long_of(enum data_too_long c)
{
    switch (c) {
    case data_too_long_drop: return LONG_DROP;
    case data_too_long_shrink: return LONG_SHRINK;
    case data_too_long_cut: return LONG_CUT;
    case data_too_long_error: return LONG_ERROR;
    }
    BUG("data_too_long %d", (int)c);
}

enum bad_policy bad_of(enum data_bad c)
{
    switch (c) {
    case data_bad_skip: return BAD_SKIP;
    case data_bad_fail: return BAD_FAIL;
    }
    BUG("data_bad %d", (int)c);
}

enum exif_rule exif_of(enum data_exif c)
{
    switch (c) {
    case data_exif_apply: return EXIF_APPLY;
    case data_exif_ignore: return EXIF_IGNORE;
    }
    BUG("data_exif %d", (int)c);
}

enum alpha_rule alpha_of(enum data_alpha c)
{
    switch (c) {
    case data_alpha_white: return ALPHA_WHITE;
    case data_alpha_drop: return ALPHA_DROP;
    }
    BUG("data_alpha %d", (int)c);
}

enum resize_rule resize_of(enum data_resize_rule c)
{
    switch (c) {
    case data_resize_rule_torchvision: return RESIZE_TORCHVISION;
    case data_resize_rule_pil: return RESIZE_PIL;
    }
    BUG("data_resize_rule %d", (int)c);
}

bool balances(enum vision_balance c)
{
    switch (c) {
    case vision_balance_none: return false;
    case vision_balance_images: return true;
    }
    BUG("vision_balance %d", (int)c);
}

bool reduces_each(enum parallel_reduce c)
{
    switch (c) {
    case parallel_reduce_each: return true;
    case parallel_reduce_last: return false;
    }
    BUG("parallel_reduce %d", (int)c);
}
