/* changes.c - compares the values of a recipe, and hashes of what it names, with those
 * that a training state kept. */
#include "train/changes.h"

#include <inttypes.h>
#include <jansson.h>

static const char sources[] = "data.sources";

/* ---- what is allowed ---- */

static bool is_source_key(const char *key)
{
    size_t n = strlen(sources);
    return !strncmp(key, sources, n) && (!key[n] || key[n] == '.');
}

bool allowed_check(const struct allowed *allowed)
{
    struct arena a = arena_make("keys");
    struct recipe plain;
    bool ok = true;
    recipe_default(&a, &plain);
    for (int i = 0; i < allowed->count && ok; i++) {
        const char *key = allowed->key[i];
        ok = is_source_key(key) || recipe_get(&plain, &a, key) ||
             fail("train: --allow-changed %s: no such setting; nearest is '%s'", key,
                  recipe_key_like(&a, key));
    }
    arena_free(&a);
    return ok || fail_kind(FAULT_USAGE);
}

static bool is_allowed(const struct allowed *allowed, const char *key)
{
    for (int i = 0; allowed && i < allowed->count; i++)
        if (!strcmp(allowed->key[i], key) ||
            (!strcmp(allowed->key[i], sources) && is_source_key(key)))
            return true;
    return false;
}

/* ---- keeping ---- */

static char *hash_text(struct arena *a, uint64_t hash)
{
    return arena_text(a, "%016" PRIx64, hash);
}

void changes_keep(const struct session *s, json_t *meta)
{
    struct arena a = arena_make("recipe");
    struct recipe_value *v;
    int n = recipe_values(s->recipe, &a, &v);
    json_t *values = json_object();
    for (int i = 0; i < n; i++)
        json_object_set_new(values, v[i].key, json_string(v[i].value));
    json_object_set_new(meta, "recipe", values);
    json_object_set_new(meta, "data", json_string(hash_text(&a, s->data_hash)));
    json_object_set_new(meta, "model_files", json_string(hash_text(&a, s->model_hash)));
    arena_free(&a);
}

/* ---- comparing ---- */

struct found {
    struct text *all;                   /* every change, a line each */
    struct text refused, keys;          /* those that may not be; their options */
    const struct allowed *allowed;
};

static void change(struct found *f, const char *key, const char *was, const char *is,
                   bool may)
{
    const char *line = arena_text(f->all->arena, "%s %s -> %s", key,
                                  *was ? was : "empty", *is ? is : "empty");
    text_add(f->all, "%s\n", line);
    if (may || is_allowed(f->allowed, key))
        return;
    text_add(&f->refused, "%s%s", f->refused.size ? ", " : "", line);
    text_add(&f->keys, " --allow-changed %s", key);
}

static void values_compare(const struct session *s, json_t *values, struct arena *a,
                           struct found *f)
{
    struct recipe_value *v;
    int n = recipe_values(s->recipe, a, &v);
    for (int i = 0; i < n; i++) {
        const char *was = json_string_value(json_object_get(values, v[i].key));
        was = was ? was : v[i].preset;  /* a setting that there was not yet */
        if (strcmp(was, v[i].value))
            change(f, v[i].key, was, v[i].value, v[i].resume != RESUME_SAME);
    }
}

bool changes_find(const struct session *s, const struct allowed *allowed,
                  const char *path, const json_t *meta, struct text *t)
{
    struct arena a = arena_make("changes");
    struct found f = {t, text_make(&a), text_make(&a), allowed};
    json_t *values = json_object_get(meta, "recipe");
    const struct { const char *name, *key, *what; uint64_t now; } content[] = {
        {"data", sources, "data", s->data_hash},
        {"model_files", "model.path", "files", s->model_hash},
    };
    bool ok = json_is_object(values) ||
              fail("checkpoint: %s: the manifest lacks 'recipe'", path);
    if (ok)
        values_compare(s, values, &a, &f);
    /* Rank 0 has read them; what it refuses nobody trains. */
    for (int i = 0; i < COUNT(content) && ok && session_leads(s); i++) {
        const char *was = json_string_value(json_object_get(meta, content[i].name));
        const char *is = hash_text(&a, content[i].now);
        if (!was)
            ok = fail("checkpoint: %s: the manifest lacks '%s'", path, content[i].name);
        else if (strcmp(was, is))
            change(&f, content[i].key,
                   arena_text(&a, "%s of hash %s", content[i].what, was), is, false);
    }
    if (!ok)
        fail_kind(FAULT_CHECKPOINT);
    if (ok && f.refused.size) {
        ok = fail("train: %s was made with other settings: %.900s; with them this is "
                  "another run: give it another run.name, or go on all the same "
                  "with%.300s", path, f.refused.at, f.keys.at);
        fail_kind(FAULT_REFUSED);
    }
    arena_free(&a);
    return ok;
}
