/* test_stop.c - a signal ends, asks, or ends all the same; and what it says. */
#include "check.h"

#include "base/stop.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

struct end { int code; char words[1024]; };

/* `action` in a process of its own: minus the signal that ended it, or its code. */
static struct end end_of(void (*action)(void))
{
    struct end e = {0};
    int pipes[2], status;
    size_t size = 0;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipes[1], STDERR_FILENO);
        action();
        _exit(99);
    }
    close(pipes[1]);
    enum { ROOM = sizeof e.words - 1 };
    for (ssize_t n; (n = read(pipes[0], e.words + size, ROOM - size)) > 0;)
        size += (size_t)n;
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    e.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return e;
}

static void raise_unheard(void)
{
    if (!stop_asked())
        raise(SIGTERM);
}

static void raise_early(void)
{
    stop_listen();
    raise(SIGTERM);
}

static void raise_later(void)
{
    stop_listen();
    stop_gently();
    if (stop_asked())
        _exit(1);
    raise(SIGHUP);
    if (!stop_asked())
        _exit(2);
    raise(SIGINT);                      /* a group's signal comes more than once */
    raise(SIGTERM);
}

static void raise_impatiently(void)
{
    raise_later();
    sleep(3);
    raise(SIGTERM);
    raise(SIGINT);
}

static void raise_under_nohup(void)
{
    signal(SIGHUP, SIG_IGN);
    stop_listen();
    raise(SIGHUP);
}

static void test_signals(void **state)
{
    (void)state;
    const struct { void (*action)(void); int code; const char *says; } way[] = {
        {raise_unheard, -SIGTERM, ""},
        {raise_early, 0, "before a step was done"},
        {raise_later, 99, "asks to stop"},
        {raise_impatiently, -SIGINT, "ended at once by a second Ctrl-C"},
        {raise_under_nohup, 99, ""},
    };
    for (int i = 0; i < COUNT(way); i++) {
        struct end e = end_of(way[i].action);
        assert_int_equal(e.code, way[i].code);
        if (!strstr(e.words, way[i].says) || (!*way[i].says && *e.words))
            fail_msg("way %d: '%s' in '%s'", i, way[i].says, e.words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_signals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
