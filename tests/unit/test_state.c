/* test_state.c - training states on disk: any layout reads any other's; whole or
 * refused, newest found, N kept. */
#include "unit/state_case.h"

#include "base/log.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

static const struct case_layout alone = {{1, 1, 1}, 1}, three = {{1, 3, 1}, 1};

static void save(const char *root, int64_t step, int keep)
{
    assert_ok(case_save(&alone, root, step, keep));
}

static int64_t newest(const char *root)
{
    int64_t step = -2;
    assert_ok(case_newest(2, root, &step));
    return step;
}

/* ---- from layout to layout ---- */

static const struct case_layout layouts[] = {
    {{1, 1, 1}, 1}, {{1, 1, 1}, 7}, {{4, 1, 1}, 1}, {{1, 3, 1}, 2}, {{2, 1, 2}, 3},
    {{1, 2, 2}, 1}, {{4, 3, 1}, 1}, {{1, 1, 2}, 4},
};

static void test_any_layout_into_any_other(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *root = check_folder(&a);
    for (int i = 0; i < COUNT(layouts); i++) {
        assert_ok(case_save(&layouts[i], root, i, 0));
        for (int k = 0; k < COUNT(layouts); k++)
            case_check(&layouts[k], root, i);
    }
    assert_string_equal(check_names(&a, path_join(&a, root, "step-3")),
                        "manifest.json rank-0.bin rank-1.bin rank-2.bin rank-3.bin "
                        "rank-4.bin rank-5.bin");
    assert_ok(folder_remove(root));
    arena_free(&a);
}

/* Pieces of many blocks, cut where no block ends; a read checks the blocks it needs. */
static void test_blocks(void **state)
{
    (void)state;
    enum { ROWS = 3, COLS = 1 << 20, CUT = 1500001, PART = 1000 };
    const int cut = CUT - COLS - PART / 2;      /* the column that row 1 is cut at */
    struct arena a = arena_make("test");
    char *root = check_folder(&a);
    const int me = 0;
    const struct comm self = comm_self("alone", &me);
    float *x = NEW(&a, float, ROWS * COLS), *is = NEW(&a, float, ROWS * PART);
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = (float)i;
    const struct box whole = {2, {ROWS, COLS}, {0}, {ROWS, COLS}};
    struct state_piece piece[] = {
        {"x", DTYPE_F32, whole, {CUT, ROWS * COLS}, x + CUT},
        {"x", DTYPE_F32, whole, {0, CUT}, x},
    };
    assert_ok(state_save(&self, root, 1, piece, 2, "{}", 1));
    struct state s;
    assert_ok(state_open(&a, root, 1, &s));
    assert_ok(state_verify(&s, 0, 1));
    struct state_piece want = {
        "x", DTYPE_F32, {2, {ROWS, COLS}, {0, cut}, {ROWS, PART}},
        {0, ROWS * PART}, NULL};
    assert_ok(state_read(&s, &want, is));
    for (int i = 0; i < ROWS * PART; i++)
        assert_true(is[i] == x[i / PART * COLS + cut + i % PART]);
    /* damage at the end of row 2: what lies in other blocks is still good */
    struct file f;
    assert_ok(file_open(path_join(&a, root, "step-1/rank-0.bin"), true, &f));
    assert_ok(file_write_at(&f, "?", 1, (int64_t)(ROWS * COLS - CUT - 1) * 4));
    assert_ok(file_sync(&f, true));
    assert_fails(state_read(&s, &want, is), "rank-0.bin: tensor 'x' is damaged within");
    want.box.from[1] = 77;
    assert_ok(state_read(&s, &want, is));
    want.box.from[1] = COLS - PART;
    assert_fails(state_read(&s, &want, is), "rank-0.bin: tensor 'x' is damaged within");
    assert_fails(state_verify(&s, 0, 1), "'x' is damaged");
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
    struct state_piece want = case_piece(&alone, 0, 1);
    assert_ok(state_read(&s, &want, to));
    want.box.dim[0] = 6, want.box.dim[1] = 4;
    assert_fails(state_read(&s, &want, to),
                 "'first.model.w' is F64 [4, 6, 2], this run needs F64 [6, 4, 2]");
    want.box.ndim = 2;
    assert_fails(state_read(&s, &want, to), "this run needs F64 [6, 4]");
    want = case_piece(&alone, 0, 1);
    want.dtype = DTYPE_F32;
    assert_fails(state_read(&s, &want, to), "this run needs F32 [4, 6, 2]");
    want.name = "second.model.w";
    assert_fails(state_read(&s, &want, to), "has no tensor 'second.model.w'");
    assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
    assert_ok(folder_remove(root));
    arena_free(&a);
}

/* ---- which are kept ---- */

static void test_save_and_keep(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a), *root = path_join(&a, folder,
                                                       "runs/x/checkpoints");
    assert_int_equal(newest(root), -1);                 /* no folder, no state */
    save(root, 0, 2);
    assert_string_equal(check_names(&a, root), "step-0");
    case_check(&alone, root, 0);
    save(root, 9, 2);
    save(root, 10, 2);
    assert_string_equal(check_names(&a, root), "step-10 step-9");
    assert_int_equal(newest(root), 10);                 /* a number, not a text */
    save(root, 11, 0);
    save(root, 100, 0);
    assert_string_equal(check_names(&a, root), "step-10 step-100 step-11 step-9");
    save(root, 101, 3);
    assert_string_equal(check_names(&a, root), "step-100 step-101 step-11");
    assert_ok(case_save(&three, root, 102, 1));
    assert_string_equal(check_names(&a, root), "step-102");
    case_check(&alone, root, 102);
    assert_string_equal(check_names(&a, path_join(&a, root, "step-102")),
                        "manifest.json rank-0.bin rank-1.bin rank-2.bin");
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

static void test_same_step_again(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *root = check_folder(&a);
    assert_ok(case_save(&three, root, 5, 0));
    save(root, 5, 2);                   /* in place of it, by fewer ranks */
    case_check(&three, root, 5);
    assert_string_equal(check_names(&a, root), "step-5");
    assert_string_equal(check_names(&a, path_join(&a, root, "step-5")),
                        "manifest.json rank-0.bin");
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
    assert_ok(file_replace(path_join(&a, root, ".step-3.part/rank-7.bin"), "x", 1));
    assert_ok(folder_make(path_join(&a, root, "step-x")));
    assert_ok(folder_make(path_join(&a, root, "step--5")));
    assert_ok(folder_make(path_join(&a, root, "step-0012")));
    assert_ok(folder_make(path_join(&a, root, "step-99999999999999999999")));
    assert_ok(file_replace(path_join(&a, root, "notes"), "x", 1));
    assert_int_equal(newest(root), -1);
    save(root, 3, 1);
    assert_int_equal(newest(root), 3);
    assert_string_equal(check_names(&a, root),
                        "notes step--5 step-0012 step-3 step-99999999999999999999 "
                        "step-x");
    assert_string_equal(check_names(&a, path_join(&a, root, "step-3")),
                        "manifest.json rank-0.bin");
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
    assert_string_equal(check_names(&a, root), "step-3 step-50");
    assert_int_equal(newest(root), 3);
    case_check(&alone, root, 3);
    save(root, 4, 2);
    assert_string_equal(check_names(&a, root), "step-3 step-4 step-50");
    save(root, 50, 2);                  /* takes its place */
    assert_string_equal(check_names(&a, root), "step-4 step-50");
    case_check(&alone, root, 50);
    save(root, 20, 1);                  /* what was just saved is never removed */
    assert_string_equal(check_names(&a, root), "step-20");
    assert_ok(folder_remove(root));
    arena_free(&a);
}

/* ---- what is refused ---- */

static struct bytes whole(struct arena *a, const char *path)
{
    struct bytes b;
    assert_ok(file_read(a, path, 1 << 24, &b));
    return b;
}

static bool opens(struct arena *a, const char *root, int64_t step)
{
    struct state s;
    return state_open(a, root, step, &s) && state_verify(&s, 0, 1);
}

static void test_files_missing_or_cut(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *root = check_folder(&a), *step = path_join(&a, root, "step-8");
    assert_ok(case_save(&three, root, 7, 0));
    assert_ok(case_save(&three, root, 8, 0));
    for (int i = 0; i < 3; i++) {
        char *name = arena_text(&a, "rank-%d.bin", i);
        char *path = path_join(&a, step, name);
        struct bytes w = whole(&a, path);
        assert_ok(file_replace(path, w.at, w.size - 1));
        assert_fails(opens(&a, root, 8), name);
        assert_non_null(strstr(fail_message(), "its manifest says"));
        assert_int_equal(newest(root), 7);
        assert_ok(file_replace(path, arena_text(&a, "%.*s?", (int)w.size, w.at),
                               w.size + 1));
        assert_fails(opens(&a, root, 8), name);
        assert_int_equal(newest(root), 7);
        assert_ok(folder_remove(path));
        assert_fails(opens(&a, root, 8), arena_text(&a, "%s is missing", name));
        assert_int_equal(newest(root), 7);
        assert_ok(file_replace(path, w.at, w.size));
    }
    assert_ok(file_replace(path_join(&a, step, "rank-3.bin"), "x", 1));
    assert_int_equal(newest(root), 8);          /* one too many: told, not in the way */
    assert_ok(folder_remove(step));
    assert_ok(!rename(path_join(&a, root, "step-7"), step));    /* of another step */
    assert_fails(opens(&a, root, 8), "is of step 7, its folder says 8");
    int64_t none;
    assert_fails(case_newest(3, root, &none), "none of the 1 training state in");
    assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
    assert_fails(opens(&a, root, 9), "step-9");                 /* not there */
    assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
    assert_ok(folder_remove(root));
    arena_free(&a);
}

static void test_damaged_manifest(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *root = check_folder(&a), *path = path_join(&a, root, "step-8/manifest.json");
    save(root, 7, 0);
    save(root, 8, 0);
    struct bytes m = whole(&a, path);
    assert_ok(folder_remove(path));
    assert_fails(opens(&a, root, 8), "manifest.json");
    assert_int_equal(newest(root), 7);
    assert_ok(file_replace(path, "{}", 2));
    assert_fails(opens(&a, root, 8), "is damaged");
    assert_int_equal(newest(root), 7);
    for (int64_t n = 0; n < m.size; n += 7) {                   /* cut */
        assert_ok(file_replace(path, m.at, n));
        assert_fails(opens(&a, root, 8), "manifest.json is damaged");
    }
    for (int64_t i = 0; i < m.size; i += 3) {                   /* a flipped bit */
        char *changed = arena_copy(&a, m.at, (size_t)m.size);
        changed[i] ^= 1;
        assert_ok(file_replace(path, changed, m.size));
        assert_fails(opens(&a, root, 8), "manifest.json is damaged");
    }
    assert_int_equal(newest(root), 7);
    assert_ok(file_replace(path, m.at, m.size));
    case_check(&alone, root, 8);
    assert_int_equal(newest(root), 8);
    assert_ok(folder_remove(root));
    arena_free(&a);
}

/* Any flipped byte of the data is found, and its file and tensor named. */
static void test_flipped_byte(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *root = check_folder(&a);
    save(root, 5, 0);
    assert_ok(case_save(&three, root, 8, 0));
    for (int r = 0; r < case_ranks(&three); r++) {
        char *name = arena_text(&a, "step-8/rank-%d.bin", r);
        char *path = path_join(&a, root, name);
        struct bytes w = whole(&a, path);
        int64_t at = 0;
        for (int t = 0; t < CASE_TENSORS; t++) {
            struct state_piece p = case_piece(&three, r, t);
            int64_t bytes = state_piece_bytes(&p);
            for (int64_t i = 0; i < bytes; i += MAX(bytes - 1, 1)) {    /* both ends */
                char *bad = arena_copy(&a, w.at, (size_t)w.size);
                bad[at + i] ^= 4;
                assert_ok(file_replace(path, bad, w.size));
                assert_fails(opens(&a, root, 8), name);
                char *quoted = arena_text(&a, "tensor '%s' is damaged", p.name);
                assert_non_null(strstr(fail_message(), quoted));
                assert_int_equal(newest(root), 5);
                struct state s;
                assert_ok(state_open(&a, root, 8, &s));
                for (int k = 0; k < CASE_TENSORS; k++) {
                    struct state_piece want = case_piece(&three, r, k);
                    char *to = NEW(&a, char, state_piece_bytes(&want) + 1);
                    if (k == t)
                        assert_fails(state_read(&s, &want, to), quoted);
                    else                /* the others are still good */
                        assert_ok(state_read(&s, &want, to));
                }
            }
            at += bytes;
        }
        assert_int_equal(at, w.size);
        assert_ok(file_replace(path, w.at, w.size));
    }
    assert_int_equal(newest(root), 8);
    assert_ok(folder_remove(root));
    arena_free(&a);
}

/* A save that cannot be finished fails, keeps the older step and leaves nothing. */
static void test_full_disk(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *root = check_folder(&a);
    assert_ok(case_save(&three, root, 1, 1));
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    int failed = 0;
    for (rlim_t n = 0; n < 4000; n += 200) {
        small = (struct rlimit){n, old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        bool ok = case_save(&three, root, 2, 1);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        if (ok)
            break;
        failed++;
        assert_non_null(strstr(fail_message(), "File too large"));
        assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
        assert_string_equal(check_names(&a, root), "step-1");
        case_check(&three, root, 1);
    }
    assert_in_range(failed, 5, 19);     /* ranks' files, then the manifest */
    assert_string_equal(check_names(&a, root), "step-2");
    char *file = path_join(&a, root, "step-2/manifest.json");
    assert_fails(case_save(&three, file, 2, 1), file);          /* root is a file */
    assert_ok(folder_remove(root));
    arena_free(&a);
}

int main(void)
{
    log_set(LOG_WARN + 1, 0);           /* torn steps are warned of; not here */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_layout_into_any_other),
        cmocka_unit_test(test_blocks),          cmocka_unit_test(test_wrong_shape),
        cmocka_unit_test(test_save_and_keep),   cmocka_unit_test(test_same_step_again),
        cmocka_unit_test(test_leftovers),
        cmocka_unit_test(test_torn_does_not_count),
        cmocka_unit_test(test_files_missing_or_cut),
        cmocka_unit_test(test_damaged_manifest),
        cmocka_unit_test(test_flipped_byte),    cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
