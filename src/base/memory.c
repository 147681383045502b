/* memory.c - in front of the allocator of this process: what it cannot give ends the
 * program.
 *
 * A program's own malloc comes before libc's for every library it loads.  A decoder
 * that could call a lack of memory a damaged image, a JSON printer that could leave out
 * a number, a BLAS that waits forever for a buffer: none of them ever sees one.
 *
 * Stands alone because it replaces functions of the system.  Builds whose sanitizer
 * replaces them itself leave that to it. */
#include "base/memory.h"

#include "base/log.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Volatile: compilers believe that no malloc reads it. */
_Thread_local const char *volatile memory_user;

/* Without allocating. */
_Noreturn void memory_out(size_t bytes)
{
    char text[256];
    log_progress("%s", "");
    int n = snprintf(text, sizeof text,
                     "vlmoe: memory: no %zu bytes left for %.60s; use fewer workers, "
                     "smaller batches or smaller images\n", bytes,
                     memory_user ? memory_user : "a library");
    if (write(STDERR_FILENO, text, (size_t)n) < 0)
        _Exit(FAULT_MEMORY);            /* there is nobody to tell */
    _Exit(FAULT_MEMORY);
}

static void *map_zeros(void *(*map)(void *, size_t, int, int, int, off_t), size_t bytes)
{
    void *at = map(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                   0);
    return at == MAP_FAILED ? NULL : at;
}

#if MEMORY_BY_SANITIZER

void *memory_map(size_t bytes)
{
    return map_zeros(mmap, bytes);
}

#else

static struct {                         /* what comes after us: libc's */
    void *(*malloc)(size_t);
    void *(*calloc)(size_t, size_t);
    void *(*realloc)(void *, size_t);
    void *(*aligned_alloc)(size_t, size_t);
    int (*posix_memalign)(void **, size_t, size_t);
    void *(*mmap)(void *, size_t, int, int, int, off_t);
} next;

/* At the first allocation, before main, while there is one thread. */
static void next_find(void)
{
    *(void **)&next.calloc = dlsym(RTLD_NEXT, "calloc");
    *(void **)&next.realloc = dlsym(RTLD_NEXT, "realloc");
    *(void **)&next.aligned_alloc = dlsym(RTLD_NEXT, "aligned_alloc");
    *(void **)&next.posix_memalign = dlsym(RTLD_NEXT, "posix_memalign");
    *(void **)&next.mmap = dlsym(RTLD_NEXT, "mmap");
    *(void **)&next.malloc = dlsym(RTLD_NEXT, "malloc");
}

static void *given(void *at, size_t bytes)
{
    if (!at && bytes)
        memory_out(bytes);
    return at;
}

void *malloc(size_t bytes)
{
    if (!next.malloc)
        next_find();
    return given(next.malloc(bytes), bytes);
}

void *calloc(size_t count, size_t bytes)
{
    if (!next.malloc)
        next_find();
    size_t all;
    if (__builtin_mul_overflow(count, bytes, &all))
        all = SIZE_MAX;
    return given(next.calloc(count, bytes), all);
}

void *realloc(void *at, size_t bytes)
{
    if (!next.malloc)
        next_find();
    return given(next.realloc(at, bytes), bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    if (!next.malloc)
        next_find();
    return given(next.aligned_alloc(align, bytes), bytes);
}

int posix_memalign(void **at, size_t align, size_t bytes)
{
    if (!next.malloc)
        next_find();
    int code = next.posix_memalign(at, align, bytes);
    if (code == ENOMEM)
        memory_out(bytes);
    return code;
}

/* Other failures (no such rights, no such file) are the caller's. */
void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t from)
{
    if (!next.malloc)
        next_find();
    void *to = next.mmap(at, bytes, protection, flags, fd, from);
    if (to == MAP_FAILED && errno == ENOMEM)
        memory_out(bytes);
    return to;
}

void *memory_map(size_t bytes)
{
    if (!next.malloc)
        next_find();
    return map_zeros(next.mmap, bytes);
}

#endif
