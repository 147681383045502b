/* recipe.c - reads, checks and prints recipes; knows the table, not what it means. */
#include "recipe/recipe.h"

#include "base/file.h"
#include "recipe/yaml_limits.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <yaml.h>

enum { FILE_MOST = 4 << 20, INCLUDE_DEPTH = 8, NAME_MOST = 96 };

static const struct recipe_field field[] = {
#define FIELD(section, key, type, preset, least, most, choices, meaning)               \
    {#section, #key, #type, #preset, choices, meaning, least, most},
#include "recipe/recipe.def"
};
static const size_t field_at[] = {
#define FIELD(section, key, type, preset, least, most, choices, meaning)               \
    offsetof(struct recipe, section##_##key),
#include "recipe/recipe.def"
};
static const struct recipe_field source_field[] = {
#define SOURCE(key, type, preset, least, most, choices, meaning)                       \
    {"data.sources.N", #key, #type, #preset, choices, meaning, least, most},
#include "recipe/recipe.def"
};
static const size_t source_at[] = {
#define SOURCE(key, type, preset, least, most, choices, meaning)                       \
    offsetof(struct recipe_source, key),
#include "recipe/recipe.def"
};

static const struct recipe_need need[] = {
#define NEED(section, key, met, what) {#section "." #key, what},
#include "recipe/recipe.def"
};

static const struct { const char *key; enum resume rule; } resume[] = {
#define RESUME(section, key, rule) {#section "." #key, RESUME_##rule},
#define RESUME_SOURCE(key, rule) {"data.sources.N." #key, RESUME_##rule},
#include "recipe/recipe.def"
};

int recipe_fields(const struct recipe_field **out)
{
    *out = field;
    return COUNT(field);
}

int recipe_source_fields(const struct recipe_field **out)
{
    *out = source_field;
    return COUNT(source_field);
}

int recipe_needs(const struct recipe_need **out)
{
    *out = need;
    return COUNT(need);
}

void recipe_default(struct arena *a, struct recipe *r)
{
    *r = (struct recipe){
        .arena = a,
#define FIELD(section, key, type, preset, least, most, choices, meaning)               \
    .section##_##key = preset,
#include "recipe/recipe.def"
    };
}

static void source_default(struct recipe_source *s)
{
    *s = (struct recipe_source){
#define SOURCE(key, type, preset, least, most, choices, meaning) .key = preset,
#include "recipe/recipe.def"
    };
}

/* ---- one value ---- */

static bool choice_has(const char *choices, const char *value)
{
    size_t n = strcspn(value, "|");
    if (value[n])
        return false;
    for (const char *at = choices; at; at = strchr(at, '|'), at = at ? at + 1 : NULL)
        if (n && !strncmp(at, value, n) && (at[n] == '|' || !at[n]))
            return true;
    return false;
}

static bool number_set(const struct recipe_field *f, const char *name,
                       const char *value, void *to)
{
    bool whole = !strcmp(f->type, "count");
    double x;
    if (!text_number(value, &x) || (whole && x != trunc(x)))
        return fail("recipe: %s = '%s' is not a %s  (%s)", name, value,
                    whole ? "whole number" : "number", f->meaning);
    if (x < f->least || x > f->most)
        return fail("recipe: %s = %s is outside %.15g..%.15g  (%s)", name, value,
                    f->least, f->most, f->meaning);
    if (whole)
        *(int64_t *)to = (int64_t)x;
    else
        *(double *)to = x;
    return true;
}

static bool value_set(struct arena *a, const struct recipe_field *f, const char *name,
                      const char *value, void *to)
{
    if (!text_utf8(value, (int64_t)strlen(value)))
        return fail("recipe: %s: the value is not UTF-8  (%s)", name, f->meaning);
    if (!strcmp(f->type, "count") || !strcmp(f->type, "real"))
        return number_set(f, name, value, to);
    if (!strcmp(f->type, "flag")) {
        if (strcmp(value, "true") && strcmp(value, "false"))
            return fail("recipe: %s = '%s' is neither true nor false  (%s)", name,
                        value, f->meaning);
        *(bool *)to = *value == 't';
        return true;
    }
    if (!strcmp(f->type, "choice") && !choice_has(f->choices, value))
        return fail("recipe: %s = '%s' is not one of %s  (%s)", name, value, f->choices,
                    f->meaning);
    *(const char **)to = arena_copy(a, value, strlen(value));
    return true;
}

static bool unknown(const char *key)
{
    struct arena a = arena_make("message");
    const char **name = NEW(&a, const char *, COUNT(field) + COUNT(source_field));
    const char **meaning = NEW(&a, const char *, COUNT(field) + COUNT(source_field));
    bool source = text_starts(key, "data.sources.");
    const struct recipe_field *f = source ? source_field : field;
    int count = source ? COUNT(source_field) : COUNT(field);
    for (int i = 0; i < count; i++) {
        name[i] = arena_text(&a, "%s.%s", f[i].section, f[i].key);
        meaning[i] = f[i].meaning;
    }
    if (!strcmp(key, "data.sources")) {
        arena_free(&a);
        return fail("recipe: data.sources is a list; of its first entry set "
                    "data.sources.0.path");
    }
    const char *near = text_nearest(key, name, count);
    int at = 0;
    while (name[at] != near)
        at++;
    fail("recipe: no setting '%s'; nearest is '%s' (%s)", key, near, meaning[at]);
    arena_free(&a);
    return false;
}

static bool source_set(struct recipe *r, const char *key, const char *value)
{
    char *end;
    long n = strtol(key + strlen("data.sources."), &end, 10);
    if (*end != '.')
        return fail("recipe: '%s': expected a key of an entry, as data.sources.0.path",
                    key);
    if (n < 0 || n > r->nsource || n >= MAX_SOURCES)
        return fail("recipe: '%s': data.sources has %d entries, numbered from 0", key,
                    r->nsource);
    for (int i = 0; i < COUNT(source_field); i++) {
        if (strcmp(end + 1, source_field[i].key))
            continue;
        if (n == r->nsource)
            source_default(&r->source[r->nsource++]);
        return value_set(r->arena, &source_field[i], key, value,
                         (char *)&r->source[n] + source_at[i]);
    }
    return unknown(key);
}

bool recipe_set(struct recipe *r, const char *key, const char *value)
{
    char name[NAME_MOST];
    if (text_starts(key, "data.sources."))
        return source_set(r, key, value);
    for (int i = 0; i < COUNT(field); i++) {
        snprintf(name, sizeof name, "%s.%s", field[i].section, field[i].key);
        if (!strcmp(name, key))
            return value_set(r->arena, &field[i], name, value, (char *)r + field_at[i]);
    }
    return unknown(key);
}

/* ---- YAML ---- */

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
        source_default(&r->source[r->nsource++]);
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

/* ---- values that must fit together ---- */

bool recipe_changed(const struct recipe *r, struct arena *a, const char *key)
{
    struct recipe plain;
    recipe_default(a, &plain);
    return strcmp(recipe_get(r, a, key), recipe_get(&plain, a, key)) != 0;
}

static bool needs_check(const struct recipe *r)
{
    const bool met[] = {
#define NEED(section, key, met, what) met,
#include "recipe/recipe.def"
    };
    struct arena a = arena_make("needs");
    bool ok = true;
    for (int i = 0; i < COUNT(need) && ok; i++)
        if (!met[i] && recipe_changed(r, &a, need[i].key))
            ok = fail("recipe: %s = %s means nothing without %s; set that, or leave "
                      "it out", need[i].key, recipe_get(r, &a, need[i].key),
                      need[i].what);
    arena_free(&a);
    return ok;
}

bool recipe_check(const struct recipe *r)
{
    bool ok = true;
    if (!*r->model_path)
        ok = fail("recipe: model.path is empty; name a folder with config.json");
    else if (r->nsource == 0)
        ok = fail("recipe: data.sources is empty; name at least one source");
    else if (r->data_max_pixels && r->data_min_pixels > r->data_max_pixels)
        ok = fail("recipe: data.min_pixels %" PRId64 " is above data.max_pixels %"
                  PRId64, r->data_min_pixels, r->data_max_pixels);
    else if (!strcmp(r->optim_schedule, "wsd") && r->train_epochs)
        ok = fail("recipe: optim.schedule wsd decays over the last steps, and how many "
                  "train.epochs %" PRId64 " take is not known; use cosine, or "
                  "train.steps", r->train_epochs);
    else if (r->optim_lr * r->optim_decay >= 2)
        ok = fail("recipe: optim.lr %g times optim.decay %g is %g: each update would "
                  "multiply weights by %g, so they could only grow without bound; "
                  "expected below 2", r->optim_lr, r->optim_decay,
                  r->optim_lr * r->optim_decay, 1 - r->optim_lr * r->optim_decay);
    else if (!strcmp(r->optim_schedule, "wsd") &&
             r->optim_warmup + r->optim_decay_steps > r->train_steps)
        ok = fail("recipe: optim.warmup %" PRId64 " + optim.decay_steps %" PRId64
                  " exceed train.steps %" PRId64, r->optim_warmup, r->optim_decay_steps,
                  r->train_steps);
    else if (r->eval_every && !r->data_hold_out)
        ok = fail("recipe: eval.every is %" PRId64 " but data.hold_out is 0; hold "
                  "samples out to evaluate on", r->eval_every);
    else if (!*r->run_name || *r->run_name == '.' || strchr(r->run_name, '/'))
        ok = fail("recipe: run.name '%s' must be one folder's name", r->run_name);
    for (int i = 0; ok && i < r->nsource; i++)
        if (!*r->source[i].path)
            ok = fail("recipe: data.sources.%d.path is empty", i);
    return (ok && needs_check(r)) || fail_kind(FAULT_USAGE);
}

/* ---- back to text ---- */

static const char *value_text(struct arena *a, const struct recipe_field *f,
                              const void *at)
{
    if (!strcmp(f->type, "count"))
        return arena_text(a, "%" PRId64, *(const int64_t *)at);
    if (!strcmp(f->type, "real")) {
        char *text = arena_text(a, "%.15g", *(const double *)at);
        return strtod(text, NULL) == *(const double *)at
                   ? text : arena_text(a, "%.17g", *(const double *)at);
    }
    if (!strcmp(f->type, "flag"))
        return *(const bool *)at ? "true" : "false";
    return *(const char *const *)at;
}

/* A YAML text in quotes: what a YAML reader refuses or folds is escaped. */
static void text_quoted(struct text *t, const char *value)
{
    text_add(t, "\"");
    for (const unsigned char *c = (const unsigned char *)value; *c;) {
        uint32_t more = *c < 0x80 ? 0 : *c < 0xe0 ? 1 : *c < 0xf0 ? 2 : 3;
        uint32_t code = more ? *c & (0x3fu >> more) : *c;
        for (uint32_t i = 1; i <= more; i++)
            code = code << 6 | (c[i] & 0x3f);
        if (code == '"' || code == '\\')
            text_add(t, "\\%c", *c);
        else if (code < ' ' || (code >= 0x7f && code < 0xa0))
            text_add(t, "\\x%02x", code);
        else if (code >> 1 == 0x1014 || code == 0xfeff || code >> 1 == 0x7fff)
            text_add(t, "\\u%04x", code);
        else
            text_add_bytes(t, c, more + 1);
        c += more + 1;
    }
    text_add(t, "\"");
}

static void line_add(struct text *t, const struct recipe_field *f, const char *indent,
                     const void *at)
{
    const char *value = value_text(t->arena, f, at);
    text_add(t, "%s%s: ", indent, f->key);
    if (!strcmp(f->type, "text")) {
        text_quoted(t, value);
        text_add(t, "\n");
    } else {
        text_add(t, "%s\n", value);
    }
}

int choice_of(const char *value, const char *const *names)
{
    int i = 0;
    while (strcmp(names[i], value))
        i++;
    return i;
}

char *recipe_text_of(const struct recipe *r, struct arena *a)
{
    struct text t = text_make(a);
    for (int i = 0; i < COUNT(field); i++) {
        if (i == 0 || strcmp(field[i].section, field[i - 1].section)) {
            text_add(&t, "%s:\n", field[i].section);
            if (!strcmp(field[i].section, "data")) {
                text_add(&t, "  sources:%s\n", r->nsource ? "" : " []");
                for (int s = 0; s < r->nsource; s++)
                    for (int k = 0; k < COUNT(source_field); k++)
                        line_add(&t, &source_field[k], k ? "      " : "    - ",
                                 (const char *)&r->source[s] + source_at[k]);
            }
        }
        line_add(&t, &field[i], "  ", (const char *)r + field_at[i]);
    }
    return t.at;
}

enum resume recipe_resume(const char *key)
{
    for (int i = 0; i < COUNT(resume); i++)
        if (!strcmp(resume[i].key, key))
            return resume[i].rule;
    return RESUME_UNSAID;
}

int recipe_values(const struct recipe *r, struct arena *a, struct recipe_value **out)
{
    struct recipe plain;
    struct recipe_source plain_source;
    struct recipe_value *v =
        NEW(a, struct recipe_value, COUNT(field) + r->nsource * COUNT(source_field));
    char name[NAME_MOST];
    int n = 0;
    recipe_default(a, &plain);
    source_default(&plain_source);
    for (int i = 0; i < COUNT(field); i++, n++) {
        snprintf(name, sizeof name, "%s.%s", field[i].section, field[i].key);
        v[n] = (struct recipe_value){
            .key = arena_text(a, "%s", name), .resume = recipe_resume(name),
            .value = value_text(a, &field[i], (const char *)r + field_at[i]),
            .preset = value_text(a, &field[i], (const char *)&plain + field_at[i])};
    }
    for (int s = 0; s < r->nsource; s++)
        for (int k = 0; k < COUNT(source_field); k++, n++) {
            const struct recipe_field *f = &source_field[k];
            snprintf(name, sizeof name, "%s.%s", f->section, f->key);
            v[n] = (struct recipe_value){
                .key = arena_text(a, "data.sources.%d.%s", s, f->key),
                .resume = recipe_resume(name),
                .value = value_text(a, f, (const char *)&r->source[s] + source_at[k]),
                .preset = value_text(a, f, (const char *)&plain_source + source_at[k])};
        }
    *out = v;
    return n;
}

const char *recipe_key_like(struct arena *a, const char *key)
{
    const char **name = NEW(a, const char *, COUNT(field));
    for (int i = 0; i < COUNT(field); i++) {
        name[i] = arena_text(a, "%s.%s", field[i].section, field[i].key);
        if (!strcmp(field[i].key, key))
            return name[i];
    }
    return text_nearest(key, name, COUNT(field));
}

const char *recipe_get(const struct recipe *r, struct arena *a, const char *key)
{
    char name[NAME_MOST];
    for (int i = 0; i < COUNT(field); i++) {
        snprintf(name, sizeof name, "%s.%s", field[i].section, field[i].key);
        if (!strcmp(name, key))
            return value_text(a, &field[i], (const char *)r + field_at[i]);
    }
    return NULL;
}
