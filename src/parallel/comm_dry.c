/* comm_dry.c - collectives that move nothing and count what would have moved. */
#include "parallel/comm.h"

static int node_of(int rank, int node)
{
    return node ? rank / node : 0;
}

struct link_bytes comm_bytes(const struct comm_call *call, const int *member, int size,
                             int rank, int node)
{
    int home = node_of(member[rank], node), here = 0;
    for (int i = 0; i < size; i++)
        here += node_of(member[i], node) == home;
    double n = size, k = here;
    double width = (double)dtype_bytes(call->dtype);
    double piece = width * (double)call->count;
    struct link_bytes b = {0, 0};
    switch (call->op) {
    case COMM_ALL_GATHER: case COMM_REDUCE_SCATTER: case COMM_REDUCE_WIDE:
        b.across = (n - k) / k * piece;
        b.inside = (n - 1) * piece - b.across;
        break;
    case COMM_ALL_REDUCE: case COMM_MAX:        /* a reduce_scatter and a gather */
        b.across = 2 * (n - k) / k * piece / n;
        b.inside = 2 * (n - 1) * piece / n - b.across;
        break;
    case COMM_ALL_TO_ALL:
        b.across = (n - k) * piece;
        b.inside = (k - 1) * piece;
        break;
    case COMM_ALL_TO_ALL_COUNTS:
        for (int i = 0; i < size; i++) {
            double bytes = i == rank ? 0 : width * (double)call->out_count[i];
            *(node_of(member[i], node) == home ? &b.inside : &b.across) += bytes;
        }
        break;
    case COMM_BROADCAST:
        if (call->from == rank)
            break;
        if (node_of(member[call->from], node) != home)
            b.across = piece / k;
        b.inside = piece - b.across;
        break;
    case COMM_SEND: case COMM_EXCHANGE:
        if (call->to != rank)
            *(node_of(member[call->to], node) == home ? &b.inside : &b.across) = piece;
        break;
    case COMM_RECV: case COMM_BARRIER: case COMM_OPS:
        break;
    }
    return b;
}

static bool dry_call(const struct comm *c, const struct comm_call *call)
{
    struct traffic *t = c->group;
    struct link_bytes b = comm_bytes(call, c->member, c->size, c->rank, t->node);
    t->calls[call->op]++;
    t->bytes[call->op].inside += b.inside;
    t->bytes[call->op].across += b.across;
    return true;
}

static bool dry_check(const struct comm *c)
{
    (void)c;
    return true;                        /* there is nobody to lose */
}

static const struct comm_ops comm_ops_dry = {"dry", dry_call, dry_check};

struct comm comm_dry(struct traffic *t, const char *name, const int *member, int size,
                     int rank)
{
    REQUIRE(rank >= 0 && rank < size);
    return (struct comm){&comm_ops_dry, name, rank, size, member, t};
}
