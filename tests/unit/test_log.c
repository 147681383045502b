/* test_log.c - which lines reach people, from which rank. */
#include "check.h"

#include "base/log.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/ioctl.h>
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

/* What a terminal so many columns wide gets to see. */
static const char *terminal_shows(struct arena *a, int columns, const char *term)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0);
    int slave = open(ptsname(master), O_RDWR | O_NOCTTY), kept = dup(STDERR_FILENO);
    assert_true(slave >= 0 && kept >= 0);
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    assert_int_equal(ioctl(slave, TIOCSWINSZ, &size), 0);
    setenv("TERM", term, 1);
    dup2(slave, STDERR_FILENO);
    bool terminal = log_terminal();
    log_progress("step 1/2 caf\xc3\xa9 0123456789%s", "012345678901234567890123456789");
    if (!terminal)
        log_info("train", "step 1/2");
    fflush(stderr);
    log_info("x", "end");
    dup2(kept, STDERR_FILENO);
    char *text = NEW(a, char, 4096);
    for (ssize_t n = 0, more; !strstr(text, "x: end"); n += more)
        assert_true((more = read(master, text + n, (size_t)(4095 - n))) > 0);
    close(slave);
    close(master);
    close(kept);
    return text;
}

/* A progress line fits the terminal, whole characters only; a dumb one gets lines. */
static void test_progress_fits(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    const char *wide = terminal_shows(&a, 200, "xterm");
    assert_non_null(strstr(wide, "0123456789012345678901234567890123456789"));
    for (int columns = 10; columns < 50; columns++) {
        const char *is = terminal_shows(&a, columns, "xterm");
        size_t n = strcspn(is, "\r\n");
        if (n >= (size_t)columns || n + 2 < (size_t)columns)
            fail_msg("%d columns: '%.*s'", columns, (int)n, is);
        assert_true(text_utf8(is, (int64_t)n));
    }
    static const char *const dumb[] = {"dumb", ""};
    for (int i = 0; i < COUNT(dumb); i++) {
        const char *shown = terminal_shows(&a, 80, dumb[i]);
        assert_null(strchr(shown, '\x1b'));
        assert_null(strstr(shown, "0123"));
        assert_non_null(strstr(shown, "train: step 1/2"));
    }
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines),
                                       cmocka_unit_test(test_progress_fits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
