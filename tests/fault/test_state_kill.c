/* test_state_kill.c - a process killed at any moment of a save leaves a whole state,
 * and nothing is renamed into place before it is on the disk.
 *
 * The linker sends this program's file operations through the functions named __wrap_
 * below (tests/CMakeLists.txt), which count them and die at the one asked for. */
#include "unit/state_case.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 30, KILLED = 77, UNSAFE = 78, FILES = 1024 };

static const struct case_layout three = {{1, 3, 1}, 1}, two = {{2, 1, 1}, 1};

/* ---- file operations ---- */

static atomic_long operations, fatal;   /* fatal 0: none */
static atomic_bool written[FILES];      /* and not yet synced */
static atomic_bool named;               /* a new name whose folder is not yet synced */

int __real_open(const char *path, int flags, ...);
int __real_close(int fd);
ssize_t __real_write(int fd, const void *from, size_t size);
ssize_t __real_pwrite(int fd, const void *from, size_t size, off_t at);
int __real_ftruncate(int fd, off_t size);
int __real_fsync(int fd);
int __real_mkdir(const char *path, mode_t mode);
int __real_remove(const char *path);
int __real_rename(const char *from, const char *to);
int __real_renameat2(int a, const char *from, int b, const char *to, unsigned flags);
int __wrap_open(const char *path, int flags, ...);
int __wrap_close(int fd);
ssize_t __wrap_write(int fd, const void *from, size_t size);
ssize_t __wrap_pwrite(int fd, const void *from, size_t size, off_t at);
int __wrap_ftruncate(int fd, off_t size);
int __wrap_fsync(int fd);
int __wrap_mkdir(const char *path, mode_t mode);
int __wrap_remove(const char *path);
int __wrap_rename(const char *from, const char *to);
int __wrap_renameat2(int a, const char *from, int b, const char *to, unsigned flags);

/* Is it this operation that the process dies in? */
static bool dies(void)
{
    return atomic_fetch_add(&operations, 1) + 1 == atomic_load(&fatal);
}

static void next(void)
{
    if (dies())
        _exit(KILLED);
}

static void law(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "unsafe: %s\n", what);
    _exit(UNSAFE);
}

int __wrap_open(const char *path, int flags, ...)
{
    next();
    if (flags & O_CREAT)
        atomic_store(&named, true);
    return __real_open(path, flags, 0666);
}

int __wrap_close(int fd)
{
    law(fd < 0 || !atomic_load(&written[fd % FILES]), "closed before it was synced");
    return __real_close(fd);
}

/* Half of it is written where it dies. */
ssize_t __wrap_write(int fd, const void *from, size_t size)
{
    bool last = dies();
    atomic_store(&written[fd % FILES], true);
    ssize_t n = __real_write(fd, from, last ? size / 2 : size);
    if (last)
        _exit(KILLED);
    return n;
}

ssize_t __wrap_pwrite(int fd, const void *from, size_t size, off_t at)
{
    bool last = dies();
    atomic_store(&written[fd % FILES], true);
    ssize_t n = __real_pwrite(fd, from, last ? size / 2 : size, at);
    if (last)
        _exit(KILLED);
    return n;
}

int __wrap_ftruncate(int fd, off_t size)
{
    next();
    return __real_ftruncate(fd, size);
}

int __wrap_fsync(int fd)
{
    struct stat st;
    next();
    atomic_store(&written[fd % FILES], false);
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode))
        atomic_store(&named, false);
    return __real_fsync(fd);
}

int __wrap_mkdir(const char *path, mode_t mode)
{
    next();
    return __real_mkdir(path, mode);
}

int __wrap_remove(const char *path)
{
    next();
    return __real_remove(path);
}

/* Into a state's place only what is all there, names too. */
static void rename_check(const char *to)
{
    const char *slash = strrchr(to, '/');
    for (int i = 0; i < FILES; i++)
        law(!atomic_load(&written[i]), "renamed before a file was synced");
    law(!slash || strncmp(slash, "/step-", 6) || !atomic_load(&named),
        "renamed before its folder was synced");
}

int __wrap_rename(const char *from, const char *to)
{
    next();
    rename_check(to);
    atomic_store(&named, true);
    return __real_rename(from, to);
}

int __wrap_renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    next();
    rename_check(to);
    return __real_renameat2(a, from, b, to, flags);
}

/* ---- killed at every operation ---- */

/* A child that saves `step` and dies in operation `n`; false: it was done before. */
static bool dies_saving(const char *root, int64_t step, long n)
{
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        atomic_store(&operations, 0);
        atomic_store(&fatal, n);
        _exit(case_save(&three, root, step, 1) ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) != KILLED)
        assert_int_equal(WEXITSTATUS(status), 0);
    return WEXITSTATUS(status) == KILLED;
}

/* Where step 0 and the leftover of a crash are, ranks save `step` and keep just that:
 * once for each of the operations this takes, which are returned. */
static long every_operation(int64_t step)
{
    struct arena a = arena_make("test");
    bool died = true;
    long n = 0;
    for (int64_t after, had = 0; died; had = after) {
        char *root = check_folder(&a), *part = path_join(&a, root, ".step-9.part");
        assert_ok(case_save(&two, root, 0, 1));
        assert_ok(folder_make(part) &&
                  file_replace(path_join(&a, part, "rank-0.bin"), "x", 1));
        died = dies_saving(root, step, ++n);
        assert_ok(case_newest(2, root, &after));
        assert_true(after == 0 || after == step);
        assert_true(after >= had);              /* once it is there it is there */
        case_check(&two, root, after);
        if (!died)
            assert_string_equal(check_names(&a, root),
                                arena_text(&a, "step-%" PRId64, step));
        assert_ok(folder_remove(root));
    }
    arena_free(&a);
    return n - 1;
}

static void test_killed_at_every_operation(void **state)
{
    (void)state;
    long one = every_operation(1), same = every_operation(0);
    print_message("operations of a save: %ld, in place of the same step %ld\n", one,
                  same);
    assert_true(one > 30 && same > 30);
}

/* ---- killed at any moment ---- */

/* Saves step after step, now and then the same one again, until it is killed. */
static _Noreturn void saver(const char *root, int64_t from)
{
    for (int64_t step = from;; step++)
        if (!case_save(&three, root, step, 2) ||
            (step % 3 == 0 && !case_save(&two, root, step, 2)))
            _exit(1);
}

static void test_killed_at_any_moment(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *root = check_folder(&a);
    int64_t step = 0, before;
    double start = clock_seconds();
    assert_ok(case_save(&three, root, step, 2));
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
        assert_ok(case_newest(3, root, &step));
        assert_true(step >= before);
        case_check(&three, root, step);
    }
    assert_true(step > 0);                      /* some saves were finished */
    assert_ok(case_save(&two, root, step + 1, 1));
    assert_string_equal(check_names(&a, root),
                        arena_text(&a, "step-%" PRId64, step + 1));
    assert_ok(folder_remove(root));
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed_at_every_operation),
        cmocka_unit_test(test_killed_at_any_moment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
