/* test_predict.c - laws of what vlmoe plan predicts, and what it says beside. */
#include "check.h"

#include "base/text.h"
#include "recipe/hardware.h"
#include "outlook/outlook.h"

#include <jansson.h>
#include <math.h>

static const struct outlook_options plain = {.rank = -1};

static void recipe_of(struct arena *a, const char *path, const char *overrides,
                      struct recipe *r)
{
    char **word;
    int words = text_split(a, overrides, ";", &word);
    assert_ok(recipe_read(a, path, (const char *const *)word, words, r));
}

static void open_ok(struct arena *a, const char *path, const char *overrides,
                    struct recipe *r, struct outlook *o)
{
    recipe_of(a, path, overrides, r);
    assert_ok(outlook_open(o, r, &plain));
}

static const char small[] = "recipes/quickstart.yaml";

/* More room for routed rows: nothing takes less time.  Placement is kept out of it
 * (much slack): what larger buffers do to it may move waits either way. */
static void room_is_not_speed(void **state)
{
    (void)state;
    static const char *const room[] = {"1", "1.1", "2", "4"};
    static const char *const layout[] = {
        "parallel.dp=4;parallel.ep=4", "parallel.dp=4;parallel.ep=2;parallel.etp=2",
        "parallel.dp=4;parallel.ep=4;moe.dispatcher=allgather",
    };
    for (int k = 0; k < COUNT(layout); k++) {
        struct arena a = arena_make("test");
        double before = 0, seconds = 0;
        int64_t bytes = 0;
        for (int i = 0; i < COUNT(room); i++) {
            struct recipe r;
            struct outlook o;
            double sum = 0;
            open_ok(&a, small, arena_text(&a, "%s;moe.capacity=%s;batch.rows=4;"
                    "sample.every=0;memory.slack=4;plan.hardware=h200", layout[k],
                    room[i]), &r, &o);
            const struct outlook_stage *s = o.stage;
            for (int64_t j = 0; j < s->session.plan->nstep; j++)
                sum += s->cost[j];
            assert_true(sum >= before * (1 - 1e-12));
            assert_true(o.seconds >= seconds * (1 - 1e-12));
            assert_true(s->session.plan->live_bytes >= bytes);
            if (k < 2 && i == 1)        /* as many rows are there: all but lists */
                assert_true(fabs(sum / before - 1) < 1e-3);
            before = sum;
            seconds = o.seconds;
            bytes = s->session.plan->live_bytes;
            outlook_close(&o);
        }
        arena_free(&a);
    }
}

/* Attention in a ring multiplies as much as after a gather: that is compute; what its
 * blocks take to go round is communication. */
static void a_ring_computes(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct recipe r[2];
    struct outlook o[2];
    double attention[2] = {0}, sent = 0, talk = 0;
#define SHARED "sample.every=0;parallel.cp=2;plan.hardware=h200"
    open_ok(&a, small, SHARED, &r[0], &o[0]);
    open_ok(&a, small, SHARED ";parallel.cp_ring=true", &r[1], &o[1]);
    for (int k = 0; k < 2; k++) {
        const struct outlook_stage *s = o[k].stage;
        const struct plan *p = s->session.plan;
        for (int64_t i = 0; i < p->nstep; i++) {
            if (p->step[i].lane == LANE_COMPUTE)
                attention[k] += s->work[i].attention;
            else
                assert_true(s->work[i].attention == 0);
            if (p->step[i].lane == LANE_COMPUTE && s->work[i].calls) {
                sent += s->work[i].inside;
                talk += s->talk[i];
            }
        }
        double sum = s->forecast.compute + s->forecast.exposed + s->forecast.idle;
        assert_true(fabs((sum + s->forecast.update) / s->forecast.seconds - 1) < 1e-9);
    }
    const struct forecast *f = &o[1].stage[0].forecast;
    assert_true(attention[0] > 0 && fabs(attention[1] / attention[0] - 1) < 0.01);
    assert_true(sent > 0 && talk > 0);
    assert_true(fabs((f->compute + talk) / f->busy[LANE_COMPUTE] - 1) < 1e-9);
    for (int k = 0; k < 2; k++)
        outlook_close(&o[k]);
    arena_free(&a);
}

/* H200's with another line. */
static const char *table_with(struct arena *a, const char *key, const char *value)
{
    struct bytes h200;
    char **line;
    struct text t = text_make(a);
    assert_ok(file_read(a, "recipes/hardware/h200.yaml", 1 << 16, &h200));
    int lines = text_split(a, h200.at, "\n", &line);
    for (int i = 0; i < lines; i++) {
        size_t n = strlen(key);
        bool it = !strncmp(line[i], key, n) && line[i][n] == ':';
        text_add(&t, "%s\n", it ? arena_text(a, "%s: %s", key, value) : line[i]);
    }
    return t.at;
}

/* What a user should know though it runs. */
static void notes_are_said(void **state)
{
    (void)state;
    static const struct { const char *overrides, *note; } law[] = {
        {"parallel.pp=4;parallel.dp=4;batch.rows=16;plan.hardware=%s",
         "note: 1 of 4 stages (4 ranks each) straddle nodes of 6 ranks"},
        {"parallel.pp=4;parallel.dp=4;batch.rows=16;plan.hardware=%s",
         "(node: 4 in the hardware table)"},
        {"parallel.dp=8;parallel.ep=4;batch.rows=8;plan.hardware=%s",
         "note: 1 of 2 groups of ep x etp (4 ranks each) straddle nodes of 6"},
        {"parallel.dp=6;batch.rows=6;plan.hardware=%s", NULL},
        {"batch.tokens=64;batch.patches=512",
         "note: batch.patches 512 make 128 features, a row has places for 64"},
        {"batch.tokens=64;batch.patches=256", NULL},
    };
    for (int i = 0; i < COUNT(law); i++) {
        struct arena a = arena_make("test");
        char *folder = check_folder(&a), *path = path_join(&a, folder, "six.yaml");
        struct recipe r;
        struct text t = text_make(&a);
        const char *table = table_with(&a, "node", "6");
        assert_ok(file_replace(path, table, (int64_t)strlen(table)));
        recipe_of(&a, small, arena_text(&a, law[i].overrides, path), &r);
        r.sample_every = 0;
        assert_ok(outlook(&r, &plain, &t));
        assert_int_equal(strstr(t.at, "note: ") != NULL, law[i].note != NULL);
        assert_true(!law[i].note || strstr(t.at, law[i].note));
        assert_ok(folder_remove(folder));
        arena_free(&a);
    }
}

/* A stage waits for its slowest rank: the fifth, whose experts are on two nodes. */
static void a_straddling_group_is_the_one_planned(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct mesh m;
    struct layout l = {.world = 8, .dp = 8, .ep = 4, .node = 6};
    assert_ok(mesh_make(&l, NULL, &m));
    assert_int_equal(outlook_straddlers(&m, 4), 1);
    assert_int_equal(outlook_straddlers(&m, 8), 0);     /* needs two */
    assert_int_equal(outlook_straddlers(&m, 2), 0);
    l.node = 72;
    l.world = l.dp = 128;
    l.ep = 64;
    assert_ok(mesh_make(&l, NULL, &m));
    assert_int_equal(outlook_straddlers(&m, 64), 1);
    arena_free(&a);
}

/* Components, stages and JSON say what the plans say, no more and no less. */
static void parts_add_up(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct recipe r;
    struct outlook o;
    struct text t = text_make(&a);
    open_ok(&a, small, "parallel.pp=2;parallel.dp=2;parallel.ep=2;batch.rows=8;"
            "sample.every=0;plan.hardware=h200;plan.sample=128", &r, &o);
    outlook_json(&o, &t);
    json_t *x = json_loads(t.at, 0, NULL), *stages = json_object_get(x, "stages");
    assert_int_equal(json_array_size(stages), 2);
    assert_true(fabs(json_real_value(json_object_get(x, "step_ms")) / o.seconds / 1e3 -
                     1) < 1e-9);
    assert_true(json_is_true(json_object_get(x, "fits")));
    /* 512 tokens, 2 of 8 experts each, from 2 ranks: 256 for each expert */
    assert_true(o.rows == 512 * 2 * 2 / 8.0);
    for (int i = 0; i < 2; i++) {
        const struct outlook_stage *s = &o.stage[i];
        const struct plan *p = s->session.plan;
        struct outlook_part *part;
        int64_t n = outlook_parts(&o, s, &a, &part);
        double compute = 0, talk = 0, flops = 0, inside = 0, busy = 0, moved = 0;
        for (int64_t k = 0; k < n; k++) {
            compute += part[k].compute;
            talk += part[k].talk;
            flops += part[k].flops;
            inside += part[k].inside;
        }
        for (int64_t k = 0; k < p->nstep; k++)
            moved += s->work[k].inside;
        for (int k = 0; k < LANES; k++)
            busy += s->forecast.busy[k];
        assert_true(fabs((compute + talk) / busy - 1) < 1e-9);
        assert_true(fabs(compute / (s->forecast.busy[LANE_COMPUTE] +
                                    s->forecast.busy[LANE_COPY]) - 1) < 1e-9);
        assert_true(inside == moved && moved > 0);
        assert_true(flops > 0 && flops < s->flops);     /* samples of 128, not 512 */
        json_t *list = json_object_get(json_array_get(stages, (size_t)i), "components");
        assert_int_equal(json_array_size(list), n);
    }
    json_decref(x);
    outlook_close(&o);
    arena_free(&a);
}

/* ---- what cannot be ---- */

static bool table_parse(struct arena *a, const char *key, const char *value,
                        struct hardware *h)
{
    const char *yaml = table_with(a, key, value);
    return hardware_parse(a, "x.yaml", yaml, (int64_t)strlen(yaml), h);
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct hardware h;
    struct recipe r;
    struct text t = text_make(&a);
    assert_ok(table_parse(&a, "node", "4", &h));
    assert_fails(table_parse(&a, "node", "8.5", &h), "node 8.5 is not a whole");
    assert_fails(table_parse(&a, "reserve", "2e11", &h), "leaves nothing");
    assert_int_equal(fail_fault(), FAULT_USAGE);
    recipe_of(&a, small, "plan.image=20000", &r);
    assert_fails(outlook(&r, &plain, &t), "no row of batch.patches 256 holds such");
    assert_int_equal(fail_fault(), FAULT_USAGE);
    recipe_of(&a, small, "plan.sample=600", &r);
    assert_fails(outlook(&r, &plain, &t), "no row of batch.tokens 512 holds such");
    assert_int_equal(fail_fault(), FAULT_USAGE);
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(room_is_not_speed),
        cmocka_unit_test(a_ring_computes),
        cmocka_unit_test(notes_are_said),
        cmocka_unit_test(parts_add_up),
        cmocka_unit_test(a_straddling_group_is_the_one_planned),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
