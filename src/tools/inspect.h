/* inspect.h - looking at data the way training sees it; what `vlmoe data` prints. */
#ifndef TOOLS_INSPECT_H
#define TOOLS_INSPECT_H

#include "base/text.h"
#include "train/session.h"

/* The first `count` packed rows of a recipe: a line a token. */
MUST_USE bool inspect_rows(const struct recipe *r, int64_t count, struct text *t);

struct inspect_image {
    const char *out;   /* safetensors: pixel_values F32, image_grid_thw I64 */
    const char *model; /* folder whose config and processor apply, or NULL */
    const char *rule, *exif, *alpha;    /* names, or NULL: torchvision, apply, white */
    int64_t min_pixels, max_pixels;     /* 0: the processor's, else the defaults */
};
MUST_USE bool inspect_images(const struct inspect_image *o, const char *const *file,
                             int count, struct text *t);

/* Reads and encodes every sample once; each one that is bad or too long is told when it
 * is found, the report at the end, and nothing is kept until then.  Fails (data), after
 * the report, where training would stop: a bad one and data.bad fail, a long one and
 * data.too_long error, or none that can be used. */
MUST_USE bool inspect_data(const struct recipe *r, void (*tell)(const char *text));

struct inspect_pack {
    const char *from, *to, *format, *images, *ignore;      /* see source.h */
    int64_t shard_mb;
    bool skip;                          /* samples left out are no failure */
};
/* Packs what can be read and names the rest, where there is any: without `skip` nothing
 * is written then, and it fails (data). */
MUST_USE bool inspect_shards(const struct inspect_pack *o, struct text *t);

#endif
