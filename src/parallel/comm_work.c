/* comm_work.c - what a collective computes: one member's share, from everyone's calls.
 *
 * Stands alone because it knows nothing of threads; with one member it is all there is
 * to a call.  Each element of a sum is computed by one member, in group order. */
#include "parallel/local.h"

/* to[n] = sum or largest, in group order, of elements at.. of the members' inputs. */
#define REDUCE(name, type, load)                                                      \
    static void name(const struct comm_call *const *call, int size, int64_t at,      \
                     int64_t n, bool largest, type *to)                               \
    {                                                                                 \
        for (int r = 0; r < size; r++)                                                \
            for (int64_t i = 0; i < n; i++) {                                         \
                type x = load(call[r]->in, at + i);                                   \
                if (r == 0)                                                           \
                    to[i] = x;                                                        \
                else if (!largest)                                                    \
                    to[i] += x;                                                       \
                else if (!(x <= to[i]) && to[i] == to[i])       /* NaN wins */        \
                    to[i] = x;                                                        \
            }                                                                         \
    }
#define LOAD_F32(from, i) (((const float *)(from))[i])
#define LOAD_F64(from, i) (((const double *)(from))[i])
#define LOAD_I32(from, i) (((const int32_t *)(from))[i])
#define LOAD_I64(from, i) (((const int64_t *)(from))[i])
#define LOAD_BF16(from, i) bf16_to_f32(((const uint16_t *)(from))[i])
REDUCE(reduce_f32, float, LOAD_F32)
REDUCE(reduce_f64, double, LOAD_F64)
REDUCE(reduce_i32, int32_t, LOAD_I32)
REDUCE(reduce_i64, int64_t, LOAD_I64)
REDUCE(reduce_bf16, float, LOAD_BF16)

enum { BLOCK = 1024 };                  /* elements reduced at a time */
union block {
    float f32[BLOCK];
    double f64[BLOCK];
    int32_t i32[BLOCK];
    int64_t i64[BLOCK];
    uint16_t bf16[BLOCK];
};

/* sum += beta old */
#define BLEND(type, sum, old)                                                         \
    for (int64_t i = 0; beta != 0 && i < n; i++)                                      \
        (sum)[i] += (type)beta * ((const type *)(old))[i]

/* The members' elements [at, at + n), reduced, plus beta old, as their dtype has it. */
static void reduce_block(const struct comm_call *const *call, int size, int64_t at,
                         int64_t n, float beta, const void *old, union block *to)
{
    bool largest = call[0]->op == COMM_MAX;
    float sum[BLOCK];
    switch (call[0]->dtype) {
    case DTYPE_F32:
        reduce_f32(call, size, at, n, largest, to->f32);
        BLEND(float, to->f32, old);
        return;
    case DTYPE_F64:
        reduce_f64(call, size, at, n, largest, to->f64);
        BLEND(double, to->f64, old);
        return;
    case DTYPE_I32:
        reduce_i32(call, size, at, n, largest, to->i32);
        BLEND(int32_t, to->i32, old);
        return;
    case DTYPE_I64:
        reduce_i64(call, size, at, n, largest, to->i64);
        BLEND(int64_t, to->i64, old);
        return;
    case DTYPE_BF16:
        reduce_bf16(call, size, at, n, largest, sum);
        for (int64_t i = 0; i < n; i++) {
            float kept = beta != 0 ? beta * LOAD_BF16(old, i) : 0;
            to->bf16[i] = bf16_from_f32(sum[i] + kept);
        }
        return;
    default:
        BUG("comm: no sums of %s", dtype_name[call[0]->dtype]);
    }
}

static void move(void *to, const void *from, int64_t bytes)
{
    if (to != from && bytes)
        memcpy(to, from, (size_t)bytes);
}

static void work_reduce_scatter(const struct comm_call *const *call, int size, int rank)
{
    const struct comm_call *own = call[rank];
    int64_t width = dtype_bytes(own->dtype);
    union block block;
    for (int64_t i = 0; i < own->count; i += BLOCK) {
        int64_t n = MIN(BLOCK, own->count - i);
        char *out = (char *)own->out + i * width;
        reduce_block(call, size, rank * own->count + i, n, own->beta, out, &block);
        memcpy(out, &block, (size_t)(n * width));
    }
}

static void work_reduce_wide(const struct comm_call *const *call, int size, int rank)
{
    const struct comm_call *own = call[rank];
    float sum[BLOCK], beta = own->beta;
    for (int64_t i = 0; i < own->count; i += BLOCK) {
        int64_t n = MIN(BLOCK, own->count - i);
        float *out = (float *)own->out + i;
        reduce_bf16(call, size, rank * own->count + i, n, false, sum);
        for (int64_t k = 0; k < n; k++)
            out[k] = beta != 0 ? sum[k] + beta * out[k] : sum[k];
    }
}

/* Each member reduces one part and gives it to all, so all have the same bits. */
static void work_all_reduce(const struct comm_call *const *call, int size, int rank)
{
    const struct comm_call *own = call[rank];
    int64_t width = dtype_bytes(own->dtype);
    int64_t from = own->count * rank / size, to = own->count * (rank + 1) / size;
    union block block;
    for (int64_t i = from; i < to; i += BLOCK) {
        int64_t n = MIN(BLOCK, to - i);
        reduce_block(call, size, i, n, 0, NULL, &block);
        for (int r = 0; r < size; r++)
            memcpy((char *)call[r]->out + i * width, &block, (size_t)(n * width));
    }
}

static void work_counts(const struct comm_call *const *call, int size, int rank)
{
    int64_t width = dtype_bytes(call[rank]->dtype);
    char *out = call[rank]->out;
    for (int r = 0; r < size; r++) {
        const char *in = call[r]->in;
        for (int i = 0; i < rank; i++)
            in += call[r]->in_count[i] * width;
        int64_t bytes = call[r]->in_count[rank] * width;
        move(out, in, bytes);
        out += bytes;
    }
}

void comm_work(const struct comm_call *const *call, int size, int rank)
{
    const struct comm_call *own = call[rank];
    int64_t bytes = own->count * dtype_bytes(own->dtype);
    char *out = own->out;
    switch (own->op) {
    case COMM_ALL_GATHER:
        for (int r = 0; r < size; r++)
            move(out + r * bytes, call[r]->in, bytes);
        return;
    case COMM_REDUCE_SCATTER:
        work_reduce_scatter(call, size, rank);
        return;
    case COMM_REDUCE_WIDE:
        work_reduce_wide(call, size, rank);
        return;
    case COMM_ALL_REDUCE: case COMM_MAX:
        work_all_reduce(call, size, rank);
        return;
    case COMM_ALL_TO_ALL:
        for (int r = 0; r < size; r++)
            move(out + r * bytes, (const char *)call[r]->in + rank * bytes, bytes);
        return;
    case COMM_ALL_TO_ALL_COUNTS:
        work_counts(call, size, rank);
        return;
    case COMM_BROADCAST:
        move(out, call[own->from]->in, bytes);
        return;
    case COMM_EXCHANGE:                 /* with oneself */
        move(out, own->in, bytes);
        return;
    case COMM_BARRIER: case COMM_SEND: case COMM_RECV: case COMM_OPS:
        return;
    }
}

/* ---- a group of one ---- */

static bool self_call(const struct comm *c, const struct comm_call *call)
{
    (void)c;
    REQUIRE(call->op != COMM_ALL_TO_ALL_COUNTS ||
            call->in_count[0] == call->out_count[0]);
    comm_work(&call, 1, 0);
    return true;
}

static bool self_check(const struct comm *c)
{
    (void)c;
    return true;
}

static const struct comm_ops comm_ops_self = {"self", self_call, self_check};

struct comm comm_self(const char *name, const int *rank)
{
    return (struct comm){&comm_ops_self, name, 0, 1, rank, NULL};
}

