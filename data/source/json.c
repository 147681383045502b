/* json.c - JSON lists and JSON lines: where each record lies, and one record
 * read when it is wanted.  Neither is parsed whole at open, so a list of millions costs
 * 16 bytes a record; what is wrong inside one record is one bad sample. */
#include "data/source/parts.h"

#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

struct record { int64_t offset; uint32_t size, line; };

struct json {
    int fd;                             /* kept: what was indexed is what is read */
    bool list;                          /* one [...] of objects, not one in each line */
    const struct dialect *dialect;
    struct shelf shelf;
    struct record *record;
    int64_t room;
};

static bool record_add(struct arena *a, struct source *s, int64_t offset, int64_t size,
                       int64_t line)
{
    struct json *j = s->state;
    if (size > TEXT_BYTES)
        return fail("%s: sample %lld at byte %lld takes %lld byte(s), the limit is %d",
                    s->path, (long long)s->total, (long long)offset, (long long)size,
                    TEXT_BYTES);
    if (line > UINT32_MAX)
        return fail("%s: has more than %lld line(s)", s->path, (long long)UINT32_MAX);
    GROW(a, j->record, s->total, j->room);
    j->record[s->total++] = (struct record){offset, (uint32_t)size, (uint32_t)line};
    return true;
}

static bool lines_index(struct arena *a, struct source *s, struct bytes text,
                        int64_t from)
{
    int64_t line = 0;
    while (from < text.size) {
        line++;
        char *end = memchr(text.at + from, '\n', (size_t)(text.size - from));
        int64_t to = end ? end - text.at : text.size, next = to + 1;
        while (from < to && is_blank(text.at[from]))
            from++;
        while (to > from && is_blank(text.at[to - 1]))
            to--;
        if (to > from && !record_add(a, s, from, to - from, line))
            return false;
        from = next;
    }
    return true;
}

/* ---- a list: its commas outside strings and brackets part the records ---- */

static bool list_fail(const struct source *s, struct bytes text, int64_t at,
                      const char *what)
{
    int64_t line = 1;
    for (int64_t i = 0; i < at && i < text.size; i++)
        line += text.at[i] == '\n';
    return fail("%s:%lld: %s at byte %lld", s->path, (long long)line, what,
                (long long)at);
}

static int64_t string_end(struct bytes text, int64_t at)    /* of its closing quote */
{
    for (int64_t from = ++at; at < text.size; at++) {
        char *quote = memchr(text.at + at, '"', (size_t)(text.size - at));
        if (!quote)
            return text.size;
        at = quote - text.at;
        int64_t slash = at;
        while (slash > from && text.at[slash - 1] == '\\')
            slash--;
        if ((at - slash) % 2 == 0)      /* an even number of them escape each other */
            return at;
    }
    return text.size;
}

/* The first byte behind the value at `at`: a ',' or ']' of the list, or the end. */
static int64_t value_end(struct bytes text, int64_t at)
{
    int64_t depth = 0;
    for (; at < text.size; at++) {
        char c = text.at[at];
        if (c == '"')
            at = string_end(text, at);
        else if (c == '{' || c == '[')
            depth++;
        else if (depth == 0 && (c == ',' || c == ']' || c == '}'))
            return at;
        else if (c == '}' || c == ']')
            depth--;
    }
    return text.size;
}

static int64_t blanks_end(struct bytes text, int64_t at)
{
    while (at < text.size && is_blank(text.at[at]))
        at++;
    return at;
}

static bool list_index(struct arena *a, struct source *s, struct bytes text,
                       int64_t open)
{
    int64_t at = blanks_end(text, open + 1);
    bool empty = at < text.size && text.at[at] == ']';
    while (!empty) {
        int64_t end = value_end(text, at), to = end;
        if (end >= text.size)
            return list_fail(s, text, at, "the list ends inside the value that begins");
        while (to > at && is_blank(text.at[to - 1]))
            to--;
        if (to == at)
            return list_fail(s, text, at, "a value is missing in the list");
        if (text.at[end] == '}')
            return list_fail(s, text, end, "'}' without its '{'");
        if (!record_add(a, s, at, to - at, 0))
            return false;
        at = text.at[end] == ',' ? blanks_end(text, end + 1) : end;
        if (text.at[end] == ']')
            break;
    }
    at = blanks_end(text, at + 1);
    return at == text.size || list_fail(s, text, at, "something follows the list");
}

static bool text_index(struct arena *a, struct source *s, struct bytes text)
{
    struct json *j = s->state;
    int64_t from = text.size >= 3 && !memcmp(text.at, "\xef\xbb\xbf", 3) ? 3 : 0;
    int64_t first = blanks_end(text, from);
    s->hash = hash_more(0, text.at, text.size);
    j->list = first < text.size && text.at[first] == '[';
    return j->list ? list_index(a, s, text, first) : lines_index(a, s, text, from);
}

/* ---- format auto: the first samples that leave no choice decide ---- */

static bool record_parse(const struct source *s, int64_t index, struct arena *item,
                         json_t **out)
{
    const struct json *j = s->state;
    struct bytes text;
    if (!file_range(item, j->fd, j->record[index].offset, j->record[index].size, &text))
        return false;
    *out = json_object_parse(s, text, false);
    return *out != NULL;
}

static const char *json_name(const struct source *s, int64_t index, struct arena *item)
{
    const struct json *j = s->state;
    if (j->list)
        return arena_text(item, "%s[%lld]", s->path, (long long)index);
    return arena_text(item, "%s:%u", s->path, j->record[index].line);
}

static bool dialect_choose(struct source *s)
{
    enum { SEEN = 1000 };
    struct json *j = s->state;
    struct arena item = arena_make("sample"), names = arena_make("keys");
    struct text keys = text_make(&names);
    int64_t parsed = 0, messages = 0;
    const char *first = NULL;           /* what is wrong with the first that is bad */
    for (int64_t i = 0; i < s->total && i < SEEN && !j->dialect; i++) {
        struct arena_mark m = arena_mark(&item);
        json_t *object;
        if (record_parse(s, i, &item, &object)) {
            const char *key;
            json_t *value;
            if (!parsed++)
                json_object_foreach(object, key, value)
                    text_add(&keys, "%s'%.40s'", keys.size ? ", " : "", key);
            j->dialect = dialect_of(object);
            messages += json_object_get(object, "messages") != NULL;
            json_decref(object);
        } else if (!first)
            first = arena_text(&names, "%s", fail_message());
        arena_reset(&item, m);
    }
    arena_free(&item);
    if (!j->dialect && messages && s->total <= SEEN)
        j->dialect = dialect_named("openai");   /* text only: all mean the same */
    if (!j->dialect && messages)
        fail("%s: cannot tell the format: the first %d sample(s) have no image; set "
             "data.sources.N.format: openai where images are parts of the content, "
             "sharegpt where '<image>' marks them", s->path, SEEN);
    else if (!j->dialect && parsed)
        fail("%s: cannot tell the format: its first record has the keys %.400s; "
             "readable are 'conversations', 'messages', 'instruction' with 'output' "
             "(Alpaca), 'file_name' with 'text'", s->path,
             keys.size ? keys.at : "(none)");
    else if (!j->dialect)
        fail("%s: cannot tell the format: no sample can be read, expected a JSON list "
             "or one object a line; the first: %s", s->path, first);
    arena_free(&names);
    if (!j->dialect)
        return false;
    s->format = j->dialect->format;
    return true;
}

/* ---- images of a folder that its list does not name ---- */

/* The path without "." and empty parts, so that two spellings of it are one. */
static char *path_plain(struct arena *a, const char *path)
{
    char *out = arena_text(a, "%s", path), *to = out;
    for (const char *from = path; *from; from++) {
        bool part = from == path || from[-1] == '/';
        if (part && from != path && *from == '/')
            continue;
        if (part && from[0] == '.' && from[1] == '/') {
            from++;
            continue;
        }
        *to++ = *from;
    }
    *to = '\0';
    return out;
}

static char **listed_paths(struct arena *a, const struct source *s, int64_t *count)
{
    const struct json *j = s->state;
    char **path = NEW(a, char *, s->total);
    struct arena item = arena_make("record");
    *count = 0;
    for (int64_t i = 0; i < s->total; i++) {
        struct arena_mark m = arena_mark(&item);
        struct image_source image;
        json_t *object;
        if (record_parse(s, i, &item, &object)) {
            const json_t *name = json_object_get(object, "file_name");
            if (json_is_string(name) &&
                image_reference(&item, json_string_value(name),
                                json_string_length(name), &j->shelf, "", &image) &&
                image.path)
                path[(*count)++] = path_plain(a, image.path);
            json_decref(object);
        }
        arena_reset(&item, m);
    }
    arena_free(&item);
    if (*count)
        qsort(path, (size_t)*count, sizeof *path, name_order);
    return path;
}

/* For one who forgot a line; nothing that is read depends on it. */
static const char *unlisted(struct arena *a, const struct source *s, const char *folder)
{
    struct arena work = arena_make("unlisted");
    const char *out = NULL, *first = NULL;
    char **name;
    int64_t count, listed, others = 0;
    if (!folder_images(&work, folder, &name, &count)) {
        out = arena_text(a, "%s: whether " metadata_name " names all images is not "
                         "known: %s", folder, fail_message());
        count = 0;
    }
    char **path = listed_paths(&work, s, &listed);
    fail_clear();                       /* what is wrong in lines is told of samples */
    for (int64_t i = 0; i < count; i++) {
        char *image = path_plain(&work, path_join(&work, folder, name[i]));
        if (listed && bsearch(&image, path, (size_t)listed, sizeof *path, name_order))
            continue;
        first = first && strcmp(first, name[i]) < 0 ? first : name[i];
        others++;
    }
    if (others)
        out = arena_text(a, "%s: images in no line of " metadata_name ", so not read: "
                         "%lld (first: %s)", folder, (long long)others, first);
    arena_free(&work);
    return out;
}

static const char *folder_of(struct arena *a, const char *path)
{
    const char *name = base_name(path);
    if (name == path)
        return ".";
    return arena_copy(a, path, (size_t)MAX(name - path - 1, 1));
}

static bool json_open(struct arena *a, const struct source_options *o, struct source *s)
{
    const char *folder = s->path;
    if (folder_exists(s->path) && !strcmp(s->format, "imagefolder"))
        s->path = path_join(a, s->path, metadata_name);
    if (folder_exists(s->path))
        return fail("%s: is a folder, expected a regular file: format %s is one JSON "
                    "file (format folder: images with captions)", s->path, s->format);
    struct json *j = NEW(a, struct json, 1);
    s->state = j;
    j->dialect = dialect_named(s->format);
    j->shelf.folder = o->images ? arena_text(a, "%s", o->images)
                                : folder_of(a, s->path);
    if (!file_descriptor(s->path, O_RDONLY, &j->fd))
        return false;
    struct bytes text;
    if (!file_map(s->path, &text))
        return false;
    bool ok = text_index(a, s, text);
    file_unmap(&text);
    if (!ok || !s->total)
        return ok;                      /* the caller says that there are none */
    if (!j->dialect && !dialect_choose(s))
        return false;
    if (s->path != folder)
        s->remark = unlisted(a, s, folder);
    return true;
}

static bool json_read(const struct source *s, int64_t index, struct arena *item,
                      struct sample *out)
{
    const struct json *j = s->state;
    json_t *object;
    if (!record_parse(s, index, item, &object))
        return false;
    if (j->dialect->records == DIALECT_ALPACA) {
        json_t *turns = record_from_alpaca(item, object);
        json_decref(object);
        if (!turns)
            return false;
        object = turns;
    }
    bool ok = j->dialect->records == DIALECT_CAPTIONS
                  ? sample_from_file_name(item, s->prompt, object, &j->shelf, out)
                  : sample_from_json(item, object, j->dialect, &j->shelf, out);
    json_decref(object);
    return ok;
}

static void json_close(struct source *s)
{
    const struct json *j = s->state;
    if (j->fd >= 0)
        close(j->fd);
}

const struct reader reader_json = {
    .open = json_open, .name = json_name, .read = json_read, .close = json_close,
};
