/* encode.c - sizes first, pixels last: what does not fit costs no decoding, text that
 * cannot fit no tokens, and images are made smaller by asking for fewer pixels, never
 * by cutting. */
#include "data/rows/encode.h"

struct draft {                          /* a sample; its images known by size only */
    const struct sample *sample;
    struct bytes *file;                 /* [nimage] */
    int *width, *height;                /* [nimage] as decoded */
    int *tokens;                        /* [nimage] after resizing to `shape` */
    struct image_shape shape;
    int text;                           /* tokens that no image stands for */
    int64_t image_tokens, patches;      /* of all images */
    int64_t largest;                    /* pixels of the largest resized image */
};

static bool draft_open(const struct loader_options *o, const struct sample *s,
                       struct arena *scratch, struct draft *d)
{
    *d = (struct draft){
        .sample = s,
        .file = NEW(scratch, struct bytes, s->nimage),
        .width = NEW(scratch, int, s->nimage),
        .height = NEW(scratch, int, s->nimage),
        .tokens = NEW(scratch, int, s->nimage),
        .shape = o->image,
    };
    for (int k = 0; k < s->nimage; k++) {
        if (!image_source_read(scratch, &s->image[k], &d->file[k]))
            return false;
        if (!image_size(d->file[k], o->rules, &o->limits, &d->width[k], &d->height[k]))
            return fail_in("image %s", s->image[k].name);
    }
    return true;
}

/* What the images come to under d->shape. */
static bool draft_measure(struct draft *d)
{
    int64_t patch = d->shape.patch, merge = d->shape.merge;
    d->image_tokens = d->patches = d->largest = 0;
    for (int k = 0; k < d->sample->nimage; k++) {
        int width, height;
        if (!image_target(&d->shape, d->width[k], d->height[k], &width, &height))
            return fail_in("image %s", d->sample->image[k].name);
        int64_t pixels = (int64_t)width * height, patches = pixels / (patch * patch);
        d->tokens[k] = (int)(patches / (merge * merge));
        d->image_tokens += d->tokens[k];
        d->patches += patches;
        d->largest = MAX(d->largest, pixels);
    }
    return true;
}

static bool draft_fits(const struct draft *d, const struct row_shape *row)
{
    return d->text + d->image_tokens <= row->tokens && d->patches <= row->patches &&
           d->sample->nimage <= row->images;
}

/* Lower the limit of pixels an image, so the largest images give first, in small steps
 * until the sample fits. */
static bool draft_shrink(struct draft *d, const struct row_shape *row)
{
    if (d->sample->nimage > row->images)
        return false;
    while (!draft_fits(d, row)) {
        int64_t pixels = MIN(d->shape.max_pixels, d->largest) / 16 * 15;
        if (!d->sample->nimage || pixels < d->shape.min_pixels)
            return false;
        d->shape.max_pixels = pixels;
        if (!draft_measure(d))
            return false;
    }
    return true;
}

static bool too_long(const struct draft *d, const struct row_shape *row)
{
    return fail("too long: %lld token(s) (%d text, %lld image), %lld patch(es), %d "
                "image(s); "
                "a row holds %d token(s), %d patch(es), %d image(s)",
                (long long)(d->text + d->image_tokens), d->text,
                (long long)d->image_tokens, (long long)d->patches, d->sample->nimage,
                row->tokens, row->patches, row->images);
}

/* Tokens that would carry loss. */
static int scored_count(const struct dialogue *chat)
{
    int count = 0;
    for (int64_t i = 1; i < chat->input.count; i++)
        count += chat->scored[i];
    return count;
}

/* Has it more text than any tokens of a row can stand for?  Then it is not tokenized:
 * that takes 50 times its memory. */
static bool far_too_long(const struct loader_options *o, const struct sample *s)
{
    int64_t bytes = 0;
    for (int i = 0; i < s->nmessage; i++)
        for (int k = 0; k < s->message[i].npiece; k++) {
            const char *text = s->message[i].piece[k].text;
            bytes += text ? (int64_t)strlen(text) : 0;
        }
    int64_t least = tokenizer_least(o->chat->tokenizer, bytes);
    if (least > o->shape.tokens)
        fail("too long: %lld byte(s) of text are at least %lld token(s); a row holds "
             "%d",
             (long long)bytes, (long long)least, o->shape.tokens);
    return least > o->shape.tokens;
}

/* Leave out the end of the text: never an image, so all of them must lie within a row,
 * and never all that is to be learnt. */
static bool draft_cut(const struct draft *d, const struct loader_options *o,
                      struct dialogue *chat, struct encoded *out)
{
    int64_t images = 0;                 /* end here */
    for (int64_t i = 0; i < chat->input.count; i++)
        if (chat->input.at[i] == o->chat->vision_end)
            images = i + 1;
    if (images > o->shape.tokens || d->patches > o->shape.patches ||
        d->sample->nimage > o->shape.images)
        return false;
    int all = scored_count(chat);
    struct dialogue whole = *chat;
    chat->input.count = o->shape.tokens;
    out->lost = all - scored_count(chat);
    if (out->lost < all || !all)
        return true;
    *chat = whole;
    return false;
}

/* Nothing of it is an answer to be learnt: why not? */
static bool no_loss(const struct sample *s)
{
    int answers = 0, silent = 0;
    for (int i = 0; i < s->nmessage; i++) {
        answers += s->message[i].role == ROLE_ASSISTANT;
        silent += s->message[i].role == ROLE_ASSISTANT && s->message[i].silent;
    }
    if (answers == 0)
        return fail("no loss: it has no assistant turn (%d message(s)); are the roles "
                    "right?", s->nmessage);
    if (silent == answers)
        return fail("no loss: none of its %d assistant turn(s) is to be trained on",
                    answers);
    return fail("no loss: its assistant turns are empty");
}

/* What the images will be. */
static void draft_grids(const struct draft *d, struct arena *item, struct encoded *out)
{
    const struct image_shape *s = &d->shape;
    out->nimage = d->sample->nimage;
    out->patches = (int)d->patches;
    out->max_pixels = s->max_pixels;
    out->image = NEW(item, struct patches, out->nimage);
    for (int k = 0; k < out->nimage; k++) {
        int width, height;
        if (!image_target(s, d->width[k], d->height[k], &width, &height))
            BUG("%s", fail_message());          /* draft_measure did it before */
        out->image[k] = (struct patches){
            .grid_h = height / s->patch, .grid_w = width / s->patch,
            .values = 3 * s->frames * s->patch * s->patch};
    }
}

enum cause sample_measure(const struct loader_options *o, const struct sample *s,
                          struct arena *scratch, struct arena *item,
                          struct bytes **file, struct encoded *out)
{
    struct draft d;
    struct dialogue chat;
    *file = NULL;
    *out = (struct encoded){
        .name = arena_copy(item, s->name, strlen(s->name)),
        .id = s->id, .position = -1, .part = -1, .mock = s->mock,
    };
    if (far_too_long(o, s))
        return CAUSE_TOO_LONG;
    if (!draft_open(o, s, scratch, &d) || !draft_measure(&d) ||
        !chat_encode(o->chat, item, s, d.tokens, false, &chat))
        return CAUSE_BAD;
    if (chat.input.count <= 0) {
        fail("no token in it");
        return CAUSE_BAD;
    }
    d.text = (int)(MIN(chat.input.count, INT32_MAX) - d.image_tokens);
    if (!draft_fits(&d, &o->shape)) {
        out->shrunk = o->too_long == LONG_SHRINK && draft_shrink(&d, &o->shape);
        out->cut = o->too_long == LONG_CUT && draft_cut(&d, o, &chat, out);
        if (!out->shrunk && !out->cut) {
            out->lost = scored_count(&chat);
            too_long(&d, &o->shape);
            return CAUSE_TOO_LONG;
        }
        if (out->shrunk && !chat_encode(o->chat, item, s, d.tokens, false, &chat))
            return CAUSE_BAD;
    }
    out->tokens = (int)chat.input.count;
    out->input = chat.input.at;
    out->scored = chat.scored;
    out->special = (int)chat.special;
    draft_grids(&d, item, out);
    *file = d.file;
    if (!sample_positions(&o->shape, out, NEW(scratch, int32_t, 3 * out->tokens)))
        return CAUSE_BAD;
    if (sample_targets(&o->shape, out))
        return CAUSE_NONE;
    no_loss(s);
    return CAUSE_NO_LOSS;
}

bool sample_load(const struct loader_options *o, const struct sample *s,
                 const struct bytes *file, struct arena *item, struct encoded *out)
{
    struct image_shape shape = o->image;
    shape.max_pixels = out->max_pixels;
    for (int k = 0; k < out->nimage; k++) {
        struct patches *want = &out->image[k], is;
        if (!image_load(item, file[k], o->rules, &o->limits, &shape, &is))
            return fail_in("image %s", s->image[k].name);
        if (is.grid_h != want->grid_h || is.grid_w != want->grid_w)
            return fail("image %s: it changed while its sample waited for its row",
                        s->image[k].name);
        *want = is;
    }
    return true;
}

enum cause sample_encode(const struct loader_options *o, const struct sample *s,
                         struct arena *scratch, struct arena *item,
                         struct encoded *out)
{
    struct bytes *file;
    struct failure why;
    enum cause cause = sample_measure(o, s, scratch, item, &file, out);
    if (cause == CAUSE_NO_LOSS)
        fail_take(&why);
    if (cause != CAUSE_NONE && cause != CAUSE_NO_LOSS)
        return cause;
    if (!sample_load(o, s, file, item, out))
        return CAUSE_BAD;
    if (cause == CAUSE_NO_LOSS)
        fail_raise(&why);
    return cause;
}

bool loader_encode(const struct loader_options *o, const struct sample *s,
                   struct arena *item, struct encoded *out)
{
    struct arena scratch = arena_make("sample");
    enum cause cause = sample_encode(o, s, &scratch, item, out);
    arena_free(&scratch);
    if (cause == CAUSE_NONE || cause == CAUSE_NO_LOSS)
        return true;
    fail_in("sample %s", s->name);
    return fail_kind(FAULT_DATA);
}
