/* keys.c - which keys of a JSON record are read, which say nothing that could be
 * learnt, and what becomes of the others: a key that nobody reads may be an answer, a
 * mask or an image, so its sample is bad.  One list, which docs/data.md shows. */
#include "data/source/parts.h"

#include "base/text.h"

#include <strings.h>

/* Where a sample is from, what was measured of it, how it was made.  A '*' at the end
 * stands for anything. */
static const char *const about_record[] = {
    "id", "_id", "uid", "uuid", "guid", "idx", "index", "key", "__key__", "__url__",
    "__index_level_0__", "*_id", "source", "dataset", "data_source", "dataset_name",
    "source_dataset", "origin", "subset", "split", "category", "categories", "task",
    "task_type", "task_name", "tag", "tags", "topic", "domain", "difficulty", "quality",
    "license", "language", "lang", "locale", "url", "urls", "page_url", "model",
    "model_name", "generator", "annotator", "created", "created_at", "date",
    "timestamp", "version", "width", "height", "width_list", "height_list",
    "image_size", "original_width", "original_height", "md5", "sha1", "sha256", "hash",
    "phash", "status", "error_message", "exif", "similarity", "clip_*", "punsafe",
    "pwatermark", "watermark*", "nsfw*", "aesthetic*", "metadata", "meta", "extra_info",
    "length", "num_*", NULL};
static const char *const about_turn[] = {
    "id", "name", "tool_call_id", "index", "turn", "language", "lang", "model",
    "source", "created_at", "timestamp", NULL};
static const char *const about_part[] = {"id", "index", "detail", NULL};

const char *const *const keys_about[LEVELS] = {
    [LEVEL_RECORD] = about_record, [LEVEL_TURN] = about_turn, [LEVEL_PART] = about_part,
};

static bool fits(const char *pattern, const char *key)
{
    size_t size = strlen(pattern), length = strlen(key);
    if (*pattern == '*')
        return length >= size && !strcasecmp(key + length - (size - 1), pattern + 1);
    if (pattern[size - 1] == '*')
        return !strncasecmp(key, pattern, size - 1);
    return !strcasecmp(key, pattern);
}

static bool listed(const char *const *list, const char *key)
{
    for (; *list; list++)
        if (fits(*list, key))
            return true;
    return false;
}

bool value_filled(const json_t *value)
{
    return value && !json_is_null(value) &&
           !(json_is_string(value) && json_string_length(value) == 0) &&
           !(json_is_array(value) && json_array_size(value) == 0) &&
           !(json_is_object(value) && json_object_size(value) == 0);
}

bool key_filled(const json_t *object, const char *key)
{
    return value_filled(json_object_get(object, key));
}

bool keys_check(const json_t *object, enum level level, const char *const *used)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        bool read = !value_filled(value) || listed(keys_about[level], key);
        for (int i = 0; used[i] && !read; i++)
            read = !strcmp(used[i], key);
        if (!read)
            return fail("the key '%.80s' is not read, and may change what is trained; "
                        "if it does not, name it in data.sources.N.ignore", key);
    }
    return true;
}

bool word_listed(const char *words, const char *word)
{
    static const char gap[] = " ,";
    for (const char *at = words + strspn(words, gap); *at;) {
        size_t size = strcspn(at, gap);
        if (strlen(word) == size && !strncmp(at, word, size))
            return true;
        at += size;
        at += strspn(at, gap);
    }
    return false;
}

void keys_ignore(json_t *value, const char *words)
{
    const char *key;
    json_t *inner;
    void *next;
    size_t i;
    json_array_foreach(value, i, inner)
        keys_ignore(inner, words);
    json_object_foreach_safe(value, next, key, inner) {
        if (word_listed(words, key))
            json_object_del(value, key);
        else
            keys_ignore(inner, words);
    }
}

/* What the values of this key are, where they are objects. */
static enum level level_below(enum level level, const char *key)
{
    if (level == LEVEL_RECORD && (!strcmp(key, "messages") ||
                                  !strcmp(key, "conversations")))
        return LEVEL_TURN;
    bool parts = level == LEVEL_TURN && !strcmp(key, "content");
    bool images = level == LEVEL_RECORD && (!strcmp(key, "image") ||
                                            !strcmp(key, "images"));
    return parts || images ? LEVEL_PART : LEVEL_OTHER;
}

bool keys_unmarked(const json_t *value, enum level level, const char *mark)
{
    const char *key, *text = json_string_value(value);
    json_t *inner;
    size_t i;
    if (text && text_starts(text, mark))
        return fail("is the number %.40s, which cannot be read; if it does not matter, "
                    "name its key in data.sources.N.ignore", text + strlen(mark));
    json_array_foreach(value, i, inner)
        if (!keys_unmarked(inner, level, mark))
            return fail_in("[%zu]", i);
    json_object_foreach((json_t *)value, key, inner)
        if (!(level < LEVELS && listed(keys_about[level], key)) &&
            !keys_unmarked(inner, level_below(level, key), mark))
            return fail_in("%.80s", key);
    return true;
}
