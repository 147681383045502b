/* test_events.c - event files, read back by a decoder of its own. */
#include "check.h"

#include "base/text.h"
#include "measure/events.h"
#include "measure/metrics.h"

#include <math.h>
#include <time.h>

static void test_crc32c(void **state)
{
    (void)state;
    uint8_t block[32];
    assert_int_equal(crc32c("", 0), 0);
    assert_int_equal(crc32c("123456789", 9), 0xe3069283);
    assert_int_equal(crc32c("a", 1), 0xc1d04330);
    memset(block, 0, sizeof block);             /* RFC 3720, appendix B.4 */
    assert_int_equal(crc32c(block, 32), 0x8a9136aa);
    memset(block, 0xff, sizeof block);
    assert_int_equal(crc32c(block, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++)
        block[i] = (uint8_t)i;
    assert_int_equal(crc32c(block, 32), 0x46dd794e);
    for (int i = 0; i < 32; i++)
        block[i] = (uint8_t)(31 - i);
    assert_int_equal(crc32c(block, 32), 0x113fdb5c);
}

/* ---- the decoder ---- */

struct view { const uint8_t *at, *end; };

static uint64_t little(struct view *v, int bytes)
{
    uint64_t x = 0;
    assert_true(v->end - v->at >= bytes);
    for (int i = 0; i < bytes; i++)
        x |= (uint64_t)v->at[i] << 8 * i;
    v->at += bytes;
    return x;
}

static uint64_t varint(struct view *v)
{
    uint64_t x = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t byte = (uint8_t)little(v, 1);
        x |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return x;
    }
    fail_msg("a varint does not end");
    return 0;
}

struct field { int number, wire; uint64_t number_value; struct view bytes; };

static bool field_next(struct view *v, struct field *f)
{
    if (v->at == v->end)
        return false;
    uint64_t tag = varint(v);
    *f = (struct field){.number = (int)(tag >> 3), .wire = tag & 7};
    switch (f->wire) {
    case 0: f->number_value = varint(v); return true;
    case 1: f->number_value = little(v, 8); return true;
    case 5: f->number_value = little(v, 4); return true;
    case 2: {
        uint64_t n = varint(v);
        assert_true(n <= (uint64_t)(v->end - v->at));
        f->bytes = (struct view){v->at, v->at + n};
        v->at += n;
        return true;
    }
    default: fail_msg("wire type %d", f->wire); return false;
    }
}

/* The one field `number` of a message, which has it once. */
static struct field only(struct view v, int number, int wire)
{
    struct field f, found = {0};
    while (field_next(&v, &f))
        if (f.number == number) {
            assert_int_equal(found.number, 0);
            found = f;
        }
    assert_int_equal(found.number, number);
    assert_int_equal(found.wire, wire);
    return found;
}

static bool is_text(struct view v, const char *text)
{
    return (size_t)(v.end - v.at) == strlen(text) && !memcmp(v.at, text, strlen(text));
}

/* The next frame's message; its two checks hold (bit by bit, not by crc32c). */
static uint32_t crc_slow(const uint8_t *at, size_t n)
{
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < 8 * n; i++) {
        uint32_t bit = (at[i / 8] >> i % 8 & 1) ^ (crc & 1);
        crc = crc >> 1 ^ (bit ? 0x82f63b78 : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8;
}

static bool frame_next(struct view *v, struct view *event)
{
    if (v->at == v->end)
        return false;
    const uint8_t *head = v->at;
    uint64_t n = little(v, 8);
    assert_int_equal(little(v, 4), crc_slow(head, 8));
    assert_true(n < (uint64_t)(v->end - v->at));
    *event = (struct view){v->at, v->at + n};
    v->at += n;
    assert_int_equal(little(v, 4), crc_slow(event->at, n));
    return true;
}

/* The file's events; the first says which version, the second where it goes on. */
static struct view file_begin(struct arena *a, const char *folder, int file,
                              int64_t step)
{
    char **name;
    int64_t count;
    struct bytes b;
    struct view event;
    assert_ok(folder_list(a, folder, &name, &count));
    assert_true(count > file);
    assert_true(text_starts(name[file], "events.out.tfevents."));
    assert_ok(file_read(a, path_join(a, folder, name[file]), 1 << 24, &b));
    struct view v = {(uint8_t *)b.at, (uint8_t *)b.at + b.size};
    assert_true(frame_next(&v, &event));
    assert_true(is_text(only(event, 3, 2).bytes, "brain.Event:2"));
    uint64_t wall = only(event, 1, 1).number_value;
    double seconds;
    memcpy(&seconds, &wall, sizeof seconds);
    assert_true(fabs(seconds - (double)time(NULL)) < 100);
    assert_true(frame_next(&v, &event));
    assert_int_equal(only(event, 2, 0).number_value, step + 1);
    assert_int_equal(only(only(event, 7, 2).bytes, 1, 0).number_value, 1);
    return v;
}

static void check_scalar(struct view *v, int64_t step, const char *tag, float want)
{
    struct view event;
    assert_true(frame_next(v, &event));
    assert_int_equal(only(event, 2, 0).number_value, step);
    struct view value = only(only(event, 5, 2).bytes, 1, 2).bytes;
    assert_true(is_text(only(value, 1, 2).bytes, tag));
    uint32_t bits = (uint32_t)only(value, 2, 5).number_value;
    float is;
    memcpy(&is, &bits, sizeof is);
    assert_true(is == want || (isnan(is) && isnan(want)));
}

static void check_text(struct view *v, int64_t step, const char *tag, const char *want)
{
    struct view event;
    assert_true(frame_next(v, &event));
    assert_int_equal(only(event, 2, 0).number_value, step);
    struct view value = only(only(event, 5, 2).bytes, 1, 2).bytes;
    assert_true(is_text(only(value, 1, 2).bytes, tag));
    struct view tensor = only(value, 8, 2).bytes;
    assert_int_equal(only(tensor, 1, 0).number_value, 7);               /* DT_STRING */
    struct view dim = only(only(tensor, 2, 2).bytes, 2, 2).bytes;
    assert_int_equal(only(dim, 1, 0).number_value, 1);
    assert_true(is_text(only(tensor, 8, 2).bytes, want));
    struct view plugin = only(only(value, 9, 2).bytes, 1, 2).bytes;
    assert_true(is_text(only(plugin, 1, 2).bytes, "text"));
}

static void test_file(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *parent = check_folder(&a), *folder = path_join(&a, parent, "deep/events");
    char *longer = NEW(&a, char, 70001);
    memset(longer, 'x', 70000);
    struct events *e;
    assert_ok(events_open(&a, folder, 0, &e));
    assert_ok(events_scalar(e, 1, "loss/train", 0.1));
    assert_ok(events_scalar(e, 300, "", -1e30));
    assert_ok(events_scalar(e, INT64_MAX, "big", NAN));
    assert_ok(events_text(e, 5, "samples/a", "caf\xc3\xa9 |\n"));
    assert_ok(events_text(e, 6, "samples/b", ""));
    assert_ok(events_text(e, 7, "samples/c", longer));
    assert_ok(events_flush(e));
    struct view v = file_begin(&a, folder, 0, 0), event;
    check_scalar(&v, 1, "loss/train", 0.1f);
    check_scalar(&v, 300, "", -1e30f);
    check_scalar(&v, INT64_MAX, "big", NAN);
    check_text(&v, 5, "samples/a", "caf\xc3\xa9 |\n");
    check_text(&v, 6, "samples/b", "");
    check_text(&v, 7, "samples/c", longer);
    assert_false(frame_next(&v, &event));
    events_close(e);
    events_close(e);

    nanosleep(&(struct timespec){0, 5000000}, NULL);
    assert_ok(events_open(&a, folder, 40, &e));         /* a second file, behind */
    assert_ok(events_scalar(e, 41, "loss/train", 2));
    events_close(e);
    v = file_begin(&a, folder, 1, 40);
    check_scalar(&v, 41, "loss/train", 2);
    assert_false(frame_next(&v, &event));
    v = file_begin(&a, folder, 0, 0);
    check_scalar(&v, 1, "loss/train", 0.1f);            /* and the first is untouched */

    char *file = path_join(&a, parent, "file");
    assert_ok(file_replace(file, "", 0));
    assert_fails(events_open(&a, path_join(&a, file, "x"), 0, &e), file);
    assert_ok(folder_remove(parent));
    arena_free(&a);
}

/* What a step of two ranks, a quarter of a second long, says of itself. */
static void test_step(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a);
    struct recipe r;
    struct metrics_log *l;
    const struct metrics m = {
        .step = 3, .loss = 1.25, .aux_loss = 0.5, .z_loss = 0.125, .grad_norm = 3,
        .lr = 0.25, .step_ms = 250, .data_wait_ms = 2.5, .model_flops = 4e12,
        .ledger = {.slots = 1000, .supervised = 300, .context = 200, .image = 450,
                   .padding = 50, .images = 7},
        .expert_load_max_over_mean = 1.5, .vision_load_max_over_mean = 1.125};
    const struct { const char *tag; float want; } scalar[] = {
        {"loss/train", 1.25f}, {"loss/aux", 0.5f}, {"loss/z", 0.125f},
        {"optim/grad_norm", 3}, {"optim/lr", 0.25f}, {"data/useful_share", 0.95f},
        {"speed/useful_tokens_per_s_per_gpu", 950 * 4 / 2},
        {"speed/supervised_tokens_per_s_per_gpu", 300 * 4 / 2},
        {"speed/images_per_s_per_gpu", 7 * 4 / 2},
        {"speed/model_tflops_per_gpu", 4 * 4 / 2}, {"speed/step_ms", 250},
        {"speed/data_wait_ms", 2.5f}, {"experts/load_max_over_mean", 1.5f},
        {"vision/load_max_over_mean", 1.125f}, {"loss/eval", 2.5f},
    };
    recipe_default(&a, &r);
    assert_ok(metrics_open(&a, folder, &r, 0, 2, &l));
    assert_ok(metrics_add(l, &m));
    assert_ok(metrics_evaluated(l, 2.5));
    metrics_close(l);
    struct view v = file_begin(&a, path_join(&a, folder, "events"), 0, 0), event;
    for (int i = 0; i < COUNT(scalar); i++)
        check_scalar(&v, 3, scalar[i].tag, scalar[i].want);
    assert_false(frame_next(&v, &event));
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_crc32c), cmocka_unit_test(test_file),
        cmocka_unit_test(test_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
