/* test_log.c - which lines reach people, from which rank. */
#include "check.h"

#include "base/log.h"

#include <fcntl.h>
#include <unistd.h>

static void write_lines(void)
{
    log_debug("data", "quiet");
    log_info("data", "%d samples", 3);
    log_progress("step %d", 1);                             /* a file is no terminal */
    log_warn("checkpoint", "slow disk");
    log_set(LOG_DEBUG, 0);
    log_debug("data", "loud");
    log_set(LOG_INFO, 2);
    log_info("data", "not from rank 2");
    log_warn("data", "lost");
    log_set(LOG_INFO, 0);
}

static void test_lines(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a), *path = path_join(&a, folder, "log");
    int kept = dup(STDERR_FILENO), fd = open(path, O_WRONLY | O_CREAT, 0600);
    assert_true(kept >= 0 && fd >= 0);
    dup2(fd, STDERR_FILENO);
    bool terminal = log_terminal();
    write_lines();
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(fd);
    close(kept);
    assert_false(terminal);
    struct bytes got;
    assert_ok(file_read(&a, path, 1 << 16, &got));
    assert_string_equal(got.at, "data: 3 samples\n"
                                "warning: checkpoint: slow disk\n"
                                "data: loud\n"
                                "[rank 2] warning: data: lost\n");
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
