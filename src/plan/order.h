/* order.h - what one rank of a pipeline does in a step: which microbatch goes which way
 * when. */
#ifndef PLAN_ORDER_H
#define PLAN_ORDER_H

#include "base/arena.h"

enum direction { FORWARD, BACKWARD, WEIGHT, DIRECTIONS };
struct order_item { enum direction way; int chunk, mb; };
struct order {
    int mbs, chunks;                    /* microbatches; stages a rank has, 0 as 1 */
    bool split;                         /* weight passes are items of their own; else
                                         * they come with backward */
    int64_t count;
    struct order_item *item;
};
/* One forward, one backward in turn (PipeDream-Flush): the fewest activations. */
struct order order_1f1b(struct arena *a, int stage, int stages, int mbs);
/* The same where a rank has several chunks, stages apart: smaller bubbles, more held
 * (Megatron's virtual pipeline).  `stage` is the rank's place, any mbs will do. */
struct order order_interleaved(struct arena *a, int stage, int stages, int chunks,
                               int mbs);
/* The same with weight passes moved to where a rank would wait (ZB-H1, Qi et al.,
 * 2023): no rank holds more microbatches than the first one does without. */
struct order order_zero_bubble(struct arena *a, int stage, int stages, int chunks,
                               int mbs);
/* Evaluation, generation; alone, and the same for all ranks of a pipeline. */
struct order order_forward(struct arena *a, int mbs);
struct order order_forward_only(struct arena *a, int stages, int chunks, int mbs);

#endif
