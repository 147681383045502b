/* source.c - chooses the reader, keeps what match and limit leave, names the sample in
 * every failure.  Each format is in a file of its own. */
#include "data/source/parts.h"

#include "base/log.h"
#include "base/text.h"

#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

static const struct format {
    const char *name;
    const struct reader *reader;
} format[] = {
    {"folder", &reader_folder},
    {"llava", &reader_json},
    {"qwen", &reader_json},
    {"sharegpt", &reader_json},
    {"openai", &reader_json},
    {"alpaca", &reader_json},
    {"imagefolder", &reader_json},
    {"webdataset", &reader_webdataset},
    {"auto", &reader_json},             /* of a file: decided by its samples' keys */
};

uint64_t hash_more(uint64_t hash, const void *from, int64_t size)
{
    return XXH64(from, (size_t)size, hash);
}

uint64_t hash_text(uint64_t hash, const char *text)
{
    text = text ? text : "";
    return hash_more(hash, text, (int64_t)strlen(text) + 1);
}

bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

int name_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

bool file_range(struct arena *item, int fd, int64_t offset, int64_t size,
                struct bytes *out)
{
    *out = (struct bytes){arena_push(item, (size_t)size + 1), size};
    for (int64_t done = 0; done < size;) {
        ssize_t n = pread(fd, out->at + done, (size_t)(size - done), offset + done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            int error = errno;
            fail("read at byte %lld: %s", (long long)(offset + done), strerror(error));
            return fail_machine(error);
        }
        if (n == 0)
            return fail("the file ends at byte %lld, expected %lld byte(s) from %lld "
                        "on",
                        (long long)(offset + done), (long long)size, (long long)offset);
        done += n;
    }
    return true;
}

/* ---- auto: decided by what is there ---- */

/* What lies directly in the folder, or one level down for images. */
static bool guess_folder(struct arena *a, const char *path, const char **format_name,
                         const char **why)
{
    char **name;
    const char *other = NULL;
    int64_t count, shards = 0, images = 0, folders = 0, texts = 0, lists = 0;
    if (!folder_list(a, path, &name, &count))
        return false;
    for (int64_t i = 0; i < count; i++) {
        shards += text_ends(name[i], ".tar");
        images += image_named(name[i], false);
        lists += !strcmp(name[i], metadata_name);
        texts += text_ends(name[i], ".json") || text_ends(name[i], ".jsonl");
        other = other || !foreign_named(name[i]) ? other : name[i];
        folders += folder_exists(path_join(a, path, name[i]));
    }
    if (lists && !shards) {
        *format_name = "imagefolder";
        *why = "the folder holds a metadata.jsonl";
        return true;
    }
    if (shards && images)
        return fail("%s: holds %lld tar shard(s) and %lld image(s); set the format to "
                    "webdataset or folder", path, (long long)shards, (long long)images);
    if (!shards && !images && texts)
        return fail("%s: holds no tar shards and no images, but %lld JSON files; give "
                    "the path of a JSON file, or set the format", path,
                    (long long)texts);
    if (!shards && !images && other)
        return fail("%s: holds no tar shards and no images; %s is %s, which is not "
                    "read (readable: " READABLE ")", path, other,
                    foreign_named(other));
    if (!shards && !images && !folders)
        return fail("%s: %s (readable: " READABLE ")", path, count ?
                    "holds no tar shards and no images" : "is an empty folder");
    *format_name = shards ? "webdataset" : "folder";
    *why = shards ? "the folder holds tar shards"
                  : "the folder holds images or folders, and no tar shards";
    return true;
}

static bool guess(struct arena *a, const char *path, const char **format_name,
                  const char **why)
{
    if (folder_exists(path))
        return guess_folder(a, path, format_name, why);
    if (text_ends(path, ".tar")) {
        *why = "the name ends in .tar";
        *format_name = "webdataset";
        return true;
    }
    if (!file_exists(path))
        return fail("%s: no such file or folder", path);
    if (image_named(path, false))
        return fail("%s: is an image; give the path of the folder it is in", path);
    *why = "by the keys of its samples";
    *format_name = "auto";
    return true;
}

/* ---- match and limit ---- */

/* Does the name fit the pattern?  A "!" first turns the answer round. */
static bool name_matches(const char *pattern, const char *name)
{
    bool not = *pattern == '!';
    return (fnmatch(pattern + not, name, FNM_EXTMATCH) == 0) != not;
}

static bool keep(struct arena *a, const struct source_options *o, struct source *s)
{
    if (o->limit < 0)
        return fail("%s: limit %lld, expected 0 or more", o->path, (long long)o->limit);
    int64_t limit = o->limit ? o->limit : s->total;
    s->count = MIN(limit, s->total);
    if (o->match) {
        struct arena names = arena_make("names");
        size_t own = folder_exists(s->path) ? strlen(s->path)
                                            : (size_t)(base_name(s->path) - s->path);
        int64_t room = 0;
        s->count = 0;
        for (int64_t i = 0; i < s->total && s->count < limit; i++) {
            struct arena_mark m = arena_mark(&names);
            const char *name = s->reader->name(s, i, &names);
            const char *below = strncmp(name, s->path, own) ? name : name + own;
            if (name_matches(o->match, below + (*below == '/'))) {
                GROW(a, s->kept, s->count, room);
                s->kept[s->count++] = i;
            }
            arena_reset(&names, m);
        }
        arena_free(&names);
    }
    if (s->count)
        return true;
    if (s->total)
        return fail("%s: none of its %lld sample(s) matches '%s'", o->path,
                    (long long)s->total, o->match);
    return fail("%s: no samples of format %s%s", o->path, s->format,
                s->reader != &reader_json ? "" : file_size(s->path) ?
                ": it holds no record" : ": it is an empty file");
}

static bool open_as(struct arena *a, const struct source_options *o, struct source *s)
{
    const char *why = NULL;
    s->format = o->format ? o->format : "auto";
    if (!foreign_check(o->path))
        return false;
    if (!strcmp(s->format, "auto") && !guess(a, o->path, &s->format, &why))
        return false;
    for (int i = 0; i < COUNT(format); i++)
        if (!strcmp(s->format, format[i].name))
            s->reader = format[i].reader;
    if (!s->reader) {
        const char *names[COUNT(format)];
        for (int i = 0; i < COUNT(format); i++)
            names[i] = format[i].name;
        fail("%s: unknown format '%s', nearest is '%s'; expected folder, llava, qwen, "
             "sharegpt, openai, alpaca, imagefolder, webdataset or auto", o->path,
             s->format, text_nearest(s->format, names, COUNT(names)));
        return fail_kind(FAULT_USAGE);
    }
    if (!s->reader->open(a, o, s))
        return false;
    bool json = s->reader == &reader_json;
    const struct dialect *dialect = json ? dialect_named(s->format) : NULL;
    bool asks = dialect && dialect->records != DIALECT_CAPTIONS; /* NULL: no sample */
    if (asks ? o->prompt != NULL : !json && o->images) {
        fail("%s: '%s' says %s; format %s %s", o->path, asks ? "prompt" : "images",
             asks ? "what is asked of images with captions"
                  : "where the paths in JSON files start", s->format,
             asks ? "has its own questions" : "names no paths");
        return fail_kind(FAULT_USAGE);
    }
    if (why)
        log_info("data", "%s: format auto is %s (%s)", o->path, s->format, why);
    if (s->remark)
        log_info("data", "%s", s->remark);
    return true;
}

bool source_open(struct arena *a, const struct source_options *o, struct source **out)
{
    struct source *s = NEW(a, struct source, 1);
    s->path = arena_text(a, "%s", o->path);
    for (size_t n = strlen(s->path); n > 1 && s->path[n - 1] == '/'; n--)
        ((char *)s->path)[n - 1] = '\0';
    s->match = o->match ? arena_text(a, "%s", o->match) : "";
    s->ignore = o->ignore ? arena_text(a, "%s", o->ignore) : NULL;
    s->prompt = o->prompt ? arena_text(a, "%s", o->prompt) : "Describe the image.";
    if (!open_as(a, o, s) || !keep(a, o, s)) {
        source_close(s);
        return fail_kind(FAULT_DATA);
    }
    s->hash = hash_text(s->hash, s->format);
    s->hash = hash_text(s->hash, s->prompt);
    s->hash = hash_text(s->hash, o->match);
    s->hash = hash_more(s->hash, &o->limit, sizeof o->limit);
    if (s->ignore)
        s->hash = hash_text(s->hash, s->ignore);
    *out = s;
    return true;
}

bool sources_overlap(const struct source *a, const struct source *b)
{
    char one[PATH_MAX], other[PATH_MAX];
    if (!realpath(a->path, one) || !realpath(b->path, other))
        return !strcmp(a->path, b->path) && strcmp(a->match, b->match) != 0;
    size_t n = strlen(one), m = strlen(other), least = MIN(n, m);
    if (n == m)
        return !strcmp(one, other) && strcmp(a->match, b->match) != 0;
    return !strncmp(one, other, least) && (n > m ? one : other)[least] == '/';
}

void source_close(struct source *s)
{
    if (s->reader && s->reader->close && s->state)
        s->reader->close(s);
    s->state = NULL;
}

int64_t source_count(const struct source *s)
{
    return s->count;
}

const char *source_format(const struct source *s)
{
    return s->format;
}

const char *source_remark(const struct source *s)
{
    return s->remark;
}

uint64_t source_hash(const struct source *s)
{
    return s->hash;
}

bool source_read(const struct source *s, int64_t index, struct arena *item,
                 struct sample *out)
{
    REQUIRE(index >= 0 && index < s->count);
    int64_t at = s->kept ? s->kept[index] : index;
    *out = (struct sample){.name = s->reader->name(s, at, item), .id = index};
    if (s->reader->read(s, at, item, out) && marks_known(item, out))
        return true;
    fail_in("%s", out->name);
    return fail_kind(FAULT_DATA);
}
