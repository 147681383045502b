/* test_text.c - building, splitting, reading and comparing text. */
#include "check.h"

#include <inttypes.h>
#include "base/text.h"

static void test_building_grows(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct text t = text_make(&a);
    assert_string_equal(t.at, "");
    for (int i = 0; i < 1000; i++)
        text_add(&t, "%d,", i % 10);
    text_add_bytes(&t, "\0z", 2);
    text_add_bytes(&t, NULL, 0);
    assert_int_equal(t.size, 2002);
    assert_int_equal(strlen(t.at), 2000);
    assert_int_equal(t.at[2001], 'z');
    assert_int_equal(t.at[2002], 0);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(t.at[2 * i], '0' + i % 10);
    arena_free(&a);
}

static void test_starts_and_ends(void **state)
{
    (void)state;
    assert_true(text_starts("model.layers.0", "model."));
    assert_true(text_starts("x", ""));
    assert_false(text_starts("mod", "model"));
    assert_false(text_starts("Model", "model"));
    assert_true(text_ends("photo.JPG", ".jpg"));
    assert_false(text_ends("jpg", ".jpg"));
    assert_false(text_ends("photo.jpg.txt", ".jpg"));
}

static void test_numbers_are_whole_and_finite(void **state)
{
    (void)state;
    double x = -1;
    assert_true(text_number("1e-4", &x));
    assert_true(x == 1e-4);
    assert_true(text_number("-.5", &x));
    assert_true(x == -0.5);
    static const char *const bad[] = {"", " 1", "1 ", "1x", "inf", "nan", "-inf",
                                      "1e999", "-", "+ 1", "."};
    for (int i = 0; i < COUNT(bad); i++)
        assert_false(text_number(bad[i], &x));
    assert_true(x == -0.5);                                 /* untouched by failures */
    int64_t n;
    assert_true(text_integer("9223372036854775807", &n));
    assert_int_equal(n, INT64_MAX);
    assert_true(text_integer("-9223372036854775808", &n));
    assert_int_equal(n, INT64_MIN);
    static const char *const not_whole[] = {"", "9223372036854775808", "1.5", "0x10",
                                            " 4", "4 ", "-", "1e3"};
    for (int i = 0; i < COUNT(not_whole); i++)
        assert_false(text_integer(not_whole[i], &n));
}

static void test_split(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char **word;
    assert_int_equal(text_split(&a, ", alpha,,beta gamma ,", ", ", &word), 3);
    assert_string_equal(word[0], "alpha");
    assert_string_equal(word[1], "beta");
    assert_string_equal(word[2], "gamma");
    assert_int_equal(text_split(&a, "", ",", &word), 0);
    assert_int_equal(text_split(&a, ",,,", ",", &word), 0);
    arena_free(&a);
}

static void test_distance_is_a_metric(void **state)
{
    (void)state;
    assert_int_equal(text_distance("kitten", "sitting"), 3);
    assert_int_equal(text_distance("", "abc"), 3);
    assert_int_equal(text_distance("abc", ""), 3);
    assert_int_equal(text_distance("flaw", "lawn"), 2);
    static const char *const word[] = {"", "a", "lr", "rate", "learning_rate", "mix"};
    for (int i = 0; i < COUNT(word); i++)
        for (int j = 0; j < COUNT(word); j++) {
            int ij = text_distance(word[i], word[j]);
            assert_int_equal(ij == 0, i == j);
            assert_int_equal(ij, text_distance(word[j], word[i]));
            for (int k = 0; k < COUNT(word); k++)
                assert_true(ij <= text_distance(word[i], word[k]) +
                                      text_distance(word[k], word[j]));
        }
    const char *const table[] = {"b200", "h200"};
    assert_string_equal(text_nearest("H200", table, 2), "h200");
    const char *nearest = text_nearest("lerning_rate", word, COUNT(word));
    assert_string_equal(nearest, "learning_rate");
    static const char *const begun[] = {"plan", "generate", "general"};
    assert_string_equal(text_nearest("Gen", begun, COUNT(begun)), "generate");
    assert_string_equal(text_nearest("", begun, COUNT(begun)), "plan");
    assert_null(text_nearest("x", NULL, 0));
}

static void test_utf8(void **state)
{
    (void)state;
    static const char *const good[] = {"", "abc", "\x7F", "\xC2\x80", "\xDF\xBF",
        "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80", "\xEF\xBF\xBF",
        "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"};
    for (int i = 0; i < COUNT(good); i++)
        assert_true(text_utf8(good[i], (int64_t)strlen(good[i])));
    static const char *const bad[] = {"\x80", "\xC0\x80", "\xC1\xBF", "\xC2",
        "\xC2\x41", "\xE0\x9F\xBF", "\xE0\xA0", "\xED\xA0\x80", "\xF0\x8F\xBF\xBF",
        "\xF0\x90\x80",
        "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "ok\xE2\x82", "\xE2\x82\x41"};
    for (int i = 0; i < COUNT(bad); i++)
        assert_false(text_utf8(bad[i], (int64_t)strlen(bad[i])));
    assert_true(text_utf8("a\0b", 3));
}

/* Every code point, encoded by hand, is valid unless it is a surrogate. */
static void test_utf8_over_all_code_points(void **state)
{
    (void)state;
    for (uint32_t c = 0x800; c < 0x120000; c++) {
        char s[4] = {(char)(0xE0 | c >> 12), (char)(0x80 | (c >> 6 & 63)),
                     (char)(0x80 | (c & 63)), 0};
        int size = 3;
        if (c >= 0x10000) {
            s[0] = (char)(0xF0 | c >> 18);
            s[1] = (char)(0x80 | (c >> 12 & 63));
            s[2] = (char)(0x80 | (c >> 6 & 63));
            s[3] = (char)(0x80 | (c & 63));
            size = 4;
        }
        bool valid = !(c >= 0xD800 && c < 0xE000) && c < 0x110000;
        if (text_utf8(s, size) != valid)
            fail_msg("U+%X", c);
    }
}

static void assert_shown(const char *text, bool lines, const char *want)
{
    char got[128] = "";
    FILE *f = tmpfile();
    assert_non_null(f);
    text_show(f, text, lines);
    rewind(f);
    got[fread(got, 1, sizeof got - 1, f)] = 0;
    fclose(f);
    assert_string_equal(got, want);
}

/* A terminal shows it and obeys nothing. */
static void test_show(void **state)
{
    (void)state;
    const char *kept = "plain \xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80\tx\xc2\xa0";
    assert_shown(kept, false, kept);
    assert_shown("a\nb", true, "a\nb");
    assert_shown("a\nb", false, "a\\nb");
    assert_shown("\x1b]0;title\x07\x1b[2J", true, "\\x1b]0;title\\x07\\x1b[2J");
    assert_shown("\r\x08\x7f\x01", true, "\\x0d\\x08\\x7f\\x01");
    assert_shown("\xc2\x9b" "31m \xc2\x80\xc2\x9f", true,     /* C1 */
                 "\\xc2\\x9b31m \\xc2\\x80\\xc2\\x9f");
    assert_shown("\x9b" "31m", true, "\\x9b31m");                /* and as one byte */
    assert_shown("\xe4\xb8", true, "\\xe4\\xb8");                /* cut short */
    assert_shown("\xc0\x9b\xed\xa0\x80", true, "\\xc0\\x9b\\xed\\xa0\\x80");
    assert_shown("", true, "");
}

static void assert_format(const char *want, const char *fmt, ...)
{
    char got[128];
    va_list args;
    va_start(args, fmt);
    assert_int_equal(text_format(got, sizeof got, fmt, args), strlen(want));
    va_end(args);
    assert_string_equal(got, want);
}

/* A word is plural unless the whole number before it is 1, whatever else is printed;
 * what the arguments hold is left as it is. */
static void test_plurals(void **state)
{
    (void)state;
    assert_format("1 image, 2 patches", "%d image(s), %lld patch(es)", 1, 2LL);
    assert_format("0 images, 1 patch", "%zu image(s), %ld patch(es)", (size_t)0, 1L);
    assert_format("1 byte", "%td byte(s)", (ptrdiff_t)1);
    assert_format("-1 images of 11 a(s)", "%d image(s) of %*d %s", -1, 2, 11, "a(s)");
    assert_format("1 of 2 samples (1.5 MB)", "%d of %" PRId64 " sample(s) (%.1f MB)", 1,
                  (int64_t)2, 1.5);
    assert_format("1 'ab' place, 3%", "%d '%.*s' place(s), %u%%", 1, 2, "abc", 3u);
    struct arena a = arena_make("test");
    fail("%d step(s)", 1);
    assert_string_equal(fail_message(), "1 step");
    fail_in("%d step(s)", 2);
    assert_string_equal(fail_message(), "2 steps: 1 step");
    assert_string_equal(arena_text(&a, "%d row(s)", 1), "1 row");
    struct text t = text_make(&a);
    text_add(&t, "%d row(s)", 1);
    text_add(&t, ", %d row(s)", 5);
    assert_string_equal(t.at, "1 row, 5 rows");
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_show),
        cmocka_unit_test(test_plurals),
        cmocka_unit_test(test_building_grows),
        cmocka_unit_test(test_starts_and_ends),
        cmocka_unit_test(test_numbers_are_whole_and_finite),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_distance_is_a_metric),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_utf8_over_all_code_points),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
