/* recipe.c - the table; values set, checked and printed by it.  Knows no meanings. */
#include "recipe/recipe.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum { NAME_MOST = 96 };

/* A choice's words: "a|b" and {"a", "b", NULL}. */
#define BAR(tag, word) "|" WORDS_TEXT(word)
#define COMMA(tag, word) WORDS_TEXT(word),
#define BARS_count(choices) choices
#define BARS_real(choices) choices
#define BARS_flag(choices) choices
#define BARS_text(choices) choices
#define BARS_choice(choices) &WORDS_EACH(BAR, , choices)[1]
#define LIST_count(choices) NULL
#define LIST_real(choices) NULL
#define LIST_flag(choices) NULL
#define LIST_text(choices) NULL
#define LIST_choice(choices) (const char *const[]){WORDS_EACH(COMMA, , choices) NULL}
#define PRESET_count(tag, preset) preset
#define PRESET_real(tag, preset) preset
#define PRESET_flag(tag, preset) preset
#define PRESET_text(tag, preset) preset
#define PRESET_choice(tag, preset) tag##_##preset

static const struct recipe_field field[] = {
#define FIELD(section, key, type, preset, least, most, choices, meaning)               \
    {#section, #key, #type, #preset, BARS_##type(choices), meaning, least, most,       \
     LIST_##type(choices)},
#include "recipe/recipe.def"
};
static const size_t field_at[] = {
#define FIELD(section, key, type, preset, least, most, choices, meaning)               \
    offsetof(struct recipe, section##_##key),
#include "recipe/recipe.def"
};
static const struct recipe_field source_field[] = {
#define SOURCE(key, type, preset, least, most, choices, meaning)                       \
    {"data.sources.N", #key, #type, #preset, BARS_##type(choices), meaning, least,     \
     most, LIST_##type(choices)},
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
    .section##_##key = PRESET_##type(section##_##key, preset),
#include "recipe/recipe.def"
    };
}

static void source_default(struct recipe_source *s)
{
    *s = (struct recipe_source){
#define SOURCE(key, type, preset, least, most, choices, meaning)                       \
    .key = PRESET_##type(source_##key, preset),
#include "recipe/recipe.def"
    };
}

void recipe_source_add(struct recipe *r)
{
    REQUIRE(r->nsource < MAX_SOURCES);
    source_default(&r->source[r->nsource++]);
}

/* ---- one value ---- */

static int word_find(const struct recipe_field *f, const char *word)     /* or -1 */
{
    for (int i = 0; f->word[i]; i++)
        if (!strcmp(f->word[i], word))
            return i;
    return -1;
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
    if (f->word) {
        int at = word_find(f, value);
        if (at < 0)
            return fail("recipe: %s = '%s' is not one of %s  (%s)", name, value,
                        f->choices, f->meaning);
        *(unsigned *)to = (unsigned)at;         /* what enums are to the compiler */
        return true;
    }
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
            recipe_source_add(r);
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
    else if (r->optim_schedule == optim_schedule_wsd && r->train_epochs)
        ok = fail("recipe: optim.schedule wsd decays over the last steps, and how many "
                  "train.epochs %" PRId64 " take is not known; use cosine, or "
                  "train.steps", r->train_epochs);
    else if (r->optim_lr * r->optim_decay >= 2)
        ok = fail("recipe: optim.lr %g times optim.decay %g is %g: each update would "
                  "multiply weights by %g, so they could only grow without bound; "
                  "expected below 2", r->optim_lr, r->optim_decay,
                  r->optim_lr * r->optim_decay, 1 - r->optim_lr * r->optim_decay);
    else if (r->optim_schedule == optim_schedule_wsd &&
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
    if (f->word)
        return f->word[*(const unsigned *)at];
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

/* ---- words of choices ---- */

static const struct recipe_field *choice_named(const char *key)
{
    const char *of_source = "data.sources.N.";
    bool source = text_starts(key, of_source);
    const struct recipe_field *f = source ? source_field : field;
    int count = source ? COUNT(source_field) : COUNT(field);
    char name[NAME_MOST];
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "%s.%s", f[i].section, f[i].key);
        if (f[i].word && !strcmp(name, key))
            return &f[i];
    }
    BUG("recipe: no choice '%s'", key);
}

const char *recipe_word(const char *key, int choice)
{
    return choice_named(key)->word[choice];
}

bool recipe_choice(const char *key, const char *word, int *out)
{
    *out = word_find(choice_named(key), word);
    return *out >= 0;
}

const char *recipe_word_like(const char *key, const char *word)
{
    const struct recipe_field *f = choice_named(key);
    int count = 0;
    while (f->word[count])
        count++;
    return text_nearest(word, f->word, count);
}
