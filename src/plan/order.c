/* order.c - which microbatch goes forward or backward when.
 *
 * Stands alone because a pipeline schedule is data to everything after it.  Every rank
 * of a pipeline takes (chunk, microbatch) pairs in the same two sequences, one forward
 * and one backward; ranks differ in how far the second lags behind the first.  So the
 * messages between two ranks come in the order in which they are wanted. */
#include "plan/order.h"

/* Microbatches go through a chunk in groups of at least as many as there are ranks (if
 * there are): with fewer, the first rank would wait for the last one to hand them on.
 * So what is left over widens the first groups. */
struct groups { int count, width, wider; };     /* the first `wider`: one more */

static struct groups groups_make(int stages, int mbs)
{
    int count = MAX(mbs / stages, 1);
    return (struct groups){count, mbs / count, mbs % count};
}

/* Pair k of the forward sequence: a group through the first chunk, then through the
 * next, ...; backward meets the chunks from the last to the first. */
static struct order_item item_at(enum direction way, int k, int stages, int chunks,
                                 int mbs)
{
    struct groups g = groups_make(stages, mbs);
    int first = 0, width = g.width + (g.wider > 0);
    for (int i = 1; k >= width * chunks; i++) {
        k -= width * chunks;
        first += width;
        width = g.width + (i < g.wider);
    }
    int chunk = k / width;
    return (struct order_item){way, way == FORWARD ? chunk : chunks - 1 - chunk,
                               first + k % width};
}

/* Forwards that a stage has begun and not taken back when a backward comes, less one:
 * what stages behind this one need to be busy (Narayanan et al., 2021). */
static int warm_up(int stage, int stages, int chunks, int mbs)
{
    struct groups g = groups_make(stages, mbs);
    int behind = stages - 1 - stage, width = g.width + (g.wider > 0);
    int warm = chunks == 1 ? behind : 2 * behind + (chunks - 1) * width;
    return MIN(warm, mbs * chunks);
}

static struct order order_empty(struct arena *a, int chunks, int mbs, int directions)
{
    return (struct order){
        .mbs = mbs, .chunks = chunks,
        .item = NEW(a, struct order_item, (int64_t)directions * mbs * chunks)};
}

struct order order_1f1b(struct arena *a, int stage, int stages, int mbs)
{
    return order_interleaved(a, stage, stages, 1, mbs);
}

struct order order_interleaved(struct arena *a, int stage, int stages, int chunks,
                               int mbs)
{
    REQUIRE(stage >= 0 && stage < stages && chunks >= 1 && mbs >= 1);
    struct order o = order_empty(a, chunks, mbs, 2);
    int pairs = mbs * chunks, warm = warm_up(stage, stages, chunks, mbs);
    for (int forward = 0, backward = 0; backward < pairs;) {
        bool back = forward == pairs || forward - backward > warm;
        o.item[o.count++] = item_at(back ? BACKWARD : FORWARD,
                                    back ? backward++ : forward++, stages, chunks, mbs);
    }
    return o;
}

/* The same forwards and backwards.  A weight pass waits until the stage would hold more
 * than the first stage has to hold anyway, and then fills the gaps between the last
 * backwards: what the last stages do late, the first need not wait for. */
struct order order_zero_bubble(struct arena *a, int stage, int stages, int chunks,
                               int mbs)
{
    struct order base = order_interleaved(a, stage, stages, chunks, mbs);
    struct order o = order_empty(a, chunks, mbs, DIRECTIONS);
    o.split = true;
    int pairs = mbs * chunks, forward = 0, backward = 0, weight = 0;
    int hold = MIN(warm_up(0, stages, chunks, mbs) + 1, pairs);
    for (int64_t i = 0; i < base.count; i++) {
        bool back = base.item[i].way == BACKWARD;
        if (!back && forward - weight == hold)
            o.item[o.count++] = item_at(WEIGHT, weight++, stages, chunks, mbs);
        o.item[o.count++] = base.item[i];
        forward += !back;
        backward += back;
        if (back && forward == pairs && weight < backward)
            o.item[o.count++] = item_at(WEIGHT, weight++, stages, chunks, mbs);
    }
    while (weight < pairs)
        o.item[o.count++] = item_at(WEIGHT, weight++, stages, chunks, mbs);
    return o;
}

struct order order_forward(struct arena *a, int mbs)
{
    return order_forward_only(a, 1, 1, mbs);
}

struct order order_forward_only(struct arena *a, int stages, int chunks, int mbs)
{
    REQUIRE(stages >= 1 && chunks >= 1 && mbs >= 1);
    struct order o = order_empty(a, chunks, mbs, 1);
    while (o.count < (int64_t)mbs * chunks) {
        o.item[o.count] = item_at(FORWARD, (int)o.count, stages, chunks, mbs);
        o.count++;
    }
    return o;
}
