/* test_greedy.c - every token of an answer is what the model, given the prompt and the
 * tokens before it as one plain row, finds most likely: long answers, with images and
 * without, many at a time in rows of several. */
#include "check.h"

#include "data/rows/encode.h"
#include "tests/model/mini.h"
#include "train/crew.h"
#include "train/data.h"
#include "train/generate.h"

enum { SAMPLES = 5, MOST = 70 };

struct fixture {
    struct arena arena;
    struct recipe recipe;
    struct session s;
    struct sample sample[SAMPLES];
};

static void copy(struct fixture *f, const char *from, const char *name, const char *to)
{
    struct bytes b;
    assert_ok(file_read(&f->arena, path_join(&f->arena, from, name), 1 << 24, &b));
    assert_ok(file_replace(path_join(&f->arena, to, name), b.at, b.size));
}

static void say(struct fixture *f, int i, int images, const char *text)
{
    static const char *const file[] = {"base_444.jpg", "rgb.png", "base_420.jpg"};
    struct arena *a = &f->arena;
    struct message *m = NEW(a, struct message, 1);
    *m = (struct message){.role = ROLE_USER, .npiece = images + 1,
                          .piece = NEW(a, struct piece, images + 1)};
    f->sample[i] = (struct sample){.name = text, .nmessage = 1, .message = m,
                                   .nimage = images,
                                   .image = NEW(a, struct image_source, images + 1)};
    for (int k = 0; k < images; k++) {
        const char *path = path_join(a, "tests/data/image", file[(i + k) % 3]);
        f->sample[i].image[k] = (struct image_source){.path = path, .name = path};
        m->piece[k] = (struct piece){.image = k};
    }
    m->piece[images] = (struct piece){-1, text};
}

/* Weights large enough that a place or a position more or less is another word. */
static void weights_fill(struct session *s)
{
    const struct graph *g = &s->model.graph;
    for (int p = 0; p < g->nparam; p++) {
        bool vector = g->param[p].ndim == 1;
        float *w = machine_weight(s->machine, p).data;
        for (int64_t i = 0; i < g->param[p].count; i++)
            w[i] = (float)(0.3 * mini_u(100 + (uint64_t)p, (uint64_t)i)) + vector;
    }
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->arena = arena_make("test");
    char *folder = check_folder(&f->arena);
    copy(f, "tests/train/tiny", "config.json", folder);
    copy(f, "recipes/quickstart", "tokenizer.json", folder);
    recipe_default(&f->arena, &f->recipe);
    f->recipe.model_path = folder;
    f->recipe.model_weights = model_weights_fresh;
    f->recipe.data_min_pixels = 256;
    f->recipe.data_max_pixels = 4096;
    f->recipe.batch_tokens = 160;
    f->recipe.batch_patches = 192;
    f->recipe.memory_recompute = "*";   /* training with the least memory */
    assert_ok(session_open(&f->s, &f->recipe, true) && session_text(&f->s) &&
              session_machine(&f->s));
    assert_ok(folder_remove(folder));
    weights_fill(&f->s);
    say(f, 0, 1, "What is this?");
    say(f, 1, 0, "Go on.");
    say(f, 2, 2, "And these two, one beside the other?");
    say(f, 3, 1, "Say more.");
    say(f, 4, 0, "One, two, three, four, five, six, seven, eight, nine, ten?");
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    session_close(&f->s);
    arena_free(&f->arena);
    free(f);
    return 0;
}

static bool answer(struct fixture *f, const struct sample *sample, int count, int most,
                   struct answer *out)
{
    return generate(&f->s, &f->arena, &f->s.model.capacity, sample, count, most, out);
}

/* The prompt, then the answer, as a sample of training. */
static struct encoded joined(struct fixture *f, int i, const struct answer *x)
{
    struct arena *a = &f->arena;
    const struct loader_options *o = &f->s.loader;
    const struct sample *sample = &f->sample[i];
    int *tokens = NEW(a, int, sample->nimage + 1);
    struct encoded e = {.name = sample->name, .nimage = sample->nimage,
                        .image = NEW(a, struct patches, sample->nimage + 1)};
    struct dialogue d = {0};
    for (int k = 0; k < sample->nimage; k++) {
        struct bytes file;
        assert_ok(image_source_read(a, &sample->image[k], &file));
        assert_ok(image_load(a, file, o->rules, &o->limits, &o->image, &e.image[k]));
        tokens[k] = e.image[k].grid_h * e.image[k].grid_w / 4;
        e.patches += 4 * tokens[k];
    }
    assert_ok(chat_encode(o->chat, a, sample, tokens, true, &d));
    e.tokens = (int)d.input.count + x->tokens;
    e.input = NEW(a, int32_t, e.tokens);
    e.scored = NEW(a, bool, e.tokens);
    memcpy(e.input, d.input.at, sizeof *e.input * (size_t)d.input.count);
    memcpy(e.input + d.input.count, x->id, sizeof *e.input * (size_t)x->tokens);
    return e;
}

/* What the plain model chooses after each place of it. */
static const int32_t *chosen(struct fixture *f, const struct encoded *e)
{
    struct session *s = &f->s;
    struct capacity c = {e->tokens + 3, MAX(e->patches, 4), 1, MAX(e->nimage, 1)};
    struct model_purpose best = {.decoder = {.best = true}};
    struct view_of_model *v = session_view(s, &f->arena, &best, &c);
    struct row_shape shape = row_shape_of(&c, &s->model.config);
    int32_t *want = NEW(&f->arena, int32_t, c.tokens);
    struct row row;
    const struct row *one = &row;
    row_fill(&f->arena, &shape, &e, 1, &row);
    for (int t = 0; t < e->tokens; t++)
        want[t] = 1;
    assert_ok(session_rows(s, v, &one, 1, &(struct ask){.want = want}, NULL));
    return v->best;
}

static void answers_are_what_is_most_likely(void **state)
{
    struct fixture *f = *state;
    struct answer answers[SAMPLES];
    int different = 0, total = 0;
    assert_ok(answer(f, f->sample, SAMPLES, MOST, answers));
    assert_ptr_equal(machine_plan(f->s.machine), f->s.plan);
    /* Training may look at answers whenever it has memory for its own steps. */
    assert_int_equal(machine_bytes(f->s.machine), f->s.plan->bytes);
    for (int i = 0; i < SAMPLES; i++) {
        const struct answer *x = &answers[i];
        struct encoded e = joined(f, i, x);
        const int32_t *best = chosen(f, &e);
        int start = e.tokens - x->tokens;
        for (int k = 0; k < x->tokens + x->ended; k++) {
            bool end = k == x->tokens;
            int32_t id = best[start + k - 1];
            bool ends =
                id == f->s.chat.im_end || model_config_ends(&f->s.model.config, id);
            if (end ? !ends : id != x->id[k])
                fail_msg("'%s': token %d of %d is %d, most likely %d", e.name, k,
                         x->tokens, end ? -1 : x->id[k], id);
            different += k > 0 && !end && x->id[k] != x->id[k - 1];
        }
        assert_true(x->ended || x->tokens == MOST);
        total += x->tokens;
    }
    print_message("%d tokens, %d unlike the one before\n", total, different);
    assert_true(total > 2 * MOST && different > total / 2);
}

/* The cache lies where the session's own plan works: nothing of it is left there. */
static void again_after_other_work(void **state)
{
    struct fixture *f = *state;
    struct answer first[SAMPLES], second[SAMPLES], alone;
    assert_ok(answer(f, f->sample, SAMPLES, MOST, first));
    assert_ok(answer(f, f->sample + 2, 1, MOST, &alone));
    assert_ok(answer(f, f->sample, SAMPLES, MOST, second));
    assert_string_equal(alone.text, first[2].text);
    for (int i = 0; i < SAMPLES; i++)
        assert_string_equal(first[i].text, second[i].text);
    assert_ok(answer(f, f->sample, 0, MOST, second));
    assert_ok(answer(f, f->sample, 1, 1, &alone));
    assert_true(alone.tokens == 1 && alone.id[0] == first[0].id[0]);
}

static void no_room_is_said(void **state)
{
    struct fixture *f = *state;
    struct answer none[2];
    struct text long_one = text_make(&f->arena);
    for (int i = 0; i < 100; i++)
        text_add(&long_one, "word ");
    say(f, 1, 0, long_one.at);
    assert_fails(answer(f, f->sample, 2, 4, none),
                 "a row holds 160");
    assert_int_equal(fail_fault(), FAULT_DATA);
    say(f, 1, 0, "Go on.");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_what_is_most_likely),
        cmocka_unit_test(again_after_other_work),
        cmocka_unit_test(no_room_is_said),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
