/* test_disk.c - what a run will write, by hand, and what is said of the room for it.
 *
 * The linker sends this program's statvfs calls through __wrap_statvfs. */
#include "check.h"

#include "base/log.h"
#include "train/disk.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

static int64_t blocks;                  /* free, of 4096 bytes; -1: unknown */

int __real_statvfs(const char *path, struct statvfs *out);
int __wrap_statvfs(const char *path, struct statvfs *out);

int __wrap_statvfs(const char *path, struct statvfs *out)
{
    if (blocks < 0 || __real_statvfs(path, out) != 0)
        return -1;
    out->f_bavail = (fsblkcnt_t)blocks;
    out->f_frsize = 4096;
    return 0;
}

static void test_need(void **state)
{
    (void)state;
    static const struct {
        const char *set[3];
        int64_t step, kept, states;
    } is[] = {
        {{"train.steps=10", "checkpoint.every=0", NULL}, 0, 0, 1},
        {{"train.steps=10", "checkpoint.every=3", "checkpoint.keep=0"}, 0, 0, 4},
        {{"train.steps=9", "checkpoint.every=3", "checkpoint.keep=0"}, 0, 0, 3},
        {{"train.steps=9", "checkpoint.every=3", "checkpoint.keep=0"}, 3, 1, 2},
        {{"train.steps=10", "checkpoint.every=3", "checkpoint.keep=2"}, 0, 0, 3},
        {{"train.steps=10", "checkpoint.every=3", "checkpoint.keep=4"}, 0, 0, 4},
        {{"train.steps=10", "checkpoint.every=3", "checkpoint.keep=2"}, 6, 2, 1},
        {{"train.steps=10", "checkpoint.every=3", "checkpoint.keep=2"}, 10, 2, 0},
        {{"train.epochs=3", "checkpoint.every=3", "checkpoint.keep=2"}, 0, 0, 2},
    };
    struct arena a = arena_make("test");
    for (int i = 0; i < COUNT(is); i++) {
        struct recipe r;
        struct session s;
        int n = is[i].set[2] ? 3 : 2;
        assert_ok(recipe_read(&a, "recipes/quickstart.yaml", is[i].set, n, &r));
        assert_ok(session_open(&s, &r, true));
        const struct disk_need need = disk_need_of(&s, is[i].step, is[i].kept);
        if (need.states != is[i].states)
            fail_msg("case %d: %lld states, expected %lld", i, (long long)need.states,
                     (long long)is[i].states);
        assert_int_equal(need.state, 12 * model_parameters(&s.model, true));
        /* float32 weights, maybe their names */
        int64_t weights = 4 * model_parameters(&s.model, false);
        assert_true(need.export >= weights && need.export < weights + 100000);
        session_close(&s);
    }
    arena_free(&a);
}

/* What is said to a run with that many blocks free, and how it ends. */
static const char *said(struct arena *a, const char *folder, bool *ok)
{
    const struct disk_need need = {.state = 4096000, .states = 3, .export = 2048000,
                                   .metrics = 4096};
    char *log = path_join(a, folder, "log");
    struct bytes got;
    int kept = dup(STDERR_FILENO), fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(kept >= 0 && fd >= 0);
    dup2(fd, STDERR_FILENO);
    *ok = disk_check(folder, &need);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(fd);
    close(kept);
    assert_ok(file_read(a, log, 1 << 16, &got));
    return got.at;
}

static void test_room(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a);
    bool ok;
    blocks = 1000 + 500 - 1;            /* a state and the model, not quite */
    said(&a, folder, &ok);
    assert_false(ok);
    assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
    assert_non_null(strstr(fail_message(), "GB free, but a training state takes"));
    for (blocks = 1500; blocks <= 3500; blocks += 2000) {
        const char *text = said(&a, folder, &ok);
        assert_true(ok);
        assert_non_null(strstr(text, "warning: "));
        assert_non_null(strstr(text, "3 training states of 0.004 GB"));
    }
    blocks = 3000 + 500 + 1;
    const char *text = said(&a, folder, &ok);
    assert_true(ok);
    assert_null(strstr(text, "warning: "));
    assert_non_null(strstr(text, "will take 0.014 GB more, of 0.014 GB free"));
    blocks = -1;
    assert_string_equal(said(&a, folder, &ok), "");
    assert_true(ok);
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_need),
                                       cmocka_unit_test(test_room)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
