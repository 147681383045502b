/* test_loader_late.c - pixels come last: what waits for its row is not decoded, and an
 * image found bad or changed only then costs its own sample alone. */
#include "data/loader_case.h"

#include <sys/resource.h>
#include <unistd.h>

/* A picture whose header is whole and whose pixels are not. */
static void picture_break(struct data *d, int i)
{
    struct bytes whole;
    assert_ok(file_read(&d->arena, path_of(d, i, "png"), 1 << 24, &whole));
    file_write(path_of(d, i, "png"), whole.at, (size_t)whole.size * 6 / 10);
}

/* Pixels are decoded when their row is chosen, not before: the first row comes though
 * all that waits could not be decoded. */
static void what_waits_is_not_decoded(void **state)
{
    (void)state;
    struct data d = data_write(SAMPLES);
    data_open(&d);
    d.options.window = 24;
    d.options.positions = SAMPLES;
    struct tape *t = tape_run(&d.options, NULL);
    bool first[SAMPLES] = {0};
    for (int k = 0; k < t->row[0]->nsample; k++)
        first[t->row[0]->sample[k].id] = true;
    for (int i = 0; i < SAMPLES; i++)
        if (!first[i])
            picture_break(&d, i);
    d.options.bad = BAD_FAIL;
    for (int workers = 0; workers < 3; workers++) {
        d.options.workers = workers;
        struct tape *again = tape_run(&d.options, NULL);
        assert_int_equal(again->rows, 1);
        same_row(&d.options.shape, t->row[0], again->row[0]);
        assert_true(again->failed && again->left == 1);
        assert_non_null(strstr(fail_message(), again->left_out[0].name));
        tape_free(again);
    }
    tape_free(t);
    data_close(&d);
}

/* Broken pixels found late cost their own sample alone, are counted the same with any
 * number of workers and from any cursor on, and too many of them stop the run. */
static void broken_pixels_cost_their_own_sample(void **state)
{
    (void)state;
    struct data d = data_write(SAMPLES);
    for (int i = 0; i < SAMPLES; i += 3)
        picture_break(&d, i);
    break_some(&d);
    data_open(&d);
    d.options.positions = 2 * SAMPLES;
    struct tape *t = tape_run(&d.options, NULL);
    int seen[SAMPLES] = {0};
    for (int i = 0; i < t->rows; i++)
        for (int k = 0; k < t->row[i]->nsample; k++)
            seen[t->row[i]->sample[k].id]++;
    for (int i = 0; i < SAMPLES; i++)
        assert_int_equal(seen[i], i % 3 && i != 7 && i != 8 ? 2 : 0);
    assert_int_equal(t->cursor[t->rows - 1].bad, 2 * (14 + 2));
    assert_int_equal(t->sum.bad, 2 * (14 + 2));
    for (int i = 0; i < t->rows; i++) {
        d.options.workers = i % 3;
        struct tape *again = tape_run(&d.options, &t->cursor[i]);
        same_tape(&d.options.shape, t, i + 1, again);
        tape_free(again);
    }
    tape_free(t);
    for (int i = 0; i < SAMPLES; i++)
        picture_break(&d, i);
    for (int workers = 0; workers < 3; workers++) {
        d.options.workers = workers;
        d.options.positions = 0;
        d.options.bad_limit = 10;
        t = tape_run(&d.options, NULL);
        assert_true(t->failed && t->rows == 0);
        assert_non_null(strstr(fail_message(), "11 bad samples in a row, the limit"));
        tape_free(t);
        d.options.bad_limit = 1000;
        t = tape_run(&d.options, NULL);
        assert_true(t->failed && t->rows == 0);
        assert_non_null(strstr(fail_message(), "a whole epoch of 40 samples"));
        tape_free(t);
    }
    data_close(&d);
}

/* Twelve pictures of noise, whose files are too large to be kept. */
static void large_open(struct data *d)
{
    *d = data_write(12);
    struct arena a = arena_make("noise");
    int side = 700;
    uint8_t *rgb = NEW(&a, uint8_t, 3 * side * side);
    uint64_t x = 1;
    for (int k = 0; k < 3 * side * side; k++)
        rgb[k] = (uint8_t)((x = x * 6364136223846793005u + 1442695040888963407u) >> 56);
    for (int i = 0; i < 12; i++) {
        png_image image = {.version = PNG_IMAGE_VERSION, .format = PNG_FORMAT_RGB};
        image.width = image.height = (png_uint_32)side;
        assert_true(png_image_write_to_file(&image, path_of(d, i, "png"), 0, rgb, 0,
                                            NULL));
    }
    assert_true(file_size(path_of(d, 0, "png")) > 1 << 20);
    arena_free(&a);
    data_open(d);
    d->options.positions = 12;
}

/* Large files are read again when their row is chosen; one that is another by then is
 * a bad sample. */
static void large_files_are_read_twice(void **state)
{
    (void)state;
    struct data d;
    large_open(&d);
    struct arena a = arena_make("test");
    struct tape *t = tape_run(&d.options, NULL);
    assert_int_equal(t->sum.samples, 12);
    struct loader *l;
    const struct row *r;
    bool end = false;
    assert_ok(loader_open(&a, &d.options, NULL, &l));
    assert_ok(loader_next(l, &r, &end));
    same_row(&d.options.shape, t->row[0], r);
    int64_t samples = r->nsample, bad = 0;
    int waits = (int)t->row[1]->sample[0].id;
    picture_write(&d, waits, SIDE, SIDE * 4);           /* while it waits */
    while (!end) {
        assert_ok(loader_next(l, &r, &end));
        samples += r ? r->nsample : 0;
        bad += r ? r->ledger.bad : 0;
    }
    assert_int_equal(samples, 11);
    assert_int_equal(bad, 1);
    loader_close(l);
    arena_free(&a);
    tape_free(t);
    data_close(&d);
}

/* From here on no file can be opened: the limit was as returned. */
static struct rlimit descriptors_end(void)
{
    struct rlimit was, none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    int next = dup(STDERR_FILENO);
    assert_true(next > 0);
    close(next);
    none = (struct rlimit){(rlim_t)next, was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    return was;
}

/* A sample is not bad because the machine has no file descriptor left: the run ends,
 * whatever data.bad says, and says why.  So when it is measured, and when its pixels
 * are read (in a window that holds all, the others are measured by then). */
static void what_the_machine_cannot_is_no_bad_sample(void **state)
{
    (void)state;
    struct data d;
    large_open(&d);
    for (int i = 0; i < 3; i++) {
        struct loader *l;
        const struct row *r;
        struct cursor at;
        bool end = false;
        d.options.window = i == 2 ? 12 : 4;
        assert_ok(loader_open(&d.arena, &d.options, NULL, &l));
        if (i)
            assert_ok(loader_next(l, &r, &end));
        struct rlimit was = descriptors_end();
        bool ok = loader_next(l, &r, &end);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
        assert_false(ok);
        assert_non_null(strstr(fail_message(), "Too many open files"));
        assert_non_null(strstr(fail_message(), d.folder));
        assert_int_equal(fail_fault(), FAULT_DATA);
        loader_cursor(l, &at);
        assert_int_equal(at.bad, 0);
        loader_close(l);
    }
    data_close(&d);
}

/* Whatever is held out now is not in the rows, from the beginning and from any cursor,
 * even one that was made while other samples were held out and waits for those. */
static void what_is_held_out_is_never_in_a_row(void **state)
{
    (void)state;
    struct data d = data_write(SAMPLES);
    data_open(&d);
    struct mix_part part = {d.source, 1, "pictures"};
    struct mix *mix[2];
    static const int hold_out[2] = {5, 4};
    for (int i = 0; i < 2; i++)
        assert_ok(mix_make(&d.arena, &part, 1, 7, true, hold_out[i], false, &mix[i]));
    d.options.mix = mix[0];
    d.options.positions = 70;
    struct tape *t = tape_run(&d.options, NULL);
    for (int from = -1; from < t->rows; from++)
        for (int now = 0; now < 2; now++) {
            d.options.mix = mix[now];
            d.options.workers = from % 2 == 0;
            struct tape *on = tape_run(&d.options, from < 0 ? NULL : &t->cursor[from]);
            int samples = 0;
            for (int i = 0; i < on->rows; i++)
                for (int k = 0; k < on->row[i]->nsample; k++, samples++)
                    assert_true((on->row[i]->sample[k].id + 1) % hold_out[now] != 0);
            assert_true(samples > 0 || from > t->rows - 3);
            tape_free(on);
        }
    tape_free(t);
    data_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_waits_is_not_decoded),
        cmocka_unit_test(broken_pixels_cost_their_own_sample),
        cmocka_unit_test(large_files_are_read_twice),
        cmocka_unit_test(what_the_machine_cannot_is_no_bad_sample),
        cmocka_unit_test(what_is_held_out_is_never_in_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
