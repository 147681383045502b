/* arena.c - blocks of memory chained newest first; the only caller of malloc here. */
#include "base/arena.h"

#include "base/memory.h"
#include "base/text.h"

#include <stdarg.h>
#include <stdlib.h>

/* Blocks double up to a size that malloc keeps for the next arena instead of giving the
 * pages back: faulting them in again costs more than decoding into them. */
enum { ALIGN = 64, BLOCK = 1 << 16, MOST_BLOCK = 1 << 22 };

struct arena_block {
    struct arena_block *older;
    size_t used, size;                  /* bytes, from `at` on */
    char *at;
};

struct arena arena_make(const char *name)
{
    return (struct arena){name, NULL};
}

static void block_add(struct arena *a, size_t bytes)
{
    size_t size = a->block ? MIN(2 * a->block->size, (size_t)MOST_BLOCK) : BLOCK;
    size = MAX(size, bytes);
    memory_user = a->name;
    struct arena_block *b = malloc(sizeof *b);
    char *at = aligned_alloc(ALIGN, size);
    memory_user = NULL;
    *b = (struct arena_block){a->block, 0, size, at};
    a->block = b;
}

void *arena_room(struct arena *a, size_t bytes)
{
    REQUIRE(bytes <= SIZE_MAX / 2);
    bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (!a->block || a->block->size - a->block->used < bytes)
        block_add(a, bytes);
    char *at = a->block->at + a->block->used;
    a->block->used += bytes;
    return at;
}

void *arena_push(struct arena *a, size_t bytes)
{
    return memset(arena_room(a, bytes), 0, bytes);
}

struct arena_mark arena_mark(const struct arena *a)
{
    return (struct arena_mark){a->block, a->block ? a->block->used : 0};
}

void arena_reset(struct arena *a, struct arena_mark m)
{
    while (a->block != m.block) {
        struct arena_block *b = a->block;
        REQUIRE(b);
        a->block = b->older;
        free(b->at);
        free(b);
    }
    if (a->block)
        a->block->used = m.used;
}

void arena_free(struct arena *a)
{
    arena_reset(a, (struct arena_mark){NULL, 0});
}

size_t arena_used(const struct arena *a)
{
    size_t used = 0;
    for (const struct arena_block *b = a->block; b; b = b->older)
        used += b->used;
    return used;
}

char *arena_copy(struct arena *a, const void *from, size_t bytes)
{
    char *to = arena_push(a, bytes + 1);
    if (bytes)
        memcpy(to, from, bytes);
    return to;
}

char *arena_text(struct arena *a, const char *fmt, ...)
{
    va_list args, again;
    va_start(args, fmt);
    va_copy(again, args);
    int n = text_format(NULL, 0, fmt, args);
    REQUIRE(n >= 0);
    char *to = arena_push(a, (size_t)n + 1);
    text_format(to, (size_t)n + 1, fmt, again);
    va_end(again);
    va_end(args);
    return to;
}

void *arena_grow(struct arena *a, const void *at, size_t size, int64_t count,
                 int64_t *room)
{
    *room = MAX(16, 2 * count);
    void *to = arena_push(a, size * (size_t)*room);
    if (count)
        memcpy(to, at, size * (size_t)count);
    return to;
}
