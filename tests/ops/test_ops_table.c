/* test_ops_table.c - the tables as wholes: complete; the same bits whatever the number
 * of threads and however often; what the CPU computes is what dry allows; broken
 * contracts are caught by name; work is counted. */
#include "ops/ops_test.h"

#include <sys/wait.h>
#include <unistd.h>

static void tables_are_complete(void **state)
{
    (void)state;
    static const struct ops *const table[] = {&ops_cpu, &ops_dry};
    for (int i = 0; i < COUNT(table); i++) {
        assert_non_null(table[i]->name);
#define PRESENT(op) assert_true(table[i]->op != NULL);
        EACH_OP(PRESENT)
    }
#define ONE(op) +1
    assert_int_equal(sizeof(struct ops), (1 + (0 EACH_OP(ONE))) * sizeof(void *));
}

/* Tensors that every op reads or writes, of every size more than one block. */
enum {
    T = 301, D = 804, N = 1100, H = 3, G = 1, K = D / H, E = 5, A = 2, R = T * A,
    F = 810, V = 1300, SIDE = 9, MOST = 100
};

struct world {
    struct tensor out[MOST];            /* everything that is computed */
    int count;
};

static struct tensor result(struct world *w, struct tensor t)
{
    assert_true(w->count < MOST);
    memset(t.data, 0x7f, (size_t)(tensor_count(t) * dtype_bytes(t.dtype)));
    return w->out[w->count++] = t;
}

static enum dtype type;                 /* of all that need not be f32 */

static struct tensor typed_room(int64_t rows, int64_t columns)
{
    struct tensor t = floats(rows, columns);
    t.dtype = type;
    return t;
}

static struct tensor random_stat(int64_t rows, int64_t columns, double size)
{
    struct tensor t = floats(rows, columns);
    uint64_t key = random_key(3, "world");
    for (int64_t i = 0; i < rows * columns; i++)
        ((float *)t.data)[i] = (float)(size * random_normal(key, (uint64_t)i));
    return t;
}

static struct tensor random_floats(int64_t rows, int64_t columns, double size)
{
    struct tensor f32 = random_stat(rows, columns, size);
    struct tensor t = typed_room(rows, columns);
    dtype_from_f32(type, f32.data, t.data, rows * columns);
    return t;
}

static struct tensor random_vector(int64_t n)
{
    return tensor_1d(random_floats(1, n, 1).data, type, n);
}

static struct tensor experts(int64_t rows, int64_t columns)
{
    return tensor_3d(random_floats(E, rows * columns, 0.3).data, type, E, rows,
                     columns);
}

#define OUT(rows, columns) result(w, typed_room(rows, columns))
#define STAT(rows, columns) result(w, floats(rows, columns))
#define LIST_OUT(n) result(w, ints(n, 0))

static void run_layers(const struct ops *ops, struct stream *s, struct world *w)
{
    struct tensor none = tensor_none(), x = random_floats(T, D, 1);
    struct tensor big = random_floats(N, D, 0.2), y = OUT(T, N), b = random_vector(N);
    ops->linear(s, x, big, b, 0, y);
    ops->linear_back(s, y, big, 0, OUT(T, D));
    ops->linear_weight(s, y, x, 0, OUT(N, D), result(w, vector(N)));

    struct tensor norm = OUT(T, D), r = STAT(T, H), g = random_vector(K);
    struct tensor r1 = STAT(T, 1);
    ops->rmsnorm(s, x, g, 1e-6f, norm, r);
    ops->rmsnorm_back(s, x, g, r, norm, 0, OUT(T, D));
    ops->rmsnorm_weight(s, x, r, norm, 0, result(w, vector(K)));
    struct tensor gain = random_vector(D), m = STAT(T, 1), layer = OUT(T, D);
    ops->layernorm(s, x, gain, gain, 1e-6f, layer, m, r1);
    ops->layernorm_back(s, x, gain, m, r1, layer, 0, OUT(T, D));
    ops->layernorm_weight(s, x, m, r1, layer, 0, result(w, vector(D)),
                          result(w, vector(D)));

    struct tensor place = ints(T, 3), c = STAT(T, K / 2), si = STAT(T, K / 2);
    for (int i = 0; i < T * 3; i++)
        ((int32_t *)place.data)[i] = i / 2;
    struct rope_shape turns = {1e4, K, false, {K / 2 - 80, 40, 40}};
    ops->rope_table(s, place, turns, c, si);
    struct tensor q = OUT(T, H * K), kv = random_floats(T, 2 * G * K, 1);
    ops->rope(s, x, c, si, 1, 0, q);
    struct tensor k = tensor_columns(kv, 0, G * K),
                  v = tensor_columns(kv, G * K, G * K);
    struct tensor bound = list(4, (int32_t[]){0, 7, 290, 290}), o = OUT(T, H * K);
    struct tensor lse = STAT(T, H);
    ops->attention(s, q, k, v, bound, H, G, true, 0.25f, o, lse);
    ops->attention_back(s, q, k, v, bound, o, lse, x, H, G, true, 0.25f, OUT(T, H * K),
                        OUT(T, G * K), OUT(T, G * K));

    struct tensor some = tensor_rows(q, 100, 100), early = tensor_rows(k, 0, 150);
    struct tensor part = OUT(100, H * K), part_lse = STAT(100, H);
    ops->attention_part(s, some, early, early, bound, 100, 0, H, G, true, 0.25f, 0,
                        part, part_lse);
    ops->attention_part_back(s, some, early, early, bound, 100, 0, part, part_lse,
                             tensor_rows(x, 0, 100), H, G, true, 0.25f, 0,
                             OUT(100, H * K), 0, OUT(150, G * K), OUT(150, G * K));

    struct tensor from = list(3, (int32_t[]){0, 40, 7}), to = list(3, (int32_t[]){
        290, -1, 7}), few = tensor_rows(q, 0, 3);
    ops->attention_rows(s, few, k, v, from, to, H, G, 0.25f, OUT(3, H * K));
    ops->put(s, to, few, tensor_columns(OUT(T, 2 * H * K), H * K, H * K));

    struct tensor gu = random_floats(T, 2 * F, 1), act = OUT(T, F), sum = OUT(T, D);
    ops->swiglu(s, gu, act);
    ops->swiglu_back(s, gu, act, 0, OUT(T, 2 * F));
    ops->gelu(s, x, true, OUT(T, D));
    ops->gelu_back(s, x, false, x, 0, OUT(T, D));
    ops->gate(s, x, norm, m, OUT(T, D));
    ops->gate_back(s, norm, m, x, 0, OUT(T, D), 0, STAT(T, 1));
    ops->add(s, x, x, sum);
    ops->axpby(s, 0.3f, x, 0.7f, sum);
    ops->bias(s, x, gain, OUT(T, D));
    ops->bias_weight(s, x, 0, result(w, vector(D)));
    ops->copy(s, x, OUT(T, D));

    struct tensor id = ints(T, 0), grid = ints(T, 4), cells = OUT(SIDE * SIDE, D);
    for (int t = 0; t < T; t++) {
        ((int32_t *)id.data)[t] = t % 7 ? (t * 31) % V : -1;
        memcpy((int32_t *)grid.data + 4 * t, (int32_t[]){t / 20, t % 20, 16, 20}, 16);
    }
    struct tensor table = random_floats(V, D, 0.2), embedded = OUT(T, D);
    struct tensor positions = random_floats(SIDE * SIDE, D, 1);
    ops->embed(s, id, table, embedded);
    ops->embed_weight(s, id, x, 0, OUT(V, D));
    ops->take(s, id, table, 0, OUT(T, D));
    ops->interpolate(s, x, grid, positions, OUT(T, D));
    ops->interpolate_weight(s, x, grid, 0, cells);

    int64_t bytes = head_work(T, D, V);
    struct tensor work = tensor_1d(NEW(&memory, char, bytes), DTYPE_U8, bytes);
    struct tensor losses = STAT(T, 1);
    ops->head_loss(s, x, table, id, number(0.01f), work, STAT(1, 1), losses);
    ops->head_loss_back(s, x, table, id, number(0.01f), losses, none, work, 0,
                        OUT(T, D), 0, OUT(V, D));
    struct tensor half = tensor_rows(table, V / 2, V / 2), parts = STAT(2 * T, 2);
    struct tensor dparts = STAT(2 * T, 2), two = tensor_rows(parts, T, T);
    ops->head_part(s, x, table, id, 0, work, tensor_rows(parts, 0, T));
    ops->head_part(s, x, half, id, V / 2, work, two);
    ops->head_sum(s, parts, id, number(0.01f), STAT(1, 1));
    ops->head_sum_back(s, parts, id, number(0.01f), none, dparts);
    ops->head_part_back(s, x, half, id, V / 2, two, tensor_rows(dparts, T, T), work, 0,
                        OUT(T, D), 0, OUT(V / 2, D));
    struct places own = {{7, 90}, {30, 50}};
    ops->locate(s, id, own, LIST_OUT(T));
    ops->live_places(s, list(1, (int32_t[]){100}), own, LIST_OUT(1));
    ops->head_best(s, x, table, id, work, LIST_OUT(T), STAT(T, 1));

    struct tensor flat = tensor_1d(x.data, type, T * D);
    double *square = NEW(&memory, double, 1);
    ops->square_sum(s, table, 0, result(w, tensor_1d(square, DTYPE_F64, 1)));
    struct tensor weights = vector(T * D), first = vector(T * D),
                  second = vector(T * D);
    const struct adamw step = {.rate = 0.1f, .beta1 = 0.9f, .beta2 = 0.99f,
                               .epsilon = 1e-8f, .decay = 0.1f, .correct1 = 0.1f,
                               .correct2 = 0.01f, .scale = 1};
    ops->adamw(s, flat, step, weights, first, second);
    w->out[w->count++] = weights;
}

static void run_experts(const struct ops *ops, struct stream *s, struct world *w)
{
    struct tensor none = tensor_none(), z = random_stat(T, E, 1), x = OUT(R, D);
    struct tensor pi = STAT(T, E), index = result(w, ints(T, A)), weight = STAT(T, A);
    struct tensor live = list(1, (int32_t[]){T - 9}), place = result(w, ints(T, A));
    struct tensor source = LIST_OUT(R), slot = LIST_OUT(R), bound = LIST_OUT(E + 1);
    ops->router(s, z, none, live, pi, index, weight);
    struct tensor chosen = STAT(1, E), sum = STAT(1, E), z2 = STAT(1, 1);
    struct tensor rows = STAT(1, 1);
    ops->router_sums(s, z, pi, index, live, none, none, none, none, chosen, sum, z2,
                     rows);
    struct tensor dsum = STAT(1, E), dz2 = STAT(1, 1), loss = STAT(1, 1);
    ops->router_loss(s, chosen, sum, z2, rows, number(1), 0.01f, 0.001f, loss,
                     STAT(1, 1), STAT(1, 1));
    ops->router_loss_back(s, chosen, rows, number(1), 0.01f, 0.001f, dsum, dz2);
    ops->sort_rows(s, index, E, place, source, slot, bound);
    ops->sort_own(s, index, 1, none, result(w, ints(T, A)), LIST_OUT(R), LIST_OUT(R),
                  LIST_OUT(3), STAT(1, 1));
    struct tensor bounds = ints(2, 5);  /* two ranks with two experts each */
    memcpy(bounds.data, (int32_t[]){0, 9, 9, 30, 41, 0, 0, 7, 7, 8}, 40);
    ops->meet_rows(s, bounds, 1, number(1), LIST_OUT(3), LIST_OUT(3), LIST_OUT(60),
                   LIST_OUT(60), LIST_OUT(3), STAT(1, 1));
    ops->clear_rows(s, list(2, (int32_t[]){0, 1}), result(w, floats(1, D)));
    struct tensor tokens = random_floats(T, D, 1), up = experts(F, D), y = OUT(R, F);
    ops->take(s, source, tokens, 0, x);
    ops->grouped(s, x, up, bound, y);
    struct tensor dx = OUT(R, D), dweight = STAT(T, A), out = OUT(T, F), dy = OUT(R, F);
    ops->combine(s, y, place, weight, out);
    ops->combine_back(s, y, place, weight, source, slot, out, dy, dweight);
    ops->grouped_back(s, dy, up, bound, 0, dx);
    struct tensor dw = experts(F, D);
    ops->grouped_weight(s, dy, x, bound, 0, result(w, dw));
    ops->gather_sum(s, place, dx, 0, OUT(T, D));
    ops->router_back(s, z, pi, index, weight, live, dweight, dsum, dz2, STAT(T, E));
}

static struct world run_all(const struct ops *ops, struct stream *s)
{
    struct world w = {.count = 0};
    run_layers(ops, s, &w);
    run_experts(ops, s, &w);
    return w;
}

static void threads_change_no_bit(void **state)
{
    (void)state;
    struct world first = {.count = 0};
    for (int threads = 1; threads <= 3; threads++)
        for (int again = 0; again < 2; again++) {
            struct stream s = {.team = team_make(threads)};
            struct world w = run_all(cpu, &s);
            team_free(s.team);
            if (first.count == 0)
                first = w;
            assert_int_equal(w.count, first.count);
            for (int i = 0; i < w.count; i++) {
                struct tensor t = w.out[i];
                size_t bytes = (size_t)(tensor_count(t) * dtype_bytes(t.dtype));
                if (memcmp(t.data, first.out[i].data, bytes) != 0)
                    fail_msg("result %d %s differs with %d threads", i, tensor_text(t),
                             threads);
            }
        }
}

/* What every op makes of bf16 is near what it makes of f32, in the type it is to have;
 * choices of places are the same, but for the best word, which may be another. */
static void bf16_is_f32_rounded(void **state)
{
    (void)state;
    struct world w[2];
    for (int k = 0; k < 2; k++) {
        type = k ? DTYPE_BF16 : DTYPE_F32;
        w[k] = run_all(cpu, &stream);
        run_all(&ops_dry, &(struct stream){0});
    }
    type = DTYPE_F32;
    assert_int_equal(w[0].count, w[1].count);
    int narrow = 0;
    for (int i = 0; i < w[0].count; i++) {
        struct tensor want = w[0].out[i], is = w[1].out[i];
        int64_t n = tensor_count(want);
        double far = 0, size = 0;
        narrow += is.dtype == DTYPE_BF16;
        if (want.dtype != DTYPE_F32)
            continue;
        float *x = NEW(&memory, float, n);
        dtype_to_f32(is.dtype, is.data, x, n);
        for (int64_t k = 0; k < n; k++) {
            double d = (double)x[k] - (double)((const float *)want.data)[k];
            far += d * d;
            size += (double)((const float *)want.data)[k] *
                    (double)((const float *)want.data)[k];
        }
        if (!(far <= 4e-4 * size))
            fail_msg("result %d %s is off by %g", i, tensor_text(is),
                     sqrt(far / size));
    }
    assert_true(narrow > 40);           /* or everything was f32 */
}

static void dry_allows_and_counts(void **state)
{
    (void)state;
    struct work work = {0};
    run_all(&ops_dry, &(struct stream){.work = &work});
    double pairs = T * (T + 1) / 2;
    double some = 50 * (101 + 150) / 2 + 50 * 150;      /* min(150, 100 + i + 1) */
    double want = 3 * 2.0 * T * N * D + 14 * (pairs + some) * H * K +
                  4.0 * 3 * T * H * K +
                  (1 + 3 + 1) * 2.0 * T * V * D + (2 + 1 + 3) * 1.0 * T * V * D +
                  3 * 2.0 * R * F * D;
    assert_true(work.flops == want);
    assert_true(work.bytes > 0);
    work = (struct work){0};
    struct stream s = {.work = &work};
    struct tensor x = tensor_2d(NULL, DTYPE_BF16, 8, 16),
                  w = tensor_2d(NULL, DTYPE_BF16, 4, 16);
    struct tensor y = tensor_2d(NULL, DTYPE_BF16, 8, 4);
    ops_dry.linear(&s, x, w, tensor_none(), 0, y);
    assert_true(work.flops == 2 * 8 * 16 * 4 && work.bytes == 2 * (128 + 64 + 32));
    ops_dry.linear(&s, x, w, tensor_none(), 1, y);      /* reads y too */
    assert_true(work.bytes == 2 * 2 * (128 + 64 + 32) + 2 * 32);
    ops_dry.linear(&(struct stream){0}, x, w, tensor_none(), 1, y); /* nobody counts */
}

/* Each must end the program with the code of a bug and name the op. */
static void broken(int which)
{
    struct stream s = {0};
    struct tensor none = tensor_none(), a = floats(8, 6), b = floats(8, 5),
                  i = ints(8, 0);
    struct tensor c = floats(1, 1), v = vector(6),
                  half = tensor_2d(a.data, DTYPE_BF16, 8, 6);
    switch (which) {
    case 0: ops_dry.linear(&s, a, b, none, 0, floats(8, 8)); break;
    case 1: ops_dry.linear(&s, a, floats(3, 6), v, 0, floats(8, 3)); break;
    case 2:
        ops_dry.linear(&s, a, floats(6, 6), v, 1, a);
        break; /* bias and beta */
    case 3: ops_dry.rmsnorm(&s, a, v, 0, a, floats(8, 2)); break;
    case 4: ops_dry.add(&s, a, b, a); break;
    case 5:
        ops_dry.embed(&s, a, a, a);
        break; /* ids are floats */
    case 6: ops_dry.swiglu(&s, a, a); break;
    case 7: ops_dry.attention(&s, a, a, a, i, 4, 2, true, 1, a, floats(8, 4)); break;
    case 8: ops_dry.sort_rows(&s, ints(8, 2), 3, ints(8, 2), i, i, ints(4, 0)); break;
    case 9: ops_dry.head_loss(&s, a, floats(9, 6), i, c, i, c, floats(8, 1)); break;
    case 10:
        ops_dry.square_sum(&s, a, 0, c);
        break; /* out is not f64 */
    case 11: ops_dry.gelu(&s, tensor_columns(a, 0, 3), true, floats(8, 3)); break;
    case 12: ops_dry.take(&s, ints(7, 0), b, 0, b); break;
    case 13: ops_dry.copy(&s, a, ints(8, 6)); break;
    case 14: ops_dry.bias(&s, a, vector(5), a); break;
    case 15: ops_dry.locate(&s, i, (struct places){{4, 2}, {3, 1}}, i); break;
    case 16: ops_dry.head_sum(&s, floats(12, 2), i, c, c); break;
    case 17: ops_dry.head_part(&s, a, floats(9, 6), i, 0, i, floats(8, 2)); break;
    case 18:
        ops_dry.attention_part(&s, a, b, b, i, 0, 0, 2, 1, true, 1, 0, a, floats(8, 2));
        break;
    case 19: ops_dry.gate(&s, a, a, floats(8, 6), a); break;
    case 20: ops_dry.put(&s, i, a, b); break;
    case 21: ops_dry.attention_rows(&s, a, a, a, i, ints(7, 0), 2, 2, 1, a); break;
    case 22: ops_dry.add(&s, a, half, half); break;
    case 23:
        ops_dry.linear(&s, half, floats(6, 6), none, 0, half);
        break; /* an f32 weight, a result that is not */
    case 24: ops_dry.rmsnorm(&s, half, v, 0, half, floats(8, 1)); break;
    case 25: ops_dry.head_loss(&s, half, a, i, c, i, c, floats(8, 1)); break;
    default: ops_dry.interpolate(&s, a, ints(8, 4), floats(7, 6), a); break;
    }
}

static void broken_contracts_are_bugs(void **state)
{
    (void)state;
    static const char *const name[] = {
        "linear", "linear", "linear", "rmsnorm", "add", "embed", "swiglu", "attention",
        "sort_rows", "head_loss", "square_sum", "gelu", "take", "copy", "bias",
        "locate", "head_sum", "head_part", "attention_part", "gate",
        "put", "attention_rows", "add", "linear", "rmsnorm", "head_loss",
        "interpolate"};
    for (int i = 0; i < COUNT(name); i++) {
        int end[2], status;
        assert_int_equal(pipe(end), 0);
        pid_t child = fork();
        if (child == 0) {
            dup2(end[1], STDERR_FILENO);
            broken(i);
            _exit(0);
        }
        close(end[1]);
        char text[4096];
        size_t size = 0;
        ssize_t n;
        while ((n = read(end[0], text + size, sizeof text - 1 - size)) > 0)
            size += (size_t)n;
        text[size] = '\0';
        close(end[0]);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != FAULT_BUG)
            fail_msg("case %d (%s) was allowed", i, name[i]);
        if (!strstr(text, name[i]) || !strstr(text, "does not hold"))
            fail_msg("case %d says: %s", i, text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_are_complete),
        cmocka_unit_test(threads_change_no_bit),
        cmocka_unit_test(bf16_is_f32_rounded),
        cmocka_unit_test(dry_allows_and_counts),
        cmocka_unit_test(broken_contracts_are_bugs),
    };
    return cmocka_run_group_tests(tests, test_begin, test_end);
}
