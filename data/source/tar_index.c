/* tar_index.c - libarchive walks a shard's headers once; the lines it leaves are parsed
 * in place, the same way from a scan and from disk. */
#include "data/source/tar_index.h"

#include "base/log.h"
#include "base/text.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { BLOCK = 512, VERSION = 2 };      /* of a tar; of the kept index */
static const int64_t index_bytes = (int64_t)1 << 34;
static const char magic[] = "vlmoe-tar-index ";

/* ---- shard to members: libarchive reads the headers ---- */

struct found {                          /* one member that is or stands for a file */
    char *name;
    const char *target;                 /* of a link: a name as plain_name makes them */
    int64_t offset, size;               /* offset 0: there is no file */
};

struct scan {
    const char *shard;
    struct bytes tar;
    struct arena arena;
    struct found *found;
    int64_t count, room;
    int64_t end;                        /* of the last member: the next begins there */
};

/* A name without ".", ".." and doubled slashes, so that what means the same is equal;
 * only what leads out of the shard still begins with "..". */
static char *plain_name(struct arena *a, const char *folder, int size, const char *name)
{
    char *out = arena_text(a, "%.*s%s", size, folder, name), *to = out;
    int depth = 0;
    for (const char *at = out; *at;) {
        int part = (int)strcspn(at, "/");
        const char *next = at + part + (at[part] == '/');
        bool up = part == 2 && at[0] == '.' && at[1] == '.';
        if (up && depth) {
            for (to--; to > out && to[-1] != '/';)
                to--;
            depth--;
        } else if (part && !(part == 1 && at[0] == '.')) {
            memmove(to, at, (size_t)(next - at));
            to += next - at;
            depth += !up;
        }
        at = next;
    }
    *to = '\0';
    return out;
}

/* Where a link leads, "" out of the shard: hard links name a member, symbolic ones
 * start beside themselves. */
static const char *link_target(struct scan *s, struct archive_entry *e,
                               const char *name)
{
    const char *hard = archive_entry_hardlink(e), *soft = archive_entry_symlink(e);
    if (hard)
        return plain_name(&s->arena, "", 0, hard);
    if (soft[0] == '/')
        return "";
    const char *slash = strrchr(name, '/');
    return plain_name(&s->arena, name, slash ? (int)(slash + 1 - name) : 0, soft);
}

static bool member_scan(struct scan *s, struct archive *r, struct archive_entry *e)
{
    const char *name = archive_entry_pathname(e);
    int64_t offset = archive_filter_bytes(r, 0), size = archive_entry_size(e);
    bool link = archive_entry_hardlink(e) || archive_entry_symlink(e);
    bool file = archive_entry_filetype(e) == AE_IFREG && !link;
    int64_t begin = s->end;
    if (!file)
        size = 0;
    if (archive_entry_sparse_count(e))
        return fail("%s: the member at byte %lld is sparse, expected plain bytes",
                    s->shard, (long long)begin);
    if (size < 0 || size > s->tar.size - offset)
        return fail("%s: cut short: the member at byte %lld has %lld byte(s) from %lld "
                    "on, the file ends at %lld", s->shard, (long long)begin,
                    (long long)size, (long long)offset, (long long)s->tar.size);
    s->end = offset + (size + BLOCK - 1) / BLOCK * BLOCK;
    if (archive_entry_filetype(e) == AE_IFDIR)
        return true;
    if (!name || !*name || strchr(name, '\n'))
        return fail("%s: the member at byte %lld has no usable name", s->shard,
                    (long long)begin);
    GROW(&s->arena, s->found, s->count, s->room);
    s->found[s->count++] = (struct found){
        .name = arena_text(&s->arena, "%s", name), .offset = file ? offset : 0,
        .size = size, .target = link ? link_target(s, e, name) : NULL};
    return true;
}

/* A whole tar ends in zero blocks; without one a cut between two members would pass.
 * Readers stop there, so what follows would be lost: a second archive, for one. */
static bool end_check(const struct scan *s)
{
    static const char zero[BLOCK];
    int64_t end = s->end, size = s->tar.size;
    if (end > size - BLOCK || memcmp(s->tar.at + end, zero, BLOCK))
        return fail("%s: cut short or damaged at byte %lld: no end-of-archive block "
                    "(the file ends at %lld)", s->shard, (long long)end,
                    (long long)size);
    for (int64_t at = end; at < size; at += BLOCK)
        if (memcmp(s->tar.at + at, zero, (size_t)MIN(BLOCK, size - at)))
            return fail("%s: goes on at byte %lld, behind the end of its archive; were "
                        "two archives joined? give each its own file", s->shard,
                        (long long)at);
    return true;
}

static bool members_scan(struct scan *s, struct archive *r)
{
    for (;;) {
        struct archive_entry *e;
        int code = archive_read_next_header(r, &e);
        if (code == ARCHIVE_EOF)
            return end_check(s);
        if (code != ARCHIVE_OK && code != ARCHIVE_WARN)
            return fail("%s: cut short or damaged at byte %lld: %s", s->shard,
                        (long long)s->end, archive_error_string(r));
        if (!member_scan(s, r, e))
            return false;
    }
}

/* ---- links: each gets the place of the file that it leads to ---- */

struct named { char *name; int64_t index; };

static int named_order(const void *x, const void *y)
{
    const struct named *a = x, *b = y;
    int order = strcmp(a->name, b->name);
    return order ? order : (a->index > b->index) - (a->index < b->index);
}

/* The member of that name; of several the last, as unpacking would leave it. */
static int64_t named_find(const struct named *at, int64_t count, const char *name)
{
    int64_t low = 0, high = count;      /* the first whose name is greater */
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (strcmp(at[middle].name, name) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low && !strcmp(at[low - 1].name, name) ? at[low - 1].index : -1;
}

static void links_resolve(struct scan *s)
{
    enum { HOPS = 16 };                 /* links may form a circle */
    bool links = false;
    for (int64_t i = 0; i < s->count; i++)
        links |= s->found[i].target != NULL;
    if (!links)
        return;
    struct named *at = NEW(&s->arena, struct named, s->count);
    for (int64_t i = 0; i < s->count; i++)
        at[i] = (struct named){plain_name(&s->arena, "", 0, s->found[i].name), i};
    qsort(at, (size_t)s->count, sizeof *at, named_order);
    for (int64_t i = 0; i < s->count; i++) {
        int64_t to = i;
        for (int hop = 0; hop < HOPS && to >= 0 && s->found[to].target; hop++)
            to = named_find(at, s->count, s->found[to].target);
        if (to >= 0 && !s->found[to].target) {
            s->found[i].offset = s->found[to].offset;
            s->found[i].size = s->found[to].size;
        }
    }
}

static bool shard_scan(const char *shard, struct text *lines, int64_t *count)
{
    struct scan s = {.shard = shard, .arena = arena_make("scan")};
    if (!file_map(shard, &s.tar))
        return false;
    struct archive *r = archive_read_new();
    REQUIRE(r);
    archive_read_support_format_tar(r); /* and no filter: members must lie plain */
    bool ok = archive_read_open_memory(r, s.tar.at, (size_t)s.tar.size) == ARCHIVE_OK ||
              fail("%s: not a plain tar file at byte 0: %s", shard,
                   archive_error_string(r));
    ok = ok && members_scan(&s, r);
    archive_read_free(r);
    file_unmap(&s.tar);
    if (ok)
        links_resolve(&s);
    for (int64_t i = 0; ok && i < s.count; i++)
        text_add(lines, "%lld %lld %s\n", (long long)s.found[i].offset,
                 (long long)s.found[i].size, s.found[i].name);
    *count = s.count;
    arena_free(&s.arena);
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
        !number_take(&at, &mtime) || !number_take(&at, &x->count) ||
        version != VERSION || size != x->shard_size || mtime != x->mtime)
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
        text_add(&file, "%s%d %lld %lld %lld %016" PRIx64 "\n", magic, VERSION,
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
    if (fstat(fd, &st) != 0) {
        int error = errno;
        fail("stat: %s", strerror(error));
        return fail_machine(error);
    }
    shard_stat(&st, &size, &mtime);
    if (size == x->shard_size && mtime == x->mtime)
        return true;
    return fail("the shard changed since it was indexed (%lld byte(s) then, %lld now)",
                (long long)x->shard_size, (long long)size);
}
