/* folder.c - a folder of images, each with its caption in NAME.txt beside it, in
 * the first line.  Files called like images of other kinds are samples too: their
 * content says whether they can be read; so is a NAME.txt without an image, a bad one.
 * Names that start with a dot are left out: programs keep their own things there. */
#include "data/source/parts.h"

#include "base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

struct folder {
    const char *path;
    char **name;                        /* [count], below path, sorted bytewise */
    int64_t count, room;
};

struct entered {                        /* a folder that is being walked */
    const struct entered *from;
    const char *path;
    dev_t device;
    ino_t inode;
};

/* Links that lead back to where they are would make each image many samples. */
static bool folder_enter(const char *path, const struct entered *from,
                         struct entered *out)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return fail("folder: open %s: %s", path, strerror(errno));
    *out = (struct entered){from, path, st.st_dev, st.st_ino};
    for (; from; from = from->from)
        if (from->device == st.st_dev && from->inode == st.st_ino)
            return fail("%s: leads back to %s: links form a circle", path, from->path);
    return true;
}

/* Is there an image NAME.* for the caption NAME.txt?  Names are sorted: it is near. */
static bool captioned(char **name, const bool *folder, int64_t count, int64_t caption)
{
    size_t stem = strlen(name[caption]) - strlen("txt");        /* with its dot */
    for (int step = -1; step <= 1; step += 2)
        for (int64_t i = caption + step; i >= 0 && i < count &&
             !strncmp(name[i], name[caption], stem); i += step)
            if (!folder[i] && image_named(name[i], false) &&
                !strchr(name[i] + stem, '.'))
                return true;
    return false;
}

static bool folder_walk(struct arena *a, struct folder *f, const char *below,
                        const struct entered *from)
{
    const char *path = *below ? path_join(a, f->path, below) : f->path;
    struct entered here;
    char **name;
    int64_t count;
    if (!folder_enter(path, from, &here) || !folder_list(a, path, &name, &count))
        return false;
    bool *folder = NEW(a, bool, count);
    for (int64_t i = 0; i < count; i++)
        folder[i] = folder_exists(path_join(a, path, name[i]));
    for (int64_t i = 0; i < count; i++) {
        if (name[i][0] == '.')
            continue;
        char *inner = *below ? path_join(a, below, name[i]) : name[i];
        if (folder[i]) {
            if (!folder_walk(a, f, inner, &here))
                return false;
        } else if (image_named(name[i], false) ||
                   (text_ends(name[i], ".txt") && !captioned(name, folder, count, i))) {
            GROW(a, f->name, f->count, f->room);
            f->name[f->count++] = inner;
        }
    }
    return true;
}

static char *caption_path(struct arena *a, const char *image)
{
    int stem = (int)(strrchr(image, '.') - image);
    return arena_text(a, "%.*s.txt", stem, image);
}

static bool folder_open(struct arena *a, const struct source_options *o,
                        struct source *s)
{
    (void)o;
    if (!folder_exists(s->path))
        return fail("%s: no such folder", s->path);
    struct folder *f = NEW(a, struct folder, 1);
    f->path = s->path;
    s->state = f;
    if (!folder_walk(a, f, "", NULL))
        return false;
    s->total = f->count;
    if (s->total)
        qsort(f->name, (size_t)s->total, sizeof *f->name, name_order);
    struct arena paths = arena_make("paths");
    for (int64_t i = 0; i < s->total; i++) {
        struct arena_mark m = arena_mark(&paths);
        const char *image = path_join(&paths, f->path, f->name[i]);
        int64_t size[] = {file_size(image), file_size(caption_path(&paths, image))};
        s->hash = hash_text(s->hash, f->name[i]);
        s->hash = hash_more(s->hash, size, sizeof size);
        arena_reset(&paths, m);
    }
    arena_free(&paths);
    return true;
}

bool folder_images(struct arena *a, const char *path, char ***name, int64_t *count)
{
    struct folder f = {.path = path};
    *count = 0;
    if (!folder_walk(a, &f, "", NULL))
        return false;
    *name = f.name;
    for (int64_t i = 0; i < f.count; i++)
        if (image_named(f.name[i], false))
            f.name[(*count)++] = f.name[i];
    return true;
}

static const char *folder_name(const struct source *s, int64_t index,
                               struct arena *item)
{
    const struct folder *f = s->state;
    return path_join(item, f->path, f->name[index]);
}

/* Captions may be in a list that belongs to the image's own folder. */
static const char *list_hint(struct arena *item, const char *image)
{
    int folder = (int)(base_name(image) - image);
    if (file_exists(arena_text(item, "%.*s" metadata_name, folder, image)))
        return "; the " metadata_name " beside it is read where data.sources.N.path is "
               "its folder";
    if (file_exists(arena_text(item, "%.*smetadata.csv", folder, image)))
        return "; metadata.csv is not read, write it as " metadata_name;
    return "";
}

static bool folder_read(const struct source *s, int64_t index, struct arena *item,
                        struct sample *out)
{
    (void)index;
    const char *path = caption_path(item, out->name);
    if (!image_named(out->name, false))
        return fail("a caption, but no image of that name beside it");
    if (!file_exists(path) && (errno == ENOENT || errno == ENOTDIR))
        return fail("no caption, expected it in %s%s", base_name(path),
                    list_hint(item, out->name));
    struct bytes caption;
    if (!file_read(item, path, CAPTION_BYTES, &caption))
        return false;
    const char *line = memchr(caption.at, '\n', (size_t)caption.size);
    if (line)
        caption.size = line - caption.at;
    out->nimage = 1;
    out->image = NEW(item, struct image_source, 1);
    out->image[0] = (struct image_source){.path = out->name, .name = out->name};
    return sample_from_caption(item, s->prompt, caption, out) ||
           fail_in("%s", base_name(path));
}

const struct reader reader_folder = {
    .open = folder_open, .name = folder_name, .read = folder_read,
};
