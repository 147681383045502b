/* test_source_tar.c - tar shards: members found where a hand-made tar has them, indexes
 * kept and distrusted, damage named; shards written and read back whole. */
#include "tests/data/scratch.h"

#include "base/log.h"
#include "base/queue.h"
#include "data/source/shard.h"
#include "data/source/tar_index.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a tar by hand: POSIX.1-1988 headers, no library ---- */

static void block_pad(struct text *t)
{
    static const char zero[512];
    text_add_bytes(t, zero, (512 - t->size % 512) % 512);
}

static void entry_add(struct text *t, const char *name, char type, const void *data,
                      size_t size)
{
    char head[512] = {0};
    unsigned sum = 0;
    snprintf(head, 100, "%s", name);
    snprintf(head + 100, 8, "%07o", 0644);
    snprintf(head + 108, 8, "%07o", 0);
    snprintf(head + 116, 8, "%07o", 0);
    snprintf(head + 124, 12, "%011zo", size);
    snprintf(head + 136, 12, "%011o", 0);
    memset(head + 148, ' ', 8);
    head[156] = type;
    memcpy(head + 257, "ustar\00000", 8);
    for (int i = 0; i < 512; i++)
        sum += (unsigned char)head[i];
    snprintf(head + 148, 8, "%06o", sum);
    text_add_bytes(t, head, 512);
    text_add_bytes(t, data, (int64_t)size);
    block_pad(t);
}

static void tar_add(struct text *t, const char *name, const char *data)
{
    entry_add(t, name, '0', data, strlen(data));
}

static void tar_png(struct text *t, const char *name)
{
    entry_add(t, name, '0', png, sizeof png);
}

static char *tar_write(struct scratch *s, const char *name, struct text *t)
{
    static const char zero[1024];
    text_add_bytes(t, zero, sizeof zero);
    return scratch_bytes(s, name, t->at, (size_t)t->size);
}

/* The name without folders and extension. */
static char *base_of(struct scratch *s, const char *name)
{
    const char *base = strrchr(name, '/') + 1;
    return arena_copy(&s->arena, base, strcspn(base, "."));
}

/* Sample `index` as text, whose images are all there; or why it is bad. */
static char *read_whole(struct scratch *s, const struct source *from, int64_t index)
{
    struct sample got;
    if (!source_read(from, index, &s->arena, &got))
        return arena_text(&s->arena, "bad: %s", fail_message());
    for (int i = 0; i < got.nimage; i++) {
        struct bytes file;
        assert_true(image_source_read(&s->arena, &got.image[i], &file));
        assert_int_equal(file.size, sizeof png);
        assert_memory_equal(file.at, png, sizeof png);
    }
    return sample_print(&s->arena, &got);
}

static void test_members(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct text t = text_make(&s.arena);
    char *name = NEW(&s.arena, char, 150), *pax = NEW(&s.arena, char, 300);
    memset(name, 'n', 120); /* too long for a plain header */
    memcpy(name + 120, ".png", 4);
    entry_add(&t, "dir", '5', "", 0);
    tar_png(&t, "dir/000.jpg");
    tar_add(&t, "dir/000.txt", "A cat.\non a mat\n");
    tar_add(&t, "dir/000.cls", "7");
    tar_png(&t, "../../etc/001.jpg");
    tar_add(&t, "../../etc/001.txt", "Outside.");
    tar_png(&t, "002.b.png");
    tar_png(&t, "002.a.png");
    tar_add(&t, "002.json",
            "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
            "\"image\", \"image\": \"a.png\"}, {\"type\": \"text\", \"text\": \"?\"}, "
            "{\"type\": \"image\", \"image\": \"002.b.png\"}]}]}");
    tar_add(&t, "003.json",
            "{\"conversations\": [{\"from\": \"human\", \"value\": "
            "\"<image>\\nWhat?\"}], \"image\": \"ignored.jpg\"}");
    tar_png(&t, "003.png");
    tar_add(&t, "004.json", "{\"caption\": \" A dog. \", \"url\": \"x\"}");
    tar_png(&t, "004.webp");
    entry_add(&t, "././@LongLink", 'L', name, strlen(name) + 1); /* GNU */
    tar_png(&t, "shortened.png");
    memcpy(name + 121, "txt", 3);
    int size = snprintf(pax, 300, "%d path=%s\n", 134, name); /* POSIX.1-2001 */
    assert_int_equal(size, 134);
    entry_add(&t, "PaxHeaders/x", 'x', pax, (size_t)size);
    tar_add(&t, "shortened.txt", "Long.");
    size = snprintf(pax, 300, "19 path=\xc3\xa4.x/5.txt\n"); /* not ASCII */
    assert_int_equal(size, 19);
    entry_add(&t, "PaxHeaders/y", 'x', pax, (size_t)size);
    tar_add(&t, "y.txt", "Umlaut.");
    tar_add(&t, ".hidden", "x");
    tar_add(&t, "noextension", "x");
    tar_add(&t, "dot.", "x");
    tar_add(&t, "twice.jpg", "x");
    tar_add(&t, "twice.jpg", "x");
    entry_add(&t, "pipe.jpg", '6', "", 0);
    tar_png(&t, "006.png");
    tar_add(&t, "007.json",
            "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
            "\"image\", \"image\": \"../x.png\"}]}]}");
    tar_png(&t, "008.png");
    tar_add(&t, "008.json",
            "{\"conversations\": [{\"from\": \"human\", \"value\": "
            "\"<image><image>\"}]}");
    tar_add(&t, "009.json", "{\"conversations\": ");
    tar_png(&t, "list.png");
    tar_add(&t, "list.json",
            "[{\"from\": \"human\", \"value\": \"<image>What?\"}, {\"from\": \"gpt\", "
            "\"value\": \"A cat.\"}]");
    tar_png(&t, "text.png");
    tar_add(&t, "text.json", "{\"text\": \"A cow.\", \"NSFW\": \"no\"}");
    tar_png(&t, "both.png");
    tar_add(&t, "both.txt", "A cow.\n");
    tar_add(&t, "both.json", "{\"caption\": \"A cow.\"}");
    tar_png(&t, "differ.png");
    tar_add(&t, "differ.txt", "A cow.");
    tar_add(&t, "differ.json", "{\"caption\": \"A dog.\"}");
    tar_png(&t, "turns.png");
    tar_add(&t, "turns.txt", "A cow.");
    tar_add(&t, "turns.json", "[{\"role\": \"user\", \"content\": \"<image>\"}]");
    tar_png(&t, "odd.png");
    tar_add(&t, "odd.txt", "A cow.");
    tar_add(&t, "odd.json", "{\"region\": [1, 2]}");
    tar_png(&t, "spare.png");
    tar_add(&t, "spare.json",
            "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", "
            "\"text\": \"?\"}]}]}");
    tar_png(&t, "count.png");
    tar_add(&t, "count.json",
            "{\"conversations\": [{\"from\": \"human\", \"value\": \"<image>\"}], "
            "\"images\": [\"a\", \"b\"]}");
    tar_png(&t, "010.png");
    tar_add(&t, "010.json",
            "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
            "\"text\", \"text\": \"<image>\"}, {\"type\": \"image\"}]}]}");
    static const char *const expected[] = {
        "user[<0>Describe the image.] assistant[A cat.\non a mat]",
        "user[<0>Describe the image.] assistant[Outside.]",
        "user[<0>?<1>]",
        "user[<0>What?]",
        "user[<0>Describe the image.] assistant[A dog.]",
        "user[<0>Describe the image.] assistant[Long.]",
        "x.tar:\xc3\xa4.x/5: a caption, but no image",
        "x.tar:noextension: member noextension is of unknown type",
        "x.tar:dot: member dot. is of unknown type",
        "x.tar:twice: has two members twice.jpg",
        "x.tar:pipe: member pipe.jpg is a link that leads to no file of the shard",
        "x.tar:006: no text, expected a .txt member",
        "x.tar:007: messages[0].content[0]: image: image '../x.png' is none of the 0",
        ("x.tar:008: 2 '<image>' placeholders but 1 image; text begins "
         "'<image><image>'"),
        "x.tar:009: json: not valid JSON",
        "user[<0>What?] assistant[A cat.]",
        "user[<0>Describe the image.] assistant[A cow.]",
        "user[<0>Describe the image.] assistant[A cow.]",
        "x.tar:differ: json: 'caption' is another text than the .txt member",
        "x.tar:turns: both a .txt member and turns in the .json",
        "x.tar:odd: json: the key 'region' is not read",
        "x.tar:spare: 1 image beside the turns, but image 1 has no part",
        "x.tar:count: images: names 2 images, but the key has 1",
        "user[<image><0>]",
    };
    const char *path = tar_write(&s, "x.tar", &t);
    for (int round = 0; round < 2; round++) { /* the second by the kept index */
        struct source *from = scratch_open(&s, path, NULL);
        assert_string_equal(source_format(from), "webdataset");
        assert_int_equal(source_count(from), COUNT(expected));
        for (int i = 0; i < COUNT(expected); i++) {
            char *got = read_whole(&s, from, i);
            if (!strstr(got, expected[i]))
                fail_msg("sample %d: expected %s, got %s", i, expected[i], got);
        }
        struct sample got;
        assert_true(source_read(from, 2, &s.arena, &got));
        assert_true(text_ends(got.image[0].name, "x.tar:002.a.png"));
        source_close(from);
        assert_true(file_exists(path_join(&s.arena, s.folder, "x.tar.idx")));
    }
    scratch_remove(&s);
}

/* Cut anywhere, the shard is refused with its name and a byte; whole, it opens. */
static void test_cut(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct text t = text_make(&s.arena);
    tar_png(&t, "a.png");
    tar_add(&t, "a.txt", "A.");
    tar_add(&t, "b.txt", "B.");
    int64_t members = t.size;
    tar_write(&s, "x.tar", &t);
    for (int64_t size = 0; size < members + 512; size += size % 512 == 0 ? 100 : 412) {
        char *path = scratch_bytes(&s, "x.tar", t.at, (size_t)size);
        struct source_options o = {.path = path, .format = "webdataset"};
        struct source *from;
        if (source_open(&s.arena, &o, &from))
            fail_msg("cut at %lld was accepted", (long long)size);
        ASSERT_SAYS("x.tar", "byte");
        assert_int_equal(fail_fault(), FAULT_DATA);
    }
    char *bad = arena_copy(&s.arena, t.at, (size_t)t.size);
    bad[1024 + 5] = '?'; /* the second header's checksum */
    struct source_options o = {.path = scratch_bytes(&s, "x.tar", bad, (size_t)t.size)};
    struct source *from;
    assert_false(source_open(&s.arena, &o, &from));
    ASSERT_SAYS("x.tar", "damaged at byte 1024");
    o.path = scratch_bytes(&s, "y.tar", "\x1f\x8b\x08\0\0\0\0\0", 8);
    assert_false(source_open(&s.arena, &o, &from));
    ASSERT_SAYS("y.tar");
    scratch_remove(&s);
}

/* Damage is where the member begins whose header cannot be read, whatever it says and
 * whatever long name comes before it; what follows the end of an archive is refused. */
static void test_damage(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct text t = text_make(&s.arena);
    char *name = NEW(&s.arena, char, 150);
    memset(name, 'n', 120);
    tar_add(&t, "a.txt", "A.");
    entry_add(&t, "././@LongLink", 'L', name, 121);
    tar_png(&t, "short.png");
    tar_add(&t, "c.txt", "C.");
    tar_write(&s, "x.tar", &t);
    static const struct { int header, member; } damage[] = {
        {1024, 1024}, {2048, 1024}, {3072, 3072}};
    static const struct { int at; unsigned char value; const char *words; } field[] = {
        {5, '?', "damaged at byte %d: "}, {150, '9', "damaged at byte %d: "},
        {124, 0xff, "damaged at byte %d: "}, {124, '7', "byte %d"}};
    for (int i = 0; i < COUNT(damage) * COUNT(field); i++) {
        int header = damage[i / COUNT(field)].header, k = i % COUNT(field);
        char *bad = arena_copy(&s.arena, t.at, (size_t)t.size);
        bad[header + field[k].at] = (char)field[k].value;
        unsigned sum = 8 * ' ';
        for (int n = 0; n < 512; n++)
            sum += n < 148 || n >= 156 ? (unsigned char)bad[header + n] : 0;
        if (field[k].at == 124)         /* a checksum that fits the damage */
            snprintf(bad + header + 148, 8, "%06o", sum);
        struct source_options o = {
            .path = scratch_bytes(&s, "x.tar", bad, (size_t)t.size)};
        struct source *from;
        assert_false(source_open(&s.arena, &o, &from));
        char words[64];
        snprintf(words, sizeof words, field[k].words,
                 damage[i / COUNT(field)].member);
        ASSERT_SAYS("x.tar", words);
    }
    char *more = arena_copy(&s.arena, t.at, (size_t)t.size);
    more[t.size - 1] = 'x';             /* behind the first of the two end blocks */
    struct source_options o = {.path = scratch_bytes(&s, "x.tar", more,
                                                     (size_t)t.size)};
    struct source *from;
    assert_false(source_open(&s.arena, &o, &from));
    ASSERT_SAYS("x.tar", arena_text(&s.arena, "at byte %lld, behind the end",
                                    (long long)t.size - 512));
    scratch_remove(&s);
}

/* A link is the file that it leads to, wherever that lies in the shard. */
static void test_links(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct text t = text_make(&s.arena);
    static const struct { const char *name, *target; char type; bool found; } link[] = {
        {"x/hard.png", "./x/a.png", '1', true},
        {"x/soft.png", "a.png", '2', true},
        {"x/later.png", "../y/b.png", '2', true},
        {"x/chain.png", "soft.png", '2', true},
        {"x/same.png", "../x/../x//./a.png", '2', true},
        {"x/gone.png", "none.png", '2', false},
        {"x/out.png", "/x/a.png", '2', false},
        {"x/up.png", "../../x/a.png", '2', false},
        {"x/self.png", "self.png", '2', false},
        {"x/there.png", "back.png", '2', false},
        {"x/back.png", "there.png", '2', false},
        {"x/folder.png", "../x", '2', false}};
    tar_png(&t, "x/a.png");
    tar_add(&t, "x/a.txt", "A.");
    for (int i = 0; i < COUNT(link); i++) {
        int64_t at = t.size;
        entry_add(&t, link[i].name, link[i].type, "", 0);
        char *head = t.at + at;
        memcpy(head + 157, link[i].target, strlen(link[i].target));
        unsigned sum = 8 * ' ';
        for (int n = 0; n < 512; n++)
            sum += n < 148 || n >= 156 ? (unsigned char)head[n] : 0;
        snprintf(head + 148, 8, "%06o", sum);
        tar_add(&t, arena_text(&s.arena, "x/%s.txt", base_of(&s, link[i].name)), "L.");
    }
    tar_png(&t, "y/b.png");
    tar_add(&t, "y/b.txt", "B.");
    const char *path = tar_write(&s, "x.tar", &t);
    for (int round = 0; round < 2; round++) { /* the second by the kept index */
        struct source *from = scratch_open(&s, path, NULL);
        assert_int_equal(source_count(from), COUNT(link) + 2);
        for (int i = 0; i < COUNT(link); i++) {
            char *got = read_whole(&s, from, i + 1);
            if (!strstr(got, link[i].found
                                 ? "user[<0>Describe the image.] assistant[L.]"
                                 : arena_text(&s.arena, "member %s.png is a link that "
                                              "leads to no file",
                                              base_of(&s, link[i].name))))
                fail_msg("%s: got %s", link[i].name, got);
        }
        source_close(from);
    }
    scratch_remove(&s);
}

/* Shards as the world has them. */
static void test_cases(void **state)
{
    (void)state;
    static const char cases[] = "tests/data/shard";
    struct scratch s = scratch_make();
    struct bytes file;
    assert_ok(file_read(&s.arena, path_join(&s.arena, cases, "concatenated.tar"),
                        1 << 20, &file));
    struct source_options o = {
        .path = scratch_bytes(&s, "x.tar", file.at, (size_t)file.size)};
    struct source *from;
    assert_false(source_open(&s.arena, &o, &from));
    ASSERT_SAYS("x.tar: goes on at byte ", "two archives");
    assert_ok(file_read(&s.arena, path_join(&s.arena, cases, "hardlink.tar"), 1 << 20,
                        &file));
    from = scratch_open(&s, scratch_bytes(&s, "x.tar", file.at, (size_t)file.size),
                        NULL);
    struct sample first, second;
    assert_ok(source_read(from, 0, &s.arena, &first));
    assert_ok(source_read(from, 1, &s.arena, &second));
    assert_int_equal(second.nimage, 1);
    assert_int_equal(first.image[0].data.size, second.image[0].data.size);
    assert_memory_equal(first.image[0].data.at, second.image[0].data.at,
                        first.image[0].data.size);
    source_close(from);
    assert_ok(file_read(&s.arena, path_join(&s.arena, cases, "unknown-types.tar"),
                        1 << 20, &file));
    from = scratch_open(&s, scratch_bytes(&s, "x.tar", file.at, (size_t)file.size),
                        NULL);
    static const char *const expected[] = {
        ":a0: member a0.gif is of unknown type",
        ":a1: member a1.avif is of unknown type",
        ":a2: member a2.tiff is of unknown type", NULL,
        ":a4: member a4.img is of unknown type"};
    assert_int_equal(source_count(from), COUNT(expected));
    for (int i = 0; i < COUNT(expected); i++) {
        bool good = source_read(from, i, &s.arena, &first);
        assert_int_equal(good, !expected[i]);
        if (good)
            assert_string_equal(sample_print(&s.arena, &first),
                                "user[<0>Describe the image.] assistant[ok]");
        else
            ASSERT_SAYS(expected[i]);
    }
    source_close(from);
    scratch_remove(&s);
}

/* Types of members and keys that the source's 'ignore' names need not be read. */
static void test_ignore(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct text t = text_make(&s.arena);
    tar_png(&t, "a.png");
    tar_add(&t, "a.npy", "x");
    tar_add(&t, "a.txt", "A.");
    tar_add(&t, "a.json", "{\"caption\": \"B.\", \"odd\": 1}");
    const char *path = tar_write(&s, "x.tar", &t);
    static const char *const words[] = {"npy caption odd", "caption odd", "npy odd",
                                        "npy caption", "npy, odd, txt"};
    static const char *const expected[] = {
        "assistant[A.]", "member a.npy is of unknown", "'caption' is another",
        "key 'odd'", "assistant[B.]"};
    for (int i = 0; i < COUNT(words); i++) {
        struct source_options o = {.path = path, .ignore = words[i]};
        struct source *from;
        assert_ok(source_open(&s.arena, &o, &from));
        assert_non_null(strstr(read_whole(&s, from, 0), expected[i]));
        source_close(from);
    }
    scratch_remove(&s);
}

static void test_apart(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct text t = text_make(&s.arena);
    tar_png(&t, "a.png");
    tar_add(&t, "b.txt", "B.");
    tar_add(&t, "a.txt", "A.");
    struct source_options o = {.path = tar_write(&s, "x.tar", &t)};
    struct source *from;
    assert_false(source_open(&s.arena, &o, &from));
    ASSERT_SAYS("x.tar", "key a are not beside each other");
    t = text_make(&s.arena);
    tar_add(&t, "a.txt", "1");
    tar_add(&t, "a.x.txt", "2");
    from = scratch_open(&s, tar_write(&s, "y.tar", &t), NULL);
    assert_non_null(strstr(read_whole(&s, from, 0), "y.tar:a: has two .txt members"));
    source_close(from);
    scratch_remove(&s);
}

/* A kept index is used, and not trusted: another shard, changed lines, foreign files.
 */
static void test_index(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct text t = text_make(&s.arena);
    tar_add(&t, "a.txt", "A.");
    char *path = tar_write(&s, "x.tar", &t),
         *idx = arena_text(&s.arena, "%s.idx", path);
    struct tar_index x;
    struct bytes kept, again;
    assert_true(tar_index_open(&s.arena, path, &x));
    assert_int_equal(x.count, 1);
    assert_int_equal(x.member[0].offset, 512);
    assert_int_equal(x.member[0].size, 2);
    assert_true(file_read(&s.arena, idx, 1 << 20, &kept));
    assert_non_null(strstr(kept.at, "\n512 2 a.txt\n"));
    char *changed = arena_copy(&s.arena, kept.at, (size_t)kept.size);
    strstr(changed, "512 2")[0] = '4'; /* lines that were tampered with */
    scratch_bytes(&s, "x.tar.idx", changed, (size_t)kept.size);
    assert_true(tar_index_open(&s.arena, path, &x));
    assert_int_equal(x.member[0].offset, 512);
    assert_true(file_read(&s.arena, idx, 1 << 20, &again));
    assert_string_equal(again.at, kept.at);
    struct source *from = scratch_open(&s, path, NULL);
    struct text u = text_make(&s.arena); /* another shard of the same name */
    tar_add(&u, "b.txt", "B.");
    tar_add(&u, "c.txt", "C.");
    tar_write(&s, "x.tar", &u);
    assert_non_null(strstr(read_whole(&s, from, 0), "the shard changed since"));
    source_close(from);
    assert_true(tar_index_open(&s.arena, path, &x));
    assert_int_equal(x.count, 2);
    struct timespec times[2] = {{1, 0}, {1, 0}}; /* same size, another time */
    struct text v = text_make(&s.arena);
    tar_add(&v, "d.txt", "D.");
    tar_add(&v, "e.txt", "E.");
    tar_write(&s, "x.tar", &v);
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    assert_true(tar_index_open(&s.arena, path, &x));
    assert_string_equal(x.member[0].name, "d.txt");
    scratch_text(&s, "x.tar.idx", "somebody's notes");
    assert_true(tar_index_open(&s.arena, path, &x));
    assert_int_equal(x.count, 2);
    assert_true(file_read(&s.arena, idx, 1 << 20, &again));
    assert_string_equal(again.at, "somebody's notes");
    scratch_remove(&s);
}

static void test_shard_names(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    for (int i = 8; i < 12; i++) {
        struct text t = text_make(&s.arena);
        tar_png(&t, arena_text(&s.arena, "k%d.png", i));
        tar_add(&t, arena_text(&s.arena, "k%d.txt", i), arena_text(&s.arena, "%d", i));
        tar_write(&s, arena_text(&s.arena, "x-%03d.tar", i), &t);
    }
    static const struct {
        const char *path;
        int count;
        const char *first;
    } found[] = {
        {"x-{008..011}.tar", 4, "[8]"},
        {"x-{009..010}.tar", 2, "[9]"},
        {"x-0{0..1}{0..1}.tar", 0, "x-000.tar"},
        {"x-01*.tar", 2, "[10]"},
        {"", 4, "[8]"},
        {"x-*", 4, "[8]"},
        {"x-{a,b}.tar", 0, "not a range"},
        {"y*.tar", 0, "no tar shards"},
        {"x-{011..008}.tar", 0, "not a range"},
        {"x-{0..9999999999}.tar", 0, "more than 1000000 shards"},
        {"x-{0..9223372036854775807}.tar", 0, "more than 1000000 shards"},
        {"x-{0..9223372036854775808}.tar", 0, "not a range"},
        {"x-{0..9999}{0..9999}.tar", 0, "more than 1000000 shards"},
        {"x-{1..9}{1..9}{1..9}{1..9}{1..9}{1..9}{1..9}{1..9}{1..9}.tar", 0,
         "more than 1000000 shards"},
    };
    for (int i = 0; i < COUNT(found); i++) {
        struct source_options o = {.path = path_join(&s.arena, s.folder, found[i].path),
                                   .format = "webdataset"};
        struct source *from;
        if (source_open(&s.arena, &o, &from)) {
            assert_int_equal(source_count(from), found[i].count);
            assert_non_null(strstr(read_whole(&s, from, 0), found[i].first));
            source_close(from);
        } else {
            assert_int_equal(found[i].count, 0);
            ASSERT_SAYS(found[i].first);
        }
    }
    struct source_options o = {
        .path = path_join(&s.arena, s.folder, "x-{008..011}.tar"), .match = "x-009*"};
    struct source *from;
    assert_true(source_open(&s.arena, &o, &from));
    assert_int_equal(source_count(from), 1);
    source_close(from);
    scratch_remove(&s);
}

/* ---- shards written ---- */

static char *mixed_source(struct scratch *s)
{
    scratch_png(s, "in/a.png");
    scratch_png(s, "in/b.jpg"); /* a PNG whatever it is called */
    scratch_text(s, "in/c.png", "no image at all");
    struct text t = text_make(&s->arena);
    for (int i = 0; i < 50; i++)
        text_add(
            &t,
            "{\"messages\": [{\"role\": \"system\", \"content\": \"%d\"}, "
            "{\"role\": \"user\", \"content\": [{\"type\": \"image\", \"image\": "
            "\"a.png\"}, {\"type\": \"text\", \"text\": \"<image>\\n\\\"%d\\\"\"}, "
            "{\"type\": \"image\", \"image\": \"%s.jpg\"}]}, {\"role\": "
            "\"assistant\", \"content\": \"\xc3\xa4\", \"weight\": %d}]}\n",
            i, i, i == 7 ? "none" : "b", i % 2);
    text_add(&t,
             "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\", "
             "\"image\": \"c.png\"}]}]}\n");
    return scratch_text(s, "in/x.jsonl", t.at);
}

static void test_pack(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct source *from = scratch_open(&s, mixed_source(&s), NULL);
    struct shard_options o = {.folder = path_join(&s.arena, s.folder, "out/"),
                              .bytes = 40000};
    struct shard_report r;
    assert_false(shards_write(from, &o, &r)); /* sample 7 lacks an image */
    ASSERT_SAYS("out: not written, as 2 of 51 samples cannot be read (--skip",
                "x.jsonl:8", "none.jpg");
    assert_int_equal(r.bad, 2);
    assert_false(folder_exists(path_join(&s.arena, s.folder, "out")));
    assert_false(folder_exists(path_join(&s.arena, s.folder, "out.part")));
    scratch_text(&s, "out.part/shard-000000.tar", "left by a crash");
    o.skip = true;
    if (!shards_write(from, &o, &r))
        fail_msg("%s", fail_message());
    assert_false(folder_exists(path_join(&s.arena, s.folder, "out.part")));
    assert_int_equal(r.samples, 49);
    assert_int_equal(r.images, 98);
    assert_int_equal(r.bad, 2);
    assert_int_equal(r.image_bytes, 98 * (int64_t)sizeof png);
    assert_non_null(strstr(r.first_bad, "none.jpg"));
    struct source *to = scratch_open(&s, o.folder, NULL);
    assert_int_equal(source_count(to), 49);
    for (int i = 0, k = 0; i < 50; i++) {
        if (i == 7)
            continue;
        char *text = read_whole(&s, to, k++);
        assert_string_equal(text, arena_text(&s.arena,
                                             "system[%d] user[<0><image>\n\"%d\""
                                             "<1>] %sassistant[\xc3\xa4]",
                                             i, i, i % 2 ? "" : "silent "));
    }
    char **name;
    int64_t count;
    assert_true(folder_list(&s.arena, o.folder, &name, &count));
    assert_int_equal(count, 2 * r.shards); /* a shard and its index each */
    assert_true(r.shards >= 3);
    for (int64_t i = 0; i < count; i++)
        if (text_ends(name[i], ".tar"))
            assert_true(file_size(path_join(&s.arena, o.folder, name[i])) <= o.bytes);
    assert_false(shards_write(from, &o, &r));
    ASSERT_SAYS("out is there already");
    source_close(to);
    /* the same source, the same bytes */
    struct shard_options p = o;
    p.folder = path_join(&s.arena, s.folder, "again");
    assert_true(shards_write(from, &p, &r));
    for (int64_t i = 0; i < count; i++) {
        struct bytes a, b;
        if (!text_ends(name[i], ".tar"))
            continue;
        assert_true(
            file_read(&s.arena, path_join(&s.arena, o.folder, name[i]), 1 << 20, &a));
        assert_true(
            file_read(&s.arena, path_join(&s.arena, p.folder, name[i]), 1 << 20, &b));
        assert_int_equal(a.size, b.size);
        assert_memory_equal(a.at, b.at, a.size);
    }
    source_close(from);
    scratch_remove(&s);
}

/* ---- many readers of one source ---- */

struct readers {
    const struct source *from;
    _Atomic int wrong;
};

static void read_all(void *arg, int index)
{
    struct readers *r = arg;
    struct arena item = arena_make("item");
    for (int round = 0; round < 20; round++)
        for (int64_t i = 0; i < source_count(r->from); i++) {
            struct sample got;
            int64_t at = (i + index * 13) % source_count(r->from);
            bool ok = source_read(r->from, at, &item, &got);
            if (at == 50 ? !ok || got.nimage != 1 : !ok || got.nimage != 2)
                r->wrong++;
            arena_free(&item);
        }
}

static void test_threads(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    struct source *from = scratch_open(&s, mixed_source(&s), NULL);
    struct readers r = {from, 0};
    workers_join(workers_start(4, read_all, &r));
    assert_int_equal(r.wrong, 0);
    source_close(from);
    scratch_remove(&s);
}

int main(void)
{
    log_set(LOG_WARN, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_members),     cmocka_unit_test(test_cut),
        cmocka_unit_test(test_damage),      cmocka_unit_test(test_links),
        cmocka_unit_test(test_cases),       cmocka_unit_test(test_ignore),
        cmocka_unit_test(test_apart),       cmocka_unit_test(test_index),
        cmocka_unit_test(test_shard_names), cmocka_unit_test(test_pack),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
