/* arena.h - memory belongs to a lifetime, not to an object: nothing is freed alone.
 *
 *     struct arena a = arena_make("item");
 *     float *x = NEW(&a, float, n);
 *     arena_reset(&a, arena_mark(&a));        // free what was pushed since a mark
 *     arena_free(&a);
 *
 * Grows in blocks, so pointers stay valid until a reset, clear or free.  Not shared
 * between threads without a queue handing it over. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include "base/base.h"

struct arena_block;
struct arena {
    const char *name;                   /* for the message when memory runs out */
    struct arena_block *block;          /* newest first */
};
struct arena_mark { struct arena_block *block; size_t used; };

struct arena arena_make(const char *name);
/* Zeroed, 64-byte aligned, never NULL: out of memory ends the program (code 6). */
void *arena_push(struct arena *a, size_t bytes);
/* The same without the zeros, for large memory that is written before it is read. */
void *arena_room(struct arena *a, size_t bytes);
#define NEW(a, type, n) ((type *)arena_push((a), sizeof(type) * (size_t)(n)))
struct arena_mark arena_mark(const struct arena *a);
void arena_reset(struct arena *a, struct arena_mark m);
void arena_free(struct arena *a);       /* back to the state after arena_make */
size_t arena_used(const struct arena *a);

char *arena_copy(struct arena *a, const void *from, size_t bytes);  /* adds a NUL */
char *arena_text(struct arena *a, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* A growing array inside an arena: doubles by copying, old copies stay until reset. */
#define GROW(a, at, count, room)                                                     \
    ((count) < (room) ? (void)0 : (void)((at) =                                      \
        arena_grow((a), (at), sizeof *(at), (count), &(room))))
void *arena_grow(struct arena *a, const void *at, size_t size, int64_t count,
                 int64_t *room);

#endif
