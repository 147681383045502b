/* test_tokenizer.c - the same ids and texts as the `tokenizers` package gives
 * (tests/ref/make_tokenizer_golden.py), speed on hostile words, and a clear message for
 * every file that is broken or asks for something else. */
#include "check.h"

#include "base/file.h"
#include "base/queue.h"
#include "base/text.h"
#include "data/text/tokenizer.h"

#include <ftw.h>
#include <jansson.h>
#include <stdlib.h>

static const char quickstart[] = "recipes/quickstart/tokenizer.json";
static const char stamps[] = "/usr/share/tuxpaint/stamps";

/* ---- golden file ---- */

static json_t *load(const char *path)
{
    json_error_t error;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (!root)
        fail_msg("%s:%d: %s", path, error.line, error.text);
    return root;
}

/* A base file with some members changed: "model.x" is member x of "model". */
static json_t *change(const char *path, const json_t *changes)
{
    json_t *root = load(path), *value;
    const char *key;
    json_object_foreach((json_t *)changes, key, value) {
        bool inner = strncmp(key, "model.", 6) == 0;
        json_object_set(inner ? json_object_get(root, "model") : root,
                        inner ? key + 6 : key, value);
    }
    return root;
}

static bool parse(struct arena *a, const json_t *root, struct tokenizer **out)
{
    char *text = json_dumps(root, 0);
    bool ok = tokenizer_parse(a, "made", text, (int64_t)strlen(text), out);
    free(text);
    return ok;
}

struct fixture {
    struct arena arena;
    json_t *golden;
    int count;
    const char *name[16];
    struct tokenizer *tokenizer[16];
};

static struct tokenizer *named(const struct fixture *f, const char *name)
{
    for (int i = 0; i < f->count; i++)
        if (strcmp(f->name[i], name) == 0)
            return f->tokenizer[i];
    fail_msg("no tokenizer %s", name);
    return NULL;
}

static int setup(void **state)
{
    static struct fixture f;
    f.arena = arena_make("test");
    *state = &f;
    f.golden = load("tests/data/tokenizer-golden.json");
    const char *name;
    json_t *variant;
    json_object_foreach(json_object_get(f.golden, "variants"), name, variant) {
        json_t *root = change(json_string_value(json_array_get(variant, 0)),
                              json_array_get(variant, 1));
        f.name[f.count] = name;
        bool ok = parse(&f.arena, root, &f.tokenizer[f.count]);
        json_decref(root);
        if (!ok) {
            print_error("%s: %s\n", name, fail_message());
            return 1;
        }
        f.count++;
    }
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    for (int i = 0; i < f->count; i++)
        tokenizer_close(f->tokenizer[i]);
    json_decref(f->golden);
    arena_free(&f->arena);
    return 0;
}

static struct ids encode(const struct tokenizer *t, struct arena *a, const char *text,
                         int64_t size, bool special)
{
    struct ids got = {0};
    if (!tokenizer_encode(t, a, text, size, special ? SPECIAL_ALL : SPECIAL_TEXT,
                          &got))
        fail_msg("%s", fail_message());
    return got;
}

/* ---- against the package ---- */

static void check_text(const struct tokenizer *t, struct arena *a, struct ids ids,
                       bool special, const json_t *want, const char *what)
{
    const char *got = tokenizer_decode(t, a, ids.at, ids.count, special);
    if (memcmp(got, json_string_value(want), json_string_length(want) + 1) != 0)
        fail_msg("%s decodes to \"%s\", expected \"%s\"", what, got,
                 json_string_value(want));
}

static void test_cases(void **state)
{
    const struct fixture *f = *state;
    size_t i, n, k;
    const json_t *c, *name;
    int checked = 0;
    json_array_foreach(json_object_get(f->golden, "cases"), i, c)
        for (int which = 0; which < 2; which++)
            json_array_foreach(json_array_get(c, (size_t)which), n, name) {
                struct arena a = arena_make("case");
                const struct tokenizer *t = named(f, json_string_value(name));
                const json_t *text = json_array_get(c, 2), *want = json_array_get(c, 3);
                char *what =
                    arena_text(&a, "case %zu of %s, \"%s\"", i, json_string_value(name),
                               json_string_value(text));
                struct ids got = encode(t, &a, json_string_value(text),
                                        (int64_t)json_string_length(text), which == 0);
                const json_t *id;
                json_array_foreach(want, k, id)
                    if ((int64_t)k >= got.count || got.at[k] != json_integer_value(id))
                        fail_msg("%s: id %zu is %d, expected %d", what, k,
                                 (int64_t)k < got.count ? got.at[k] : -1,
                                 (int)json_integer_value(id));
                if (got.count != (int64_t)k)
                    fail_msg("%s: %d ids, expected %zu", what, (int)got.count, k);
                for (int skip = 0; skip < 2; skip++) {
                    const json_t *decoded = json_array_get(c, (size_t)(4 + skip));
                    check_text(t, &a, got, skip == 0,
                               json_is_null(decoded) ? text : decoded, what);
                }
                checked++;
                arena_free(&a);
            }
    assert_true(checked > 700);
}

static void test_decode(void **state)
{
    const struct fixture *f = *state;
    size_t i, k;
    const json_t *c, *id;
    json_array_foreach(json_object_get(f->golden, "decode"), i, c) {
        struct arena a = arena_make("case");
        const struct tokenizer *t = named(f, json_string_value(json_array_get(c, 0)));
        struct ids ids = {0};
        json_array_foreach(json_array_get(c, 1), k, id)
            ids_add(&a, &ids, (int32_t)json_integer_value(id));
        char *what = arena_text(&a, "sequence %zu", i);
        check_text(t, &a, ids, true, json_array_get(c, 2), what);
        check_text(t, &a, ids, false, json_array_get(c, 3), what);
        arena_free(&a);
    }
    assert_true(i > 300);
}

/* ---- every caption of the stamps, language by language ---- */

struct tongue {                         /* as the golden file's row of a language */
    char name[32];
    int64_t texts;
    uint64_t text_hash;
    struct { int64_t count; uint64_t hash; } ids[2];
};

static struct { struct arena a; char **path; int64_t count, room; } found;

static int visit(const char *path, const struct stat *s, int type, struct FTW *where)
{
    (void)s;
    (void)where;
    if (type == FTW_F && text_ends(path, ".txt")) {
        GROW(&found.a, found.path, found.count, found.room);
        found.path[found.count++] = arena_text(&found.a, "%s", path);
    }
    return 0;
}

static int by_bytes(const void *x, const void *y)
{
    return strcmp(*(char *const *)x, *(char *const *)y);
}

static uint64_t mix(uint64_t h, uint32_t value)
{
    return (h ^ value) * 0x100000001b3u;
}

static void book(struct tongue *g, const struct tokenizer *const t[2], const char *text,
                 int64_t size)
{
    struct arena a = arena_make("caption");
    if (text_utf8(text, size)) {
        g->texts++;
        for (int64_t i = 0; i < size; i++)
            g->text_hash = mix(g->text_hash, (unsigned char)text[i]);
        g->text_hash = mix(g->text_hash, 0xff);
        for (int k = 0; k < 2; k++) {
            struct ids ids = encode(t[k], &a, text, size, false);
            g->ids[k].count += ids.count;
            for (int64_t i = 0; i < ids.count; i++)
                g->ids[k].hash = mix(g->ids[k].hash, (uint32_t)ids.at[i]);
            g->ids[k].hash = mix(g->ids[k].hash, UINT32_MAX);
        }
    }
    arena_free(&a);
}

static struct tongue *tongue(struct tongue *all, int *count, const char *name,
                             int64_t size)
{
    for (int i = 0; i < *count; i++)
        if ((int64_t)strlen(all[i].name) == size &&
            memcmp(all[i].name, name, (size_t)size) == 0)
            return &all[i];
    assert_true(*count < 256 && size < 32);
    const uint64_t start = 0xcbf29ce484222325u;
    struct tongue *g = &all[(*count)++];
    *g = (struct tongue){.text_hash = start, .ids = {{0, start}, {0, start}}};
    memcpy(g->name, name, (size_t)size);
    return g;
}

static void check_tongue(const struct tongue *g, const json_t *want, int *compared)
{
    int64_t texts = json_integer_value(json_array_get(want, 0));
    uint64_t hash = strtoull(json_string_value(json_array_get(want, 1)), NULL, 16);
    if (g->texts != texts || g->text_hash != hash) {
        print_message("%s: these captions are not those of the golden file\n", g->name);
        return;
    }
    ++*compared;
    for (int k = 0; k < 2; k++) {
        int64_t count = json_integer_value(json_array_get(want, (size_t)(2 + 2 * k)));
        const char *ids = json_string_value(json_array_get(want, (size_t)(3 + 2 * k)));
        if (g->ids[k].count != count || g->ids[k].hash != strtoull(ids, NULL, 16))
            fail_msg("%s, tokenizer %d: %d ids, expected %d (or other ids)", g->name, k,
                     (int)g->ids[k].count, (int)count);
    }
}

static void test_captions(void **state)
{
    const struct fixture *f = *state;
    static struct tongue all[256];
    int count = 0, compared = 0;
    if (!folder_exists(stamps))
        check_skip("no %s: tests/run.sh installs it", stamps);
    const struct tokenizer *const t[2] = {named(f, "quickstart"), named(f, "all")};
    found.a = arena_make("captions");
    assert_int_equal(nftw(stamps, visit, 16, FTW_PHYS), 0);
    qsort(found.path, (size_t)found.count, sizeof *found.path, by_bytes);
    for (int64_t i = 0; i < found.count; i++) {
        struct bytes file;
        assert_true(file_read(&found.a, found.path[i], 1 << 20, &file));
        for (char *line = file.at, *next; line; line = next) {
            char *end = strchr(line, '\n'), *mark = strstr(line, ".utf8=");
            next = end ? end + 1 : NULL;
            end = end ? end : file.at + file.size;
            if (line == file.at)
                book(tongue(all, &count, "en", 2), t, line, end - line);
            else if (mark && mark < end && mark + 6 < end)
                book(tongue(all, &count, line, mark - line), t, mark + 6,
                     end - mark - 6);
        }
    }
    arena_free(&found.a);
    const json_t *golden = json_object_get(f->golden, "languages");
    for (int i = 0; i < count; i++) {
        const json_t *want = json_object_get(golden, all[i].name);
        if (want)
            check_tongue(&all[i], want, &compared);
    }
    print_message("%d languages compared, of %zu\n", compared,
                  json_object_size(golden));
    if (compared == 0)
        check_skip("%s has other captions than the golden file", stamps);
}

/* ---- speed, edges, names ---- */

#if defined __SANITIZE_THREAD__ || defined __SANITIZE_ADDRESS__
enum { CHECK_SLOWER = 20 };             /* every access is checked */
#else
enum { CHECK_SLOWER = 1 };
#endif

static void check_quick(const struct tokenizer *t, const char *what, const char *unit,
                        int64_t size)
{
    struct arena a = arena_make("speed");
    char *text = NEW(&a, char, size);
    for (int64_t i = 0, n = (int64_t)strlen(unit); i < size; i++)
        text[i] = unit[i % n];
    double start = check_seconds();
    struct ids ids = encode(t, &a, text, size, false);
    double took = check_seconds() - start;
    print_message("%s: %.3f s\n", what, took);
    assert_true(took < CHECK_SLOWER);
    assert_memory_equal(tokenizer_decode(t, &a, ids.at, ids.count, true), text, size);
    arena_free(&a);
}

static void test_speed(void **state)
{
    const struct fixture *f = *state;
    const int64_t size = 100000;
    check_quick(named(f, "all"), "one letter", "a", size);
    check_quick(named(f, "all"), "letters", "theinghouserabbit", size);
    check_quick(named(f, "all"), "spaces", " ", size);
    check_quick(named(f, "all"), "newlines", "\n", size);
    check_quick(named(f, "all"), "punctuation", "!?<|", size);
    check_quick(named(f, "all"), "words", "the red house ", size);
    check_quick(named(f, "gpt2"), "gpt2 digits", "0123456789", size);
    check_quick(named(f, "quickstart"), "accents", "\xc3\xa9", size);
    check_quick(named(f, "quickstart"), "special", "<|im_end|>", size);
}

/* ---- many added tokens, patterns that look far ---- */

/* The quickstart's tokenizer with more added tokens, "<0>" and on, or other texts. */
static struct tokenizer *with_added(struct arena *a, int count, char *const *text)
{
    json_t *root = load(quickstart);
    json_t *added = json_object_get(root, "added_tokens");
    for (int i = 0; i < count; i++)
        json_array_append_new(
            added, json_pack("{s:i, s:s, s:b}", "id", 1280 + i, "content",
                             text ? text[i] : arena_text(a, "<%d>", i), "special", 1));
    struct tokenizer *t;
    if (!parse(a, root, &t))
        fail_msg("%s", fail_message());
    json_decref(root);
    return t;
}

/* Reading and finding 200,000 added tokens takes a time that grows with their number
 * and with the text: a walk through those of one first byte takes hours. */
static void test_many_added(void **state)
{
    (void)state;
    enum { MANY = 200000, TEXT = 100000 };
    struct arena a = arena_make("many");
    double start = check_seconds();
    struct tokenizer *t = with_added(&a, MANY, NULL);
    struct text text = text_make(&a);
    while (text.size < TEXT)
        text_add(&text, "<%d>< %s", (int)(text.size * 7919 % MANY), "<<<<");
    struct ids ids = encode(t, &a, text.at, text.size, true);
    double took = check_seconds() - start;
    print_message("200,000 added tokens: %.3f s\n", took);
    assert_true(took < CHECK_SLOWER * 4);
    int hits = 0;
    for (int64_t i = 0; i < ids.count; i++)
        hits += ids.at[i] >= 1280;
    assert_true(hits > TEXT / 20);
    assert_memory_equal(tokenizer_decode(t, &a, ids.at, ids.count, true), text.at,
                        text.size);
    tokenizer_close(t);
    arena_free(&a);
}

static unsigned next(unsigned *x)
{
    *x = *x * 1103515245 + 12345;
    return *x >> 16;
}

/* Of the added tokens that a text begins with the longest is taken, as a search through
 * all of them says. */
static void test_longest_added(void **state)
{
    (void)state;
    for (unsigned seed = 1; seed <= 60; seed++) {
        enum { TOKENS = 12, TEXT = 60 };
        struct arena a = arena_make("added");
        char *token[TOKENS], text[TEXT + 1] = "";
        unsigned x = seed;
        int count = 0;
        for (int i = 0; i < TOKENS; i++) {
            char one[8] = "";
            int size = 1 + (int)(next(&x) % 6);
            for (int k = 0; k < size; k++)
                one[k] = "\x01\x02\x03"[next(&x) % 2];
            bool again = false;
            for (int k = 0; k < count; k++)
                again |= !strcmp(token[k], one);
            if (!again)
                token[count++] = arena_text(&a, "%s", one);
        }
        for (int i = 0; i < TEXT; i++)
            text[i] = "\x01\x02\x03"[next(&x) % 3];
        struct tokenizer *t = with_added(&a, count, token);
        struct ids got = encode(t, &a, text, TEXT, true);
        int64_t at = 0, n = 0;
        while (at < TEXT) {
            int best = -1;
            for (int k = 0; k < count; k++)
                if (text_starts(text + at, token[k]) &&
                    (best < 0 || strlen(token[k]) > strlen(token[best])))
                    best = k;
            if (best >= 0) {
                assert_true(n < got.count);
                assert_int_equal(got.at[n++], 1280 + best);
                at += (int64_t)strlen(token[best]);
            } else {
                assert_true(n < got.count && got.at[n] < 1280);
                at += tokenizer_bytes(t, got.at[n++]);
            }
        }
        assert_int_equal(n, got.count);
        tokenizer_close(t);
        arena_free(&a);
    }
}

/* A pattern that looks at the rest of the text for every letter, or tries all ways of
 * dividing it, makes one bad sample at once; by a plain pattern the text is read. */
static void test_far_looks(void **state)
{
    (void)state;
    enum { SIZE = 60000 };
    static const struct { const char *pattern; bool taken; } look[] = {
        {"\\p{L}+\\d|.", false},
        {"\\p{L}(?=\\p{L}*\\d)|.", false},
        {"(?:\\p{L}+)+\\d|.", false},
        {"(?:\\p{L}?){40}\\p{L}{40}\\d|.", false},
        {"\\p{L}+|.", true},
        {"(?:\\p{L}\\p{M}*)+|.", true},
        {"\\p{L}{1,3}(?=\\p{L}{0,20})|.", true}};
    struct arena a = arena_make("looks");
    char *text = NEW(&a, char, SIZE);
    memset(text, 'x', SIZE);
    for (int i = 0; i < COUNT(look); i++) {
        json_t *root = load(quickstart);
        json_t *list = json_object_get(json_object_get(root, "pre_tokenizer"),
                                       "pretokenizers");
        json_object_set_new(json_object_get(json_array_get(list, 0), "pattern"),
                            "Regex", json_string(look[i].pattern));
        struct tokenizer *t;
        if (!parse(&a, root, &t))
            fail_msg("%s: %s", look[i].pattern, fail_message());
        struct ids ids = {0};
        double start = check_seconds();
        bool taken = tokenizer_encode(t, &a, text, SIZE, SPECIAL_TEXT, &ids);
        double took = check_seconds() - start;
        print_message("%s: %.3f s\n", look[i].pattern, took);
        assert_true(took < CHECK_SLOWER);
        if (taken != look[i].taken)
            fail_msg("%s: %s", look[i].pattern, taken ? "taken" : fail_message());
        if (taken)
            assert_memory_equal(tokenizer_decode(t, &a, ids.at, ids.count, true),
                                text, SIZE);
        else
            assert_non_null(strstr(fail_message(), "pattern: "));
        tokenizer_close(t);
        json_decref(root);
    }
    arena_free(&a);
}

static void test_not_utf8(void **state)
{
    const struct fixture *f = *state;
    static const char *const bad[] = {"\xff", "a\xc3", "\xed\xa0\x80", "\xc0\x80",
                                      "\xf4\x90\x80\x80"};
    struct arena a = arena_make("test");
    for (int i = 0; i < COUNT(bad); i++) {
        struct ids got = {0};
        fail_clear();
        assert_false(tokenizer_encode(named(f, "all"), &a, bad[i],
                                      (int64_t)strlen(bad[i]), SPECIAL_ALL,
                                      &got));
        assert_non_null(strstr(fail_message(), "UTF-8"));
        assert_int_equal(fail_fault(), FAULT_DATA);
        assert_int_equal(got.count, 0);
    }
    arena_free(&a);
}

static void test_names(void **state)
{
    const struct fixture *f = *state;
    const struct tokenizer *t = named(f, "quickstart");
    assert_int_equal(tokenizer_size(t), 1280);
    int end = tokenizer_id(t, "<|im_end|>"), call = tokenizer_id(t, "<tool_call>");
    assert_string_equal(tokenizer_token(t, end), "<|im_end|>");
    assert_int_equal(tokenizer_bytes(t, end), 10);
    assert_true(tokenizer_marker(t, end));
    assert_true(call >= 0 && !tokenizer_marker(t, call));
    assert_int_equal(tokenizer_id(t, "no such token"), -1);
    assert_int_equal(tokenizer_id(t, ""), -1);
    assert_null(tokenizer_token(t, 1280));
    assert_null(tokenizer_token(t, -1));
    assert_int_equal(tokenizer_bytes(t, 1 << 30), 0);
    assert_int_equal(tokenizer_bytes(t, tokenizer_id(t, "\xc4\xa0")), 1); /* space */
    assert_true(tokenizer_marker(named(f, "strip"), 5989));
    assert_false(tokenizer_marker(named(f, "strip"), 5990)); /* lstrip */
}

/* Encoding appends: what was there stays. */
static void test_append(void **state)
{
    const struct fixture *f = *state;
    const struct tokenizer *t = named(f, "quickstart");
    struct arena a = arena_make("test");
    struct ids got = {0};
    ids_add(&a, &got, 7);
    assert_true(tokenizer_encode(t, &a, "A red apple.", 12, SPECIAL_ALL, &got));
    struct ids alone = encode(t, &a, "A red apple.", 12, true);
    assert_int_equal(got.count, alone.count + 1);
    assert_int_equal(got.at[0], 7);
    assert_memory_equal(got.at + 1, alone.at, sizeof(int32_t) * (size_t)alone.count);
    arena_free(&a);
}

/* One tokenizer, many threads, the same ids in each. */
struct crowd { const struct tokenizer *t; uint64_t hash[4]; };

static void crowd_main(void *arg, int index)
{
    struct crowd *c = arg;
    for (int round = 0; round < 200; round++) {
        struct arena a = arena_make("crowd");
        struct ids ids = {0};
        const char *text =
            "It's a cafe\xcc\x81, 25 \xe0\xa4\xb9\xe0\xa4\xbf <tool_call>\n\n  x";
        if (tokenizer_encode(c->t, &a, text, (int64_t)strlen(text), SPECIAL_ALL,
                             &ids))
            for (int64_t i = 0; i < ids.count; i++)
                c->hash[index] = mix(c->hash[index], (uint32_t)ids.at[i]);
        arena_free(&a);
    }
}

static void test_threads(void **state)
{
    const struct fixture *f = *state;
    struct crowd c = {.t = named(f, "quickstart")};
    workers_join(workers_start(COUNT(c.hash), crowd_main, &c));
    assert_true(c.hash[0] != 0);
    for (int i = 1; i < COUNT(c.hash); i++)
        assert_int_equal(c.hash[i], c.hash[0]);
}

/* ---- broken files ---- */

static void refused(const char *json, int64_t size, const char *message)
{
    struct arena a = arena_make("bad");
    struct tokenizer *t;
    fail_clear();
    if (tokenizer_parse(&a, "bad.json", json, size, &t))
        fail_msg("taken, but should fail with \"%s\"", message);
    if (!strstr(fail_message(), message) || !strstr(fail_message(), "bad.json"))
        fail_msg("the message is \"%s\", expected \"%s\" in it", fail_message(),
                 message);
    assert_int_equal(fail_fault(), FAULT_DATA);
    arena_free(&a);
}

/* The quickstart file with one member (a path a.b.0.c) replaced, or removed by NULL. */
static void refused_with(const char *path, const char *value, const char *message)
{
    json_t *root = load(quickstart), *at = root;
    struct arena a = arena_make("path");
    char **word;
    int n = text_split(&a, path, ".", &word);
    int64_t index;
    for (int i = 0; i + 1 < n; i++)
        at = text_integer(word[i], &index) ? json_array_get(at, (size_t)index)
                                           : json_object_get(at, word[i]);
    json_t *made = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    assert_true(!value || made);
    if (json_is_array(at)) {
        assert_true(text_integer(word[n - 1], &index));
        assert_int_equal(json_array_set_new(at, (size_t)index, made), 0);
    } else if (made)
        assert_int_equal(json_object_set_new(at, word[n - 1], made), 0);
    else
        assert_int_equal(json_object_del(at, word[n - 1]), 0);
    char *text = json_dumps(root, 0);
    refused(text, (int64_t)strlen(text), message);
    free(text);
    json_decref(root);
    arena_free(&a);
}

static void test_refused(void **state)
{
    (void)state;
    refused("", 0, "line 1");
    refused("[]", 2, "\"model\" is missing");
    refused("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0", 43, "line 1");
    static const char twice[] =
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"a\": 1}}}";
    refused(twice, sizeof twice - 1, "duplicate");
    static const struct { const char *path, *value, *message; } bad[] = {
        {"model", NULL, "\"model\" is missing, expected an object"},
        {"model", "7", "\"model\" is an integer, expected an object"},
        {"model.type", NULL, "\"type\" is missing"},
        {"model.type", "\"WordPiece\"", "the model is WordPiece, only BPE"},
        {"model.type", "\"Unigram\"", "the model is Unigram, only BPE"},
        {"model.vocab", "[]", "\"vocab\" is an array, expected an object"},
        {"model.vocab", "{}", "for byte 0x00"},
        {"model.merges", "{}", "\"merges\" is an object, expected an array"},
        {"model.merges", NULL, "\"merges\" is missing"},
        {"model.vocab.A", NULL, "no token \"A\" for byte 0x41"},
        {"model.vocab.A", "0.5", "the id of token \"A\" is a number"},
        {"model.vocab.A", "-1", "token \"A\" has id -1, expected 0 to"},
        {"model.vocab.A", "4294967296", "token \"A\" has id 4294967296"},
        {"model.vocab.A", "2000000", "token \"A\" has id 2000000"},
        {"model.vocab.A", "0", "both have id 0"},
        {"model.merges.0", "\"ab\"", "merge 0 is not"},
        {"model.merges.0", "\"a b c\"", "merge 0 is not"},
        {"model.merges.0", "[\"a\"]", "merge 0 is not"},
        {"model.merges.0", "[\"a\", 1]", "merge 0 is not"},
        {"model.merges.3", "[\"a\", \"nosuch\"]", "merge 3 needs the token \"nosuch\""},
        {"model.merges.3", "\"nosuch a\"", "merge 3 needs the token \"nosuch\""},
        {"model.merges.3", "\"# $\"", "merge 3 needs the token \"#$\""},
        {"model.dropout", "0.1", "model.dropout"},
        {"model.continuing_subword_prefix", "\"##\"", "continuing_subword_prefix"},
        {"model.end_of_word_suffix", "\"</w>\"", "end_of_word_suffix"},
        {"model.ignore_merges", "1", "\"ignore_merges\" is an integer"},
        {"added_tokens", "{}", "\"added_tokens\" is an object, expected an array"},
        {"added_tokens.0", "1", "\"content\" is missing"},
        {"added_tokens.0.content", "null", "\"content\" is null"},
        {"added_tokens.0.content", "\"\"", "0 bytes"},
        {"added_tokens.0.id", "\"x\"", "the id of token \"<|endoftext|>\" is a string"},
        {"added_tokens.0.id", "1048576", "has id 1048576"},
        {"added_tokens.0.id", "0", "both have id 0"},
        {"added_tokens.0.content", "\"<|im_end|>\"", "\"<|im_end|>\" has ids"},
        {"added_tokens.0.special", "\"yes\"", "\"special\" is a string"},
        {"added_tokens.0.single_word", "true", "single_word is not supported"},
        {"normalizer", "{\"type\": \"NFKC\"}", "normalizer NFKC is not supported"},
        {"normalizer",
         "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}]}",
         "normalizer Lowercase is not supported"},
        {"normalizer", "{}", "normalizer: \"type\" is missing"},
        {"pre_tokenizer", "null", "\"pre_tokenizer\" is null"},
        {"pre_tokenizer", "{\"type\": \"Whitespace\"}", "pre_tokenizer Whitespace"},
        {"pre_tokenizer.pretokenizers", "[]", "the Sequence is empty"},
        {"pre_tokenizer.pretokenizers.0", "{\"type\": \"Digits\"}",
         "pre_tokenizer Digits"},
        {"pre_tokenizer.pretokenizers.1", "{\"type\": \"Punctuation\"}",
         "pre_tokenizer Punctuation"},
        {"pre_tokenizer.pretokenizers.1.add_prefix_space", "true", "add_prefix_space"},
        {"pre_tokenizer.pretokenizers.0.behavior", "\"Removed\"", "behavior Removed"},
        {"pre_tokenizer.pretokenizers.0.invert", "true", "with invert"},
        {"pre_tokenizer.pretokenizers.0.pattern", "{\"String\": \" \"}",
         "\"Regex\" is missing"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"(\"", "parenthesis"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"[a\"",
         "missing terminating ]"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"a*\"",
         "match nothing at all"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"\"", "match nothing at all"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"\\\\w+\"",
         "\\w is not supported"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"a\\\\Kb\"",
         "\\K is not supported"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"[\\\\S]\"",
         "\\S between brackets"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"(?s:.)\"",
         "(?s is not supported"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"[a[bc]]\"",
         "sets inside brackets"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"a{1,3}+\"",
         "}+ is not supported"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"(*UTF)a\"",
         "(* is not supported"},
        {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"a\\\\\"", "not supported"},
        {"decoder", "null", "\"decoder\" is null"},
        {"decoder", "{\"type\": \"Metaspace\"}", "decoder Metaspace is not supported"},
    };
    for (int i = 0; i < COUNT(bad); i++)
        refused_with(bad[i].path, bad[i].value, bad[i].message);
}

/* Every cut of a good file fails; none crashes. */
static void test_truncated(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct bytes file;
    assert_true(file_read(&a, quickstart, 1 << 20, &file));
    while (file.size > 0 && file.at[file.size - 1] != '}')
        file.size--;
    for (int64_t size = 0; size < file.size; size += 997)
        refused(file.at, size, "line");
    refused(file.at, file.size - 1, "line");
    arena_free(&a);
}

static void test_open(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct tokenizer *t;
    assert_true(tokenizer_open(&a, quickstart, &t));
    tokenizer_close(t);
    fail_clear();
    assert_false(tokenizer_open(&a, "tests/data/no-such-file.json", &t));
    assert_non_null(strstr(fail_message(), "no-such-file.json"));
    assert_int_equal(fail_fault(), FAULT_DATA);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),      cmocka_unit_test(test_decode),
        cmocka_unit_test(test_captions),   cmocka_unit_test(test_speed),
        cmocka_unit_test(test_many_added),
        cmocka_unit_test(test_longest_added),
        cmocka_unit_test(test_far_looks),
        cmocka_unit_test(test_not_utf8),   cmocka_unit_test(test_names),
        cmocka_unit_test(test_append),     cmocka_unit_test(test_refused),
        cmocka_unit_test(test_truncated),  cmocka_unit_test(test_open),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
