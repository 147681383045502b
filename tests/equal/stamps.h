/* stamps.h - packed rows of real images for the matrix: pictures of the stamps package
 * in conversations with none to three of them, read, decoded, tokenized and packed by
 * the product's own code.  Apart from matrix.h because it needs all of `data`. */
#ifndef TESTS_EQUAL_STAMPS_H
#define TESTS_EQUAL_STAMPS_H

#include "equal/layouts.h"

#include "base/text.h"
#include "data/rows/encode.h"
#include "data/source/source.h"

enum { STAMP_SAMPLES = 32, STAMP_WINDOW = 8 };

/* The quickstart's tokenizer; patches of 4 x 4 pixels. */
static inline struct model_config stamps_config(void)
{
    struct model_config c = layout_config();
    c.decoder.vocabulary = 1280;
    c.image_token = 1274;
    c.video_token = 1275;
    c.vision_start = 1272;
    c.vision_end = 1273;
    return c;
}

static inline void stamps_line(struct text *t, int i)
{
    static const char *const picture[] = {
        "birds/crow", "birds/cuckoo", "fish/moonwrasse", "birds/gander", "fish/shrimp",
        "insects/bee", "birds/penguin", "mammals/badger", "mammals/giraffe",
        "birds/peacock", "mammals/pig",
    };
    static const char *const answer[] = {
        "A crow.", "Un coucou gris dans l'herbe.", "Zwei Fische.",
        "Three, I think: two birds and a bee.",
    };
    static const int images[] = {1, 0, 2, 1, 3, 0, 1};
    text_add(t, "{\"messages\": [{\"role\": \"user\", \"content\": [");
    for (int k = 0; k < images[i % COUNT(images)]; k++)
        text_add(t, "{\"type\": \"image_url\", \"image_url\": {\"url\": \"%s.png\"}}, ",
                 picture[(i + k) % COUNT(picture)]);
    text_add(t, "{\"type\": \"text\", \"text\": \"What is this?\"}]}, {\"role\": "
             "\"assistant\", \"content\": \"%s\"}]}\n", answer[i % COUNT(answer)]);
}

static inline struct source *stamps_source(struct arena *a, const char *folder)
{
    struct text t = text_make(a);
    struct source *s;
    for (int i = 0; i < STAMP_SAMPLES; i++)
        stamps_line(&t, i);
    char *path = path_join(a, folder, "stamps.jsonl");
    assert_ok(file_replace(path, t.at, t.size));
    assert_ok(source_open(a, &(struct source_options){
        .path = path, .format = "openai",
        .images = "/usr/share/tuxpaint/stamps/animals"}, &s));
    return s;
}

/* Images of sample i have up to 4 to 20 features. */
static inline const struct encoded *stamps_sample(struct arena *a,
                                                  const struct source *from, int i,
                                                  struct loader_options o)
{
    struct sample sample;
    struct encoded *e = NEW(a, struct encoded, 1);
    int side = o.image.patch * o.image.merge;
    o.image.max_pixels = (int64_t)side * side * (4 + 4 * (i % 5));
    assert_ok(source_read(from, i, a, &sample));
    assert_ok(loader_encode(&o, &sample, a, e));
    return e;
}

/* The first `count` rows that the packer makes of them. */
static inline struct layout_rows stamps_rows(struct arena *a, int count)
{
    struct model_config c = stamps_config();
    struct layout_rows out = {
        .capacity = {.tokens = 128, .patches = 256, .segments = 4, .images = 6},
        .row = NEW(a, struct row, count)};
    struct tokenizer *tokenizer;
    struct chat chat;
    assert_ok(tokenizer_open(a, "recipes/quickstart/tokenizer.json", &tokenizer));
    assert_ok(chat_make(tokenizer, &chat));
    struct loader_options o = {
        .chat = &chat, .shape = row_shape_of(&out.capacity, &c),
        .image = image_shape_default, .limits = image_limits_default};
    o.image.patch = c.vision.patch;
    o.image.min_pixels = 64;
    char *folder = check_folder(a);
    struct source *from = stamps_source(a, folder);
    const struct encoded *sample[STAMP_SAMPLES];
    struct packer *packer = packer_make(a, &o.shape, STAMP_WINDOW);
    for (int offered = 0; out.count < count;) {
        const struct encoded *list[4];
        int64_t ticket[4];
        for (bool more = true; more && offered < STAMP_SAMPLES; offered += more) {
            const struct encoded *e = sample[offered] =
                stamps_sample(a, from, offered, o);
            more = packer_offer(packer, offered, e->tokens, e->patches, e->nimage);
        }
        int n = packer_take(packer, true, ticket, COUNT(ticket));
        if (!n)
            fail_msg("%d samples make %d rows, not %d", STAMP_SAMPLES, out.count,
                     count);
        for (int i = 0; i < n; i++)
            list[i] = sample[ticket[i]];
        struct row *r = &out.row[out.count++];
        row_fill(a, &o.shape, list, n, r);
        out.supervised += (double)r->ledger.supervised;
        out.live += r->live;
    }
    source_close(from);
    tokenizer_close(tokenizer);
    assert_ok(folder_remove(folder));
    return out;
}

#endif
