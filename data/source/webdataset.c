/* webdataset.c - tar shards whose members share a key: the name up to the first
 * dot of its last part.  A sample is a key's images (several in the shard's order) with
 * .json (messages, as in message.c; or the list of them alone) or a caption: in
 * .txt, or the JSON's "caption" or "text".  A member of another type makes its sample
 * bad, unless it is known to be about the sample (a class, a hash): something to learn
 * from would be lost.
 *
 * Names inside a shard are labels only: nothing is ever opened or written by them. */
#include "data/source/parts.h"

#include "base/text.h"
#include "data/source/tar_index.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <unistd.h>

struct shard { const char *path; struct tar_index index; };
struct group { int64_t first; int32_t count, shard; };      /* members of one key */

struct webdataset {
    int64_t shards;
    struct shard *shard;
    struct group *group;
    int64_t room;
};

/* ---- the shards: a file, "x-{000..012}.tar", a glob, a folder ---- */

struct paths { char **at; int64_t count, room; };

static void path_add(struct arena *a, struct paths *p, char *path)
{
    GROW(a, p->at, p->count, p->room);
    p->at[p->count++] = path;
}

enum { SHARDS = 1000000 };              /* most that braces may stand for */

/* The range in braces that `open` begins with, and how many digits its numbers have. */
static bool range_read(const char *path, const char *open, long long *from,
                       long long *to, int *digits, const char **behind)
{
    int end = 0;
    errno = 0;
    if (sscanf(open, "{%lld%n..%lld}%n", from, digits, to, &end) != 2 || !end ||
        errno || *from < 0 || *to < *from)
        return fail("%s: '%s' is not a range like {000..012}", path, open);
    *digits -= 1;
    *behind = open + end;
    return true;
}

/* How many paths the braces stand for, before any of them is made. */
static bool braces_count(const char *path, int64_t *count)
{
    *count = 1;
    for (const char *at = strchr(path, '{'); at; at = strchr(at, '{')) {
        long long from, to;
        int digits;
        if (!range_read(path, at, &from, &to, &digits, &at))
            return false;
        if (to - from >= SHARDS / *count)
            return fail("%s: its braces stand for more than %d shard(s)", path, SHARDS);
        *count *= to - from + 1;
    }
    return true;
}

static bool braces_expand(struct arena *a, const char *path, struct paths *p)
{
    const char *open = strchr(path, '{'), *behind = NULL;
    if (!open) {
        path_add(a, p, arena_text(a, "%s", path));
        return true;
    }
    long long from, to;
    int digits;
    if (!range_read(path, open, &from, &to, &digits, &behind))
        return false;
    for (long long i = from; i <= to; i++)
        if (!braces_expand(a, arena_text(a, "%.*s%0*lld%s", (int)(open - path), path,
                                         digits, i, behind), p))
            return false;
    return true;
}

static void glob_expand(struct arena *a, const char *path, struct paths *p)
{
    glob_t found = {0};
    if (glob(path, GLOB_NOSORT, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++)
            if (!text_ends(found.gl_pathv[i], ".idx"))      /* "x-*" finds those too */
                path_add(a, p, arena_text(a, "%s", found.gl_pathv[i]));
    globfree(&found);
}

static bool shards_find(struct arena *a, const char *path, struct paths *p)
{
    int64_t count;
    if (folder_exists(path)) {
        char **name;
        if (!folder_list(a, path, &name, &count))
            return false;
        for (int64_t i = 0; i < count; i++)
            if (text_ends(name[i], ".tar"))
                path_add(a, p, path_join(a, path, name[i]));
    } else if (file_exists(path)) {
        path_add(a, p, arena_text(a, "%s", path));
    } else if (strpbrk(path, "*?[")) {
        glob_expand(a, path, p);
        if (p->count)
            qsort(p->at, (size_t)p->count, sizeof *p->at, name_order);
    } else if (!braces_count(path, &count) || !braces_expand(a, path, p)) {
        return false;
    }
    return p->count || fail("%s: no tar shards", path);
}

/* ---- members to groups ---- */

/* Bytes of the key, or -1: a hidden file, which programs keep for themselves. */
static int key_size(const char *name)
{
    const char *base = base_name(name);
    return *base == '.' ? -1 : (int)(base + strcspn(base, ".") - name);
}

static bool same_key(const char *a, const char *b)
{
    int size = key_size(a);
    return size == key_size(b) && !memcmp(a, b, (size_t)size);
}

static int key_order(const void *x, const void *y)
{
    const char *a = *(const char *const *)x, *b = *(const char *const *)y;
    int m = key_size(a), n = key_size(b);
    int order = memcmp(a, b, (size_t)MIN(m, n));
    return order ? order : m - n;
}

/* Members of one key must be neighbours, else they would pass for two samples. */
static bool groups_check(const struct shard *d, const struct group *group,
                         int64_t count)
{
    struct arena a = arena_make("keys");
    const char **name = NEW(&a, const char *, count);
    for (int64_t i = 0; i < count; i++)
        name[i] = d->index.member[group[i].first].name;
    qsort(name, (size_t)count, sizeof *name, key_order);
    bool ok = true;
    for (int64_t i = 1; i < count && ok; i++)
        if (same_key(name[i - 1], name[i]))
            ok = fail("%s: the members of key %.*s are not beside each other", d->path,
                      key_size(name[i]), name[i]);
    arena_free(&a);
    return ok;
}

static bool groups_add(struct arena *a, struct source *s, int32_t shard)
{
    struct webdataset *w = s->state;
    const struct shard *d = &w->shard[shard];
    int64_t before = s->total, last = -1;
    for (int64_t i = 0; i < d->index.count; i++) {
        const char *name = d->index.member[i].name;
        if (key_size(name) < 0)
            continue;
        if (last == i - 1 && last >= 0 && same_key(d->index.member[last].name, name)) {
            w->group[s->total - 1].count++;
        } else {
            GROW(a, w->group, s->total, w->room);
            w->group[s->total++] = (struct group){i, 1, shard};
        }
        last = i;
    }
    int64_t added = s->total - before;
    return added == 0 || groups_check(d, w->group + before, added);
}

static bool webdataset_open(struct arena *a, const struct source_options *o,
                            struct source *s)
{
    (void)o;
    struct webdataset *w = NEW(a, struct webdataset, 1);
    struct paths paths = {0};
    s->state = w;
    if (!shards_find(a, s->path, &paths))
        return false;
    w->shards = paths.count;
    w->shard = NEW(a, struct shard, paths.count);
    for (int64_t i = 0; i < paths.count; i++) {
        struct shard *d = &w->shard[i];
        d->path = paths.at[i];
        if (!foreign_check(d->path) || !tar_index_open(a, d->path, &d->index) ||
             !groups_add(a, s, (int32_t)i))
            return false;
        s->hash = hash_text(s->hash, base_name(d->path));
        s->hash = hash_more(s->hash, &d->index.shard_size, sizeof d->index.shard_size);
        s->hash = hash_more(s->hash, &d->index.hash, sizeof d->index.hash);
    }
    return true;
}

static const char *webdataset_name(const struct source *s, int64_t index,
                                   struct arena *item)
{
    const struct webdataset *w = s->state;
    const struct group *g = &w->group[index];
    const struct shard *d = &w->shard[g->shard];
    const char *name = d->index.member[g->first].name;
    return arena_text(item, "%s:%.*s", d->path, key_size(name), name);
}

/* ---- one key ---- */

struct contents {                       /* of a key, as far as it was read */
    int count;
    struct image_source *image;
    const char **label;
    struct bytes json, text;            /* at NULL: not there */
};

static bool text_once(const char *label, struct bytes *had, struct bytes got)
{
    if (had->at)
        return fail("has two .%s members, expected one", label);
    *had = got;
    return true;
}

/* Types of members that say something about a sample, and nothing to learn. */
static bool about(const struct source *s, const char *name)
{
    static const char *const type[] = {".cls", ".cls2", ".id", ".idx", ".index", ".key",
                                       ".url", ".md5", ".sha256", ".license"};
    for (int i = 0; i < COUNT(type); i++)
        if (text_ends(name, type[i]))
            return true;
    const char *dot = strrchr(name, '.');
    return dot && s->ignore && word_listed(s->ignore, dot + 1);
}

static bool member_read(const struct source *s, struct arena *item, int fd,
                        const struct shard *d, const struct tar_member *m,
                        struct contents *c)
{
    const char *label = base_name(m->name);
    bool image = image_named(m->name, true), json = text_ends(m->name, ".json");
    if (about(s, m->name))
        return true;
    if (!image && !json && !text_ends(m->name, ".txt"))
        return fail("member %s is of unknown type, expected .jpg, .png, .webp, .json "
                    "or .txt",
                    label);
    if (!m->offset)
        return fail("member %s is a link that leads to no file of the shard, or a pipe "
                    "or device", label);
    if (m->size > IMAGE_BYTES)
        return fail("member %s has %lld byte(s), the limit is %d", label,
                    (long long)m->size, IMAGE_BYTES);
    struct bytes got;
    if (!file_range(item, fd, m->offset, m->size, &got))
        return fail_in("member %s", label);
    if (!image)
        return text_once(json ? "json" : "txt", json ? &c->json : &c->text, got);
    int i = c->count++;
    c->label[i] = label;
    c->image[i] = (struct image_source){
        .data = got, .name = arena_text(item, "%s:%s", d->path, m->name)};
    return true;
}

static bool labels_check(struct arena *item, const struct contents *c)
{
    const char **label = NEW(item, const char *, c->count + 1);
    for (int i = 0; i < c->count; i++)
        label[i] = c->label[i];
    qsort(label, (size_t)c->count, sizeof *label, name_order);
    for (int i = 1; i < c->count; i++)
        if (!strcmp(label[i - 1], label[i]))
            return fail("has two members %s, expected one", label[i]);
    return true;
}

static bool group_read(const struct source *s, const struct group *g,
                       struct arena *item, struct contents *c)
{
    const struct webdataset *w = s->state;
    const struct shard *d = &w->shard[g->shard];
    int fd;
    if (!file_descriptor(d->path, O_RDONLY, &fd))
        return false;
    c->image = NEW(item, struct image_source, g->count);
    c->label = NEW(item, const char *, g->count);
    bool ok = tar_index_fresh(&d->index, fd);
    for (int32_t i = 0; i < g->count && ok; i++)
        ok = member_read(s, item, fd, d, &d->index.member[g->first + i], c);
    close(fd);
    return ok && labels_check(item, c);
}

static bool contents_sample(const struct source *s, struct arena *item,
                            const struct contents *c, const json_t *object,
                            struct sample *out)
{
    if (json_object_get(object, "messages") ||
        json_object_get(object, "conversations")) {
        const struct dialect *d = dialect_of(object);
        if (c->text.at)
            return fail("both a .txt member and turns in the .json; which is meant? "
                        "name the other in data.sources.N.ignore");
        struct shelf shelf = {.count = c->count, .member = c->image, .label = c->label};
        return sample_from_json(item, object, d ? d : dialect_named("sharegpt"), &shelf,
                                out);
    }
    static const char *const used[] = {"caption", "text", NULL};
    struct bytes text = c->text;
    if (object && !(keys_check(object, LEVEL_RECORD, used) &&
                    caption_of(object, &text)))
        return fail_in("json");
    if (!text.at)
        return fail("no text, expected a .txt member or a .json member with "
                    "'messages', 'conversations', 'caption' or 'text'");
    if (!c->count)
        return fail("a caption, but no image");
    out->nimage = c->count;
    out->image = c->image;
    return sample_from_caption(item, s->prompt, text, out);
}

static bool webdataset_read(const struct source *s, int64_t index, struct arena *item,
                            struct sample *out)
{
    const struct webdataset *w = s->state;
    struct contents c = {0};
    if (!group_read(s, &w->group[index], item, &c))
        return false;
    json_t *object = NULL;
    if (c.json.at && !(object = json_object_parse(s, c.json, true)))
        return fail_in("json");
    bool ok = contents_sample(s, item, &c, object, out);
    json_decref(object);
    return ok;
}

const struct reader reader_webdataset = {
    .open = webdataset_open, .name = webdataset_name, .read = webdataset_read,
};
