/* test_hf.c - model folders: what is read, what is refused, what is written back. */
#include "check.h"

#include "base/log.h"
#include "base/random.h"
#include "base/text.h"
#include "checkpoint/hf.h"
#include "parallel/world.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>

enum { E = 2, R = 4, C = 6, V = 7 };    /* experts, rows, columns, vocabulary */

/* A model of four parameters, the experts' swapped on disk. */
static const struct param params[] = {
    {.name = "model.language_model.embed_tokens.weight", .ndim = 2, .dim = {V, R},
     .box = {2, {V, R}, {0}, {V, R}}},
    {.name = "model.language_model.layers.0.mlp.experts.gate_up_proj", .ndim = 3,
     .dim = {E, R, C}, .transposed = true, .box = {3, {E, C, R}, {0}, {E, C, R}}},
    {.name = "model.language_model.norm.weight", .ndim = 1, .dim = {R},
     .box = {1, {R}, {0}, {R}}},
    {.name = "lm_head.weight", .ndim = 2, .dim = {V, R},
     .box = {2, {V, R}, {0}, {V, R}}},
};
enum { TABLE, EXPERTS, NORM, HEAD, PARAMS };

static const struct stretch all[PARAMS] = {
    {0, V * R}, {0, E * R * C}, {0, R}, {0, V * R}};
static const struct stretch nothing;
static const int me;

/* Values that bf16 and f16 hold exactly. */
static float value(int param, int64_t i)
{
    return (float)((int)random_bits((uint64_t)param, (uint64_t)i) % 128) / 16;
}

/* A tensor of param p in type d as a file holds it: value(p, i) at its i-th place. */
static struct disk_tensor disk(struct arena *a, int p, enum dtype d)
{
    struct disk_tensor t = {.name = params[p].name, .dtype = d, .ndim = params[p].ndim};
    memcpy(t.dim, params[p].dim, sizeof *t.dim * (size_t)t.ndim);
    t.count = disk_count(t.ndim, t.dim);
    t.bytes = t.count * dtype_bytes(d);
    float *x = NEW(a, float, t.count);
    for (int64_t i = 0; i < t.count; i++)
        x[i] = value(p, i);
    void *data = arena_push(a, (size_t)t.bytes);
    dtype_from_f32(d, x, data, t.count);
    t.data = data;
    return t;
}

static void file_write(const char *folder, const char *name,
                       const struct disk_tensor *t,
                       int count)
{
    static const char *const meta[] = {"format", "pt"};
    struct arena a = arena_make("write");
    struct safetensors_writer *w;
    assert_ok(safetensors_create(&a, path_join(&a, folder, name), t, count, meta, 1,
                                 &w));
    for (int i = 0; i < count; i++)
        assert_ok(safetensors_write(w, t[i].data, t[i].bytes));
    assert_ok(safetensors_finish(w));
    arena_free(&a);
}

static void text_write(const char *folder, const char *name, const char *text)
{
    struct arena a = arena_make("write");
    assert_ok(file_replace(path_join(&a, folder, name), text, (int64_t)strlen(text)));
    arena_free(&a);
}

/* A folder with all four in one file: table bf16, experts f32, norm f16, head bf16; one
 * tensor that is no parameter, and other files. */
static char *source_make(struct arena *a)
{
    char *folder = check_folder(a);
    static const uint8_t odd[] = {1, 2, 3};
    struct disk_tensor t[PARAMS + 1];
    t[0] = (struct disk_tensor){"extra.table", DTYPE_U8, 1, {3}, 3, 3, odd, NULL};
    for (int i = 0; i < PARAMS; i++)
        t[i + 1] = disk(a, i, i == EXPERTS ? DTYPE_F32 : i == NORM ? DTYPE_F16
                                                                   : DTYPE_BF16);
    file_write(folder, "model.safetensors", t, PARAMS + 1);
    text_write(folder, "config.json", "{\"as\" :  \"it is\"}\n");
    text_write(folder, "tokenizer.json", "");
    text_write(folder, "chat_template.jinja", "{{ x }}\r\n");
    assert_ok(folder_make(path_join(a, folder, "inner")));
    return folder;
}

static bool opens(const char *folder)
{
    struct arena a = arena_make("open");
    struct hf_folder f;
    bool ok = hf_open(&a, folder, params, PARAMS, &f) && hf_check(&f, params, PARAMS);
    hf_close(&f);
    arena_free(&a);
    return ok;
}

/* Every parameter of the folder, in memory layout, is what the source held. */
static void check(const char *folder)
{
    struct arena a = arena_make("check");
    struct hf_folder f;
    assert_ok(hf_open(&a, folder, params, PARAMS, &f));
    assert_ok(hf_check(&f, params, PARAMS));
    for (int p = 0; p < PARAMS; p++) {
        int64_t count = param_disk_count(&params[p]);
        float *x = NEW(&a, float, count);
        assert_ok(hf_load(&f, &params[p], all[p], x));
        for (int64_t i = 0; i < count; i++) {
            int64_t e = i / (R * C), r = i / C % R, c = i % C;  /* of the disk */
            float is = p == EXPERTS ? x[(e * C + c) * R + r] : x[i];
            assert_true(is == value(p, i));
        }
    }
    hf_close(&f);
    arena_free(&a);
}

static bool same_file(const char *one, const char *other, const char *name)
{
    struct arena a = arena_make("same");
    struct bytes x, y;
    assert_ok(file_read(&a, path_join(&a, one, name), 1 << 24, &x));
    assert_ok(file_read(&a, path_join(&a, other, name), 1 << 24, &y));
    bool same = x.size == y.size && !memcmp(x.at, y.at, (size_t)x.size);
    arena_free(&a);
    return same;
}

/* ---- reading ---- */

static void test_single(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = source_make(&a);
    assert_true(hf_has_weights(folder));
    check(folder);
    struct hf_folder f;
    assert_ok(hf_open(&a, folder, params, PARAMS, &f));
    assert_int_equal(f.nfile, 1);
    assert_int_equal(f.ntensor, 5);
    for (int64_t i = 1; i < f.ntensor; i++)
        assert_true(strcmp(f.tensor[i - 1]->name, f.tensor[i]->name) < 0);
    assert_non_null(hf_find(&f, "extra.table"));
    assert_null(hf_find(&f, "extra"));
    /* a 16-bit tensor after three bytes lies at an odd address, and is read */
    assert_int_equal((uintptr_t)hf_find(&f, params[TABLE].name)->data % 2, 1);
    hf_close(&f);
    assert_ok(folder_remove(path_join(&a, folder, "model.safetensors")));
    assert_false(hf_has_weights(folder));
    assert_fails(opens(folder), "model.safetensors");
    assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

static void test_sharded(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a);
    struct disk_tensor t[PARAMS];
    for (int i = 0; i < PARAMS; i++)
        t[i] = disk(&a, i, DTYPE_F32);
    file_write(folder, "b.safetensors", &t[0], 1);
    file_write(folder, "a.safetensors", &t[1], 3);
    const char *index = "{\"metadata\":{\"total_size\":1,\"more\":[]},\"weight_map\":{"
        "\"model.language_model.embed_tokens.weight\":\"b.safetensors\","
        "\"model.language_model.layers.0.mlp.experts.gate_up_proj\":\"a.safetensors\","
        "\"model.language_model.norm.weight\":\"a.safetensors\","
        "\"lm_head.weight\":\"a.safetensors\"}}";
    text_write(folder, "model.safetensors.index.json", index);
    assert_true(hf_has_weights(folder));
    check(folder);

    file_write(folder, "b.safetensors", &t[0], 2);      /* one tensor twice */
    assert_fails(opens(folder), "is in two files");
    assert_non_null(strstr(fail_message(), params[1].name));
    file_write(folder, "b.safetensors", &t[0], 0);      /* one nowhere */
    assert_fails(opens(folder),
                 "lacks 1 of 4 tensors: model.language_model.embed_tokens");
    assert_ok(folder_remove(path_join(&a, folder, "b.safetensors")));
    assert_fails(opens(folder), "b.safetensors");

    static const char *const bad[][2] = {
        {"", "index.json"}, {"[]", "weight_map is missing"},
        {"{}", "weight_map is missing"}, {"{\"weight_map\":[]}",
                                          "weight_map is missing"},
        {"{\"weight_map\":{\"x\":7}}", "'x' names no file of this folder"},
        {"{\"weight_map\":{\"x\":\"../x\"}}", "'x' names no file of this folder"},
        {"{\"weight_map\":{\"x\":\"/dev/zero\"}}", "'x' names no file of this folder"},
        {"{\"weight_map\":{\"x\":\"..\"}}", "regular file"},
        {"{\"weight_map\":{\"x\":\"\"}}", "regular file"},
        {"{\"weight_map\":{}}", "lacks 4 of 4 tensors"},
    };
    for (int i = 0; i < COUNT(bad); i++) {
        text_write(folder, "model.safetensors.index.json", bad[i][0]);
        assert_fails(opens(folder), bad[i][1]);
        assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
    }
    file_write(folder, "model.safetensors", t, PARAMS); /* goes before the index */
    check(folder);
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

static void test_missing_and_wrong(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a);
    struct param many[9];
    for (int i = 0; i < 9; i++)
        many[i] = (struct param){.name = arena_text(&a, "p%d", i), .ndim = 1,
                                 .dim = {3}};
    float x[3] = {0};
    struct disk_tensor t = {"p4", DTYPE_F32, 1, {3}, 3, 12, x, NULL};
    struct hf_folder f;
    file_write(folder, "model.safetensors", &t, 1);
    assert_ok(hf_open(&a, folder, params, PARAMS, &f));
    assert_fails(hf_check(&f, many, 9),
                 "lacks 8 of 9 tensors: p0, p1, p2, p3, p5, ...");
    assert_fails(hf_check(&f, many, 2), "lacks 2 of 2 tensors: p0, p1");
    assert_null(strstr(fail_message(), "..."));
    assert_ok(hf_check(&f, &many[4], 1));
    assert_fails(hf_load(&f, &many[0], nothing, x), "no tensor 'p0'");
    assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
    many[4].dim[0] = 4;
    assert_fails(hf_check(&f, &many[4], 1),
                 "'p4' is F32 [3], the config wants F32 [4]");
    assert_fails(hf_load(&f, &many[4], nothing, x), "'p4' is F32 [3]");
    many[4] = (struct param){.name = "p4", .ndim = 2, .dim = {3, 1}};
    assert_fails(hf_check(&f, &many[4], 1), "wants F32 [3, 1]");
    hf_close(&f);
    t.dtype = DTYPE_I32;
    file_write(folder, "model.safetensors", &t, 1);
    many[4] = (struct param){.name = "p4", .ndim = 1, .dim = {3}};
    assert_ok(hf_open(&a, folder, params, PARAMS, &f));
    assert_fails(hf_check(&f, &many[4], 1),
                 "is I32 [3], the config wants F32 [3] of a");
    assert_fails(hf_load(&f, &many[4], nothing, x), "is I32 [3]");
    hf_close(&f);
    text_write(folder, "model.safetensors", "12345678abcdefgh");
    assert_fails(opens(folder), "model.safetensors");
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

/* A tied model has no head of its own; a file may repeat the table under its name. */
static void test_tied(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *folder = check_folder(&a);
    struct hf_folder f;
    struct disk_tensor t[PARAMS];
    for (int i = 0; i < PARAMS; i++)
        t[i] = disk(&a, i, DTYPE_F32);
    file_write(folder, "model.safetensors", t, HEAD);   /* none */
    assert_ok(hf_open(&a, folder, params, PARAMS, &f));
    assert_ok(hf_check(&f, params, HEAD));
    hf_close(&f);
    t[HEAD].data = t[TABLE].data;                       /* the same */
    file_write(folder, "model.safetensors", t, PARAMS);
    assert_ok(hf_open(&a, folder, params, PARAMS, &f));
    assert_ok(hf_check(&f, params, HEAD));
    hf_close(&f);
    t[HEAD] = disk(&a, HEAD, DTYPE_F32);                /* another */
    file_write(folder, "model.safetensors", t, PARAMS);
    assert_ok(hf_open(&a, folder, params, PARAMS, &f));
    assert_fails(hf_check(&f, params, HEAD),
                 "tie_word_embeddings is true, but lm_head");
    hf_close(&f);
    t[HEAD].dim[0] = R, t[HEAD].dim[1] = V;             /* of another shape */
    file_write(folder, "model.safetensors", t, PARAMS);
    assert_ok(hf_open(&a, folder, params, PARAMS, &f));
    assert_fails(hf_check(&f, params, HEAD), "lm_head.weight differs from");
    hf_close(&f);
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

/* Of a pair of expert tensors, whose shapes tell the layout together. */
static struct disk_tensor pair_disk(struct arena *a, const struct param *p, bool swap)
{
    struct disk_tensor t = {.name = p->name, .dtype = DTYPE_F32, .ndim = 3};
    memcpy(t.dim, p->dim, sizeof *p->dim * 3);
    if (swap)
        t.dim[1] = p->dim[2], t.dim[2] = p->dim[1];
    t.count = disk_count(3, t.dim);
    t.bytes = 4 * t.count;
    float *x = NEW(a, float, t.count);
    for (int64_t i = 0; i < t.count; i++)
        x[i] = (float)i;
    t.data = x;
    return t;
}

/* D = 2F makes gate_up_proj square, D = F down_proj: the other one tells. */
static void test_layouts(void **state)
{
    (void)state;
    static const int64_t sizes[][2] = {{6, 4}, {8, 4}, {4, 4}, {4, 8}};       /* D, F */
    struct arena a = arena_make("test");
    char *folder = check_folder(&a);
    for (int i = 0; i < COUNT(sizes); i++) {
        int64_t D = sizes[i][0], F = sizes[i][1];
        const struct param pair[] = {
            {.name = "gate_up_proj", .ndim = 3, .dim = {E, D, 2 * F},
             .transposed = true, .box = {3, {E, 2 * F, D}, {0}, {E, 2 * F, D}}},
            {.name = "down_proj", .ndim = 3, .dim = {E, F, D}, .transposed = true,
             .box = {3, {E, D, F}, {0}, {E, D, F}}},
        };
        struct hf_folder f;
        for (int s = 0; s < 2; s++) {
            const struct disk_tensor t[] = {pair_disk(&a, &pair[0], s),
                                            pair_disk(&a, &pair[1], s)};
            file_write(folder, "model.safetensors", t, 2);
            assert_ok(hf_open(&a, folder, pair, 2, &f));
            assert_int_equal(f.experts, s ? EXPERTS_TRANSFORMERS : EXPERTS_RELEASED);
            assert_ok(hf_check(&f, pair, 2));
            for (int p = 0; p < 2; p++) {
                int64_t rows = pair[p].dim[1], cols = pair[p].dim[2];
                float *x = NEW(&a, float, t[p].count);
                assert_ok(hf_load(&f, &pair[p], (struct stretch){0, t[p].count}, x));
                for (int64_t k = 0; k < t[p].count; k++) {
                    int64_t e = k / rows / cols, c = k / rows % cols, r = k % rows;
                    assert_true(x[k] == (float)(s ? k : (e * rows + r) * cols + c));
                }
            }
            hf_close(&f);
        }
        if (D == F || D == 2 * F)       /* the square one goes with either */
            continue;
        for (int s = 0; s < 2; s++) {
            const struct disk_tensor t[] = {pair_disk(&a, &pair[0], s),
                                            pair_disk(&a, &pair[1], !s)};
            file_write(folder, "model.safetensors", t, 2);
            assert_fails(hf_open(&a, folder, pair, 2, &f), "not of one layout");
            assert_non_null(strstr(fail_message(), "'gate_up_proj' is F32 ["));
            assert_non_null(strstr(fail_message(), "'down_proj' is F32 ["));
            assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
        }
    }
    assert_ok(folder_remove(folder));
    arena_free(&a);
}

/* ---- writing ---- */

static bool get_from_folder(void *folder, int64_t param, struct stretch part, float *to)
{
    return hf_load(folder, &params[param], part, to);
}

/* Zeros, but none of the param that arg says. */
static bool get_nothing(void *arg, int64_t param, struct stretch part, float *to)
{
    memset(to, 0, sizeof *to * (size_t)(part.to - part.from));
    return param != *(const int *)arg || fail("no weights today");
}

/* By one rank. */
static bool save(const char *folder, const char *from, const struct hf_weights *w,
                 enum dtype d, int64_t most)
{
    const struct comm alone = comm_self("alone", &me);
    return hf_save(&alone, folder, from, w, d, most);
}

/* from -> folder, parameter by parameter. */
static bool copy_as(const char *from, const char *folder, enum dtype d, bool retype,
                    int64_t shard)
{
    struct arena a = arena_make("copy");
    struct hf_folder f;
    assert_ok(hf_open(&a, from, params, PARAMS, &f));
    struct hf_weights w = {.get = get_from_folder, .arg = &f, .param = params,
                           .part = all, .count = PARAMS, .retype = retype};
    bool ok = save(folder, from, &w, d, shard);
    hf_close(&f);
    arena_free(&a);
    return ok;
}

static void test_round_trip(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *from = source_make(&a), *to = check_folder(&a);
    char *one = path_join(&a, to, "deep/one"), *two = path_join(&a, to, "two");
    assert_ok(copy_as(from, one, DTYPE_F32, false, 1 << 20));
    assert_string_equal(check_names(&a, one),
                        "chat_template.jinja config.json model.safetensors "
                        "tokenizer.json");
    assert_true(same_file(from, one, "config.json"));
    assert_true(same_file(from, one, "tokenizer.json"));
    assert_true(same_file(from, one, "chat_template.jinja"));
    check(one);
    struct hf_folder f;
    assert_ok(hf_open(&a, one, params, PARAMS, &f));
    assert_int_equal(f.ntensor, 5);
    assert_memory_equal(hf_find(&f, "extra.table")->data, "\1\2\3", 3);
    assert_int_equal(hf_find(&f, params[TABLE].name)->dtype, DTYPE_BF16);
    assert_int_equal(hf_find(&f, params[EXPERTS].name)->dtype, DTYPE_F32);
    assert_int_equal(hf_find(&f, params[NORM].name)->dtype, DTYPE_F16);
    assert_string_equal(safetensors_meta(&f.file[0], "format"), "pt");
    hf_close(&f);
    assert_ok(copy_as(one, two, DTYPE_F32, false, 1 << 20));
    assert_true(same_file(one, two, "model.safetensors"));
    assert_string_equal(check_names(&a, to), "deep two");     /* nothing left beside */

    assert_ok(copy_as(one, two, DTYPE_BF16, true, 1 << 20));    /* over an older one */
    assert_ok(hf_open(&a, two, params, PARAMS, &f));
    for (int i = 0; i < PARAMS; i++)
        assert_int_equal(hf_find(&f, params[i].name)->dtype, DTYPE_BF16);
    assert_int_equal(hf_find(&f, "extra.table")->dtype, DTYPE_U8);
    hf_close(&f);
    check(two);
    assert_ok(folder_remove(from));
    assert_ok(folder_remove(to));
    arena_free(&a);
}

/* Ranks with a share each write the bytes that one rank writes.  The experts are cut in
 * all dims, the others into stretches. */
struct cut { int parts[3], ways; };
struct ranks_case { const char *from, *to; const struct cut *cut; int lacks; };

static struct box cut_box(const struct box *whole, const struct cut *cut, int at)
{
    struct box b = *whole;
    for (int d = b.ndim - 1; d >= 0; d--) {
        b.size[d] = b.dim[d] / cut->parts[d];
        b.from[d] = at % cut->parts[d] * b.size[d];
        at /= cut->parts[d];
    }
    return b;
}

struct share { struct param param[PARAMS]; struct hf_folder f; };

static bool get_share(void *arg, int64_t param, struct stretch part, float *to)
{
    const struct share *s = arg;
    return hf_load(&s->f, &s->param[param], part, to);
}

static bool rank_save(struct rank *r, void *arg)
{
    const struct ranks_case *c = arg;
    struct share s;
    struct stretch part[PARAMS];
    int *member = NEW(&r->arena, int, r->ranks);
    for (int i = 0; i < r->ranks; i++)
        member[i] = i;
    const struct comm world = world_comm(r, "world", member, r->ranks, 0);
    for (int i = 0; i < PARAMS; i++) {
        int ways = i == EXPERTS ? c->cut->ways : r->ranks;
        s.param[i] = params[i];
        if (i == EXPERTS)
            s.param[i].box = cut_box(&params[i].box, c->cut, r->rank / ways);
        struct flat f = flat_make(box_count(&s.param[i].box), ways, 1);
        part[i] = flat_part(&f, r->rank % ways, 0, f.count);
    }
    if (!hf_open(&r->arena, c->from, s.param, PARAMS, &s.f))
        return false;
    int experts = EXPERTS;
    struct hf_weights w = {.get = get_share, .arg = &s, .param = s.param, .part = part,
                           .count = PARAMS};
    if (r->rank == c->lacks) {
        w.get = get_nothing;
        w.arg = &experts;
    }
    bool ok = hf_save(&world, c->to, c->from, &w, DTYPE_F32, 100);
    hf_close(&s.f);
    return ok;
}

static void test_ranks(void **state)
{
    (void)state;
    static const struct cut cuts[] = {
        {{1, 1, 1}, 2}, {{2, 1, 1}, 1}, {{1, 3, 1}, 1}, {{1, 1, 4}, 1}, {{2, 3, 2}, 1},
        {{1, 1, 1}, 5}, {{2, 1, 2}, 3}, {{1, 2, 1}, 7},
    };
    struct arena a = arena_make("test");
    char *from = source_make(&a), *to = check_folder(&a), *x = path_join(&a, to, "x");
    char *one = path_join(&a, to, "one");
    assert_ok(copy_as(from, one, DTYPE_F32, false, 100));
    for (int i = 0; i < COUNT(cuts); i++) {
        const struct cut *cut = &cuts[i];
        struct ranks_case c = {from, x, cut, -1};
        int ranks = cut->parts[0] * cut->parts[1] * cut->parts[2] * cut->ways;
        assert_ok(world_run(ranks, 0, rank_save, &c));
        const char *files = check_names(&a, one);
        assert_string_equal(check_names(&a, x), files);
        char **name;
        int count = text_split(&a, files, " ", &name);
        assert_true(count > 5);                 /* several weight files */
        for (int k = 0; k < count; k++)
            assert_true(same_file(one, x, name[k]));
        check(x);
        c.lacks = ranks / 2;                    /* one fails: all do, nothing changes */
        assert_fails(world_run(ranks, 0, rank_save, &c), "no weights today");
        assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
        assert_string_equal(check_names(&a, to), "one x");
        check(x);
    }
    assert_ok(folder_remove(from));
    assert_ok(folder_remove(to));
    arena_free(&a);
}

/* Split at most at `most` bytes; all tensors there; the index says where. */
static void check_shards(const char *from, const char *to, int64_t most, int files)
{
    struct arena a = arena_make("shards");
    struct hf_folder f;
    assert_ok(copy_as(from, to, DTYPE_F32, false, most));
    check(to);
    assert_ok(hf_open(&a, to, params, PARAMS, &f));
    assert_int_equal(f.nfile, files);
    int64_t total = 0;
    for (int i = 0; i < f.nfile; i++) {
        int64_t bytes = 0;
        for (int64_t k = 0; k < f.file[i].count; k++)
            bytes += f.file[i].tensor[k].bytes;
        assert_true(bytes <= most || f.file[i].count == 1);
        total += bytes;
        const char *name = arena_text(&a, "model-%05d-of-%05d.safetensors", i + 1,
                                      files);
        assert_true(files == 1 || text_ends(f.file[i].path, name));
    }
    struct bytes index;
    if (files > 1) {
        assert_ok(file_read(&a, path_join(&a, to, "model.safetensors.index.json"),
                            1 << 20,
                            &index));
        assert_non_null(strstr(index.at, arena_text(&a, "\"total_size\": %" PRId64,
                                                    total)));
        assert_false(file_exists(path_join(&a, to, "model.safetensors")));
    } else {
        assert_false(file_exists(path_join(&a, to, "model.safetensors.index.json")));
    }
    hf_close(&f);
    arena_free(&a);
}

static void test_shards(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *from = source_make(&a), *to = check_folder(&a), *x = path_join(&a, to, "x");
    /* by name: extra 3, lm_head 56, table 56, experts 192, norm 8 */
    check_shards(from, x, 315, 1);
    check_shards(from, x, 314, 2);
    check_shards(from, x, 192, 3);
    check_shards(from, x, 115, 3);
    check_shards(from, x, 60, 4);
    check_shards(from, x, 1, 5);        /* too small for any: one each */
    char *y = path_join(&a, to, "y");
    check_shards(x, y, 1 << 20, 1);     /* many into one */
    assert_ok(folder_remove(from));
    assert_ok(folder_remove(to));
    arena_free(&a);
}

/* Into itself, with a slash behind, through a link of the file, from nothing. */
static void test_places(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *from = source_make(&a), *to = check_folder(&a), *x = path_join(&a, to, "x");
    assert_ok(copy_as(from, arena_text(&a, "%s//", x), DTYPE_F32, false, 1 << 20));
    assert_string_equal(check_names(&a, to), "x");
    check(x);
    assert_ok(copy_as(x, x, DTYPE_F32, false, 100));    /* the source is the target */
    check(x);
    assert_ok(copy_as(x, x, DTYPE_F32, false, 1 << 20));
    check(x);
    assert_string_equal(check_names(&a, to), "x");
    /* weights of a folder that had none take the type asked for */
    assert_ok(folder_remove(path_join(&a, from, "model.safetensors")));
    struct hf_folder f;
    assert_ok(hf_open(&a, x, params, PARAMS, &f));
    struct hf_weights w = {.get = get_from_folder, .arg = &f, .param = params,
                           .part = all, .count = PARAMS};
    char *y = path_join(&a, to, "y");
    assert_ok(save(y, from, &w, DTYPE_BF16, 1 << 20));
    hf_close(&f);
    check(y);
    assert_ok(hf_open(&a, y, params, PARAMS, &f));
    assert_int_equal(f.ntensor, PARAMS);
    for (int64_t i = 0; i < PARAMS; i++)
        assert_int_equal(f.tensor[i]->dtype, DTYPE_BF16);
    hf_close(&f);
    assert_ok(folder_remove(from));
    assert_ok(folder_remove(to));
    arena_free(&a);
}

/* f32 below and above the middle of two bf16, and in it, beside an even and an odd. */
static const uint32_t between[4] = {0x3F807FFF, 0x3F808001, 0x3F808000, 0xBF818000};
static const uint16_t rounded[4] = {0x3F80, 0x3F81, 0x3F80, 0xBF82};

static bool get_between(void *arg, int64_t param, struct stretch part, float *to)
{
    (void)arg, (void)param;
    for (int64_t i = part.from; i < part.to; i++)
        memcpy(to + (i - part.from), &between[i % 4], sizeof *to);
    return true;
}

static void test_bf16_is_the_nearest(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *from = source_make(&a), *to = check_folder(&a), *x = path_join(&a, to, "x");
    struct hf_weights w = {.get = get_between, .param = params, .part = all,
                           .count = PARAMS};
    struct hf_folder f;
    assert_ok(folder_remove(path_join(&a, from, "model.safetensors")));
    assert_ok(save(x, from, &w, DTYPE_BF16, 1 << 20));
    assert_ok(hf_open(&a, x, params, PARAMS, &f));
    const struct disk_tensor *t = hf_find(&f, params[TABLE].name);
    for (int64_t i = 0; i < t->count; i++)
        assert_memory_equal((const char *)t->data + 2 * i, &rounded[i % 4], 2);
    hf_close(&f);
    assert_ok(folder_remove(from));
    assert_ok(folder_remove(to));
    arena_free(&a);
}

/* A tied model's head would be stale after training, so it is not carried through; a
 * parameter that the old folder held as integers is written in a floating type. */
static void test_what_is_not_carried(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *from = source_make(&a), *to = check_folder(&a), *x = path_join(&a, to, "x");
    struct hf_folder f, g;
    assert_ok(hf_open(&a, from, params, PARAMS, &f));
    struct hf_weights w = {.get = get_from_folder, .arg = &f, .param = params,
                           .part = all, .count = HEAD};
    assert_ok(save(x, from, &w, DTYPE_F32, 1 << 20));
    assert_ok(hf_open(&a, x, params, PARAMS, &g));
    assert_null(hf_find(&g, "lm_head.weight"));
    assert_non_null(hf_find(&g, "extra.table"));
    hf_close(&g);
    char *old = check_folder(&a);
    struct disk_tensor t = disk(&a, NORM, DTYPE_F32);
    t.dtype = DTYPE_I32;
    file_write(old, "model.safetensors", &t, 1);
    assert_ok(save(x, old, &w, DTYPE_BF16, 1 << 20));
    hf_close(&f);
    assert_ok(hf_open(&a, x, params, PARAMS, &g));
    assert_int_equal(hf_find(&g, params[NORM].name)->dtype, DTYPE_BF16);
    hf_close(&g);
    assert_ok(folder_remove(from));
    assert_ok(folder_remove(to));
    assert_ok(folder_remove(old));
    arena_free(&a);
}

/* NaN and infinities are refused, whatever way the elements go, unless by force. */
static bool get_odd(void *arg, int64_t param, struct stretch part, float *to)
{
    for (int64_t i = part.from; i < part.to; i++)
        to[i - part.from] =
            param == EXPERTS && i == E * R * C - 1 ? *(const float *)arg : 1;
    return true;
}

static void test_not_finite(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *from = source_make(&a), *to = check_folder(&a), *x = path_join(&a, to, "x");
    float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, -0.0f};
    for (int i = 0; i < COUNT(odd); i++) {
        struct hf_weights w = {.get = get_odd, .arg = &odd[i], .param = params,
                               .part = all, .count = PARAMS};
        if (i < 3) {
            assert_fails(save(x, from, &w, DTYPE_F32, 1 << 20),
                         "gate_up_proj' has NaN or infinite values");
            assert_int_equal(fail_fault(), FAULT_NOT_FINITE);
            assert_string_equal(check_names(&a, to), "");
        }
        w.force = i < 3;
        assert_ok(save(x, from, &w, DTYPE_F32, 1 << 20));
        for (int way = 0; way < 4; way++) {     /* as it is, retyped, turned, both */
            struct hf_folder f;
            assert_ok(hf_open(&a, x, params, PARAMS, &f));
            struct hf_weights again = {
                .get = get_from_folder, .arg = &f, .param = params, .part = all,
                .count = PARAMS, .origin = &f, .retype = way & 1,
                .experts = way & 2 ? EXPERTS_TRANSFORMERS : EXPERTS_RELEASED};
            char *y = path_join(&a, to, "y");
            bool ok = save(y, x, &again, DTYPE_F32, 1 << 20);
            assert_int_equal(ok, i >= 3);
            if (i < 3)
                assert_int_equal(fail_fault(), FAULT_NOT_FINITE);
            again.force = true;
            assert_ok(save(y, x, &again, DTYPE_F32, 1 << 20));
            assert_ok(folder_remove(y));
            hf_close(&f);
        }
        assert_ok(folder_remove(x));
    }
    assert_ok(folder_remove(from));
    assert_ok(folder_remove(to));
    arena_free(&a);
}

/* The config says which type the weights have, and is else the same byte for byte. */
static void test_config_dtype(void **state)
{
    (void)state;
    static const char *const config[][3] = {    /* before; as bf16; as f32 */
        {"{\"a\" : 1e-06}", "{\n  \"dtype\": \"bfloat16\",\"a\" : 1e-06}",
         "{\n  \"dtype\": \"float32\",\"a\" : 1e-06}"},
        {"{\"torch_dtype\":  \"float16\" , \"text_config\": {\"dtype\":\"float16\","
         "\"x\": {\"dtype\": \"z\"}}, \"q\": \"dtype\", \"n\": [NaN, \"{\"]}\n",
         "{\"torch_dtype\":  \"bfloat16\" , \"text_config\": {\"dtype\":\"bfloat16\","
         "\"x\": {\"dtype\": \"z\"}}, \"q\": \"dtype\", \"n\": [NaN, \"{\"]}\n",
         "{\"torch_dtype\":  \"float32\" , \"text_config\": {\"dtype\":\"float32\","
         "\"x\": {\"dtype\": \"z\"}}, \"q\": \"dtype\", \"n\": [NaN, \"{\"]}\n"},
        {"{\"text_config\":{\"dtype\":null},\"dtype\":\"bfloat16\"}",
         "{\"text_config\":{\"dtype\":null},\"dtype\":\"bfloat16\"}",
         "{\"text_config\":{\"dtype\":null},\"dtype\":\"float32\"}"},
        {"{}", "{\n  \"dtype\": \"bfloat16\"}", "{\n  \"dtype\": \"float32\"}"},
    };
    struct arena a = arena_make("test");
    struct bytes is;
    char *from = source_make(&a), *to = check_folder(&a), *x = path_join(&a, to, "x");
    char *fresh = check_folder(&a);
    struct hf_folder f;
    assert_ok(hf_open(&a, from, params, PARAMS, &f));
    struct hf_weights w = {.get = get_from_folder, .arg = &f, .param = params,
                           .part = all, .count = PARAMS};
    for (int i = 0; i < COUNT(config); i++) {
        text_write(from, "config.json", config[i][0]);
        text_write(fresh, "config.json", config[i][0]);
        assert_ok(copy_as(from, x, DTYPE_BF16, false, 1 << 20));        /* as it was */
        assert_true(same_file(from, x, "config.json"));
        for (int d = 1; d < 3; d++)
            for (int k = 0; k < 2; k++) {
                enum dtype type = d == 1 ? DTYPE_BF16 : DTYPE_F32;
                assert_ok(k ? save(x, fresh, &w, type, 1 << 20)
                            : copy_as(from, x, type, true, 1 << 20));
                assert_ok(file_read(&a, path_join(&a, x, "config.json"), 1 << 20,
                                    &is));
                assert_string_equal(is.at, config[i][d]);
            }
    }
    hf_close(&f);
    assert_ok(folder_remove(from));
    assert_ok(folder_remove(fresh));
    assert_ok(folder_remove(to));
    arena_free(&a);
}

/* Tensors that no parameter reads are carried whatever their type is; one that a
 * parameter needs is refused by its name. */
static void test_other_types(void **state)
{
    (void)state;
    static const uint8_t bytes[] = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
    static const char *const type[] = {"F8_E4M3", "BOOL", "F4", "C64", "U16"};
    struct arena a = arena_make("test");
    char *from = check_folder(&a), *to = check_folder(&a), *x = path_join(&a, to, "x");
    struct disk_tensor t[PARAMS + COUNT(type)];
    struct hf_folder f;
    for (int i = 0; i < PARAMS; i++)
        t[i] = disk(&a, i, DTYPE_F32);
    for (int i = 0; i < COUNT(type); i++)
        t[PARAMS + i] = (struct disk_tensor){
            .name = arena_text(&a, "other.%d", i), .dtype = DTYPE_U8, .ndim = 1,
            .dim = {3}, .count = 3, .bytes = i + 2, .data = bytes + i,
            .other = type[i]};
    file_write(from, "model.safetensors", t, COUNT(t));
    text_write(from, "config.json", "{}");
    check(from);
    assert_ok(copy_as(from, x, DTYPE_BF16, true, 1 << 20));
    check(x);
    assert_ok(hf_open(&a, x, params, PARAMS, &f));
    assert_int_equal(f.ntensor, COUNT(t));
    for (int i = 0; i < COUNT(type); i++) {
        const struct disk_tensor *is = hf_find(&f, t[PARAMS + i].name);
        assert_non_null(is);
        assert_string_equal(disk_type(is), type[i]);
        assert_int_equal(is->bytes, i + 2);
        assert_memory_equal(is->data, bytes + i, (size_t)is->bytes);
    }
    hf_close(&f);
    t[NORM].other = "F8_E4M3";
    t[NORM].bytes = R;
    file_write(from, "model.safetensors", t, PARAMS);
    assert_fails(opens(from), "norm.weight' is F8_E4M3 [4], the config wants F32 [4]");
    assert_ok(folder_remove(from));
    assert_ok(folder_remove(to));
    arena_free(&a);
}

/* Failing, a save leaves the old folder as it was and nothing beside it. */
static void test_failures(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    char *from = source_make(&a), *to = check_folder(&a), *x = path_join(&a, to, "x");
    assert_ok(copy_as(from, x, DTYPE_F32, false, 1 << 20));

    int norm = NORM;
    struct hf_weights none = {.get = get_nothing, .arg = &norm, .param = params,
                              .part = all, .count = PARAMS};
    assert_fails(save(x, from, &none, DTYPE_F32, 1), "no weights today");
    assert_int_equal(fail_fault(), FAULT_CHECKPOINT);
    assert_string_equal(check_names(&a, to), "x");
    check(x);

    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t n = 0; n < 800; n += 100) {             /* a full disk */
        small = (struct rlimit){n, old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        bool ok = copy_as(from, x, DTYPE_F32, false, 1 << 20);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_false(ok);
        assert_non_null(strstr(fail_message(), "File too large"));
        assert_string_equal(check_names(&a, to), "x");
        check(x);
    }
    char *file = path_join(&a, x, "config.json");
    assert_fails(copy_as(from, path_join(&a, file, "y"), DTYPE_F32, false, 1), file);
    assert_fails(copy_as(from, file, DTYPE_F32, false, 1), "config.json");
    assert_fails(copy_as(from, "/proc/y", DTYPE_F32, false, 1), "/proc/y");
    assert_fails(save(x, path_join(&a, to, "none"), &none, DTYPE_F32, 1), "none");
    assert_string_equal(check_names(&a, to), "x");
    check(x);

    char *home = path_join(&a, to, "home");             /* not ours to replace */
    assert_ok(folder_make(home));
    text_write(home, "letter.txt", "dear");
    assert_fails(copy_as(from, home, DTYPE_F32, false, 1), "no model folder");
    assert_string_equal(check_names(&a, home), "letter.txt");
    assert_ok(folder_remove(path_join(&a, home, "letter.txt")));
    assert_ok(copy_as(from, home, DTYPE_F32, false, 1 << 20));  /* empty: welcome */
    check(home);
    assert_ok(folder_remove(from));
    assert_ok(folder_remove(to));
    arena_free(&a);
}

int main(void)
{
    log_set(LOG_WARN + 1, 0);           /* unused tensors are warned of; not here */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_single),        cmocka_unit_test(test_sharded),
        cmocka_unit_test(test_missing_and_wrong), cmocka_unit_test(test_tied),
        cmocka_unit_test(test_layouts),       cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_shards),        cmocka_unit_test(test_places),
        cmocka_unit_test(test_bf16_is_the_nearest),
        cmocka_unit_test(test_what_is_not_carried), cmocka_unit_test(test_other_types),
        cmocka_unit_test(test_config_dtype), cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
