/* test_docs.c - what the pages say is true: links lead somewhere, files and names that
 * are mentioned exist, excerpts are what code and plans say, nothing is left out. */
#include "check.h"

#include "lint/files.h"
#include "outlook/outlook.h"

#include <ctype.h>
#include <glob.h>

enum { COLUMNS = 100, FILE_MOST = 1 << 24 };

static bool quiet;                      /* while the checks are tested themselves */

static void complain(const char *fmt, ...) PRINTF_LIKE(1, 2);
static void complain(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    if (!quiet)
        vprint_error(fmt, args);
    va_end(args);
}

struct page { const char *path, *text; };
struct pages { struct page *at; int64_t count, room; };

static const char *read_text(struct arena *a, const char *path)
{
    struct bytes file;
    assert_ok(file_read(a, path, FILE_MOST, &file));
    return file.at;
}

static struct pages pages_all(struct arena *a)
{
    struct pages p = {0};
    struct files f = files_all(a);
    for (int64_t i = 0; i < f.count; i++) {
        bool doc = text_starts(f.path[i], "docs/") && text_ends(f.path[i], ".md");
        if (!doc && strcmp(f.path[i], "README.md") != 0)
            continue;
        GROW(a, p.at, p.count, p.room);
        p.at[p.count++] = (struct page){f.path[i], read_text(a, f.path[i])};
    }
    assert_true(p.count > 5);           /* or this test looks in the wrong place */
    return p;
}

/* The next line, without its end; NULL after the last. */
static char *next_line(struct arena *a, const char **text)
{
    if (!**text)
        return NULL;
    size_t n = strcspn(*text, "\n");
    char *line = arena_copy(a, *text, n);
    *text += n + ((*text)[n] == '\n');
    return line;
}

static bool is_fence(const char *line)
{
    return text_starts(line, "```");
}

/* ---- links: [text](target), with the page's own folder in front ---- */

static int check_links(struct arena *a, const struct page *p)
{
    int wrong = 0;
    size_t folder = (size_t)(files_base(p->path) - p->path);
    for (const char *at = strstr(p->text, "]("); at; at = strstr(at + 2, "](")) {
        char *target = arena_copy(a, at + 2, strcspn(at + 2, ")#\n"));
        if (!*target || strstr(target, "://"))
            continue;
        char *path = arena_text(a, "%.*s%s", (int)folder, p->path, target);
        if (!file_exists(path) && !folder_exists(path)) {
            complain("%s: the link to %s leads nowhere\n", p->path, target);
            wrong++;
        }
    }
    return wrong;
}

/* ---- files and names in backticks ---- */

static bool is_there(struct arena *a, const char *path)
{
    glob_t found;
    if (!strchr(path, '*'))
        return file_exists(path) || folder_exists(path);
    bool any = glob(path_join(a, ".", path), 0, NULL, &found) == 0;
    globfree(&found);
    return any;
}

/* A path of this project: it begins with one of its folders, or ends like its code. */
static bool is_path(const char *span)
{
    static const char *const root[] = {"src/",     "vision/", "decoder/", "kernels/",
                                       "data/",    "recipes/", "tests/",  "docs/",
                                       "./",       ".ci/"};
    static const char *const code[] = {".c", ".h", ".def", ".py"};
    if (span[strspn(span, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                          "0123456789_-./*")])
        return false;
    for (int i = 0; i < COUNT(root); i++)
        if (text_starts(span, root[i]))
            return true;
    for (int i = 0; i < COUNT(code); i++)
        if (text_ends(span, code[i]) && span[0] != '.')
            return true;
    return false;
}

static bool is_named(const struct files *f, const char *base)
{
    for (int64_t i = 0; i < f->count; i++)
        if (strcmp(files_base(f->path[i]), base) == 0)
            return true;
    return false;
}

/* Everything that names may be found in. */
static const char *code_all(struct arena *a, const struct files *f)
{
    struct text t = text_make(a);
    for (int64_t i = 0; i < f->count; i++)
        if (files_is_code(f->path[i]) || text_ends(f->path[i], ".def") ||
            strcmp(f->path[i], "CMakeLists.txt") == 0)
            text_add(&t, "%s\n", read_text(a, f->path[i]));
    return t.at;
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* A name of the code: one word with an underscore in it, or a tag. */
static bool is_name(const char *span)
{
    if (text_starts(span, "struct ") || text_starts(span, "enum "))
        return true;
    const char *end = span;
    while (is_word(*end))
        end++;
    return !*end && strchr(span, '_');
}

static bool is_in(const char *code, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = code; (at = strstr(at, name)) != NULL; at += n)
        if (!is_word(at[n]) && (at == code || !is_word(at[-1])))
            return true;
    return false;
}

static int check_spans(struct arena *a, const struct page *p, const struct files *f,
                       const char *code)
{
    int wrong = 0;
    const char *text = p->text;
    bool fenced = false;
    for (char *line; (line = next_line(a, &text)) != NULL;) {
        fenced ^= is_fence(line);
        if (fenced)
            continue;
        for (const char *at = strchr(line, '`'); at;) {
            const char *end = strchr(at + 1, '`');
            if (!end)
                break;
            char *span = arena_copy(a, at + 1, (size_t)(end - at - 1));
            bool ok = is_path(span) ? is_there(a, span) ||
                                          is_there(a, path_join(a, "src", span)) ||
                                          (!strchr(span, '/') && is_named(f, span))
                                    : !is_name(span) || is_in(code, span);
            if (!ok)
                complain("%s: there is no %s\n", p->path, span);
            wrong += !ok;
            at = strchr(end + 1, '`');
        }
    }
    return wrong;
}

/* ---- excerpts: ```LANGUAGE FILE, or ```plan RECIPE [section.key=value ...] ---- */

/* Where the fence says its lines are from; NULL: from nowhere. */
static const char *origin(struct arena *a, const char *fence)
{
    char **word;
    int words = text_split(a, fence + 3, " ", &word);
    if (words < 2)
        return NULL;
    if (strcmp(word[0], "plan") != 0)
        return read_text(a, word[1]);
    struct recipe r;
    struct text t = text_make(a);
    assert_ok(recipe_read(a, word[1], (const char *const *)word + 2, words - 2, &r));
    assert_ok(outlook(&r, &(struct outlook_options){.rank = -1, .explain = true}, &t));
    return t.at;
}

/* The text after the first whole line like this one; NULL: there is none. */
static const char *after_line(const char *text, const char *line)
{
    size_t n = strlen(line);
    while (*text) {
        size_t size = strcspn(text, "\n");
        if (size == n && memcmp(text, line, n) == 0)
            return text + size + (text[size] == '\n');
        text += size + (text[size] == '\n');
    }
    return NULL;
}

static int check_excerpts(struct arena *a, const struct page *p, int *checked)
{
    const char *text = p->text;
    int wrong = 0;
    for (char *line; (line = next_line(a, &text)) != NULL;) {
        if (!is_fence(line))
            continue;
        char *fence = line;
        const char *from = origin(a, fence);
        *checked += from != NULL;
        while ((line = next_line(a, &text)) != NULL && !is_fence(line)) {
            if (!from || !*line || strcmp(line, "...") == 0)
                continue;
            const char *after = after_line(from, line);
            if (!after) {
                complain("%s: after '%s', not there or not in this order: %s\n",
                         p->path, fence, line);
                wrong++;
                break;
            }
            from = after;
        }
        while (line && !is_fence(line))
            line = next_line(a, &text);
    }
    return wrong;
}

/* ---- columns, outside of what is quoted and of tables, which cannot be broken ---- */

static int check_columns(struct arena *a, const struct page *p)
{
    const char *text = p->text;
    int wrong = 0, number = 0;
    bool fenced = false;
    for (char *line; (line = next_line(a, &text)) != NULL;) {
        number++;
        fenced ^= is_fence(line);
        int columns = 0;
        for (const char *s = line; *s; s++)
            columns += ((unsigned char)*s & 0xC0) != 0x80;
        if (fenced || *line == '|' || columns <= COLUMNS)
            continue;
        complain("%s:%d: %d columns, at most %d\n", p->path, number, columns, COLUMNS);
        wrong++;
    }
    return wrong;
}

static void test_pages(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct files f = files_all(&a);
    struct pages pages = pages_all(&a);
    const char *code = code_all(&a, &f);
    int wrong = 0, excerpts = 0;
    for (int64_t i = 0; i < pages.count; i++) {
        wrong += check_links(&a, &pages.at[i]);
        wrong += check_spans(&a, &pages.at[i], &f, code);
        wrong += check_excerpts(&a, &pages.at[i], &excerpts);
        wrong += check_columns(&a, &pages.at[i]);
    }
    arena_free(&a);
    assert_true(excerpts > 10);
    assert_int_equal(wrong, 0);
}

/* ---- nothing left out ---- */

/* Every command_NAME that src/cli/cli.h declares is `vlmoe NAME` in README.md. */
static void test_every_command_is_in_the_readme(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    const char *readme = read_text(&a, "README.md");
    const char *cli = read_text(&a, "src/cli/cli.h");
    int found = 0, wrong = 0;
    for (const char *at = cli; (at = strstr(at, "command_")) != NULL;) {
        const char *name = at += strlen("command_");
        int size = (int)strspn(name, "abcdefghijklmnopqrstuvwxyz_");
        found++;
        if (strstr(readme, arena_text(&a, "`vlmoe %.*s", size, name)))
            continue;
        complain("README.md: no word of vlmoe %.*s\n", size, name);
        wrong++;
    }
    arena_free(&a);
    assert_true(found > 5);
    assert_int_equal(wrong, 0);
}

/* The part of docs/tour.md about one folder, up to the next heading. */
static char *tour_of(struct arena *a, const char *tour, const char *folder)
{
    char *heading = arena_text(a, "\n### `%s`\n", folder);
    const char *at = strstr(tour, heading);
    if (!at)
        return NULL;
    at += strlen(heading);
    const char *end = strstr(at, "\n#");
    return arena_copy(a, at, end ? (size_t)(end - at) : strlen(at));
}

/* Every source file is in its folder's table; one of NAME.h and NAME.c is enough. */
static void test_every_file_is_in_the_tour(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct files f = files_all(&a);
    const char *tour = read_text(&a, "docs/tour.md");
    int wrong = 0, read = 0;
    for (int64_t i = 0; i < f.count; i++) {
        const char *path = f.path[i], *base = files_base(path);
        if (text_starts(path, "tests/") || !(files_is_code(path) ||
                                             text_ends(path, ".def")))
            continue;
        char *folder = arena_copy(&a, path, (size_t)(base - path - 1));
        char *part = tour_of(&a, tour, folder);
        int stem = (int)strcspn(base, ".");
        read++;
        if (part && strstr(part, arena_text(&a, "`%.*s.", stem, base)))
            continue;
        complain("docs/tour.md: no word of %s\n", path);
        wrong++;
    }
    arena_free(&a);
    assert_true(read > 50);
    assert_int_equal(wrong, 0);
}

static void test_the_checks_can_complain(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct files f = {0};
    files_add(&a, &f, "src/graph/graph.h");
    int count = 0;
#define PAGE(words) (&(struct page){"docs/x.md", words})
    quiet = true;
    assert_int_equal(check_links(&a, PAGE("[a](nowhere.md) [b](tour.md#x)")), 1);
    assert_int_equal(check_links(&a, PAGE("[a](https://b.c/d) [e](../README.md)")), 0);
    const char *code = "struct x { int a_b; };";
    const struct page *lost = PAGE("`src/z.c`, `none.h`, `a_`, `struct y`, `docs/z*`");
    const struct page *there = PAGE("`graph.h`, `graph/graph.h`, `src/graph`, `a_b`, "
                                    "`tests/lint/test_*.c`, `struct x`, `a b`, `x.y`");
    assert_int_equal(check_spans(&a, lost, &f, code), 5);
    assert_int_equal(check_spans(&a, there, &f, code), 0);
#define FROM "```c tests/check.h\n"
    const struct page *twice = PAGE(FROM "#endif\n#endif\n```\n");
    const struct page *fine =
        PAGE(FROM "#define TESTS_CHECK_H\n...\n#endif\n```\n```\nfree\n```\n");
    assert_int_equal(check_excerpts(&a, twice, &count), 1);
    assert_int_equal(check_excerpts(&a, fine, &count), 0);
    assert_int_equal(count, 2);
    int wide = COLUMNS + 1;
    char *lines = arena_text(&a, "%*s\n```\n%*s\n```\n", wide, "x", wide, "x");
    assert_int_equal(check_columns(&a, PAGE(lines)), 1);
    assert_null(tour_of(&a, "\n### `a`\nb", "c"));
    assert_string_equal(tour_of(&a, "\n### `a`\nb\n### `c`\nd", "a"), "b");
    quiet = false;
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_checks_can_complain),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_every_command_is_in_the_readme),
        cmocka_unit_test(test_every_file_is_in_the_tour),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
