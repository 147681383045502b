/* device.h - where ops run.  Three devices implement one op table (kernels/ops.h):
 * `cpu` computes, `cuda` computes fast, `dry` checks shapes and counts work.
 *
 * A stream is one lane of one device: the op table's first argument.  On the CPU it
 * names the team of threads that shares the work; results do not depend on how many
 * there are. */
#ifndef CORE_DEVICE_H
#define CORE_DEVICE_H

#include "core/tensor.h"

struct team;                            /* threads that share loops */
struct team *team_make(int threads);    /* 0: one per core */
void team_free(struct team *t);
int team_threads(const struct team *t);
/* Run body(arg, i) for every i in 0..count-1, in any order, on the team's threads
 * and the caller; returns when all are done.  Concurrent callers take turns; a call
 * from inside a body runs inline. */
void team_for(struct team *t, int64_t count, void (*body)(void *arg, int64_t i),
              void *arg);

/* What dry ops count, per stream. */
struct work {
    double flops;                       /* multiply-add = 2 */
    double bytes;                       /* read + written, as if nothing were cached */
    double room;                        /* of bytes: of tensors with tensor.room */
    double grouped, attention;          /* of flops: products by expert, attention */
    double inside, across;              /* bytes that reach this rank from others of its
                                         * node, from other nodes (comm.h) */
    int64_t calls;                      /* of collectives and messages */
};

struct stream {
    struct team *team;                  /* cpu */
    struct work *work;                  /* dry */
    void *handle;                       /* cuda */
};

/* Bytes of memory this machine can still give, and cores it has: for plans, doctor. */
int64_t device_memory_free(void);
int device_cores(void);

#endif
