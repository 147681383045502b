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

/* Across the edges of tiles, and where the running maximum moves a lot. */
static void long_segments(void **state)
{
    (void)state;
    int32_t bound[] = {0, 1, 65, 193, 586}, one[] = {3, 523};
    for (int causal = 0; causal < 2; causal++) {
        attention_case((struct size){590, 2, 1, 9, 4, bound, causal, 0.35}, false, 1);
        attention_case((struct size){530, 1, 1, 16, 1, one, causal, 0.25}, false, 3);
    }
}

/* Scores past the range of exp: only the maximum keeps them finite. */
static void large_scores(void **state)
{
    (void)state;
    int32_t one[] = {0, 300};
    attention_case((struct size){300, 1, 1, 2, 1, one, true, 10}, false, 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_segments),
        cmocka_unit_test(long_segments),
        cmocka_unit_test(large_scores),
    };
    return cmocka_run_group_tests(tests, test_begin, test_end);
}
