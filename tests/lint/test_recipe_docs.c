/* test_recipe_docs.c - docs/recipes.md has a row for every setting, with the type,
 * range, default and meaning of recipe.def, one for every NEED, and no row besides. */
#include "check.h"

#include "base/text.h"
#include "recipe/recipe.h"

static const char page[] = "docs/recipes.md";

/* | `optim.lr` | number 0..10 | `1e-4` | peak learning rate | */
static const char *row_of(struct arena *a, const struct recipe_field *f)
{
    struct text t = text_make(a);
    const char *preset = !strcmp(f->preset, "\"\"") ? "empty" : f->preset;
    text_add(&t, "| `%s.%s` | ", f->section, f->key);
    if (!strcmp(f->type, "count") || !strcmp(f->type, "real"))
        text_add(&t, "%s %.15g..%.15g", *f->type == 'c' ? "whole" : "number", f->least,
                 f->most);
    else if (!strcmp(f->type, "flag"))
        text_add(&t, "true, false");
    else if (!strcmp(f->type, "choice"))
        for (const char *c = f->choices; *c; c++)
            text_add(&t, *c == '|' ? ", " : "%c", *c);
    else
        text_add(&t, "text");
    size_t quote = *preset == '"';
    text_add(&t, quote || *f->preset != '"' ? " | `%.*s`" : " | %.*s",
             (int)(strlen(preset) - 2 * quote), preset + quote);
    text_add(&t, " | %s |\n", f->meaning);
    return t.at;
}

static void test_every_setting_has_a_row(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct bytes doc;
    assert_ok(file_read(&a, page, 1 << 20, &doc));
    const struct recipe_field *table[2];
    const int count[2] = {recipe_fields(&table[0]), recipe_source_fields(&table[1])};
    int lacks = 0, rows = 0;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < count[k]; i++) {
            const char *row = row_of(&a, &table[k][i]);
            if (!strstr(doc.at, row)) {
                print_error("%s lacks: %s", page, row);
                lacks++;
            }
        }
    const struct recipe_need *need;
    int needs = recipe_needs(&need);
    for (int i = 0; i < needs; i++) {
        const char *row = arena_text(&a, "| `%s` | %s |\n", need[i].key, need[i].what);
        if (!strstr(doc.at, row)) {
            print_error("%s lacks: %s", page, row);
            lacks++;
        }
    }
    const char *at = strstr(doc.at, "\n## What needs what\n");
    assert_non_null(at);
    while ((at = strstr(at + 1, "\n| `")))
        rows++;
    assert_int_equal(lacks, 0);
    assert_int_equal(rows, count[0] + count[1] + needs);
    arena_free(&a);
}

/* The table of what stays names each key that a run may not go on with changed, and no
 * other. */
static void test_what_stays_is_named(void **state)
{
    (void)state;
    struct arena a = arena_make("test");
    struct bytes doc;
    const struct recipe_field *table[2];
    const int count[2] = {recipe_fields(&table[0]), recipe_source_fields(&table[1])};
    assert_ok(file_read(&a, page, 1 << 20, &doc));
    char *from = strstr(doc.at, "\n| Stays |");
    assert_non_null(from);
    *strstr(from, "\n\n") = '\0';
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < count[k]; i++) {
            const struct recipe_field *f = &table[k][i];
            char *key = arena_text(&a, "%s.%s", f->section, f->key);
            bool named = strstr(from, arena_text(&a, "`%s`", key)) != NULL;
            if (named == (recipe_resume(key) == RESUME_FREE))
                fail_msg("%s: %s, but the table of what stays %s it", key,
                         named ? "free" : "may not change", named ? "has" : "lacks");
        }
    arena_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_setting_has_a_row),
        cmocka_unit_test(test_what_stays_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
