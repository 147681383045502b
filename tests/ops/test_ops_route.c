/* test_ops_route.c - sending tokens to experts: the choice and its gradient, the
 * auxiliary losses (with an example computed elsewhere), sorting and bringing back. */
#include "ops/ops_test.h"

struct size { int64_t T, E, A, live; const int32_t *index; };

static void softmax(const double *z, int64_t n, double *pi, double *lse)
{
    double most = -INFINITY, sum = 0;
    for (int64_t e = 0; e < n; e++)
        most = fmax(most, z[e]);
    for (int64_t e = 0; e < n; e++)
        sum += exp(z[e] - most);
    for (int64_t e = 0; e < n; e++)
        pi[e] = exp(z[e] - most) / sum;
    *lse = most + log(sum);
}

/* in: z.  out: weight [T,A] of the given choice, sums of pi [E], sum of lse^2. */
static void router_law(const void *shape, double *const in[], double *out)
{
    const struct size *z = shape;
    double pi[64], lse;
    memset(out, 0, (size_t)(z->T * z->A + z->E + 1) * sizeof *out);
    for (int64_t t = 0; t < z->live; t++) {
        softmax(in[0] + t * z->E, z->E, pi, &lse);
        double sum = 0;
        for (int64_t a = 0; a < z->A; a++)
            sum += pi[z->index[t * z->A + a]];
        for (int64_t a = 0; a < z->A; a++)
            out[t * z->A + a] = pi[z->index[t * z->A + a]] / sum;
        for (int64_t e = 0; e < z->E; e++)
            out[z->T * z->A + e] += pi[e];
        out[z->T * z->A + z->E] += lse * lse;
    }
}

static void router_case(struct size z, double size)
{
    struct tensor logits = floats(z.T, z.E), pi = floats(z.T, z.E),
                  dz = floats(z.T, z.E);
    struct tensor index = ints(z.T, z.A), weight = floats(z.T, z.A);
    struct tensor dweight = floats(z.T, z.A), dsum = floats(1, z.E), dz2 = floats(1, 1);
    struct tensor live = list(1, (int32_t[]){(int32_t)z.live}), none = tensor_none();
    double *exact = fill(logits, size);
    fill_nan(pi);
    fill_nan(weight);
    cpu->router(&stream, logits, none, live, pi, index, weight);
    const int32_t *choice = z.index = index.data;
    for (int64_t t = 0; t < z.T; t++)
        for (int64_t a = 0; a < z.A; a++) {
            int32_t e = choice[t * z.A + a];
            if (t >= z.live) {
                assert_int_equal(e, -1);
                continue;
            }
            assert_true(e >= 0 && e < z.E);
            for (int64_t other = 0; other < z.E; other++) {     /* nobody better left */
                bool taken = false;
                for (int64_t b = 0; b <= a; b++)
                    taken |= choice[t * z.A + b] == other;
                assert_true(taken || exact[t * z.E + other] <= exact[t * z.E + e]);
            }
        }
    struct law l = {router_law, &z, {exact}, z.T * z.A + z.E + 1, NULL};
    double *want = law_output(&l), *d = NEW(&memory, double, l.outputs);
    assert_near(weight, want, 1e-6);
    double *pi_want = NEW(&memory, double, z.T * z.E + 1), lse;
    for (int64_t t = 0; t < z.live; t++)
        softmax(exact + t * z.E, z.E, pi_want + t * z.E, &lse);
    assert_near(pi, pi_want, 1e-6);

    /* each gradient alone, then together */
    memcpy(d, fill(dweight, 1), (size_t)(z.T * z.A) * sizeof *d);
    l.d = d;
    fill_nan(dz);
    cpu->router_back(&stream, logits, pi, index, weight, live, dweight, none, none, dz);
    assert_near(dz, law_slope(&l, 0, z.T * z.E), 3e-6);
    memcpy(d + z.T * z.A, fill(dsum, 0.5), (size_t)z.E * sizeof *d);
    fill_nan(dz);
    cpu->router_back(&stream, logits, pi, index, weight, live, dweight, dsum, none, dz);
    assert_near(dz, law_slope(&l, 0, z.T * z.E), 3e-6);
    d[z.T * z.A + z.E] = *fill(dz2, 0.1);
    fill_nan(dz);
    cpu->router_back(&stream, logits, pi, index, weight, live, dweight, dsum, dz2, dz);
    assert_near(dz, law_slope(&l, 0, z.T * z.E), 3e-6);
    memset(d, 0, (size_t)(z.T * z.A) * sizeof *d);
    fill_nan(dz);
    cpu->router_back(&stream, logits, pi, index, weight, live, none, dsum, dz2, dz);
    assert_near(dz, law_slope(&l, 0, z.T * z.E), 3e-6);
}

static void router_follows_its_law(void **state)
{
    (void)state;
    router_case((struct size){9, 6, 2, 9, NULL}, 1);
    router_case((struct size){7, 17, 8, 5, NULL}, 3);
    router_case((struct size){4, 3, 3, 4, NULL}, 1);
    router_case((struct size){5, 8, 1, 0, NULL}, 1);
}

static void ties_and_bias(void **state)
{
    (void)state;
    struct tensor z = floats(3, 4), pi = floats(3, 4), weight = floats(3, 2);
    struct tensor index = ints(3, 2), live = list(1, (int32_t[]){3}), bias = vector(4);
    *at(z, 5) = 1;                      /* the second row: expert 1 is likeliest */
    *at(z, 9) = *at(z, 11) = 1;         /* the third: 1 and 3, equally */
    const int32_t *choice = index.data;
    cpu->router(&stream, z, tensor_none(), live, pi, index, weight);
    assert_true(choice[0] == 0 && choice[1] == 1 && choice[2] == 1 && choice[3] == 0);
    assert_true(choice[4] == 1 && choice[5] == 3);
    *at(bias, 3) = 10;                  /* chosen by bias, weighed without it */
    cpu->router(&stream, z, bias, live, pi, index, weight);
    assert_true(choice[0] == 3 && choice[1] == 0 && choice[2] == 3 && choice[3] == 1);
    assert_true(fabs(*at(weight, 0) - 0.5) < 1e-6);
    assert_true(fabs(*at(weight, 2) - 1 / (1 + exp(1))) < 1e-6);
}

/* Two layers of 4 rows and 6 experts, z = 3 sin(6 r + e); the second layer's rows come
 * in reverse order and halved: aux = 4.20555699 over all rows, 4.25789595 without the
 * last row (of each layer), computed in double by another implementation. */
static void aux_loss_example(void **state)
{
    (void)state;
    static const int32_t first[8] = {2, 1, 2, 1, 2, 3, 2, 3};
    static const double first_weight[4] = {0.55069504, 0.73049096, 0.73515927,
                                           0.55696875};
    for (int rows = 3; rows <= 4; rows++) {
        struct tensor none = tensor_none(), live = list(1, (int32_t[]){rows});
        struct tensor chosen = none, sum = none, z2 = none, count = none;
        for (int layer = 0; layer < 2; layer++) {
            struct tensor z = floats(4, 6), pi = floats(4, 6), weight = floats(4, 2);
            struct tensor index = ints(4, 2);
            struct tensor to[4] = {floats(1, 6), floats(1, 6), floats(1, 1),
                                   floats(1, 1)};
            for (int i = 0; i < 24; i++)
                *at(z, i) = layer ? (float)(1.5 * sin(6 * (3 - i / 6) + i % 6))
                                  : (float)(3 * sin(i));
            cpu->router(&stream, z, none, live, pi, index, weight);
            for (int t = 0; t < rows && layer == 0; t++) {
                assert_memory_equal((int32_t *)index.data + 2 * t, first + 2 * t, 8);
                assert_true(fabs(*at(weight, 2 * t) - first_weight[t]) < 1e-6);
            }
            for (int i = 0; i < 4; i++)
                fill_nan(to[i]);
            cpu->router_sums(&stream, z, pi, index, live, chosen, sum, z2, count, to[0],
                             to[1], to[2], to[3]);
            chosen = to[0];
            sum = to[1];
            z2 = to[2];
            count = to[3];
        }
        assert_true(*at(count, 0) == 2 * (float)rows);
        struct tensor loss = number(NAN), aux = number(NAN), zloss = number(NAN);
        cpu->router_loss(&stream, chosen, sum, z2, count, number(0.25f), 0.01f, 0.5f,
                         loss, aux, zloss);
        double want = rows == 4 ? 4.20555699 : 4.25789595;
        assert_true(fabs(*at(aux, 0) - want) < 2e-6);
        assert_true(fabs(*at(zloss, 0) - *at(z2, 0) / (2. * rows)) < 1e-6);
        assert_true(fabs(*at(loss, 0) - 0.25 * (0.01 * want + 0.5 * *at(zloss, 0))) <
                    1e-6);
    }
}

/* in: sum [E], z2 [1] */
struct losses { int64_t E; const double *chosen; double rows, share, aux, z; };

static void loss_law(const void *shape, double *const in[], double *out)
{
    const struct losses *z = shape;
    out[0] = z->share * z->z * in[1][0] / z->rows;
    for (int64_t e = 0; e < z->E; e++)
        out[0] += z->share * z->aux * (double)z->E * z->chosen[e] / z->rows * in[0][e] /
                  z->rows;
}

static void router_loss_gradient(void **state)
{
    (void)state;
    struct tensor chosen = floats(1, 5), sum = floats(1, 5), z2 = floats(1, 1);
    struct tensor dsum = floats(1, 5), dz2 = floats(1, 1);
    double one = 1;
    struct losses z = {5, fill(chosen, 4), 12, 0.125, 0.5, 0.25};
    struct law l = {loss_law, &z, {fill(sum, 3), fill(z2, 9)}, 1, &one};
    fill_nan(dsum);
    fill_nan(dz2);
    cpu->router_loss_back(&stream, chosen, number(12), number(0.125f), 0.5f, 0.25f,
                          dsum, dz2);
    assert_near(dsum, law_slope(&l, 0, 5), 1e-6);
    assert_near(dz2, law_slope(&l, 1, 1), 1e-6);
    struct tensor loss = number(NAN), aux = number(NAN), zloss = number(NAN);
    cpu->router_loss(&stream, chosen, sum, z2, number(0), number(1), 1, 1, loss, aux,
                     zloss);
    cpu->router_loss_back(&stream, chosen, number(0), number(1), 1, 1, dsum, dz2);
    assert_true(*at(loss, 0) == 0 && *at(aux, 0) == 0 && *at(zloss, 0) == 0);
    for (int e = 0; e < 5; e++)
        assert_true(*at(dsum, e) == 0);
    assert_true(*at(dz2, 0) == 0);
}

static void rows_are_sorted(void **state)
{
    (void)state;
    const int32_t pairs[] = {2, 0, 2, 3, -1, -1, 0, 2};
    struct tensor index = tensor_as_2d(list(8, pairs), 4, 2), place = ints(4, 2);
    struct tensor source = ints(8, 0), slot = ints(8, 0), bound = ints(6, 0);
    memset(place.data, 99, 32);
    memset(bound.data, 99, 24);
    cpu->sort_rows(&stream, index, 5, place, source, slot, bound);
    assert_memory_equal(bound.data, ((int32_t[]){0, 2, 2, 5, 6, 6}), 24);
    assert_memory_equal(place.data, ((int32_t[]){2, 0, 3, 5, -1, -1, 1, 4}), 32);
    assert_memory_equal(source.data, ((int32_t[]){0, 3, 0, 1, 3, 1, -1, -1}), 32);
    assert_memory_equal(slot.data, ((int32_t[]){1, 0, 0, 0, 1, 1, -1, -1}), 32);
}

/* Experts 2 and 3 of 5: what sort_rows gives, without the others. */
static void own_rows_are_sorted(void **state)
{
    (void)state;
    const int32_t pairs[] = {2, 0, 2, 3, -1, -1, 4, 2};
    struct tensor index = tensor_as_2d(list(8, pairs), 4, 2), place = ints(4, 2);
    struct tensor over = number(NAN), bound = ints(3, 0), none = tensor_none();
    for (int64_t room = 3; room <= 6; room++) {
        struct tensor source = ints(room, 0), slot = ints(room, 0);
        memset(place.data, 99, 32);
        memset(bound.data, 99, 12);
        memset(source.data, 99, (size_t)room * 4);
        memset(slot.data, 99, (size_t)room * 4);
        cpu->sort_own(&stream, index, 2, room == 5 ? number(7) : none, place, source,
                      slot, bound, over);
        const int32_t *from = source.data, *choice = slot.data;
        if (room < 4) {                 /* too few: nothing anywhere, and it is told */
            assert_true(*at(over, 0) == 1);
            assert_memory_equal(bound.data, ((int32_t[]){0, 0, 0}), 12);
            for (int i = 0; i < 8; i++)
                assert_int_equal(((int32_t *)place.data)[i], -1);
            for (int i = 0; i < room; i++)
                assert_true(from[i] == -1 && choice[i] == -1);
            continue;
        }
        assert_true(*at(over, 0) == (room == 5 ? 7 : 0));
        assert_memory_equal(bound.data, ((int32_t[]){0, 3, 4}), 12);
        assert_memory_equal(place.data, ((int32_t[]){0, -1, 1, 3, -1, -1, -1, 2}), 32);
        assert_memory_equal(from, ((int32_t[]){0, 1, 3, 1}), 16);
        assert_memory_equal(choice, ((int32_t[]){0, 0, 1, 1}), 16);
        for (int64_t i = 4; i < room; i++)
            assert_true(from[i] == -1 && choice[i] == -1);
    }
}

/* Ranks whose rows carry (expert, sender, number) in one integer: sent by `leave`, laid
 * down by `arrive`, they must lie by expert, then sender, then number once ordered. */
static void meet_case(int ranks, int own, int64_t room, uint64_t key, int most)
{
    enum { RANKS = 4, ROWS = 64 };
    int experts = ranks * own, got[RANKS] = {0}, larger = 0;
    struct tensor bounds = ints(ranks, experts + 1);
    struct tensor leave[RANKS], arrive[RANKS], order[RANKS], undo[RANKS], bound[RANKS];
    for (int r = 0; r < ranks; r++) {
        int32_t *b = (int32_t *)bounds.data + r * (experts + 1);
        for (int e = 0; e < experts; e++) {
            uint64_t bits = random_bits(key, (uint64_t)(r * experts + e));
            int n = (int)(bits % (uint64_t)most);
            b[e + 1] = b[e] + n;
            got[e / own] += n;
        }
    }
    for (int r = 0; r < ranks; r++)
        larger = MAX(larger, got[r]);
    bool fits = larger <= room;
    int32_t row[RANKS][RANKS * ROWS];
    for (int r = 0; r < ranks; r++) {
        struct tensor over = number(NAN);
        leave[r] = ints(ranks + 1, 0);
        arrive[r] = ints(ranks + 1, 0);
        order[r] = ints(room, 0);
        undo[r] = ints(room, 0);
        bound[r] = ints(own + 1, 0);
        memset(order[r].data, 99, (size_t)room * 4);
        memset(undo[r].data, 99, (size_t)room * 4);
        cpu->meet_rows(&stream, bounds, r, r ? number(2) : tensor_none(), leave[r],
                       arrive[r], order[r], undo[r], bound[r], over);
        assert_true(*at(over, 0) == (float)((r ? 2 : 0) + !fits));
    }
    for (int from = 0; from < ranks; from++) {
        const int32_t *b = (int32_t *)bounds.data + from * (experts + 1);
        const int32_t *end = leave[from].data;
        assert_int_equal(end[ranks], fits ? b[experts] : 0);
        for (int to = 0; to < ranks; to++) {
            const int32_t *lie = arrive[to].data;
            assert_int_equal(lie[from + 1] - lie[from], end[to + 1] - end[to]);
            for (int32_t i = end[to]; i < end[to + 1]; i++) {
                int e = 0;
                while (i >= b[e + 1])
                    e++;
                assert_int_equal(e / own, to);
                row[to][lie[from] + i - end[to]] = (e * 100 + from) * 1000 + i;
            }
        }
    }
    for (int r = 0; r < ranks; r++) {
        const int32_t *next = order[r].data, *back = undo[r].data, *b = bound[r].data;
        assert_int_equal(b[0], 0);
        assert_int_equal(b[own], fits ? got[r] : 0);
        for (int32_t i = 0; i < room; i++) {
            if (i >= b[own]) {
                assert_true(next[i] == -1 && back[i] == -1);
                continue;
            }
            assert_int_equal(back[next[i]], i);
            int e = row[r][next[i]] / 100000 - r * own;
            assert_true(i >= b[e] && i < b[e + 1]);
            assert_true(i == 0 || row[r][next[i]] > row[r][next[i - 1]]);
        }
    }
}

static void rows_of_ranks_meet(void **state)
{
    (void)state;
    for (uint64_t key = 1; key < 12; key++)
        for (int64_t room = 8; room <= 64; room += 8) {
            meet_case(1, 4, room, key, 6);
            meet_case(2, 3, room, key, 6);
            meet_case(4, 1, room, key, 9);
            meet_case(4, 2, room, key, 4);
            meet_case(3, 2, room, key, 1);      /* nobody has any */
        }
}

static void rows_past_the_end_are_cleared(void **state)
{
    (void)state;
    for (int32_t end = 0; end <= 4; end++) {
        struct tensor x = floats(4, 3);
        double *before = fill(x, 1);
        cpu->clear_rows(&stream, list(3, (int32_t[]){0, end / 2, end}), x);
        for (int i = 0; i < 12; i++)
            assert_true((double)*at(x, i) == (i < 3 * end ? before[i] : 0));
    }
}

struct paths { int64_t T, A, D; const int32_t *place; };

/* in: rows [R,D], weight [T,A] */
static void combine_law(const void *shape, double *const in[], double *out)
{
    const struct paths *z = shape;
    memset(out, 0, (size_t)(z->T * z->D) * sizeof *out);
    for (int64_t i = 0; i < z->T * z->A; i++)
        for (int64_t c = 0; c < z->D && z->place[i] >= 0; c++)
            out[i / z->A * z->D + c] += in[1][i] * in[0][z->place[i] * z->D + c];
}

/* in: x [T,D].  out: rows [R,D], R = T A. */
static void scatter_law(const void *shape, double *const in[], double *out)
{
    const struct paths *z = shape;
    memset(out, 0, (size_t)(z->T * z->A * z->D) * sizeof *out);
    for (int64_t i = 0; i < z->T * z->A; i++)
        for (int64_t c = 0; c < z->D && z->place[i] >= 0; c++)
            out[z->place[i] * z->D + c] = in[0][i / z->A * z->D + c];
}

static void combine_case(int64_t T, int64_t A, int64_t D, int experts,
                         const int32_t *pairs)
{
    int64_t R = T * A;
    struct tensor index = tensor_as_2d(list(R, pairs), T, A), place = ints(T, A);
    struct tensor source = ints(R, 0), slot = ints(R, 0), bound = ints(experts + 1, 0);
    cpu->sort_rows(&stream, index, experts, place, source, slot, bound);
    struct paths z = {T, A, D, place.data};
    struct tensor x = floats(R, D), weight = floats(T, A), y = floats(T, D);
    struct tensor dy = floats(T, D), dx = floats(R, D), dweight = floats(T, A);
    struct law l = {combine_law, &z, {fill(x, 1), fill(weight, 1)}, T * D, fill(dy, 1)};
    fill_nan(y);
    cpu->combine(&stream, x, place, weight, y);
    assert_near(y, law_output(&l), 1e-6);
    fill_nan(dx);
    fill_nan(dweight);
    cpu->combine_back(&stream, x, place, weight, source, slot, dy, dx, dweight);
    assert_near(dx, law_slope(&l, 0, R * D), 1e-6);
    assert_near(dweight, law_slope(&l, 1, R), 2e-6);

    struct tensor token = floats(T, D), row = floats(R, D), drow = floats(R, D);
    struct tensor dtoken = floats(T, D);
    struct law s = {scatter_law, &z, {fill(token, 1)}, R * D, fill(drow, 1)};
    fill_nan(row);
    cpu->take(&stream, source, token, 0, row);
    assert_near(row, law_output(&s), 1e-7);
    assert_gradient(dtoken, law_slope(&s, 0, T * D), 1e-6,
                    cpu->gather_sum(&stream, place, drow, beta, dtoken));
}

static void rows_come_back(void **state)
{
    (void)state;
    combine_case(4, 2, 19, 5, (int32_t[]){2, 0, 2, 3, -1, -1, 0, 2});
    combine_case(3, 1, 5, 2, (int32_t[]){1, 1, 1});
    combine_case(2, 2, 3, 2, (int32_t[]){-1, -1, -1, -1});      /* nothing routed */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(router_follows_its_law),
        cmocka_unit_test(ties_and_bias),
        cmocka_unit_test(aux_loss_example),
        cmocka_unit_test(router_loss_gradient),
        cmocka_unit_test(rows_are_sorted),
        cmocka_unit_test(own_rows_are_sorted),
        cmocka_unit_test(rows_of_ranks_meet),
        cmocka_unit_test(rows_past_the_end_are_cleared),
        cmocka_unit_test(rows_come_back),
    };
    return cmocka_run_group_tests(tests, test_begin, test_end);
}
