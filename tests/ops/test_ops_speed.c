/* test_ops_speed.c - how fast the CPU's ops are; run it alone to read the figures.  As
 * a test it only asks that shared products do not fall far behind one plain product. */
#include "ops/ops_test.h"

#include "base/clock.h"

#include <cblas.h>

/* The best of several times, in seconds. */
#define TIME(seconds, CALL)                                                            \
    do {                                                                               \
        seconds = 1e9;                                                                 \
        for (int pass = 0; pass < 5; pass++) {                                         \
            double begin = clock_seconds();                                            \
            for (int i = 0; i < 4; i++)                                                \
                CALL;                                                                  \
            seconds = fmin(seconds, (clock_seconds() - begin) / 4);                    \
        }                                                                              \
    } while (0)

#define REPORT(name, flops, CALL)                                                      \
    do {                                                                               \
        double seconds;                                                                \
        TIME(seconds, CALL);                                                           \
        print_message("%-34s %9.1f us %8.1f GFLOP/s\n", name, seconds * 1e6,           \
                      (flops) / seconds / 1e9);                                        \
    } while (0)

static struct tensor random_2d(int64_t rows, int64_t columns)
{
    struct tensor t = floats(rows, columns);
    fill(t, 0.5);
    return t;
}

static double products(int64_t T, int64_t D, int64_t N)
{
    struct tensor x = random_2d(T, D), w = random_2d(N, D), y = random_2d(T, N);
    struct tensor none = tensor_none();
    double flops = 2.0 * (double)(T * D * N), plain, shared;
    print_message("linear %lld x %lld x %lld\n", (long long)T, (long long)D,
                  (long long)N);
    TIME(plain,
         cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)T, (int)N, (int)D, 1,
                     x.data, (int)D, w.data, (int)D, 0, y.data, (int)N));
    print_message("%-34s %9.1f us %8.1f GFLOP/s\n", "  one plain product", plain * 1e6,
                  flops / plain / 1e9);
    TIME(shared, cpu->linear(&stream, x, w, none, 0, y));
    REPORT("  forward", flops, cpu->linear(&stream, x, w, none, 0, y));
    REPORT("  back", flops, cpu->linear_back(&stream, y, w, 0, x));
    REPORT("  weight", flops, cpu->linear_weight(&stream, y, x, 0, w, none));
    return shared / plain;
}

static void attention_at(int32_t T, int H, int G, int K, int segments, bool causal)
{
    struct tensor q = random_2d(T, H * K), k = random_2d(T, G * K),
                  v = random_2d(T, G * K);
    struct tensor o = floats(T, H * K), lse = floats(T, H),
                  bound = ints(segments + 1, 0);
    struct tensor dq = floats(T, H * K), dk = floats(T, G * K), dv = floats(T, G * K);
    for (int i = 0; i <= segments; i++)
        ((int32_t *)bound.data)[i] = T * i / segments;
    double flops = 4.0 * H * K * T * (double)T / segments / (causal ? 2 : 1);
    print_message("attention %d tokens, %d segments, %d/%d heads of %d, %s\n", T,
                  segments, H, G, K, causal ? "causal" : "full");
    REPORT("  forward", flops,
           cpu->attention(&stream, q, k, v, bound, H, G, causal, 0.125f, o, lse));
    REPORT("  back", 2.5 * flops,
           cpu->attention_back(&stream, q, k, v, bound, o, lse, q, H, G, causal, 0.125f,
                               dq, dk, dv));
}

/* Few rows with matrices that no cache holds: against the bytes read. */
static void few_at(int64_t T, int64_t D, int64_t N)
{
    enum { COPIES = 16 };
    struct tensor x = random_2d(T, D), w = random_2d(COPIES * N, D);
    struct tensor y = random_2d(T, N), none = tensor_none();
    double seconds, bytes = 4.0 * (double)(N * D);
    static int next;
    TIME(seconds, cpu->linear(&stream, x, tensor_rows(w, next++ % COPIES * N, N), none,
                              0, y));
    print_message("linear of %lld rows x %lld x %lld %13.1f us %8.1f GB/s\n",
                  (long long)T, (long long)D, (long long)N, seconds * 1e6,
                  bytes / seconds / 1e9);
}

/* One query each of so many answers, whose caches have n rows. */
static void answers_at(int32_t answers, int32_t n, int H, int G, int K)
{
    struct tensor kv = random_2d((int64_t)answers * n, 2 * G * K);
    struct tensor q = random_2d(answers, H * K), o = floats(answers, H * K);
    struct tensor first = ints(answers, 0), last = ints(answers, 0);
    for (int32_t i = 0; i < answers; i++) {
        ((int32_t *)first.data)[i] = i * n;
        ((int32_t *)last.data)[i] = i * n + n - 1;
    }
    print_message("attention of %d answers over %d rows, %d/%d heads of %d\n", answers,
                  n, H, G, K);
    REPORT("  a step", 4.0 * H * K * answers * n,
           cpu->attention_rows(&stream, q, tensor_columns(kv, 0, G * K),
                               tensor_columns(kv, G * K, G * K), first, last, H, G,
                               0.125f, o));
    REPORT("  put", 0,
           cpu->put(&stream, last, tensor_rows(kv, 0, answers), kv));
}

static void experts_at(int64_t T, int64_t D, int64_t F, int64_t E)
{
    int64_t R = 2 * T;
    struct tensor x = random_2d(R, D), y = random_2d(R, 2 * F), bound = ints(E + 1, 0);
    struct tensor w = tensor_3d(random_2d(E * 2 * F, D).data, DTYPE_F32, E, 2 * F, D);
    for (int64_t e = 0; e <= E; e++)
        ((int32_t *)bound.data)[e] = (int32_t)(R * e / E);
    double flops = 4.0 * (double)(R * D * F);
    print_message("experts %lld rows, %lld x [%lld, %lld]\n", (long long)R,
                  (long long)E, (long long)(2 * F), (long long)D);
    REPORT("  forward", flops, cpu->grouped(&stream, x, w, bound, y));
    REPORT("  back", flops, cpu->grouped_back(&stream, y, w, bound, 0, x));
    REPORT("  weight", flops, cpu->grouped_weight(&stream, y, x, bound, 0, w));
}

static void head_at(int64_t T, int64_t D, int64_t V)
{
    struct tensor x = random_2d(T, D), w = random_2d(V, D), target = ints(T, 0);
    struct tensor lse = floats(T, 1), dx = floats(T, D), dw = floats(V, D);
    struct tensor work = tensor_1d(arena_push(&memory, (size_t)head_work(T, D, V)),
                                   DTYPE_U8, head_work(T, D, V));
    struct tensor one = number(1), loss = number(0), none = tensor_none();
    double flops = 2.0 * (double)(T * D * V);
    print_message("head %lld x %lld x %lld\n", (long long)T, (long long)D,
                  (long long)V);
    REPORT("  forward", flops,
           cpu->head_loss(&stream, x, w, target, one, work, loss, lse));
    REPORT(
        "  back (3 products)", 3 * flops,
        cpu->head_loss_back(&stream, x, w, target, one, lse, none, work, 0, dx, 0, dw));
}

static void rows_at(int64_t T, int64_t D)
{
    struct tensor x = random_2d(T, D), y = floats(T, D), r = floats(T, 1),
                  w = vector(D);
    struct tensor gu = random_2d(T, 2 * D), dgu = floats(T, 2 * D), m = floats(T, 1);
    double bytes = 8.0 * (double)(T * D);
    fill(w, 1);
    print_message("rows %lld x %lld (GB/s of one input and one output, not GFLOP/s)\n",
                  (long long)T, (long long)D);
    REPORT("  rmsnorm", bytes, cpu->rmsnorm(&stream, x, w, 1e-6f, y, r));
    REPORT("  rmsnorm_back", bytes, cpu->rmsnorm_back(&stream, x, w, r, y, 0, x));
    REPORT("  rmsnorm_weight", bytes, cpu->rmsnorm_weight(&stream, x, r, y, 0, w));
    REPORT("  layernorm", bytes, cpu->layernorm(&stream, x, w, w, 1e-6f, y, m, r));
    REPORT("  layernorm_back", bytes,
           cpu->layernorm_back(&stream, x, w, m, r, y, 0, x));
    REPORT("  swiglu", bytes, cpu->swiglu(&stream, gu, y));
    REPORT("  swiglu_back", bytes, cpu->swiglu_back(&stream, gu, y, 0, dgu));
    REPORT("  gelu tanh", bytes, cpu->gelu(&stream, x, false, y));
    REPORT("  gelu_back tanh", bytes, cpu->gelu_back(&stream, x, false, y, 0, y));
    REPORT("  gelu exact", bytes, cpu->gelu(&stream, x, true, y));
    REPORT("  gelu_back exact", bytes, cpu->gelu_back(&stream, x, true, y, 0, y));
    REPORT("  gate", bytes, cpu->gate(&stream, x, x, m, y));
    REPORT("  gate_back", bytes, cpu->gate_back(&stream, x, m, x, 0, y, 0, r));
    REPORT("  add", bytes, cpu->add(&stream, x, x, y));
    struct tensor c = random_2d(T, 32), g = vector(4000000), weights = vector(4000000);
    struct tensor mean = vector(4000000), root = vector(4000000);
    REPORT("  rope (heads of 64)", bytes, cpu->rope(&stream, x, c, c, 1, 0, y));
    struct tensor z = random_2d(T, 8), pi = floats(T, 8), weight = floats(T, 2);
    struct tensor index = ints(T, 2), live = list(1, (int32_t[]){(int32_t)T});
    REPORT("  router, 8 experts", 64.0 * (double)T,
           cpu->router(&stream, z, tensor_none(), live, pi, index, weight));
    double sum;
    struct tensor square = tensor_1d(&sum, DTYPE_F64, 1);
    struct adamw step = {0.1f, 0.9f, 0.99f, 1e-8f, 0.1f, 0.1f, 0.01f, 1, 0, 0};
    REPORT("  adamw, 4M", 16e6, cpu->adamw(&stream, g, step, weights, mean, root));
    REPORT("  square_sum, 4M", 16e6, cpu->square_sum(&stream, g, 0, square));
}

static void products_are_fast(void **state)
{
    (void)state;
    double worst = fmax(products(1024, 256, 768), products(1024, 192, 192));
    products(256, 256, 256);
    attention_at(1024, 4, 4, 64, 1, true);
    attention_at(1024, 4, 2, 64, 8, true);
    attention_at(1024, 4, 4, 48, 8, false);
    few_at(1, 1024, 1024);
    few_at(8, 1024, 1024);
    answers_at(1, 1024, 16, 4, 64);
    answers_at(8, 1024, 16, 4, 64);
    experts_at(1024, 256, 192, 8);
    head_at(512, 256, 8192);
    rows_at(1024, 256);
    if (worst > 3)                      /* 0.5 where two cores are free */
        fail_msg("linear takes %.2f times as long as one plain product", worst);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(products_are_fast)};
    return cmocka_run_group_tests(tests, test_begin, test_end);
}
