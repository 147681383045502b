/* test_ledger.c - the books balance, add up, and say so when they do not. */
#include "check.h"

#include "data/rows/ledger.h"

static const struct ledger good = {
    .slots = 100, .supervised = 20, .context = 30, .image = 40, .padding = 10,
    .patch_slots = 200, .patches = 160, .patch_padding = 40,
    .samples = 7, .images = 5, .mock = 1,
    .dropped = 6, .too_long = 1, .bad = 2, .no_loss = 3, .lost = 17, .shrunk = 2,
    .cut = 3,
    .attention = 812.5, .attention_image = 9000,
};

static void balanced_books_pass(void **state)
{
    (void)state;
    assert_true(ledger_check(&good));
    assert_int_equal(ledger_useful(&good), 90);
    assert_true(ledger_check(&(struct ledger){0}));
}

/* One unit moved in any count breaks one of the balances, and the message names it. */
static void every_unbalance_is_found(void **state)
{
    (void)state;
    struct ledger l;
#define BROKEN(field, change, word) \
    l = good, l.field += (change); \
    assert_false(ledger_check(&l)); \
    assert_non_null(strstr(fail_message(), word))
    BROKEN(slots, 1, "slots");
    BROKEN(supervised, 1, "supervised");
    BROKEN(context, -1, "context");
    BROKEN(image, 1, "image");
    BROKEN(padding, -1, "padding");
    BROKEN(patch_slots, 1, "patch slots");
    BROKEN(patches, 1, "patches");
    BROKEN(patch_padding, -1, "patches");
    BROKEN(dropped, 1, "dropped");
    BROKEN(too_long, 1, "too long");
    BROKEN(bad, 1, "bad");
    BROKEN(no_loss, 1, "without loss");
    BROKEN(mock, 7, "mock");
    BROKEN(shrunk, 6, "shrunk");
    BROKEN(cut, 5, "cut");
    BROKEN(images, -6, "images is -1");
    BROKEN(lost, -18, "lost is -1");
    BROKEN(attention, -1000, "attention");
    l = good, l.context = -10, l.padding = 50;          /* balances, yet is nonsense */
    assert_false(ledger_check(&l));
    assert_non_null(strstr(fail_message(), "context is -10"));
#undef BROKEN
}

static void books_add_up(void **state)
{
    (void)state;
    struct ledger sum = {0};
    for (int i = 0; i < 3; i++)
        ledger_add(&sum, &good);
    assert_true(ledger_check(&sum));
    const struct ledger three = {
        .slots = 300, .supervised = 60, .context = 90, .image = 120, .padding = 30,
        .patch_slots = 600, .patches = 480, .patch_padding = 120,
        .samples = 21, .images = 15, .mock = 3,
        .dropped = 18, .too_long = 3, .bad = 6, .no_loss = 9, .lost = 51, .shrunk = 6,
        .cut = 9,
        .attention = 2437.5, .attention_image = 27000,
    };
    assert_memory_equal(&sum, &three, sizeof sum);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(balanced_books_pass),
        cmocka_unit_test(every_unbalance_is_found),
        cmocka_unit_test(books_add_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
