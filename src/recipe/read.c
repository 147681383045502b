/* read.c - reads recipes: YAML files with what they include, then overrides. */
#include "recipe/recipe.h"

#include "base/file.h"
#include "recipe/yaml_limits.h"

#include <yaml.h>

enum { FILE_MOST = 4 << 20, INCLUDE_DEPTH = 8 };

static bool node_fail(const char *file, const yaml_node_t *n, const char *what)
{
    return fail("recipe: %s line %zu: %s", file, n->start_mark.line + 1, what);
}

static const char *scalar(const yaml_node_t *n)         /* NULL: it is none */
{
    bool is = n->type == YAML_SCALAR_NODE &&
              strlen((char *)n->data.scalar.value) == n->data.scalar.length;
    return is ? (char *)n->data.scalar.value : NULL;
}

/* A scalar, or a list of scalars joined by spaces (freeze: [vision, router]). */
static const char *scalars(struct arena *a, yaml_document_t *doc, const yaml_node_t *n)
{
    if (n->type != YAML_SEQUENCE_NODE)
        return scalar(n);
    struct text t = text_make(a);
    for (yaml_node_item_t *i = n->data.sequence.items.start;
         i < n->data.sequence.items.top; i++) {
        const char *item = scalar(yaml_document_get_node(doc, *i));
        if (!item || t.size > FILE_MOST)
            return NULL;
        text_add(&t, "%s%s", t.size ? " " : "", item);
    }
    return t.at;
}

/* Each key of a group is a word and stands there once. */
static bool keys_check(const char *file, yaml_document_t *doc, const yaml_node_t *group)
{
    const yaml_node_pair_t *start = group->data.mapping.pairs.start;
    for (const yaml_node_pair_t *p = start; p < group->data.mapping.pairs.top; p++) {
        const yaml_node_t *n = yaml_document_get_node(doc, p->key);
        const char *key = scalar(n);
        if (!key)
            return node_fail(file, n, "a key was expected here");
        for (const yaml_node_pair_t *q = start; q < p; q++)
            if (!strcmp(scalar(yaml_document_get_node(doc, q->key)), key))
                return fail("recipe: %s line %zu: '%s' is set a second time", file,
                            n->start_mark.line + 1, key);
    }
    return true;
}

static bool pair_set(struct recipe *r, const char *file, yaml_document_t *doc,
                     const char *prefix, const yaml_node_pair_t *pair)
{
    const yaml_node_t *k = yaml_document_get_node(doc, pair->key);
    const yaml_node_t *v = yaml_document_get_node(doc, pair->value);
    const char *value = scalars(r->arena, doc, v);
    if (!value)
        return node_fail(file, v, "a value was expected here, not a group");
    if (!recipe_set(r, arena_text(r->arena, "%s.%s", prefix, scalar(k)), value))
        return fail_in("%s line %zu", file, k->start_mark.line + 1);
    return true;
}

static bool sources_set(struct recipe *r, const char *file, yaml_document_t *doc,
                        const yaml_node_t *list)
{
    if (list->type != YAML_SEQUENCE_NODE)
        return node_fail(file, list, "data.sources is a list of groups (- path: ...)");
    r->nsource = 0;
    for (yaml_node_item_t *i = list->data.sequence.items.start;
         i < list->data.sequence.items.top; i++) {
        const yaml_node_t *item = yaml_document_get_node(doc, *i);
        if (item->type != YAML_MAPPING_NODE)
            return node_fail(file, item, "an entry of data.sources is a group of keys");
        if (!keys_check(file, doc, item))
            return false;
        char *prefix = arena_text(r->arena, "data.sources.%d", r->nsource);
        if (r->nsource == MAX_SOURCES)
            return node_fail(file, item, "too many data.sources");
        recipe_source_add(r);
        for (yaml_node_pair_t *p = item->data.mapping.pairs.start;
             p < item->data.mapping.pairs.top; p++)
            if (!pair_set(r, file, doc, prefix, p))
                return false;
    }
    return true;
}

static bool section_set(struct recipe *r, const char *file, yaml_document_t *doc,
                        const char *name, const yaml_node_t *section)
{
    if (section->type != YAML_MAPPING_NODE)
        return node_fail(file, section, "a section is a group of keys");
    if (!keys_check(file, doc, section))
        return false;
    for (yaml_node_pair_t *p = section->data.mapping.pairs.start;
         p < section->data.mapping.pairs.top; p++) {
        const char *key = scalar(yaml_document_get_node(doc, p->key));
        bool sources = !strcmp(name, "data") && !strcmp(key, "sources");
        if (sources ? !sources_set(r, file, doc, yaml_document_get_node(doc, p->value))
                    : !pair_set(r, file, doc, name, p))
            return false;
    }
    return true;
}

static bool file_apply(struct recipe *r, const char *path, int depth);

static bool include(struct recipe *r, const char *file, const char *name, int depth)
{
    const char *slash = strrchr(file, '/');
    const char *path = *name == '/' || !slash
        ? name : arena_text(r->arena, "%.*s/%s", (int)(slash - file), file, name);
    /* Of a chain of files the first and the last are named. */
    return file_apply(r, path, depth + 1) || (depth == 0 && fail_in("%s", file));
}

static bool document_apply(struct recipe *r, const char *file, yaml_document_t *doc,
                           int depth)
{
    const yaml_node_t *top = yaml_document_get_root_node(doc);
    if (!top)
        return true;                    /* an empty file changes nothing */
    if (top->type != YAML_MAPPING_NODE)
        return node_fail(file, top, "a recipe is a group of sections");
    if (!keys_check(file, doc, top))
        return false;
    for (int pass = 0; pass < 2; pass++)        /* includes first, wherever they are */
        for (yaml_node_pair_t *p = top->data.mapping.pairs.start;
             p < top->data.mapping.pairs.top; p++) {
            const char *key = scalar(yaml_document_get_node(doc, p->key));
            const yaml_node_t *v = yaml_document_get_node(doc, p->value);
            bool is_include = !strcmp(key, "include");
            if (is_include == (pass == 1))
                continue;
            if (is_include && !scalar(v))
                return node_fail(file, v, "include names one file");
            if (is_include ? !include(r, file, scalar(v), depth)
                           : !section_set(r, file, doc, key, v))
                return false;
        }
    return true;
}

/* Is line `line` (from 0) indented with a tab?  YAML forbids it, and libyaml's message
 * does not say so. */
static bool tab_indents(const char *yaml, int64_t size, size_t line)
{
    const char *at = yaml, *end = yaml + size;
    while (line-- && at)
        at = memchr(at, '\n', (size_t)(end - at)), at = at ? at + 1 : NULL;
    while (at && at < end && *at == ' ')
        at++;
    return at && at < end && *at == '\t';
}

static bool yaml_apply(struct recipe *r, const char *file, const char *yaml,
                       int64_t size, int depth)
{
    yaml_parser_t parser;
    yaml_document_t doc;
    if (!yaml_limits_check(yaml, size))
        return fail("recipe: %s %s", file, fail_message());
    REQUIRE(yaml_parser_initialize(&parser));
    yaml_parser_set_input_string(&parser, (const unsigned char *)yaml, (size_t)size);
    bool ok = true;
    for (int document = 0; ok; document++) {
        ok = yaml_parser_load(&parser, &doc);
        if (!ok) {
            size_t line = parser.problem_mark.line;
            bool tab = tab_indents(yaml, size, line);
            fail("recipe: %s line %zu: %s%s", file, line + 1,
                 parser.problem ? parser.problem : "not YAML",
                 tab ? " (a tab; indent with spaces)" : "");
            break;
        }
        bool end = !yaml_document_get_root_node(&doc);
        ok = document == 0 ? document_apply(r, file, &doc, depth)
                           : end || fail("recipe: %s: a second document begins; "
                                         "expected one a file", file);
        yaml_document_delete(&doc);
        if (end)
            break;
    }
    yaml_parser_delete(&parser);
    return ok;
}

static bool file_apply(struct recipe *r, const char *path, int depth)
{
    struct bytes text;
    if (depth > INCLUDE_DEPTH)
        return fail("recipe: %s: includes are nested more than %d deep (a circle?)",
                    path, INCLUDE_DEPTH);
    return file_read(r->arena, path, FILE_MOST, &text) &&
           yaml_apply(r, path, text.at, text.size, depth);
}

bool recipe_parse(struct recipe *r, const char *name, const char *yaml, int64_t size)
{
    return yaml_apply(r, name, yaml, size, 0) || fail_kind(FAULT_USAGE);
}

/* "[vision, router]" is "vision router", where a text is words: as in YAML. */
static const char *words_of(struct arena *a, const char *key, const char *value)
{
    static const char *const list[] = {"model.freeze", "memory.recompute",
                                       "memory.offload"};
    size_t n = strlen(value);
    bool is = false;
    for (int i = 0; i < COUNT(list); i++)
        is |= !strcmp(key, list[i]);
    if (!is || n < 2 || value[0] != '[' || value[n - 1] != ']')
        return value;
    struct text t = text_make(a);
    char **word;
    int words = text_split(a, arena_copy(a, value + 1, n - 2), " ,'\"", &word);
    for (int i = 0; i < words; i++)
        text_add(&t, "%s%s", i ? " " : "", word[i]);
    return t.at ? t.at : "";
}

static bool override_apply(struct recipe *r, const char *override)
{
    const char *equals = strchr(override, '=');
    if (!equals || equals == override)
        return fail("recipe: '%s' is no override; write section.key=value", override);
    char *key = arena_copy(r->arena, override, (size_t)(equals - override));
    return recipe_set(r, key, words_of(r->arena, key, equals + 1)) ||
           fail_in("override '%s'", override);
}

bool recipe_read(struct arena *a, const char *path, const char *const *override,
                 int overrides, struct recipe *out)
{
    recipe_default(a, out);
    bool ok = file_apply(out, path, 0);
    for (int i = 0; i < overrides && ok; i++)
        ok = override_apply(out, override[i]);
    return (ok && recipe_check(out)) || fail_kind(FAULT_USAGE);
}
