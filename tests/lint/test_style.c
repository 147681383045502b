/* test_style.c - house rules that a program can check: names, sizes, calls, paths. */
#include "check.h"

#include "lint/files.h"

#include <ctype.h>
#include <regex.h>

enum { COLUMNS = 88, LINES = 900 };

static const char *const root_names[] = {"CMakeLists.txt", "README.md", "src", "vision",
    "decoder", "kernels", "data", "recipes", "tests", "docs"};

/* Calls that write past an end, hide an error or a state: nowhere. */
static const char *const banned[] = {"sprintf", "vsprintf", "strcpy", "strcat", "atoi",
    "atol", "atof", "rand", "srand", "gets", "strtok"};
/* Memory comes from arenas; printing and ending the program is for the command line. */
static const char *const memory[] = {"malloc", "calloc", "realloc", "free", "strdup",
    "strndup", "aligned_alloc", "posix_memalign"};
static const char *const speech[] = {"printf", "puts", "putchar", "perror", "vprintf",
    "exit", "_exit", "_Exit", "abort", "quick_exit"};
static const char *const answers[] = {"printf", "puts", "putchar", "fputs", "fprintf",
    "vprintf"};

/* A file is opened in one place, which waits for no pipe and takes no device. */
static const char *const opening[] = {"open", "openat", "creat", "fopen", "freopen",
    "popen"};

struct exception { const char *path, *why; };
static const struct exception may_allocate[] = {
    {"src/base/arena.c", "is where memory comes from"},
    {"src/base/memory.c", "stands in front of malloc"},
};
static const struct exception may_speak[] = {
    {"src/cli/", "is the command line"},
    {"src/base/log.c", "prints what the program tells people"},
    {"src/base/fail.c", "ends a broken promise"},
    {"src/base/memory.c", "ends when memory runs out"},
    {"src/base/stop.c", "ends when a signal asks for it"},
    {"src/base/queue.c", "ends when threads run out"},
};

static const struct exception may_open[] = {
    {"src/base/file.c", "is where files are opened"},
};

static const struct exception may_answer[] = {
    {"src/cli/say.c", "makes control characters visible"},
    {"src/cli/main.c", "prints usages, texts of its own"},
};

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

static bool any_of(const char *word, const char *const *list, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(word, list[i]) == 0)
            return true;
    return false;
}

static bool excepted(const char *path, const struct exception *list, int count)
{
    for (int i = 0; i < count; i++)
        if (text_starts(path, list[i].path))
            return true;
    return false;
}

static bool is_product(const char *path)
{
    return !text_starts(path, "tests/");
}

static bool is_word(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* Blanks comments, strings and character constants; line breaks stay. */
static void blank_out(char *s)
{
    while (*s) {
        char *end = s + 1;
        if (s[0] == '/' && s[1] == '*') {
            end = strstr(s + 2, "*/");
            end = end ? end + 2 : s + strlen(s);
        } else if (s[0] == '/' && s[1] == '/') {
            end = s + strcspn(s, "\n");
        } else if (s[0] == '"' || s[0] == '\'') {
            while (*end && *end != *s && *end != '\n')
                end += *end == '\\' && end[1] ? 2 : 1;
            end += *end == *s;
        } else {
            s++;
            continue;
        }
        for (; s < end; s++)
            if (*s != '\n')
                *s = ' ';
    }
}

/* Complaints about the calls in a text; the text is blanked on the way.  jansson hands
 * out its printed text from malloc, so files that use it must be able to free it. */
static int check_calls(const char *path, char *text)
{
    bool jansson = strstr(text, "#include <jansson.h>") != NULL;
    blank_out(text);
    int wrong = 0, number = 1;
    for (char *s = text; *s;) {
        number += *s == '\n';
        if (!is_word(*s)) {
            s++;
            continue;
        }
        char word[64], *begin = s;
        while (is_word(*s))
            s++;
        snprintf(word, sizeof word, "%.*s", (int)(s - begin), begin);
        bool member = begin > text && (begin[-1] == '.' || begin[-1] == '>');
        if (s[strspn(s, " ")] != '(' || member)
            continue;
        const char *why = NULL;
        if (any_of(word, banned, COUNT(banned)))
            why = "is banned";
        else if (is_product(path) && any_of(word, memory, COUNT(memory)) &&
                 !(jansson && strcmp(word, "free") == 0) &&
                 !excepted(path, may_allocate, COUNT(may_allocate)))
            why = "is for src/base/arena.c: use an arena";
        else if (is_product(path) && any_of(word, speech, COUNT(speech)) &&
                 !excepted(path, may_speak, COUNT(may_speak)))
            why = "is for src/cli: use fail(), BUG() or log.h";
        else if (text_starts(path, "src/cli/") &&
                 any_of(word, answers, COUNT(answers)) &&
                 !excepted(path, may_answer, COUNT(may_answer)))
            why = "is for src/cli/say.c: use say()";
        else if (is_product(path) && any_of(word, opening, COUNT(opening)) &&
                 !excepted(path, may_open, COUNT(may_open)))
            why = "is for src/base/file.c: use file_descriptor()";
        if (!why)
            continue;
        complain("%s:%d: %s() %s\n", path, number, word, why);
        wrong++;
    }
    return wrong;
}

static int check_lines(const char *path, const char *text)
{
    int wrong = 0, number = 0, columns = 0;
    for (const char *s = text; *s; s++) {
        if (*s == '\t') {
            complain("%s:%d: a tab\n", path, number + 1);
            wrong++;
        }
        columns += ((unsigned char)*s & 0xC0) != 0x80;      /* code points */
        if (*s != '\n')
            continue;
        number++;
        if (columns - 1 > COLUMNS) {
            complain("%s:%d: %d columns, at most %d\n", path, number, columns - 1,
                     COLUMNS);
            wrong++;
        }
        columns = 0;
    }
    if (number > LINES) {
        complain("%s: %d lines, at most %d\n", path, number, LINES);
        wrong++;
    }
    return wrong;
}

static int check_first_line(struct arena *a, const char *path, const char *text)
{
    if (text_starts(text, arena_text(a, "/* %s - ", files_base(path))))
        return 0;
    complain("%s:1: expected '/* %s - what it is'\n", path, files_base(path));
    return 1;
}

static void test_code(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct files f = files_all(&a);
    int wrong = 0, read = 0;
    for (int64_t i = 0; i < f.count; i++) {
        const char *path = f.path[i];
        struct bytes file;
        if (!files_is_code(path))
            continue;
        assert_ok(file_read(&a, path, 1 << 24, &file));
        wrong += check_first_line(&a, path, file.at);
        wrong += check_lines(path, file.at);
        wrong += check_calls(path, file.at);
        read++;
    }
    arena_free(&a);
    assert_true(read > 20);             /* or this test looks in the wrong place */
    assert_int_equal(wrong, 0);
}

/* A number is not followed by a plural: one of them is "1 image", see text_format. */
static const char counted[] =
    "[^x](%[0-9.*]*(ll|l|z|t)?[du]|PRI[du]64 \") ([a-z-]+ )?(images|samples|shards|"
    "ranks|rows|tokens|steps|files|bytes|patches|pixels|tensors|layers|stages|pieces|"
    "workers|threads|epochs|elements|lines|members|layouts|candidates)([^a-z:/]|$)";
static const struct exception may_count[] = {
    {"src/base/memory.c", "prints where nothing can be formatted"},
    {"src/measure/metrics.c", "says so of several ranks alone"},
};

static void test_counts(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct files f = files_all(&a);
    int wrong = 0, read = 0;
    regex_t plural;
    assert_int_equal(regcomp(&plural, counted, REG_EXTENDED), 0);
    assert_int_equal(regexec(&plural, "\"%d image tokens\"", 0, NULL, 0), 0);
    assert_int_equal(regexec(&plural, "\"%\" PRId64 \" bytes,\"", 0, NULL, 0), 0);
    assert_int_not_equal(regexec(&plural, "\"%d image(s)\"", 0, NULL, 0), 0);
    for (int64_t i = 0; i < f.count; i++) {
        const char *path = f.path[i];
        struct bytes file;
        bool may = !files_is_code(path) || text_starts(path, "tests/");
        for (int k = 0; k < COUNT(may_count); k++)
            may |= !strcmp(path, may_count[k].path);
        if (may)
            continue;
        assert_ok(file_read(&a, path, 1 << 24, &file));
        regmatch_t at;
        for (const char *s = file.at; !regexec(&plural, s, 1, &at, 0); s += at.rm_eo) {
            print_error("%s: %.*s\n", path, (int)(at.rm_eo - at.rm_so), s + at.rm_so);
            wrong++;
        }
        read++;
    }
    regfree(&plural);
    arena_free(&a);
    assert_true(read > 20);
    assert_int_equal(wrong, 0);
}

static void test_root_names(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct files f = files_all(&a);
    int wrong = 0;
    for (int64_t i = 0; i < f.count; i++) {
        char *name = arena_copy(&a, f.path[i], strcspn(f.path[i], "/"));
        if (name[0] == '.' || any_of(name, root_names, COUNT(root_names)))
            continue;
        complain("%s: the root does not hold '%s'\n", f.path[i], name);
        wrong++;
    }
    arena_free(&a);
    assert_int_equal(wrong, 0);
}

/* Written in two halves, so that this file does not name them either. */
static const char *const foreign[] = {"/wo" "rk/", "/ro" "ot/", "pypi" ".org",
    "python" "hosted.org", "npm" "js.org", "npm" "js.com", "crates" ".io",
    "proxy." "golang.org", "deb." "debian.org", "archive." "ubuntu.com"};

static const char *foreign_in(const char *text)
{
    for (int i = 0; i < COUNT(foreign); i++) {
        const char *at = strstr(text, foreign[i]);
        bool inner = at && at > text && (is_word(at[-1]) || at[-1] == '.');
        if (at && !(foreign[i][0] == '/' && inner))         /* src/..., not from / */
            return foreign[i];
    }
    return NULL;
}

static void test_no_path_or_host_of_one_machine(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct files f = files_all(&a);
    int wrong = 0;
    for (int64_t i = 0; i < f.count; i++) {
        struct arena item = arena_make("file");
        struct bytes file;
        assert_ok(file_read(&item, f.path[i], 1 << 28, &file));
        const char *found = (int64_t)strlen(file.at) == file.size ? foreign_in(file.at)
                                                                  : NULL;   /* binary */
        if (found) {
            complain("%s: holds '%s'\n", f.path[i], found);
            wrong++;
        }
        arena_free(&item);
    }
    arena_free(&a);
    assert_int_equal(wrong, 0);
}

static void test_the_checks_can_complain(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    quiet = true;
#define TEXT(s) arena_copy(&a, s, sizeof s - 1)
    assert_int_equal(check_calls("data/x.c", TEXT("x = atoi(s);")), 1);
    assert_int_equal(check_calls("tests/x.c", TEXT("strcat (a, b);")), 1);
    assert_int_equal(check_calls("data/x.c", TEXT("free(p); p = malloc(3);")), 2);
    assert_int_equal(check_calls("tests/x.c", TEXT("free(p); printf(\"x\");")), 0);
    assert_int_equal(check_calls("src/base/arena.c", TEXT("free(p);")), 0);
    assert_int_equal(check_calls("src/base/memory.c", TEXT("_Exit(6);")), 0);
    assert_int_equal(check_calls("src/run/x.c", TEXT("printf(\"x\"); exit(1);")), 2);
    assert_int_equal(check_calls("src/cli/x.c", TEXT("printf(\"x\"); exit(1);")), 1);
    assert_int_equal(check_calls("src/cli/say.c", TEXT("printf(\"x\"); say(1);")), 0);
    assert_int_equal(check_calls("data/x.c", TEXT("open(p, 0); s->open(p);")), 1);
    assert_int_equal(check_calls("src/base/file.c", TEXT("fd = open(p, 0);")), 0);
    assert_int_equal(check_calls("data/x.c", TEXT("#include <jansson.h>\n"
                                                  "free(p); p = malloc(3);")), 1);
    char *fine = TEXT("arena_free(p); q->free(p); o.exit(1); snprintf(a); int rand;");
    char *hidden = TEXT("/* free(p) */ \"free(p) \\\" free(p)\" '\"' // free(p)\n");
    assert_int_equal(check_calls("data/x.c", fine), 0);
    assert_int_equal(check_calls("data/x.c", hidden), 0);
    assert_int_equal(check_calls("data/x.c", TEXT("'\\'' \"a\" /* */ free(p);")), 1);
    assert_int_equal(check_lines("x.c", "a\tb\n"), 1);
    char *line = arena_text(&a, "%*s\n", COLUMNS, "x");
    assert_int_equal(check_lines("x.c", line), 0);
    assert_int_equal(check_lines("x.c", arena_text(&a, "y%s", line)), 1);
    line[0] = (char)0xC3, line[1] = (char)0xA9;             /* two bytes, one column */
    assert_int_equal(check_lines("x.c", arena_text(&a, "y%s", line)), 0);
    char *lines = arena_push(&a, LINES + 2);
    memset(lines, '\n', LINES);
    assert_int_equal(check_lines("x.c", lines), 0);
    lines[LINES] = '\n';
    assert_int_equal(check_lines("x.c", lines), 1);
    assert_int_equal(check_first_line(&a, "a/x.c", "/* x.c - the x. */\n"), 0);
    assert_int_equal(check_first_line(&a, "a/x.c", "/* y.c - the y. */\n"), 1);
    assert_non_null(foreign_in("cp /wo" "rk/x ."));
    assert_null(foreign_in("src/net" "wo" "rk/x, src/ro" "ot/x, ./wo" "rk/x"));
    quiet = false;
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_checks_can_complain),
        cmocka_unit_test(test_code),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_root_names),
        cmocka_unit_test(test_no_path_or_host_of_one_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
