/* test_source_folder.c - images with a caption beside each, or in a list. */
#include "tests/data/scratch.h"

#include "base/log.h"
#include "recipe/recipe.h"

#include <unistd.h>

static void test_folder(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    static const char *const image[] = {
        "b.PNG",    "a/z.png",   "a.b.jpeg", "a/B.webp",    "a-b/x.jpg",
        "none.png", "blank.png", "bad.png",  ".hidden.png", ".git/x.png",
        "f.tiff",   "s.png",     "s.t.png"};
    for (int i = 0; i < COUNT(image); i++)
        scratch_png(&s, image[i]);
    scratch_text(&s, "b.txt", "\xef\xbb\xbf  A ball. \r\nde.utf8=Ein Ball.\n");
    scratch_text(&s, "a/z.txt", "A zebra.");
    scratch_text(&s, "a.b.txt", "<image> A boat.");
    scratch_text(&s, "a/B.txt", "\xc3\x84pfel\n");
    scratch_text(&s, "a-b/x.txt", "X");
    scratch_text(&s, "blank.txt", " \nsecond line");
    scratch_text(&s, "bad.txt", "\xff\xfe");
    scratch_text(&s, "f.txt", "Called a TIFF.");
    scratch_text(&s, "g.gif", "GIF89a");
    scratch_text(&s, "g.txt", "A real GIF.");
    scratch_text(&s, "s.txt", "S.");
    scratch_text(&s, "s.t.u.txt", "No image of that name.");
    scratch_text(&s, "v.svg", "<svg/>");
    scratch_text(&s, "v.txt", "A drawing.");
    scratch_text(&s, "a/alone.txt", "Alone.");
    /* bytewise by the whole path: '-' < '.' < '/' */
    static const struct {
        const char *name, *expected;
    } sample[] = {
        {"a-b/x.jpg", "user[<0>Describe the image.] assistant[X]"},
        {"a.b.jpeg", "user[<0>Describe the image.] assistant[<image> A boat.]"},
        {"a/B.webp", "user[<0>Describe the image.] assistant[\xc3\x84pfel]"},
        {"a/alone.txt", "a caption, but no image of that name"},
        {"a/z.png", "user[<0>Describe the image.] assistant[A zebra.]"},
        {"b.PNG", "user[<0>Describe the image.] assistant[A ball.]"},
        {"bad.png", "bad.txt: the caption is not UTF-8"},
        {"blank.png", "blank.txt: the caption is empty"},
        {"f.tiff", "user[<0>Describe the image.] assistant[Called a TIFF.]"},
        {"g.gif", "user[<0>Describe the image.] assistant[A real GIF.]"},
        {"none.png", "no caption, expected it in none.txt"},
        {"s.png", "user[<0>Describe the image.] assistant[S.]"},
        {"s.t.png", "no caption, expected it in s.t.txt"},
        {"s.t.u.txt", "a caption, but no image of that name"},
        {"v.txt", "a caption, but no image of that name"},
    };
    struct source *from = scratch_open(&s, arena_text(&s.arena, "%s/", s.folder), NULL);
    assert_string_equal(source_format(from), "folder");
    assert_int_equal(source_count(from), COUNT(sample));
    for (int i = 0; i < COUNT(sample); i++) {
        struct sample got;
        if (source_read(from, i, &s.arena, &got)) {
            assert_string_equal(sample_print(&s.arena, &got), sample[i].expected);
            assert_string_equal(got.name,
                                path_join(&s.arena, s.folder, sample[i].name));
            assert_false(got.mock);
            struct bytes file;
            assert_true(image_source_read(&s.arena, &got.image[0], &file));
            assert_memory_equal(file.at, text_ends(got.name, "gif") ? "GIF89a" :
                                (const char *)png, (size_t)file.size);
        } else {
            ASSERT_SAYS(sample[i].name, sample[i].expected);
            assert_int_equal(fail_fault(), FAULT_DATA);
        }
    }
    scratch_text(&s, "metadata.csv", "file_name,text\n");
    struct sample uncaptioned;
    assert_false(source_read(from, 10, &s.arena, &uncaptioned));
    ASSERT_SAYS("none.png", "metadata.csv is not read, write it as metadata.jsonl");
    scratch_text(&s, "metadata.jsonl", "");
    assert_false(source_read(from, 10, &s.arena, &uncaptioned));
    ASSERT_SAYS("none.png", "the metadata.jsonl beside it is read where");
    uint64_t hash = source_hash(from);
    source_close(from);
    struct source_options o = {.path = s.folder, .format = "folder", .prompt = "",
                               .match = "a/@(B|z).*"};
    assert_true(source_open(&s.arena, &o, &from));
    assert_int_equal(source_count(from), 2);
    struct sample got;
    assert_true(source_read(from, 1, &s.arena, &got));
    assert_string_equal(sample_print(&s.arena, &got), "user[<0>] assistant[A zebra.]");
    source_close(from);
    scratch_text(&s, "a/z.txt", "A zebra!!");
    from = scratch_open(&s, s.folder, "folder");
    assert_true(source_hash(from) != hash);
    source_close(from);
    scratch_remove(&s);
}

static void test_auto_folder(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    scratch_png(&s, "both/x.png");
    scratch_text(&s, "both/x.tar", "");
    scratch_text(&s, "json/x.json", "[]");
    assert_true(folder_make(path_join(&s.arena, s.folder, "empty")));
    static const struct {
        const char *folder, *words;
    } bad[] = {
        {"both", "1 tar shard and 1 image; set the format"},
        {"json", "give the path of a JSON file"},
        {"empty", "is an empty folder (readable: images with captions"},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        struct source_options o = {.path =
                                       path_join(&s.arena, s.folder, bad[i].folder)};
        struct source *from;
        assert_false(source_open(&s.arena, &o, &from));
        ASSERT_SAYS(o.path, bad[i].words);
        assert_int_equal(fail_fault(), FAULT_DATA);
    }
    struct source *from;
    struct source_options o = {.path = path_join(&s.arena, s.folder, "empty"),
                               .format = "folder"};
    assert_false(source_open(&s.arena, &o, &from));
    ASSERT_SAYS("no samples of format folder");
    scratch_remove(&s);
}

/* Of one link the system gives up after 40 turns: every image would be 41 samples; two
 * would take for ever. */
static void test_circle(void **state)
{
    (void)state;
    static const char *const to[] = {"..", ".", "../a"};
    for (int i = 0; i < COUNT(to); i++) {
        struct scratch s = scratch_make();
        scratch_png(&s, "a/x.png");
        scratch_text(&s, "a/x.txt", "a cat");
        assert_int_equal(symlink(to[i], path_join(&s.arena, s.folder, "a/up")), 0);
        assert_int_equal(symlink(to[i], path_join(&s.arena, s.folder, "a/vp")), 0);
        struct source_options o = {.path = s.folder, .format = "folder"};
        struct source *from;
        assert_false(source_open(&s.arena, &o, &from));
        ASSERT_SAYS("a/up: leads back to", "links form a circle");
        scratch_remove(&s);
    }
}

/* A folder that two links lead to is no circle. */
static void test_linked_folders(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    scratch_png(&s, "a/x.png");
    scratch_text(&s, "a/x.txt", "a cat");
    assert_int_equal(symlink("a", path_join(&s.arena, s.folder, "b")), 0);
    struct source *from = scratch_open(&s, s.folder, "folder");
    assert_int_equal(source_count(from), 2);
    source_close(from);
    scratch_remove(&s);
}

/* A folder that is called like an image is not the image of a caption. */
static void test_folder_named_image(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    assert_true(folder_make(path_join(&s.arena, s.folder, "x.png")));
    scratch_text(&s, "x.txt", "a cat");
    struct source *from = scratch_open(&s, s.folder, "folder");
    assert_int_equal(source_count(from), 1);
    struct arena item = arena_make("sample");
    struct sample sample;
    assert_false(source_read(from, 0, &item, &sample));
    ASSERT_SAYS("a caption, but no image of that name");
    arena_free(&item);
    source_close(from);
    scratch_remove(&s);
}

/* metadata.jsonl beside images makes their folder a source. */
static void test_imagefolder(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    scratch_png(&s, "set/sub/a.png");
    scratch_text(&s, "set/metadata.jsonl",
                 "{\"file_name\": \"sub/a.png\", \"text\": \"A cat.\"}\n"
                 "{\"file_name\": \"sub/b.png\", \"text\": \"Gone.\"}\n");
    struct source_options o = {.path = path_join(&s.arena, s.folder, "set"),
                               .prompt = "What?"};
    struct source *from;
    struct sample got;
    struct bytes file;
    assert_ok(source_open(&s.arena, &o, &from));
    assert_string_equal(source_format(from), "imagefolder");
    assert_null(source_remark(from));
    assert_string_equal(read_text(&s, from, 0), "user[<0>What?] assistant[A cat.]");
    assert_ok(source_read(from, 0, &s.arena, &got));
    assert_ok(image_source_read(&s.arena, &got.image[0], &file));
    assert_int_equal(file.size, sizeof png);
    assert_ok(source_read(from, 1, &s.arena, &got));
    assert_false(image_source_read(&s.arena, &got.image[0], &file));
    ASSERT_SAYS("set/sub/b.png", "No such file", "paths start at ", "/set, or where",
                "data.sources.N.images");
    source_close(from);
    scratch_remove(&s);
}

/* An image that no line names is left out, and said to be, whatever spelling names the
 * others; what is in a folder that cannot be walked is not known, and said so. */
static void test_unlisted(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    char *folder = path_join(&s.arena, s.folder, "set");
    static const char *const image[] = {"a.png", "sub/b.png", "c.png", "sub/d.png",
                                        "e.gif", "f.PNG"};
    for (int i = 0; i < COUNT(image); i++)
        scratch_png(&s, arena_text(&s.arena, "set/%s", image[i]));
    scratch_text(&s, "set/.hidden.png", "");
    scratch_text(&s, "set/c.txt", "A caption that is not read.\n");
    scratch_text(&s, "set/metadata.jsonl",
                 arena_text(&s.arena,
                            "{\"file_name\": \"./a.png\", \"text\": \"A\"}\n"
                            "{\"file_name\": \"file://%s/sub/b.png\", \"text\": "
                            "\"B\"}\n"
                            "{\"file_name\": \".//sub/./b.png\", \"text\": \"B\"}\n"
                            "not JSON\n{\"text\": \"x\"}\n", folder));
    struct source *from = scratch_open(&s, folder, "auto");
    assert_int_equal(source_count(from), 5);
    assert_string_equal(source_remark(from),
                        arena_text(&s.arena, "%s: images in no line of metadata.jsonl, "
                                   "so not read: 4 (first: c.png)", folder));
    assert_string_equal(fail_message(), "");
    source_close(from);
    from = scratch_open(&s, path_join(&s.arena, folder, "metadata.jsonl"),
                        "imagefolder");
    assert_null(source_remark(from));   /* asked for a file, not for a folder */
    source_close(from);
    assert_int_equal(symlink(folder, path_join(&s.arena, folder, "loop")), 0);
    from = scratch_open(&s, folder, "auto");
    assert_non_null(strstr(source_remark(from), "is not known: "));
    assert_non_null(strstr(source_remark(from), "links form a circle"));
    assert_string_equal(read_text(&s, from, 0),
                        "user[<0>Describe the image.] assistant[A]");
    source_close(from);
    scratch_remove(&s);
}

/* Every format that a recipe may name is one that is read here. */
static void test_recipes_formats(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    const struct recipe_field *f;
    const char *path = scratch_text(&s, "none.jsonl", "{}");
    int n = recipe_source_fields(&f), formats = 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; f[i].word && f[i].word[k]; k++, formats++) {
            struct source_options o = {.path = path, .format = f[i].word[k]};
            struct source *from;
            if (source_open(&s.arena, &o, &from))
                source_close(from);
            else if (strstr(fail_message(), "unknown format"))
                fail_msg("%s", fail_message());
            fail_clear();
        }
    assert_true(formats > 5);
    scratch_remove(&s);
}

int main(void)
{
    log_set(LOG_WARN, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recipes_formats),
        cmocka_unit_test(test_folder),
        cmocka_unit_test(test_auto_folder),
        cmocka_unit_test(test_circle),
        cmocka_unit_test(test_linked_folders),
        cmocka_unit_test(test_folder_named_image),
        cmocka_unit_test(test_imagefolder),
        cmocka_unit_test(test_unlisted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
