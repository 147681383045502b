/* test_mesh.c - views, groups, holders: against coordinates written down by hand and by
 * brute force; and that what cannot be is refused with what could. */
#include "check.h"

#include "base/random.h"
#include "parallel/mesh.h"

enum { MOST = 2048 };

/* Coordinates found by counting up all ranks, the last axis fastest. */
static void count_up(const struct view *v, int at[][AXES])
{
    int now[AXES] = {0}, world = view_world(v);
    for (int r = 0; r < world; r++) {
        memcpy(at[r], now, sizeof now);
        for (int i = v->naxis - 1; i >= 0; i--) {
            if (++now[v->axis[i]] < v->size[i])
                break;
            now[v->axis[i]] = 0;
        }
    }
}

static bool only_along(const int *a, const int *b, unsigned along)
{
    for (int x = 0; x < AXES; x++)
        if (a[x] != b[x] && !(along & ON(x)))
            return false;
    return true;
}

static void check_view(const struct view *v)
{
    static int at[MOST][AXES];
    int world = view_world(v), member[MOST];
    count_up(v, at);
    for (int r = 0; r < world; r++) {
        for (int x = 0; x < AXES; x++)
            assert_int_equal(view_at(v, r, (enum axis)x), at[r][x]);
        assert_int_equal(view_rank(v, at[r]), r);
        for (int i = 0; i < v->naxis; i++) {
            int moved[AXES];
            memcpy(moved, at[r], sizeof moved);
            moved[v->axis[i]] = v->size[i] - 1;
            assert_int_equal(view_peer(v, r, v->axis[i], v->size[i] - 1),
                             view_rank(v, moved));
        }
    }
    for (unsigned along = 0; along < 1u << AXES; along++) {
        unsigned seen = 0;
        for (int i = 0; i < v->naxis; i++)
            seen |= along & ON(v->axis[i]);
        if (seen != along && along % 7)         /* absent axes change nothing: sample */
            continue;
        int size = view_group_size(v, along), seats[MOST] = {0};
        assert_int_equal(world % size, 0);
        for (int r = 0; r < world; r += world > 64 ? 37 : 1) {
            int n = 0, own = -1;
            assert_int_equal(view_group(v, r, along, member), size);
            for (int other = 0; other < world; other++)
                if (only_along(at[r], at[other], along)) {
                    own = other == r ? n : own;
                    assert_int_equal(member[n++], other);
                }
            assert_int_equal(n, size);
            assert_int_equal(view_group_index(v, r, along), own);
            int number = view_group_number(v, r, along);
            assert_in_range(number, 0, world / size - 1);
            assert_int_equal(number, view_group_number(v, member[0], along));
            seats[number * size + own]++;
        }
        for (int i = 0; i < world && world <= 64; i++)  /* each in exactly one group */
            assert_int_equal(seats[i], 1);
    }
}

static void check_mesh(const struct mesh *m)
{
    const struct layout *l = &m->layout;
    check_view(&m->dense);
    check_view(&m->expert);
    check_view(&m->vision);
    assert_int_equal(view_world(&m->dense), l->world);
    assert_int_equal(view_world(&m->expert), l->world);
    assert_int_equal(view_world(&m->vision), l->world);
    assert_int_equal(m->edp * l->replicate * l->ep * l->etp, l->dp * l->cp * l->tp);
    assert_int_equal(m->vdp * l->replicate * l->pp, l->world);
    for (int r = 0; r < l->world; r++)          /* the same stages and copies */
        for (enum axis x = AXIS_PP; x <= AXIS_REPLICATE; x++) {
            assert_int_equal(view_at(&m->dense, r, x), view_at(&m->expert, r, x));
            assert_int_equal(view_at(&m->dense, r, x), view_at(&m->vision, r, x));
        }
    /* A piece's holders times the pieces are a stage, and holders agree on who they
     * are. */
    static const struct { bool experts; unsigned split; } kinds[] = {
        {false, 0}, {false, ON(AXIS_TP)}, {true, ON(AXIS_EP)},
        {true, ON(AXIS_EP) | ON(AXIS_ETP)},
    };
    for (int k = 0; k < COUNT(kinds); k++) {
        const struct view *v = mesh_view(m, kinds[k].experts);
        int member[MOST], holds[MOST] = {0};
        for (int r = 0; r < l->world; r++) {
            int n = view_holders(v, r, kinds[k].split, member);
            assert_int_equal(n * view_group_size(v, kinds[k].split), l->world / l->pp);
            for (int i = 0; i < n; i++) {
                holds[member[i]]++;
                assert_int_equal(view_at(v, member[i], AXIS_PP),
                                 view_at(v, r, AXIS_PP));
                assert_int_equal(view_group_index(v, member[i], kinds[k].split),
                                 view_group_index(v, r, kinds[k].split));
            }
        }
        int n = view_holders(v, 0, kinds[k].split, NULL);
        for (int r = 0; r < l->world; r++)
            assert_int_equal(holds[r], n);
    }
}

static void test_laws(void **state)
{
    (void)state;
    int made = 0;
    static const int size[] = {1, 2, 3, 4};
    for (int i = 0; i < 4 * 4 * 4 * 4; i++) {
        struct layout l = {.pp = size[i % 4], .dp = size[i / 4 % 4],
                           .cp = size[i / 16 % 4], .tp = size[i / 64]};
        l.world = l.pp * l.dp * l.cp * l.tp;
        if (l.world > 64)
            continue;
        for (l.replicate = 1; l.replicate <= l.dp; l.replicate++)
            for (l.ep = 1; l.ep <= l.world; l.ep++)
                for (l.etp = 1; l.etp <= 4; l.etp++) {
                    int block = l.dp / l.replicate * l.cp * l.tp;
                    bool legal = l.dp % l.replicate == 0 && block % (l.ep * l.etp) == 0;
                    struct mesh m;
                    if (mesh_make(&l, NULL, &m) != legal)
                        fail_msg("world %d: %s", l.world, fail_message());
                    if (legal && random_bits(7, (uint64_t)made++) % 16 == 0)
                        check_mesh(&m);
                }
    }
    assert_true(made > 1000);
}

static void is_list(const struct view *v, int rank, unsigned along, int n,
                    const int *expected)
{
    int member[16];
    assert_int_equal(view_group(v, rank, along, member), n);
    assert_memory_equal(member, expected, sizeof *member * (size_t)n);
}

/* 16 ranks, experts folded over cp x tp. */
static void test_folding(void **state)
{
    (void)state;
    struct mesh m;
    struct layout l = {.world = 16, .pp = 2, .dp = 2, .cp = 2, .tp = 2, .ep = 4};
    assert_ok(mesh_make(&l, NULL, &m));
    unsigned expert = ON(AXIS_EP) | ON(AXIS_ETP);
    is_list(&m.expert, 5, ON(AXIS_EP), 4, (int[]){4, 5, 6, 7});
    is_list(&m.dense, 5, holder_axes(ON(AXIS_TP)), 4, (int[]){1, 3, 5, 7});
    is_list(&m.dense, 5, holder_axes(0), 8, (int[]){0, 1, 2, 3, 4, 5, 6, 7});
    is_list(&m.expert, 5, holder_axes(expert), 2, (int[]){1, 5});
    is_list(&m.dense, 5, ON(AXIS_PP), 2, (int[]){5, 13});
    is_list(&m.dense, 5, ON(AXIS_TP), 2, (int[]){4, 5});
    is_list(&m.vision, 13, ON(AXIS_VDP), 8, (int[]){8, 9, 10, 11, 12, 13, 14, 15});

    /* two copies of dp 4: what is sharded stays inside a copy */
    l = (struct layout){.world = 16, .dp = 4, .replicate = 2, .cp = 2, .tp = 2,
                        .ep = 2};
    assert_ok(mesh_make(&l, NULL, &m));
    unsigned inside = ~ON(AXIS_REPLICATE);
    is_list(&m.dense, 9, holder_axes(0) & inside, 8,
            (int[]){8, 9, 10, 11, 12, 13, 14, 15});
    is_list(&m.dense, 9, holder_axes(ON(AXIS_TP)) & inside, 4, (int[]){9, 11, 13, 15});
    is_list(&m.expert, 9, holder_axes(expert) & inside, 4, (int[]){9, 11, 13, 15});
    is_list(&m.expert, 9, ON(AXIS_REPLICATE), 2, (int[]){1, 9});
    is_list(&m.dense, 9, ON_DP, 4, (int[]){1, 5, 9, 13});
}

static void test_open_sizes(void **state)
{
    (void)state;
    struct mesh m;
    assert_ok(mesh_make(&(struct layout){.world = 24, .tp = 2, .pp = 3}, NULL, &m));
    assert_int_equal(m.layout.dp, 4);
    assert_int_equal(m.layout.ep, 1);
    assert_int_equal(m.edp, 8);
}

static void refused(struct layout l, const struct mesh_limits *limits, const char *why)
{
    struct mesh m;
    assert_fails(mesh_make(&l, limits, &m), why);
    assert_int_equal(fail_fault(), FAULT_USAGE);
}

static void test_refusals(void **state)
{
    (void)state;
    const struct mesh_limits m = {
        .heads = 8, .groups = 4, .hidden = 96, .vocabulary = 1000, .vision_heads = 4,
        .vision_hidden = 64, .merger_hidden = 128, .experts = 12, .expert_hidden = 48,
        .pieces = 6, .chunks = 2, .tokens = 96,
    };
    const struct mesh_limits heads = {.heads = 8};
    refused((struct layout){.world = 24, .tp = 3}, &heads,
            "tp 3 does not divide 8 query heads; legal tp: 1 2 4 8 (nearest 2)");
    refused((struct layout){.world = 24, .tp = 8}, &m,
            "tp 8 does not divide 4 vision heads; legal tp: 1 2 4 (nearest 4)");
    refused((struct layout){.world = 24, .tp = 4},
            &(struct mesh_limits){.heads = 12, .groups = 6},
            "tp 4 does not divide 6 key/value heads; legal tp: 1 2 3 6 12 (nearest 3)");
    refused((struct layout){.world = 8, .tp = 8},
            &(struct mesh_limits){.heads = 8, .shared_hidden = 12},
            "tp 8 does not divide 12 hidden columns of the shared expert; legal tp: 1 "
            "2 4 (nearest 4)");
    refused((struct layout){.world = 24, .pp = 4}, &m,
            "pp 4 x 2 chunks are more stages than the 6 pieces the model can be cut "
            "into; legal pp: 1 2 3 (nearest 3)");
    refused((struct layout){.world = 24, .pp = 5}, NULL,
            "pp 5 does not divide 24 ranks; legal pp: 1 2 3 4 6 8 12 24 (nearest 4)");
    refused((struct layout){.world = 24, .pp = 3, .tp = 3}, NULL,
            "pp 3 x tp 3 = 9 does not divide 24 ranks; legal tp: 1 2 4 8 (nearest 2)");
    refused((struct layout){.world = 20, .cp = 5}, &m,
            "2 x cp 5 x tp 1 = 10 pieces do not divide 96 tokens of a row; legal cp: 1 "
            "2 4 (nearest 4)");
    refused((struct layout){.world = 24, .cp = 7}, NULL,
            "pp 1 x cp 7 x tp 1 = 7 does not divide 24 ranks");
    refused((struct layout){.world = 16, .pp = 2, .dp = 3, .tp = 2}, &m,
            "pp 2 x dp 3 x cp 1 x tp 2 = 12, but there are 16 ranks; legal dp: 4 ");
    refused((struct layout){.world = 16, .replicate = 3}, NULL,
            "replicate 3 does not divide 16 data-parallel ranks; legal replicate: 1 2 "
            "4 8 16 (nearest 2)");
    refused((struct layout){.world = 16, .ep = 3}, &m,
            "ep 3 does not divide the 16 ranks of dp 16 x cp 1 x tp 1; legal ep: 1 2 4 "
            "(nearest 2)");
    refused((struct layout){.world = 16, .ep = 8}, &m,
            "ep 8 does not divide 12 experts; legal ep: 1 2 4 (nearest 4)");
    refused((struct layout){.world = 16, .replicate = 8, .ep = 4}, &m,
            "ep 4 does not divide the 2 ranks of dp 2 x cp 1 x tp 1; legal ep: 1 2 ");
    refused((struct layout){.world = 16, .ep = 4, .etp = 8}, &m,
            "ep 4 x etp 8 = 32 does not divide the 16 ranks of dp 16 x cp 1 x tp 1; "
            "legal etp: 1 2 4 (nearest 4)");
    refused((struct layout){.world = 64, .etp = 32}, &m,
            "etp 32 does not divide 48 hidden columns of an expert");
    refused((struct layout){.world = 4, .tp = 8}, NULL, "tp 8 is outside 1 to 4 (");
    refused((struct layout){.world = 4, .cp = -1}, NULL, "cp -1 is outside 1 to 4");
    refused((struct layout){.world = 0}, NULL, "0 ranks, expected 1 to");
    refused((struct layout){.world = 4, .node = -8}, NULL, "-8 ranks a node");
    refused((struct layout){.world = 2, .pp = 1}, &(struct mesh_limits){.pieces = 1,
            .chunks = 2}, "no pp is legal here");
    for (int64_t tokens = 1; tokens < 64; tokens++) {   /* two zig-zag parts a rank */
        struct mesh_limits row = {.tokens = tokens};
        struct mesh out;
        struct layout l = {.world = 8, .cp = 2, .tp = 2};
        assert_int_equal(mesh_make(&l, &row, &out), tokens % 8 == 0);
    }
}

static uint64_t drawn;
static int pick(int most)               /* 1 to most */
{
    return 1 + (int)(random_bits(11, drawn++) % (uint64_t)most);
}

/* What is called legal must be so, whatever the limits. */
static void test_nearest_is_legal(void **state)
{
    (void)state;
    int refusals = 0;
    for (int i = 0; i < 3000; i++) {
        struct mesh_limits m = {
            .heads = 4 * pick(4), .groups = pick(4), .experts = 4 * pick(8),
            .expert_hidden = 8 * pick(4), .pieces = pick(12), .chunks = 1,
            .tokens = 48 * pick(8),
        };
        struct layout l = {.world = 12 * pick(4), .pp = pick(4), .tp = pick(6),
                           .cp = pick(3), .ep = pick(8), .etp = pick(3)};
        struct mesh out;
        for (int tries = 0; !mesh_make(&l, &m, &out); tries++) {
            const char *at = strstr(fail_message(), "(nearest ");
            const char *name = strstr(fail_message(), "; legal ");
            assert_non_null(at);
            int value = (int)strtol(at + 9, NULL, 10);
            const char *end = strchr(name += 8, ':');
            static const struct { const char *name; size_t at; } knobs[] = {
                {"pp", offsetof(struct layout, pp)},
                {"tp", offsetof(struct layout, tp)},
                {"cp", offsetof(struct layout, cp)},
                {"ep", offsetof(struct layout, ep)},
                {"etp", offsetof(struct layout, etp)},
            };
            for (int k = 0; k < COUNT(knobs); k++)
                if (strlen(knobs[k].name) == (size_t)(end - name) &&
                    strncmp(knobs[k].name, name, (size_t)(end - name)) == 0)
                    *(int *)((char *)&l + knobs[k].at) = value;
            assert_in_range(tries, 0, 5);       /* each setting is mended once */
            refusals++;
        }
    }
    assert_true(refusals > 1000);
}

static void test_text(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct mesh m;
    struct layout l = {.world = 32, .pp = 2, .dp = 4, .replicate = 2, .cp = 2, .tp = 2,
                       .ep = 4, .node = 8};
    assert_ok(mesh_make(&l, NULL, &m));
    assert_string_equal(mesh_text(&m, &a),
        "mesh of 32 ranks, 8 a node\n"
        "dense   pp 2 x replicate 2 x shard 2 x cp 2 x tp 2 = 32\n"
        "expert  pp 2 x replicate 2 x edp 2 x ep 4 x etp 1 = 32\n"
        "vision  pp 2 x replicate 2 x vdp 8 = 32\n"
        "a stage: dp 4 x cp 2 x tp 2 = edp 4 x ep 4 x etp 1 = 16\n"
        "groups of rank 0\n"
        "  tp                        2 ranks: 0 1\n"
        "  cp                        2 ranks: 0 2\n"
        "  dp                        4 ranks: 0 4 8 12, across nodes\n"
        "  replicate                 2 ranks: 0 8, across nodes\n"
        "  ep                        4 ranks: 0 1 2 3\n"
        "  pp                        2 ranks: 0 16, across nodes\n"
        "  holders of a norm        16 ranks: 0 1 2 3 4 5 6 7 ..., across nodes\n"
        "  holders of a tp weight    8 ranks: 0 2 4 6 8 10 12 14, across nodes\n"
        "  holders of an expert      4 ranks: 0 4 8 12, across nodes\n");
    assert_int_equal(mesh_node(&m, 17), 2);
    arena_free(&a);
}

/* A step of planning asks for a few groups of every rank: that must stay cheap. */
static void test_many_ranks(void **state)
{
    (void)state;
    struct mesh m;
    struct layout l = {.world = 16384, .pp = 16, .cp = 2, .tp = 4, .ep = 32};
    assert_ok(mesh_make(&l, NULL, &m));
    static int member[16384];
    double start = check_seconds();
    int64_t sum = 0;
    for (int r = 0; r < l.world; r++) {
        sum += view_group(&m.dense, r, ON(AXIS_TP), member);
        sum += view_group(&m.dense, r, ON(AXIS_PP), member);
        sum += view_group(&m.expert, r, ON(AXIS_EP), member);
        sum += view_group_number(&m.dense, r, holder_axes(0));
    }
    assert_true(sum > 0);
    if (check_seconds() - start > 1)            /* measured: well under 0.1 */
        fail_msg("%g s", check_seconds() - start);
    l = (struct layout){.world = 2048, .pp = 8, .cp = 2, .tp = 4, .ep = 32};
    assert_ok(mesh_make(&l, NULL, &m));
    check_mesh(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_laws),
        cmocka_unit_test(test_folding),
        cmocka_unit_test(test_open_sizes),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_nearest_is_legal),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_many_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
