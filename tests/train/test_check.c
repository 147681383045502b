/* test_check.c - `data check` tells each bad sample when it is found, and keeps none:
 * its memory does not grow with them.
 *
 * The linker sends this program's allocations through the functions named __wrap_ below
 * (tests/CMakeLists.txt). */
#include "tests/data/scratch.h"

#include "base/log.h"
#include "recipe/recipe.h"
#include "tools/inspect.h"

#include <malloc.h>
#include <stdatomic.h>

static atomic_llong bytes, peak;

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_aligned_alloc(size_t align, size_t size);
void __real_free(void *at);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_aligned_alloc(size_t align, size_t size);
void __wrap_free(void *at);

static void *counted(void *at)
{
    long long size = (long long)malloc_usable_size(at);
    long long now = atomic_fetch_add(&bytes, size) + size, most = atomic_load(&peak);
    while (now > most && !atomic_compare_exchange_weak(&peak, &most, now))
        ;
    return at;
}

void *__wrap_malloc(size_t size)
{
    return counted(__real_malloc(size));
}

void *__wrap_calloc(size_t n, size_t size)
{
    return counted(__real_calloc(n, size));
}

void *__wrap_aligned_alloc(size_t align, size_t size)
{
    return counted(__real_aligned_alloc(align, size));
}

void __wrap_free(void *at)
{
    atomic_fetch_sub(&bytes, (long long)malloc_usable_size(at));
    __real_free(at);
}

static int64_t told, largest, last, first_held;

static void tell(const char *text)
{
    if (!told++) {                      /* what opening takes is not looked at */
        first_held = atomic_load(&bytes);
        atomic_store(&peak, first_held);
    }
    last = (int64_t)strlen(text);
    largest = MAX(largest, last);
}

/* What is held at most behind the first of so many bad samples, beside what was. */
static int64_t check(struct scratch *s, int64_t bad)
{
    static const char *const file[] = {"tests/train/tiny/config.json",
                                       "recipes/quickstart/tokenizer.json",
                                       "recipes/quickstart/tokenizer_config.json",
                                       "recipes/quickstart/chat_template.jinja"};
    struct text lines = text_make(&s->arena);
    struct recipe r;
    text_add(&lines, "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
                     "{\"role\": \"assistant\", \"content\": \"b\"}]}\n");
    for (int64_t i = 0; i < bad; i++)
        text_add(&lines, "7\n");
    char *path = scratch_text(s, "lines.jsonl", lines.at);
    for (int i = 0; i < COUNT(file); i++) {
        char *to = scratch_text(s, arena_text(&s->arena, "model/%s",
                                              strrchr(file[i], '/') + 1), "");
        assert_ok(file_copy(file[i], to));
    }
    char *recipe = scratch_text(s, "recipe.yaml",
                                arena_text(&s->arena, "model: {path: %s/model}\n"
                                           "data: {sources: [{path: %s, format: "
                                           "openai}]}\nrun: {folder: %s, name: a}\n",
                                           s->folder, path, s->folder));
    assert_ok(recipe_read(&s->arena, recipe, NULL, 0, &r));
    told = largest = last = 0;
    assert_ok(inspect_data(&r, tell));
    assert_int_equal(told, bad + 1);    /* the report is the last */
    assert_int_equal(largest, last);
    return atomic_load(&peak) - first_held;
}

static void memory_does_not_grow_with_bad_samples(void **state)
{
    (void)state;
    struct scratch s = scratch_make();
    log_set(LOG_WARN, 0);
    int64_t few = check(&s, 100), many = check(&s, 100100);
    if (many - few > 1 << 16)
        fail_msg("%lld bytes more for 100000 bad samples", (long long)(many - few));
    scratch_remove(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_does_not_grow_with_bad_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
