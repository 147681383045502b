/* check.h - what every test program includes: cmocka, and a folder of its own. */
#ifndef TESTS_CHECK_H
#define TESTS_CHECK_H

#include <time.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail                             /* cmocka's; ours is in base.h */
#undef fail_msg
#define fail_msg(...)                                                                 \
    (print_error(__VA_ARGS__), print_error("\n"), _fail(__FILE__, __LINE__))

#include "base/file.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>

/* A call that must succeed; shows the kept message when it does not. */
#define assert_ok(call)                                                               \
    do {                                                                              \
        if (!(call))                                                                  \
            fail_msg("%s: %s", #call, fail_message());                                \
    } while (0)

/* A call that must fail with `part` in its message. */
#define assert_fails(call, part)                                                      \
    do {                                                                              \
        fail_clear();                                                                 \
        if (call)                                                                     \
            fail_msg("%s: expected a failure", #call);                                \
        if (!strstr(fail_message(), part))                                            \
            fail_msg("%s: '%s' lacks '%s'", #call, fail_message(), part);             \
    } while (0)

/* A new, empty folder; the test removes it with folder_remove. */
static inline char *check_folder(struct arena *a)
{
    const char *parent = getenv("TMPDIR");
    char *path = path_join(a, parent && *parent ? parent : P_tmpdir, "vlmoe-XXXXXX");
    assert_non_null(mkdtemp(path));
    return path;
}

/* The names in a folder, joined. */
static inline const char *check_names(struct arena *a, const char *folder)
{
    char **name;
    int64_t count;
    struct text t = text_make(a);
    assert_ok(folder_list(a, folder, &name, &count));
    for (int64_t i = 0; i < count; i++)
        text_add(&t, "%s%s", i ? " " : "", name[i]);
    return t.at;
}

/* A test that this machine cannot run says why; tests/run.sh shows and counts it, and
 * lets pass only what tests/may_skip.txt lists. */
#define check_skip(...)                                                               \
    do {                                                                              \
        print_message("skipped: ");                                                   \
        print_message(__VA_ARGS__);                                                   \
        print_message("\n");                                                          \
        skip();                                                                       \
    } while (0)

static inline void golden_written(void)
{
    fflush(NULL);
    _Exit(1);
}

/* `text` must be what the golden file holds. WRITE_GOLDEN=1 renews the file for a
 * reviewer to read the difference; the program fails all the same, at its end: what was
 * just written proves nothing. */
static inline void assert_golden(struct arena *a, const char *path, struct text text)
{
    static bool written;
    struct bytes golden;
    if (getenv("WRITE_GOLDEN")) {
        assert_ok(file_replace(path, text.at, text.size));
        print_error("%s was written; read the difference, then run without "
                    "WRITE_GOLDEN\n", path);
        if (!written)
            assert_int_equal(atexit(golden_written), 0);
        written = true;
        return;
    }
    assert_ok(file_read(a, path, 1 << 20, &golden));
    if (golden.size != text.size || memcmp(golden.at, text.at, (size_t)text.size) != 0)
        fail_msg("%s reads otherwise:\n%s", path, text.at);
}

/* Processor seconds of this program so far: what a limit on work is measured in, since
 * other programs share the machine. */
static inline double check_seconds(void)
{
    return (double)clock() / CLOCKS_PER_SEC;
}

#endif
