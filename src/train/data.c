/* data.c - sources, tokenizer, template and image shape of a session. */
#include "train/data.h"

#include "base/log.h"
#include "train/choices.h"
#include "train/image_shape.h"

#include <inttypes.h>
#include <xxhash.h>

static const char *or_null(const char *text)
{
    return *text ? text : NULL;
}

static bool sources_open(struct session *s, struct mix_part *part)
{
    const struct recipe *r = s->recipe;
    uint64_t hash[MAX_SOURCES];
    for (int i = 0; i < r->nsource; i++) {
        const struct recipe_source *x = &r->source[i];
        const struct source_options o = {
            .path = x->path,
            .format = recipe_word("data.sources.N.format", (int)x->format),
            .images = or_null(x->images),
            .prompt = or_null(x->prompt), .match = or_null(x->match), .limit = x->limit,
            .ignore = or_null(x->ignore),
        };
        if (!source_open(&s->arena, &o, &s->source[i]))
            return false;
        s->nsource++;
        hash[i] = source_hash(s->source[i]);
        part[i] =
            (struct mix_part){s->source[i], x->weight, *x->name ? x->name : x->path};
        log_info("data", "%s: %" PRId64 " sample(s) (%s)", part[i].name,
                 source_count(s->source[i]), source_format(s->source[i]));
    }
    s->data_hash = XXH3_64bits(hash, sizeof *hash * (size_t)r->nsource);
    return true;
}

static bool shape_read(struct session *s, struct image_shape *shape)
{
    const struct recipe *r = s->recipe;
    const struct vision_config *v = &s->model.config.vision;
    const struct image_limits_given given = {r->data_min_pixels, r->data_max_pixels};
    const char *from;
    if (!image_shape_read(&s->arena, r->model_path, v, given, shape, &from))
        return false;
    shape->rule = resize_of(r->data_resize_rule);
    int cell = v->patch * v->merge;
    log_info("data", "images are resized to %" PRId64 " to %" PRId64 " pixel(s) (%s), "
             "about %" PRId64 " to %" PRId64 " token(s) (sides are whole multiples of "
             "%d); a row holds %" PRId64 " token(s) and %" PRId64 " patch(es)",
             shape->min_pixels, shape->max_pixels, from,
             shape->min_pixels / cell / cell, shape->max_pixels / cell / cell, cell,
             s->model.capacity.tokens, s->model.capacity.patches);
    return true;
}

static bool tokenizer_fits(const struct session *s)
{
    const struct model_config *c = &s->model.config;
    const char *path = s->recipe->model_path;
    if (tokenizer_size(s->tokenizer) > c->decoder.vocabulary)
        return fail(
            "tokenizer: %s/tokenizer.json has ids up to %d, the model's vocabulary "
            "holds %d",
            path, tokenizer_size(s->tokenizer) - 1, c->decoder.vocabulary);
    if (s->chat.image_pad != c->image_token)
        return fail(
            "tokenizer: <|image_pad|> is id %d in %s/tokenizer.json, image_token_id "
            "in its config.json is %d",
            s->chat.image_pad, path, c->image_token);
    return true;
}

struct loader_options session_rows_ahead(const struct session *s)
{
    const struct recipe *r = s->recipe;
    return (struct loader_options){
        .shape = row_shape_of(&s->model.capacity, &s->model.config),
        .window = (int)r->data_window, .workers = (int)r->data_workers,
        .ahead = (int)r->data_ahead, .hold = (int)r->batch_rows,
    };
}

/* Of config, tokenizer and processor as they are on disk; weights are the state's. */
static bool model_hash_make(struct session *s)
{
    static const char *const name[] = {"config.json", "tokenizer.json",
                                       "preprocessor_config.json",
                                       "processor_config.json"};
    uint64_t hash[COUNT(name)] = {0};
    for (int i = 0; i < COUNT(name); i++) {
        struct bytes file;
        const char *path = path_join(&s->arena, s->recipe->model_path, name[i]);
        if (!file_exists(path))
            continue;
        if (!file_map(path, &file))
            return false;
        hash[i] = XXH3_64bits(file.at, (size_t)file.size);
        file_unmap(&file);
    }
    s->model_hash = XXH3_64bits(hash, sizeof hash);
    return true;
}

static bool text_open(struct session *s)
{
    const struct recipe *r = s->recipe;
    struct image_shape shape;
    char *path = path_join(&s->arena, r->model_path, "tokenizer.json");
    if (!tokenizer_open(&s->arena, path, &s->tokenizer) ||
        !chat_make(s->tokenizer, &s->chat) || !tokenizer_fits(s) ||
        !template_check(&s->arena, r->model_path, template_of(r->model_template)) ||
        !shape_read(s, &shape) || !model_hash_make(s))
        return false;
    s->chat.special = special_of(r->data_special);
    const struct loader_options rows = session_rows_ahead(s);
    s->loader = (struct loader_options){
        .chat = &s->chat,
        .shape = rows.shape, .image = shape,
        .limits = {r->data_pixel_limit, r->data_decode_bytes, (int)r->data_scan_limit},
        .rules = {exif_of(r->data_exif), alpha_of(r->data_alpha)},
        .too_long = long_of(r->data_too_long),
        .bad = bad_of(r->data_bad),
        .bad_limit = (int)r->data_bad_limit, .window = rows.window,
        .workers = rows.workers, .ahead = rows.ahead, .hold = rows.hold,
    };
    return true;
}

bool session_text(struct session *s)
{
    return text_open(s) || fail_kind(FAULT_DATA);
}

static bool mixes_make(struct session *s)
{
    const struct recipe *r = s->recipe;
    struct mix_part part[MAX_SOURCES];
    int hold_out = (int)r->data_hold_out;
    if (!sources_open(s, part) ||
        !mix_make(&s->arena, part, s->nsource, (uint64_t)r->run_seed, r->data_shuffle,
                  hold_out, false, &s->mix))
        return false;
    s->loader.mix = s->mix;
    return !hold_out || mix_make(&s->arena, part, s->nsource, (uint64_t)r->run_seed,
                                 false, hold_out, true, &s->held);
}

bool session_data(struct session *s)
{
    return session_text(s) && (mixes_make(s) || fail_kind(FAULT_DATA));
}
