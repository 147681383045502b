/* test_includes.c - who may include whom: the design's table, read off the code. */
#include "check.h"

#include "lint/files.h"

/* `may` names folders, or single files where a folder is not open as a whole. */
struct rule { const char *folder, *may; };

#define BELOW_GRAPH "kernels/ops.h parallel core base"
#define MODELS "decoder vision layers graph " BELOW_GRAPH
#define DATA "data/rows data/text data/source data/image core/dtype.h "
static const struct rule rules[] = {
    {"base", ""},
    {"core", "base"},
    {"kernels", "core base"},
    {"parallel", "core base"},
    {"graph", BELOW_GRAPH},
    {"layers", "graph " BELOW_GRAPH},
    {"vision", "layers graph " BELOW_GRAPH},
    /* it places what vision made, whose values vision.h names */
    {"decoder", "vision/vision.h layers graph " BELOW_GRAPH},
    {"plan", "graph " BELOW_GRAPH},
    {"run", "plan graph " BELOW_GRAPH},
    {"data/image", "core/dtype.h base"},
    {"data/source", "data/image/image.h core/dtype.h base"},
    {"data/text", "data/source/sample.h core/dtype.h base"},
    {"data/rows", DATA "base"},
    /* its files store tensors, so it needs their types: core, which graph opens too */
    {"checkpoint", "graph parallel core base"},
    /* a hardware table is a recipe of its own, for what plan asks of hardware */
    {"recipe", "plan/cost.h plan/hardware.def base"},
    {"measure", "recipe data/rows/ledger.h base"},
    {"train", "measure recipe checkpoint run plan " DATA MODELS},
    {"outlook", "train recipe checkpoint run plan " DATA MODELS},
    {"tools", "train measure recipe checkpoint run plan " DATA MODELS},
    /* it parses words and prints messages: base */
    {"cli", "tools outlook train recipe base"},
};

static const struct rule *rule_of(const char *folder)
{
    for (int i = 0; i < COUNT(rules); i++)
        if (strcmp(rules[i].folder, folder) == 0)
            return &rules[i];
    return NULL;
}

/* The folder of the table that a product file lies in; NULL for other files. */
static const char *folder_of(struct arena *a, const char *path)
{
    bool source = text_starts(path, "src/");
    path += source ? strlen("src/") : 0;
    size_t room = text_starts(path, "data/") ? strlen("data/") : 0;
    if (!source && !room && !text_starts(path, "kernels/") &&
        !text_starts(path, "vision/") && !text_starts(path, "decoder/"))
        return NULL;
    return arena_copy(a, path, room + strcspn(path + room, "/"));
}

static bool may_include(struct arena *a, const char *folder, const char *name)
{
    const struct rule *rule = rule_of(folder);
    const char *from = folder_of(a, arena_text(a, "src/%s", name));
    if (!rule || !from)
        return false;
    if (strcmp(from, folder) == 0)
        return true;
    char **may;
    int count = text_split(a, rule->may, " ", &may);
    for (int i = 0; i < count; i++)
        if (strcmp(may[i], strchr(may[i], '.') ? name : from) == 0)
            return true;
    return false;
}

/* The name between quotes if the line is an #include of ours, else NULL. */
static char *include_of(struct arena *a, const char *line)
{
    line += strspn(line, " \t");
    if (*line++ != '#')
        return NULL;
    line += strspn(line, " \t");
    if (!text_starts(line, "include"))
        return NULL;
    line += strlen("include");
    line += strspn(line, " \t");
    return *line == '"' ? arena_copy(a, line + 1, strcspn(line + 1, "\"\n")) : NULL;
}

static int check_file(struct arena *a, const char *path)
{
    struct bytes file;
    assert_ok(file_read(a, path, 1 << 24, &file));
    const char *folder = folder_of(a, path);
    int wrong = 0, number = 1;
    for (const char *line = file.at; *line; number++) {
        char *name = include_of(a, line);
        if (name && !file_exists(path_join(a, "src", name)) && !file_exists(name)) {
            print_error("%s:%d: \"%s\" is not a path from the root or from src\n", path,
                        number, name);
            wrong++;
        } else if (name && !may_include(a, folder, name)) {
            print_error("%s:%d: %s may not include \"%s\"\n", path, number, folder,
                        name);
            wrong++;
        }
        line += strcspn(line, "\n");
        line += *line == '\n';
    }
    return wrong;
}

static void test_every_include_is_allowed(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct files f = files_all(&a);
    int wrong = 0, read = 0;
    for (int64_t i = 0; i < f.count; i++) {
        if (!folder_of(&a, f.path[i]) || !files_is_code(f.path[i]))
            continue;
        wrong += check_file(&a, f.path[i]);
        read++;
    }
    arena_free(&a);
    assert_true(read > 20);             /* or this test looks in the wrong place */
    assert_int_equal(wrong, 0);
}

static void test_every_folder_has_a_rule(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    static const char *const in[] = {"src", "data"};
    for (int k = 0; k < COUNT(in); k++) {
        char **name;
        int64_t count;
        assert_ok(folder_list(&a, in[k], &name, &count));
        for (int64_t i = 0; i < count; i++) {
            char *path = path_join(&a, in[k], name[i]);
            if (!rule_of(folder_of(&a, path_join(&a, path, "x.c"))))
                fail_msg("%s is not in the table", path);
        }
    }
    arena_free(&a);
}

static void test_the_rules_can_refuse(void **state)
{
    (void)state;
    static const struct { const char *folder, *name; bool may; } c[] = {
        {"base", "base/arena.h", true},     {"base", "core/dtype.h", false},
        {"kernels", "kernels/cpu/x.h", true}, {"kernels", "graph/graph.h", false},
        {"graph", "kernels/ops.h", true},   {"graph", "kernels/cpu/x.h", false},
        {"layers", "plan/plan.h", false},   {"vision", "decoder/decoder.h", false},
        {"decoder", "vision/vision.h", true}, {"decoder", "vision/parts.h", false},
        {"decoder", "run/run.h", false},    {"plan", "layers/layers.h", false},
        {"run", "vision/vision.h", false},
        {"data/image", "core/dtype.h", true},
        {"data/image", "core/device.h", false},
        {"data/rows", "graph/graph.h", false},
        {"data/rows", "data/source/source.h", true},
        {"data/source", "data/rows/pack.h", false},
        {"data/source", "data/image/parts.h", false},
        {"recipe", "train/train.h", false}, {"measure", "train/train.h", false},
        {"outlook", "tools/convert.h", false}, {"tools", "train/session.h", true},
        {"checkpoint", "plan/plan.h", false}, {"train", "vision/vision.h", true},
        {"train", "kernels/cpu/x.h", false},  {"cli", "kernels/ops.h", false},
        {"plan", "run/run.h", false},       {"train", "cli/cli.h", false},
    };
    struct arena a = arena_make("test");
    for (int i = 0; i < COUNT(c); i++)
        if (may_include(&a, c[i].folder, c[i].name) != c[i].may)
            fail_msg("%s and %s", c[i].folder, c[i].name);
    assert_string_equal(include_of(&a, "  # include  \"a/b.h\" /* x */\n"), "a/b.h");
    assert_null(include_of(&a, "#include <a/b.h>\n"));
    assert_null(include_of(&a, "// #include \"a/b.h\"\n"));
    assert_string_equal(folder_of(&a, "src/graph/x.c"), "graph");
    assert_string_equal(folder_of(&a, "data/text/x.c"), "data/text");
    assert_null(folder_of(&a, "tests/unit/x.c"));
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_rules_can_refuse),
        cmocka_unit_test(test_every_folder_has_a_rule),
        cmocka_unit_test(test_every_include_is_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
