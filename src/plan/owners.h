/* owners.h - which buffer had each stretch of memory last.
 *
 * A sorted array of stretches that do not overlap: finding is a binary search, and
 * stretches are few even where buffers are many. */
#ifndef PLAN_OWNERS_H
#define PLAN_OWNERS_H

#include "base/arena.h"

struct owner { int64_t from, to; int buffer; };
struct owners {
    struct arena *arena;
    int64_t count, room;
    struct owner *at;
};

struct owners owners_make(struct arena *a);
/* The first stretch that ends after `from`; those up to `to` follow it. */
int64_t owners_find(const struct owners *o, int64_t from);
/* [from, to) now belongs to `buffer`; others keep what is outside. */
void owners_take(struct owners *o, int64_t from, int64_t to, int buffer);

#endif
