/* comm.h - what ranks say to each other.  Three back-ends behind one table: `local`
 * (ranks are threads of this process: parallel/world.h), `dry` (counts bytes) and, on
 * GPUs, NCCL.
 *
 * A comm is one rank's end of one group on one lane: calls of one comm come from one
 * thread at a time and in the same order on every member; different comms of a rank may
 * be used at once.  Buffers belong to the caller and are free again on return.
 *
 * Every call returns false once a rank is lost, hangs or calls something else than the
 * others do (FAULT_RANK, FAULT_BUG); from then on all calls of all comms do, outputs
 * are undefined, and comm_check() tells.  So code that cannot return a failure (a
 * segment) may drop the result, if its caller asks comm_check() before it goes on.
 *
 * Sums run in group order whatever the timing, so every member and every run gets the
 * same bits, and all_reduce gives the bits of reduce_scatter + all_gather.  bf16 is
 * summed in f32 and rounded once; u8 and f16 are only moved. */
#ifndef PARALLEL_COMM_H
#define PARALLEL_COMM_H

#include "core/dtype.h"

enum comm_op {
    COMM_ALL_GATHER, COMM_REDUCE_SCATTER, COMM_REDUCE_WIDE, COMM_ALL_REDUCE, COMM_MAX,
    COMM_ALL_TO_ALL, COMM_ALL_TO_ALL_COUNTS, COMM_BROADCAST, COMM_SEND, COMM_RECV,
    COMM_EXCHANGE, COMM_BARRIER, COMM_OPS
};
extern const char *const comm_op_name[COMM_OPS];

/* One call, as a back-end sees it; what an op does not use is 0. */
struct comm_call {
    enum comm_op op;
    enum dtype dtype;
    int64_t count;
    const void *in;
    void *out;
    float beta;
    const int64_t *in_count, *out_count;
    int to, from;                       /* places in the group; root: from */
    int64_t tag;
    bool patient;                       /* a late member is no lost one */
};

struct comm;
struct comm_ops {
    const char *name;
    bool (*call)(const struct comm *c, const struct comm_call *call);
    bool (*check)(const struct comm *c);
};

struct comm {
    const struct comm_ops *ops;
    const char *name;                   /* of the group: "tp", ...; for messages */
    int rank, size;                     /* place in the group, members */
    const int *member;                  /* their ranks in the world, ascending */
    void *group;                        /* the back-end's */
};

/* A group of one: every call is a copy or nothing.  `rank` of the world. */
struct comm comm_self(const char *name, const int *rank);

/* out [size * count]: the members' `in` [count] in group order.  In place: `in` may be
 * out + rank * count. */
bool comm_all_gather(const struct comm *c, enum dtype d, const void *in, void *out,
                     int64_t count);
/* out [count] = beta out + sum over members of in [rank * count ...]; each
 * `in` is [size * count].  In place: `out` may be in + rank * count (with beta 0). */
bool comm_reduce_scatter(const struct comm *c, enum dtype d, const void *in, float beta,
                         void *out, int64_t count);
/* The same of bf16, but out and the sum in it are f32: never rounded.  Not in place. */
bool comm_reduce_wide(const struct comm *c, const void *in, float beta, float *out,
                      int64_t count);
/* data [count] = sum, or largest, of the members' data. */
bool comm_all_reduce(const struct comm *c, enum dtype d, void *data, int64_t count);
bool comm_max(const struct comm *c, enum dtype d, void *data, int64_t count);
/* out [from * count ...] = in [rank * count ...] of member `from`; [size * count]. */
bool comm_all_to_all(const struct comm *c, enum dtype d, const void *in, void *out,
                     int64_t count);
/* The same with in_count[to] elements for each member, one after another, and
 * out_count[from] from each; both sides must agree.  Counts are in host memory. */
bool comm_all_to_all_counts(const struct comm *c, enum dtype d, const void *in,
                            const int64_t *in_count, void *out,
                            const int64_t *out_count);
/* data [count] of member `root`, to all. */
bool comm_broadcast(const struct comm *c, enum dtype d, int root, void *data,
                    int64_t count);
/* Messages between two members arrive in the order sent.  Sending does not wait for the
 * receiver (but for room: MAX_MAIL messages).  dtype, count and tag of both sides must
 * agree: a message that overtook another is caught, not delivered. */
enum { MAX_MAIL = 1024 };
bool comm_send(const struct comm *c, enum dtype d, int to, int64_t tag, const void *in,
               int64_t count);
bool comm_recv(const struct comm *c, enum dtype d, int from, int64_t tag, void *out,
               int64_t count);
/* Both at once (one step of a ring); `in` and `out` apart. */
bool comm_exchange(const struct comm *c, enum dtype d, int to, const void *in, int from,
                   void *out, int64_t count);
bool comm_barrier(const struct comm *c);
/* Is everyone still there?  Fails with what happened, as this rank saw it. */
bool comm_check(const struct comm *c);
/* Did it go well on every member?  Else all fail alike, with what the first member that
 * failed says of it: nobody waits for one that has given up. */
MUST_USE bool comm_agree(const struct comm *c, bool ok);

/* "all_gather f32 x 12", in one of a few per-thread buffers, for messages. */
const char *comm_call_text(const struct comm_call *call);

/* ---- dry: nothing moves, bytes are counted ---- */

struct link_bytes { double inside, across; };           /* a node, or between nodes */
/* Bytes that reach member `rank`, by the links they use.  Gathers and sums are taken as
 * hierarchical, as NCCL does them: a piece enters a node once and the members there
 * share that work; all_to_all and messages go straight. */
struct link_bytes comm_bytes(const struct comm_call *call, const int *member, int size,
                             int rank, int node);

struct traffic {
    int node;                           /* ranks of one node; 0: all */
    int64_t calls[COMM_OPS];
    struct link_bytes bytes[COMM_OPS];  /* sends are counted where they leave */
};
/* `member` and `t` must outlive the comm. */
struct comm comm_dry(struct traffic *t, const char *name, const int *member, int size,
                     int rank);

#endif
