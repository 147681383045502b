/* test_state.c - training states on disk: whole or refused, newest found, N kept. */
#include "check.h"

#include "base/log.h"
#include "base/text.h"
#include "checkpoint/state.h"

#include <inttypes.h>
#include <signal.h>
#include <sys/resource.h>

enum { WIDE = 300 };

struct set { float w[WIDE]; double v[2][3]; uint8_t u[5]; struct disk_tensor t[4]; };

static struct set *set_make(struct arena *a, int64_t step)
{
    struct set *s = NEW(a, struct set, 1);
    for (int i = 0; i < WIDE; i++)
        s->w[i] = (float)(step * 1000 + i);
    for (int i = 0; i < 6; i++)
        s->v[i / 3][i % 3] = (double)step / (1 + i);
    memset(s->u, (int)step, sizeof s->u);
    const struct disk_tensor t[] = {
        {"model.w", DTYPE_F32, 1, {WIDE}, WIDE, sizeof s->w, s->w},
        {"first.model.w", DTYPE_F64, 2, {2, 3}, 6, sizeof s->v, s->v},
        {"u", DTYPE_U8, 1, {5}, 5, 5, s->u},
        {"none", DTYPE_F32, 2, {0, 7}, 0, 0, s->w},
    };
    memcpy(s->t, t, sizeof t);
    return s;
}

static void save(const char *root, int64_t step, int keep)
{
    struct arena a = arena_make("save");
    char *meta = arena_text(&a, "{\"rows\":%" PRId64 ",\"real\":0.1}", 7 * step);
    assert_ok(state_save(root, step, &(struct state_source){
        .tensor = set_make(&a, step)->t, .count = 4}, meta, keep));
    arena_free(&a);
}

static int64_t newest(const char *root)
{
    int64_t step = -2;
    assert_ok(state_newest(root, &step));
    return step;
}

/* Step `step` is there, sound, and what was saved. */
static void check(const char *root, int64_t step)
{
    struct arena a = arena_make("check");
    struct set *want = set_make(&a, step), *is = NEW(&a, struct set, 1);
    void *to[] = {is->w, is->v, is->u, is->t};
    struct state s;
    assert_ok(state_open(&a, root, step, &s));
    assert_int_equal(s.step, step);
    assert_int_equal(s.file.count, 4);
    assert_string_equal(s.meta, arena_text(&a, "{\"rows\":%" PRId64 ",\"real\":"
                                           "0.10000000000000001}", 7 * step));
    assert_ok(state_verify(&s));
    for (int i = 0; i < 4; i++)
        assert_ok(state_read(&s, &want->t[i], to[i]));
    assert_memory_equal(is->w, want->w, sizeof is->w);
    assert_memory_equal(is->v, want->v, sizeof is->v);
    assert_memory_equal(is->u, want->u, sizeof is->u);
    state_close(&s);
    arena_free(&a);
}

/* The names in a folder, joined. */
static const char *names(struct arena *a, const char *folder)
{
    char **name;
    int64_t count;
    struct text t = text_make(a);
    assert_ok(folder_list(a, folder, &name, &count));
    for (int64_t i = 0; i < count; i++)
        text_add(&t, "%s%s", i ? " " : "", name[i]);
    return t.at;
}

static void test_save_and_keep(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a), *root = path_join(&a, folder,
                                                       "runs/x/checkpoints");
    assert_int_equal(newest(root), -1);                 /* no folder, no state */
    save(root, 0, 2);
    assert_string_equal(names(&a, root), "step-0");
    check(root, 0);
    save(root, 9, 2);
    save(root, 10, 2);
    assert_string_equal(names(&a, root), "step-10 step-9");
    assert_int_equal(newest(root), 10);                 /* a number, not a text */
    save(root, 11, 0);
    save(root, 100, 0);
    assert_string_equal(names(&a, root), "step-10 step-100 step-11 step-9");
    save(root, 101, 3);
    assert_string_equal(names(&a, root), "step-100 step-101 step-11");
    save(root, 102, 1);
    assert_string_equal(names(&a, root), "step-102");
    check(root, 102);
    assert_string_equal(names(&a, path_join(&a, root, "step-102")),
                        "manifest.json state.safetensors");
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

static void test_same_step_again(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *root = check_folder(&a);
    struct set *other = set_make(&a, 77);
    assert_ok(state_save(
        root, 5, &(struct state_source){.tensor = other->t, .count = 4}, "{}", 0));
    save(root, 5, 2);                   /* in place of it */
    check(root, 5);
    assert_string_equal(names(&a, root), "step-5");
    assert_ok(folder_remove(root));
    arena_free(&a);
}

/* What is left over, or is no step of ours, neither counts nor harms. */
static void test_leftovers(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *root = check_folder(&a);
    assert_ok(folder_make(path_join(&a, root, ".step-9.part/deep")));
    assert_ok(folder_make(path_join(&a, root, ".step-3.part")));
    assert_ok(folder_make(path_join(&a, root, "step-x")));
    assert_ok(folder_make(path_join(&a, root, "step--5")));
    assert_ok(folder_make(path_join(&a, root, "step-0012")));
    assert_ok(folder_make(path_join(&a, root, "step-99999999999999999999")));
    assert_ok(file_replace(path_join(&a, root, "notes"), "x", 1));
    assert_int_equal(newest(root), -1);
    save(root, 3, 1);
    assert_int_equal(newest(root), 3);
    assert_string_equal(names(&a, root),
                        "notes step--5 step-0012 step-3 step-99999999999999999999 "
                        "step-x");
    assert_ok(folder_remove(root));
    arena_free(&a);
}

/* A torn newer step neither wins nor counts among those kept; it stays as evidence. */
static void test_torn_does_not_count(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *root = check_folder(&a);
    save(root, 1, 0);
    save(root, 2, 0);
    assert_ok(folder_make(path_join(&a, root, "step-50")));
    save(root, 3, 1);
    assert_string_equal(names(&a, root), "step-3 step-50");
    assert_int_equal(newest(root), 3);
    check(root, 3);
    save(root, 4, 2);
    assert_string_equal(names(&a, root), "step-3 step-4 step-50");
    save(root, 50, 2);                  /* takes its place */
    assert_string_equal(names(&a, root), "step-4 step-50");
    check(root, 50);
    save(root, 20, 1);                  /* what was just saved is never removed */
    assert_string_equal(names(&a, root), "step-20");
    assert_ok(folder_remove(root));
    arena_free(&a);
}

static struct bytes whole(struct arena *a, const char *path)
{
    struct bytes b;
    assert_ok(file_read(a, path, 1 << 24, &b));
    return b;
}

static bool opens(struct arena *a, const char *root, int64_t step)
{
    struct state s;
    bool ok = state_open(a, root, step, &s);
    if (ok)
        ok = state_verify(&s);
    state_close(&s);
    return ok;
}

static void test_damaged(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *root = check_folder(&a), *step = path_join(&a, root, "step-8");
    char *weights = path_join(&a, step, "state.safetensors");
    char *manifest = path_join(&a, step, "manifest.json");
    save(root, 7, 0);
    save(root, 8, 0);
    struct bytes w = whole(&a, weights), m = whole(&a, manifest);

    assert_ok(file_replace(weights, w.at, w.size - 1));         /* short */
    assert_fails(opens(&a, root, 8), "its manifest says");
    assert_int_equal(newest(root), 7);
    assert_ok(file_replace(weights, arena_text(&a, "%*s", (int)w.size, ""), w.size));
    assert_fails(opens(&a, root, 8), "safetensors");            /* the right size */
    assert_int_equal(newest(root), 7);
    assert_ok(folder_remove(weights));
    assert_fails(opens(&a, root, 8), "state.safetensors is missing");
    assert_int_equal(newest(root), 7);
    assert_ok(file_replace(weights, w.at, w.size));

    assert_ok(folder_remove(manifest));
    assert_fails(opens(&a, root, 8), "manifest.json");
    assert_int_equal(newest(root), 7);
    assert_ok(file_replace(manifest, "{}", 2));
    assert_fails(opens(&a, root, 8), "is damaged");
    assert_int_equal(newest(root), 7);
    for (int64_t n = 0; n < m.size; n += 7) {                   /* a cut manifest */
        assert_ok(file_replace(manifest, m.at, n));
        assert_fails(opens(&a, root, 8), "is damaged");
    }
    for (int64_t i = 0; i < m.size; i++) {                      /* a changed one */
        char *changed = arena_copy(&a, m.at, (size_t)m.size);
        bool digit = m.at[i] >= '0' && m.at[i] <= '9';
        if (!digit)
            continue;
        changed[i] = (char)(changed[i] == '9' ? '1' : changed[i] + 1);
        assert_ok(file_replace(manifest, changed, m.size));
        assert_fails(opens(&a, root, 8), "checkpoint: ");
        assert_int_equal(newest(root), 7);
    }
    assert_ok(file_replace(manifest, m.at, m.size));
    check(root, 8);
    assert_int_equal(newest(root), 8);
    assert_ok(folder_remove(step));
    assert_ok(!rename(path_join(&a, root, "step-7"), step));    /* of another step */
    assert_fails(opens(&a, root, 8), "is of step 7, its folder says 8");
    int64_t none;
    assert_fails(state_newest(root, &none), "none of the 1 training states");
    assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
    assert_fails(opens(&a, root, 9), "step-9");                 /* not there */
    assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
    assert_ok(folder_remove(root));
    arena_free(&a);
}

/* Any flipped byte of the data is found, and its tensor named. */
static void test_flipped_byte(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *root = check_folder(&a), *path = path_join(&a, root,
                                                     "step-8/state.safetensors");
    save(root, 5, 0);
    save(root, 8, 0);
    struct bytes w = whole(&a, path);
    int64_t data = w.size - WIDE * 4 - 48 - 5;          /* where the tensors begin */
    const struct { int64_t at; const char *name; } flip[] = {
        {data, "'model.w'"}, {data + WIDE * 4 - 1, "'model.w'"},
        {data + WIDE * 4, "'first.model.w'"}, {w.size - 1, "'u'"},
    };
    struct set *want = set_make(&a, 8);
    for (int i = 0; i < COUNT(flip); i++) {
        char *bad = arena_copy(&a, w.at, (size_t)w.size);
        bad[flip[i].at] ^= 4;
        assert_ok(file_replace(path, bad, w.size));
        assert_fails(opens(&a, root, 8), flip[i].name);
        assert_non_null(strstr(fail_message(), "is damaged"));
        assert_int_equal(newest(root), 5);
        struct state s;
        assert_ok(state_open(&a, root, 8, &s));
        for (int t = 0; t < 3; t++) {                   /* the others are still good */
            char *quoted = arena_text(&a, "'%s'", want->t[t].name);
            char *to = NEW(&a, char, want->t[t].bytes);
            if (!strcmp(quoted, flip[i].name))
                assert_fails(state_read(&s, &want->t[t], to), quoted);
            else
                assert_ok(state_read(&s, &want->t[t], to));
        }
        state_close(&s);
    }
    /* in the header: nothing is believed that the manifest does not confirm */
    char *bad = arena_copy(&a, w.at, (size_t)w.size), *name = strstr(bad + 8,
                                                                     "model.w");
    name[0] = 'n';
    assert_ok(file_replace(path, bad, w.size));
    assert_fails(opens(&a, root, 8), "no hash of 'nodel.w'");
    assert_ok(folder_remove(root));
    arena_free(&a);
}

static void test_wrong_shape(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *root = check_folder(&a);
    save(root, 8, 0);
    struct state s;
    assert_ok(state_open(&a, root, 8, &s));
    char *to = NEW(&a, char, 1 << 16);
    struct disk_tensor want = {.name = "first.model.w", .dtype = DTYPE_F64, .ndim = 2,
                               .dim = {2, 3}};
    assert_ok(state_read(&s, &want, to));
    want.dim[0] = 3, want.dim[1] = 2;
    assert_fails(state_read(&s, &want, to),
                 "'first.model.w' is F64 [2, 3], this run needs F64 [3, 2]");
    want.ndim = 1, want.dim[0] = 6;
    assert_fails(state_read(&s, &want, to), "this run needs F64 [6]");
    want.dtype = DTYPE_F32;
    assert_fails(state_read(&s, &want, to), "this run needs F32 [6]");
    want.name = "second.model.w";
    assert_fails(state_read(&s, &want, to), "has no tensor 'second.model.w'");
    assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
    state_close(&s);
    assert_ok(folder_remove(root));
    arena_free(&a);
}

/* A save that cannot be finished fails, keeps the older step and leaves nothing. */
static void test_full_disk(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *root = check_folder(&a);
    save(root, 1, 1);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    struct set *s = set_make(&a, 2);
    for (rlim_t n = 0; n < 2200; n += 300) {
        small = (struct rlimit){n, old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        bool ok = state_save(
            root, 2, &(struct state_source){.tensor = s->t, .count = 4}, "{}", 1);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        if (ok)
            break;
        assert_true(n < 2100);
        assert_non_null(strstr(fail_message(), "File too large"));
        assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
        assert_string_equal(names(&a, root), "step-1");
        check(root, 1);
    }
    assert_string_equal(names(&a, root), "step-2");
    char *file = path_join(&a, root, "step-2/manifest.json");
    const struct state_source source = {.tensor = s->t, .count = 4};
    assert_fails(state_save(file, 2, &source, "{}", 1), file);  /* root is a file */
    assert_ok(folder_remove(root));
    arena_free(&a);
}

int main(void)
{
    log_set(LOG_WARN + 1, 0);           /* torn steps are warned of; not here */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_save_and_keep),   cmocka_unit_test(test_same_step_again),
        cmocka_unit_test(test_leftovers),
            cmocka_unit_test(test_torn_does_not_count),
        cmocka_unit_test(test_damaged),         cmocka_unit_test(test_flipped_byte),
        cmocka_unit_test(test_wrong_shape),     cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
