/* image_shape.c - a model folder's processor meets its vision tower. */
#include "train/image_shape.h"

#include "checkpoint/hf.h"

#include <inttypes.h>

/* Who said so. */
static const char *source_of(struct arena *a, const char *folder, const char *file,
                             struct image_limits_given g)
{
    const char *family = "the model family; --model names a folder";
    if (folder)
        family = arena_text(a, "the model family, %s has no processor file", folder);
    const char *rest = file ? file : family;
    if (g.min_pixels && g.max_pixels)
        return "as given";
    return g.min_pixels || g.max_pixels ? arena_text(a, "one as given, else %s", rest)
                                        : rest;
}

bool image_shape_read(struct arena *a, const char *folder,
                      const struct vision_config *v, struct image_limits_given given,
                      struct image_shape *out, const char **from)
{
    struct image_shape s = image_shape_default;
    struct hf_processor p = {.min_pixels = s.min_pixels, .max_pixels = s.max_pixels,
                             .patch = v->patch, .frames = v->frames, .merge = v->merge};
    memcpy(p.mean, s.mean, sizeof p.mean);
    memcpy(p.std, s.std, sizeof p.std);
    if (folder && !hf_processor_read(a, folder, &p))
        return false;
    s.patch = v->patch;
    s.frames = v->frames;
    s.merge = v->merge;
    s.min_pixels = given.min_pixels ? given.min_pixels : p.min_pixels;
    s.max_pixels = given.max_pixels ? given.max_pixels : p.max_pixels;
    memcpy(s.mean, p.mean, sizeof p.mean);
    memcpy(s.std, p.std, sizeof p.std);
    *from = source_of(a, folder, p.file, given);
    *out = s;
    if (s.min_pixels <= s.max_pixels)
        return true;
    fail("data: least pixels %" PRId64 " are above most pixels %" PRId64 " (%s)",
         s.min_pixels, s.max_pixels, *from);
    return fail_kind(FAULT_USAGE);
}
