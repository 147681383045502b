/* image_shape.h - what a model makes of an image: its tower's patches, its processor's
 * limits and levels. */
#ifndef TRAIN_IMAGE_SHAPE_H
#define TRAIN_IMAGE_SHAPE_H

#include "data/image/image.h"
#include "graph/config.h"

/* By the processor's file in the model folder, where there is one, else the family's
 * values (`folder` NULL: those); limits given here (not 0) go first.  `from` says whose
 * limits they are. */
struct image_limits_given { int64_t min_pixels, max_pixels; };
MUST_USE bool image_shape_read(struct arena *a, const char *folder,
                               const struct vision_config *v,
                               struct image_limits_given given,
                               struct image_shape *out, const char **from);

#endif
