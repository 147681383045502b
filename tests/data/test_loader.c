/* test_loader.c - the same rows whatever the threads, from any cursor on, and every
 * sample that is left out is named and counted. */
#include "data/loader_case.h"

/* ---- order ---- */

static void workers_do_not_change_rows(void **state)
{
    (void)state;
    struct data d = data_write(SAMPLES);
    break_some(&d);
    data_open(&d);
    d.options.positions = 2 * SAMPLES + 13;
    struct tape *inline_run = tape_run(&d.options, NULL);
    assert_false(inline_run->failed);
    assert_true(inline_run->rows > 10);
    static const int workers[] = {1, 3};
    for (int i = 0; i < COUNT(workers); i++) {
        d.options.workers = workers[i];
        struct tape *t = tape_run(&d.options, NULL);
        same_tape(&d.options.shape, inline_run, 0, t);
        assert_int_equal(t->left, inline_run->left);
        assert_memory_equal(t->left_out, inline_run->left_out, sizeof t->left_out);
        tape_free(t);
    }
    tape_free(inline_run);
    data_close(&d);
}

/* From the cursor of every row: in an epoch, across its border, in the flush. */
static void every_cursor_resumes(void **state)
{
    (void)state;
    struct data d = data_write(SAMPLES);
    break_some(&d);
    data_open(&d);
    d.options.positions = 2 * SAMPLES + 13;
    struct tape *whole = tape_run(&d.options, NULL);
    for (int i = 0; i < whole->rows; i++) {
        assert_int_equal(whole->cursor[i].rows, i + 1);
        d.options.workers = i % 3;
        struct tape *t = tape_run(&d.options, &whole->cursor[i]);
        same_tape(&d.options.shape, whole, i + 1, t);
        tape_free(t);
    }
    tape_free(whole);
    data_close(&d);
}

/* A resume with a smaller window makes other rows, but loses and repeats nothing; its
 * own cursors also list what the old window left and is not read yet. */
static void a_smaller_window_resumes(void **state)
{
    (void)state;
    struct data d = data_write(SAMPLES);
    break_some(&d);
    data_open(&d);
    d.options.positions = 2 * SAMPLES;
    d.options.window = 36;
    struct tape *wide = tape_run(&d.options, NULL);
    const struct cursor *from = &wide->cursor[0];
    assert_true(from->nwaiting > 25);
    d.options.window = 1;
    struct tape *narrow = tape_run(&d.options, from);
    bool seen[2 * SAMPLES] = {0};
    for (int i = 0; i < narrow->rows; i++)
        for (int k = 0; k < narrow->row[i]->nsample; k++) {
            assert_false(seen[narrow->row[i]->sample[k].position]);
            seen[narrow->row[i]->sample[k].position] = true;
        }
    for (int k = 0; k < wide->row[0]->nsample; k++)
        assert_false(seen[wide->row[0]->sample[k].position]);
    assert_int_equal(wide->row[0]->nsample + narrow->sum.samples, wide->sum.samples);
    for (int i = 0; i < 3; i++) {
        struct tape *again = tape_run(&d.options, &narrow->cursor[i]);
        same_tape(&d.options.shape, narrow, i + 1, again);
        tape_free(again);
    }
    tape_free(narrow);
    tape_free(wide);
    data_close(&d);
}

/* Two epochs: each good sample twice, and what the ledger says adds up to the files. */
static void every_sample_once_an_epoch(void **state)
{
    (void)state;
    struct data d = data_write(SAMPLES);
    break_some(&d);
    data_open(&d);
    d.options.positions = 2 * SAMPLES;
    d.options.workers = 2;
    struct tape *t = tape_run(&d.options, NULL);
    int seen[SAMPLES] = {0}, image_tokens = 0;
    for (int i = 0; i < t->rows; i++)
        for (int k = 0; k < t->row[i]->nsample; k++)
            seen[t->row[i]->sample[k].id]++;
    for (int i = 0; i < SAMPLES; i++) {
        bool broken = i == 7 || i == 8 || i == 30;
        assert_int_equal(seen[i], broken ? 0 : 2);
        image_tokens += broken ? 0 : 2 * (1 + i % 5) * (1 + i % 4);
    }
    assert_int_equal(t->sum.samples, 2 * (SAMPLES - 3));
    assert_int_equal(t->sum.images, 2 * (SAMPLES - 3));
    assert_int_equal(t->sum.image, image_tokens);
    assert_int_equal(t->sum.patches, 4 * image_tokens);
    assert_int_equal(t->sum.dropped, 6);
    assert_int_equal(t->sum.bad, 6);
    assert_int_equal(t->sum.slots, 256 * t->rows);
    assert_true(t->sum.supervised > 0 && t->sum.mock == 0 && t->sum.shrunk == 0);
    tape_free(t);
    data_close(&d);
}

/* Enough rows held at once stay untouched while newer ones come. */
static void held_rows_stay(void **state)
{
    (void)state;
    struct data d = data_write(SAMPLES);
    data_open(&d);
    d.options.positions = 2 * SAMPLES;
    struct tape *t = tape_run(&d.options, NULL);
    d.options.hold = 4, d.options.workers = 1;
    struct loader *l;
    assert_ok(loader_open(&d.arena, &d.options, NULL, &l));
    const struct row *r[4];
    bool end;
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < 4; i++)
            assert_ok(loader_next(l, &r[i], &end));
        for (int i = 0; i < 4; i++)
            same_row(&d.options.shape, t->row[4 * step + i], r[i]);
    }
    loader_close(l);
    tape_free(t);
    data_close(&d);
}

/* ---- what is left out ---- */

static void find_left(const struct tape *t, const char *name, const char *why)
{
    int found = 0;
    for (int i = 0; i < t->left; i++)
        if (strstr(t->left_out[i].name, name)) {
            found++;
            if (!strstr(t->left_out[i].why, why))
                fail_msg("%s: '%s' lacks '%s'", name, t->left_out[i].why, why);
        }
    if (found != 1)
        fail_msg("%s was named %d times, expected once", name, found);
}

static void bad_samples_are_named_and_counted(void **state)
{
    (void)state;
    struct data d = data_write(20);
    struct bytes whole;
    assert_ok(file_read(&d.arena, path_of(&d, 6, "png"), 1 << 20, &whole));
    file_write(path_of(&d, 6, "png"), whole.at, (size_t)whole.size * 6 / 10);
    file_write(path_of(&d, 7, "png"), "", 0);
    file_write(path_of(&d, 8, "png"), "This is no picture.\n", 20);
    memcpy(whole.at + 16, "\0\0\xea\x60\0\0\xea\x60", 8);       /* 60000 x 60000 */
    file_write(path_of(&d, 9, "png"), whole.at, (size_t)whole.size);
    data_open(&d);
    d.options.positions = 20;
    d.options.workers = 2;
    struct tape *t = tape_run(&d.options, NULL);
    assert_false(t->failed);
    assert_int_equal(t->left, 4);
    find_left(t, "006", "");
    find_left(t, "007", "empty");
    find_left(t, "008", "neither JPEG, PNG nor WebP");
    find_left(t, "009", "");
    assert_int_equal(t->sum.samples, 16);
    assert_int_equal(t->sum.bad, 4);
    assert_int_equal(t->sum.dropped, 4);
    assert_int_equal(t->cursor[t->rows - 1].bad, 4);
    tape_free(t);

    d.options.bad = BAD_FAIL;
    t = tape_run(&d.options, NULL);
    assert_true(t->failed);
    assert_int_equal(fail_fault(), FAULT_DATA);
    assert_int_equal(t->left, 1);
    assert_non_null(strstr(fail_message(), t->left_out[0].name));
    tape_free(t);
    data_close(&d);
}

/* In the sources' own order samples 5..8 are bad: four in a row. */
static void too_many_bad_in_a_row_stop_the_run(void **state)
{
    (void)state;
    struct data d = data_write(12);
    for (int i = 5; i < 9; i++)
        file_write(path_of(&d, i, "png"), "", 0);
    data_open(&d);
    struct mix_part part = {d.source, 1, "pictures"};
    assert_ok(mix_make(&d.arena, &part, 1, 7, false, 0, false, &d.mix));
    d.options.mix = d.mix;
    d.options.positions = 36;           /* one good sample starts the count again */
    for (int workers = 0; workers < 3; workers++) {
        d.options.workers = workers;
        d.options.bad_limit = 4;
        struct tape *t = tape_run(&d.options, NULL);
        assert_false(t->failed);
        assert_int_equal(t->sum.bad, 12);
        tape_free(t);
        d.options.bad_limit = 3;
        t = tape_run(&d.options, NULL);
        assert_true(t->failed);
        assert_int_equal(t->rows, 0);
        assert_int_equal(t->left, 4);
        assert_non_null(strstr(fail_message(), "4 bad samples in a row, the limit"));
        assert_non_null(strstr(fail_message(), "008"));
        tape_free(t);
    }
    data_close(&d);
}

/* Nothing of use and no end in sight: said, not looped over. */
static void an_epoch_of_nothing_stops_the_run(void **state)
{
    (void)state;
    struct data d = data_write(6);
    data_open(&d);
    d.options.shape.tokens = 4;
    struct tape *t = tape_run(&d.options, NULL);
    assert_true(t->failed);
    assert_int_equal(t->left, 2 * 6 - 1);
    assert_non_null(strstr(fail_message(), "a whole epoch of 6 samples"));
    tape_free(t);
    data_close(&d);
}

/* One good sample in four comes first in one epoch and last in the next: enough. */
static void one_good_sample_is_enough(void **state)
{
    (void)state;
    struct data d = data_write(4);
    for (int i = 0; i < 3; i++)
        file_write(path_of(&d, i, "png"), "", 0);
    data_open(&d);
    d.options.positions = 4 * 12;
    struct tape *t = tape_run(&d.options, NULL);
    assert_false(t->failed);
    assert_int_equal(t->sum.samples, 12);
    assert_int_equal(t->sum.bad, 36);
    tape_free(t);
    data_close(&d);
}

/* Three images too large for a row, and what each policy makes of them. */
static void too_long_samples(void **state)
{
    (void)state;
    struct data d = data_write(20);
    for (int i = 3; i < 6; i++)
        picture_write(&d, i, SIDE * (12 + i), SIDE * 14);       /* 210 to 238 tokens */
    data_open(&d);
    d.options.image.max_pixels = 4096 * SIDE * SIDE;
    d.options.shape.patches = 600;                              /* 150 tokens */
    d.options.positions = 20;

    struct tape *t = tape_run(&d.options, NULL);
    assert_int_equal(t->sum.samples, 17);
    assert_int_equal(t->sum.too_long, 3);
    assert_int_equal(t->sum.dropped, 3);
    assert_int_equal(t->cursor[t->rows - 1].too_long, 3);
    assert_int_equal(t->left, 3);
    find_left(t, "003", "840 patches, 1 image; a row holds 256 tokens, 600 patches");
    find_left(t, "005", "952 patches");
    tape_free(t);

    d.options.too_long = LONG_ERROR;
    t = tape_run(&d.options, NULL);
    assert_true(t->failed && t->left == 1);
    assert_non_null(strstr(fail_message(), "too long: "));
    tape_free(t);

    d.options.too_long = LONG_SHRINK;
    t = tape_run(&d.options, NULL);
    assert_int_equal(t->sum.samples, 20);
    assert_int_equal(t->sum.shrunk, 3);
    assert_int_equal(t->sum.dropped, 0);
    int others = 0, largest = 0;
    for (int i = 0; i < 20; i++)
        others += i < 3 || i > 5 ? (1 + i % 5) * (1 + i % 4) : 0;
    for (int i = 0; i < t->rows; i++)
        for (int k = 0; k < t->row[i]->ledger.images; k++)
            largest = MAX(largest, t->row[i]->image[k + 1] - t->row[i]->image[k]);
    assert_true(largest <= 600 && largest > 400);
    /* Other images keep their size; the three keep at least a third of their row. */
    assert_true(t->sum.image > others + 3 * 100 && t->sum.image <= others + 3 * 150);
    for (int workers = 1; workers < 3; workers++) {
        d.options.workers = workers;
        struct tape *again = tape_run(&d.options, NULL);
        same_tape(&d.options.shape, t, 0, again);
        tape_free(again);
    }
    tape_free(t);

    d.options.shape.images = 0;         /* cannot be shrunk away */
    d.options.positions = 5;
    t = tape_run(&d.options, NULL);
    assert_int_equal(t->rows, 0);
    assert_int_equal(t->left, 5);
    tape_free(t);
    data_close(&d);
}

/* Text that is longer than a row is cut at its end, and what is lost is counted; an
 * image is never cut, nor all that is to be learnt. */
static void too_long_texts(void **state)
{
    (void)state;
    struct data d = data_write(1);
    struct text t = text_make(&d.arena);
    const char *image = path_of(&d, 0, "png");
    static const struct { int before, between, after; bool cut; } talk[] = {
        {2, 1, 300, true},              /* the answer is cut */
        {2, 40, 300, true},             /* so is one behind an image */
        {2, 300, 1, false},             /* the image would be cut off */
        {300, 0, 2, false},             /* nothing of the answer would be left */
        {2, 0, 2, false}};              /* it fits */
    for (int i = 0; i < COUNT(talk); i++) {
        text_add(&t, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
                 "\"text\",\"text\":\"");
        for (int k = 0; k < talk[i].before + talk[i].between; k++)
            text_add(&t, "%d.", k % 10);
        text_add(&t, "\"}");
        if (talk[i].between)
            text_add(&t, ",{\"type\":\"image\",\"image\":\"%s\"}", image);
        text_add(&t, "]},{\"role\":\"assistant\",\"content\":\"");
        for (int k = 0; k < talk[i].after; k++)
            text_add(&t, "%d.", k % 10);
        text_add(&t, "\"}]}\n");
    }
    file_write(path_of(&d, 0, "jsonl"), t.at, (size_t)t.size);
    data_open(&d);
    struct source_options from = {.path = path_of(&d, 0, "jsonl"), .format = "openai"};
    struct source *source;
    assert_ok(source_open(&d.arena, &from, &source));
    struct loader_options o = d.options, large = d.options;
    o.too_long = LONG_CUT;
    large.shape.tokens = 4096;
    int cut = 0, lost = 0;
    for (int i = 0; i < COUNT(talk); i++) {
        struct arena a = arena_make("cut");
        struct sample s;
        struct encoded e, whole;
        assert_ok(source_read(source, i, &a, &s));
        assert_ok(loader_encode(&large, &s, &a, &whole));
        enum cause cause = sample_encode(&o, &s, &a, &a, &e);
        int all = sample_targets(&large.shape, &whole);
        if (talk[i].cut) {
            assert_int_equal(cause, CAUSE_NONE);
            assert_true(e.cut && !whole.cut && whole.lost == 0);
            assert_int_equal(e.tokens, o.shape.tokens);
            assert_memory_equal(e.input, whole.input,
                                sizeof *e.input * (size_t)e.tokens);
            assert_int_equal(e.nimage, whole.nimage);
            assert_int_equal(e.lost, all - sample_targets(&o.shape, &e));
            assert_true(e.lost > 0 && e.lost < all);
            cut++;
        } else if (whole.tokens > o.shape.tokens) {
            assert_int_equal(cause, CAUSE_TOO_LONG);
            assert_int_equal(e.lost, all);
        } else {
            assert_true(cause == CAUSE_NONE && !e.cut && e.lost == 0);
        }
        lost += e.lost;
        arena_free(&a);
    }
    struct mix_part part = {source, 1, "talk"};
    struct mix *mix;
    assert_ok(mix_make(&d.arena, &part, 1, 7, false, 0, false, &mix));
    o.mix = mix;
    o.positions = COUNT(talk);
    struct tape *tape = tape_run(&o, NULL);
    assert_int_equal(tape->sum.cut, cut);
    assert_int_equal(tape->sum.too_long, 2);
    assert_int_equal(tape->sum.samples, 3);
    assert_int_equal(tape->sum.lost, lost);
    tape_free(tape);
    source_close(source);
    data_close(&d);
}

/* The marker behind an image belongs to it: where only that lies behind the row's end,
 * the image would be cut. */
static void the_end_of_an_image_is_not_cut(void **state)
{
    (void)state;
    struct data d = data_write(1);
    struct text t = text_make(&d.arena);
    const char *image = path_of(&d, 0, "png");
    text_add(&t, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hm?\"},{\"role\":"
             "\"assistant\",\"content\":\"1.2.\"},{\"role\":\"user\",\"content\":[{"
             "\"type\":\"image\",\"image\":\"%s\"}]},{\"role\":\"assistant\","
             "\"content\":\"3.4.\"}]}\n", image);
    file_write(path_of(&d, 0, "jsonl"), t.at, (size_t)t.size);
    data_open(&d);
    struct source_options from = {.path = path_of(&d, 0, "jsonl"), .format = "openai"};
    struct source *source;
    struct sample s;
    struct encoded e;
    assert_ok(source_open(&d.arena, &from, &source));
    assert_ok(source_read(source, 0, &d.arena, &s));
    struct loader_options o = d.options;
    o.shape.tokens = 4096;
    assert_ok(loader_encode(&o, &s, &d.arena, &e));
    int end = 0;
    while (e.input[end] != o.chat->vision_end)
        end++;
    o.too_long = LONG_CUT;
    for (int tokens = end; tokens <= end + 1; tokens++) {
        o.shape.tokens = tokens;
        assert_int_equal(sample_encode(&o, &s, &d.arena, &d.arena, &e),
                         tokens > end ? CAUSE_NONE : CAUSE_TOO_LONG);
        assert_true(e.cut == (tokens > end));
    }
    source_close(source);
    data_close(&d);
}

/* Far more text than a row holds is refused before it is tokenized. */
static void far_too_long_texts(void **state)
{
    (void)state;
    enum { SIZE = 16 << 20 };
    struct data d = data_write(1);
    data_open(&d);
    char *word = NEW(&d.arena, char, SIZE + 1);
    memset(word, 'x', SIZE);
    struct piece piece = {-1, word};
    struct message m = {.role = ROLE_ASSISTANT, .npiece = 1, .piece = &piece};
    struct sample s = {.name = "far", .nmessage = 1, .message = &m};
    for (int policy = LONG_DROP; policy <= LONG_ERROR; policy++) {
        struct arena a = arena_make("far");
        struct encoded e;
        d.options.too_long = (enum long_policy)policy;
        assert_int_equal(sample_encode(&d.options, &s, &a, &a, &e), CAUSE_TOO_LONG);
        assert_non_null(strstr(fail_message(), "too long: 16777216 bytes of text"));
        assert_true(arena_used(&a) < 100000);
        arena_free(&a);
    }
    /* The bound is never too low: what it refuses is longer than a row. */
    for (int size = 100; size < 20000; size += size / 3) {
        struct arena a = arena_make("far");
        struct ids ids = {0};
        memset(word, ' ', (size_t)size);
        assert_ok(tokenizer_encode(d.tokenizer, &a, word, size, SPECIAL_ALL, &ids));
        assert_true(tokenizer_least(d.tokenizer, size) <= ids.count);
        arena_free(&a);
    }
    data_close(&d);
}

/* A conversation nobody answers carries no loss. */
static void samples_without_loss(void **state)
{
    (void)state;
    struct data d = data_write(1);
    static const char lines[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello?\"},"
        "{\"role\":\"assistant\",\"content\":\"Hello.\"}]}\n"
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Anybody there?\"}]}\n";
    file_write(path_of(&d, 0, "jsonl"), lines, sizeof lines - 1);
    data_open(&d);
    struct source_options from = {.path = path_of(&d, 0, "jsonl"), .format = "openai"};
    struct source *source;
    assert_ok(source_open(&d.arena, &from, &source));
    struct mix_part part = {source, 1, "talk"};
    struct mix *mix;
    assert_ok(mix_make(&d.arena, &part, 1, 7, false, 0, false, &mix));
    d.options.mix = mix;
    d.options.positions = 6;
    struct tape *t = tape_run(&d.options, NULL);
    assert_int_equal(t->sum.samples, 3);
    assert_int_equal(t->sum.no_loss, 3);
    assert_int_equal(t->sum.dropped, 3);
    assert_int_equal(t->cursor[t->rows - 1].no_loss, 3);
    assert_int_equal(t->left, 3);
    assert_non_null(strstr(t->left_out[0].why, "no loss"));
    assert_non_null(strstr(t->left_out[0].name, ":2"));
    tape_free(t);

    struct sample s;
    struct encoded e;
    assert_ok(source_read(source, 1, &d.arena, &s));
    assert_ok(loader_encode(&d.options, &s, &d.arena, &e));
    assert_int_equal(sample_targets(&d.options.shape, &e), 0);
    d.options.shape.tokens = e.tokens - 1;
    assert_fails(loader_encode(&d.options, &s, &d.arena, &e), "too long");
    assert_int_equal(fail_fault(), FAULT_DATA);
    source_close(source);
    data_close(&d);
}

/* ---- opening and closing ---- */

/* With every queue full, half full and empty. */
static void closing_early_neither_hangs_nor_leaks(void **state)
{
    (void)state;
    struct data d = data_write(SAMPLES);
    break_some(&d);
    data_open(&d);
    for (int workers = 0; workers < 4; workers++)
        for (int rows = 0; rows < 5; rows += 2) {
            const struct row *r;
            struct loader *l;
            bool end;
            d.options.workers = workers;
            d.options.ahead = 1 + workers % 2;
            assert_ok(loader_open(&d.arena, &d.options, NULL, &l));
            for (int i = 0; i < rows; i++)
                assert_ok(loader_next(l, &r, &end));
            loader_close(l);
        }
    loader_close(NULL);
    data_close(&d);
}

/* After the end comes the end, after a failure the same failure; no hang. */
static void the_end_stays(void **state)
{
    (void)state;
    struct data d = data_write(4);
    data_open(&d);
    d.options.positions = 4;
    for (int workers = 0; workers < 2; workers++) {
        const struct row *r;
        struct loader *l;
        bool end = false;
        d.options.workers = workers;
        d.options.bad = BAD_SKIP;
        assert_ok(loader_open(&d.arena, &d.options, NULL, &l));
        while (!end)
            assert_ok(loader_next(l, &r, &end));
        assert_ok(loader_next(l, &r, &end));
        assert_true(end && !r);
        loader_close(l);
    }
    file_write(path_of(&d, 2, "png"), "", 0);
    d.options.bad = BAD_FAIL;
    for (int workers = 0; workers < 2; workers++) {
        const struct row *r;
        struct loader *l;
        bool end = false;
        d.options.workers = workers;
        assert_ok(loader_open(&d.arena, &d.options, NULL, &l));
        for (int i = 0; i < 2; i++)
            assert_fails(loader_next(l, &r, &end), "002");
        loader_close(l);
    }
    data_close(&d);
}

static void nonsense_is_refused(void **state)
{
    (void)state;
    struct data d = data_write(2);
    data_open(&d);
    struct loader *l;
    struct loader_options o = d.options;
    o.window = WINDOW_MAX + 1;
    assert_fails(loader_open(&d.arena, &o, NULL, &l), "window is 513 samples");
    assert_int_equal(fail_fault(), FAULT_USAGE);
    o.window = 0;
    assert_fails(loader_open(&d.arena, &o, NULL, &l), "window is 0 samples");
    o = d.options, o.ahead = 0;
    assert_fails(loader_open(&d.arena, &o, NULL, &l), "0 rows ahead");
    struct cursor c = {.position = 5, .nwaiting = 2, .waiting = {3, 3}};
    assert_fails(loader_open(&d.arena, &d.options, &c, &l), "lists 3 as waiting");
    assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
    c.waiting[1] = 5;
    assert_fails(loader_open(&d.arena, &d.options, &c, &l), "lists 5 as waiting");
    c.nwaiting = WINDOW_MAX + 1;
    assert_fails(loader_open(&d.arena, &d.options, &c, &l), "513 samples waiting");
    data_close(&d);
}

/* The real pictures, where they are installed: 97 of 100 places in use over an epoch,
 * and nothing left out but mirror images that have no caption of their own. */
static void real_pictures_fill_rows(void **state)
{
    (void)state;
    static const char stamps[] = "/usr/share/tuxpaint/stamps";
    if (!folder_exists(stamps))
        check_skip("no %s: tests/run.sh installs it", stamps);
    struct data d = data_write(1);
    data_open(&d);
    struct source *source;
    struct mix *mix;
    struct source_options from = {.path = stamps, .format = "folder", .match = "*.png",
                                  .prompt = "What is this?"};
    assert_ok(source_open(&d.arena, &from, &source));
    struct mix_part part = {source, 1, "stamps"};
    assert_ok(mix_make(&d.arena, &part, 1, 7, true, 0, false, &mix));
    d.options.mix = mix;
    d.options.image = image_shape_default;
    d.options.image.min_pixels = 16 * 1024;
    d.options.image.max_pixels = 64 * 1024;
    d.options.shape.values = 1536;
    d.options.shape.tokens = 1024;
    d.options.shape.patches = 3600;
    d.options.shape.segments = d.options.shape.images = 64;
    d.options.window = 64, d.options.workers = 1;
    d.options.positions = source_count(source);
    struct loader *l;
    struct ledger sum = {0};
    struct left_out left[64];
    assert_ok(loader_open(&d.arena, &d.options, NULL, &l));
    for (bool end = false; !end;) {
        const struct row *r;
        assert_ok(loader_next(l, &r, &end));
        for (int i = loader_left_out(l, left, COUNT(left)); i > 0; i--)
            assert_non_null(strstr(left[i - 1].why, "no caption"));
        if (!end)
            ledger_add(&sum, &r->ledger);
    }
    loader_close(l);
    assert_ok(ledger_check(&sum));
    assert_int_equal(sum.samples + sum.bad, source_count(source));
    assert_true(sum.bad * 50 < sum.samples);
    double full = (double)ledger_useful(&sum) / (double)sum.slots;
    print_message("%lld samples, %.2f%% of slots in use, %.2f%% of patches\n",
                  (long long)sum.samples, 100 * full,
                  100.0 * (double)sum.patches / (double)sum.patch_slots);
    assert_true(full > 0.97);
    source_close(source);
    data_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_do_not_change_rows),
        cmocka_unit_test(every_cursor_resumes),
        cmocka_unit_test(a_smaller_window_resumes),
        cmocka_unit_test(every_sample_once_an_epoch),
        cmocka_unit_test(held_rows_stay),
        cmocka_unit_test(bad_samples_are_named_and_counted),
        cmocka_unit_test(too_many_bad_in_a_row_stop_the_run),
        cmocka_unit_test(an_epoch_of_nothing_stops_the_run),
        cmocka_unit_test(one_good_sample_is_enough),
        cmocka_unit_test(too_long_samples),
        cmocka_unit_test(too_long_texts),
        cmocka_unit_test(the_end_of_an_image_is_not_cut),
        cmocka_unit_test(far_too_long_texts),
        cmocka_unit_test(samples_without_loss),
        cmocka_unit_test(closing_early_neither_hangs_nor_leaks),
        cmocka_unit_test(the_end_stays),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(real_pictures_fill_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
