/* owners.c - stretches of memory and who had them last.
 *
 * Stands alone because both deriving waits and checking them ask it. */
#include "plan/owners.h"

struct owners owners_make(struct arena *a)
{
    return (struct owners){.arena = a};
}

int64_t owners_find(const struct owners *o, int64_t from)
{
    int64_t low = 0, high = o->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (o->at[middle].to > from)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

void owners_take(struct owners *o, int64_t from, int64_t to, int buffer)
{
    int64_t first = owners_find(o, from), end = first;
    while (end < o->count && o->at[end].from < to)
        end++;
    struct owner put[3];        /* what is left of the first, the new, the last */
    int puts = 0;
    if (end > first && o->at[first].from < from)
        put[puts++] = (struct owner){o->at[first].from, from, o->at[first].buffer};
    put[puts++] = (struct owner){from, to, buffer};
    if (end > first && o->at[end - 1].to > to)
        put[puts++] = (struct owner){to, o->at[end - 1].to, o->at[end - 1].buffer};

    int64_t count = o->count - (end - first) + puts;
    while (count > o->room)
        o->at = arena_grow(o->arena, o->at, sizeof *o->at, o->count, &o->room);
    memmove(o->at + first + puts, o->at + end,
            sizeof *o->at * (size_t)(o->count - end));
    memcpy(o->at + first, put, sizeof *put * (size_t)puts);
    o->count = count;
}
