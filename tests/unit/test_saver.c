/* test_saver.c - what is written beside the training is the state as it was when the
 * save began, and a failure is told by whatever comes next.
 *
 * The linker sends this program's pwrite calls through __wrap_pwrite
 * (tests/CMakeLists.txt), where they wait or fail. */
#include "check.h"

#include "base/log.h"
#include "train/saver.h"

#include <errno.h>
#include <stdatomic.h>
#include <unistd.h>

static atomic_bool held, full;

ssize_t __real_pwrite(int fd, const void *from, size_t size, off_t at);
ssize_t __wrap_pwrite(int fd, const void *from, size_t size, off_t at);

static void nap(void)
{
    nanosleep(&(struct timespec){0, 1000000}, NULL);
}

ssize_t __wrap_pwrite(int fd, const void *from, size_t size, off_t at)
{
    while (atomic_load(&held))
        nap();
    if (!atomic_load(&full))
        return __real_pwrite(fd, from, size, at);
    errno = ENOSPC;
    return -1;
}

static void open_ok(struct arena *a, struct recipe *r, struct session *s)
{
    static const char *const set[] = {"train.steps=99", "checkpoint.every=3",
                                      "checkpoint.keep=2", "device.threads=1",
                                      "model.weights=fresh"};
    assert_ok(recipe_read(a, "recipes/quickstart.yaml", set, COUNT(set), r));
    assert_ok(session_open(s, r, true));
    assert_ok(session_machine(s));
}

enum { HELDS = 3 };
static const enum held kind[HELDS] = {HELD_WEIGHT, HELD_FIRST, HELD_SECOND};

static struct tensor own(const struct session *s, int param, int k)
{
    struct stretch part;
    return machine_own(s->machine, kind[k], param, &part);
}

/* Other numbers everywhere. */
static void scribble(struct session *s)
{
    for (int i = 0; i < s->model.graph.nparam; i++)
        for (int k = 0; k < HELDS; k++)
            memset(own(s, i, k).data, 0x41, sizeof(float) *
                                                (size_t)tensor_count(own(s, i, k)));
}

static void same(const struct session *x, const struct session *y)
{
    for (int i = 0; i < x->model.graph.nparam; i++)
        for (int k = 0; k < HELDS; k++)
            assert_memory_equal(own(x, i, k).data, own(y, i, k).data,
                                sizeof(float) * (size_t)tensor_count(own(x, i, k)));
}

static void test_training_goes_on(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *root = check_folder(&a);
    struct recipe r;
    struct session s, fresh;
    struct saver *v;
    struct train_state t = {.step = 3, .updates = 3}, is = {0};
    bool found;
    open_ok(&a, &r, &s);
    open_ok(&a, &r, &fresh);
    assert_ok(saver_make(&s, root, &v));
    atomic_store(&held, true);
    assert_ok(saver_save(v, &t, false));        /* returns, though nothing is written */
    t.updates = 4;
    scribble(&s);
    assert_ok(saver_check(v));
    assert_false(folder_exists(path_join(&a, root, "step-3")));
    atomic_store(&held, false);
    assert_ok(saver_wait(v));
    assert_ok(saver_wait(v));                           /* once is enough */
    assert_ok(train_state_load(&s, root, NULL, &is, &found));
    assert_true(found);
    assert_int_equal(is.step, 3);
    assert_int_equal(is.updates, 3);
    same(&s, &fresh);
    scribble(&s);
    t.step = 6;
    assert_ok(saver_save(v, &t, true));                 /* the last: it is there */
    assert_true(folder_exists(path_join(&a, root, "step-6")));
    assert_ok(saver_end(v));
    scribble(&fresh);
    same(&s, &fresh);
    assert_ok(train_state_load(&fresh, root, NULL, &is, &found));
    assert_int_equal(is.step, 6);
    same(&s, &fresh);
    session_close(&s);
    session_close(&fresh);
    assert_ok(folder_remove(root));
    arena_free(&a);
}

static void test_failures_are_told(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *root = check_folder(&a);
    struct recipe r;
    struct session s;
    struct saver *v;
    struct train_state t = {.step = 3}, is;
    bool found;
    open_ok(&a, &r, &s);
    assert_ok(saver_make(&s, root, &v));
    assert_ok(saver_save(v, &t, false));
    assert_ok(saver_wait(v));
    atomic_store(&full, true);
    t.step = 6;
    assert_ok(saver_save(v, &t, false));
    fail_clear();
    while (saver_check(v))                              /* between steps */
        nap();
    assert_non_null(strstr(fail_message(), "rank-0.bin: No space left"));
    assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
    assert_ok(saver_check(v));                          /* told once */
    assert_ok(saver_save(v, &t, false));
    t.step = 9;
    assert_fails(saver_save(v, &t, false), "No space left");    /* of step 6 */
    assert_fails(saver_save(v, &t, true), "No space left");     /* its own */
    assert_ok(saver_save(v, &t, false));
    assert_fails(saver_end(v), "No space left");
    assert_ok(train_state_load(&s, root, NULL, &is, &found));
    assert_true(found && is.step == 3);                 /* the one before is there */
    char **name;
    int64_t count;
    assert_ok(folder_list(&a, root, &name, &count));
    assert_int_equal(count, 1);
    atomic_store(&full, false);
    session_close(&s);
    assert_ok(folder_remove(root));
    arena_free(&a);
}

int main(void)
{
    log_set(LOG_WARN, 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_training_goes_on),
                                       cmocka_unit_test(test_failures_are_told)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
