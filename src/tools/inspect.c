/* inspect.c - prints packed rows, images, whole data sets; writes shards. */
#include "tools/inspect.h"

#include "base/clock.h"
#include "base/log.h"
#include "checkpoint/hf.h"
#include "data/rows/encode.h"
#include "data/source/shard.h"
#include "train/choices.h"
#include "train/data.h"
#include "train/image_shape.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>

/* ---- packed rows ---- */

static void piece_add(struct text *t, const char *piece)
{
    for (const char *c = piece; *c; c++)
        if (*c == '\n')
            text_add(t, "\\n");
        else if (*c == '\t')
            text_add(t, "\\t");
        else
            text_add_bytes(t, c, 1);
}

static void row_print(const struct session *s, const struct row *row, int64_t number,
                      struct text *t)
{
    struct arena a = arena_make("row");
    const struct ledger *l = &row->ledger;
    text_add(t,
             "row %" PRId64 ": %d sample(s), %" PRId64 " image(s); %" PRId64
             " supervised + %" PRId64 " context + %" PRId64 " image + %" PRId64
             " padding = %" PRId64 " slot(s); %" PRId64 " of %" PRId64 " patch(es)\n",
             number, row->nsample, l->images, l->supervised, l->context, l->image,
             l->padding, l->slots, l->patches, l->patch_slots);
    text_add(t, "%6s %-20s %8s %8s %6s  %s\n", "place", "piece", "input", "target",
             "weight", "position t,y,x; image feature");
    int sample = 0, start = 0;
    for (int i = 0; i < row->live; i++) {
        if (sample < row->nsample && i == row->segment[sample]) {
            text_add(t, "-- %s\n", row->sample[sample].name);
            start = i;
            sample++;
        }
        int32_t id = row->input[i];
        const int32_t *p = row->position + 3 * i;
        struct text piece = text_make(&a);
        piece_add(&piece, tokenizer_decode(s->tokenizer, &a, &id, 1, true));
        text_add(t, "%6d %-20s %8d %8d %6d  %d,%d,%d", i - start, piece.at, id,
                 row->target[i], row->target[i] >= 0, p[0], p[1], p[2]);
        if (row->feature[i] >= 0)
            text_add(t, "; %d", row->feature[i]);
        text_add(t, "\n");
    }
    arena_free(&a);
}

bool inspect_rows(const struct recipe *r, int64_t count, struct text *t)
{
    struct session s;
    struct loader *l = NULL;
    const struct row *row;
    bool end = false;
    bool ok = session_open(&s, r, true) && session_data(&s) &&
              loader_open(&s.arena, &s.loader, NULL, &l);
    for (int64_t i = 0; ok && !end && i < count; i++) {
        ok = loader_next(l, &row, &end);
        if (ok && !end)
            row_print(&s, row, i, t);
    }
    if (l)
        loader_close(l);
    session_close(&s);
    return ok;
}

/* ---- images ---- */

/* `name`: an option's, of the words of setting `key`, or NULL. */
static bool name_find(const char *what, const char *name, const char *key, int *out)
{
    if (!name || recipe_choice(key, name, out))
        return true;
    fail("data: %s '%s' is not known; nearest is '%s'", what, name,
         recipe_word_like(key, name));
    return fail_kind(FAULT_USAGE);
}

static bool shape_read(struct arena *a, const struct inspect_image *o,
                       struct image_shape *shape, struct image_rules *rules,
                       const char **from)
{
    int rule = data_resize_rule_torchvision, exif = data_exif_apply;
    int alpha = data_alpha_white;
    const struct image_limits_given given = {o->min_pixels, o->max_pixels};
    struct model_config c = {.vision = {.patch = image_shape_default.patch,
                                        .frames = image_shape_default.frames,
                                        .merge = image_shape_default.merge}};
    if (!name_find("rule", o->rule, "data.resize_rule", &rule) ||
        !name_find("exif", o->exif, "data.exif", &exif) ||
        !name_find("alpha", o->alpha, "data.alpha", &alpha) ||
        (o->model && !hf_config_read(a, o->model, &c)) ||
        !image_shape_read(a, o->model, &c.vision, given, shape, from))
        return false;
    shape->rule = resize_of((enum data_resize_rule)rule);
    *rules = (struct image_rules){exif_of((enum data_exif)exif),
                                  alpha_of((enum data_alpha)alpha)};
    return true;
}

/* What `data image` makes of its files, one at a time, in no more memory than one
 * takes. */
struct looking {
    const struct inspect_image *o;
    struct image_shape shape;
    struct image_rules rules;
    int64_t *grid;                      /* [files, 3], as announced in the output */
    struct safetensors_writer *out;     /* or NULL */
};

static bool file_look(struct arena *item, const struct looking *l, const char *file,
                      bool pixels, int *width, int *height, struct patches *p)
{
    const struct image_limits *limits = &image_limits_default;
    struct image_source source = {.path = file, .name = file};
    struct bytes bytes;
    int to_width, to_height;
    if (!image_source_read(item, &source, &bytes))
        return false;
    if (!image_size(bytes, l->rules, limits, width, height) ||
        !image_target(&l->shape, *width, *height, &to_width, &to_height) ||
        (pixels && !image_load(item, bytes, l->rules, limits, &l->shape, p)))
        return fail_in("image %s", file);
    p->grid_w = to_width / l->shape.patch;
    p->grid_h = to_height / l->shape.patch;
    return true;
}

/* The output's header says how much is to come: sizes first. */
static bool output_open(struct arena *a, struct looking *l, const char *const *file,
                        int count)
{
    static const char *const meta[] = {"format", "pt"};
    int64_t rows = 0, patch = l->shape.patch;
    int64_t values = 3 * l->shape.frames * patch * patch;
    l->grid = NEW(a, int64_t, 3 * (int64_t)count);
    for (int i = 0; i < count; i++) {
        struct arena item = arena_make("image");
        struct patches p;
        int width, height;
        bool ok = file_look(&item, l, file[i], false, &width, &height, &p);
        arena_free(&item);
        if (!ok)
            return fail_kind(FAULT_DATA);
        memcpy(l->grid + 3 * (int64_t)i, (int64_t[]){1, p.grid_h, p.grid_w},
               3 * sizeof *l->grid);
        rows += (int64_t)p.grid_h * p.grid_w;
    }
    const struct disk_tensor tensor[] = {
        {.name = "pixel_values", .dtype = DTYPE_F32, .ndim = 2, .dim = {rows, values},
         .count = rows * values, .bytes = rows * values * 4},
        {.name = "image_grid_thw", .dtype = DTYPE_I64, .ndim = 2, .dim = {count, 3},
         .count = 3 * (int64_t)count, .bytes = 24 * (int64_t)count},
    };
    return safetensors_create(a, l->o->out, tensor, COUNT(tensor), meta, 1, &l->out) ||
           fail_kind(FAULT_USAGE);
}

static bool output_close(struct looking *l, int count, bool ok)
{
    if (!l->out)
        return ok;
    if (ok && safetensors_write(l->out, l->grid, 24 * (int64_t)count))
        return safetensors_finish(l->out) || fail_kind(FAULT_USAGE);
    safetensors_abandon(l->out);
    return fail_kind(FAULT_USAGE);
}

static bool file_show(struct looking *l, const char *file, int64_t number,
                      struct text *t)
{
    struct arena item = arena_make("image");
    struct patches p;
    int width, height, merge = l->shape.merge;
    bool ok = file_look(&item, l, file, true, &width, &height, &p) ||
              fail_kind(FAULT_DATA);
    if (ok && l->out) {
        const int64_t *grid = l->grid + 3 * number;
        if (grid[1] != p.grid_h || grid[2] != p.grid_w) {
            fail("image %s: changed while it was read", file);
            ok = fail_kind(FAULT_DATA);
        } else {
            ok = safetensors_write(l->out, p.pixels,
                                   4 * (int64_t)p.values * p.grid_h * p.grid_w);
        }
    }
    if (ok)
        text_add(t, "%s: %dx%d pixels -> grid %dx%d patch(es), %d token(s)\n", file,
                 width, height, p.grid_w, p.grid_h,
                 p.grid_w * p.grid_h / (merge * merge));
    arena_free(&item);
    return ok;
}

bool inspect_images(const struct inspect_image *o, const char *const *file, int count,
                    struct text *t)
{
    struct arena a = arena_make("images");
    struct looking l = {.o = o};
    const char *from;
    bool ok = shape_read(&a, o, &l.shape, &l.rules, &from);
    if (ok)
        text_add(t, "limits: %" PRId64 " to %" PRId64 " pixel(s) (%s), %d for a "
                 "token\n", l.shape.min_pixels, l.shape.max_pixels, from,
                 l.shape.patch * l.shape.patch * l.shape.merge * l.shape.merge);
    ok = ok && (!o->out || output_open(&a, &l, file, count));
    for (int i = 0; i < count && ok; i++)
        ok = file_show(&l, file[i], i, t);
    ok = output_close(&l, count, ok);
    arena_free(&a);
    return ok;
}

/* ---- a whole data set ---- */

enum { BINS = 24,                       /* by powers of two */
       REASONS = 100 };                 /* that have a line of their own */

struct reason {                         /* why samples are bad */
    const char *text, *example;
    int64_t count;
};

struct survey {
    struct arena arena;                 /* of reasons, which are few */
    void (*tell)(const char *text);
    double begun, shown;                /* when; the progress line is renewed */
    int64_t all;                        /* samples there are; seen so far: */
    int64_t samples, bad, too_long, no_loss;
    int64_t lost;                       /* supervised tokens */
    int64_t images, tokens, patches, supervised, special, shrunk, cut;  /* of others */
    int64_t token_bin[BINS], patch_bin[BINS];
    struct reason *reason;
    int64_t reasons, reason_room;
    int64_t others;                     /* bad for more reasons than are told apart */
};

static int bin_of(int64_t x)
{
    int bin = 0;
    while (bin < BINS - 1 && x >= (int64_t)1 << (bin + 1))
        bin++;
    return bin;
}

static void survey_add(struct survey *v, const struct encoded *e, int targets)
{
    v->images += e->nimage;
    v->tokens += e->tokens;
    v->patches += e->patches;
    v->special += e->special;
    v->supervised += targets;
    v->shrunk += e->shrunk;
    v->cut += e->cut;
    v->token_bin[bin_of(e->tokens)]++;
    v->patch_bin[bin_of(e->patches)]++;
}

/* Behind a text in quotes that begins here, if one does; NULL: none.  Apostrophes
 * within words are none. */
static const char *quoted_end(const char *message, const char *at)
{
    if ((*at != '\'' && *at != '"') || (at > message && isalnum((unsigned char)at[-1])))
        return NULL;
    for (const char *end = at + 1; *end; end++)
        if (*end == *at && !isalnum((unsigned char)end[1]))
            return end + 1;
    return NULL;
}

/* The message without the names in front ("sample S: image I: "), with its numbers as N
 * and quotes of more than a word as "...": bad for one cause read alike. */
static const char *reason_text(struct arena *a, const struct sample *s,
                               const char *message)
{
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                               "_<|>";
    const char *name[] = {"sample ", s->name, "image ", ""};
    struct text t = text_make(a);
    for (int i = 0; i < COUNT(name); i++) {
        size_t n = strlen(name[i]);
        if (!strncmp(message, name[i], n) && n)
            message += n + (message[n] == ':') + (message[n] == ':' && message[n + 1]);
    }
    for (int k = 0; k < s->nimage; k++) {
        size_t n = strlen(s->image[k].name);
        if (!strncmp(message, s->image[k].name, n) && message[n] == ':')
            message += n + 1 + (message[n + 1] == ' ');
    }
    for (const char *c = message; *c; c++) {
        const char *end = quoted_end(message, c);
        if (end) {
            if ((int64_t)strspn(c + 1, word) == end - c - 2)
                text_add_bytes(&t, c, end - c);
            else
                text_add(&t, "%c...%c", *c, *c);
            c = end - 1;
        } else if (*c < '0' || *c > '9') {
            text_add_bytes(&t, c, 1);
        } else if (c == message || c[-1] < '0' || c[-1] > '9') {
            text_add(&t, "N");
        }
    }
    return t.at ? t.at : "";
}

static void reason_add(struct survey *v, struct arena *item, const struct sample *s)
{
    struct arena *a = &v->arena;
    const char *text = reason_text(item, s, fail_message());
    for (int64_t i = 0; i < v->reasons; i++)
        if (!strcmp(v->reason[i].text, text)) {
            v->reason[i].count++;
            return;
        }
    if (v->reasons == REASONS) {
        v->others++;
        return;
    }
    GROW(a, v->reason, v->reasons, v->reason_room);
    v->reason[v->reasons++] = (struct reason){arena_text(a, "%s", text),
                                               arena_text(a, "%s", s->name), 1};
}

static int by_count(const void *a, const void *b)
{
    const struct reason *x = a, *y = b;
    return x->count > y->count ? -1 : x->count < y->count;
}

static void histogram(struct text *t, const char *name, const int64_t *bin)
{
    int last = BINS - 1;
    while (last > 0 && !bin[last])
        last--;
    text_add(t, "\n%s of a sample\n", name);
    for (int i = 0; i <= last; i++)
        if (bin[i])
            text_add(t, "  %8d..%-8d %10" PRId64 "\n", i ? 1 << i : 0,
                     (1 << (i + 1)) - 1, bin[i]);
}

static void survey_print(const struct survey *v, struct text *t)
{
    const struct { const char *name; int64_t count;
    } line[] = {
        {"samples", v->samples},
        {"bad", v->bad},
        {"too long for a row", v->too_long},
        {"without supervised tokens", v->no_loss},
        {"supervised tokens lost", v->lost},
        {"with shrunk images", v->shrunk},
        {"with text cut off", v->cut},
        {"images", v->images},
        {"tokens", v->tokens},
        {"supervised tokens", v->supervised},
        {"special tokens in texts", v->special},
        {"patches", v->patches},
    };
    for (int i = 0; i < COUNT(line); i++)
        text_add(t, "%-28s%12" PRId64 "\n", line[i].name, line[i].count);
    if (v->reasons)
        qsort(v->reason, (size_t)v->reasons, sizeof *v->reason, by_count);
    text_add(t, v->reasons ? "\nbad, by cause\n" : "");
    for (int64_t i = 0; i < v->reasons; i++)
        text_add(t, "%10" PRId64 "  %s (first: %s)\n", v->reason[i].count,
                 v->reason[i].text, v->reason[i].example);
    if (v->others)
        text_add(t, "%10" PRId64 "  other causes\n", v->others);
    histogram(t, "tokens", v->token_bin);
    histogram(t, "patches", v->patch_bin);
}

static void survey_progress(struct survey *v)
{
    char left[32];
    double now = clock_seconds(), seen = (double)v->samples;
    if (now - v->shown < 0.2)
        return;
    v->shown = now;
    clock_text(left, sizeof left,
               (now - v->begun) * ((double)v->all - seen) / MAX(seen, 1));
    log_progress("sample %" PRId64 "/%" PRId64 "  left %s  %" PRId64 " bad  %.0f "
                 "samples/s", v->samples, v->all, left, v->bad,
                 seen / MAX(now - v->begun, 1e-9));
}

/* Fails where it is the machine that could not read. */
static bool sample_survey(const struct session *s, int part, int64_t index,
                          struct survey *v)
{
    struct arena item = arena_make("sample");
    struct sample sample = {.name = ""};
    struct encoded e = {.name = ""};
    enum cause cause = CAUSE_BAD;
    if (source_read(s->source[part], index, &item, &sample))
        cause = sample_encode(&s->loader, &sample, &item, &item, &e);
    if (cause == CAUSE_BAD && fail_machine_error()) {
        arena_free(&item);
        return fail_kind(FAULT_DATA);
    }
    v->samples++;
    v->too_long += cause == CAUSE_TOO_LONG;
    v->no_loss += cause == CAUSE_NO_LOSS;
    v->lost += e.lost;
    if (cause == CAUSE_NONE) {
        survey_add(v, &e, sample_targets(&s->loader.shape, &e));
    } else if (cause == CAUSE_BAD) {
        v->bad++;
        reason_add(v, &item, &sample);
    }
    if (cause == CAUSE_BAD || cause == CAUSE_TOO_LONG) {
        size_t n = strlen(sample.name);
        bool named = !strncmp(fail_message(), sample.name, n);
        v->tell(cause == CAUSE_BAD
                    ? arena_text(&item, "bad: sample %s%s%s\n",
                                 named ? "" : sample.name, named ? "" : ": ",
                                 fail_message())
                    : arena_text(&item, "%s: sample %s\n",     /* says "too long" */
                                 fail_message(), sample.name));
    }
    arena_free(&item);
    survey_progress(v);
    return true;
}

/* Would training go on?  By data.bad and data.too_long. */
static bool survey_judge(const struct survey *v, const struct loader_options *o)
{
    bool ok = true;
    if (v->bad && o->bad == BAD_FAIL)
        ok = fail("data: %" PRId64 " of %" PRId64 " sample(s) cannot be read, and "
                  "data.bad is fail", v->bad, v->samples);
    else if (v->too_long && o->too_long == LONG_ERROR)
        ok = fail("data: %" PRId64 " of %" PRId64 " sample(s) are longer than a row, "
                  "and data.too_long is error", v->too_long, v->samples);
    else if (v->bad + v->too_long + v->no_loss == v->samples)
        ok = fail("data: none of %" PRId64 " sample(s) can be used: %" PRId64 " cannot "
                  "be read, %" PRId64 " are too long, %" PRId64 " have no token to be "
                  "trained on%s", v->samples, v->bad, v->too_long, v->no_loss,
                  v->no_loss ? " (is the format right, are answers marked as the "
                               "assistant's?)" : "");
    return ok || fail_kind(FAULT_DATA);
}

bool inspect_data(const struct recipe *r, void (*tell)(const char *text))
{
    struct session s;
    struct survey v = {.arena = arena_make("survey"), .tell = tell,
                       .begun = clock_seconds()};
    struct text t = text_make(&v.arena);
    struct recipe whole = *r;           /* held out or not is the same here */
    whole.data_hold_out = 0;
    bool ok = session_open(&s, &whole, true) && session_data(&s);
    for (int part = 0; ok && part < s.nsource; part++)
        v.all += source_count(s.source[part]);
    for (int part = 0; ok && part < s.nsource; part++)
        for (int64_t i = 0; ok && i < source_count(s.source[part]); i++)
            ok = sample_survey(&s, part, i, &v);
    for (int part = 0; ok && part < s.nsource; part++)
        if (source_remark(s.source[part]))
            text_add(&t, "%s\n", source_remark(s.source[part]));
    if (ok) {
        survey_print(&v, &t);
        tell(t.at);
    }
    ok = ok && survey_judge(&v, &s.loader);
    session_close(&s);
    arena_free(&v.arena);
    return ok;
}

bool inspect_shards(const struct inspect_pack *o, struct text *t)
{
    struct arena a = arena_make("shards");
    const struct source_options from = {.path = o->from, .format = o->format,
                                        .images = o->images, .ignore = o->ignore};
    const struct shard_options to = {.folder = o->to, .bytes = o->shard_mb * 1000000,
                                     .skip = o->skip};
    struct source *source;
    struct shard_report done;
    bool ok = source_open(&a, &from, &source);
    if (ok) {
        ok = shards_write(source, &to, &done);
        source_close(source);
    }
    if (ok) {
        text_add(t, "%s: %" PRId64 " sample(s), %" PRId64 " image(s) (%.1f MB) in "
                 "%" PRId64 " shard(s)\n", o->to, done.samples, done.images,
                 (double)done.image_bytes / 1e6, done.shards);
        if (done.bad)
            text_add(t, "%" PRId64 " sample(s) left out\n", done.bad);
    }
    arena_free(&a);
    return ok || fail_kind(FAULT_DATA);
}
