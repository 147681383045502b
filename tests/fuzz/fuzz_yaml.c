/* fuzz_yaml.c - any bytes as a recipe: refused with a message, or printed as text that
 * is read back as the same recipe.  Includes read files, so they are left out. */
#include "recipe/recipe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 1 << 14 || memmem(data, size, "include", 7))
        return 0;
    struct arena a = arena_make("fuzz");
    struct recipe r, again;
    recipe_default(&a, &r);
    fail_clear();
    if (recipe_parse(&r, "fuzz", (const char *)data, (int64_t)size)) {
        char *text = recipe_text_of(&r, &a);
        recipe_default(&a, &again);
        if (!recipe_parse(&again, "again", text, (int64_t)strlen(text)))
            BUG("%s", fail_message());
        REQUIRE(!strcmp(recipe_text_of(&again, &a), text));
        if (!recipe_check(&r))
            REQUIRE(*fail_message());
    } else {
        REQUIRE(*fail_message() && fail_fault() == FAULT_USAGE);
    }
    arena_free(&a);
    return 0;
}
