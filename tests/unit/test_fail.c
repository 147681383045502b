/* test_fail.c - kept messages, faults, and the exit of a broken promise. */
#include "check.h"

#include "base/queue.h"

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

static void test_message_context_and_kind(void **state)
{
    (void)state;
    fail_clear();
    assert_string_equal(fail_message(), "");
    assert_false(fail("disk: %d bytes left, expected %d", 3, 5));
    assert_int_equal(fail_fault(), FAULT_NONE);
    assert_false(fail_in("step %d", 7));
    assert_string_equal(fail_message(), "step 7: disk: 3 bytes left, expected 5");
    assert_false(fail_kind(FAULT_DATA));
    assert_false(fail_kind(FAULT_USAGE));                   /* the first one stays */
    assert_int_equal(fail_fault(), FAULT_DATA);
    assert_false(fail("again: %s", fail_message()));        /* may quote the old one */
    assert_string_equal(fail_message(),
                        "again: step 7: disk: 3 bytes left, expected 5");
    assert_int_equal(fail_fault(), FAULT_NONE);             /* a new failure */
}

static void test_long_messages_are_cut_not_overrun(void **state)
{
    (void)state;
    char longer[3000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    for (int width = 1015; width < 1030; width++) {
        fail("%s", "cause");
        fail_in("%.*s", width, longer);
        assert_true(strlen(fail_message()) <= 1023);
    }
    fail("%s", longer);
    fail_in("front");
    assert_int_equal(strlen(fail_message()), 1023);
    assert_memory_equal(fail_message(), "front: xxx", 10);
}

static void fail_there(void *arg, int index)
{
    assert_string_equal(fail_message(), "");                /* a message of its own */
    fail("thread %d: lost", index);
    fail_kind(FAULT_RANK);
    fail_take(arg);
}

static void test_failures_travel_between_threads(void **state)
{
    (void)state;
    fail("mine");
    struct failure f;
    workers_join(workers_start(1, fail_there, &f));
    assert_string_equal(fail_message(), "mine");
    assert_false(fail_raise(&f));
    assert_string_equal(fail_message(), "thread 0: lost");
    assert_int_equal(fail_fault(), FAULT_RANK);
}

/* Which errno is behind a message stays with it, whatever stands in front, until the
 * next; a name that leads nowhere is no fault of the machine's. */
static void test_machine(void **state)
{
    (void)state;
    static const int name[] = {ENOENT, ENOTDIR, EACCES, ELOOP, ENAMETOOLONG};
    static const int machine[] = {EMFILE, ENFILE, EIO, ESTALE, ENOSPC};
    for (int i = 0; i < COUNT(machine); i++) {
        fail("read");
        assert_false(fail_machine(machine[i]));
        fail_in("file");
        fail_kind(FAULT_DATA);
        struct failure kept;
        fail_take(&kept);
        fail("another");
        assert_int_equal(fail_machine_error(), 0);
        fail_raise(&kept);
        assert_int_equal(fail_machine_error(), machine[i]);
        assert_string_equal(fail_message(), "file: read");
        fail_machine(name[i]);
        assert_int_equal(fail_machine_error(), 0);
    }
    fail_machine(EIO);
    fail_clear();
    assert_int_equal(fail_machine_error(), 0);
}

static void test_a_bug_ends_with_code_70(void **state)
{
    (void)state;
    int out[2];
    assert_int_equal(pipe(out), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(out[1], STDERR_FILENO);
        int two = 2;
        REQUIRE(two == 3);
        _exit(0);
    }
    close(out[1]);
    char text[4096];
    size_t size = 0;
    for (ssize_t n; (n = read(out[0], text + size, sizeof text - 1 - size)) > 0;)
        size += (size_t)n;
    text[size] = 0;
    assert_non_null(strstr(text, "two == 3"));
    close(out[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), FAULT_BUG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_message_context_and_kind),
        cmocka_unit_test(test_long_messages_are_cut_not_overrun),
        cmocka_unit_test(test_failures_travel_between_threads),
        cmocka_unit_test(test_machine),
        cmocka_unit_test(test_a_bug_ends_with_code_70),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
