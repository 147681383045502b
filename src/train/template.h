/* template.h - the chat template that a model folder brings, beside the one that is
 * written here.
 *
 * Stands alone because no template is run: it is looked at for what tells its family.
 */
#ifndef TRAIN_TEMPLATE_H
#define TRAIN_TEMPLATE_H

#include "base/arena.h"

/* model.template: AUTO warns where the folder has another template than ours, OURS
 * takes ours without a word, FOLDER fails (FAULT_USAGE) where the folder has another.
 * A folder without any has ours. */
enum template_choice { TEMPLATE_AUTO, TEMPLATE_OURS, TEMPLATE_FOLDER };
MUST_USE bool template_check(struct arena *a, const char *folder,
                             enum template_choice choice);

#endif
