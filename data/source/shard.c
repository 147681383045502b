/* shard.c - samples to tar shards.  The reverse of webdataset.c. */
#include "data/source/shard.h"

#include "base/log.h"
#include "data/image/image.h"
#include "data/source/tar_index.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

enum { BLOCK = 512 };                   /* of a tar */

struct shard {                          /* the one being written */
    const struct shard_options *options;
    const char *folder;                 /* FOLDER.part */
    char *path;
    struct file file;
    struct archive *tar;                /* NULL: none is open */
    int64_t size;                       /* of its members */
    int64_t written;                    /* bytes, and their hash */
    XXH64_state_t *hash;
    struct shard_report *report;
};

/* ---- a sample as members ---- */

static const char *const role_name[ROLES] = {
    [ROLE_SYSTEM] = "system", [ROLE_USER] = "user", [ROLE_ASSISTANT] = "assistant",
    [ROLE_TOOL] = "tool",
};

struct member { const char *label; struct bytes data; };

static json_t *piece_json(const struct piece *p, const struct member *image)
{
    if (p->image < 0)
        return json_pack("{s:s, s:s}", "type", "text", "text", p->text);
    return json_pack("{s:s, s:s}", "type", "image", "image", image[p->image].label);
}

static json_t *message_json(const struct message *m, const struct member *image)
{
    json_t *parts = json_array();
    for (int i = 0; i < m->npiece; i++)
        json_array_append_new(parts, piece_json(&m->piece[i], image));
    json_t *out = json_pack("{s:s, s:o}", "role", role_name[m->role], "content", parts);
    if (m->silent)
        json_object_set_new(out, "weight", json_integer(0));
    return out;
}

static bool sample_json(struct arena *item, const struct sample *s,
                        const struct member *image, struct bytes *out)
{
    json_t *messages = json_array();
    for (int i = 0; i < s->nmessage; i++)
        json_array_append_new(messages, message_json(&s->message[i], image));
    json_t *object = json_pack("{s:o}", "messages", messages);
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    if (!text)
        return fail("cannot be written as JSON");
    *out = (struct bytes){arena_text(item, "%s", text), (int64_t)strlen(text)};
    free(text);
    return true;
}

/* All images, then the JSON that names them. */
static bool members_make(struct arena *item, const struct sample *s, struct member *m)
{
    static const char *const extension[] = {
        [IMAGE_JPEG] = "jpg", [IMAGE_PNG] = "png", [IMAGE_WEBP] = "webp"};
    for (int i = 0; i < s->nimage; i++) {
        if (!image_source_read(item, &s->image[i], &m[i].data))
            return false;
        enum image_kind kind = image_kind_of(m[i].data.at, m[i].data.size);
        if (kind == IMAGE_UNKNOWN) {
            image_unread(m[i].data);
            return fail_in("image %s", s->image[i].name);
        }
        m[i].label = arena_text(item, "%d.%s", i, extension[kind]);
    }
    m[s->nimage].label = "json";
    return sample_json(item, s, m, &m[s->nimage].data);
}

/* ---- members into shards ---- */

static bool tar_fail(const struct shard *w)
{
    return fail("%s: write: %s (%s)", w->path, archive_error_string(w->tar),
                strerror(archive_errno(w->tar)));
}

static la_ssize_t shard_put(struct archive *tar, void *arg, const void *from,
                            size_t size)
{
    struct shard *w = arg;
    ssize_t n;
    do
        n = write(w->file.fd, from, size);
    while (n < 0 && errno == EINTR);
    if (n < 0) {
        archive_set_error(tar, errno, "%s", strerror(errno));
        return -1;
    }
    XXH64_update(w->hash, from, (size_t)n);
    w->written += n;
    return n;
}

static bool shard_open(struct shard *w, struct arena *run)
{
    const char *prefix = w->options->prefix ? w->options->prefix : "shard";
    w->path = arena_text(run, "%s/%s-%06lld.tar", w->folder, prefix,
                         (long long)w->report->shards);
    w->file = (struct file){-1, w->path};
    if (!file_descriptor(w->path, O_WRONLY | O_CREAT | O_EXCL, &w->file.fd))
        return false;
    w->tar = archive_write_new();
    w->hash = XXH64_createState();
    REQUIRE(w->tar && w->hash);
    XXH64_reset(w->hash, 0);
    w->size = w->written = 0;
    w->report->shards++;
    if (archive_write_set_format_ustar(w->tar) == ARCHIVE_OK &&
        archive_write_set_bytes_in_last_block(w->tar, 1) == ARCHIVE_OK &&
        archive_write_open(w->tar, w, NULL, shard_put, NULL) == ARCHIVE_OK)
        return true;
    return tar_fail(w);
}

/* Does the file hold what was written?  A write may say so and lose it. */
static bool shard_holds(const struct shard *w, uint64_t hash)
{
    struct bytes all;
    if (!file_map(w->path, &all))
        return false;
    bool same = all.size == w->written && XXH64(all.at, (size_t)all.size, 0) == hash;
    int64_t size = all.size;
    file_unmap(&all);
    return same || fail("%s: holds other bytes than were written: %lld, expected %lld",
                        w->path, (long long)size, (long long)w->written);
}

/* Reads the shard for its index, which must be kept beside it. */
static bool shard_index(const struct shard *w)
{
    struct arena a = arena_make("index");
    struct tar_index index;
    const char *path = arena_text(&a, "%s.idx", w->path);
    bool ok = tar_index_open(&a, w->path, &index) &&
              (file_exists(path) || fail("%s: could not be written (%s)", path,
                                         fail_message()));
    arena_free(&a);
    return ok;
}

/* Ends the file, puts it on disk, reads it back. */
static bool shard_finish(struct shard *w)
{
    if (!w->tar)
        return true;
    bool ok = archive_write_close(w->tar) == ARCHIVE_OK || tar_fail(w);
    archive_write_free(w->tar);
    w->tar = NULL;
    uint64_t hash = XXH64_digest(w->hash);
    XXH64_freeState(w->hash);
    return file_sync(&w->file, ok) && shard_holds(w, hash) && shard_index(w);
}

static bool member_write(struct shard *w, const char *key, const struct member *m)
{
    struct arena a = arena_make("member");
    struct archive_entry *e = archive_entry_new();
    REQUIRE(e);
    archive_entry_set_pathname(e, arena_text(&a, "%s.%s", key, m->label));
    archive_entry_set_size(e, m->data.size);
    archive_entry_set_filetype(e, AE_IFREG);
    archive_entry_set_perm(e, 0644);
    archive_entry_set_mtime(e, 0, 0);   /* the same source gives the same bytes */
    bool ok = archive_write_header(w->tar, e) == ARCHIVE_OK &&
              archive_write_data(w->tar, m->data.at, (size_t)m->data.size) ==
                  (la_ssize_t)m->data.size;
    archive_entry_free(e);
    arena_free(&a);
    return ok || tar_fail(w);
}

static int64_t members_size(const struct member *m, int count)
{
    int64_t size = 0;
    for (int i = 0; i < count; i++)
        size += BLOCK + (m[i].data.size + BLOCK - 1) / BLOCK * BLOCK;
    return size;
}

static bool sample_write(struct shard *w, struct arena *run, const struct member *m,
                         int nimage)
{
    int64_t most = w->options->bytes ? w->options->bytes : (int64_t)1 << 29;
    int64_t size = members_size(m, nimage + 1);
    if (w->tar && w->size + size > most - 20 * BLOCK && !shard_finish(w))
        return false;                   /* the end of a tar takes up to 20 blocks */
    if (!w->tar && !shard_open(w, run))
        return false;
    char key[32];
    snprintf(key, sizeof key, "%09lld", (long long)w->report->samples);
    for (int i = 0; i <= nimage; i++) {
        if (!member_write(w, key, &m[i]))
            return false;
        w->report->image_bytes += i < nimage ? m[i].data.size : 0;
    }
    w->size += size;
    w->report->samples++;
    w->report->images += nimage;
    return true;
}

/* ---- the whole source ---- */

static bool sample_make(const struct source *from, int64_t index, struct arena *item,
                        struct sample *s, struct member **m)
{
    if (!source_read(from, index, item, s))
        return false;
    *m = NEW(item, struct member, s->nimage + 1);
    return members_make(item, s, *m) || fail_in("%s", s->name) || fail_kind(FAULT_DATA);
}

static bool samples_write(const struct source *from, struct shard *w, struct arena *run)
{
    struct arena item = arena_make("item");
    bool ok = true;
    for (int64_t i = 0; i < source_count(from) && ok; i++) {
        struct sample s;
        struct member *m;
        if (sample_make(from, i, &item, &s, &m)) {
            ok = (w->report->bad && !w->options->skip) ||       /* for nothing */
                 sample_write(w, run, m, s.nimage);
        } else if (!fail_machine_error()) {
            log_warn("data", "%s: %s", w->options->skip ? "left out" : "bad",
                     fail_message());
            if (!w->report->bad++)
                snprintf(w->report->first_bad, sizeof w->report->first_bad, "%s",
                         fail_message());
        } else {
            ok = false;
        }
        arena_free(&item);
        if (i % 1000 == 999)
            log_progress("packed %lld of %lld sample(s) into %lld shard(s)",
                         (long long)i + 1, (long long)source_count(from),
                         (long long)w->report->shards);
    }
    return ok;
}

/* Every sample that can be read, or that there is, into FOLDER.part. */
static bool part_fill(const struct source *from, struct shard *w, struct arena *run)
{
    bool ok = samples_write(from, w, run);
    if (w->tar) {                       /* after a failure its message is kept */
        struct failure why;
        fail_take(&why);
        bool ended = shard_finish(w);
        if (!ok)
            fail_raise(&why);
        ok = ok && ended;
    }
    if (ok && w->report->bad && !(w->options->skip && w->report->samples)) {
        ok = fail("%s: not written, as %lld of %lld sample(s) cannot be read%s; the "
                  "first: %s", w->options->folder, (long long)w->report->bad,
                  (long long)source_count(from),
                  w->options->skip ? "" : " (--skip leaves them out)",
                  w->report->first_bad);
        fail_kind(FAULT_DATA);
    }
    return ok && folder_sync(w->folder);
}

/* FOLDER.part becomes FOLDER; what a crashed run left there goes first. */
static bool pack_into(const struct source *from, struct shard *w, struct arena *run)
{
    const char *folder = w->options->folder;
    if (folder_exists(w->folder) && !folder_remove(w->folder))
        return false;
    if (!folder_make(w->folder))
        return false;
    bool ok = part_fill(from, w, run) && folder_replace(w->folder, folder);
    if (!ok && folder_exists(w->folder))
        folder_abandon(w->folder);
    return ok;
}

bool shards_write(const struct source *from, const struct shard_options *o,
                  struct shard_report *out)
{
    struct arena run = arena_make("pack");
    *out = (struct shard_report){0};
    char *folder = arena_text(&run, "%s", o->folder);
    for (size_t n = strlen(folder); n > 1 && folder[n - 1] == '/'; n--)
        folder[n - 1] = '\0';
    struct shard_options options = *o;
    options.folder = folder;
    struct shard w = {.options = &options, .report = out,
                      .folder = arena_text(&run, "%s.part", folder)};
    bool ok = folder_unused(folder) && pack_into(from, &w, &run);
    arena_free(&run);
    return ok || fail_kind(FAULT_USAGE);        /* what was read has its own fault */
}
