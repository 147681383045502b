/* test_safetensors.c - the file format: every way to be malformed, and the way back. */
#include "check.h"

#include "base/text.h"
#include "checkpoint/safetensors.h"

#include <sys/stat.h>

#include <signal.h>
#include <sys/resource.h>

/* A file of `header` (its size may be a lie, `claim` >= 0) and n bytes of data. */
static struct bytes file_of(struct arena *a, const char *header, int64_t claim,
                            int64_t n)
{
    int64_t size = (int64_t)strlen(header);
    struct bytes b = {NEW(a, char, 8 + size + n + 1), 8 + size + n};
    uint64_t says = (uint64_t)(claim >= 0 ? claim : size);
    for (int i = 0; i < 8; i++)
        b.at[i] = (char)(says >> 8 * i);
    memcpy(b.at + 8, header, (size_t)size);
    for (int64_t i = 0; i < n; i++)
        b.at[8 + size + i] = (char)i;
    return b;
}

static bool parse(struct arena *a, const char *header, int64_t n)
{
    struct safetensors s;
    return safetensors_parse(a, "x", file_of(a, header, -1, n), &s);
}

#define T(dtype, shape, from, to)                                                      \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #from "," #to "]}"

static void test_malformed(void **state)
{
    (void)state;
    static const struct { const char *head; int64_t data; const char *part; } bad[] = {
        {"", 0, "header is no JSON object"},
        {"not JSON", 0, "header is no JSON object"},
        {"[]", 0, "header is no JSON object"},
        {"\"text\"", 0, "header is no JSON object"},
        {"{\"a\":", 0, "header is no JSON object"},
        {"{} x", 0, "header is no JSON object"},
        {"{\"a\":1}", 0, "'a' lacks"},
        {"{\"a\":null}", 0, "'a' lacks"},
        {"{\"a\":[]}", 0, "'a' lacks"},
        {"{\"a\":{}}", 0, "'a' lacks"},
        {"{\"a\":{\"shape\":[],\"data_offsets\":[0,4]}}", 4, "'a' lacks"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "'a' lacks"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 4, "'a' lacks"},
        {"{\"a\":{\"dtype\":7,\"shape\":[],\"data_offsets\":[0,4]}}", 4, "'a' lacks"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":{},\"data_offsets\":[0,4]}}", 4, "lacks"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0]}}", 4,
         "'a' lacks"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4,4]}}", 4,
         "lacks"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4.0]}}", 4,
         "lacks"},
        {"{\"a\":" T("F8 E4M3", "[4]", 0, 4) "}", 4, "'F8 E4M3' is not supported"},
        {"{\"a\":" T("SEVENTEEN_LETTERS", "[1]", 0, 4) "}", 4, "is not supported"},
        {"{\"a\":" T("F8_E4M3", "[4]", 0, 5) "}", 4, "the data is 4 bytes"},
        {"{\"a\":" T("f32", "[1]", 0, 4) "}", 4, "'f32' is not supported"},
        {"{\"a\":" T("", "[1]", 0, 4) "}", 4, "'' is not supported"},
        {"{\"a\":" T("F32", "[1.5]", 0, 4) "}", 4, "not all whole numbers"},
        {"{\"a\":" T("F32", "[\"1\"]", 0, 4) "}", 4, "not all whole numbers"},
        {"{\"a\":" T("F32", "[null]", 0, 4) "}", 4, "not all whole numbers"},
        {"{\"a\":" T("F32", "[-1]", 0, 4) "}", 4, "impossible shape"},
        {"{\"a\":" T("F32", "[-1,-1]", 0, 4) "}", 4, "impossible shape"},
        {"{\"a\":" T("F32", "[4294967296,4294967296]", 0, 4) "}", 4,
         "impossible shape"},
        {"{\"a\":" T("F32", "[4294967296,1073741824]", 0, 0) "}", 0,
         "impossible shape"},
        {"{\"a\":" T("F64", "[1152921504606846976]", 0, 0) "}", 0, "impossible shape"},
        {"{\"a\":" T("F32", "[99999999999999999999]", 0, 4) "}", 4, "no JSON object"},
        {"{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "9 dimensions"},
        {"{\"a\":" T("F32", "[1]", -4, 0) "}", 4, "lies at -4..0"},
        {"{\"a\":" T("F32", "[1]", 4, 0) "}", 4, "lies at 4..0"},
        {"{\"a\":" T("F32", "[1]", 4, 8) "}", 4, "lies at 4..8, the data is 4 bytes"},
        {"{\"a\":" T("F32", "[1]", 0, 9223372036854775807) "}", 4, "lies at 0..92"},
        {"{\"a\":" T("F32", "[1]", -9223372036854775807, 9223372036854775807) "}", 4,
         "lies at -92"},
        {"{\"a\":" T("F32", "[2]", 0, 4) "}", 4,
         "F32 [2] = 8 bytes, its range holds 4"},
        {"{\"a\":" T("BF16", "[2,3]", 0, 16) "}", 16,
         "BF16 [2, 3] = 12 bytes, its range"},
        {"{\"a\":" T("F32", "[0,5]", 0, 4) "}", 4, "F32 [0, 5] = 0 bytes"},
        {"{\"a\":" T("F32", "[2]", 0, 8) ",\"b\":" T("F32", "[2]", 4, 12) "}", 12,
         "'a' and 'b' overlap"},
        {"{\"a\":" T("F32", "[2]", 0, 8) ",\"b\":" T("F32", "[2]", 0, 8) "}", 8,
         "overlap"},
        {"{\"a\":" T("F32", "[3]", 0, 12) ",\"b\":" T("F32", "[1]", 4, 8) "}", 12,
         "'a' and 'b' overlap"},
        {"{\"a\":" T("F32", "[1]", 0, 4) ",\"b\":" T("F32", "[1]", 8, 12) "}", 12,
         "4 unused bytes before tensor 'b'"},
        {"{\"a\":" T("F32", "[1]", 1, 5) "}", 5, "1 unused byte before tensor 'a'"},
        {"{\"a\":" T("F32", "[1]", 0, 4) "}", 5, "1 byte after the last tensor"},
        {"{}", 3, "3 bytes after the last tensor"},
        {"{\"a\":" T("F32", "[1]", 0, 4) ",\"a\":" T("F32", "[1]", 4, 8) "}", 8,
         "duplicate object key"},
        {"{\"a\\u0000b\":" T("F32", "[1]", 0, 4) "}", 4, "no JSON object"},
        {"{\"a\xff\":" T("F32", "[1]", 0, 4) "}", 4, "no JSON object"},
        {"{\"__metadata__\":7}", 0, "__metadata__ is no object"},
        {"{\"__metadata__\":[\"format\",\"pt\"]}", 0, "__metadata__ is no object"},
        {"{\"__metadata__\":{\"k\":7}}", 0, "metadata 'k' is not text"},
        {"{\"__metadata__\":{\"k\":null}}", 0, "metadata 'k' is not text"},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        struct arena a = arena_make("test");
        assert_fails(parse(&a, bad[i].head, bad[i].data), bad[i].part);
        assert_true(text_starts(fail_message(), "safetensors: x"));
        arena_free(&a);
    }
}

/* Raw NUL bytes and control characters end no text early. */
static void test_nul_bytes(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct safetensors s;
    const char good[] = "{\"a\":" T("F32", "[1]", 0, 4) "}   ";
    for (int i = 0; i < (int)sizeof good - 1; i++)
        for (int c = 0; c < 32; c += 1 + 8 * (c > 0)) {
            struct bytes b = file_of(&a, good, -1, 4);
            b.at[8 + i] = (char)c;
            bool space = c == '\t' || c == '\n' || c == '\r' || c == ' ';
            bool ok = safetensors_parse(&a, "x", b, &s);
            if (ok && !space)
                fail_msg("byte %d at %d of the header was accepted", c, i);
        }
    arena_free(&a);
}

static void test_deep_nesting(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    enum { DEEP = 1 << 20 };
    char *header = NEW(&a, char, DEEP + 1);
    memset(header, '[', DEEP);
    assert_fails(parse(&a, header, 0), "no JSON object");
    memcpy(header, "{\"a\":", 5);
    assert_fails(parse(&a, header, 0), "no JSON object");
    arena_free(&a);
}

/* Cut after every byte, each cut fails; whole, it is read. */
static void test_truncated(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct safetensors s;
    struct bytes whole = file_of(&a, "{\"a\":" T("F32", "[3]", 0, 12) ",\"b\":"
                                     T("U8", "[2]", 12, 14) "}", -1, 14);
    for (int64_t n = 0; n < whole.size; n++) {
        struct bytes cut = {arena_copy(&a, whole.at, (size_t)n), n};    /* own bounds */
        assert_false(safetensors_parse(&a, "x", cut, &s));
        if (n < 8)
            assert_non_null(strstr(fail_message(), "a header needs 8"));
    }
    assert_ok(safetensors_parse(&a, "x", whole, &s));
    arena_free(&a);
}

static void test_header_size(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct safetensors s;
    const int64_t claim[] = {3, 11, 100, 1 << 20, (int64_t)1 << 40, INT64_MAX};
    for (int i = 0; i < COUNT(claim); i++)
        assert_fails(safetensors_parse(&a, "x", file_of(&a, "{}", claim[i], 0), &s),
                     "in a file of 10");
    struct bytes all_ones = file_of(&a, "{}", 2, 0);
    memset(all_ones.at, 0xff, 8);
    assert_fails(safetensors_parse(&a, "x", all_ones, &s), "18446744073709551615");
    assert_fails(safetensors_parse(&a, "x", file_of(&a, "{}", 1, 0), &s), "JSON");
    assert_fails(safetensors_parse(&a, "x", file_of(&a, "{}", 0, 0), &s), "JSON");
    arena_free(&a);
}

static void test_good(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct safetensors s;
    const char *header = "{\"late\":" T("BF16", "[2,1]", 4, 8) ",\"none\":"
                         T("F32", "[0,3]", 4, 4) ",\"__metadata__\":{\"format\":\"pt\","
                         "\"\":\"empty\"},\"one\":" T("I32", "[]", 0, 4) "}";
    assert_ok(safetensors_parse(&a, "x", file_of(&a, header, -1, 8), &s));
    assert_int_equal(s.count, 3);
    assert_string_equal(s.tensor[0].name, "one");       /* in the order of their data */
    assert_string_equal(s.tensor[1].name, "none");
    assert_string_equal(s.tensor[2].name, "late");
    const struct disk_tensor *t = safetensors_find(&s, "one");
    assert_int_equal(t->ndim, 0);
    assert_int_equal(t->count, 1);
    t = safetensors_find(&s, "late");
    assert_int_equal(t->dtype, DTYPE_BF16);
    assert_int_equal(t->ndim, 2);
    assert_int_equal(t->bytes, 4);
    assert_int_equal(*(const uint8_t *)t->data, 4);
    assert_int_equal(safetensors_find(&s, "none")->count, 0);
    assert_null(safetensors_find(&s, "__metadata__"));
    assert_null(safetensors_find(&s, "lat"));
    assert_string_equal(safetensors_meta(&s, "format"), "pt");
    assert_string_equal(safetensors_meta(&s, ""), "empty");
    assert_null(safetensors_meta(&s, "pt"));
    assert_ok(parse(&a, "{}", 0));
    assert_ok(parse(&a, "{\"__metadata__\":{}}", 0));
    arena_free(&a);
}

static void test_round_trip(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a), *path = path_join(&a, folder, "x.safetensors");
    const double wide[] = {1.5, -2.5};
    const uint8_t small[] = {1, 2, 3};
    const uint16_t half[] = {0x3f80, 0xbf80, 0x7fc0, 0};
    const struct disk_tensor t[] = {
        {"model.\"q\" \\ \xc3\xa9", DTYPE_U8, 1, {3}, 3, 3, small, NULL},      /* odd */
        {"wide", DTYPE_F64, 2, {2, 1}, 2, 16, wide, NULL},
        {"empty", DTYPE_I64, 3, {4, 0, 2}, 0, 0, NULL, NULL},
        {"scalar", DTYPE_U8, 0, {0}, 1, 1, small, NULL},
        {"half", DTYPE_BF16, 8, {1, 1, 1, 2, 1, 2, 1, 1}, 4, 8, half, NULL},
    };
    static const char *const meta[] = {"format", "pt", "why", "a \"test\"\n"};
    struct safetensors_writer *w;
    assert_ok(safetensors_create(&a, path, t, COUNT(t), meta, 2, &w));
    for (int i = 0; i < COUNT(t); i++)
        assert_ok(safetensors_write(w, t[i].data, t[i].bytes));
    assert_ok(safetensors_finish(w));
    struct safetensors s;
    assert_ok(safetensors_open(&a, path, &s));
    assert_int_equal((s.map.size - 28) % 8, 0);         /* data begins at 8 bytes */
    assert_int_equal(s.count, COUNT(t));
    assert_int_equal(s.nmeta, 2);
    assert_string_equal(safetensors_meta(&s, "why"), meta[3]);
    for (int i = 0; i < COUNT(t); i++) {
        const struct disk_tensor *r = safetensors_find(&s, t[i].name);
        assert_non_null(r);
        assert_int_equal(r->dtype, t[i].dtype);
        assert_int_equal(r->ndim, t[i].ndim);
        assert_memory_equal(r->dim, t[i].dim, sizeof r->dim);
        assert_int_equal(r->count, t[i].count);
        assert_int_equal(r->bytes, t[i].bytes);
        if (r->bytes)
            assert_memory_equal(r->data, t[i].data, (size_t)r->bytes);
    }
    safetensors_close(&s);
    safetensors_close(&s);              /* harmless */
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

static void test_world(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a), *path = path_join(&a, folder, "x.safetensors");
    struct safetensors s;
    struct safetensors_writer *w;
    const struct disk_tensor t = {"t",     DTYPE_U8, 1,    {1 << 20},
                                  1 << 20, 1 << 20,  NULL, NULL};
    char *data = NEW(&a, char, 1 << 20);
    assert_fails(safetensors_open(&a, path, &s), path);
    assert_fails(safetensors_open(&a, folder, &s), "regular file");
    assert_ok(file_replace(path, "", 0));
    assert_fails(safetensors_open(&a, path, &s), "0 bytes, a header needs 8");
    assert_ok(file_replace(path, "not a checkpoint", 16));
    assert_fails(safetensors_open(&a, path, &s), "not a safetensors file");
    assert_null(s.map.at);              /* so that a close after it does no harm */
    safetensors_close(&s);
    assert_fails(safetensors_create(&a, path_join(&a, path, "x"), &t, 1, NULL, 0, &w),
                 "create");
    struct rlimit before, little;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little = (struct rlimit){4096, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    assert_ok(safetensors_create(&a, path, &t, 1, NULL, 0, &w));
    assert_false(safetensors_write(w, data, t.bytes) && safetensors_finish(w));
    assert_non_null(strstr(fail_message(), "File too large"));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_ok(safetensors_create(&a, path, &t, 1, NULL, 0, &w));
    safetensors_abandon(w);
    assert_int_equal(file_size(path), 16);      /* what was there before, and alone */
    assert_string_equal(check_names(&a, folder), "x.safetensors");
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

static void test_count(void **state)
{
    (void)state;
    assert_int_equal(disk_count(0, NULL), 1);
    assert_int_equal(disk_count(2, (const int64_t[]){3, 5}), 15);
    assert_int_equal(disk_count(2, (const int64_t[]){0, INT64_MAX}), 0);
    assert_int_equal(disk_count(2, (const int64_t[]){2, INT64_MAX}), -1);
    assert_int_equal(disk_count(1, (const int64_t[]){-1}), -1);
    struct arena a = arena_make("test");
    assert_string_equal(disk_text(&a, "BF16", 2, (const int64_t[]){8, 16}),
                        "BF16 [8, 16]");
    assert_string_equal(disk_text(&a, "F32", 0, NULL), "F32 []");
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_malformed),   cmocka_unit_test(test_nul_bytes),
        cmocka_unit_test(test_deep_nesting), cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_header_size), cmocka_unit_test(test_good),
        cmocka_unit_test(test_round_trip),  cmocka_unit_test(test_world),
        cmocka_unit_test(test_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
