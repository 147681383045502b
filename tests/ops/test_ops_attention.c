/* test_ops_attention.c - attention: the full softmax in double, gradients by central
 * differences, shared key heads, several, empty and missing segments, tiles' edges. */
#include "ops/ops_test.h"

struct size {
    int64_t T, H, G, K, S;
    const int32_t *bound;
    bool causal;
    double scale;
};

/* in: q, k, v.  out: o, then lse. */
static void attention_law(const void *shape, double *const in[], double *out)
{
    const struct size *z = shape;
    double *lse = out + z->T * z->H * z->K;
    memset(out, 0, (size_t)(z->T * z->H * (z->K + 1)) * sizeof *out);
    for (int64_t s = 0; s < z->S; s++)
        for (int64_t i = z->bound[s]; i < z->bound[s + 1]; i++)
            for (int64_t h = 0; h < z->H; h++) {
                int64_t g = h / (z->H / z->G),
                        end = z->causal ? i + 1 : z->bound[s + 1];
                double score[600], most = -INFINITY, sum = 0;
                for (int64_t j = z->bound[s]; j < end; j++) {
                    double dot = 0;
                    for (int64_t c = 0; c < z->K; c++)
                        dot += in[0][(i * z->H + h) * z->K + c] *
                               in[1][(j * z->G + g) * z->K + c];
                    score[j] = dot * z->scale;
                    most = fmax(most, score[j]);
                }
                for (int64_t j = z->bound[s]; j < end; j++)
                    sum += exp(score[j] - most);
                lse[i * z->H + h] = most + log(sum);
                for (int64_t j = z->bound[s]; j < end; j++)
                    for (int64_t c = 0; c < z->K; c++)
                        out[(i * z->H + h) * z->K + c] +=
                            exp(score[j] - most) / sum *
                            in[2][(j * z->G + g) * z->K + c];
            }
}

/* The gradients by formulas, for sizes where differences take too long: d is do. */
static void attention_slopes(const struct size *z, double *const in[], const double *d,
                             double *slope[3])
{
    int64_t kv = z->T * z->G * z->K, all = z->T * z->H * z->K;
    slope[0] = NEW(&memory, double, all + 1);
    slope[1] = NEW(&memory, double, kv + 1);
    slope[2] = NEW(&memory, double, kv + 1);
    double *out = NEW(&memory, double, all + z->T * z->H);
    attention_law(z, in, out);
    for (int64_t s = 0; s < z->S; s++)
        for (int64_t i = z->bound[s]; i < z->bound[s + 1]; i++)
            for (int64_t h = 0; h < z->H; h++) {
                int64_t g = h / (z->H / z->G), at_q = (i * z->H + h) * z->K;
                int64_t end = z->causal ? i + 1 : z->bound[s + 1];
                double along = 0;
                for (int64_t c = 0; c < z->K; c++)
                    along += d[at_q + c] * out[at_q + c];
                for (int64_t j = z->bound[s]; j < end; j++) {
                    int64_t at_k = (j * z->G + g) * z->K;
                    double dot = 0, dp = 0;
                    for (int64_t c = 0; c < z->K; c++) {
                        dot += in[0][at_q + c] * in[1][at_k + c];
                        dp += d[at_q + c] * in[2][at_k + c];
                    }
                    double p = exp(dot * z->scale - out[all + i * z->H + h]);
                    double ds = p * (dp - along) * z->scale;
                    for (int64_t c = 0; c < z->K; c++) {
                        slope[0][at_q + c] += ds * in[1][at_k + c];
                        slope[1][at_k + c] += ds * in[0][at_q + c];
                        slope[2][at_k + c] += p * d[at_q + c];
                    }
                }
            }
}

static void attention_case(struct size z, bool differences, double spread)
{
    double tight = spread > 3 ? 1e-3 : 1e-5;    /* of scores, only f32 is exact */
    int64_t wide = z.H * z.K, narrow = z.G * z.K;
    struct tensor q = slice(z.T, wide), k = slice(z.T, narrow), v = slice(z.T, narrow);
    struct tensor o = floats(z.T, wide), lse = floats(z.T, z.H),
                  d_o = floats(z.T, wide);
    struct tensor dq = slice(z.T, wide), dk = slice(z.T, narrow),
                  dv = slice(z.T, narrow);
    struct tensor bound = list(z.S + 1, z.bound);
    struct law l = {attention_law, &z, {fill(q, spread), fill(k, spread), fill(v, 1)},
                    z.T * (wide + z.H), NULL};
    int heads = (int)z.H, groups = (int)z.G;
    double *want = law_output(&l);
    fill_nan(o);
    fill_nan(lse);
    cpu->attention(&stream, q, k, v, bound, heads, groups, z.causal, (float)z.scale, o,
                   lse);
    assert_near(o, want, tight);
    assert_near(lse, want + z.T * wide, 2e-6);
    double *slope[3], *d = NEW(&memory, double, l.outputs + 1);
    memcpy(d, fill(d_o, 1), (size_t)(z.T * wide) * sizeof *d);  /* lse weighs nothing */
    l.d = d;
    attention_slopes(&z, l.in, d, slope);
    fill_nan(dq);
    fill_nan(dk);
    fill_nan(dv);
    cpu->attention_back(&stream, q, k, v, bound, o, lse, d_o, heads, groups, z.causal,
                        (float)z.scale, dq, dk, dv);
    assert_near(dq, slope[0], tight);
    assert_near(dk, slope[1], tight);
    assert_near(dv, slope[2], tight);
    if (!differences)
        return;
    assert_near(dq, law_slope(&l, 0, z.T * wide), 1e-5);
    assert_near(dk, law_slope(&l, 1, z.T * narrow), 1e-5);
    assert_near(dv, law_slope(&l, 2, z.T * narrow), 1e-5);
}

static void small_segments(void **state)
{
    (void)state;
    int32_t two[] = {0, 5, 11}, holes[] = {2, 2, 7, 7, 7}, none[] = {0, 0, 0};
    for (int causal = 0; causal < 2; causal++) {
        attention_case((struct size){11, 2, 2, 3, 2, two, causal, 0.7}, true, 1);
        attention_case((struct size){11, 4, 2, 5, 2, two, causal, 0.3}, true, 1);
        attention_case((struct size){9, 3, 1, 4, 4, holes, causal, 0.5}, true, 1);
        attention_case((struct size){4, 2, 1, 4, 2, none, causal, 0.5}, true, 1);
        attention_case((struct size){0, 2, 1, 4, 2, none, causal, 0.5}, true, 1);
    }
}

/* Across the edges of tiles and panels, and where the running maximum moves a lot. */
static void long_segments(void **state)
{
    (void)state;
    int32_t bound[] = {0, 1, 65, 193, 586}, one[] = {3, 523};
    for (int causal = 0; causal < 2; causal++) {
        attention_case((struct size){590, 2, 1, 9, 4, bound, causal, 0.35}, false, 1);
        attention_case((struct size){530, 1, 1, 16, 1, one, causal, 0.25}, false, 3);
        attention_case((struct size){193, 2, 1, 72, 3, bound, causal, 0.1}, false, 1);
        attention_case((struct size){193, 1, 1, 300, 3, bound, causal, 0.05}, false, 1);
        attention_case((struct size){193, 1, 1, 512, 3, bound, causal, 0.04}, false, 1);
    }
}

/* Scores past the range of exp: only the maximum keeps them finite. */
static void large_scores(void **state)
{
    (void)state;
    int32_t one[] = {0, 300};
    attention_case((struct size){300, 1, 1, 2, 1, one, true, 10}, false, 4);
}

/* Queries of some places against runs of keys in any order: what they merge to is the
 * whole, and so is the sum of what they send back. */
struct part_case {
    struct size z;
    int64_t first, count;               /* the queries */
    const int64_t *cut;                 /* bounds of the runs of keys */
    const int *order;
    int runs;
};

static void part_check(struct part_case p)
{
    struct size z = p.z;
    int64_t wide = z.H * z.K, narrow = z.G * z.K, n = p.count;
    struct tensor q = slice(z.T, wide), k = slice(z.T, narrow), v = slice(z.T, narrow);
    struct tensor dq = slice(n, wide), dk = slice(z.T, narrow), dv = slice(z.T, narrow);
    struct tensor o = floats(n, wide), lse = floats(n, z.H), d_o = floats(z.T, wide);
    struct tensor bound = list(z.S + 1, z.bound), own = tensor_rows(q, p.first, n);
    double *in[3] = {fill(q, 1), fill(k, 1), fill(v, 1)}, *slope[3];
    double *d = fill(d_o, 1), *want = NEW(&memory, double, z.T * (wide + z.H));
    for (int64_t t = 0; t < z.T; t++)   /* of these queries alone */
        for (int64_t c = 0; c < wide; c++)
            if (t < p.first || t >= p.first + n)
                *at(d_o, t * wide + c) = 0, d[t * wide + c] = 0;
    attention_law(&z, in, want);
    attention_slopes(&z, in, d, slope);
    fill_nan(o);
    fill_nan(lse);
    for (int i = 0; i < p.runs; i++) {
        int64_t from = p.cut[p.order[i]], keys = p.cut[p.order[i] + 1] - from;
        cpu->attention_part(&stream, own, tensor_rows(k, from, keys),
                            tensor_rows(v, from, keys), bound, p.first, from, (int)z.H,
                            (int)z.G, z.causal, (float)z.scale, i > 0, o, lse);
    }
    assert_near(o, want + p.first * wide, 1e-5);
    assert_near(lse, want + z.T * wide + p.first * z.H, 2e-6);
    fill_nan(dq);
    fill_nan(dk);
    fill_nan(dv);
    for (int i = 0; i < p.runs; i++) {
        int64_t from = p.cut[p.order[i]], keys = p.cut[p.order[i] + 1] - from;
        cpu->attention_part_back(
            &stream, own, tensor_rows(k, from, keys), tensor_rows(v, from, keys), bound,
            p.first, from, o, lse, tensor_rows(d_o, p.first, n), (int)z.H, (int)z.G,
            z.causal, (float)z.scale, i > 0, dq, 0, tensor_rows(dk, from, keys),
            tensor_rows(dv, from, keys));
    }
    assert_near(dq, slope[0] + p.first * wide, 1e-5);
    assert_near(dk, slope[1], 1e-5);
    assert_near(dv, slope[2], 1e-5);
    cpu->attention_part_back(&stream, own, k, v, bound, p.first, 0, o, lse,
                             tensor_rows(d_o, p.first, n), (int)z.H, (int)z.G, z.causal,
                             (float)z.scale, 0.5f, dq, 1, dk, dv);
    assert_near_at(dq, slope[0] + p.first * wide, 1.5, 1e-5, __FILE__, __LINE__);
    assert_near_at(dk, slope[1], 2, 1e-5, __FILE__, __LINE__);
    assert_near_at(dv, slope[2], 2, 1e-5, __FILE__, __LINE__);
}

static void parts_make_the_whole(void **state)
{
    (void)state;
    static const int32_t bound[] = {2, 2, 40, 170, 171, 290};
    static const int32_t one[] = {0, 300};
    static const int64_t whole[] = {0, 300};
    static const int64_t cut[] = {0, 30, 70, 75, 150, 230, 300};
    static const int order[] = {3, 0, 5, 1, 4, 2}, first[] = {0};
    for (int causal = 0; causal < 2; causal++) {
        struct size many = {300, 4, 2, 5, 5, bound, causal, 0.4};
        struct size single = {300, 2, 1, 3, 1, one, causal, 0.4};
        part_check((struct part_case){many, 0, 300, whole, first, 1});
        part_check((struct part_case){many, 0, 300, cut, order, 6});
        part_check((struct part_case){many, 75, 75, cut, order, 6});
        part_check((struct part_case){many, 150, 100, whole, first, 1});
        part_check((struct part_case){single, 70, 5, cut, order, 6});
        part_check((struct part_case){single, 100, 200, cut, order, 6});
    }
}

/* Queries that see no key: nothing yet, and nothing is changed. */
static void keys_that_nobody_sees(void **state)
{
    (void)state;
    struct tensor q = floats(4, 3), k = floats(5, 3), v = floats(5, 3);
    struct tensor o = floats(4, 3), lse = floats(4, 1);
    struct tensor bound = list(3, (int32_t[]){0, 2, 9});
    fill(q, 1);
    fill(k, 1);
    fill(v, 1);
    fill_nan(o);
    fill_nan(lse);      /* places 1..4 against 4..8: two samples */
    cpu->attention_part(&stream, q, k, v, bound, 1, 4, 1, 1, true, 1, 0, o, lse);
    for (int i = 0; i < 9; i++)
        assert_true(*at(o, i) == 0);
    for (int i = 0; i < 3; i++)
        assert_true(*at(lse, i) == -INFINITY);
    assert_true(isfinite(*at(lse, 3)) && *at(o, 9) == *at(v, 0));
    for (int i = 0; i < 4; i++)
        *at(lse, i) = (float)i;
    cpu->attention_part(&stream, q, k, v, bound, 0, 4, 1, 1, true, 1, 1, o, lse);
    for (int i = 0; i < 4; i++)
        assert_true(*at(lse, i) == (float)i);
    assert_true(*at(o, 9) == *at(v, 0));
}

/* A query and a run of keys of its own, which others may read too; what nobody reads
 * holds NaN. */
static void runs_of_rows(int64_t M, int64_t H, int64_t G, int64_t K,
                         const int32_t *from, const int32_t *to, int64_t T,
                         double spread)
{
    int64_t wide = H * K, narrow = G * K;
    struct tensor q = slice(T, wide), k = slice(M, narrow), v = slice(M, narrow);
    struct tensor o = floats(T, wide), first = list(T, from), last = list(T, to);
    double *in[3] = {fill(q, spread), fill(k, spread), fill(v, 1)};
    double *want = NEW(&memory, double, T * wide + 1), *score = NEW(&memory, double, M);
    bool *read = NEW(&memory, bool, M);
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < H; h++) {
            int64_t g = h / (H / G);
            double most = -INFINITY, sum = 0;
            for (int64_t j = from[t]; j <= to[t]; j++) {
                read[j] = true;
                score[j] = 0;
                for (int64_t c = 0; c < K; c++)
                    score[j] += 0.3 * in[0][(t * H + h) * K + c] *
                                in[1][(j * G + g) * K + c];
                most = fmax(most, score[j]);
            }
            for (int64_t j = from[t]; j <= to[t]; j++)
                sum += exp(score[j] - most);
            for (int64_t j = from[t]; j <= to[t]; j++)
                for (int64_t c = 0; c < K; c++)
                    want[(t * H + h) * K + c] += exp(score[j] - most) / sum *
                                                 in[2][(j * G + g) * K + c];
        }
    for (int64_t j = 0; j < M; j++)
        for (int64_t c = 0; c < narrow && !read[j]; c++)
            *at(k, j * narrow + c) = *at(v, j * narrow + c) = NAN;
    fill_nan(o);
    cpu->attention_rows(&stream, q, k, v, first, last, (int)H, (int)G, 0.3f, o);
    assert_near(o, want, spread > 3 ? 1e-3 : 1e-5);
}

static void queries_with_rows_of_their_own(void **state)
{
    (void)state;
    static const int32_t from[] = {0, 3, 70, 5, 0, 69, 10},
                         to[] = {0, 66, 290, -1, 299, 132, 73};
    static const int32_t none[] = {0, 0}, nowhere[] = {-1, -1};
    runs_of_rows(300, 4, 2, 5, from, to, COUNT(from), 1);
    runs_of_rows(300, 2, 2, 16, from, to, COUNT(from), 1);
    runs_of_rows(300, 37, 1, 33, from, to, COUNT(from), 1);
    runs_of_rows(300, 3, 1, 64, from, to, COUNT(from), 4);
    runs_of_rows(2, 1, 1, 4, none, nowhere, 2, 1);
    runs_of_rows(2, 1, 1, 4, none, nowhere, 0, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_segments),
        cmocka_unit_test(long_segments),
        cmocka_unit_test(large_scores),
        cmocka_unit_test(parts_make_the_whole),
        cmocka_unit_test(keys_that_nobody_sees),
        cmocka_unit_test(queries_with_rows_of_their_own),
    };
    return cmocka_run_group_tests(tests, test_begin, test_end);
}
