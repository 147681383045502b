/* file.c - POSIX files and folders behind messages that name the path and the cause. */
#include "base/file.h"

#include "base/log.h"
#include "base/memory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool file_fail(const char *action, const char *path)
{
    int error = errno;
    if (error == ENOMEM)
        memory_out(0);
    fail("file: %s %s: %s", action, path, strerror(error));
    return fail_machine(error);
}

/* ---- one way to open a file ---- */

static const char *kind_of(mode_t mode)
{
    return S_ISDIR(mode) ? "a folder" : S_ISFIFO(mode) ? "a named pipe"
           : S_ISSOCK(mode) ? "a socket" : S_ISLNK(mode) ? "a symbolic link"
                                                         : "a device";
}

/* What is there, if anything, may not be opened or replaced as a file. */
static bool kind_fail(const char *action, const char *path, const struct stat *st)
{
    return fail("file: %s %s: it is %s, not a regular file", action, path,
                kind_of(st->st_mode));
}

bool file_descriptor(const char *path, int flags, int *fd)
{
    const char *action = flags & O_CREAT ? "create" : "open";
    struct stat st;
    do                                  /* not waiting for the other end of a pipe */
        *fd = open(path, flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0666);
    while (*fd < 0 && errno == EINTR);
    if (*fd < 0) {
        int why = errno;
        if ((flags & O_NOFOLLOW ? lstat : stat)(path, &st) == 0 &&
            !S_ISREG(st.st_mode))
            return kind_fail(action, path, &st);
        errno = why;
        return file_fail(action, path);
    }
    bool ok = fstat(*fd, &st) == 0 ? S_ISREG(st.st_mode) || kind_fail(action, path, &st)
                                   : file_fail("stat", path);
    if (!ok) {
        close(*fd);
        *fd = -1;
    }
    return ok;
}

/* Up to `size` bytes; fewer only at the end; -1 on an error. */
static int64_t read_all(int fd, char *to, int64_t size)
{
    int64_t done = 0;
    while (done < size) {
        ssize_t n = read(fd, to + done, (size_t)(size - done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        done += n;
    }
    return done;
}

static bool write_all(int fd, const char *from, int64_t size)
{
    for (int64_t done = 0; done < size;) {
        ssize_t n = write(fd, from + done, (size_t)(size - done));
        if (n < 0 && errno != EINTR)
            return false;
        done += MAX(n, 0);
    }
    return true;
}

bool file_read(struct arena *a, const char *path, int64_t limit, struct bytes *out)
{
    int fd;
    if (!file_descriptor(path, O_RDONLY, &fd))
        return false;
    struct stat st;
    bool ok = fstat(fd, &st) == 0 || file_fail("stat", path);
    if (ok && st.st_size > limit)
        ok = fail("file: read %s: %lld byte(s), expected at most %lld", path,
                  (long long)st.st_size, (long long)limit);
    int64_t room = 0, size = 0;
    char *at = NULL;
    while (ok && size == room) {        /* st_size is 0 for /proc, and files may grow */
        room = MIN(limit, room ? 2 * room : MAX(st.st_size, 4096)) + 1;
        char *to = arena_push(a, (size_t)room + 1);
        if (size)
            memcpy(to, at, (size_t)size);
        at = to;
        int64_t n = read_all(fd, at + size, room - size);
        if (n < 0)
            ok = file_fail("read", path);
        else if ((size += n) > limit)
            ok = fail("file: read %s: more than %lld byte(s), expected at most that",
                      path, (long long)limit);
    }
    close(fd);
    if (!ok)
        return false;
    at[size] = 0;
    *out = (struct bytes){at, size};
    return true;
}

static char empty[1];

bool file_map(const char *path, struct bytes *out)
{
    int fd;
    if (!file_descriptor(path, O_RDONLY, &fd))
        return false;
    struct stat st;
    bool ok = fstat(fd, &st) == 0 || file_fail("stat", path);
    struct bytes map = {empty, 0};
    if (ok && st.st_size > 0) {
        void *at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        ok = at != MAP_FAILED || file_fail("map", path);
        map = (struct bytes){at, st.st_size};
    }
    close(fd);
    if (ok)
        *out = map;
    return ok;
}

void file_unmap(struct bytes *b)
{
    if (b->size > 0)
        munmap(b->at, (size_t)b->size);
    *b = (struct bytes){NULL, 0};
}

static int sync_fully(int fd)
{
    int code;
    do
        code = fsync(fd);
    while (code != 0 && errno == EINTR);
    return code;
}

/* fsync and close; the file is closed whatever happens (on Linux also when a signal
 * interrupts that, and by then it is on disk). */
static bool file_finish(int fd, bool ok, const char *path)
{
    if (ok && sync_fully(fd) != 0)
        ok = file_fail("sync", path);
    if (close(fd) != 0 && errno != EINTR && ok)
        ok = file_fail("close", path);
    return ok;
}

static bool parent_sync(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return folder_sync(".");
    if (slash == path)
        return folder_sync("/");
    char parent[PATH_MAX];
    snprintf(parent, sizeof parent, "%.*s", (int)(slash - path), path);
    return folder_sync(parent);
}

char *file_aside(struct arena *a, const char *path)
{
    struct stat st;                     /* a device would be gone for good */
    if (stat(path, &st) != 0 || S_ISREG(st.st_mode))
        return arena_text(a, "%s.%d.new", path, (int)gettid());
    kind_fail("replace", path, &st);
    return NULL;
}

bool file_settle(const char *aside, const char *path, bool ok)
{
    if (ok && rename(aside, path) != 0)
        ok = file_fail("rename over", path);
    if (!ok)
        unlink(aside);
    return ok && parent_sync(path);
}

/* Is all there that was written, before it takes a name that is believed? */
static bool size_check(int fd, int64_t size, const char *path)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return file_fail("stat", path);
    return st.st_size == size ||
           fail("file: write %s: it is %lld byte(s) afterwards, expected %lld", path,
                (long long)st.st_size, (long long)size);
}

bool file_replace(const char *path, const void *data, int64_t size)
{
    struct arena a = arena_make("path");
    char *aside = file_aside(&a, path);
    int fd;
    bool ok = aside && file_descriptor(aside, O_WRONLY | O_CREAT | O_TRUNC, &fd);
    if (ok) {
        ok = (write_all(fd, data, size) || file_fail("write", aside)) &&
             size_check(fd, size, aside);
        ok = file_settle(aside, path, file_finish(fd, ok, aside));
    }
    arena_free(&a);
    return ok;
}

/* What file_aside() names: "NAME.NUMBER.new". */
static bool is_aside(const char *name)
{
    size_t n = strlen(name);
    if (n < 6 || strcmp(name + n - 4, ".new"))
        return false;
    const char *at = name + n - 5;
    while (at > name && *at >= '0' && *at <= '9')
        at--;
    return *at == '.' && at > name && at < name + n - 5;
}

bool folder_sweep(const char *path)
{
    struct arena a = arena_make("folder");
    char **name;
    int64_t count = 0;
    bool ok = !folder_exists(path) || folder_list(&a, path, &name, &count);
    for (int64_t i = 0; i < count && ok; i++) {
        char *aside = path_join(&a, path, name[i]);
        if (is_aside(name[i]) && unlink(aside) != 0)
            ok = file_fail("remove", aside);
    }
    arena_free(&a);
    return ok;
}

/* ---- files open for long ---- */

static int truncate_to(int fd, int64_t size)
{
    int code;
    do
        code = ftruncate(fd, size);
    while (code != 0 && errno == EINTR);
    return code;
}

static bool file_start(const char *path, int flags, struct file *out)
{
    *out = (struct file){-1, path};
    return file_descriptor(path, flags, &out->fd);
}

bool file_make(const char *path, int64_t size, struct file *out)
{
    if (!file_start(path, O_WRONLY | O_CREAT | O_TRUNC, out))
        return false;
    if (truncate_to(out->fd, size) == 0)
        return true;
    file_fail("enlarge", path);
    file_close(out);
    return false;
}

bool file_open(const char *path, bool writes, struct file *out)
{
    return file_start(path, writes ? O_WRONLY : O_RDONLY, out);
}

bool file_write_at(const struct file *f, const void *from, int64_t size, int64_t at)
{
    for (int64_t done = 0; done < size;) {
        ssize_t n = pwrite(f->fd, (const char *)from + done, (size_t)(size - done),
                           at + done);
        if (n < 0 && errno != EINTR)
            return file_fail("write", f->path);
        done += MAX(n, 0);
    }
    return true;
}

bool file_read_at(const struct file *f, void *to, int64_t size, int64_t at)
{
    for (int64_t done = 0; done < size;) {
        ssize_t n = pread(f->fd, (char *)to + done, (size_t)(size - done), at + done);
        if (n < 0 && errno != EINTR)
            return file_fail("read", f->path);
        if (n == 0)
            return fail("file: read %s: it ends at byte %lld, expected %lld more",
                        f->path, (long long)(at + done), (long long)(size - done));
        done += MAX(n, 0);
    }
    return true;
}

bool file_sync(struct file *f, bool ok)
{
    return file_finish(f->fd, ok, f->path);
}

void file_close(struct file *f)
{
    close(f->fd);
}

/* ---- locks ---- */

static bool lock_busy(const char *path, int fd)
{
    char owner[300] = "";
    if (read_all(fd, owner, sizeof owner - 1) <= 0)
        snprintf(owner, sizeof owner, "another process");
    fail("file: %s is locked by %s", path, owner);
    return fail_kind(FAULT_REFUSED);
}

bool file_lock(const char *path, int *lock)
{
    char owner[300], host[256] = "";
    int fd;
    if (!file_descriptor(path, O_RDWR | O_CREAT | O_NOFOLLOW, &fd))
        return fail_more("it is what a run locks; move it away");
    gethostname(host, sizeof host - 1);
    int n = snprintf(owner, sizeof owner, "process %d on %s", (int)getpid(), host);
    bool ok = flock(fd, LOCK_EX | LOCK_NB) == 0 ||
              (errno == EWOULDBLOCK ? lock_busy(path, fd) : file_fail("lock", path));
    ok = ok && ((truncate_to(fd, 0) == 0 && write_all(fd, owner, n)) ||
                file_fail("write", path));
    if (ok)
        *lock = fd;
    else
        close(fd);
    return ok;
}

void file_unlock(int lock)
{
    close(lock);
}

bool file_copy(const char *from, const char *to)
{
    int in, out;
    if (!file_descriptor(from, O_RDONLY, &in))
        return false;
    if (!file_descriptor(to, O_WRONLY | O_CREAT | O_TRUNC, &out)) {
        close(in);
        return false;
    }
    char block[1 << 16];
    int64_t n = sizeof block, size = 0;
    bool ok = true;
    while (ok && n == sizeof block) {
        n = read_all(in, block, sizeof block);
        if (n < 0)
            ok = file_fail("read", from);
        else
            ok = write_all(out, block, n) || file_fail("write", to);
        size += n;
    }
    close(in);
    return file_finish(out, ok && size_check(out, size, to), to);
}

bool folder_make(const char *path)
{
    char part[PATH_MAX];
    size_t size = strlen(path);
    if (size == 0 || size >= sizeof part)
        return fail("folder: make '%.64s': the path is %zu byte(s), expected 1 to %d",
                    path, size, PATH_MAX - 1);
    memcpy(part, path, size + 1);
    for (size_t i = 1; i <= size; i++) {
        if (part[i] != '/' && part[i] != 0)
            continue;
        part[i] = 0;
        int why = mkdir(part, 0777) == 0 ? 0 : errno;
        if (why && !folder_exists(part))
            return fail("folder: make %s: %s", part, strerror(why));
        part[i] = path[i];
    }
    return true;
}

bool folder_sync(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return fail("folder: open %s: %s", path, strerror(errno));
    bool ok = sync_fully(fd) == 0 || errno == EINVAL;    /* some file systems cannot */
    if (!ok)
        fail("folder: sync %s: %s", path, strerror(errno));
    close(fd);
    return ok;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    if (remove(path) == 0)
        return 0;
    fail("folder: remove %s: %s", path, strerror(errno));
    return 1;                           /* ends the walk */
}

bool folder_remove(const char *path)
{
    int stopped = nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (stopped < 0 && errno == ENOENT)
        return true;
    if (stopped < 0)
        return fail("folder: remove %s: %s", path, strerror(errno));
    return stopped == 0;
}

void folder_abandon(const char *path)
{
    struct failure why;
    fail_take(&why);
    if (!folder_remove(path))
        log_warn("folder", "%s", fail_message());
    fail_raise(&why);
}

/* Afterwards `a` is what `b` was, and `b` what `a` was. */
static bool folder_exchange(const char *a, const char *b)
{
    char aside[PATH_MAX];
    if (renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0)
        return true;
    int n = snprintf(aside, sizeof aside, "%s.aside", a);
    if (errno != EINVAL || n < 0 || n >= (int)sizeof aside)
        return false;
    return rename(b, aside) == 0 && rename(a, b) == 0 && rename(aside, a) == 0;
}

bool folder_replace(const char *part, const char *path)
{
    bool old = folder_exists(path);
    if (old ? !folder_exchange(part, path) : rename(part, path) != 0)
        return fail("folder: rename %s to %s: %s", part, path, strerror(errno));
    return parent_sync(path) && (!old || folder_remove(part));
}

static int name_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

bool folder_list(struct arena *a, const char *path, char ***names, int64_t *count)
{
    DIR *dir = opendir(path);
    if (!dir)
        return fail("folder: open %s: %s", path, strerror(errno));
    char **name = NULL;
    int64_t n = 0, room = 0;
    errno = 0;
    for (struct dirent *e; (e = readdir(dir));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        GROW(a, name, n, room);
        name[n++] = arena_copy(a, e->d_name, strlen(e->d_name));
    }
    bool ok = errno == 0 || fail("folder: read %s: %s", path, strerror(errno));
    closedir(dir);
    if (!ok)
        return false;
    if (n)
        qsort(name, (size_t)n, sizeof *name, name_order);
    *names = name;
    *count = n;
    return true;
}

bool folder_unused(const char *path)
{
    struct arena a = arena_make("folder");
    char **name;
    int64_t count = 0;
    bool ok = !folder_exists(path) || folder_list(&a, path, &name, &count);
    arena_free(&a);
    if (ok && (count || file_exists(path)))
        ok = fail("folder: %s is there already; name a new one", path);
    return ok;
}

bool file_exists(const char *path)
{
    return file_size(path) >= 0;
}

bool folder_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int64_t file_size(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode) ? (int64_t)st.st_size : -1;
}

bool file_older(const char *path, const char *other)
{
    struct stat a, b;
    if (stat(path, &a) != 0)
        return true;
    const struct timespec *x = &a.st_mtim, *y = &b.st_mtim;
    return stat(other, &b) == 0 && (x->tv_sec != y->tv_sec ? x->tv_sec < y->tv_sec
                                                           : x->tv_nsec < y->tv_nsec);
}

char *path_join(struct arena *a, const char *folder, const char *name)
{
    if (!*folder || *name == '/')
        return arena_copy(a, name, strlen(name));
    const char *slash = folder[strlen(folder) - 1] == '/' ? "" : "/";
    return arena_text(a, "%s%s%s", folder, slash, name);
}
