/* test_queue.c - a bounded queue between threads: nothing lost, nothing doubled. */
#include "check.h"

#include "base/clock.h"
#include "base/queue.h"

#include <stdatomic.h>
#include <unistd.h>

enum { ITEMS = 3000, PRODUCERS = 3, CONSUMERS = 3, ROOM = 4 };

struct item { int producer, index, value; };

struct scene {
    struct queue *q;
    struct item item[PRODUCERS][ITEMS];
    atomic_int popped, waiting;
    int last[CONSUMERS][PRODUCERS];
    bool in_order, refused;
};

static void produce(void *arg, int index)
{
    struct scene *s = arg;
    for (int i = 0; i < ITEMS; i++) {
        struct item *item = &s->item[index][i];
        *item = (struct item){index, i, 0};             /* handed over, not shared */
        if (!queue_push(s->q, item))
            BUG("closed early");
    }
}

static void consume(void *arg, int index)
{
    struct scene *s = arg;
    for (struct item *item; (item = queue_pop(s->q));) {
        item->value++;
        if (item->index < s->last[index][item->producer])
            BUG("item %d after %d", item->index, s->last[index][item->producer]);
        s->last[index][item->producer] = item->index;
        atomic_fetch_add(&s->popped, 1);
    }
}

static void test_every_item_arrives_once_and_in_order(void **state)
{
    (void)state;
    static struct scene s;
    s.q = queue_make(ROOM);
    struct workers *consumers = workers_start(CONSUMERS, consume, &s);
    struct workers *producers = workers_start(PRODUCERS, produce, &s);
    workers_join(producers);
    queue_close(s.q);                                   /* what is inside still comes */
    workers_join(consumers);
    assert_int_equal(s.popped, PRODUCERS * ITEMS);
    for (int p = 0; p < PRODUCERS; p++)
        for (int i = 0; i < ITEMS; i++)
            assert_int_equal(s.item[p][i].value, 1);
    queue_free(s.q);
}

static void push_until_closed(void *arg, int index)
{
    struct scene *s = arg;
    (void)index;
    static int value;
    while (queue_push(s->q, &value))
        atomic_fetch_add(&s->waiting, 1);
}

static void test_the_queue_is_bounded_and_closing_wakes(void **state)
{
    (void)state;
    static struct scene s;
    s.q = queue_make(2);
    struct workers *w = workers_start(3, push_until_closed, &s);
    double start = clock_seconds();
    while (s.waiting < 2)
        assert_true(clock_seconds() - start < 30);
    usleep(20000);
    assert_int_equal(s.waiting, 2);                         /* the third push waits */
    assert_non_null(queue_pop(s.q));
    while (s.waiting < 3)
        assert_true(clock_seconds() - start < 30);
    queue_close(s.q);
    workers_join(w);
    assert_non_null(queue_pop(s.q));
    assert_non_null(queue_pop(s.q));
    assert_null(queue_pop(s.q));
    assert_false(queue_push(s.q, &s));
    queue_free(s.q);
    queue_free(NULL);
    workers_join(NULL);
    workers_join(workers_start(0, consume, NULL));
}

static void test_the_clock_runs_forward(void **state)
{
    (void)state;
    double start = clock_seconds(), last = start;
    for (int i = 0; i < 10000; i++) {
        double now = clock_seconds();
        assert_true(now >= last);
        last = now;
    }
    usleep(20000);
    double slept = clock_seconds() - start;
    assert_true(slept >= 0.02 && slept < 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_item_arrives_once_and_in_order),
        cmocka_unit_test(test_the_queue_is_bounded_and_closing_wakes),
        cmocka_unit_test(test_the_clock_runs_forward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
