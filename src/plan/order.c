/* order.c - which microbatch goes forward or backward when.
 *
 * Stands alone because a pipeline schedule is data to everything after it. */
#include "plan/plan.h"

/* One forward, one backward in turn (PipeDream-Flush, Narayanan et al., 2021), after as
 * many forwards as there are stages behind this one. */
struct order order_1f1b(struct arena *a, int stage, int stages, int mbs)
{
    REQUIRE(stage >= 0 && stage < stages && mbs >= 1);
    struct order o = {.mbs = mbs, .item = NEW(a, struct order_item, 2 * mbs)};
    int warm = MIN(stages - 1 - stage, mbs);
    for (int forward = 0, backward = 0; backward < mbs;) {
        bool back = forward == mbs || forward - backward > warm;
        o.item[o.count++] = (struct order_item){back, back ? backward++ : forward++};
    }
    return o;
}

struct order order_forward(struct arena *a, int mbs)
{
    struct order o = {.mbs = mbs, .count = mbs, .item = NEW(a, struct order_item, mbs)};
    for (int i = 0; i < mbs; i++)
        o.item[i].mb = i;
    return o;
}
