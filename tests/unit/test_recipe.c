/* test_recipe.c - recipes: every setting, every refusal, includes, and the way back. */
#include "check.h"

#include "base/text.h"
#include "recipe/recipe.h"


static const char least[] = "model: {path: m}\ndata: {sources: [{path: d}]}\n";

static bool parse(struct arena *a, const char *yaml, struct recipe *r)
{
    recipe_default(a, r);
    return recipe_parse(r, "x.yaml", yaml, (int64_t)strlen(yaml));
}

/* The file `name` of `folder`, read with overrides ended by NULL. */
static bool read(struct arena *a, const char *folder, const char *name,
                 struct recipe *r,
                 const char *const *override)
{
    int n = 0;
    while (override && override[n])
        n++;
    return recipe_read(a, path_join(a, folder, name), override, n, r);
}

static void text_write(struct arena *a, const char *folder, const char *name,
                       const char *text)
{
    assert_ok(file_replace(path_join(a, folder, name), text, (int64_t)strlen(text)));
}

static void test_defaults(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct recipe r;
    assert_ok(parse(&a, "", &r));
    assert_string_equal(r.run_name, "run");
    assert_int_equal(r.run_seed, 1);
    assert_int_equal(r.train_steps, 100);
    assert_true(r.data_shuffle);
    assert_true(r.optim_lr == 1e-4 && r.optim_beta2 == 0.95 && r.memory_slack == 1.1);
    assert_int_equal(r.optim_schedule, optim_schedule_cosine);
    assert_int_equal(r.nsource, 0);
    assert_ok(parse(&a, "data: {sources: [{path: p}]}", &r));
    assert_int_equal(r.nsource, 1);
    assert_int_equal(r.source[0].format, source_format_auto);
    assert_true(r.source[0].weight == 1);
    arena_free(&a);
}

/* The table is well-formed: its own types, ranges, choices accept every default. */
static void test_table(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    const struct recipe_field *f, *s;
    struct recipe r;
    recipe_default(&a, &r);
    int n = recipe_fields(&f), ns = recipe_source_fields(&s);
    assert_true(n > 60 && ns >= 7);
    for (int i = 0; i < n; i++) {
        char *key = arena_text(&a, "%s.%s", f[i].section, f[i].key);
        const char *value = recipe_get(&r, &a, key);
        assert_non_null(value);
        assert_ok(recipe_set(&r, key, value));
        assert_string_equal(recipe_get(&r, &a, key), value);
        assert_true(strlen(f[i].meaning) > 4);
        assert_int_equal(!strcmp(f[i].type, "choice"), *f[i].choices != 0);
        for (int j = 0; j < i; j++)
            assert_false(!strcmp(f[i].section, f[j].section) &&
                         !strcmp(f[i].key, f[j].key));
    }
    assert_null(recipe_get(&r, &a, "optim.lr_visio"));
    assert_null(recipe_get(&r, &a, "optim"));
    arena_free(&a);
}

/* Every word of a choice is taken and printed as it was written; no other is. */
static void test_choices(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    const struct recipe_field *f;
    struct recipe r;
    recipe_default(&a, &r);
    int n = recipe_fields(&f), at, words = 0;
    for (int i = 0; i < n; i++) {
        char *key = arena_text(&a, "%s.%s", f[i].section, f[i].key), *bars = "";
        for (int k = 0; f[i].word && f[i].word[k]; k++, words++) {
            bars = arena_text(&a, "%s%s%s", bars, k ? "|" : "", f[i].word[k]);
            assert_ok(recipe_set(&r, key, f[i].word[k]));
            assert_string_equal(recipe_get(&r, &a, key), f[i].word[k]);
            assert_string_equal(recipe_word(key, k), f[i].word[k]);
            assert_true(recipe_choice(key, f[i].word[k], &at) && at == k);
            assert_null(strchr(f[i].word[k], '_'));
        }
        assert_string_equal(f[i].choices, bars);
        if (f[i].word)
            assert_false(recipe_choice(key, bars, &at) && f[i].word[1]);
    }
    assert_true(words > 40);
    assert_ok(recipe_set(&r, "model.template", "qwen3-vl"));
    assert_int_equal(r.model_template, model_template_qwen3_vl);
    assert_fails(recipe_set(&r, "model.template", "qwen3_vl"), "auto|qwen3-vl|folder");
    arena_free(&a);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct { const char *key, *value, *part; } bad[] = {
        {"optim.lrr", "1", "no setting 'optim.lrr'; nearest is 'optim.lr' (peak"},
        {"optm.lr", "1", "nearest is 'optim.lr'"},
        {"optim.lr_vison", "1", "nearest is 'optim.lr_vision'"},
        {"optim", "1", "no setting 'optim'"},
        {"", "1", "no setting ''"},
        {"data.source", "1", "no setting 'data.source'"},
        {"data.sources.0.pth", "x", "nearest is 'data.sources.N.path'"},
        {"data.sources.5.path", "x", "data.sources has 1 entries, numbered from 0"},
        {"data.sources.-1.path", "x", "numbered from 0"},
        {"data.sources.x.path", "x", "expected a key of an entry, as data.sources.0"},
        {"data.sources.0", "x", "expected a key of an entry, as data.sources.0.path"},
        {"data.sources.", "x", "expected a key of an entry, as data.sources.0.path"},
        {"data.sources.99999999999999999999.path", "x", "numbered from 0"},
        {"data.sources.0.weight", "0",
         "data.sources.0.weight = 0 is outside 1e-06..1000000"},
        {"data.sources.0.format", "zip", "is not one of auto|folder|llava"},
        {"train.steps", "1.5", "train.steps = '1.5' is not a whole number"},
        {"train.steps", "", "train.steps = '' is not a whole number"},
        {"train.steps", "ten", "is not a whole number"},
        {"train.steps", "10x", "is not a whole number"},
        {"train.steps", "-1", "train.steps = -1 is outside 0..1000000000000"},
        {"train.steps", "1e300", "is outside"},
        {"train.steps", "nan", "is not a whole number"},
        {"train.steps", "inf", "is not a whole number"},
        {"optim.lr", "fast", "optim.lr = 'fast' is not a number  (peak learning rate)"},
        {"optim.lr", "11", "optim.lr = 11 is outside 0..10"},
        {"optim.lr", "nan", "is not a number"},
        {"optim.beta1", "1", "is outside 0..0.999999"},
        {"data.shuffle", "yes", "data.shuffle = 'yes' is neither true nor false"},
        {"data.shuffle", "True", "is neither true nor false"},
        {"data.shuffle", "1", "is neither true nor false"},
        {"optim.schedule", "cos",
         "optim.schedule = 'cos' is not one of cosine|wsd|const"},
        {"optim.schedule", "cosine|wsd", "is not one of"},
        {"optim.schedule", "", "is not one of"},
        {"run.name", "a\xff", "run.name: the value is not UTF-8"},
    };
    struct arena a = arena_make("test");
    struct recipe r;
    assert_ok(parse(&a, least, &r));
    for (int i = 0; i < COUNT(bad); i++)
        assert_fails(recipe_set(&r, bad[i].key, bad[i].value), bad[i].part);
    assert_ok(recipe_set(&r, "train.steps", "1e3"));    /* a whole number too */
    assert_int_equal(r.train_steps, 1000);
    assert_ok(recipe_set(&r, "run.seed", "999999999999999"));
    assert_int_equal(r.run_seed, 999999999999999);
    assert_ok(recipe_set(&r, "optim.schedule", "wsd"));
    assert_int_equal(r.optim_schedule, optim_schedule_wsd);
    arena_free(&a);
}

static void test_yaml(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        {"optim: {lr: 1\n", "x.yaml line"},
        {"optim:\n\tlr: 1\n", "x.yaml line 2"},
        {"optim:\n\tlr: 1\n", "(a tab; indent with spaces)"},
        {"- a\n- b\n", "x.yaml line 1: a recipe is a group of sections"},
        {"just text", "a recipe is a group of sections"},
        {"optim: 3\n", "x.yaml line 1: a section is a group of keys"},
        {"optim: [lr]\n", "a section is a group of keys"},
        {"\noptim:\n  lr: {a: 1}\n", "x.yaml line 3: a value was expected here"},
        {"model: {freeze: [[vision]]}\n", "a value was expected here"},
        {"model: {freeze: \"a\\0b\"}\n", "a value was expected here"},
        {"model: {freeze: [\"a\\0b\"]}\n", "a value was expected here"},
        {"optim:\n  lr: 1\n  lrr: 2\n",
         "x.yaml line 3: recipe: no setting 'optim.lrr'"},
        {"optim: {? [a] : 1}\n", "a key was expected here"},
        {"? {a: b}\n: 1\n", "a key was expected here"},
        {"\"optim\\0\": {lr: 1}\n", "a key was expected here"},
        {"optim: {lr: 1, lr: 2}\n", "'lr' is set a second time"},
        {"optim: {lr: 1}\nrun: {name: x}\noptim: {lr: 2}\n",
         "x.yaml line 3: 'optim' is set a second time"},
        {"data: {sources: {path: x}}\n", "data.sources is a list of groups"},
        {"data: {sources: [x]}\n", "an entry of data.sources is a group"},
        {"data: {sources: [{path: x, path: y}]}\n", "'path' is set a second time"},
        {"data: {sources: [{path: x, colour: y}]}\n",
         "no setting 'data.sources.0.colour'"},
        {"optim: {lr: 1}\n--- \noptim: {lr: 2}\n", "a second document begins"},
        {"include: [a, b]\n", "include names one file"},
        {"optim: {lr: *x}\n", "x.yaml line"},
        {"optim: &a {lr: *a}\n", "a value was expected here"},
        {"\x01", "x.yaml line"},
    };
    struct arena a = arena_make("test");
    struct recipe r;
    for (int i = 0; i < COUNT(bad); i++) {
        assert_fails(parse(&a, bad[i][0], &r), bad[i][1]);
        assert_int_equal(fail_fault(), FAULT_USAGE);
    }
    struct text many = text_make(&a), deep = text_make(&a);
    text_add(&many, "data:\n  sources:\n");
    for (int i = 0; i <= MAX_SOURCES; i++)
        text_add(&many, "    - {path: p%d}\n", i);
    assert_fails(parse(&a, many.at, &r), "too many data.sources");
    for (int i = 0; i < 2000; i++)
        text_add(&deep, "[");
    assert_fails(parse(&a, deep.at, &r), "x.yaml line");
    assert_ok(parse(&a, "%YAML 1.1\n---\nmodel:\n  freeze: [vision, router]\n...\n",
                    &r));
    assert_string_equal(r.model_freeze, "vision router");
    assert_ok(parse(&a, "model: {freeze: []}", &r));
    assert_string_equal(r.model_freeze, "");
    assert_ok(parse(&a, "optim: &o {lr: 2}\n", &r));
    assert_true(r.optim_lr == 2);
    assert_ok(parse(&a, "data:\n  sources:\n    - path: one\n      weight: 2.5\n"
                        "    - {path: two, format: openai, limit: 7}\n", &r));
    assert_int_equal(r.nsource, 2);
    assert_true(r.source[0].weight == 2.5 && r.source[1].weight == 1);
    assert_string_equal(r.source[1].path, "two");
    assert_int_equal(r.source[1].limit, 7);
    arena_free(&a);
}

static void test_includes(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a);
    struct recipe r;
    assert_ok(folder_make(path_join(&a, folder, "base/inner")));
    text_write(&a, folder, "base/inner/deepest.yaml",
               "model: {path: m}\ndata: {sources: [{path: d}, {path: e}]}\n"
               "train: {steps: 1}\noptim: {lr: 0.1}\nrun: {seed: 5}\n");
    text_write(&a, folder, "base/b.yaml", "include: inner/deepest.yaml\n"
                                          "train: {steps: 2}\noptim: {lr: 0.2}\n");
    text_write(&a, folder, "r.yaml", "train: {steps: 3}\ninclude: base/b.yaml\n");
    assert_ok(read(&a, folder, "r.yaml", &r, NULL));
    assert_int_equal(r.train_steps, 3); /* the including file wins */
    assert_true(r.optim_lr == 0.2);     /* the nearer one wins */
    assert_int_equal(r.run_seed, 5);
    assert_int_equal(r.nsource, 2);
    text_write(&a, folder, "s.yaml",
               "include: base/b.yaml\ndata: {sources: [{path: x}]}");
    assert_ok(read(&a, folder, "s.yaml", &r, NULL));    /* a list replaces a list */
    assert_int_equal(r.nsource, 1);
    assert_string_equal(r.source[0].path, "x");
    text_write(&a, folder, "abs.yaml", arena_text(&a, "include: %s/base/b.yaml\n",
                                                  folder));
    assert_ok(read(&a, folder, "abs.yaml", &r, NULL));

    text_write(&a, folder, "one.yaml", "include: two.yaml\n");
    text_write(&a, folder, "two.yaml", "include: one.yaml\n");
    assert_fails(read(&a, folder, "one.yaml", &r, NULL), "(a circle?)");
    assert_int_equal(fail_fault(), FAULT_USAGE);
    text_write(&a, folder, "self.yaml", "include: self.yaml\n");
    assert_fails(read(&a, folder, "self.yaml", &r, NULL), "(a circle?)");
    text_write(&a, folder, "gone.yaml", "include: nothing.yaml\n");
    assert_fails(read(&a, folder, "gone.yaml", &r, NULL), "nothing.yaml");
    assert_non_null(strstr(fail_message(), "gone.yaml"));       /* who asked */
    text_write(&a, folder, "bad.yaml", "include: base/wrong.yaml\n");
    text_write(&a, folder, "base/wrong.yaml", "\noptim: {lrr: 1}\n");
    assert_fails(read(&a, folder, "bad.yaml", &r, NULL), "wrong.yaml line 2");
    assert_fails(read(&a, folder, "none.yaml", &r, NULL), "none.yaml");
    text_write(&a, folder, "dir.yaml", "include: base\n");
    assert_fails(read(&a, folder, "dir.yaml", &r, NULL), "base");
    text_write(&a, folder, "huge.yaml", arena_text(&a, "#%*s", 5 << 20, ""));
    assert_fails(read(&a, folder, "huge.yaml", &r, NULL), "expected at most");
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

static void test_overrides(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a);
    struct recipe r;
    text_write(&a, folder, "r.yaml", "model: {path: m}\ndata:\n  sources:\n"
               "    - {path: a, weight: 3}\n    - {path: b}\ntrain: {steps: 7}\n");
    const char *good[] = {"train.steps=9", "data.sources.0.weight=2",
                          "data.sources.1.path=c=d", "data.sources.2.path=new",
                          "data.sources.2.weight=0.5", "model.freeze=vision router",
                          "run.name=x", "run.name=", "run.name=y", NULL};
    assert_ok(read(&a, folder, "r.yaml", &r, good));
    assert_int_equal(r.train_steps, 9);
    assert_true(r.source[0].weight == 2);
    assert_string_equal(r.source[0].path, "a");
    assert_string_equal(r.source[1].path, "c=d");
    assert_int_equal(r.nsource, 3);
    assert_string_equal(r.source[2].path, "new");
    assert_true(r.source[2].weight == 0.5);
    assert_string_equal(r.model_freeze, "vision router");
    assert_string_equal(r.run_name, "y");
    static const char *const bad[][2] = {
        {"train.steps", "'train.steps' is no override; write section.key=value"},
        {"=3", "'=3' is no override"}, {"", "'' is no override"},
        {"train.step=3", "override 'train.step=3': recipe: no setting 'train.step'"},
        {"train.steps=", "override 'train.steps='"},
        {"data.sources.7.path=x", "data.sources has 2 entries"},
        {"data.sources.2.weight=2", "data.sources.2.path is empty"},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        const char *one[] = {bad[i][0], NULL};
        assert_fails(read(&a, folder, "r.yaml", &r, one), bad[i][1]);
        assert_int_equal(fail_fault(), FAULT_USAGE);
    }
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

static void test_values_fit_together(void **state)
{
    (void)state;
    static const char *const bad[][3] = {
        {"model.path", "", "model.path is empty"},
        {"data.min_pixels", "5000",
         "data.min_pixels 5000 is above data.max_pixels 4000"},
        {"optim.decay_steps", "91", "optim.warmup 10 + optim.decay_steps 91 exceed"},
        {"train.epochs", "2", "optim.schedule wsd decays over the last steps"},
        {"optim.decay", "10", "optim.lr 1 times optim.decay 10 is 10"},
        {"eval.every", "5", "eval.every is 5 but data.hold_out is 0"},
        {"vision.balance", "none",
         "vision.capacity = 1.5 means nothing without vision.balance images"},
        {"run.name", "", "run.name '' must be one folder's name"},
        {"run.name", "a/b", "run.name 'a/b' must be one"},
        {"run.name", "..", "run.name '..' must be one"},
        {"data.sources.0.path", "", "data.sources.0.path is empty"},
    };
    struct arena a = arena_make("test");
    for (int i = 0; i < COUNT(bad); i++) {
        struct recipe r;
        assert_ok(parse(&a, least, &r));
        assert_ok(recipe_set(&r, "data.max_pixels", "4000"));
        assert_ok(recipe_set(&r, "optim.schedule", "wsd"));
        assert_ok(recipe_set(&r, "optim.warmup", "10"));
        assert_ok(recipe_set(&r, "optim.lr", "1"));
        assert_ok(recipe_set(&r, "vision.capacity", "1.5"));
        assert_ok(recipe_check(&r));
        assert_ok(recipe_set(&r, bad[i][0], bad[i][1]));
        assert_fails(recipe_check(&r), bad[i][2]);
    }
    struct recipe r;
    assert_ok(parse(&a, "model: {path: m}", &r));
    assert_fails(recipe_check(&r), "data.sources is empty");
    arena_free(&a);
}

/* A setting that another one keeps from being read is refused, with its name; with the
 * other set right it is taken, and at its default it never matters. */
static void test_needs(void **state)
{
    (void)state;
    static const struct { const char *key, *value, *other, *off, *on, *pp; } pair[] = {
        {"data.bad_limit", "7", "data.bad", "fail", "skip", NULL},
        {"parallel.stages", "V,3H", "parallel.pp", "1", "2", NULL},
        {"parallel.chunks", "2", "parallel.pp", "1", "2", NULL},
        {"parallel.zero_bubble", "true", "parallel.pp", "1", "4", NULL},
        {"parallel.cp_ring", "true", "parallel.cp", "1", "2", NULL},
        {"parallel.replicate", "2", "parallel.shard", "none", "optimizer", NULL},
        {"parallel.reduce", "last", "parallel.shard", "optimizer", "gradients", NULL},
        {"parallel.prefetch", "0", "parallel.shard", "none", "optimizer", NULL},
        {"parallel.keep_weights", "true", "parallel.shard", "gradients", "parameters",
         NULL},
        {"parallel.delay_weights", "true", "parallel.zero_bubble", "true", "false",
         "2"},
        {"precision.masters", "false", "precision.compute", "f32", "bf16", NULL},
        {"vision.capacity", "1.5", "vision.balance", "none", "images", NULL},
        {"moe.overlap_shared", "true", "parallel.ep", "1", "2", NULL},
        {"moe.dispatcher", "allgather", "parallel.ep", "1", "2", NULL},
        {"moe.capacity", "1.5", "parallel.ep", "1", "2", NULL},
        {"optim.decay_steps", "5", "optim.schedule", "cosine", "wsd", NULL},
        {"optim.floor", "0.5", "optim.schedule", "constant", "cosine", NULL},
    };
    struct arena a = arena_make("test");
    const struct recipe_need *need;
    struct recipe r;
    assert_int_equal(recipe_needs(&need), COUNT(pair));
    for (int i = 0; i < COUNT(pair); i++) {
        assert_ok(parse(&a, least, &r));
        if (pair[i].pp)
            assert_ok(recipe_set(&r, "parallel.pp", pair[i].pp));
        assert_ok(recipe_set(&r, pair[i].other, pair[i].off));
        assert_ok(recipe_check(&r));
        assert_ok(recipe_set(&r, pair[i].key, pair[i].value));
        assert_fails(recipe_check(&r), "means nothing without");
        assert_non_null(strstr(fail_message(), pair[i].key));
        assert_non_null(strstr(fail_message(), pair[i].other));
        assert_int_equal(fail_fault(), FAULT_USAGE);
        assert_ok(recipe_set(&r, pair[i].other, pair[i].on));
        assert_ok(recipe_check(&r));
    }
    arena_free(&a);
}

/* The resolved recipe, read again, is the same recipe and the same text. */
static void test_fixed_point(void **state)
{
    (void)state;
    static const char *const value[] = {
        "plain", "", " spaces ", "a \"b\" \\ c", "line\nline\r\n\ttab",
            "#no: {comment}",
        "null", "true", "1e5", "- x", "\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80",
        "\x7f \xc2\x80 \xc2\x85 \xc2\xa0", "\xe2\x80\xa8\xe2\x80\xa9 \xef\xbb\xbf",
        "\xef\xbf\xbe\xef\xbf\xbf", "\x01\x1b\x1f", "%d %s", "'", "&a *a !t |", "a\\",
    };
    struct arena a = arena_make("test");
    struct recipe r, again;
    assert_ok(parse(&a, least, &r));
    assert_ok(recipe_set(&r, "optim.lr", "0.1234567890123456789"));
    assert_ok(recipe_set(&r, "optim.epsilon", "1e-20"));
    assert_ok(recipe_set(&r, "optim.decay", "0.30000000000000004"));
    assert_ok(recipe_set(&r, "run.seed", "999999999999999"));
    assert_ok(recipe_set(&r, "data.sources.1.path", "second"));
    assert_ok(recipe_set(&r, "data.sources.1.weight", "0.3333333333333333"));
    for (int i = 0; i < COUNT(value); i++) {
        assert_ok(recipe_set(&r, "model.freeze", value[i]));
        assert_ok(recipe_set(&r, "data.sources.1.prompt", value[COUNT(value) - 1 - i]));
        char *text = recipe_text_of(&r, &a);
        assert_ok(parse(&a, text, &again));
        assert_string_equal(again.model_freeze, value[i]);
        assert_string_equal(again.source[1].prompt, value[COUNT(value) - 1 - i]);
        assert_string_equal(recipe_text_of(&again, &a), text);
    }
    assert_true(again.optim_lr == r.optim_lr && again.optim_epsilon == 1e-20);
    assert_true(again.source[1].weight == r.source[1].weight);
    assert_int_equal(again.run_seed, 999999999999999);
    recipe_default(&a, &r);             /* without sources too */
    assert_ok(parse(&a, recipe_text_of(&r, &a), &again));
    assert_int_equal(again.nsource, 0);
    assert_string_equal(recipe_text_of(&again, &a), recipe_text_of(&r, &a));
    arena_free(&a);
}

/* Every key of the table is in the resolved text once, in its order. */
static void test_text_is_complete(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct recipe r;
    assert_ok(parse(&a, least, &r));
    const struct recipe_field *f;
    int n = recipe_fields(&f);
    const char *at = recipe_text_of(&r, &a);
    for (int i = 0; i < n; i++) {
        const char *found = strstr(at, arena_text(&a, "\n  %s: ", f[i].key));
        assert_non_null(found);
        at = found + 1;
    }
    arena_free(&a);
}

/* Every key says what a run that goes on may do with it, once; nothing else does. */
static void test_every_key_says_what_resuming_may(void **state)
{
    (void)state;
    const struct recipe_field *table[2];
    const int count[2] = {recipe_fields(&table[0]), recipe_source_fields(&table[1])};
    struct arena a = arena_make("test");
    struct bytes def;
    int unsaid = 0, lines = 0;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < count[k]; i++) {
            const struct recipe_field *f = &table[k][i];
            if (recipe_resume(arena_text(&a, "%s.%s", f->section, f->key)))
                continue;
            print_error("%s.%s has no RESUME line in src/recipe/recipe.def\n",
                        f->section, f->key);
            unsaid++;
        }
    assert_int_equal(unsaid, 0);
    assert_ok(file_read(&a, "src/recipe/recipe.def", 1 << 20, &def));
    for (const char *at = def.at; (at = strstr(at, "\nRESUME")); at++)
        lines++;
    assert_int_equal(lines, count[0] + count[1]);
    /* What decides what is trained on and what it looks like is one of these. */
    static const char *const kept[] = {
        "run.seed", "model.path", "model.freeze", "data.shuffle", "data.hold_out",
        "data.too_long", "data.max_pixels", "data.sources.N.path",
        "data.sources.N.weight", "data.sources.N.images", "batch.tokens"};
    for (int i = 0; i < COUNT(kept); i++)
        assert_int_not_equal(recipe_resume(kept[i]), RESUME_FREE);
    assert_int_equal(recipe_resume("optim.lr"), RESUME_FREE);
    assert_int_equal(recipe_resume("data.nothing"), RESUME_UNSAID);
    arena_free(&a);
}

/* All values, as text that gives the same recipe again. */
static void test_values_are_all(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct recipe r, again;
    struct recipe_value *v;
    const struct recipe_field *f;
    assert_ok(parse(&a, least, &r));
    assert_ok(recipe_set(&r, "data.sources.1.path", "second"));
    assert_ok(recipe_set(&r, "optim.lr", "0.1234567890123456789"));
    int n = recipe_values(&r, &a, &v);
    assert_int_equal(n, recipe_fields(&f) + 2 * recipe_source_fields(&f));
    recipe_default(&a, &again);
    for (int i = 0; i < n; i++) {
        assert_true(v[i].resume != RESUME_UNSAID);
        assert_ok(recipe_set(&again, v[i].key, v[i].value));
        if (!strcmp(v[i].key, "optim.lr"))
            assert_string_equal(v[i].preset, "0.0001");
    }
    assert_string_equal(recipe_text_of(&again, &a), recipe_text_of(&r, &a));
    arena_free(&a);
}

static struct text repeated(struct arena *a, const char *head, const char *fmt, int n)
{
    struct text t = text_make(a);
    text_add(&t, "%s", head);
    for (int i = 0; i < n; i++)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        text_add(&t, fmt, i, i);
#pragma GCC diagnostic pop
    return t;
}

/* What would take the square of its size is refused in the time of its first lines. */
static void test_costs_are_bounded(void **state)
{
    (void)state;
    enum { MANY = 60000 };
    struct arena a = arena_make("test");
    const struct { const char *head, *each, *says; } way[] = {
        {"optim:\n", "  k%d: 1\n", "line 1002: more than 1000 keys in a group"},
        {"", "k%d: 1\n", "line 1001: more than 1000 keys in a group"},
        {"optim: {", "k%d,", "line 1: more than 1000 keys in a group"},
        {"", "k%d: &a%d 1\n", "line 101: more than 100 anchors and aliases"},
        {"a: &x 1\n", "k%d: *x\n", "line 101: more than 100 anchors and aliases"},
        {"", "[", "line 1: more than 16 groups within each other"},
        {"", "- ", "line 1: more than 16 groups within each other"},
        {"", "{a: ", "line 1: more than 16 groups within each other"},
    };
    for (int i = 0; i < COUNT(way); i++) {
        struct recipe r;
        struct text t = repeated(&a, way[i].head, way[i].each, MANY);
        recipe_default(&a, &r);
        double before = check_seconds();
        assert_fails(recipe_parse(&r, "x.yaml", t.at, t.size), way[i].says);
        assert_true(check_seconds() - before < 0.5);
    }
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_costs_are_bounded),
        cmocka_unit_test(test_defaults),  cmocka_unit_test(test_table),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_yaml),
        cmocka_unit_test(test_includes),  cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_values_fit_together), cmocka_unit_test(test_fixed_point),
        cmocka_unit_test(test_text_is_complete), cmocka_unit_test(test_needs),
        cmocka_unit_test(test_every_key_says_what_resuming_may),
        cmocka_unit_test(test_values_are_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
