/* test_exchange.c - rows that lists and counts send from rank to rank: each arrives
 * once and in order, what is past the end is zero, and backward is the transpose. */
#include "check.h"

#include "base/random.h"
#include "layers/layers.h"
#include "tests/model/mini.h"

enum { RANKS = 4, ROWS = 24, WIDTH = 5 };

static const struct segment sort = {.name = "sort", COMPUTE("vision"), PICK};
static const struct segment send = {.name = "send", .component = "vision", EXCHANGE};

/* What each rank has for each; several ranks have nothing, one nothing at all. */
struct round { int count[RANKS][RANKS]; };

static const struct round rounds[] = {
    {{{1, 2, 3, 4}, {5, 6, 7, 1}, {2, 2, 2, 2}, {0, 9, 0, 3}}},
    {{{0, 0, 0, 0}, {0, 24, 0, 0}, {6, 0, 6, 6}, {0, 0, 0, 0}}},
    {{{0, 0, 0, 24}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}},
    {{{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}},
};

struct exchanging {
    const struct round *round;
    double there[RANKS], back[RANKS];   /* <dy, y> and <dx, x> of each rank */
};

static struct graph recorded(struct arena *a, const struct mesh *mesh, int rank)
{
    struct graph g = graph_make(a);
    g.mesh = mesh;
    g.rank = rank;
    g.tower = "vision";
    int layer = graph_layer(&g);
    const int64_t rows[] = {ROWS}, bounds[] = {RANKS + 1};
    int order = graph_input(&g, "order", DTYPE_I32, 1, rows);
    int undo = graph_input(&g, "undo", DTYPE_I32, 1, rows);
    int leave = graph_input(&g, "leave", DTYPE_I32, 1, bounds);
    int arrive = graph_input(&g, "arrive", DTYPE_I32, 1, bounds);
    int x = graph_value(&g, "x", layer, ROWS, WIDTH);
    int y = pick_record(&g, &sort, "sorted", x, order, undo);
    exchange_record(&g, &send, "sent", y, leave, arrive, ROWS, ROWS / RANKS);
    graph_group(&g, false, ON_DP);
    return g;
}

/* Random rows leave, those for the first rank first. */
static void fill(struct mini *m, const struct round *r, int rank)
{
    int32_t *order = mini_input(m, "order"), *undo = mini_input(m, "undo");
    int32_t *leave = mini_input(m, "leave"), *arrive = mini_input(m, "arrive");
    int row[ROWS];
    leave[0] = arrive[0] = 0;
    for (int i = 0; i < ROWS; i++) {
        row[i] = i;
        order[i] = undo[i] = -1;
    }
    for (int i = ROWS - 1; i > 0; i--) {
        int k = (int)(random_bits(7 + (uint64_t)rank, (uint64_t)i) % (uint64_t)(i + 1));
        int swap = row[i];
        row[i] = row[k];
        row[k] = swap;
    }
    for (int i = 0; i < RANKS; i++) {
        leave[i + 1] = leave[i] + r->count[rank][i];
        arrive[i + 1] = arrive[i] + r->count[i][rank];
    }
    for (int i = 0; i < leave[RANKS]; i++) {
        order[i] = row[i];
        undo[row[i]] = i;
    }
}

static struct tensor noise(struct arena *a, struct tensor like, uint64_t key)
{
    struct tensor t = mini_like(a, like);
    for (int64_t i = 0; i < tensor_count(t); i++)
        ((float *)t.data)[i] = (float)mini_u(key, (uint64_t)i);
    return t;
}

/* The rows of each sender, from the values that it must have had. */
static bool arrived(struct mini *m, const struct round *r, int rank, struct tensor y)
{
    const float *at = y.data;
    int64_t n = 0;
    for (int from = 0; from < RANKS; from++) {
        struct arena_mark mark = arena_mark(m->arena);
        struct mini other = mini_make(m->arena, m->g, &ops_cpu);
        fill(&other, r, from);
        const int32_t *order = mini_input(&other, "order"),
                      *leave = mini_input(&other, "leave");
        for (int i = leave[rank]; i < leave[rank + 1]; i++, n++)
            for (int k = 0; k < WIDTH; k++)
                if (at[n * WIDTH + k] !=
                    (float)mini_u((uint64_t)from, (uint64_t)(order[i] * WIDTH + k)))
                    return fail("row %d of rank %d is not here", i, from);
        mini_free(&other);
        arena_reset(m->arena, mark);
    }
    for (int64_t i = n * WIDTH; i < ROWS * WIDTH; i++)
        if (at[i] != 0)
            return fail("something stands past the last row");
    return true;
}

/* Both nodes forward, then back with what their masks grant alone. */
static bool one_rank(struct rank *rank, void *arg)
{
    struct exchanging *x = arg;
    struct layout l = {.world = RANKS};
    struct mesh mesh;
    if (!mesh_make(&l, NULL, &mesh))
        return false;
    struct graph g = recorded(&rank->arena, &mesh, rank->rank);
    struct mini m = mini_make(&rank->arena, &g, &ops_cpu);
    int sorted = g.node[0].out[0], sent = g.node[1].out[0], first = g.node[0].in[0];
    m.rank = rank;
    m.poison = true;
    fill(&m, x->round, rank->rank);
    m.value[first] = noise(&rank->arena, m.value[first], (uint64_t)rank->rank);
    for (int k = 0; k < 2; k++) {
        struct run r = mini_forward_run(&m, &g.node[k]);
        g.node[k].kind->forward(&r);
    }
    struct tensor dy = noise(&rank->arena, m.value[sent], 50 + (uint64_t)rank->rank);
    struct tensor between = mini_like(&rank->arena, m.value[sorted]);
    struct tensor plain = mini_like(&rank->arena, m.value[first]);
    struct tensor sum = noise(&rank->arena, plain, 90);
    struct run r = mini_backward_run(&m, &g.node[1]);
    r.dout[0] = dy;
    r.din[0] = between;
    send.backward(&r);
    r = mini_backward_run(&m, &g.node[0]);
    r.dout[0] = between;
    r.din[0] = plain;
    sort.backward(&r);
    r.din[0] = sum;
    r.beta[0] = 1;
    sort.backward(&r);
    bool ok = arrived(&m, x->round, rank->rank, m.value[sent]);
    for (int64_t i = 0; i < tensor_count(sum) && ok; i++)       /* beta 1 adds */
        ok = ((float *)sum.data)[i] ==
             ((float *)plain.data)[i] + (float)mini_u(90, (uint64_t)i);
    x->there[rank->rank] = mini_dot(dy, m.value[sent]);
    x->back[rank->rank] = mini_dot(plain, m.value[first]);
    mini_free(&m);
    return ok || fail_in("rank %d", rank->rank);
}

static void rows_arrive_and_go_back(void **state)
{
    (void)state;
    for (int i = 0; i < COUNT(rounds); i++) {
        struct exchanging x = {.round = &rounds[i]};
        double there = 0, back = 0;
        assert_ok(world_run(RANKS, 60, one_rank, &x));
        for (int r = 0; r < RANKS; r++) {
            there += x.there[r];
            back += x.back[r];
        }
        assert_true(fabs(there - back) <= 1e-6 * (1 + fabs(there)));
        assert_true((there != 0) == (i < 3));
    }
}

/* Nobody has counted: bytes as if every member got `even` rows. */
static void a_plan_without_data_counts_even_rows(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct layout l = {.world = RANKS};
    struct mesh mesh;
    assert_ok(mesh_make(&l, NULL, &mesh));
    struct graph g = recorded(&a, &mesh, 1);
    const int member[RANKS] = {0, 1, 2, 3};
    struct traffic traffic = {0};
    struct comm c = comm_dry(&traffic, "dp", member, RANKS, 1);
    struct work work = {0};
    struct stream stream = {.work = &work};
    struct run r = {.ops = &ops_dry, .stream = &stream, .comm = &c,
                    .attr = g.node[1].attr};
    for (int i = 0; i < 3; i++) {
        const struct value *v = &g.value[g.node[1].in[i]];
        r.in[i] = tensor_dense(NULL, v->dtype, v->ndim, v->dim);
    }
    r.out[0] = r.in[0];
    send.forward(&r);
    double bytes = 4.0 * WIDTH * (ROWS / RANKS) * (RANKS - 1);
    assert_true(traffic.bytes[COMM_ALL_TO_ALL_COUNTS].inside == bytes);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_arrive_and_go_back),
        cmocka_unit_test(a_plan_without_data_counts_even_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
