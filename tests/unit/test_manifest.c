/* test_manifest.c - what a training state's files hold must make up whole tensors. */
#include "check.h"

#include "checkpoint/manifest.h"

#include <inttypes.h>
#include <xxhash.h>

enum { BLOCK = 1024 };

struct bit { int file; int64_t from[2], size[2], part[2]; };    /* of a tensor [4, 6] */

/* The manifest of one tensor in such pieces, parsed. */
static bool made_of(struct arena *a, const struct bit *bit, int bits, struct bytes *out)
{
    struct content *file[] = {content_make(a), content_make(a), content_make(a)};
    const uint64_t hash = 0x0123456789abcdef;
    for (int i = 0; i < bits; i++) {
        struct box b = {.ndim = 2, .dim = {4, 6}};
        memcpy(b.from, bit[i].from, sizeof bit[i].from);
        memcpy(b.size, bit[i].size, sizeof bit[i].size);
        content_add(file[bit[i].file], "some.name", DTYPE_F32, &b,
                    (struct stretch){bit[i].part[0], bit[i].part[1]}, &hash, 1);
    }
    char *text[3];
    for (int i = 0; i < 3; i++)
        text[i] = content_text(file[i]);
    bool ok = manifest_text(a, "M", 7, "{\"x\":1}", BLOCK, text, 3, &out->at);
    out->size = ok ? (int64_t)strlen(out->at) : 0;
    return ok;
}

static void test_whole(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    static const struct bit bits[] = {  /* four boxes, one of them in two parts */
        {0, {0, 0}, {2, 3}, {0, 6}}, {1, {2, 3}, {2, 3}, {4, 6}},
        {2, {0, 3}, {2, 3}, {0, 6}}, {2, {2, 0}, {2, 3}, {0, 6}},
        {0, {2, 3}, {2, 3}, {0, 4}},
    };
    struct bytes text;
    struct manifest m;
    assert_ok(made_of(&a, bits, COUNT(bits), &text));
    assert_ok(manifest_parse(&a, "M", text, &m));
    assert_int_equal(m.step, 7);
    assert_int_equal(m.block, BLOCK);
    assert_string_equal(m.meta, "{\"x\":1}");
    assert_int_equal(m.files, 3);
    assert_int_equal(m.bytes[0], 40);
    assert_int_equal(m.bytes[1], 8);
    assert_int_equal(m.bytes[2], 48);
    assert_int_equal(m.tensors, 1);
    assert_null(manifest_find(&m, "some.nam"));
    const struct manifest_tensor *t = manifest_find(&m, "some.name");
    assert_int_equal(t->count, 24);
    assert_int_equal(t->pieces, 5);
    for (int64_t i = 0; i < t->pieces; i++)
        assert_true(t->hash[i][0] == 0x0123456789abcdef);
    arena_free(&a);
}

/* Every fault of coverage is a kind; each names the tensor and the files. */
static void test_not_whole(void **state)
{
    (void)state;
    static const struct { const char *says; struct bit bit[4]; } fault[] = {
        {"'some.name' has 24 elements, its pieces 12",          /* a box is missing */
         {{0, {0, 0}, {2, 6}, {0, 12}}}},
        {"no file has elements 5 to 6 of box [0..2, 0..6]",     /* a hole */
         {{0, {0, 0}, {2, 6}, {0, 5}}, {1, {0, 0}, {2, 6}, {6, 12}},
          {2, {2, 0}, {2, 6}, {0, 12}}}},
        {"no file has elements 0 to 1 of box [2..4, 0..6]",     /* at the start */
         {{0, {0, 0}, {2, 6}, {0, 12}}, {2, {2, 0}, {2, 6}, {1, 12}}}},
        {"no file has elements 11 to 12 of box [0..2, 0..6]",   /* at the end */
         {{0, {0, 0}, {2, 6}, {0, 11}}, {2, {2, 0}, {2, 6}, {0, 12}}}},
        {"files 0 and 1 both have element 4 of box [0..2, 0..6]",
         {{0, {0, 0}, {2, 6}, {0, 5}}, {1, {0, 0}, {2, 6}, {4, 12}},
          {2, {2, 0}, {2, 6}, {0, 12}}}},
        {"files 0 and 1 both have element 0 of box [2..4, 0..6]",       /* twice */
         {{0, {2, 0}, {2, 6}, {0, 12}}, {1, {2, 0}, {2, 6}, {0, 12}},
          {2, {0, 0}, {2, 6}, {0, 12}}}},
        {"boxes [0..2, 0..6] of file 0 and [1..3, 0..6] of file 1 do not fit",
         {{0, {0, 0}, {2, 6}, {0, 12}}, {1, {1, 0}, {2, 6}, {0, 12}}}},
        {"boxes [0..3, 0..6] of file 0 and [3..4, 0..6] of file 2 do not fit",
         {{0, {0, 0}, {3, 6}, {0, 18}}, {2, {3, 0}, {1, 6}, {0, 6}}}},
        {"piece 0 has a place, box, part or hashes that cannot be",     /* too far */
         {{0, {0, 0}, {2, 6}, {0, 13}}}},
        {"piece 0 has a place, box, part or hashes that cannot be",     /* outside */
         {{0, {3, 0}, {2, 6}, {0, 12}}}},
        {"piece 0 has a place, box, part or hashes that cannot be",     /* empty */
         {{0, {0, 0}, {2, 6}, {3, 3}}}},
    };
    struct arena a = arena_make("test");
    for (int i = 0; i < COUNT(fault); i++) {
        struct bytes text;
        int n = 0;
        while (n < 4 && fault[i].bit[n].size[0])
            n++;
        assert_fails(made_of(&a, fault[i].bit, n, &text), fault[i].says);
        assert_non_null(strstr(fail_message(), "'some.name'"));
    }
    arena_free(&a);
}

/* `from` replaced by `to` wherever it stands, sealed again. */
static struct bytes changed(struct arena *a, struct bytes text, const char *from,
                            const char *to)
{
    const char *at = strstr(text.at, from), *end = strstr(text.at, ", \"manifest\"");
    assert_non_null(at);
    char *body = arena_text(a, "%.*s%s%.*s", (int)(at - text.at), text.at, to,
                            (int)(end - at - (int64_t)strlen(from)), at + strlen(from));
    char *all = arena_text(a, "%s, \"manifest\": \"%016" PRIx64 "\"}", body,
                           XXH3_64bits(body, strlen(body)));
    return (struct bytes){all, (int64_t)strlen(all)};
}

static void test_changed(void **state)
{
    (void)state;
    static const struct { const char *from, *to, *says; } change[] = {
        {"\"step\": 7", "\"step\": 7", NULL},                   /* none at all */
        {"\"step\": 7", "\"step\": -7", "step, state, block"},
        {"\"step\": 7", "\"step\": \"7\"", "step, state, block"},
        {"\"state\"", "\"stat\"", "step, state, block"},
        {"\"block\": 1024", "\"block\": 0", "step, state, block"},
        {"[48, 48, 0]", "[48, 48]", NULL},      /* an empty file more or less */
        {"[48, 48, 0]", "[48, 48, 8]", "file 2 has 8 bytes, its pieces 0"},
        {"[48, 48, 0]", "[48, 49, 0]", "file 1 has 49 bytes, its pieces 48"},
        {"[48, 48, 0]", "[48, 47, 0]", "piece 1 has a place"},
        {"[48, 48, 0]", "[]", "step, state, block"},
        {"[48, 48, 0]", "7", "step, state, block"},
        {"\"file\": 1", "\"file\": 0", "meet at bytes"},
        {"\"file\": 1", "\"file\": 3", "piece 1 has a place"},
        {"\"file\": 1", "\"file\": -1", "piece 1 has a place"},
        {"\"file\": 1", "\"fil\": 1", "piece 1 has a place"},
        {"\"at\": 0", "\"at\": 1", "piece 0 has a place"},
        {"\"at\": 0", "\"at\": -4", "piece 0 has a place"},
        {"\"F32\"", "\"F33\"", "lacks a dtype, dim or pieces"},
        {"\"F32\"", "\"BF16\"", "file 0 has 48 bytes, its pieces 24"},
        {"\"F32\"", "\"F64\"", "piece 0 has a place"},
        {"\"dim\": [4, 6]", "\"dim\": [4, 9223372036854775807]", "lacks a dtype"},
        {"\"dim\": [4, 6]", "\"dim\": []", "lacks a dtype"},
        {"\"dim\": [4, 6]", "\"dim\": [4, 6, 1, 1, 1, 1, 1, 1]", "lacks a dtype"},
        {"\"dim\": [4, 6]", "\"dim\": [4, 0]", "lacks a dtype"},
        {"\"dim\": [4, 6]", "\"dim\": [4, 7]", "28 elements, its pieces 24"},
        {"\"dim\": [4, 6]", "\"dim\": [4]", "piece 0 has a place"},
        {"0123456789abcdef", "0123456789abcde", "piece 0 has a place"},
        {"0123456789abcdef", "0123456789abcdeg", "piece 0 has a place"},
        {"0123456789abcdef", "0123456789abcdef0123456789abcdef", "piece 0 has a place"},
        {"\"pieces\": [", "\"pieces\": [7, ", "piece 0 has a place"},
        {"\"tensors\": {", "\"tensors\": {\"x\": {}, ", "tensor 'x' lacks"},
        {"\"tensors\": {", "\"tensors\": {\"step\": 1, \"step\": 2, ", "is damaged"},
    };
    static const struct bit bits[] = {{0, {0, 0}, {2, 6}, {0, 12}},
                                      {1, {2, 0}, {2, 6}, {0, 12}}};
    struct arena a = arena_make("test");
    struct bytes text;
    struct manifest m;
    assert_ok(made_of(&a, bits, COUNT(bits), &text));
    for (int i = 0; i < COUNT(change); i++) {
        struct bytes bad = changed(&a, text, change[i].from, change[i].to);
        if (change[i].says)
            assert_fails(manifest_parse(&a, "M", bad, &m), change[i].says);
        else
            assert_ok(manifest_parse(&a, "M", bad, &m));
    }
    for (int64_t n = 0; n < text.size; n++)
        assert_fails(manifest_parse(&a, "M", (struct bytes){text.at, n}, &m),
                     "M is damaged");
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole), cmocka_unit_test(test_not_whole),
        cmocka_unit_test(test_changed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
