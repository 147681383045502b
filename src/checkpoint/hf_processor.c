/* hf_processor.c - the processor's files to numbers: preprocessor_config.json as it has
 * always been, or image_processor in processor_config.json, which is all that
 * transformers 5 writes. */
#include "checkpoint/hf.h"
#include "checkpoint/hf_json.h"

#include <inttypes.h>

static const char old_name[] = "preprocessor_config.json";
static const char new_name[] = "processor_config.json";
static const char inner[] = "image_processor";

/* shortest_edge and longest_edge are pixel counts, not edges; min_pixels and max_pixels
 * beside `size` override them. */
static bool processor_read(struct reader *r, struct hf_processor *out)
{
    int least = (int)out->min_pixels, most = (int)out->max_pixels;
    if (field(r, "size")) {
        struct reader s = section(r, "size", "size.");
        least = read_int(&s, "shortest_edge", least, 1, 1 << 30);
        most = read_int(&s, "longest_edge", most, 1, 1 << 30);
        r->ok = s.ok;
    }
    out->min_pixels = read_int(r, "min_pixels", least, 1, 1 << 30);
    out->max_pixels = read_int(r, "max_pixels", most, 1, 1 << 30);
    read_channels(r, "image_mean", -1e6, out->mean);
    read_channels(r, "image_std", 1e-6, out->std);
    read_int(r, "patch_size", out->patch, out->patch, out->patch);
    read_int(r, "temporal_patch_size", out->frames, out->frames, out->frames);
    read_int(r, "merge_size", out->merge, out->merge, out->merge);
    only_bool(r, "do_resize", true);
    only_bool(r, "do_rescale", true);
    only_bool(r, "do_normalize", true);
    only_bool(r, "do_convert_rgb", true);
    only_real(r, "rescale_factor", 1.0 / 255);
    only_real(r, "resample", 3);
    return r->ok && (out->min_pixels <= out->max_pixels ||
                     fail("config: %s: min_pixels %" PRId64 " is above max_pixels %"
                          PRId64, r->file, out->min_pixels, out->max_pixels));
}

/* One of the two files onto `out`, if it is there and says anything of images: before
 * transformers 5 the new one held the names of classes alone. */
static bool file_take(struct arena *a, const char *folder, const char *name,
                      struct hf_processor *out)
{
    struct bytes text;
    json_t *all;
    char *path = path_join(a, folder, name);
    if (!file_exists(path))
        return true;
    if (!file_read(a, path, CONFIG_MOST, &text) ||
        !json_read(path, text.at, text.size, &all))
        return false;
    struct reader r = {path, "", all, true, NULL};
    bool ok = true;
    if (name == old_name || field(&r, inner)) {
        struct reader s = r;
        if (name != old_name)
            s = section(&r, inner, "image_processor.");
        ok = processor_read(&s, out);
        out->file = path;
    }
    json_decref(all);
    return ok;
}

static bool differ(const struct hf_processor *x, const struct hf_processor *y,
                   const char *key)
{
    return fail("config: %s and %s differ in %s; expected the same, or one file alone",
                x->file, y->file, key);
}

/* The patches are the config's in both. */
static bool same(const struct hf_processor *x, const struct hf_processor *y)
{
    if (x->min_pixels != y->min_pixels)
        return differ(x, y, "the least pixels (size.shortest_edge or min_pixels)");
    if (x->max_pixels != y->max_pixels)
        return differ(x, y, "the most pixels (size.longest_edge or max_pixels)");
    if (memcmp(x->mean, y->mean, sizeof x->mean))
        return differ(x, y, "image_mean");
    return !memcmp(x->std, y->std, sizeof x->std) || differ(x, y, "image_std");
}

bool hf_processor_read(struct arena *a, const char *folder, struct hf_processor *out)
{
    struct hf_processor old = *out, new = *out;
    old.file = new.file = NULL;
    bool ok = file_take(a, folder, old_name, &old) &&
              file_take(a, folder, new_name, &new) &&
              (!old.file || !new.file || same(&old, &new));
    if (ok)
        *out = new.file ? new : old;
    return ok || fail_kind(FAULT_CHECKPOINT);
}
