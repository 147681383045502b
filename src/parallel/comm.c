/* comm.c - the calls every back-end shares: promises checked once, then the table. */
#include "parallel/comm.h"

const char *const comm_op_name[COMM_OPS] = {
    "all_gather", "reduce_scatter", "reduce_wide", "all_reduce", "max", "all_to_all",
    "all_to_all_counts", "broadcast", "send", "recv", "exchange", "barrier",
};

static bool adds(enum dtype d)
{
    return d == DTYPE_F32 || d == DTYPE_F64 || d == DTYPE_I32 || d == DTYPE_I64 ||
           d == DTYPE_BF16;
}

static bool call(const struct comm *c, struct comm_call what)
{
    REQUIRE(what.count >= 0);
    REQUIRE(what.to >= 0 && what.to < c->size && what.from >= 0 && what.from < c->size);
    return c->ops->call(c, &what);
}

bool comm_all_gather(const struct comm *c, enum dtype d, const void *in, void *out,
                     int64_t count)
{
    return call(c, (struct comm_call){.op = COMM_ALL_GATHER, .dtype = d, .count = count,
                                      .in = in, .out = out});
}

bool comm_reduce_scatter(const struct comm *c, enum dtype d, const void *in, float beta,
                         void *out, int64_t count)
{
    bool whole = d == DTYPE_I32 || d == DTYPE_I64;
    REQUIRE(adds(d) && (!whole || beta == 0 || beta == 1));
    return call(c, (struct comm_call){.op = COMM_REDUCE_SCATTER, .dtype = d,
                                      .count = count, .in = in, .out = out,
                                      .beta = beta});
}

bool comm_reduce_wide(const struct comm *c, const void *in, float beta, float *out,
                      int64_t count)
{
    return call(c, (struct comm_call){.op = COMM_REDUCE_WIDE, .dtype = DTYPE_BF16,
                                      .count = count, .in = in, .out = out,
                                      .beta = beta});
}

bool comm_all_reduce(const struct comm *c, enum dtype d, void *data, int64_t count)
{
    REQUIRE(adds(d));
    return call(c, (struct comm_call){.op = COMM_ALL_REDUCE, .dtype = d, .count = count,
                                      .in = data, .out = data});
}

bool comm_max(const struct comm *c, enum dtype d, void *data, int64_t count)
{
    REQUIRE(adds(d));
    return call(c, (struct comm_call){.op = COMM_MAX, .dtype = d, .count = count,
                                      .in = data, .out = data});
}

bool comm_all_to_all(const struct comm *c, enum dtype d, const void *in, void *out,
                     int64_t count)
{
    return call(c, (struct comm_call){.op = COMM_ALL_TO_ALL, .dtype = d, .count = count,
                                      .in = in, .out = out});
}

bool comm_all_to_all_counts(const struct comm *c, enum dtype d, const void *in,
                            const int64_t *in_count, void *out,
                            const int64_t *out_count)
{
    for (int i = 0; i < c->size; i++)
        REQUIRE(in_count[i] >= 0 && out_count[i] >= 0);
    return call(c, (struct comm_call){.op = COMM_ALL_TO_ALL_COUNTS, .dtype = d,
                                      .in = in, .in_count = in_count, .out = out,
                                      .out_count = out_count});
}

bool comm_broadcast(const struct comm *c, enum dtype d, int root, void *data,
                    int64_t count)
{
    return call(c, (struct comm_call){.op = COMM_BROADCAST, .dtype = d, .count = count,
                                      .in = data, .out = data, .from = root});
}

bool comm_send(const struct comm *c, enum dtype d, int to, int64_t tag, const void *in,
               int64_t count)
{
    REQUIRE(to != c->rank);
    return call(c, (struct comm_call){.op = COMM_SEND, .dtype = d, .count = count,
                                      .in = in, .to = to, .tag = tag});
}

bool comm_recv(const struct comm *c, enum dtype d, int from, int64_t tag, void *out,
               int64_t count)
{
    REQUIRE(from != c->rank);
    return call(c, (struct comm_call){.op = COMM_RECV, .dtype = d, .count = count,
                                      .out = out, .from = from, .tag = tag});
}

bool comm_exchange(const struct comm *c, enum dtype d, int to, const void *in, int from,
                   void *out, int64_t count)
{
    return call(c, (struct comm_call){.op = COMM_EXCHANGE, .dtype = d, .count = count,
                                      .in = in, .out = out, .to = to, .from = from});
}

bool comm_barrier(const struct comm *c)
{
    return call(c, (struct comm_call){.op = COMM_BARRIER});
}

bool comm_check(const struct comm *c)
{
    return c->ops->check(c);
}

bool comm_agree(const struct comm *c, bool ok)
{
    struct failure why = {0};
    int64_t failed = ok ? 0 : c->size - c->rank;        /* the most: the first member */
    if (!ok)
        fail_take(&why);
    struct comm_call most = {.op = COMM_MAX, .dtype = DTYPE_I64, .count = 1,
                             .in = &failed, .out = &failed, .patient = true};
    if (!call(c, most) ||
        (failed && !comm_broadcast(c, DTYPE_U8, c->size - (int)failed, &why,
                                   sizeof why)))
        return ok ? fail_kind(FAULT_RANK) : fail_raise(&why);
    return !failed || fail_raise(&why);
}

const char *comm_call_text(const struct comm_call *what)
{
    static _Thread_local char text[4][96];
    static _Thread_local unsigned next;
    char *at = text[next++ % COUNT(text)];
    const char *name = comm_op_name[what->op], *type = dtype_name[what->dtype];
    long long count = what->count, tag = what->tag;
    int size = (int)sizeof text[0];
    switch (what->op) {
    case COMM_BARRIER:
        snprintf(at, (size_t)size, "%s", name);
        break;
    case COMM_ALL_TO_ALL_COUNTS:
        snprintf(at, (size_t)size, "%s %s", name, type);
        break;
    case COMM_BROADCAST:
        snprintf(at, (size_t)size, "%s %s x %lld from member %d", name, type, count,
                 what->from);
        break;
    case COMM_SEND: case COMM_RECV:
        snprintf(at, (size_t)size, "%s %s x %lld tag %lld", name, type, count, tag);
        break;
    default:
        snprintf(at, (size_t)size, "%s %s x %lld", name, type, count);
    }
    return at;
}
