/* test_state_kill.c - a process killed at any moment of a save leaves a whole state. */
#include "check.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "checkpoint/state.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 40, COUNT_A = 60000, COUNT_B = 500, KEEP = 2 };

/* Tensors that say which step they are of. */
static void tensors(struct arena *a, int64_t step, struct disk_tensor t[2])
{
    float *x = NEW(a, float, COUNT_A), *y = NEW(a, float, COUNT_B);
    for (int i = 0; i < COUNT_A; i++)
        x[i] = (float)(step + i);
    for (int i = 0; i < COUNT_B; i++)
        y[i] = (float)(step - i);
    t[0] = (struct disk_tensor){"a", DTYPE_F32, 1, {COUNT_A}, COUNT_A, 4 * COUNT_A, x};
    t[1] = (struct disk_tensor){"b", DTYPE_F32, 1, {COUNT_B}, COUNT_B, 4 * COUNT_B, y};
}

static bool save(const char *root, int64_t step)
{
    struct arena a = arena_make("save");
    struct disk_tensor t[2];
    tensors(&a, step, t);
    bool ok = state_save(root, step, &(struct state_source){.tensor = t, .count = 2},
                         "{\"rows\":1}", KEEP);
    arena_free(&a);
    return ok;
}

/* Saves step after step, now and then the same one again, until it is killed. */
static _Noreturn void saver(const char *root, int64_t from)
{
    for (int64_t step = from;; step++)
        if (!save(root, step) || (step % 3 == 0 && !save(root, step)))
            _exit(1);
}

static void check(const char *root, int64_t step)
{
    struct arena a = arena_make("check");
    struct disk_tensor t[2];
    struct state s;
    tensors(&a, step, t);
    assert_ok(state_open(&a, root, step, &s));
    assert_ok(state_verify(&s));
    for (int i = 0; i < 2; i++) {
        void *to = NEW(&a, char, t[i].bytes);
        assert_ok(state_read(&s, &t[i], to));
        assert_memory_equal(to, t[i].data, (size_t)t[i].bytes);
    }
    state_close(&s);
    arena_free(&a);
}

static void test_kill(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *root = check_folder(&a);
    int64_t step = 0, before;
    assert_ok(save(root, step));
    double start = clock_seconds();
    assert_ok(save(root, step));
    double one = clock_seconds() - start;       /* of a save, to aim by */
    uint64_t key = random_key(20, "kill");
    for (int i = 0; i < ROUNDS; i++) {
        before = step;
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0)
            saver(root, step + 1);
        double wait = 4 * one * random_uniform(key, (uint64_t)i);
        nanosleep(&(struct timespec){(time_t)wait, (long)(1e9 * (wait - (int)wait))},
                  NULL);
        int status;
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));       /* no save had failed */
        assert_ok(state_newest(root, &step));
        assert_true(step >= before);
        check(root, step);
    }
    assert_true(step > 0);                      /* some saves were finished */
    char **name;
    int64_t count;
    assert_ok(save(root, step + 1));
    assert_ok(folder_list(&a, root, &name, &count));
    assert_int_equal(count, KEEP);              /* and leftovers are gone */
    check(root, step + 1);
    assert_ok(folder_remove(root));
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_kill)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
