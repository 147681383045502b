/* test_team.c - shared loops: every index once, callers in turn, nesting inline. */
#include "check.h"

#include "base/clock.h"
#include "base/queue.h"
#include "core/device.h"

#include <stdatomic.h>
#include <unistd.h>

enum { MOST = 5000 };

struct scene {
    struct team *team;
    int seen[MOST];
    double sum[MOST];
    atomic_int running, most;
    int64_t inner;
};

static void mark(void *arg, int64_t i)
{
    struct scene *s = arg;
    s->seen[i]++;                       /* a race if an index runs twice */
}

static void test_every_index_runs_once(void **state)
{
    (void)state;
    static struct scene s;
    for (int threads = 1; threads <= 5; threads++) {
        struct team *t = team_make(threads);
        assert_int_equal(team_threads(t), threads);
        for (int64_t count = 0; count < MOST; count = count * 3 / 2 + 1) {
            memset(s.seen, 0, sizeof s.seen);
            team_for(t, count, mark, &s);
            for (int64_t i = 0; i < MOST; i++)
                if (s.seen[i] != (i < count))
                    fail_msg("%d threads, count %lld: index %lld ran %d times", threads,
                             (long long)count, (long long)i, s.seen[i]);
        }
        team_free(t);
    }
    team_free(NULL);
}

/* Many small loops in a row, with sleeps between so that threads fall asleep. */
static void test_loop_after_loop(void **state)
{
    (void)state;
    static struct scene s;
    struct team *t = team_make(4);
    memset(s.seen, 0, sizeof s.seen);
    for (int round = 0; round < 3000; round++) {
        team_for(t, 2 + round % 9, mark, &s);
        if (round % 500 == 0)
            usleep(3000);
    }
    int ran = 0, wanted = 0;
    for (int i = 0; i < MOST; i++)
        ran += s.seen[i];
    for (int round = 0; round < 3000; round++)
        wanted += 2 + round % 9;
    assert_int_equal(ran, wanted);
    team_free(t);
}

static void row_sum(void *arg, int64_t i)
{
    struct scene *s = arg;
    double sum = 0;
    for (int j = 1; j < 50; j++)
        sum += 1.0 / (double)(i + j);
    s->sum[i] = sum;
}

static void test_results_do_not_depend_on_threads(void **state)
{
    (void)state;
    static struct scene one, many;
    for (int threads = 1; threads <= 4; threads++) {
        struct scene *s = threads == 1 ? &one : &many;
        struct team *t = team_make(threads);
        team_for(t, MOST, row_sum, s);
        team_free(t);
        assert_memory_equal(s->sum, one.sum, sizeof one.sum);
    }
}

static void nested_mark(void *arg, int64_t i)
{
    struct scene *s = arg;
    s->seen[s->inner + i]++;
}

static void nested_body(void *arg, int64_t i)
{
    struct scene *outer = arg, inner = {.inner = 0};
    memset(inner.seen, 0, sizeof inner.seen);
    team_for(outer->team, 10, nested_mark, &inner);
    int ran = 0;
    for (int k = 0; k < 10; k++)
        ran += inner.seen[k];
    outer->seen[i] += ran;
}

static void test_nested_calls_run_inline(void **state)
{
    (void)state;
    static struct scene s;
    s.team = team_make(3);
    memset(s.seen, 0, sizeof s.seen);
    team_for(s.team, 64, nested_body, &s);
    for (int i = 0; i < 64; i++)
        assert_int_equal(s.seen[i], 10);
    team_free(s.team);
}

static void count_running(void *arg, int64_t i)
{
    struct scene *s = arg;
    (void)i;
    int now = atomic_fetch_add(&s->running, 1) + 1, most = atomic_load(&s->most);
    while (now > most && !atomic_compare_exchange_weak(&s->most, &most, now))
        ;
    usleep(200);
    atomic_fetch_sub(&s->running, 1);
}

static void call_often(void *arg, int index)
{
    struct scene *s = arg;
    static struct scene own[3];
    for (int round = 0; round < 200; round++)
        team_for(s->team, 40, mark, &own[index]);
    for (int round = 0; round < 5; round++)
        team_for(s->team, 20, count_running, s);
    for (int i = 0; i < 40; i++)
        if (own[index].seen[i] != 200)
            BUG("caller %d: index %d ran %d times", index, i, own[index].seen[i]);
}

static void test_concurrent_callers_take_turns(void **state)
{
    (void)state;
    static struct scene s;
    s.team = team_make(2);
    workers_join(workers_start(3, call_often, &s));
    assert_true(s.most <= 2);           /* one loop at a time, on two threads */
    team_free(s.team);
}

/* Two bodies that wait for each other can only end if two threads run them. */
static void meet(void *arg, int64_t i)
{
    struct scene *s = arg;
    (void)i;
    atomic_fetch_add(&s->running, 1);
    double start = clock_seconds();
    while (atomic_load(&s->running) < 2 && clock_seconds() - start < 30)
        usleep(100);
}

static void test_threads_do_help(void **state)
{
    (void)state;
    static struct scene s;
    struct team *t = team_make(2);
    for (int round = 0; round < 5; round++) {
        s.running = 0;
        usleep(2000);                   /* asleep by now: must be woken */
        double start = clock_seconds();
        team_for(t, 2, meet, &s);
        assert_int_equal(s.running, 2);
        assert_true(clock_seconds() - start < 25);
    }
    team_free(t);
}

static void test_the_machine(void **state)
{
    (void)state;
    assert_true(device_cores() >= 1);
    assert_true(device_cores() <= sysconf(_SC_NPROCESSORS_CONF));
    int64_t most = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    assert_true(device_memory_free() >= 0 && device_memory_free() <= most);
    struct team *t = team_make(0);
    assert_int_equal(team_threads(t), device_cores());
    team_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_index_runs_once),
        cmocka_unit_test(test_loop_after_loop),
        cmocka_unit_test(test_results_do_not_depend_on_threads),
        cmocka_unit_test(test_nested_calls_run_inline),
        cmocka_unit_test(test_concurrent_callers_take_turns),
        cmocka_unit_test(test_threads_do_help),
        cmocka_unit_test(test_the_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
