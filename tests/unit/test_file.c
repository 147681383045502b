/* test_file.c - files and folders, and replacement in the face of crashes. */
#include "check.h"

#include "base/queue.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int setup(void **state)
{
    struct arena *a = malloc(sizeof *a);
    *a = arena_make("test");
    *state = a;
    return 0;
}

static int teardown(void **state)
{
    arena_free(*state);
    free(*state);
    return 0;
}

static void test_read_map_and_copy(void **state)
{
    struct arena *a = *state;
    char *folder = check_folder(a), *path = path_join(a, folder, "f");
    char *copy = path_join(a, folder, "copy");
    int64_t sizes[] = {0, 1, 4095, 4096, 4097, 65536, 200001};
    for (int i = 0; i < COUNT(sizes); i++) {
        int64_t size = sizes[i];
        char *data = NEW(a, char, size + 1);
        for (int64_t j = 0; j < size; j++)
            data[j] = (char)(j * 7 + j / 251);
        assert_ok(file_replace(path, data, size));
        assert_int_equal(file_size(path), size);
        struct bytes read, map;
        assert_ok(file_read(a, path, size, &read));
        assert_int_equal(read.size, size);
        assert_memory_equal(read.at, data, (size_t)size + 1);   /* with the NUL */
        assert_ok(file_map(path, &map));
        assert_int_equal(map.size, size);
        assert_memory_equal(map.at, data, (size_t)size);
        file_unmap(&map);
        assert_null(map.at);
        assert_ok(file_copy(path, copy));
        assert_ok(file_read(a, copy, INT64_MAX / 4, &read));
        assert_int_equal(read.size, size);
        assert_memory_equal(read.at, data, (size_t)size);
        if (size > 0)
            assert_fails(file_read(a, path, size - 1, &read), "expected at most");
    }
    assert_ok(folder_remove(folder));
    assert_false(folder_exists(folder));
}

static void test_files_of_unknown_size(void **state)
{
    struct bytes read;
    assert_ok(file_read(*state, "/proc/self/status", 1 << 20, &read));
    assert_int_equal(strlen(read.at), read.size);
    assert_non_null(strstr(read.at, "Threads:"));
    assert_fails(file_read(*state, "/proc/self/status", 10, &read), "more than 10");
}

static void test_failures_name_the_path(void **state)
{
    struct arena *a = *state;
    char *folder = check_folder(a), *none = path_join(a, folder, "none");
    struct bytes read;
    char **names;
    int64_t count;
    assert_fails(file_read(a, none, 100, &read), none);
    assert_fails(file_read(a, folder, 1 << 20, &read), folder);
    assert_fails(file_map(none, &read), none);
    assert_fails(file_map(folder, &read), "not a regular file");
    assert_fails(file_copy(none, path_join(a, folder, "to")), none);
    assert_fails(file_replace(path_join(a, none, "f"), "", 0), none);
    assert_fails(folder_list(a, none, &names, &count), none);
    assert_ok(folder_remove(none));
    assert_fails(folder_make(""), "0 bytes");
    assert_int_equal(file_size(none), -1);
    assert_int_equal(file_size(folder), -1);
    assert_false(file_exists(folder));
    assert_ok(file_replace(none, "x", 1));
    assert_fails(folder_make(path_join(a, none, "sub")), none);
    assert_true(file_exists(none));
    assert_ok(folder_list(a, folder, &names, &count));      /* nothing left aside */
    assert_int_equal(count, 1);
    assert_ok(folder_remove(folder));
}

static void test_folders(void **state)
{
    struct arena *a = *state;
    char *folder = check_folder(a);
    char *deep = path_join(a, folder, "a//b/c/");
    assert_ok(folder_make(deep));
    assert_ok(folder_make(deep));                           /* there already */
    assert_ok(folder_sync(deep));
    assert_ok(file_replace(path_join(a, folder, "B"), "1", 1));
    assert_ok(file_replace(path_join(a, folder, ".hidden"), "1", 1));
    assert_ok(file_replace(path_join(a, deep, "f"), "1", 1));
    char *outside = check_folder(a);
    assert_int_equal(symlink(outside, path_join(a, folder, "link")), 0);
    char **names;
    int64_t count;
    assert_ok(folder_list(a, folder, &names, &count));
    assert_int_equal(count, 4);
    assert_string_equal(names[0], ".hidden");
    assert_string_equal(names[1], "B");
    assert_string_equal(names[2], "a");
    assert_string_equal(names[3], "link");
    assert_ok(folder_remove(folder));
    assert_false(folder_exists(folder));
    assert_true(folder_exists(outside));                    /* links are not followed */
    assert_ok(folder_remove(outside));
}

static void test_places(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a), *path = path_join(&a, folder, "x"), is[16];
    struct file f;
    assert_ok(file_make(path, 10, &f));
    assert_ok(file_write_at(&f, "cd", 2, 7));
    assert_ok(file_write_at(&f, "ab", 2, 1));
    assert_ok(file_sync(&f, true));
    assert_int_equal(file_size(path), 10);
    assert_ok(file_open(path, false, &f));
    assert_ok(file_read_at(&f, is, 10, 0));
    assert_memory_equal(is, "\0ab\0\0\0\0cd\0", 10);
    assert_ok(file_read_at(&f, is, 0, 99));
    assert_fails(file_read_at(&f, is, 3, 8), "x: it ends at byte 10, expected 1 more");
    assert_fails(file_write_at(&f, "z", 1, 0), path);           /* opened to read */
    file_close(&f);
    assert_ok(file_open(path, true, &f));
    assert_ok(file_write_at(&f, "efg", 3, 9));                  /* and grows */
    assert_fails(file_sync(&f, fail("as before")), "as before");
    assert_int_equal(file_size(path), 12);
    assert_ok(file_make(path, 3, &f));                          /* anew */
    assert_ok(file_sync(&f, true));
    assert_int_equal(file_size(path), 3);
    assert_fails(file_open(path_join(&a, folder, "y"), true, &f), "open");
    assert_fails(file_make(folder, 1, &f), "create");
    assert_fails(file_make("/dev/full", 1, &f), "/dev/full: it is a device");
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

static void test_join(void **state)
{
    struct arena *a = *state;
    assert_string_equal(path_join(a, "x", "y"), "x/y");
    assert_string_equal(path_join(a, "x/", "y"), "x/y");
    assert_string_equal(path_join(a, "", "y"), "y");
    assert_string_equal(path_join(a, "x", "/y"), "/y");
}

enum { BIG = 1 << 18 };

static bool is_one_version(struct arena *a, const char *path)
{
    struct bytes read;
    assert_ok(file_read(a, path, BIG, &read));
    if (read.size != BIG)
        return false;
    for (int64_t i = 0; i < BIG; i++)
        if (read.at[i] != read.at[0])
            return false;
    return true;
}

/* A writer killed at any moment leaves one whole version behind. */
static void test_replace_survives_kill(void **state)
{
    struct arena *a = *state;
    char *folder = check_folder(a), *path = path_join(a, folder, "f");
    char *data = NEW(a, char, BIG);
    memset(data, 'a', BIG);
    assert_ok(file_replace(path, data, BIG));
    for (int round = 0; round < 20; round++) {
        pid_t child = fork();
        if (child == 0)
            for (int i = 0;; i++) {
                memset(data, 'a' + i % 26, BIG);
                if (!file_replace(path, data, BIG))
                    _exit(1);
            }
        usleep((useconds_t)(500 + 731 * round));
        kill(child, SIGKILL);
        int status;
        waitpid(child, &status, 0);
        assert_true(WIFSIGNALED(status));
        assert_true(is_one_version(a, path));
    }
    assert_ok(folder_remove(folder));
}

/* What a killed writer left goes, all else stays. */
static void test_sweep(void **state)
{
    struct arena *a = *state;
    char *folder = check_folder(a);
    const char *const kept[] = {"x.new", "x.y1.new", "x.1.newer", ".1.new", "x.1"};
    for (int i = 0; i < COUNT(kept); i++)
        assert_ok(file_replace(path_join(a, folder, kept[i]), "", 0));
    const char *before = check_names(a, folder);
    assert_ok(file_replace(path_join(a, folder, "metrics.jsonl.4711.new"), "", 0));
    assert_ok(file_replace(path_join(a, folder, "x.1.new"), "", 0));
    assert_ok(folder_sweep(folder));
    assert_string_equal(check_names(a, folder), before);
    assert_ok(folder_remove(folder));
    assert_ok(folder_sweep(folder));                        /* there is none */
}

/* When the write cannot be finished, the old file stays and nothing is left aside. */
static void test_replace_keeps_the_old_file_on_failure(void **state)
{
    struct arena *a = *state;
    char *folder = check_folder(a), *path = path_join(a, folder, "f");
    assert_ok(folder_make(path));       /* a folder cannot be replaced */
    assert_fails(file_replace(path, "new", 3), path);
    assert_true(folder_exists(path));
    char **names;
    int64_t count;
    assert_ok(folder_list(a, folder, &names, &count));
    assert_int_equal(count, 1);
    assert_ok(folder_remove(folder));
    assert_fails(file_replace("/dev/full/none", "x", 1), "/dev/full");
}

static void replace_often(void *arg, int index)
{
    static char data[4][BIG];
    memset(data[index], 'a' + index, BIG);
    for (int i = 0; i < 10; i++)
        if (!file_replace(arg, data[index], BIG))
            BUG("%s", fail_message());
}

static void test_concurrent_writers_do_not_mix(void **state)
{
    struct arena *a = *state;
    char *folder = check_folder(a), *path = path_join(a, folder, "f");
    workers_join(workers_start(4, replace_often, path));
    assert_true(is_one_version(a, path));
    char **names;
    int64_t count;
    assert_ok(folder_list(a, folder, &names, &count));
    assert_int_equal(count, 1);
    assert_ok(folder_remove(folder));
}

/* What is no regular file is refused at once, by name, in each way to open one; and it
 * stays what it was.  (The alarm ends a test that waits for a pipe's other end.) */
static void kinds_refused(struct arena *a, const char *folder, const char *path,
                          const char *kind)
{
    struct bytes read;
    struct file f;
    int fd;
    const char *says = arena_text(a, "%s: it is %s", path, kind);
    alarm(20);
    assert_fails(file_read(a, path, 100, &read), says);
    assert_fails(file_map(path, &read), says);
    assert_fails(file_open(path, false, &f), says);
    assert_fails(file_open(path, true, &f), says);
    assert_fails(file_make(path, 1, &f), says);
    assert_fails(file_lock(path, &fd), path);
    assert_fails(file_copy(path, path_join(a, folder, "to")), says);
    assert_fails(file_copy("/proc/self/status", path), says);
    assert_fails(file_replace(path, "x", 1), says);
    alarm(0);
    assert_false(file_exists(path_join(a, folder, "to")));
}

static void test_only_regular_files(void **state)
{
    struct arena *a = *state;
    char *folder = check_folder(a), *pipe_path = path_join(a, folder, "pipe");
    char *link = path_join(a, folder, "null"), *inside = path_join(a, folder, "in");
    struct stat st;
    int lock;
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    assert_int_equal(symlink("/dev/null", link), 0);
    assert_ok(folder_make(inside));
    kinds_refused(a, folder, pipe_path, "a named pipe");
    kinds_refused(a, folder, link, "a device");
    kinds_refused(a, folder, inside, "a folder");
    assert_int_equal(lstat(pipe_path, &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
    char *file = path_join(a, folder, "file"), *to_file = path_join(a, folder, "link");
    assert_ok(file_replace(file, "kept", 4));
    assert_int_equal(symlink(file, to_file), 0);
    assert_fails(file_lock(to_file, &lock), "it is a symbolic link");
    assert_int_equal(file_size(file), 4);
    assert_ok(folder_remove(folder));
}

/* One at a time; who holds it is named; it ends with its process, however that ends. */
static void test_lock(void **state)
{
    struct arena *a = *state;
    char *folder = check_folder(a), *path = path_join(a, folder, "lock");
    int lock, other;
    assert_ok(file_lock(path, &lock));
    assert_fails(file_lock(path, &other),
                 arena_text(a, "process %d on ", (int)getpid()));
    assert_int_equal(fail_fault(), FAULT_REFUSED);
    file_unlock(lock);
    assert_ok(file_lock(path, &lock));
    file_unlock(lock);
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        if (file_lock(path, &lock) && write(ready[1], "x", 1) == 1)
            pause();
        _Exit(1);
    }
    char word;
    assert_int_equal(read(ready[0], &word, 1), 1);
    assert_fails(file_lock(path, &other), arena_text(a, "process %d on ", (int)child));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_ok(file_lock(path, &lock));
    file_unlock(lock);
    close(ready[0]), close(ready[1]);
    assert_fails(file_lock(path_join(a, folder, "none/lock"), &lock), "none/lock");
    assert_ok(folder_remove(folder));
}

static void test_older(void **state)
{
    struct arena *a = *state;
    char *folder = check_folder(a), *one = path_join(a, folder, "one");
    char *two = path_join(a, folder, "two");
    assert_ok(file_replace(one, "1", 1));
    assert_true(file_older(two, one));
    assert_false(file_older(one, two));
    const struct timespec time[] = {{.tv_sec = 5}, {.tv_sec = 5, .tv_nsec = 7}};
    assert_ok(file_replace(two, "2", 1));
    assert_int_equal(utimensat(AT_FDCWD, two, time, 0), 0);
    assert_true(file_older(two, one));
    assert_false(file_older(one, two));
    assert_false(file_older(two, two));
    assert_ok(folder_remove(folder));
}

/* The cause is why the folder cannot be made, not that it is not there. */
static void test_folder_cause(void **state)
{
    (void)state;
    assert_fails(folder_make("/proc/runs/deep"), "make /proc/runs: ");
    if (geteuid() == 0)
        return;                         /* nothing is forbidden */
    assert_fails(folder_make("/none/deep"), "Permission denied");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_map_and_copy),
        cmocka_unit_test(test_files_of_unknown_size),
        cmocka_unit_test(test_failures_name_the_path),
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_places), cmocka_unit_test(test_join),
        cmocka_unit_test(test_replace_survives_kill),
        cmocka_unit_test(test_replace_keeps_the_old_file_on_failure),
        cmocka_unit_test(test_sweep),
        cmocka_unit_test(test_concurrent_writers_do_not_mix),
        cmocka_unit_test(test_only_regular_files),
        cmocka_unit_test(test_lock),
        cmocka_unit_test(test_older),
        cmocka_unit_test(test_folder_cause),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
