/* generate.c - greedy decoding of many prompts in packed rows. */
#include "train/generate.h"

#include "base/text.h"
#include "data/encode.h"
#include "train/left_out.h"

const char *sample_answer(const struct sample *s, struct arena *a)
{
    for (int i = 0; i < s->nmessage; i++) {
        if (s->message[i].role != ROLE_ASSISTANT)
            continue;
        struct text t = text_make(a);
        for (int k = 0; k < s->message[i].npiece; k++)
            text_add(&t, "%s", s->message[i].piece[k].text);
        return t.at;
    }
    return NULL;
}

const char *sample_prompt(const struct sample *s, struct arena *a)
{
    struct text t = text_make(a);
    for (int i = 0; i < s->nmessage && s->message[i].role != ROLE_ASSISTANT; i++)
        for (int k = 0; k < s->message[i].npiece; k++) {
            const struct piece *p = &s->message[i].piece[k];
            text_add(&t, "%s", p->image >= 0 ? "<image>" : p->text);
        }
    return t.at;
}

/* Prompt tokens and images of a sample, with room for the answer behind. */
static bool prompt_encode(struct session *s, struct arena *a,
                          const struct sample *sample, int most_tokens,
                          struct encoded *out)
{
    const struct loader_options *o = &s->loader;
    struct dialogue d = {0};
    int *tokens = NEW(a, int, sample->nimage + 1),
        cell = o->image.merge * o->image.merge;
    *out = (struct encoded){.name = sample->name, .nimage = sample->nimage,
                            .image = NEW(a, struct patches, sample->nimage + 1)};
    for (int i = 0; i < sample->nimage; i++) {
        struct bytes file;
        if (!image_source_read(a, &sample->image[i], &file))
            return false;
        if (!image_load(a, file, o->exif, &o->limits, &o->image, &out->image[i]))
            return fail_in("image %s", sample->image[i].name);
        int patches = out->image[i].grid_h * out->image[i].grid_w;
        out->patches += patches;
        tokens[i] = patches / cell;
    }
    if (!chat_encode(o->chat, a, sample, tokens, true, &d))
        return fail_in("%s", sample->name);
    out->tokens = (int)d.input.count;
    out->input = NEW(a, int32_t, out->tokens + most_tokens + 1);
    out->scored = NEW(a, bool, out->tokens + most_tokens + 1);
    memcpy(out->input, d.input.at, sizeof *out->input * (size_t)out->tokens);
    return true;
}

/* Read, decode and measure one sample as training would; its pixels are not kept. */
static enum cause sample_try(struct session *s, const struct mix_part *part,
                             int64_t index, struct arena *a, struct sample *out)
{
    struct arena scratch = arena_make("sample");
    struct loader_options o = s->loader;
    struct encoded e;
    o.too_long = LONG_DROP;             /* generate() does not shrink images */
    enum cause cause = CAUSE_BAD;
    *out = (struct sample){
        .name = arena_text(a, "%s[%lld]", part->name, (long long)index)};
    if (source_read(part->source, index, a, out))
        cause = sample_encode(&o, out, &scratch, &scratch, &e);
    arena_free(&scratch);
    return cause;
}

bool samples_pick(struct session *s, const struct mix *mix, int64_t count,
                  struct arena *a, struct sample *sample, int *n)
{
    int64_t end = MIN(mix_epoch_samples(mix), count + s->loader.bad_limit);
    *n = 0;
    for (int64_t p = 0; *n < count && p < end; p++) {
        struct mix_place at = mix_at(mix, p);
        struct sample *out = &sample[*n];
        enum cause cause = sample_try(s, mix_part(mix, at.part), at.index, a, out);
        if (cause == CAUSE_NONE || cause == CAUSE_NO_LOSS)
            ++*n;
        else if (cause == CAUSE_BAD && s->loader.bad == BAD_FAIL)
            return fail_in("sample %s", out->name) || fail_kind(FAULT_DATA);
        else
            left_out_say(s, out->name, fail_message());
    }
    return true;
}

struct batch {                          /* prompts still being answered */
    struct session *s;
    struct view_of_model *view;
    struct row_shape shape;
    struct encoded *encoded;
    int count, *start;                  /* tokens of each prompt */
    bool *ended;
};

/* One more token for the samples of `ticket`, which share a row. */
static bool row_advance(struct batch *b, const int64_t *ticket, int count)
{
    struct arena a = arena_make("row");
    const struct encoded **e = NEW(&a, const struct encoded *, count);
    int32_t *want = NEW(&a, int32_t, b->shape.tokens);
    struct row row;
    int at = 0;
    for (int i = 0; i < count; i++) {
        e[i] = &b->encoded[ticket[i]];
        at += e[i]->tokens;
        want[at - 1] = 1;
    }
    row_fill(&a, &b->shape, e, count, &row);
    const struct row *one = &row;
    bool ok = session_rows(b->s, b->view, &one, 1, want, NULL);
    at = 0;
    for (int i = 0; ok && i < count; i++) {
        struct encoded *x = &b->encoded[ticket[i]];
        int32_t id = b->view->best[(at += x->tokens) - 1];
        b->ended[ticket[i]] = id == b->s->chat.im_end || id == b->s->model.config.eos;
        if (!b->ended[ticket[i]])
            x->input[x->tokens++] = id;
    }
    arena_free(&a);
    return ok;
}

static bool open_ended(const struct batch *b, int i, int most_tokens)
{
    return !b->ended[i] && b->encoded[i].tokens < b->start[i] + most_tokens &&
           b->encoded[i].tokens < b->shape.tokens;
}

/* One more token for every open sample; *more says whether any was open. */
static bool batch_advance(struct batch *b, int most_tokens, bool *more)
{
    struct arena a = arena_make("batch");
    int64_t *ticket = NEW(&a, int64_t, b->shape.segments);
    struct packer *p = packer_make(&a, &b->shape, b->count);
    bool ok = true;
    int n;
    *more = false;
    for (int i = 0; i < b->count; i++)
        if (open_ended(b, i, most_tokens)) {
            *more = true;
            REQUIRE(packer_offer(p, i, b->encoded[i].tokens, b->encoded[i].patches,
                                 b->encoded[i].nimage));
        }
    while (ok && (n = packer_take(p, true, ticket, b->shape.segments)) > 0)
        ok = row_advance(b, ticket, n);
    arena_free(&a);
    return ok;
}

bool generate(struct session *s, struct view_of_model *view, struct arena *a,
              const struct sample *sample, int count, int most_tokens,
              struct answer *out)
{
    struct batch b = {
        .s = s,
        .view = view,
        .shape = row_shape_of(&view->model.capacity, &s->model.config),
        .encoded = NEW(a, struct encoded, count),
        .count = count,
        .start = NEW(a, int, count),
        .ended = NEW(a, bool, count),
    };
    for (int i = 0; i < count; i++) {
        if (!prompt_encode(s, a, &sample[i], most_tokens, &b.encoded[i]))
            return fail_kind(FAULT_DATA);
        b.start[i] = b.encoded[i].tokens;
        if (b.start[i] > b.shape.tokens || b.encoded[i].patches > b.shape.patches) {
            fail("generate: %s needs %d tokens and %d patches, a row holds %d and %d "
                 "(raise "
                 "batch.tokens, batch.patches or lower data.max_pixels)",
                 sample[i].name, b.start[i], b.encoded[i].patches, b.shape.tokens,
                 b.shape.patches);
            return fail_kind(FAULT_DATA);
        }
    }
    for (bool more = true; more;)
        if (!batch_advance(&b, most_tokens, &more))
            return false;
    for (int i = 0; i < count; i++) {
        int n = b.encoded[i].tokens - b.start[i];
        out[i] = (struct answer){
            .text = tokenizer_decode(s->tokenizer, a, b.encoded[i].input + b.start[i],
                                     n, false),
            .tokens = n,
            .ended = b.ended[i]};
    }
    return true;
}
