/* test_ops_head.c - the output layer: loss in double, gradients by central differences,
 * more rows than a chunk, rows without targets, no targets at all. */
#include "ops/ops_test.h"

struct size { int64_t T, D, V; double scale; const int32_t *target; };

/* in: x, w.  out: loss, then lse of every row. */
static void loss_law(const void *shape, double *const in[], double *out)
{
    const struct size *z = shape;
    memset(out, 0, (size_t)(z->T + 1) * sizeof *out);
    for (int64_t t = 0; t < z->T; t++) {
        if (z->target[t] < 0)
            continue;
        double logit[1200], most = -INFINITY, sum = 0;
        for (int64_t v = 0; v < z->V; v++) {
            logit[v] = 0;
            for (int64_t c = 0; c < z->D; c++)
                logit[v] += in[0][t * z->D + c] * in[1][v * z->D + c];
            most = fmax(most, logit[v]);
        }
        for (int64_t v = 0; v < z->V; v++)
            sum += exp(logit[v] - most);
        out[1 + t] = most + log(sum);
        out[0] += z->scale * (out[1 + t] - logit[z->target[t]]);
    }
}

struct head_case {
    struct size z;
    struct tensor x, w, target, scale, work, loss, lse, dx, dw, dloss;
    struct law l;
    double *want;
};

static struct head_case head_make(int64_t T, int64_t D, int64_t V, int every)
{
    struct head_case h = {.z = {T, D, V, 0.25, NULL}};
    h.x = floats(T, D);
    h.w = floats(V, D);
    h.target = ints(T, 0);
    for (int64_t t = 0; t < T; t++)
        ((int32_t *)h.target.data)[t] = every && t % every == 0
                                            ? (int32_t)((t * 37 + 11) % V)
                                            : IGNORE;
    h.z.target = h.target.data;
    h.scale = number(0.25f);
    h.dloss = number(2);
    h.loss = number(NAN);
    h.lse = floats(T, 1);
    h.dx = floats(T, D);
    h.dw = floats(V, D);
    int64_t bytes = head_work(T, D, V);
    h.work = tensor_1d(NEW(&memory, char, bytes + 1), DTYPE_U8, bytes);
    memset(h.work.data, 0xff, (size_t)bytes);
    double *d = NEW(&memory, double, T + 1);
    d[0] = 2;
    h.l = (struct law){loss_law, NULL, {fill(h.x, 1), fill(h.w, 0.5)}, T + 1, d};
    return h;
}

static void head_check(struct head_case *h, bool differences)
{
    h->l.shape = &h->z;
    struct tensor none = tensor_none();
    double *want = law_output(&h->l);
    fill_nan(h->lse);
    cpu->head_loss(&stream, h->x, h->w, h->target, h->scale, h->work, h->loss, h->lse);
    assert_near(h->loss, want, 1e-6);
    assert_near(h->lse, want + 1, 1e-6);
    if (!differences)
        return;
    double *slope_x = law_slope(&h->l, 0, h->z.T * h->z.D);
    double *slope_w = law_slope(&h->l, 1, h->z.V * h->z.D);
    assert_gradient(h->dx, slope_x, 3e-6,
                    cpu->head_loss_back(&stream, h->x, h->w, h->target, h->scale,
                                        h->lse, h->dloss, h->work, beta, h->dx, 0,
                                        none));
    assert_gradient(h->dw, slope_w, 3e-6,
                    cpu->head_loss_back(&stream, h->x, h->w, h->target, h->scale,
                                        h->lse, h->dloss, h->work, 0, none, beta,
                                        h->dw));
    fill_nan(h->dx);
    fill_nan(h->dw);
    cpu->head_loss_back(&stream, h->x, h->w, h->target, number(0.5f), h->lse, none,
                        h->work, 0, h->dx, 0, h->dw);
    assert_near(h->dx, slope_x, 3e-6);
    assert_near(h->dw, slope_w, 3e-6);
}

static void loss_follows_its_law(void **state)
{
    (void)state;
    struct head_case small = head_make(7, 5, 13, 2);
    head_check(&small, true);
    struct head_case nothing = head_make(5, 3, 4, 0);
    head_check(&nothing, true);
    struct head_case empty = head_make(0, 3, 4, 1);
    head_check(&empty, true);
    struct head_case words = head_make(3, 2, 1030, 1);  /* three blocks of words */
    head_check(&words, true);
}

/* Rows without a target in more than one block of rows: there is nothing to add. */
static void rows_without_target_fade(void **state)
{
    (void)state;
    struct head_case h = head_make(70, 900, 5, 0);
    double *zero = NEW(&memory, double, h.z.T * h.z.D);
    assert_gradient(h.dx, zero, 1e-6,
                    cpu->head_loss_back(&stream, h.x, h.w, h.target, h.scale, h.lse,
                                        h.dloss, h.work, beta, h.dx, 0, h.dw));
    assert_near(h.dw, zero, 1e-6);
}

/* Chunks meet: the gradient of many rows is the sum of the gradients of few. */
static void chunks_meet(void **state)
{
    (void)state;
    enum { T = 2 * HEAD_CHUNK + 77, D = 6, V = 600 };
    struct head_case all = head_make(T, D, V, 1);
    head_check(&all, false);
    cpu->head_loss_back(&stream, all.x, all.w, all.target, all.scale, all.lse,
                        all.dloss, all.work, 0, all.dx, 0, all.dw);
    double *sum_w = NEW(&memory, double, V * D), *dx = NEW(&memory, double, T * D);
    for (int64_t t = 0; t < T; t += 100) {
        int64_t n = MIN(100, T - t);
        struct tensor x = tensor_rows(all.x, t, n), lse = tensor_rows(all.lse, t, n);
        struct tensor some = floats(n, D), dw = floats(V, D);
        cpu->head_loss_back(&stream, x, all.w, tensor_rows(all.target, t, n), all.scale,
                            lse, all.dloss, all.work, 0, some, 0, dw);
        for (int64_t i = 0; i < V * D; i++)
            sum_w[i] += *at(dw, i);
        for (int64_t i = 0; i < n * D; i++)
            dx[t * D + i] = *at(some, i);
    }
    assert_near(all.dx, dx, 2e-6);
    assert_near(all.dw, sum_w, 2e-6);
}

/* The vocabulary in shares: the loss and the gradients are those of the whole, and what
 * a share alone gives follows its own law. */
static void shares_case(int64_t T, int64_t D, int64_t V, int every, int shares)
{
    struct head_case h = head_make(T, D, V, every);
    h.l.shape = &h.z;
    int64_t each = V / shares;
    double *want = law_output(&h.l);
    struct tensor parts = floats(shares * T, 2), dparts = floats(shares * T, 2);
    fill_nan(parts);
    fill_nan(dparts);
    for (int r = 0; r < shares; r++)
        cpu->head_part(&stream, h.x, tensor_rows(h.w, r * each, each), h.target,
                       r * each, h.work, tensor_rows(parts, r * T, T));
    cpu->head_sum(&stream, parts, h.target, h.scale, h.loss);
    assert_near(h.loss, want, 1e-6);
    cpu->head_sum_back(&stream, parts, h.target, h.scale, h.dloss, dparts);
    double *slope_x = law_slope(&h.l, 0, T * D), *slope_w = law_slope(&h.l, 1, V * D);
    fill_nan(h.dx);
    for (int r = 0; r < shares; r++) {
        struct tensor w = tensor_rows(h.w, r * each, each), dw = floats(each, D);
        struct tensor part = tensor_rows(parts, r * T, T), none = tensor_none();
        struct tensor dpart = tensor_rows(dparts, r * T, T);
        assert_gradient(dw, slope_w + r * each * D, 3e-6,
                        cpu->head_part_back(&stream, h.x, w, h.target, r * each, part,
                                            dpart, h.work, 0, none, beta, dw));
        cpu->head_part_back(&stream, h.x, w, h.target, r * each, part, dpart, h.work,
                            r > 0, h.dx, 0, none);
    }
    assert_near(h.dx, slope_x, 3e-6);
}

static void shares_make_the_whole(void **state)
{
    (void)state;
    shares_case(7, 5, 12, 2, 1);
    shares_case(7, 5, 12, 2, 4);
    shares_case(5, 3, 4, 0, 2);         /* no targets */
    shares_case(3, 2, 1040, 1, 2);      /* two blocks of words each */
    shares_case(0, 3, 4, 1, 2);
}

/* in: part [n*T,2].  out: the loss. */
static void sum_law(const void *shape, double *const in[], double *out)
{
    const struct size *z = shape;       /* V: shares */
    out[0] = 0;
    for (int64_t t = 0; t < z->T; t++) {
        if (z->target[t] < 0)
            continue;
        double sum = 0;
        for (int64_t r = 0; r < z->V; r++) {
            sum += exp(in[0][2 * (r * z->T + t)]);
            out[0] -= z->scale * in[0][2 * (r * z->T + t) + 1];
        }
        out[0] += z->scale * log(sum);
    }
}

static void the_sum_follows_its_law(void **state)
{
    (void)state;
    static const int32_t target[] = {3, -1, 0, 9, -1};
    struct size z = {COUNT(target), 0, 3, 0.25, target};
    struct tensor parts = floats(z.V * z.T, 2), dparts = floats(z.V * z.T, 2);
    struct tensor loss = number(NAN), which = list(z.T, target);
    double one = 2;
    struct law l = {sum_law, &z, {fill(parts, 2)}, 1, &one};
    cpu->head_sum(&stream, parts, which, number(0.25f), loss);
    assert_near(loss, law_output(&l), 1e-6);
    double *slope = law_slope(&l, 0, 2 * z.V * z.T);
    fill_nan(dparts);
    cpu->head_sum_back(&stream, parts, which, number(0.25f), number(2), dparts);
    assert_near(dparts, slope, 1e-6);
    fill_nan(dparts);
    cpu->head_sum_back(&stream, parts, which, number(0.5f), tensor_none(), dparts);
    assert_near(dparts, slope, 1e-6);
}

static void the_best_word(void **state)
{
    (void)state;
    enum { T = 300, D = 4, V = 1100 };
    struct head_case h = head_make(T, D, V, 1);
    struct tensor want = ints(T, 0), best = ints(T, 0), logit = floats(T, 1);
    for (int t = 0; t < T; t++)
        ((int32_t *)want.data)[t] = t % 3 != 1;
    for (int c = 0; c < D; c++)         /* a tie of two words that no other reaches */
        *at(h.w, 20 * D + c) = *at(h.w, 700 * D + c) = *at(h.x, c) = 100;
    for (int i = 0; i < V * D; i++)
        h.l.in[1][i] = *at(h.w, i);
    cpu->head_best(&stream, h.x, h.w, want, h.work, best, logit);
    for (int t = 0; t < T; t++) {
        int32_t got = ((int32_t *)best.data)[t], right = 0;
        if (t % 3 == 1) {
            assert_true(got == -1 && *at(logit, t) == 0);
            continue;
        }
        double most = -INFINITY;
        for (int v = 0; v < V; v++) {
            double z = 0;
            for (int c = 0; c < D; c++)
                z += (double)*at(h.x, t * D + c) * h.l.in[1][v * D + c];
            if (z > most) {
                most = z;
                right = v;
            }
        }
        assert_int_equal(got, right);
        assert_true(fabs(*at(logit, t) - most) < 1e-5 * (1 + fabs(most)));
    }
}

/* One logit that is NaN, of either sign, at any place: it is the best, whatever else is
 * there, and so is an infinite one. */
static void nothing_is_above_nan(void **state)
{
    (void)state;
    enum { T = 3, D = 4, V = 1100 };
    static const int word[] = {0, 1, 20, 511, 512, 700, V - 1};
    const float odd[] = {(float)NAN, -(float)NAN, INFINITY};
    struct head_case h = head_make(T, D, V, 1);
    struct tensor want = ints(T, 0), best = ints(T, 0), logit = floats(T, 1);
    for (int t = 0; t < T; t++)
        *at(h.x, t * D) = (float)(((int32_t *)want.data)[t] = 1);
    for (int k = 0; k < COUNT(word); k++)
        for (int i = 0; i < COUNT(odd); i++) {
            float *w = at(h.w, word[k] * D), was = *w;
            *w = odd[i];
            cpu->head_best(&stream, h.x, h.w, want, h.work, best, logit);
            for (int t = 0; t < T; t++) {
                assert_int_equal(((int32_t *)best.data)[t], word[k]);
                assert_false(isfinite(*at(logit, t)));
            }
            cpu->head_loss(&stream, h.x, h.w, h.target, h.scale, h.work, h.loss,
                           h.lse);
            assert_false(isfinite(*at(h.loss, 0)));
            *w = was;
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_follows_its_law),
        cmocka_unit_test(rows_without_target_fade),
        cmocka_unit_test(chunks_meet),
        cmocka_unit_test(shares_make_the_whole),
        cmocka_unit_test(the_sum_follows_its_law),
        cmocka_unit_test(the_best_word),
        cmocka_unit_test(nothing_is_above_nan),
    };
    return cmocka_run_group_tests(tests, test_begin, test_end);
}
