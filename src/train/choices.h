/* choices.h - a recipe's choices as the rooms below call them.
 *
 * Stands alone because those rooms know no recipe.  No choice is mapped by its place in
 * a list: a word that nothing is made of does not compile. */
#ifndef TRAIN_CHOICES_H
#define TRAIN_CHOICES_H

#include "checkpoint/hf.h"
#include "data/rows/loader.h"
#include "decoder/decoder.h"
#include "recipe/recipe.h"
#include "train/template.h"

bool balances(enum vision_balance c);                   /* images over ranks */
bool reduces_each(enum parallel_reduce c);              /* microbatch, not the last */
enum dtype dtype_of_moments(enum precision_moments c);
enum dtype dtype_of_gradients(enum precision_gradients c);
enum dtype dtype_of_wire(enum parallel_gradient_dtype c);
enum dtype dtype_of_export(enum checkpoint_dtype c);
enum expert_layout experts_of(enum checkpoint_experts c);
enum dispatcher dispatcher_of(enum moe_dispatcher c);
enum template_choice template_of(enum model_template c);
enum special special_of(enum data_special c);
enum long_policy long_of(enum data_too_long c);
enum bad_policy bad_of(enum data_bad c);
enum exif_rule exif_of(enum data_exif c);
enum alpha_rule alpha_of(enum data_alpha c);
enum resize_rule resize_of(enum data_resize_rule c);

#endif
