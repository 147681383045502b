/* bpe.c - merging by rank: a linked list of symbols and a heap of the merges possible
 * now, so that a word of 100,000 letters costs no more per letter than a short one. */
#include "data/text/bpe.h"

struct bpe_symbol { int32_t id, before, after; };   /* id -1: merged away */
struct bpe_merge { int32_t rank, at, id; };         /* symbol `at` and the next: id */

struct bpe bpe_make(struct arena *a, int64_t merges)
{
    struct bpe b = {.shift = 64 - 4};
    while (((int64_t)1 << (64 - b.shift)) < 2 * merges)
        b.shift--;
    int64_t places = (int64_t)1 << (64 - b.shift);
    b.table = NEW(a, struct bpe_pair, places);
    for (int64_t i = 0; i < places; i++)
        b.table[i].id = -1;
    return b;
}

/* The pair's place in the table, or the free place where it belongs. */
static struct bpe_pair *place(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | (uint32_t)right;
    uint64_t mask = ((uint64_t)1 << (64 - b->shift)) - 1;
    uint64_t i = pair * 0x9e3779b97f4a7c15u >> b->shift;
    while (b->table[i].id >= 0 && b->table[i].pair != pair)
        i = (i + 1) & mask;
    return &b->table[i];
}

void bpe_add(struct bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    *place(b, left, right) =
        (struct bpe_pair){(uint64_t)left << 32 | (uint32_t)right, rank, id};
}

/* Lower rank first; of equal ranks the one further left. */
static bool sooner(struct bpe_merge x, struct bpe_merge y)
{
    return x.rank != y.rank ? x.rank < y.rank : x.at < y.at;
}

static void heap_push(struct bpe_merge *heap, int64_t *count, struct bpe_merge m)
{
    int64_t i = (*count)++;
    for (int64_t up; i > 0 && sooner(m, heap[up = (i - 1) / 2]); i = up)
        heap[i] = heap[up];
    heap[i] = m;
}

static struct bpe_merge heap_pop(struct bpe_merge *heap, int64_t *count)
{
    struct bpe_merge top = heap[0], last = heap[--*count];
    int64_t i = 0;
    for (int64_t down; (down = 2 * i + 1) < *count; i = down) {
        if (down + 1 < *count && sooner(heap[down + 1], heap[down]))
            down++;
        if (!sooner(heap[down], last))
            break;
        heap[i] = heap[down];
    }
    heap[i] = last;
    return top;
}

/* Put the merge of symbol `at` and the one after it on the heap, if there is one. */
static void offer(const struct bpe *b, struct bpe_work *w, int64_t *count, int32_t at)
{
    const struct bpe_symbol *left = &w->symbol[at];
    if (left->after < 0)
        return;
    const struct bpe_pair *p = place(b, left->id, w->symbol[left->after].id);
    if (p->id >= 0)
        heap_push(w->heap, count, (struct bpe_merge){p->rank, at, p->id});
}

/* Is the merge still what its two symbols make?  Either may have changed since. */
static bool stands(const struct bpe *b, const struct bpe_symbol *s, struct bpe_merge m)
{
    return s[m.at].id >= 0 && s[m.at].after >= 0 &&
           place(b, s[m.at].id, s[s[m.at].after].id)->id == m.id;
}

void bpe_word(const struct bpe *b, struct arena *a, struct bpe_work *w,
              const char *word, int64_t size, struct ids *out)
{
    REQUIRE(size <= INT32_MAX);
    if (size > w->room) {
        w->room = MAX(2 * w->room, MAX(size, 64));
        w->symbol = NEW(a, struct bpe_symbol, w->room);
        w->heap = NEW(a, struct bpe_merge, 3 * w->room);  /* size - 1, then 2 a merge */
    }
    struct bpe_symbol *s = w->symbol;
    int64_t waiting = 0;
    for (int32_t i = 0; i < size; i++)
        s[i] = (struct bpe_symbol){b->byte[(unsigned char)word[i]], i - 1,
                                   i + 1 < size ? i + 1 : -1};
    for (int32_t i = 0; i < size; i++)
        offer(b, w, &waiting, i);
    while (waiting > 0) {
        struct bpe_merge m = heap_pop(w->heap, &waiting);
        if (!stands(b, s, m))
            continue;
        int32_t gone = s[m.at].after;
        s[m.at].id = m.id;
        s[m.at].after = s[gone].after;
        s[gone].id = -1;
        if (s[m.at].after >= 0)
            s[s[m.at].after].before = m.at;
        if (s[m.at].before >= 0)
            offer(b, w, &waiting, s[m.at].before);
        offer(b, w, &waiting, m.at);
    }
    for (int32_t i = 0; i >= 0 && i < size; i = s[i].after)
        ids_add(a, out, s[i].id);
}
