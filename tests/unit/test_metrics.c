/* test_metrics.c - metrics.jsonl: every field, by hand; what a resumed run keeps. */
#include "check.h"

#include "base/log.h"
#include "base/text.h"
#include "measure/metrics.h"

#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <fcntl.h>
#include <unistd.h>

static char synced[4096];               /* path of the last file that was */

int __real_fsync(int fd);
int __wrap_fsync(int fd);

int __wrap_fsync(int fd)
{
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, synced, sizeof synced - 1);
    synced[MAX(n, 0)] = '\0';
    return __real_fsync(fd);
}

static struct metrics sample(int64_t step)
{
    return (struct metrics){
        .step = step, .loss = 1.25, .aux_loss = 0.5, .z_loss = 0.125, .grad_norm = 3,
        .lr = 1e-4, .step_ms = 250, .data_wait_ms = 2.5,
        .ledger = {.slots = 1000, .supervised = 300, .context = 200, .image = 450,
                   .padding = 50, .patch_slots = 2000, .patches = 1800,
                   .patch_padding = 200, .samples = 9, .images = 7, .mock = 1,
                   .dropped = 6, .too_long = 2, .bad = 1, .no_loss = 3,
                   .lost = 55, .shrunk = 3, .cut = 2},
        .model_flops = 4e12, .hardware_flops = 6e12, .peak_bytes = 12345,
        .skipped_steps = 1, .bad_samples = 4, .epoch = 2,
        .expert_load_max_over_mean = 1.5,
        .vision_load_max_over_mean = 1.125, .vision_load_unbalanced = 2.5,
        .vision_crowded = 6, .order_hash = 0xabc,
    };
}

static double number(const json_t *j, const char *key)
{
    const json_t *x = json_object_get(j, key);
    if (!json_is_number(x))
        fail_msg("'%s' is no number", key);
    return json_number_value(x);
}

static void test_fields(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct metrics m = sample(17);
    const char *text = metrics_json(&a, &m, 2);
    assert_null(strchr(text, '\n'));
    json_t *j = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(j);
    const struct { const char *key; double want; } field[] = {
        {"step", 17}, {"loss", 1.25}, {"aux_loss", 0.5}, {"grad_norm", 3}, {"lr", 1e-4},
        {"step_ms", 250}, {"data_wait_ms", 2.5}, {"slots", 1000},
        {"useful_tokens", 950}, {"text_tokens", 500}, {"image_tokens", 450},
        {"supervised_tokens", 300}, {"padding_tokens", 50}, {"images", 7},
        {"patches", 1800}, {"padding_patches", 200}, {"samples", 9},
        {"model_flops", 4e12}, {"hardware_flops", 6e12},
        {"useful_tokens_per_s_per_gpu", 950 * 4 / 2.0},     /* 250 ms, two ranks */
        {"model_tflops_per_gpu", 4 * 4 / 2.0}, {"peak_bytes", 12345},
        {"skipped_steps", 1}, {"bad_samples", 4}, {"expert_load_max_over_mean", 1.5},
        {"z_loss", 0.125}, {"mock_samples", 1}, {"dropped_samples", 6},
        {"too_long_samples", 2}, {"unscored_samples", 3},
        {"lost_supervised_tokens", 55},
        {"shrunk_samples", 3}, {"cut_samples", 2}, {"epoch", 2},
        {"vision_load_max_over_mean", 1.125}, {"vision_load_unbalanced", 2.5},
        {"vision_crowded", 6},
    };
    for (int i = 0; i < COUNT(field); i++)
        if (fabs(number(j, field[i].key) - field[i].want) > 1e-9 * field[i].want)
            fail_msg("%s is %g, expected %g", field[i].key, number(j, field[i].key),
                     field[i].want);
    assert_string_equal(json_string_value(json_object_get(j, "order")),
                        "0000000000000abc");
    assert_null(json_object_get(j, "eval_loss"));
    json_decref(j);

    m.loss = NAN, m.grad_norm = INFINITY, m.step_ms = 0;
    j = json_loads(metrics_json(&a, &m, 1), 0, NULL);   /* still JSON */
    assert_true(json_is_null(json_object_get(j, "loss")));
    assert_true(json_is_null(json_object_get(j, "grad_norm")));
    assert_true(number(j, "useful_tokens_per_s_per_gpu") == 0);
    json_decref(j);
    arena_free(&a);
}

static struct bytes lines(struct arena *a, const char *folder)
{
    struct bytes b;
    assert_ok(file_read(a, path_join(a, folder, "metrics.jsonl"), 1 << 24, &b));
    return b;
}

static void add(const char *folder, int64_t resumed, int64_t from, int64_t to)
{
    struct arena a = arena_make("add");
    struct recipe r;
    struct metrics_log *l;
    recipe_default(&a, &r);
    r.report_tensorboard = false;
    assert_ok(metrics_open(&a, folder, &r, resumed, 1, &l));
    for (int64_t step = from; step <= to; step++) {
        struct metrics m = sample(step);
        assert_ok(metrics_add(l, &m));
    }
    metrics_close(l);
    arena_free(&a);
}

/* Whole lines of steps from..to and nothing else. */
static void check_steps(const char *folder, int64_t from, int64_t to)
{
    struct arena a = arena_make("check");
    struct bytes b = lines(&a, folder);
    char *at = b.at;
    for (int64_t step = from; step <= to; step++) {
        char *end = strchr(at, '\n');
        assert_non_null(end);
        struct metrics m = sample(step);
        assert_string_equal(arena_text(&a, "%.*s", (int)(end - at), at),
                            metrics_json(&a, &m, 1));
        at = end + 1;
    }
    assert_string_equal(at, "");
    arena_free(&a);
}

static void test_resume(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a), *path = path_join(&a, folder, "metrics.jsonl");
    add(folder, 0, 1, 10);
    check_steps(folder, 1, 10);
    add(folder, 10, 11, 12);            /* goes on where it stopped */
    check_steps(folder, 1, 12);
    add(folder, 8, 9, 9);               /* from an older checkpoint */
    check_steps(folder, 1, 9);
    struct bytes b = lines(&a, folder);
    for (int64_t cut = b.size - 1; cut > b.size - 400; cut -= 13) {     /* torn */
        assert_ok(file_replace(path, b.at, cut));
        add(folder, 9, 10, 10);
        char *last = strstr(lines(&a, folder).at, "{\"step\":10,");
        assert_non_null(last);
        assert_true(last[-1] == '\n');  /* a line of its own */
        add(folder, 8, 9, 9);
        check_steps(folder, 1, 9);
    }
    assert_ok(file_replace(path, "\n{}\nnonsense\n[1]\n", 16));
    add(folder, 5, 6, 7);
    check_steps(folder, 6, 7);
    add(folder, 0, 1, 2);               /* from the start: all of it again */
    check_steps(folder, 1, 2);
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

/* A held-out loss joins the last line, also in a run that was resumed before it came.
 */
static void test_evaluated(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a);
    struct recipe r;
    struct metrics_log *l;
    recipe_default(&a, &r);
    r.report_tensorboard = false;
    add(folder, 0, 1, 3);
    assert_ok(metrics_open(&a, folder, &r, 2, 1, &l));
    assert_true(metrics_unevaluated(l, 2));
    assert_false(metrics_unevaluated(l, 3));
    assert_ok(metrics_evaluated(l, 0.1));
    assert_false(metrics_unevaluated(l, 2));
    struct metrics m = sample(3);
    assert_ok(metrics_add(l, &m));
    assert_true(metrics_unevaluated(l, 3));
    assert_ok(metrics_evaluated(l, NAN));
    metrics_close(l);
    const char *text = lines(&a, folder).at;
    for (int step = 1; step <= 3; step++) {
        json_t *j = json_loads(text, JSON_DISABLE_EOF_CHECK, NULL);
        json_t *loss = json_object_get(j, "eval_loss");
        assert_int_equal(json_integer_value(json_object_get(j, "step")), step);
        assert_true(step == 1 ? !loss : step == 2 ? json_number_value(loss) == 0.1
                                                  : json_is_null(loss));
        json_decref(j);
        text = strchr(text, '\n') + 1;
    }
    assert_string_equal(text, "");
    assert_ok(metrics_open(&a, folder, &r, 2, 1, &l));
    assert_false(metrics_unevaluated(l, 2));
    metrics_close(l);
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

static void test_world(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a);
    struct recipe r;
    struct metrics_log *l;
    struct metrics m = sample(1);
    recipe_default(&a, &r);
    assert_ok(metrics_open(&a, folder, &r, 0, 1, &l));
    assert_ok(metrics_add(l, &m));
    assert_ok(metrics_text(l, 1, "samples/x", "hello"));
    metrics_close(l);
    char **name;
    int64_t count;
    assert_ok(folder_list(&a, path_join(&a, folder, "events"), &name, &count));
    assert_int_equal(count, 1);
    assert_true(file_size(path_join(&a, path_join(&a, folder, "events"),
                                    name[0])) > 500);
    assert_fails(metrics_open(&a, path_join(&a, folder, "none"), &r, 0, 1, &l), "none");
    r.report_tensorboard = false;
    assert_ok(metrics_open(&a, folder, &r, 0, 1, &l));
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    small = (struct rlimit){100, old.rlim_max};         /* a full disk */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    bool ok = metrics_add(l, &m);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_false(ok);
    assert_non_null(strstr(fail_message(), "metrics.jsonl: File too large"));
    metrics_close(l);
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

/* What a resume from after step `step` says of these lines. */
static const char *said(struct arena *a, const char *folder, const char *text,
                        int64_t step)
{
    char *path = path_join(a, folder, "metrics.jsonl"),
         *log = path_join(a, folder, "log");
    struct bytes got;
    assert_ok(file_replace(path, text, (int64_t)strlen(text)));
    int kept = dup(STDERR_FILENO), fd = open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(kept >= 0 && fd >= 0);
    dup2(fd, STDERR_FILENO);
    add(folder, step, step + 1, step);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(fd);
    close(kept);
    assert_ok(file_read(a, log, 1 << 16, &got));
    return got.at;
}

/* Lines that are gone are told, however they went; a line counts once. */
static void test_missing_lines_are_told(void **state)
{
    (void)state;
    static const struct { const char *text, *says; int64_t step; } tell[] = {
        {"{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n", "", 3},
        {"{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n", "", 2},
        {"{\"step\":1}\n{\"step\":3}\n",
         "1 of the 3 steps done are missing, the first of step 2", 3},
        {"{\"step\":2}\n{\"step\":3}\n",
         "1 of the 3 steps done are missing, the first of step 1", 3},
        {"{\"step\":1}\n{\"step\":2}\n{\"ste",
         "1 of the 3 steps done are missing, the first of step 3", 3},
        {"{\"step\":1}\n{\"step\":1}\n{\"step\":2}\n",
         "1 of the 3 steps done are missing, the first of step 3", 3},
        {"", "3 of the 3 steps done are missing, the first of step 1", 3},
        {"", "", 0},
    };
    struct arena a = arena_make("test");
    char *folder = check_folder(&a);
    for (int i = 0; i < COUNT(tell); i++) {
        const char *is = said(&a, folder, tell[i].text, tell[i].step);
        if (*tell[i].says ? !strstr(is, tell[i].says) : *is)
            fail_msg("case %d: '%s', expected '%s'", i, is, tell[i].says);
    }
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

static void test_lines_are_synced(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a);
    struct recipe r;
    struct metrics_log *l;
    struct metrics m = sample(1);
    recipe_default(&a, &r);
    r.report_tensorboard = false;
    assert_ok(metrics_open(&a, folder, &r, 0, 1, &l));
    assert_ok(metrics_add(l, &m));
    *synced = '\0';
    assert_ok(metrics_sync(l));
    assert_non_null(strstr(synced, "/metrics.jsonl"));
    metrics_close(l);
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

int main(void)
{
    log_set(LOG_WARN, 0);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields), cmocka_unit_test(test_resume),
        cmocka_unit_test(test_evaluated),
        cmocka_unit_test(test_world),
        cmocka_unit_test(test_missing_lines_are_told),
        cmocka_unit_test(test_lines_are_synced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
