/* shard.c - arithmetic of boxes and stretches; no memory is touched here. */
#include "parallel/shard.h"

#include <stdlib.h>

/* ---- dim by dim ---- */

struct box box_of(const struct view *v, int rank, int ndim, const int64_t *dim,
                  const unsigned *on)
{
    REQUIRE(ndim >= 0 && ndim <= BOX_DIMS);
    struct box b = {.ndim = ndim};
    for (int d = 0; d < ndim; d++) {
        int parts = view_group_size(v, on[d]);
        if (dim[d] % parts)
            BUG("shard: dim %d of %lld over %d rank(s)", d, (long long)dim[d], parts);
        b.dim[d] = dim[d];
        b.size[d] = dim[d] / parts;
        b.from[d] = b.size[d] * view_group_index(v, rank, on[d]);
    }
    return b;
}

int64_t box_count(const struct box *b)
{
    int64_t n = 1;
    for (int d = 0; d < b->ndim; d++)
        n *= b->size[d];
    return n;
}

int64_t box_row(const struct box *b)
{
    int64_t n = 1;
    for (int d = b->ndim - 1; d >= 0; d--) {
        n *= b->size[d];
        if (b->size[d] != b->dim[d])
            break;
    }
    return n;
}

int64_t box_global(const struct box *b, int64_t i)
{
    int64_t global = 0, apart = 1;
    for (int d = b->ndim - 1; d >= 0; d--) {
        global += (b->from[d] + i % b->size[d]) * apart;
        i /= b->size[d];
        apart *= b->dim[d];
    }
    return global;
}

int64_t box_local(const struct box *b, int64_t global)
{
    int64_t local = 0, apart = 1;
    for (int d = b->ndim - 1; d >= 0; d--) {
        int64_t at = global % b->dim[d] - b->from[d];
        if (at < 0 || at >= b->size[d])
            return -1;
        local += at * apart;
        global /= b->dim[d];
        apart *= b->size[d];
    }
    return local;
}

/* ---- flat ---- */

struct flat flat_make(int64_t count, int shards, int64_t atom)
{
    REQUIRE(count >= 0 && shards > 0 && atom > 0);
    int64_t all = atom * shards;
    return (struct flat){count, shards, (count + all - 1) / all * atom};
}

int64_t flat_padded(const struct flat *f)
{
    return f->each * f->shards;
}

struct stretch flat_part(const struct flat *f, int at, int64_t offset, int64_t count)
{
    REQUIRE(at >= 0 && at < f->shards && offset >= 0 && offset + count <= f->count);
    int64_t from = MAX(at * f->each, offset);
    int64_t to = MIN((at + 1) * f->each, offset + count);
    return from < to ? (struct stretch){from - offset, to - offset}
                     : (struct stretch){0, 0};
}

/* ---- from one layout to another ---- */

/* Old shards of one box, so that the box is looked at once for all of them. */
struct family {
    const struct box *box;
    bool same;                          /* the new box: elements lie alike in both */
    int64_t row;
    int64_t first, count;               /* its entries of `have` */
};

/* What a shard has to give; both ends ascend within a family. */
struct have { int64_t from, to, shard; };

struct search {
    const struct shard *old;
    struct family *family;
    struct have *have;
    int64_t families, last;             /* the family that had the last element */
};

static int box_order(const struct box *a, const struct box *b)
{
    for (int d = 0; d < a->ndim; d++) {
        if (a->from[d] != b->from[d])
            return a->from[d] < b->from[d] ? -1 : 1;
        if (a->size[d] != b->size[d])
            return a->size[d] < b->size[d] ? -1 : 1;
    }
    return 0;
}

static bool boxes_meet(const struct box *a, const struct box *b)
{
    for (int d = 0; d < a->ndim; d++)
        if (a->from[d] >= b->from[d] + b->size[d] ||
            b->from[d] >= a->from[d] + a->size[d])
            return false;
    return true;
}

static int by_box_and_part(const void *a, const void *b)
{
    const struct shard *x = *(const struct shard *const *)a;
    const struct shard *y = *(const struct shard *const *)b;
    int order = box_order(&x->box, &y->box);
    if (order)
        return order;
    if (x->part.from != y->part.from)
        return x->part.from < y->part.from ? -1 : 1;
    return x < y ? -1 : x > y;
}

static struct search search_make(struct arena *a, const struct shard *old,
                                 int64_t count, const struct box *wanted)
{
    const struct shard **sorted = NEW(a, const struct shard *, count);
    int64_t n = 0, haves = 0;
    for (int64_t i = 0; i < count; i++) {
        REQUIRE(old[i].box.ndim == wanted->ndim);
        for (int d = 0; d < wanted->ndim; d++)
            REQUIRE(old[i].box.dim[d] == wanted->dim[d]);
        if (old[i].part.from < old[i].part.to && boxes_meet(&old[i].box, wanted))
            sorted[n++] = &old[i];
    }
    qsort(sorted, (size_t)n, sizeof *sorted, by_box_and_part);
    struct search s = {.old = old, .family = NEW(a, struct family, n),
                       .have = NEW(a, struct have, n)};
    for (int64_t i = 0, covered = 0; i < n; i++) {
        struct family *f = s.families ? &s.family[s.families - 1] : NULL;
        if (!f || box_order(f->box, &sorted[i]->box)) {
            f = &s.family[s.families++];
            *f = (struct family){&sorted[i]->box, !box_order(&sorted[i]->box, wanted),
                                 box_row(&sorted[i]->box), haves, 0};
            covered = 0;
        }
        struct stretch part = sorted[i]->part;
        if (part.to <= covered)
            continue;                   /* others have all of it */
        s.have[haves++] = (struct have){part.from, part.to, sorted[i] - old};
        f->count++;
        covered = part.to;
    }
    return s;
}

/* The entry of a family that has element i of its box, or NULL. */
static const struct have *family_find(const struct search *s, const struct family *f,
                                      int64_t i)
{
    int64_t low = f->first, high = f->first + f->count;
    while (low < high) {                /* the first that ends after i */
        int64_t middle = low + (high - low) / 2;
        if (s->have[middle].to <= i)
            low = middle + 1;
        else
            high = middle;
    }
    const struct have *h = &s->have[low];
    return low < f->first + f->count && h->from <= i ? h : NULL;
}

/* The most elements from element `i` of the new box on that lie together in one old
 * shard too: 0 if nobody has the first. */
static int64_t search_find(struct search *s, const struct shard *new, int64_t row,
                           int64_t i, struct copy *out)
{
    int64_t global = box_global(&new->box, i), left = new->part.to - i;
    for (int64_t k = 0; k < s->families; k++) {
        int64_t which = (s->last + k) % s->families;
        const struct family *f = &s->family[which];
        int64_t at = box_local(f->box, global);
        const struct have *h = at < 0 ? NULL : family_find(s, f, at);
        if (!h)
            continue;
        s->last = which;
        const struct shard *from = &s->old[h->shard];
        int64_t length = MIN(left, h->to - at);
        if (!f->same)
            length = MIN(length, MIN(row - i % row, f->row - at % f->row));
        *out = (struct copy){h->shard, from->rank, from->offset + at - from->part.from,
                             new->offset + i - new->part.from, length};
        return length;
    }
    return 0;
}

bool shard_overlap(struct arena *a, const struct shard *old, int64_t count,
                   const struct shard *new, struct copy **copies, int64_t *ncopies)
{
    struct search s = search_make(a, old, count, &new->box);
    struct copy *list = NULL, next;
    int64_t n = 0, room = 0, row = box_row(&new->box);
    for (int64_t i = new->part.from; i < new->part.to; i += next.length) {
        if (!search_find(&s, new, row, i, &next)) {
            fail("shard: element %lld of the tensor, wanted by rank %d, is in none of "
                 "%lld shard(s)", (long long)box_global(&new->box, i), new->rank,
                 (long long)count);
            return fail_kind(FAULT_CHECKPOINT);
        }
        struct copy *last = n ? &list[n - 1] : NULL;
        if (last && last->shard == next.shard &&
            last->from + last->length == next.from) {
            last->length += next.length;
            continue;
        }
        GROW(a, list, n, room);
        list[n++] = next;
    }
    *copies = list;
    *ncopies = n;
    return true;
}
