/* test_expert_parallel.c - experts spread over ranks give what one rank gives, however
 * tokens come to them: a row of its own on each rank (or group of cp and tp ranks),
 * against one rank that takes all rows in turn.  Ranks are threads. */
#include "check.h"

#include "tests/model/case.h"

enum { ROOM = 24, MOST = 16, PARAMS = 64 };     /* tokens of a row; ranks */

struct trial {
    struct layout layout;
    struct decoder_options options;
    unsigned frozen;
    int active;                         /* experts of a token */
    bool crowded;                       /* everybody chooses the first experts */
    int live[MOST];                     /* tokens of each rank's row */
    /* of one rank with all rows: losses, gradients */
    double entropy, aux, norm, *grad[PARAMS];
    /* of the ranks */
    float overflow[MOST];
    uint64_t bits[MOST];                /* of loss and own gradients, before any sum */
};

static struct model_config small_config(const struct trial *t)
{
    struct model_config c = case_config();
    c.has_vision = false;
    c.decoder.layers = 3;
    c.decoder.moe[0] = c.decoder.moe[2] = true;
    c.decoder.moe[1] = false;
    c.decoder.experts = 8;
    c.decoder.active = t->active;
    c.decoder.expert_hidden = 12;
    return c;
}

static void record(const struct trial *t, struct graph *g, struct decoder_graph *d)
{
    struct model_config c = small_config(t);
    struct capacity cap = {.tokens = ROOM, .segments = 2};
    decoder_record(g, &c.decoder, &cap, NULL, &t->options, d);
    graph_check(g);
    graph_freeze(g, t->frozen);
}

static int rows_of(const struct trial *t)
{
    return t->layout.world / (MAX(t->layout.tp, 1) * MAX(t->layout.cp, 1));
}

/* The row of rank `r`: two samples, every second token supervised. */
static void fill_row(struct mini *m, const struct trial *t, int r)
{
    int live = t->live[r], all = 0, supervised = 0;
    for (int i = 0; i < rows_of(t); i++) {
        all += t->live[i];
        supervised += t->live[i] / 2;
    }
    int32_t *id = mini_input(m, "input"), *position = mini_input(m, "position");
    int32_t *target = mini_input(m, "target"), *segment = mini_input(m, "segment");
    for (int i = 0; i < ROOM; i++) {
        uint64_t key = (uint64_t)(100 * r + i);
        id[i] = i < live ? (int32_t)(key * 2654435761u >> 8) & 63 : 0;
        for (int k = 0; k < 3; k++)
            position[3 * i + k] = i < live / 3 ? i : i - live / 3;
        target[i] = i < live && i % 2 ? (int32_t)(key * 40503u >> 4) & 63 : IGNORE;
    }
    segment[0] = 0;
    segment[1] = live / 3;
    segment[2] = live;
    *(int32_t *)mini_input(m, "live") = live;
    *(float *)mini_input(m, "scale") = 1.0f / (float)MAX(1, supervised);
    *(float *)mini_input(m, "share") = (float)live / (float)MAX(1, all);
    float *bias = mini_input(m, "router_bias");
    for (int i = 0; i < 2 * 8; i++)
        bias[i] = t->crowded && i % 8 < t->active ? 100 : 0;
}

/* One rank, all rows in turn: t->loss, t->grad. */
static void alone(struct arena *a, struct trial *t)
{
    struct graph g = graph_make(a);
    struct decoder_graph d;
    record(t, &g, &d);
    struct mini m = mini_make(a, &g, &ops_cpu);
    case_weights(&m, 300);
    t->entropy = t->aux = 0;
    assert_true(g.nparam <= PARAMS && d.overflow == NONE);
    for (int64_t p = 0; p < g.nparam; p++)
        t->grad[p] = NEW(a, double, g.param[p].count);
    for (int r = 0; r < rows_of(t); r++) {
        fill_row(&m, t, r);
        mini_forward(&m);
        mini_backward(&m);
        t->entropy += (double)mini_value(&m, d.cross_entropy);
        t->aux += (double)mini_value(&m, d.router_loss);
        for (int64_t p = 0; p < g.nparam; p++)
            for (int64_t i = 0; i < g.param[p].count && m.written[p]; i++)
                t->grad[p][i] += (double)((float *)m.dparam[p].data)[i];
    }
    double squares = 0;
    for (int64_t p = 0; p < g.nparam; p++)
        for (int64_t i = 0; i < g.param[p].count; i++)
            squares += t->grad[p][i] * t->grad[p][i];
    t->norm = sqrt(squares);
    mini_free(&m);
}

static uint64_t mixed(uint64_t hash, struct tensor t)
{
    const uint8_t *at = t.data;
    for (int64_t i = 0; i < tensor_count(t) * dtype_bytes(t.dtype); i++)
        hash = (hash ^ at[i]) * 0x100000001B3u;
    return hash;
}

/* Sum over all holders; every one of them has the same bits then. */
static bool summed(struct mini *m, int p)
{
    const struct param *q = &m->g->param[p];
    const struct unit *u = &m->g->unit[q->unit];
    const struct comm *c = mini_comm(m, u->experts, holder_axes(u->split));
    float *all = NEW(m->arena, float, q->count * c->size);
    if (!comm_all_reduce(c, DTYPE_F32, m->dparam[p].data, q->count) ||
        !comm_all_gather(c, DTYPE_F32, m->dparam[p].data, all, q->count))
        return false;
    for (int r = 0; r < c->size; r++)
        if (memcmp(all + r * q->count, all, sizeof *all * (size_t)q->count) != 0)
            return fail("%s: holder %d has other bits", q->name, r);
    return true;
}

static bool near(const struct trial *t, const struct mini *m, int p)
{
    const struct param *q = &m->g->param[p];
    const float *found = m->dparam[p].data;
    double apart = 0, size = 0;
    for (int64_t i = 0; i < q->count; i++) {
        double want = t->grad[p][box_global(&q->box, i)];
        apart += ((double)found[i] - want) * ((double)found[i] - want);
        size += want * want;
    }
    if (sqrt(apart) <= 1e-5 * sqrt(size) + 1e-7 * t->norm)      /* zero but rounding */
        return true;
    return fail("%s: gradient is %.3g of %.3g away from one rank's", q->name,
                sqrt(apart), sqrt(size));
}

static bool number_near(const char *name, double found, double want)
{
    if (fabs(found - want) <= 1e-5 * fabs(want) + 1e-9)
        return true;
    return fail("%s %.9g, one rank's %.9g", name, found, want);
}

static bool sum_of(struct mini *m, int value, unsigned along, double *sum)
{
    float x = mini_value(m, value);
    bool ok = comm_all_reduce(mini_comm(m, false, along), DTYPE_F32, &x, 1);
    *sum = (double)x;
    return ok;
}

static bool all_finite(const struct mini *m)
{
    const struct graph *g = m->g;
    for (int64_t v = 0; v < g->nvalue; v++) {
        bool real = g->value[v].dtype == DTYPE_F32 && g->value[v].node >= 0;
        if (real && !mini_finite(m->value[v]))
            return fail("value %s is not finite", g->value[v].name);
        if (m->wants[v] && m->given[v] && !mini_finite(m->grad[v]))
            return fail("gradient of %s is not finite", g->value[v].name);
    }
    return true;
}

static bool one_rank(struct rank *r, void *arg)
{
    struct trial *t = arg;
    struct mesh mesh;
    if (!mesh_make(&t->layout, NULL, &mesh))
        return false;
    struct graph g = graph_make(&r->arena);
    g.mesh = &mesh;
    g.rank = r->rank;
    struct decoder_graph d;
    record(t, &g, &d);
    struct mini m = mini_make(&r->arena, &g, &ops_cpu);
    m.rank = r;
    m.poison = true;
    case_weights(&m, 300);
    fill_row(&m, t, view_group_number(&mesh.dense, r->rank, ON(AXIS_CP) | ON(AXIS_TP)));
    mini_forward(&m);
    mini_backward(&m);
    bool ok = all_finite(&m);
    t->overflow[r->rank] = d.overflow == NONE ? -1 : mini_value(&m, d.overflow);
    uint64_t bits = mixed(14695981039346656037u, m.value[d.loss]);
    for (int64_t p = 0; p < g.nparam; p++)
        if (g.param[p].trainable && m.written[p])
            bits = mixed(bits, m.dparam[p]);
    t->bits[r->rank] = bits;
    double entropy = 0, aux = 0, over = 0;
    ok = ok && sum_of(&m, d.cross_entropy, ON_DP, &entropy) &&
         sum_of(&m, d.router_loss, ON_DP, &aux) &&
         (d.overflow == NONE || sum_of(&m, d.overflow, ~0u, &over));
    if (ok && over == 0)
        ok = number_near("cross entropy", entropy, t->entropy) &&
             number_near("router loss", aux, t->aux);
    for (int p = 0; p < g.nparam && ok && over == 0; p++)
        if (g.param[p].trainable && m.written[p])
            ok = summed(&m, p) && near(t, &m, p);
    mini_free(&m);
    return ok;
}

/* Runs it twice: the second time must give the same bits. */
static void run_ranks(struct trial *t)
{
    uint64_t before[MOST];
    int world = t->layout.world;
    for (int again = 0; again < 2; again++) {
        if (!world_run(world, 60, one_rank, t))
            fail_msg("cp %d tp %d ep %d etp %d of %d ranks, %s: %s", t->layout.cp,
                     t->layout.tp, t->layout.ep, t->layout.etp, world,
                     dispatcher_name[t->options.dispatcher], fail_message());
        if (again)
            assert_memory_equal(before, t->bits, sizeof *before * (size_t)world);
        memcpy(before, t->bits, sizeof before);
    }
}

static struct trial trial_of(int world, int ep, int etp)
{
    return (struct trial){
        .layout = {.world = world, .ep = ep, .etp = etp},
        .options = {.aux_coef = 0.02, .z_coef = 0.003, .bias = true, .loss = true},
        .active = 2,
        .live = {24, 17, 9, 22, 3, 24, 11, 6, 20, 1, 24, 13, 8, 19, 5, 16},
    };
}

static void with_both(struct trial t, float overflow)
{
    struct arena a = arena_make("trial");
    alone(&a, &t);
    for (int k = 0; k < DISPATCHERS; k++) {
        t.options.dispatcher = (enum dispatcher)k;
        run_ranks(&t);
        for (int r = 0; r < t.layout.world; r++)
            assert_true(t.overflow[r] == overflow);
    }
    arena_free(&a);
}

static void test_every_layout(void **state)
{
    (void)state;
    static const int layout[][3] = {
        {2, 2, 1}, {4, 4, 1}, {4, 2, 1}, {8, 8, 1}, {4, 2, 2}, {8, 2, 2}, {8, 4, 2},
        {8, 2, 4},
    };
    for (int i = 0; i < COUNT(layout); i++)
        with_both(trial_of(layout[i][0], layout[i][1], layout[i][2]), 0);
    with_both(trial_of(2, 1, 2), -1);
    with_both(trial_of(4, 1, 2), -1);
    with_both(trial_of(2, 1, 1), -1);
}

/* Ranks that share a row are ranks of the ep and etp groups as well. */
static void test_folded_layouts(void **state)
{
    (void)state;
    static const int layout[][5] = {    /* ranks, cp, tp, ep, etp */
        {2, 1, 2, 2, 1}, {4, 1, 2, 4, 1}, {4, 1, 2, 2, 2}, {2, 2, 1, 2, 1},
        {4, 2, 1, 4, 1}, {8, 2, 2, 4, 2}, {8, 2, 2, 8, 1}, {8, 1, 2, 2, 1},
    };
    for (int i = 0; i < COUNT(layout); i++) {
        struct trial t = trial_of(layout[i][0], layout[i][3], layout[i][4]);
        t.layout.cp = layout[i][1];
        t.layout.tp = layout[i][2];
        with_both(t, 0);
    }
}

/* Few tokens, none, odd counts; all but one rank empty; nobody has anything. */
static void test_uneven_rows(void **state)
{
    (void)state;
    static const int live[][4] = {
        {5, 3, 24, 1}, {0, 8, 0, 24}, {1, 0, 0, 0}, {0, 0, 0, 7}, {0, 0, 0, 0},
    };
    for (int i = 0; i < COUNT(live); i++)
        for (int etp = 1; etp <= 2; etp++) {
            struct trial t = trial_of(4, 4 / etp, etp);
            memcpy(t.live, live[i], sizeof live[i]);
            with_both(t, 0);
        }
}

static void test_all_to_one(void **state)
{
    (void)state;
    for (int active = 1; active <= 3; active++)
        for (int etp = 1; etp <= 2; etp++) {
            struct trial t = trial_of(4, 4 / etp, etp);
            t.active = active;
            t.crowded = true;
            with_both(t, 0);
        }
}

/* All experts active: every rank sends a row of each token to every owner. */
static void test_all_active(void **state)
{
    (void)state;
    struct trial t = trial_of(4, 4, 1);
    t.active = 8;
    t.options.capacity = 1;
    with_both(t, 0);
}

static void test_frozen_parts(void **state)
{
    (void)state;
    const unsigned all = (1u << PARTS) - 1;
    const unsigned frozen[] = {
        1u << PART_EXPERTS, 1u << PART_ROUTER, all & ~(1u << PART_EXPERTS),
        all & ~(1u << PART_ROUTER), all & ~(1u << PART_EMBEDDINGS),
    };
    for (int i = 0; i < COUNT(frozen); i++)
        for (int etp = 1; etp <= 2; etp++) {
            struct trial t = trial_of(4, 2, etp);
            t.frozen = frozen[i];
            with_both(t, 0);
        }
}

/* Room for a balanced load is not enough when all choose the same rank.  It says so,
 * what it computes is finite, and with more room the step is exact. */
static void test_overflow(void **state)
{
    (void)state;
    for (int etp = 1; etp <= 2; etp++)
        for (int k = 0; k < DISPATCHERS; k++) {
            struct arena a = arena_make("trial");
            struct trial t = trial_of(4, 4 / etp, etp);
            t.crowded = true;
            t.options.dispatcher = (enum dispatcher)k;
            t.options.capacity = 1;
            alone(&a, &t);
            run_ranks(&t);
            float sum = 0;
            for (int r = 0; r < 4; r++)
                sum += t.overflow[r];
            /* both layers; alltoall: every rank knows of every owner */
            assert_true(sum == 2 * (float)(k == DISPATCHER_ALLTOALL ? 4 : etp));
            t.options.capacity = 4;
            run_ranks(&t);
            for (int r = 0; r < 4; r++)
                assert_true(t.overflow[r] == 0);
            arena_free(&a);
        }
}

/* Half full rows that all go to one of four ranks need twice the balanced room: 96
 * rows, of which capacity 1.97 has one less. */
static void test_room_to_the_row(void **state)
{
    (void)state;
    static const double capacity[] = {2, 1.98, 1.97};
    for (int i = 0; i < COUNT(capacity); i++)
        for (int k = 0; k < DISPATCHERS; k++) {
            struct arena a = arena_make("trial");
            struct trial t = trial_of(4, 4, 1);
            t.crowded = true;
            for (int r = 0; r < 4; r++)
                t.live[r] = ROOM / 2;
            t.options.dispatcher = (enum dispatcher)k;
            t.options.capacity = capacity[i];
            alone(&a, &t);
            run_ranks(&t);
            assert_true(t.overflow[0] == (i < 2 ? 0 : 2));
            arena_free(&a);
        }
}

/* Capacity changes how much room there is, never a bit of what is computed. */
static void test_room_changes_no_bit(void **state)
{
    (void)state;
    for (int k = 0; k < DISPATCHERS; k++) {
        struct arena a = arena_make("trial");
        struct trial t = trial_of(4, 4, 1);
        t.options.dispatcher = (enum dispatcher)k;
        alone(&a, &t);
        run_ranks(&t);
        uint64_t before[MOST];
        memcpy(before, t.bits, sizeof before);
        t.options.capacity = 2.6;
        run_ranks(&t);
        assert_memory_equal(before, t.bits, 4 * sizeof *before);
        assert_true(t.overflow[0] == 0);
        arena_free(&a);
    }
}

/* Without data a plan still runs: counts are taken as if balanced. */
static void test_dry_counts_bytes(void **state)
{
    (void)state;
    struct arena a = arena_make("trial");
    struct trial t = trial_of(4, 4, 1);
    struct mesh mesh;
    assert_ok(mesh_make(&t.layout, NULL, &mesh));
    struct graph g = graph_make(&a);
    g.mesh = &mesh;
    struct decoder_graph d;
    record(&t, &g, &d);
    struct work work = {0};
    struct stream stream = {.work = &work};
    struct traffic traffic = {0};
    int member[] = {0, 1, 2, 3};
    struct comm comm = comm_dry(&traffic, "ep", member, 4, 0);
    for (int64_t k = 0; k < g.nnode; k++) {
        const struct node *n = &g.node[k];
        if (!n->along)
            continue;
        struct run r = {.ops = &ops_dry, .stream = &stream, .attr = n->attr,
                        .comm = &comm};
        for (int i = 0; i < n->nin; i++) {
            const struct value *v = &g.value[n->in[i]];
            r.in[i] = r.din[i] = tensor_dense(NULL, v->dtype, v->ndim, v->dim);
        }
        for (int i = 0; i < n->nout; i++) {
            const struct value *v = &g.value[n->out[i]];
            r.out[i] = r.dout[i] = tensor_dense(NULL, v->dtype, v->ndim, v->dim);
        }
        n->kind->forward(&r);
        if (n->kind->backward)
            n->kind->backward(&r);
    }
    /* 2 layers, there and back, forward and backward: 3 of 4 rows go elsewhere */
    const struct link_bytes *b = &traffic.bytes[COMM_ALL_TO_ALL_COUNTS];
    assert_int_equal(traffic.calls[COMM_ALL_TO_ALL_COUNTS], 8);
    assert_true(b->inside == 8.0 * ROOM * 2 * 24 * 4 * 3 / 4 && b->across == 0);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_layout),
        cmocka_unit_test(test_folded_layouts),
        cmocka_unit_test(test_uneven_rows),
        cmocka_unit_test(test_all_to_one),
        cmocka_unit_test(test_all_active),
        cmocka_unit_test(test_frozen_parts),
        cmocka_unit_test(test_overflow),
        cmocka_unit_test(test_room_to_the_row),
        cmocka_unit_test(test_room_changes_no_bit),
        cmocka_unit_test(test_dry_counts_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
