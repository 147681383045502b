/* test_file_sync.c - what has its final name is on the disk, and so is the name: every
 * rename follows a sync of the file and is followed by one of its folder, for whole
 * files and for exported models.
 *
 * The linker sends this program's calls through the functions named __wrap_ below. */
#include "check.h"

#include "checkpoint/hf.h"
#include "tools/convert.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CALLS = 4096 };

static struct call {
    enum { SYNC, RENAME } kind;
    dev_t device;
    ino_t file;                         /* synced, or renamed */
    ino_t folder;                       /* the name's; of a rename */
} calls[CALLS];
static int ncalls;

int __real_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __real_renameat2(int a, const char *from, int b, const char *to, unsigned flags);
int __wrap_fsync(int fd);
int __wrap_rename(const char *from, const char *to);
int __wrap_renameat2(int a, const char *from, int b, const char *to, unsigned flags);

static struct call *call_add(void)
{
    assert_true(ncalls < CALLS);
    return &calls[ncalls++];
}

int __wrap_fsync(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    *call_add() = (struct call){SYNC, st.st_dev, st.st_ino, 0};
    return __real_fsync(fd);
}

static void rename_note(const char *from, const char *to)
{
    struct arena a = arena_make("name");
    struct stat st, folder;
    char *parent = arena_text(&a, "%s", to);
    *strrchr(parent, '/') = '\0';
    assert_int_equal(stat(from, &st), 0);
    assert_int_equal(stat(parent, &folder), 0);
    *call_add() = (struct call){RENAME, st.st_dev, st.st_ino, folder.st_ino};
    arena_free(&a);
}

int __wrap_rename(const char *from, const char *to)
{
    rename_note(from, to);
    return __real_rename(from, to);
}

int __wrap_renameat2(int a, const char *from, int b, const char *to, unsigned flags)
{
    rename_note(from, to);
    return __real_renameat2(a, from, b, to, flags);
}

static bool synced(int from, int to, dev_t device, ino_t file)
{
    for (int i = from; i < to; i++)
        if (calls[i].kind == SYNC && calls[i].device == device && calls[i].file == file)
            return true;
    return false;
}

static void renames_are_safe(const char *what, int least)
{
    int renames = 0;
    for (int i = 0; i < ncalls; i++) {
        if (calls[i].kind != RENAME)
            continue;
        renames++;
        if (!synced(0, i, calls[i].device, calls[i].file))
            fail_msg("%s: renamed before it was synced", what);
        if (!synced(i + 1, ncalls, calls[i].device, calls[i].folder))
            fail_msg("%s: its folder was not synced after the rename", what);
    }
    if (renames < least)
        fail_msg("%s: %d renames, expected %d or more", what, renames, least);
}

static void whole_files(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a), *path = path_join(&a, folder, "file");
    for (int i = 0; i < 2; i++) {       /* new, then over the old one */
        ncalls = 0;
        assert_ok(file_replace(path, "text", 4));
        renames_are_safe("file_replace", 1);
    }
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

static void exported_models(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a), *to = path_join(&a, folder, "model");
    ncalls = 0;
    assert_ok(convert(&(struct convert_options){
        .from = "tests/model/folder", .to = to, .shard_bytes = 1 << 30}));
    renames_are_safe("convert", 1);
    for (int i = 0; i < 2; i++) {
        static const char *const file[] = {"model.safetensors", "config.json"};
        struct stat st;
        assert_int_equal(stat(path_join(&a, to, file[i]), &st), 0);
        if (!synced(0, ncalls, st.st_dev, st.st_ino))
            fail_msg("%s was never synced", file[i]);
    }
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_files),
        cmocka_unit_test(exported_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
