/* row.c - the places of a row: ids, targets, positions, features, patches and books.
 * Apart from pack.c because this touches contents, and that only sizes. */
#include "data/rows/pack.h"

enum { NONE = -1 };

static int features(const struct row_shape *s, const struct patches *image)
{
    REQUIRE(image->grid_h > 0 && image->grid_h % s->merge == 0);
    REQUIRE(image->grid_w > 0 && image->grid_w % s->merge == 0);
    return image->grid_h / s->merge * (image->grid_w / s->merge);
}

static bool is_image(const struct row_shape *s, const struct encoded *e, int t)
{
    return e->input[t] == s->image_token;
}

/* The next token where it is scored; an image token is never a target. */
static int32_t target(const struct row_shape *s, const struct encoded *e, int t)
{
    bool scored = t + 1 < e->tokens && e->scored[t + 1] && !is_image(s, e, t + 1);
    return scored ? e->input[t + 1] : NONE;
}

int sample_targets(const struct row_shape *s, const struct encoded *e)
{
    int count = 0;
    for (int t = 0; t < e->tokens; t++)
        count += target(s, e, t) != NONE;
    return count;
}

bool sample_positions(const struct row_shape *s, const struct encoded *e,
                      int32_t *position)
{
    int current = 0, t = 0, found = 0, given = 0;
    for (int i = 0; i < e->tokens; i++)
        found += is_image(s, e, i);
    for (int k = 0; k < e->nimage; k++)
        given += features(s, &e->image[k]);
    if (found != given)
        return fail("sample %s: %d image token(s) in the text, but its %d image(s) "
                    "make %d",
                    e->name, found, e->nimage, given);
    for (int k = 0; t < e->tokens;) {
        if (!is_image(s, e, t)) {
            for (int axis = 0; axis < 3; axis++)
                position[3 * t + axis] = current;
            current++, t++;
            continue;
        }
        int h = e->image[k].grid_h / s->merge, w = e->image[k].grid_w / s->merge;
        for (int i = 0; i < h * w; i++, t++) {
            if (!is_image(s, e, t))
                return fail("sample %s: image %d makes %d x %d = %d token(s), but text "
                            "follows its first %d", e->name, k + 1, h, w, h * w, i);
            position[3 * t] = current;
            position[3 * t + 1] = current + i / w;
            position[3 * t + 2] = current + i % w;
        }
        current += MAX(h, w);
        k++;
    }
    return true;
}

/* Everything before any sample: all places padding. */
static void row_empty(struct arena *a, const struct row_shape *s, int count,
                      struct row *out)
{
    int T = s->tokens, P = s->patches, F = P / (s->merge * s->merge);
    *out = (struct row){
        .input = NEW(a, int32_t, T),
        .target = NEW(a, int32_t, T),
        .position = NEW(a, int32_t, 3 * T),
        .segment = NEW(a, int32_t, s->segments + 1),
        .feature = NEW(a, int32_t, T),
        .feature_token = NEW(a, int32_t, F),
        .pixels = NEW(a, float, (int64_t)P * s->values),
        .patch = NEW(a, int32_t, 4 * (int64_t)P),
        .image = NEW(a, int32_t, s->images + 1),
        .nsample = count,
        .sample = NEW(a, struct row_sample, count),
        .ledger = {.slots = T, .patch_slots = P},
    };
    for (int t = 0; t < T; t++) {
        out->input[t] = s->pad;
        out->target[t] = out->feature[t] = NONE;
    }
    for (int f = 0; f < F; f++)
        out->feature_token[f] = NONE;
    for (int p = 0; p < P; p++)
        out->patch[4 * p + 2] = out->patch[4 * p + 3] = 1;
}

/* Coordinates of an image's patches in merge order: blocks row-major, patches of a
 * block row-major. */
static void patch_places(const struct patches *image, int merge, int32_t *patch)
{
    for (int i = 0; i < image->grid_h * image->grid_w; i++, patch += 4) {
        int block = i / (merge * merge), inside = i % (merge * merge);
        int wide = image->grid_w / merge;
        patch[0] = block / wide * merge + inside / merge;
        patch[1] = block % wide * merge + inside % merge;
        patch[2] = image->grid_h;
        patch[3] = image->grid_w;
    }
}

static void add_image(const struct row_shape *s, const struct patches *image,
                      struct row *out)
{
    struct ledger *l = &out->ledger;
    int64_t count = (int64_t)image->grid_h * image->grid_w;
    REQUIRE(l->images < s->images && l->patches + count <= s->patches);
    REQUIRE(image->values == s->values);
    patch_places(image, s->merge, out->patch + 4 * l->patches);
    memcpy(out->pixels + l->patches * s->values, image->pixels,
           sizeof(float) * (size_t)(count * s->values));
    l->patches += count;
    l->images++;
    l->attention_image += (double)count * (double)count;
    out->image[l->images] = (int32_t)l->patches;
}

static void add_tokens(const struct row_shape *s, const struct encoded *e,
                       struct row *out)
{
    struct ledger *l = &out->ledger;
    int32_t feature = (int32_t)(l->patches / (s->merge * s->merge));
    for (int t = 0; t < e->tokens; t++) {
        int place = out->live + t;
        out->input[place] = e->input[t];
        out->target[place] = target(s, e, t);
        if (is_image(s, e, t)) {
            /* Features follow one another as their tokens do: sample_positions checked
             * that both are equally many. */
            out->feature[place] = feature;
            out->feature_token[feature++] = place;
        }
        bool scored = out->target[place] != NONE;
        l->supervised += scored;
        l->image += !scored && is_image(s, e, t);
        l->context += !scored && !is_image(s, e, t);
    }
    out->live += e->tokens;
    l->attention += 0.5 * e->tokens * (e->tokens + 1.0);
}

void row_fill(struct arena *a, const struct row_shape *s,
              const struct encoded *const *sample, int count, struct row *out)
{
    REQUIRE(count <= s->segments && s->patches % (s->merge * s->merge) == 0);
    row_empty(a, s, count, out);
    struct ledger *l = &out->ledger;
    for (int i = 0; i < count; i++) {
        const struct encoded *e = sample[i];
        REQUIRE(e->tokens <= s->tokens - out->live);
        if (!sample_positions(s, e, out->position + 3 * out->live))
            BUG("%s", fail_message());
        add_tokens(s, e, out);
        for (int k = 0; k < e->nimage; k++)
            add_image(s, &e->image[k], out);
        out->segment[i + 1] = out->live;
        out->sample[i] = (struct row_sample){
            .name = arena_copy(a, e->name, strlen(e->name)),
            .id = e->id, .position = e->position, .part = e->part,
            .tokens = e->tokens, .images = e->nimage,
        };
        l->samples++;
        l->mock += e->mock;
        l->shrunk += e->shrunk;
        l->cut += e->cut;
        l->lost += e->lost;
    }
    for (int i = count; i < s->segments; i++)
        out->segment[i + 1] = out->live;
    for (int64_t i = l->images; i < s->images; i++)
        out->image[i + 1] = (int32_t)l->patches;
    l->padding = s->tokens - out->live;
    l->patch_padding = s->patches - l->patches;
}
