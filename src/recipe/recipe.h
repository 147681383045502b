/* recipe.h - what a run is to be: YAML, checked against one table (recipe.def).
 *
 *     include: base.yaml            # read first; later values win
 *     model: {path: qwen3-vl-30b-a3b}
 *     data:
 *       sources:
 *         - {path: photos, weight: 2}
 *         - {path: chats.jsonl, format: openai}
 *
 * Overrides are SECTION.KEY=VALUE, data.sources.N.KEY=VALUE too, applied after all
 * files; validation comes last.  An unknown key fails and names the nearest one.
 * Relative paths are meant from the folder a command is run in, `include` from the
 * file's own folder. */
#ifndef RECIPE_RECIPE_H
#define RECIPE_RECIPE_H

#include "base/arena.h"
#include "base/text.h"

#include "recipe/words.h"

enum { MAX_SOURCES = 64 };

#define RECIPE_TYPE_count(tag) int64_t
#define RECIPE_TYPE_real(tag) double
#define RECIPE_TYPE_flag(tag) bool
#define RECIPE_TYPE_text(tag) const char *
#define RECIPE_TYPE_choice(tag) enum tag

/* Every choice is an enum of its words: parallel_shard_none, ... */
#define RECIPE_ENUM_count(tag, choices)
#define RECIPE_ENUM_real(tag, choices)
#define RECIPE_ENUM_flag(tag, choices)
#define RECIPE_ENUM_text(tag, choices)
#define RECIPE_ENUM_choice(tag, choices)                                               \
    enum tag { WORDS_EACH(RECIPE_WORD, tag, choices) };
#define RECIPE_WORD(tag, word) tag##_##word,
#define FIELD(section, key, type, preset, least, most, choices, meaning)               \
    RECIPE_ENUM_##type(section##_##key, choices)
#define SOURCE(key, type, preset, least, most, choices, meaning)                       \
    RECIPE_ENUM_##type(source_##key, choices)
#include "recipe/recipe.def"

struct recipe_source {
#define SOURCE(key, type, preset, least, most, choices, meaning)                       \
    RECIPE_TYPE_##type(source_##key) key;
#include "recipe/recipe.def"
};

/* Every field is SECTION_KEY, e.g. r->optim_lr. */
struct recipe {
    struct arena *arena;                /* owns the texts */
#define FIELD(section, key, type, preset, least, most, choices, meaning)               \
    RECIPE_TYPE_##type(section##_##key) section##_##key;
#include "recipe/recipe.def"
    int nsource;
    struct recipe_source source[MAX_SOURCES];
};

void recipe_default(struct arena *a, struct recipe *r);
/* Defaults, then the file with its includes, then the overrides, then recipe_check. */
MUST_USE bool recipe_read(struct arena *a, const char *path,
                          const char *const *override, int overrides,
                          struct recipe *out);
/* What a text says, onto `r`, which has values; `name` is for messages and includes.
 * (Also the fuzzing entry.) */
MUST_USE bool recipe_parse(struct recipe *r, const char *name, const char *yaml,
                           int64_t size);
/* One more source, of defaults; there is room. */
void recipe_source_add(struct recipe *r);
/* One "section.key" from text: type, range, choice. */
MUST_USE bool recipe_set(struct recipe *r, const char *key, const char *value);
/* Do the values fit together?  Called by recipe_read. */
MUST_USE bool recipe_check(const struct recipe *r);
/* The resolved recipe as YAML, every key, in table order. */
char *recipe_text_of(const struct recipe *r, struct arena *a);
/* A choice's word as users write it, and back (false: none of `key`'s words).  Of a
 * source the key is "data.sources.N.format". */
const char *recipe_word(const char *key, int choice);
MUST_USE bool recipe_choice(const char *key, const char *word, int *out);
const char *recipe_word_like(const char *key, const char *word);    /* the nearest */
/* Every value as text, in table order: "optim.lr", "data.sources.0.path".  Returns how
 * many. */
struct recipe_value {
    const char *key, *value, *preset;   /* preset: the default */
    enum resume { RESUME_UNSAID, RESUME_SAME, RESUME_CONTENT, RESUME_FREE } resume;
};
int recipe_values(const struct recipe *r, struct arena *a, struct recipe_value **out);
/* The key meant by "steps" or "section.kye": of this last part, else the nearest. */
const char *recipe_key_like(struct arena *a, const char *key);
/* The value of "section.key" as text, for reports, comparisons; NULL: no such key. */
const char *recipe_get(const struct recipe *r, struct arena *a, const char *key);

/* The table itself, for help and documentation. */
struct recipe_field {
    const char *section, *key, *type, *preset, *choices, *meaning;
    double least, most;                 /* choices: "a|b", or "" */
    const char *const *word;            /* each, NULL at the end */
};
/* RESUME lines: what a run that goes on may do with "section.key", of a source with
 * "data.sources.N.key". */
enum resume recipe_resume(const char *key);
int recipe_fields(const struct recipe_field **out);     /* FIELD lines */
int recipe_source_fields(const struct recipe_field **out);
/* Does "section.key" have another value than its default? */
bool recipe_changed(const struct recipe *r, struct arena *a, const char *key);
/* NEED lines: what a setting is read with alone. */
struct recipe_need { const char *key, *what; };
int recipe_needs(const struct recipe_need **out);

#endif
