/* test_memory.c - memory that is not given ends the program, whoever asked for it. */
#include "check.h"

#include "base/memory.h"

#include <fcntl.h>
#include <jansson.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PLENTY = 48 };                   /* 2^48 bytes: more than a machine has */

static size_t plenty(void)
{
    volatile size_t bytes = (size_t)1 << PLENTY;        /* compilers know constants */
    return bytes;
}

static void *volatile kept;             /* or a compiler leaves the call out */

static void by_malloc(void) { kept = malloc(plenty()); }
static void by_calloc(void) { kept = calloc(plenty(), 4); }
static void by_overflow(void) { kept = calloc(plenty(), plenty()); }
static void by_realloc(void) { kept = realloc(malloc(8), plenty()); }
static void by_aligned(void) { kept = aligned_alloc(64, plenty()); }

static void by_memalign(void)
{
    void *at;
    if (posix_memalign(&at, 64, plenty()) == 0)
        free(at);
}

static void by_map(void)
{
    mmap(NULL, plenty(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void by_arena(void)
{
    struct arena a = arena_make("something large");
    arena_push(&a, plenty());
    arena_free(&a);
}

/* Memory is filled up within a library's own call. */
static void by_library(void)
{
    const struct rlimit little = {1 << 28, 1 << 28};
    json_t *all = json_array();
    if (setrlimit(RLIMIT_AS, &little) != 0)
        return;
    for (;;)
        json_array_append_new(all, json_string("a text that takes some room"));
}

/* The program's last words when `action` runs out of memory in it. */
static char *last_words(struct arena *a, void (*action)(void), int *code)
{
    int pipes[2], status;
    char *text = arena_push(a, 1024);
    size_t size = 0;
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipes[1], STDERR_FILENO);
        action();
        _exit(0);
    }
    close(pipes[1]);
    for (ssize_t n; size < 1023 && (n = read(pipes[0], text + size, 1023 - size)) > 0;)
        size += (size_t)n;
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    *code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    return text;
}

static void test_one_end(void **state)
{
    (void)state;
    const struct { void (*action)(void); const char *user; } way[] = {
        {by_malloc, "a library"}, {by_calloc, "a library"},
        {by_overflow, "a library"}, {by_realloc, "a library"},
        {by_aligned, "a library"}, {by_memalign, "a library"},
        {by_map, "a library"}, {by_arena, "something large"},
        {by_library, "a library"},
    };
    struct arena a = arena_make("test");
    for (int i = 0; i < COUNT(way); i++) {
        int code;
        char *words = last_words(&a, way[i].action, &code);
        const char *end = arena_text(&a, " bytes left for %s; use fewer workers, "
                                     "smaller batches or smaller images\n",
                                     way[i].user);
        if (code != FAULT_MEMORY || !text_starts(words, "vlmoe: memory: no ") ||
            !text_ends(words, end))
            fail_msg("way %d: code %d, '%s'", i, code, words);
    }
    arena_free(&a);
}

static void test_what_may_be_refused(void **state)
{
    (void)state;
    void *at = memory_map(1 << 20);
    assert_non_null(at);
    assert_int_equal(((char *)at)[(1 << 20) - 1], 0);
    assert_int_equal(munmap(at, 1 << 20), 0);
    assert_null(memory_map(plenty()));
    assert_ptr_equal(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, -1, 0), MAP_FAILED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_end),
        cmocka_unit_test(test_what_may_be_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
