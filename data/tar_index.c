/* tar_index.c - libarchive walks a shard's headers once; the lines it leaves are parsed
 * in place, the same way from a scan and from disk. */
#include "data/tar_index.h"

#include "base/log.h"
#include "base/text.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { BLOCK = 512 };                   /* of a tar */
static const int64_t index_bytes = (int64_t)1 << 34;
static const char magic[] = "vlmoe-tar-index ";

/* ---- shard to lines ---- */

static bool member_scan(struct archive *r, struct archive_entry *e, const char *shard,
                        int64_t shard_size, struct text *lines, int64_t *end)
{
    const char *name = archive_entry_pathname(e);
    int64_t header = archive_read_header_position(r);
    int64_t offset = archive_filter_bytes(r, 0), size = archive_entry_size(e);
    if (archive_entry_filetype(e) != AE_IFREG || archive_entry_hardlink(e))
        size = 0;
    if (size < 0 || size > shard_size - offset)
        return fail("%s: cut short: the member at byte %lld has %lld bytes from %lld "
                    "on, the file ends at %lld", shard, (long long)header,
                    (long long)size, (long long)offset, (long long)shard_size);
    *end = offset + (size + BLOCK - 1) / BLOCK * BLOCK;
    if (archive_entry_filetype(e) != AE_IFREG || archive_entry_hardlink(e))
        return true;
    if (!name || !*name || strchr(name, '\n'))
        return fail("%s: the member at byte %lld has no usable name", shard,
                    (long long)header);
    if (archive_entry_sparse_count(e))
        return fail("%s: member %s is sparse, expected plain bytes", shard, name);
    text_add(lines, "%lld %lld ", (long long)offset, (long long)size);
    text_add_bytes(lines, name, (int64_t)strlen(name));
    text_add_bytes(lines, "\n", 1);
    return true;
}

/* A whole tar ends in zero blocks; without one a cut between two members would pass. */
static bool end_check(const char *shard, struct bytes tar, int64_t end)
{
    static const char zero[BLOCK];
    if (end <= tar.size - BLOCK && !memcmp(tar.at + end, zero, BLOCK))
        return true;
    return fail("%s: cut short or damaged at byte %lld: no end-of-archive block (the "
                "file ends at %lld)", shard, (long long)end, (long long)tar.size);
}

static bool members_scan(struct archive *r, const char *shard, struct bytes tar,
                         struct text *lines, int64_t *count)
{
    int64_t end = 0;
    for (;;) {
        struct archive_entry *e;
        int code = archive_read_next_header(r, &e);
        if (code == ARCHIVE_EOF)
            return end_check(shard, tar, end);
        if (code != ARCHIVE_OK && code != ARCHIVE_WARN)
            return fail("%s: cut short or damaged at byte %lld: %s", shard,
                        (long long)archive_read_header_position(r),
                        archive_error_string(r));
        int64_t before = lines->size;
        if (!member_scan(r, e, shard, tar.size, lines, &end))
            return false;
        *count += lines->size > before;
    }
}

static bool shard_scan(const char *shard, struct text *lines, int64_t *count)
{
    struct bytes tar;
    if (!file_map(shard, &tar))
        return false;
    struct archive *r = archive_read_new();
    REQUIRE(r);
    archive_read_support_format_tar(r); /* and no filter: members must lie plain */
    bool ok = archive_read_open_memory(r, tar.at, (size_t)tar.size) == ARCHIVE_OK ||
              fail("%s: not a plain tar file at byte 0: %s", shard,
                   archive_error_string(r));
    ok = ok && members_scan(r, shard, tar, lines, count);
    archive_read_free(r);
    file_unmap(&tar);
    return ok;
}

/* ---- lines to members ---- */

/* A number and the blank behind it. */
static bool number_take(char **at, int64_t *out)
{
    char *end;
    errno = 0;
    long long value = strtoll(*at, &end, 10);
    if (end == *at || *end != ' ' || errno || value < 0)
        return false;
    *at = end + 1;
    *out = value;
    return true;
}

/* Names stay in `lines`, their line breaks become NULs. */
static bool lines_parse(struct arena *a, struct bytes lines, struct tar_index *x)
{
    x->hash = XXH64(lines.at, (size_t)lines.size, 0);
    x->member = NEW(a, struct tar_member, x->count);
    char *at = lines.at, *end = lines.at + lines.size;
    for (int64_t i = 0; i < x->count; i++) {
        struct tar_member *m = &x->member[i];
        char *stop = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
        if (!stop)
            return false;
        *stop = '\0';
        if (!number_take(&at, &m->offset) || !number_take(&at, &m->size) || !*at ||
            m->size > x->shard_size || m->offset > x->shard_size - m->size)
            return false;
        m->name = at;
        at = stop + 1;
    }
    return at == end;
}

/* ---- beside the shard ---- */

static void shard_stat(const struct stat *st, int64_t *size, int64_t *mtime)
{
    *size = st->st_size;
    *mtime = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec;
}

/* What is kept, if it is this shard's. */
static bool index_load(struct arena *a, const char *path, struct tar_index *x)
{
    struct bytes file;
    if (!file_read(a, path, index_bytes, &file) || !text_starts(file.at, magic))
        return false;
    int64_t version, size, mtime;
    char *at = file.at + sizeof magic - 1, *line = strchr(at, '\n');
    if (!line || !number_take(&at, &version) || !number_take(&at, &size) ||
        !number_take(&at, &mtime) || !number_take(&at, &x->count) || version != 1 ||
        size != x->shard_size || mtime != x->mtime)
        return false;
    struct bytes lines = {line + 1, file.at + file.size - line - 1};
    char *end;
    uint64_t hash = strtoull(at, &end, 16);
    return end == line && hash == XXH64(lines.at, (size_t)lines.size, 0) &&
           x->count <= lines.size && lines_parse(a, lines, x);
}

/* Does a file of that name belong to someone else? */
static bool foreign(struct arena *a, const char *path)
{
    struct bytes file;
    return file_exists(path) &&
           !(file_read(a, path, index_bytes, &file) && text_starts(file.at, magic));
}

static void index_keep(const char *path, struct tar_index *x, struct bytes lines)
{
    struct arena a = arena_make("index");
    if (foreign(&a, path)) {
        log_warn("data", "%s is no index of ours and stays; the shard is indexed again "
                 "at every start", path);
    } else {
        struct text file = text_make(&a);
        text_add(&file, "%s1 %lld %lld %lld %016" PRIx64 "\n", magic,
                 (long long)x->shard_size, (long long)x->mtime, (long long)x->count,
                 XXH64(lines.at, (size_t)lines.size, 0));
        text_add_bytes(&file, lines.at, lines.size);
        if (!file_replace(path, file.at, file.size))
            log_info("data", "the index stays in memory: %s", fail_message());
    }
    arena_free(&a);
}

bool tar_index_open(struct arena *a, const char *shard, struct tar_index *out)
{
    struct stat st;
    if (stat(shard, &st) != 0)
        return fail("%s: %s", shard, strerror(errno));
    *out = (struct tar_index){0};
    shard_stat(&st, &out->shard_size, &out->mtime);
    const char *path = arena_text(a, "%s.idx", shard);
    struct arena_mark m = arena_mark(a);
    if (file_exists(path) && index_load(a, path, out))
        return true;
    arena_reset(a, m);
    struct text lines = text_make(a);
    out->count = 0;
    if (!shard_scan(shard, &lines, &out->count))
        return false;
    struct bytes text = {lines.at, lines.size};
    index_keep(path, out, text);
    if (!lines_parse(a, text, out))
        BUG("tar index: the lines of a fresh scan of %s do not parse", shard);
    return true;
}

bool tar_index_fresh(const struct tar_index *x, int fd)
{
    struct stat st;
    int64_t size, mtime;
    if (fstat(fd, &st) != 0)
        return fail("stat: %s", strerror(errno));
    shard_stat(&st, &size, &mtime);
    if (size == x->shard_size && mtime == x->mtime)
        return true;
    return fail("the shard changed since it was indexed (%lld bytes then, %lld now)",
                (long long)x->shard_size, (long long)size);
}
