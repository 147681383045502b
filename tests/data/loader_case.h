/* loader_case.h - a folder of pictures, what reads it, and a whole run of a loader kept
 * to be compared: what the tests of the loader share. */
#ifndef TESTS_DATA_LOADER_CASE_H
#define TESTS_DATA_LOADER_CASE_H

#include "check.h"

#include "data/rows/encode.h"

#include <png.h>

enum { SIDE = 8, SAMPLES = 40 };        /* SIDE: pixels of a merged patch */

static const struct image_shape small_patches = {
    .patch = 4, .frames = 2, .merge = 2, .min_pixels = SIDE * SIDE,
    .max_pixels = 64 * SIDE * SIDE, .mean = {0.5f, 0.5f, 0.5f},
    .std = {0.5f, 0.5f, 0.5f}, .rule = RESIZE_TORCHVISION,
};

struct data {                           /* a folder of pictures and what reads them */
    struct arena arena;
    char *folder;
    struct source *source;
    struct mix *mix;
    struct tokenizer *tokenizer;
    struct chat chat;
    struct loader_options options;
};

/* ---- files ---- */

static inline void file_write(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static inline char *path_of(struct data *d, int i, const char *extension)
{
    return arena_text(&d->arena, "%s/%03d.%s", d->folder, i, extension);
}

static inline void picture_write(struct data *d, int i, int width, int height)
{
    struct arena a = arena_make("picture");
    uint8_t *rgb = NEW(&a, uint8_t, 3 * width * height);
    for (int k = 0; k < 3 * width * height; k++)
        rgb[k] = (uint8_t)(k * 7 + k / 11 * i + 31 * i);
    png_image image = {.version = PNG_IMAGE_VERSION, .format = PNG_FORMAT_RGB};
    image.width = (png_uint_32)width, image.height = (png_uint_32)height;
    assert_true(png_image_write_to_file(&image, path_of(d, i, "png"), 0, rgb, 0, NULL));
    arena_free(&a);
}

static inline void caption_write(struct data *d, int i)
{
    char text[256];
    int size = snprintf(text, sizeof text, "Picture %d", i);
    for (int k = 0; k < i % 6; k++)
        size += snprintf(text + size, sizeof text - (size_t)size, ", a small red bird");
    file_write(path_of(d, i, "txt"), text, (size_t)size);
}

/* Sample i has an image of 1..5 by 1..4 tokens and a caption of varying length. */
static inline struct data data_write(int samples)
{
    struct data d = {.arena = arena_make("test")};
    d.folder = check_folder(&d.arena);
    for (int i = 0; i < samples; i++) {
        picture_write(&d, i, SIDE * (1 + i % 5), SIDE * (1 + i % 4));
        caption_write(&d, i);
    }
    return d;
}

static inline void data_open(struct data *d)
{
    struct source_options from = {.path = d->folder, .format = "folder",
                                  .prompt = "What is this?"};
    assert_ok(source_open(&d->arena, &from, &d->source));
    struct mix_part part = {d->source, 1, "pictures"};
    assert_ok(mix_make(&d->arena, &part, 1, 7, true, 0, false, &d->mix));
    assert_ok(tokenizer_open(&d->arena, "recipes/quickstart/tokenizer.json",
                             &d->tokenizer));
    assert_ok(chat_make(d->tokenizer, &d->chat));
    d->options = (struct loader_options){
        .mix = d->mix, .chat = &d->chat,
        .shape = {.tokens = 256, .patches = 512, .segments = 16, .images = 16,
                  .values = 96, .merge = 2, .image_token = d->chat.image_pad},
        .image = small_patches, .limits = image_limits_default, .bad_limit = 10,
        .window = 8, .ahead = 2,
    };
}

static inline void data_close(struct data *d)
{
    if (d->source)
        source_close(d->source);
    assert_ok(folder_remove(d->folder));
    arena_free(&d->arena);
}

/* ---- a whole run, kept ---- */

enum { ROWS = 64, LEFT = 64 };

struct tape {
    struct arena arena;
    int rows, left;
    struct row *row[ROWS];
    struct cursor cursor[ROWS];         /* after the row */
    struct left_out left_out[LEFT];
    bool failed;
    struct ledger sum;
};

static inline void *keep(struct tape *t, const void *from, int64_t count, size_t size)
{
    return arena_copy(&t->arena, from, (size_t)count * size);
}

static inline void row_keep(struct tape *t, const struct row_shape *s,
                            const struct row *r)
{
    assert_true(t->rows < ROWS);
    struct row *to = NEW(&t->arena, struct row, 1);
    int64_t T = s->tokens, P = s->patches;
    *to = *r;
    to->input = keep(t, r->input, T, 4);
    to->target = keep(t, r->target, T, 4);
    to->position = keep(t, r->position, 3 * T, 4);
    to->segment = keep(t, r->segment, s->segments + 1, 4);
    to->feature = keep(t, r->feature, T, 4);
    to->feature_token = keep(t, r->feature_token, P / 4, 4);
    to->pixels = keep(t, r->pixels, P * s->values, sizeof(float));
    to->patch = keep(t, r->patch, 4 * P, 4);
    to->image = keep(t, r->image, s->images + 1, 4);
    to->sample = keep(t, r->sample, r->nsample, sizeof *r->sample);
    for (int i = 0; i < r->nsample; i++)
        to->sample[i].name = keep(t, r->sample[i].name, 1,
                                  strlen(r->sample[i].name) + 1);
    t->row[t->rows++] = to;
}

/* Runs to the end or the first failure. */
static inline struct tape *tape_run(const struct loader_options *o,
                                    const struct cursor *from)
{
    struct arena a = arena_make("tape");
    struct tape *t = NEW(&a, struct tape, 1);
    t->arena = a;
    struct loader *l;
    const struct row *r;
    assert_ok(loader_open(&t->arena, o, from, &l));
    for (bool end = false;;) {
        t->failed = !loader_next(l, &r, &end);
        t->left += loader_left_out(l, t->left_out + t->left, LEFT - t->left);
        if (t->failed || end)
            break;
        row_keep(t, &o->shape, r);
        loader_cursor(l, &t->cursor[t->rows - 1]);
        assert_ok(ledger_check(&r->ledger));
        ledger_add(&t->sum, &r->ledger);
    }
    assert_null(r);
    assert_true(loader_wait_seconds(l) > 0);
    loader_close(l);
    return t;
}

static inline void tape_free(struct tape *t)
{
    struct arena a = t->arena;
    arena_free(&a);
}

static inline void same_row(const struct row_shape *s, const struct row *a,
                     const struct row *b)
{
    size_t T = (size_t)s->tokens, P = (size_t)s->patches;
    assert_memory_equal(a->input, b->input, T * 4);
    assert_memory_equal(a->target, b->target, T * 4);
    assert_memory_equal(a->position, b->position, 3 * T * 4);
    assert_memory_equal(a->segment, b->segment, ((size_t)s->segments + 1) * 4);
    assert_memory_equal(a->feature, b->feature, T * 4);
    assert_memory_equal(a->feature_token, b->feature_token, P);
    assert_memory_equal(a->pixels, b->pixels, P * (size_t)s->values * sizeof(float));
    assert_memory_equal(a->patch, b->patch, 16 * P);
    assert_memory_equal(a->image, b->image, ((size_t)s->images + 1) * 4);
    assert_memory_equal(&a->ledger, &b->ledger, sizeof a->ledger);
    assert_int_equal(a->live, b->live);
    assert_int_equal(a->nsample, b->nsample);
    for (int i = 0; i < a->nsample; i++) {
        const struct row_sample *x = &a->sample[i], *y = &b->sample[i];
        assert_string_equal(x->name, y->name);
        assert_true(x->id == y->id && x->position == y->position);
        assert_true(x->part == y->part && x->tokens == y->tokens);
        assert_int_equal(x->images, y->images);
    }
}

static inline void same_cursor(const struct cursor *a, const struct cursor *b)
{
    assert_int_equal(a->position, b->position);
    assert_int_equal(a->nwaiting, b->nwaiting);
    for (int i = 0; i < a->nwaiting; i++)
        assert_int_equal(a->waiting[i], b->waiting[i]);
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->bad, b->bad);
    assert_int_equal(a->too_long, b->too_long);
    assert_int_equal(a->no_loss, b->no_loss);
    assert_int_equal(a->consecutive_bad, b->consecutive_bad);
    assert_int_equal(a->broken_in_row, b->broken_in_row);
}

/* Rows of `b` are those of `a` from row `skip` on, cursors too. */
static inline void same_tape(const struct row_shape *s, const struct tape *a, int skip,
                      const struct tape *b)
{
    assert_int_equal(a->rows - skip, b->rows);
    assert_int_equal(a->failed, b->failed);
    for (int i = 0; i < b->rows; i++) {
        same_row(s, a->row[skip + i], b->row[i]);
        same_cursor(&a->cursor[skip + i], &b->cursor[i]);
    }
}

/* Three files of every data set below are broken, so that counting is covered too. */
static inline void break_some(struct data *d)
{
    file_write(path_of(d, 7, "png"), "", 0);
    file_write(path_of(d, 8, "png"), "This is no picture.\n", 20);
    file_write(path_of(d, 30, "png"), "\x89PNG\r\n\x1a\n", 8);
}

#endif
