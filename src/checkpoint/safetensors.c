/* safetensors.c - reads and writes the safetensors format, trusting no byte of it. */
#include "checkpoint/safetensors.h"

#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <unistd.h>

enum { HEADER_MOST = 100 << 20 };

int64_t disk_count(int ndim, const int64_t *dim)
{
    int64_t count = 1;
    for (int i = 0; i < ndim; i++)
        if (dim[i] < 0 || __builtin_mul_overflow(count, dim[i], &count))
            return -1;
    return count;
}

const char *disk_type(const struct disk_tensor *t)
{
    return t->other ? t->other : dtype_safetensors(t->dtype);
}

const char *disk_text(struct arena *a, const char *type, int ndim, const int64_t *dim)
{
    struct text t = text_make(a);
    text_add(&t, "%s [", type);
    for (int i = 0; i < ndim; i++)
        text_add(&t, "%s%" PRId64, i ? ", " : "", dim[i]);
    text_add(&t, "]");
    return t.at;
}

/* A type that is none of ours is kept by its name, which is a short word. */
static bool type_parse(struct arena *a, const char *name, struct disk_tensor *out)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    size_t size = strlen(name);
    if (dtype_from_safetensors(name, &out->dtype))
        return true;
    if (size < 1 || size > 16 || strspn(name, letters) != size)
        return false;
    fail_clear();
    out->dtype = DTYPE_U8;
    out->other = arena_copy(a, name, size);
    return true;
}

static bool tensor_parse(struct arena *a, const char *path, const char *name, json_t *j,
                         struct bytes data, struct disk_tensor *out)
{
    json_t *dtype = json_object_get(j, "dtype"), *shape = json_object_get(j, "shape");
    json_t *offsets = json_object_get(j, "data_offsets");
    if (!json_is_string(dtype) || !json_is_array(shape) || !json_is_array(offsets) ||
        json_array_size(offsets) != 2 || !json_is_integer(json_array_get(offsets, 0)) ||
        !json_is_integer(json_array_get(offsets, 1)))
        return fail("safetensors: %s: tensor '%s' lacks a dtype, shape or data_offsets "
                    "of the right type", path, name);
    *out = (struct disk_tensor){.name = arena_copy(a, name, strlen(name))};
    if (!type_parse(a, json_string_value(dtype), out))
        return fail_in("safetensors: %s: tensor '%s'", path, name);
    if (json_array_size(shape) > MAX_DISK_DIMS)
        return fail("safetensors: %s: tensor '%s' has %zu dimension(s), at most %d are "
                    "read", path, name, json_array_size(shape), MAX_DISK_DIMS);
    out->ndim = (int)json_array_size(shape);
    for (int i = 0; i < out->ndim; i++) {
        if (!json_is_integer(json_array_get(shape, (size_t)i)))
            return fail("safetensors: %s: tensor '%s': shape is not all whole numbers",
                        path, name);
        out->dim[i] = json_integer_value(json_array_get(shape, (size_t)i));
    }
    int64_t from = json_integer_value(json_array_get(offsets, 0));
    int64_t to = json_integer_value(json_array_get(offsets, 1));
    out->count = disk_count(out->ndim, out->dim);
    if (out->count < 0 || __builtin_mul_overflow(out->count, dtype_bytes(out->dtype),
                                                 &out->bytes))
        return fail("safetensors: %s: tensor '%s' has an impossible shape", path, name);
    if (from < 0 || to < from || to > data.size)
        return fail("safetensors: %s: tensor '%s' lies at %" PRId64 "..%" PRId64
                    ", the data is %" PRId64 " byte(s) (is the file cut short?)", path,
                    name, from, to, data.size);
    if (out->other)                     /* how wide it is only its readers know */
        out->bytes = to - from;
    if (to - from != out->bytes)
        return fail("safetensors: %s: tensor '%s' is %s = %" PRId64 " byte(s), its "
                    "range holds %" PRId64, path, name,
                    disk_text(a, disk_type(out), out->ndim, out->dim), out->bytes,
                    to - from);
    out->data = data.at + from;
    return true;
}

static int by_place(const void *x, const void *y)
{
    const struct disk_tensor *a = x, *b = y;
    if (a->data != b->data)
        return (const char *)a->data < (const char *)b->data ? -1 : 1;
    return a->bytes < b->bytes ? -1 : a->bytes > b->bytes;
}

static bool meta_parse(struct arena *a, const char *path, json_t *pairs,
                       struct safetensors *out)
{
    const char *name;
    json_t *text;
    if (!json_is_object(pairs))
        return fail("safetensors: %s: __metadata__ is no object of texts", path);
    out->meta = NEW(a, const char *, 2 * json_object_size(pairs) + 1);
    json_object_foreach(pairs, name, text) {
        if (!json_is_string(text))
            return fail("safetensors: %s: metadata '%s' is not text", path, name);
        out->meta[2 * out->nmeta] = arena_copy(a, name, strlen(name));
        out->meta[2 * out->nmeta++ + 1] =
            arena_copy(a, json_string_value(text), json_string_length(text));
    }
    return true;
}

/* Tensors in the order of their data fill it from its first byte to its last. */
static bool ranges_check(const char *path, struct bytes data, struct safetensors *s)
{
    qsort(s->tensor, (size_t)s->count, sizeof *s->tensor, by_place);
    const char *end = data.at;
    for (int64_t i = 0; i < s->count; i++) {
        const char *at = s->tensor[i].data;
        if (at < end)
            return fail("safetensors: %s: tensors '%s' and '%s' overlap", path,
                        s->tensor[i - 1].name, s->tensor[i].name);
        if (at > end)
            return fail("safetensors: %s: %td unused byte(s) before tensor '%s'", path,
                        at - end, s->tensor[i].name);
        end = at + s->tensor[i].bytes;
    }
    if (end != data.at + data.size)
        return fail("safetensors: %s: %td byte(s) after the last tensor", path,
                    data.at + data.size - end);
    return true;
}

static bool header_parse(struct arena *a, const char *path, json_t *head,
                         struct bytes data, struct safetensors *out)
{
    const char *key;
    json_t *value;
    out->tensor = NEW(a, struct disk_tensor, json_object_size(head));
    json_object_foreach(head, key, value) {
        bool meta = !strcmp(key, "__metadata__");
        if (meta ? !meta_parse(a, path, value, out)
                 : !tensor_parse(a, path, key, value, data, &out->tensor[out->count]))
            return false;
        out->count += !meta;
    }
    return ranges_check(path, data, out);
}

bool safetensors_parse(struct arena *a, const char *path, struct bytes file,
                       struct safetensors *out)
{
    *out = (struct safetensors){.path = arena_copy(a, path, strlen(path)), .map = file};
    uint64_t size = 0;
    if (file.size < 8)
        return fail("safetensors: %s is %" PRId64 " byte(s), a header needs 8", path,
                    file.size);
    for (int i = 7; i >= 0; i--)
        size = size << 8 | (uint8_t)file.at[i];
    if (size > HEADER_MOST || (int64_t)size > file.size - 8)
        return fail("safetensors: %s: header of %" PRIu64 " byte(s) in a file of "
                    "%" PRId64 " (not a safetensors file, or cut short)", path, size,
                    file.size);
    json_error_t error;
    json_t *head = json_loadb(file.at + 8, size, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(head)) {
        json_decref(head);
        return fail("safetensors: %s: header is no JSON object: %s", path, error.text);
    }
    struct bytes data = {file.at + 8 + size, file.size - 8 - (int64_t)size};
    bool ok = header_parse(a, path, head, data, out);
    json_decref(head);
    return ok;
}

bool safetensors_open(struct arena *a, const char *path, struct safetensors *out)
{
    struct bytes map;
    if (!file_map(path, &map))
        return false;
    if (safetensors_parse(a, path, map, out))
        return true;
    file_unmap(&map);
    *out = (struct safetensors){0};     /* closing it would unmap a second time */
    return false;
}

void safetensors_close(struct safetensors *s)
{
    if (s->map.at)
        file_unmap(&s->map);
    s->map = (struct bytes){0};
}

const struct disk_tensor *safetensors_find(const struct safetensors *s,
                                           const char *name)
{
    for (int64_t i = 0; i < s->count; i++)
        if (!strcmp(s->tensor[i].name, name))
            return &s->tensor[i];
    return NULL;
}

const char *safetensors_meta(const struct safetensors *s, const char *key)
{
    for (int64_t i = 0; i < s->nmeta; i++)
        if (!strcmp(s->meta[2 * i], key))
            return s->meta[2 * i + 1];
    return NULL;
}

/* ---- writing ---- */

struct safetensors_writer {
    FILE *file;
    struct arena *arena;
    const char *path;
    char *aside;                        /* what is written until all of it is there */
    int64_t left;                       /* bytes still to come */
};

static char *header_text(const struct disk_tensor *tensor, int64_t count,
                         const char *const *meta, int64_t nmeta)
{
    json_t *head = json_object(), *pairs = json_object();
    for (int64_t i = 0; i < nmeta; i++)
        REQUIRE(!json_object_set_new(pairs, meta[2 * i], json_string(meta[2 * i + 1])));
    json_object_set_new(head, "__metadata__", pairs);
    int64_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        json_t *shape = json_array();
        for (int d = 0; d < tensor[i].ndim; d++)
            json_array_append_new(shape, json_integer(tensor[i].dim[d]));
        const char *dtype = disk_type(&tensor[i]);
        json_int_t from = at, to = at += tensor[i].bytes;
        REQUIRE(!json_object_get(head, tensor[i].name));        /* names are unique */
        REQUIRE(!json_object_set_new(head, tensor[i].name,
            json_pack("{s:s, s:o, s:[I,I]}", "dtype", dtype, "shape", shape,
                      "data_offsets", from, to)));
    }
    char *text = json_dumps(head, JSON_COMPACT);
    json_decref(head);
    return text;
}

struct bytes safetensors_head(struct arena *a, const struct disk_tensor *tensor,
                              int64_t count, const char *const *meta, int64_t nmeta)
{
    char *text = header_text(tensor, count, meta, nmeta);
    size_t size = strlen(text), padded = (size + 7) / 8 * 8;
    struct bytes head = {arena_push(a, 8 + padded), 8 + (int64_t)padded};
    for (int i = 0; i < 8; i++)
        head.at[i] = (char)(uint8_t)((uint64_t)padded >> 8 * i);
    memcpy(head.at + 8, text, size);
    memset(head.at + 8 + size, ' ', padded - size);
    free(text);
    return head;
}

bool safetensors_create(struct arena *a, const char *path,
                        const struct disk_tensor *tensor, int64_t count,
                        const char *const *meta, int64_t nmeta,
                        struct safetensors_writer **out)
{
    struct safetensors_writer *w = NEW(a, struct safetensors_writer, 1);
    w->path = arena_copy(a, path, strlen(path));
    w->arena = a;
    int fd;
    w->aside = file_aside(a, path);
    if (!w->aside ||
        !file_descriptor(w->aside, O_WRONLY | O_CREAT | O_TRUNC, &fd))
        return false;
    w->file = fdopen(fd, "wb");
    REQUIRE(w->file);                   /* only memory could be lacking */
    struct bytes head = safetensors_head(a, tensor, count, meta, nmeta);
    for (int64_t i = 0; i < count; i++)
        w->left += tensor[i].bytes;
    if (fwrite(head.at, 1, (size_t)head.size, w->file) == (size_t)head.size) {
        *out = w;
        return true;
    }
    fail("safetensors: write %s: %s", path, strerror(errno));
    safetensors_abandon(w);
    return false;
}

bool safetensors_write(struct safetensors_writer *w, const void *data, int64_t bytes)
{
    REQUIRE(bytes <= w->left);
    w->left -= bytes;
    if (bytes && fwrite(data, 1, (size_t)bytes, w->file) != (size_t)bytes)
        return fail("safetensors: write %s: %s", w->path, strerror(errno));
    return true;
}

bool safetensors_finish(struct safetensors_writer *w)
{
    REQUIRE(w->left == 0);
    bool ok = fflush(w->file) == 0 && fsync(fileno(w->file)) == 0;
    int why = errno;
    if (fclose(w->file) && ok) {
        ok = false;
        why = errno;
    }
    struct safetensors again = {0};
    ok = ok ? safetensors_open(w->arena, w->aside, &again)
            : fail("safetensors: write %s: %s", w->path, strerror(why));
    safetensors_close(&again);
    return file_settle(w->aside, w->path, ok);
}

void safetensors_abandon(struct safetensors_writer *w)
{
    fclose(w->file);
    unlink(w->aside);
}
