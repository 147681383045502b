/* faults.c - a library to preload: the n-th of some calls of a program fails.
 *
 *     FAULT=CALL[,CALL...]:N:ERROR LD_PRELOAD=libfaults.so vlmoe ...
 *
 * ERROR is EIO, ENOSPC, ...; SHORT (half of a read or write is done), LOST (a write
 * says that all is done, and nothing is) or none, to count only.  FAULT_COUNT=FILE is
 * told how many of those calls there were, if the program comes to its end. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NONE = 0, SHORT = -1, LOST = -2 };

static atomic_long calls;
static long nth;
static int error;                       /* an errno, NONE, SHORT or LOST */
static const char *chosen;              /* "CALL,CALL:N:ERROR"; NULL: nothing fails */

static int error_named(const char *name)
{
    static const struct { const char *name; int error; } known[] = {
        {"EIO", EIO}, {"ENOSPC", ENOSPC}, {"EDQUOT", EDQUOT}, {"EINTR", EINTR},
        {"ENOMEM", ENOMEM}, {"EACCES", EACCES}, {"EMFILE", EMFILE}, {"SHORT", SHORT},
        {"LOST", LOST},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(name, known[i].name))
            return known[i].error;
    return NONE;
}

/* The first call of all may come before any constructor. */
static void prepare(void)
{
    static bool done;
    if (done)
        return;
    done = true;
    const char *fault = getenv("FAULT"), *n = fault ? strchr(fault, ':') : NULL;
    const char *why = n ? strchr(n + 1, ':') : NULL;
    if (!why)
        return;
    nth = strtol(n + 1, NULL, 10);
    error = error_named(why + 1);
    chosen = fault;
}

/* Does this call of `name` fail (or is cut short)? */
static bool fails(const char *name)
{
    prepare();
    if (!chosen)
        return false;
    size_t size = strlen(name);
    for (const char *at = chosen; at; at = strpbrk(at, ",:")) {
        at += *at == ',';
        if (*at == ':')
            break;
        if (!strncmp(at, name, size) && strchr(",:", at[size]) &&
            atomic_fetch_add(&calls, 1) + 1 == nth && error != NONE) {
            errno = error < 0 ? 0 : error;
            return true;
        }
        at++;
    }
    return false;
}

__attribute__((destructor)) static void tell(void)
{
    const char *path = getenv("FAULT_COUNT");
    if (!path)
        return;
    char text[32];
    int n = snprintf(text, sizeof text, "%ld\n", atomic_load(&calls));
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC,
                          0666);
    if (syscall(SYS_write, fd, text, n) != n)
        _exit(99);
    syscall(SYS_close, fd);
}

/* ---- memory ---- */

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);

void *malloc(size_t n)
{
    return fails("memory") ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return fails("memory") ? NULL : __libc_calloc(n, size);
}

void *realloc(void *at, size_t n)
{
    return fails("memory") ? NULL : __libc_realloc(at, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    return fails("memory") ? NULL : __libc_memalign(align, n);
}

int posix_memalign(void **at, size_t align, size_t n)
{
    if (fails("memory"))
        return ENOMEM;
    *at = __libc_memalign(align, n);
    return *at ? 0 : ENOMEM;
}

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t from)
{
    if (fails("memory"))
        return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, size, protection, flags, fd, from);
}

/* ---- files ---- */

/* libc's own, in a variable `next`. */
#define NEXT(name)                                                                     \
    __typeof__(&name) next;                                                            \
    *(void **)&next = dlsym(RTLD_NEXT, #name)

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return fails("open") ? -1
                         : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

ssize_t read(int fd, void *to, size_t n)
{
    if (fails("read")) {
        if (error != SHORT)
            return -1;
        n = (n + 1) / 2;
    }
    return syscall(SYS_read, fd, to, n);
}

ssize_t pread(int fd, void *to, size_t n, off_t at)
{
    if (fails("read")) {
        if (error != SHORT)
            return -1;
        n = (n + 1) / 2;
    }
    return syscall(SYS_pread64, fd, to, n, at);
}

/* What people are told is not counted. */
ssize_t write(int fd, const void *from, size_t n)
{
    if (fd > STDERR_FILENO && (fails("write") || fails("write_whole"))) {
        if (error == LOST)
            return (ssize_t)n;
        if (error != SHORT)
            return -1;
        n = (n + 1) / 2;
    }
    return syscall(SYS_write, fd, from, n);
}

ssize_t pwrite(int fd, const void *from, size_t n, off_t at)
{
    if (fails("write")) {
        if (error != SHORT)
            return -1;
        n = (n + 1) / 2;
    }
    return syscall(SYS_pwrite64, fd, from, n, at);
}

/* Buffers of the library: what was in them is lost. */
int fflush(FILE *f)
{
    NEXT(fflush);
    return f && fileno(f) > STDERR_FILENO && fails("fflush") ? EOF : next(f);
}

int close(int fd)
{
    bool failed = fails("close");       /* Linux closes in any case */
    int why = errno, code = (int)syscall(SYS_close, fd);
    if (!failed)
        return code;
    errno = why;
    return -1;
}

#define CALL(kind, name, given, passed)                                                \
    int name given                                                                     \
    {                                                                                  \
        NEXT(name);                                                                    \
        return fails(kind) ? -1 : next passed;                                         \
    }

CALL("fsync", fsync, (int fd), (fd))
CALL("ftruncate", ftruncate, (int fd, off_t n), (fd, n))
CALL("rename", rename, (const char *a, const char *b), (a, b))
CALL("rename", renameat2,
     (int i, const char *a, int k, const char *b, unsigned flags), (i, a, k, b, flags))
CALL("unlink", unlink, (const char *path), (path))
CALL("unlink", remove, (const char *path), (path))
CALL("mkdir", mkdir, (const char *path, mode_t mode), (path, mode))
