/* generate.c - greedy answers: prompts in packed rows fill a cache of keys and values,
 * then each step adds a token to every answer that has not ended. */
#include "train/generate.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "data/rows/encode.h"
#include "train/crew.h"
#include "train/left_out.h"

#include <inttypes.h>

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
        else if (cause == CAUSE_BAD &&
                 (s->loader.bad == BAD_FAIL || fail_machine_error()))
            return fail_in("sample %s", out->name) || fail_kind(FAULT_DATA);
        else
            left_out_say(s, out->name, fail_message());
    }
    return true;
}

/* ---- prompts: encoded, and packed in rows ---- */

struct prompt {                         /* and the answer under way */
    struct encoded e;
    int32_t *id;                        /* [most] the answer, without the end token */
    int tokens;                         /* of it */
    bool ended;
    int way;                            /* the data-parallel rank that answers */
    int64_t from;                       /* its first row of that rank's cache */
    int32_t next;                       /* position of the answer's first token */
    int at;                             /* its place in the step */
};

struct prompt_row { int first, count; };        /* of answers.order */
struct batch { int first, rows; };              /* of answers.row: answered together,
                                                 * row i by way i % ways */
struct answers {
    struct session *s;
    struct capacity limit;              /* of a row of prompts */
    int count, most, ways;              /* prompts; tokens of an answer; data-parallel
                                         * ranks */
    struct prompt *prompt;
    int *order;                         /* [count] prompts in the order of rows */
    struct prompt_row *row;
    struct batch *batch;
    int rows, batches;
    struct answers_room room;
    struct views *views;
    double prompt_seconds, step_seconds;
};

static struct prompt *prompt_of(const struct answers *x, const struct prompt_row *r,
                                int i)
{
    return &x->prompt[x->order[r->first + i]];
}

/* Prompt tokens and images of a sample. */
static bool prompt_encode(struct session *s, struct arena *a,
                          const struct sample *sample, struct encoded *out)
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
        if (!image_load(a, file, o->rules, &o->limits, &o->image, &out->image[i]))
            return fail_in("image %s", sample->image[i].name);
        int patches = out->image[i].grid_h * out->image[i].grid_w;
        out->patches += patches;
        tokens[i] = patches / cell;
    }
    if (!chat_encode(o->chat, a, sample, tokens, true, &d))
        return fail_in("%s", sample->name);
    out->tokens = (int)d.input.count;
    out->input = d.input.at;
    out->scored = NEW(a, bool, out->tokens);
    return true;
}

static bool prompt_fits(const struct row_shape *shape, const struct encoded *e)
{
    return (e->tokens <= shape->tokens && e->patches <= shape->patches &&
            e->nimage <= shape->images) ||
           fail("generate: %s needs %d token(s), %d patch(es) and %d image(s), a row "
                "holds "
                "%d, %d and %d (raise batch.tokens, batch.patches or batch.images, or "
                "lower data.max_pixels)",
                e->name, e->tokens, e->patches, e->nimage, shape->tokens,
                shape->patches, shape->images);
}

static bool prompts_encode(struct answers *x, struct arena *a,
                           const struct sample *sample)
{
    const struct row_shape shape = row_shape_of(&x->limit, &x->s->model.config);
    for (int i = 0; i < x->count; i++) {
        struct encoded *e = &x->prompt[i].e;
        if (!prompt_encode(x->s, a, &sample[i], e) || !prompt_fits(&shape, e))
            return fail_kind(FAULT_DATA);
        x->prompt[i].id = NEW(a, int32_t, x->most);
    }
    return true;
}

/* Which prompts share a row: those whose answers would have room in it too, and no more
 * than lets every way have a row. */
static void prompts_pack(struct answers *x, struct arena *a)
{
    struct row_shape shape = row_shape_of(&x->limit, &x->s->model.config);
    for (int i = 0; i < x->count; i++)
        shape.tokens = MAX(shape.tokens, x->prompt[i].e.tokens + x->most);
    shape.segments = MAX(MIN(shape.segments, (x->count + x->ways - 1) / x->ways), 1);
    struct packer *p = packer_make(a, &shape, MAX(x->count, 1));
    int64_t *ticket = NEW(a, int64_t, shape.segments);
    for (int i = 0; i < x->count; i++) {
        const struct encoded *e = &x->prompt[i].e;
        REQUIRE(packer_offer(p, i, e->tokens + x->most, e->patches, e->nimage));
    }
    for (int n, at = 0; (n = packer_take(p, true, ticket, shape.segments)) > 0;
         at += n) {
        x->row[x->rows++] = (struct prompt_row){at, n};
        for (int i = 0; i < n; i++)
            x->order[at + i] = (int)ticket[i];
    }
}

/* ---- room: rows and cache are as large as these prompts and answers need ---- */

static struct capacity row_needs(const struct answers *x, const struct prompt_row *r)
{
    struct capacity c = {.segments = r->count};
    for (int i = 0; i < r->count; i++) {
        const struct encoded *e = &prompt_of(x, r, i)->e;
        c.tokens += e->tokens;
        c.patches += e->patches;
        c.images += e->nimage;
    }
    return c;
}

/* Rows of the cache for prompts that are answered together: as many as a few rows of
 * prompts have places, where the memory that the session works in anyway holds them;
 * else as many as one. */
static int64_t cache_most(const struct answers *x)
{
    enum { FEW = 4 };
    const struct decoder_config *c = &x->s->model.config.decoder;
    int64_t row = 2LL * c->layers * c->groups * c->head_width *
                  dtype_bytes(x->s->compute);
    int64_t work = x->s->plan->bytes - x->s->plan->state_bytes;
    return MIN(FEW * x->limit.tokens, MAX(x->limit.tokens, work / 2 / row));
}

/* Rows in batches: for each way what the cache may hold, but one row at least. */
static void batches_make(struct answers *x, struct arena *a)
{
    int64_t held = cache_most(x);
    struct load { int64_t places, answers; } *load = NEW(a, struct load, x->ways);
    struct capacity *most = &x->room.prompts;
    struct batch *b = NULL;
    for (int k = 0; k < x->rows; k++) {
        const struct prompt_row *r = &x->row[k];
        struct capacity c = row_needs(x, r);
        int64_t places = c.tokens + (int64_t)r->count * x->most;
        int way = b ? b->rows % x->ways : 0;
        if (!b || (b->rows >= x->ways && load[way].places + places > held)) {
            b = &x->batch[x->batches++];
            *b = (struct batch){.first = k};
            memset(load, 0, sizeof *load * (size_t)x->ways);
            way = 0;
        }
        b->rows++;
        for (int i = 0; i < r->count; i++) {
            struct prompt *p = prompt_of(x, r, i);
            p->way = way;
            p->from = load[way].places;
            load[way].places += p->e.tokens + x->most;
            load[way].answers++;
        }
        *most = (struct capacity){
            MAX(most->tokens, c.tokens), MAX(most->patches, c.patches),
            MAX(most->segments, c.segments), MAX(most->images, c.images)};
        x->room.answers = MAX(x->room.answers, load[way].answers);
        x->room.cache_rows = MAX(x->room.cache_rows, load[way].places);
    }
}

/* ---- views: one for rows of prompts, and some for steps of one place an answer, since
 * a step costs what its plan has room for ---- */

enum { MOST_VIEWS = 34 };

struct views {
    struct arena arena;
    int count;
    struct view_of_model *view[MOST_VIEWS];     /* [0] of prompts; then ever smaller */
};

static int64_t round_up(int64_t n, int64_t to)
{
    return MAX((n + to - 1) / to, 1) * to;
}

static void views_open(struct session *s, const struct answers_room *room,
                       struct views *v)
{
    const struct layout one = {.cp = 1, .tp = 1};
    const struct layout *l = s->crew ? &s->crew->mesh.layout : &one;
    int64_t places = (l->cp > 1 ? 2 * l->cp : 1) * (int64_t)l->tp;
    int64_t cells = (int64_t)s->model.config.vision.merge *
                    s->model.config.vision.merge * l->tp;
    struct model_purpose p = purpose_answers(s->recipe, room->cache_rows, false);
    struct capacity c = {
        round_up(room->prompts.tokens, places), round_up(room->prompts.patches, cells),
        room->prompts.segments, MAX(room->prompts.images, 1)};
    if (room->answers == 0)
        return;
    v->view[v->count++] = session_view(s, &v->arena, &p, &c);
    p = purpose_answers(s->recipe, room->cache_rows, true);
    for (int64_t n = room->answers, last = 0; n > 0; n /= 2) {
        c = (struct capacity){round_up(n, places), cells, 1, 1};
        if (c.tokens == last)
            continue;
        last = c.tokens;
        v->view[v->count] = session_view(s, &v->arena, &p, &c);
        v->view[v->count]->number = v->count;
        v->count++;
    }
}

/* The machine goes back to the session's own plan before these end. */
static bool views_close(struct session *s, struct views *v, bool ok)
{
    struct failure why;
    if (!ok)
        fail_take(&why);
    bool back = machine_use(s->machine, s->plan);
    arena_free(&v->arena);
    return ok ? back : fail_raise(&why);
}

/* ---- answers ---- */

static bool open_ended(const struct answers *x, const struct prompt *p)
{
    return !p->ended && p->tokens < x->most;
}

static void answer_take(struct answers *x, struct prompt *p, int32_t id)
{
    p->ended = id == x->s->chat.im_end || model_config_ends(&x->s->model.config, id);
    if (!p->ended)
        p->id[p->tokens++] = id;
}

/* One row for each way, and what is asked of it. */
struct asked {
    struct row *row;
    const struct row **list;            /* the same rows */
    struct ask *ask;
};

static struct asked asked_make(const struct answers *x, struct arena *a, int64_t T)
{
    struct asked k = {NEW(a, struct row, x->ways), NEW(a, const struct row *, x->ways),
                      NEW(a, struct ask, x->ways)};
    for (int w = 0; w < x->ways; w++) {
        k.list[w] = &k.row[w];
        k.ask[w] = (struct ask){NEW(a, int32_t, T), NEW(a, int32_t, T),
                                NEW(a, int32_t, T)};
        memset(k.ask[w].cache_row, -1, sizeof(int32_t) * (size_t)T);
    }
    return k;
}

/* The prompts of a row as way w's. */
static void ask_prompts(const struct answers *x, struct arena *a,
                        const struct prompt_row *r, const struct row_shape *shape,
                        struct asked *to, int w)
{
    const struct encoded **e = NEW(a, const struct encoded *, r->count + 1);
    int at = 0;
    for (int i = 0; i < r->count; i++) {
        struct prompt *p = prompt_of(x, r, i);
        e[i] = &p->e;
        for (int k = 0; k < p->e.tokens; k++)
            to->ask[w].cache_row[at++] = (int32_t)p->from + k;
        p->at = at - 1;
        to->ask[w].want[p->at] = 1;
    }
    row_fill(a, shape, e, r->count, &to->row[w]);
}

/* So many rows of prompts (at most one a way): into the caches, and each answer's first
 * token. */
static bool prompts_read(struct answers *x, const struct prompt_row *r, int n)
{
    static const struct prompt_row none;
    struct arena a = arena_make("prompts");
    struct view_of_model *v = x->views->view[0];
    struct row_shape shape = row_shape_of(&v->model.capacity, &v->model.config);
    struct asked k = asked_make(x, &a, shape.tokens);
    for (int w = 0; w < x->ways; w++)
        ask_prompts(x, &a, w < n ? &r[w] : &none, &shape, &k, w);
    bool ok = session_rows(x->s, v, k.list, x->ways, k.ask, NULL);
    for (int w = 0; w < n && ok; w++)
        for (int i = 0; i < r[w].count; i++) {
            struct prompt *p = prompt_of(x, &r[w], i);
            p->next = k.row[w].position[3 * p->at] + 1;         /* it ended in text */
            answer_take(x, p, v->best[w * shape.tokens + p->at]);
        }
    arena_free(&a);
    return ok;
}

/* The smallest view with a place for each of so many answers. */
static struct view_of_model *view_for(const struct views *v, int64_t answers)
{
    int i = v->count - 1;
    while (v->view[i]->model.capacity.tokens < answers)
        i--;
    return v->view[i];
}

/* The next place of an answer, on its way's row. */
static void ask_answer(struct prompt *p, struct asked *to)
{
    struct row *row = &to->row[p->way];
    struct ask *ask = &to->ask[p->way];
    int t = p->at = row->live++;
    row->input[t] = p->id[p->tokens - 1];
    for (int k = 0; k < 3; k++)
        row->position[3 * t + k] = p->next + p->tokens - 1;
    ask->cache_from[t] = (int32_t)p->from;
    ask->cache_row[t] = (int32_t)p->from + p->e.tokens + p->tokens - 1;
    ask->want[t] = 1;
}

/* One more token for each of these answers. */
static bool answers_step(struct answers *x, struct prompt *const *open, int count)
{
    struct arena a = arena_make("step");
    int *on = NEW(&a, int, x->ways), most = 0;
    for (int i = 0; i < count; i++)
        most = MAX(most, ++on[open[i]->way]);
    struct view_of_model *v = view_for(x->views, most);
    int64_t T = v->model.capacity.tokens;
    struct asked k = asked_make(x, &a, T);
    for (int w = 0; w < x->ways; w++) {
        k.row[w] = (struct row){.input = NEW(&a, int32_t, T),
                                .feature = NEW(&a, int32_t, T),
                                .position = NEW(&a, int32_t, 3 * T)};
        memset(k.row[w].feature, -1, sizeof(int32_t) * (size_t)T);
        for (int64_t t = 0; t < T; t++)
            k.row[w].input[t] = MAX(v->model.config.pad, 0);
    }
    for (int i = 0; i < count; i++)
        ask_answer(open[i], &k);
    bool ok = session_rows(x->s, v, k.list, x->ways, k.ask, NULL);
    for (int i = 0; ok && i < count; i++)
        answer_take(x, open[i], v->best[open[i]->way * T + open[i]->at]);
    arena_free(&a);
    return ok;
}

/* All answers of a batch. */
static bool batch_answer(struct answers *x, const struct batch *b)
{
    struct arena a = arena_make("open");
    const struct prompt_row *r = &x->row[b->first], *last = &r[b->rows - 1];
    int first = r->first, count = last->first + last->count - first, left;
    struct prompt **open = NEW(&a, struct prompt *, count);
    bool ok = true;
    double began = clock_seconds();
    for (int i = 0; i < b->rows && ok; i += x->ways)
        ok = prompts_read(x, &r[i], MIN(x->ways, b->rows - i));
    double filled = clock_seconds();
    do {
        left = 0;
        for (int i = 0; i < count; i++) {
            struct prompt *p = &x->prompt[x->order[first + i]];
            if (open_ended(x, p))
                open[left++] = p;
        }
        ok = ok && (left == 0 || answers_step(x, open, left));
    } while (ok && left > 0);
    x->prompt_seconds += filled - began;
    x->step_seconds += clock_seconds() - filled;
    arena_free(&a);
    return ok;
}

static bool answers_make(struct answers *x)
{
    struct views views = {.arena = arena_make("answers")};
    bool ok = session_agree(x->s, &x->room);
    if (ok)
        views_open(x->s, &x->room, &views);
    x->views = &views;
    for (int i = 0; i < x->batches && ok; i++)
        ok = batch_answer(x, &x->batch[i]);
    return views_close(x->s, &views, ok && session_end(x->s));
}

/* Positions that the model was not made for have rotations all the same: nothing
 * fails, but what it says there may be worth nothing. */
static void positions_warn(const struct answers *x)
{
    int limit = x->s->model.config.decoder.positions, most = 0, beyond = 0, first = -1;
    for (int i = 0; i < x->count; i++) {
        int end = x->prompt[i].next + x->prompt[i].tokens;
        most = MAX(most, end);
        if (limit && end > limit && beyond++ == 0)
            first = i;
    }
    if (beyond)
        log_warn("generate", "%d of %d answers go beyond max_position_embeddings %d of "
                 "the model (%s; at most %d positions): what is said there may be "
                 "worth nothing; use a shorter prompt, smaller images or fewer tokens",
                 beyond, x->count, limit, x->prompt[first].e.name, most);
}

/* How fast: of prompts all tokens, of answers those that steps of their own made. */
static void speed_log(const struct answers *x)
{
    int64_t read = 0, made = 0;
    for (int i = 0; i < x->count; i++) {
        const struct prompt *p = &x->prompt[i];
        read += p->e.tokens;
        made += MAX(p->tokens + p->ended - 1, 0);
    }
    log_info("answers", "%d prompt(s) of %" PRId64 " token(s) in %.3f s, %" PRId64
             " more token(s) in %.3f s: %.1f tokens/s", x->count, read,
             x->prompt_seconds, made, x->step_seconds,
             x->step_seconds > 0 ? (double)made / x->step_seconds : 0);
}

bool generate(struct session *s, struct arena *a, const struct capacity *limit,
              const struct sample *sample, int count, int most_tokens,
              struct answer *out)
{
    struct answers x = {.s = s, .limit = *limit, .count = count, .most = most_tokens,
                        .ways = session_ways(s),
                        .prompt = NEW(a, struct prompt, count),
                        .order = NEW(a, int, count),
                        .row = NEW(a, struct prompt_row, count),
                        .batch = NEW(a, struct batch, count)};
    if (!prompts_encode(&x, a, sample))
        return false;
    prompts_pack(&x, a);
    batches_make(&x, a);
    if (!answers_make(&x))
        return false;
    if (count > 0)
        speed_log(&x);
    positions_warn(&x);
    for (int i = 0; i < count; i++) {
        const struct prompt *p = &x.prompt[i];
        out[i] = (struct answer){
            .text = tokenizer_decode(s->tokenizer, a, p->id, p->tokens, false),
            .id = p->id,
            .tokens = p->tokens,
            .ended = p->ended};
    }
    return true;
}

bool generate_follow(struct session *s)
{
    struct answers_room room;
    struct views views = {.arena = arena_make("answers")};
    bool ok = session_agree(s, &room);
    if (ok)
        views_open(s, &room, &views);
    return views_close(s, &views, ok && session_follow(s, views.view));
}
